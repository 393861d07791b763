"""Limits that say their name: what a peer runs into is an own failure, with a message that names
the limit, or the key that raises it; never "not valid HTTP", never a worker that broke. The manual
lists them (kvsteerd(8), LIMITS).
"""
import json
import os
import re
import subprocess

import pytest

from harness import make_request, tables

Q = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
KIB = 1024


def refusal(r, request):
    with r.connect() as c:
        try:
            c.send(request)
        except OSError:
            pass  # it says no before it has all
        m = c.read_response()
        return m.status, m.json()["error"]["code"], m.json()["error"]["message"]


def chunked(rest):
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n" + rest


CLIENTS = {
    "line": (make_request("GET", "/v1/models/" + "p" * 8 * KIB), 414, "head_too_large", "8 KiB"),
    "header": (make_request(body=Q, headers={"X": "y" * 32 * KIB}), 431, "head_too_large", "32 KiB"),
    "fields": (make_request(body=Q, headers=[(f"X-{i}", "y") for i in range(101)]), 431, "head_too_large", "100 header fields"),
    "connection": (make_request(body=Q, headers={"Connection": ", ".join(f"x{i}" for i in range(65))}), 400, "malformed_request", "64 options"),
    "trailer": (chunked(b"0\r\n" + b"X: y\r\n" * 101 + b"\r\n"), 431, "head_too_large", "trailer"),
    "long-trailer": (chunked(b"0\r\nX: " + b"y" * 32 * KIB + b"\r\n\r\n"), 431, "head_too_large", "trailer"),
    "extensions": (chunked(b"1;" + b"x" * 4 * KIB + b"\r\n{\r\n0\r\n\r\n"), 400, "malformed_request", "4 KiB"),
    "overhead": (chunked(b"0000000000001\r\nx\r\n" * 4000 + b"0\r\n\r\n"), 400, "malformed_request", "larger chunks"),
    "body": (make_request(body=b"x" * (64 * KIB + 1)), 413, "body_too_large", "max_body_size"),
    "chunked-body": (chunked(b"10001\r\n" + b"x" * 65537 + b"\r\n0\r\n\r\n"), 413, "body_too_large", "max_body_size"),
    "memory": (make_request(body=b"x" * 60 * KIB), 503, "overloaded", "body_memory"),
}


@pytest.mark.parametrize("what", CLIENTS)
def test_clients_learn_which_limit_it_was(router, worker, what):
    w = worker("w0")
    keys = "max_body_size = 64k\n"
    r = router([w], keys=keys + ("body_memory = 64k\n" if what == "memory" else ""))
    request, status, code, says = CLIENTS[what]
    if what == "memory":
        with r.connect() as other:  # has all of it
            other.send(request[:-1])
            r.wait_metric(65536, "kvsteer_body_memory_bytes")
            got = refusal(r, request)
    else:
        got = refusal(r, request)
    assert got[:2] == (status, code) and says in got[2] and w.requests == []


def answers(head=b"", body=b"ok", more=b""):
    return lambda x: x.send(more + b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + head + body)


LENGTH, CHUNKS = b"Content-Length: 2\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
WORKERS = {
    "header": (answers(b"X: " + b"y" * 64 * KIB + b"\r\n" + LENGTH), "worker_head_too_large", "64 KiB"),
    "fields": (answers(b"X: y\r\n" * 256 + LENGTH), "worker_head_too_large", "256 fields"),
    "status-line": (lambda x: x.send(b"HTTP/1.1 200 " + b"y" * 8 * KIB + b"\r\n" + LENGTH + b"ok"), "worker_head_too_large", "8 KiB"),
    "connection": (answers(b"Connection: " + b", ".join(b"x%d" % i for i in range(65)) + b"\r\n" + LENGTH), "worker_head_too_large", "64 options"),
    "interim": (answers(LENGTH, more=b"HTTP/1.1 100 Continue\r\n\r\n" * 17), "worker_interim", "16 interim responses"),
}


@pytest.mark.parametrize("what", WORKERS)
def test_a_workers_header_beyond_a_limit(router, worker, what):
    handler, code, says = WORKERS[what]
    r = router([worker("w0", handler)])
    m = r.request(body=Q)
    assert m.status == 502 and m.json()["error"]["code"] == code and says in m.json()["error"]["message"]
    r.wait_metric(1, "kvsteer_requests_total", reason=code)
    assert r.metric("kvsteer_upstream_failures_total", reason=code) == 1
    r.wait_log(rf"end={code}\b")


@pytest.mark.parametrize("body", [b"1;" + b"x" * 4 * KIB + b"\r\na\r\n", b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 101 + b"\r\n", b"00000000000001\r\na\r\n" * 4000])
def test_a_workers_chunks_beyond_a_limit(router, worker, body):
    """The response has begun: the log and the metrics say it, the client sees a broken response."""
    def say(x):
        x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + CHUNKS + b"1\r\na\r\n" + body)
        x.wait_gone()
        return "close"
    r = router([worker("w0", say)])
    m = r.request(body=Q)
    assert m.status == 200 and not m.ended
    r.wait_log(r"end=worker_chunks\b")
    assert r.metric("kvsteer_upstream_failures_total", reason="worker_chunks") == 1


@pytest.mark.parametrize("path,size,says", [("/metrics", (8 << 20) + 1, "/metrics is larger than 8 MiB"), ("/v1/models", (4 << 20) + 1, "/v1/models is larger than 4 MiB")])
def test_pages_of_a_worker_that_are_too_large_are_told_once(router, worker, path, size, says):
    """It serves all the same, and the log says what is not read."""
    w = worker("w0")
    w.metrics_text = "#" * size if path == "/metrics" else None
    w.models = ["m", "x" * size] if path == "/v1/models" else ["m"]
    r = router([w])
    r.wait_log(rf"(?m)^.*worker w0: .*{re.escape(says)}.*$")
    assert r.request(body=Q).status == 200
    r.wait_metric(1, "kvsteer_requests_total", reason="ok")
    assert len(re.findall(re.escape(says), r.log())) == 1


def test_a_response_that_is_too_large_to_be_kept_says_so(router, worker):
    """One worker answers 500, at length, the other not at all: it is not called unreachable."""
    def breaks(x):
        x.wire.reset()
        return "close"
    r = router([worker("w0", lambda x: x.answer(500, b"x" * 70000)), worker("w1", breaks)], pool="policy = round_robin\nretry_budget = 100%\n")
    for _ in range(2):  # one of them begins with w0
        m = r.request(body=Q)
        if m.status == 502:
            break
    assert m.status == 502 and m.json()["error"]["code"] == "worker_not_kept" and "64 KiB" in m.json()["error"]["message"]


def test_the_manual_lists_the_failures_of_limits():
    """Each failure whose message names a limit stands in LIMITS of kvsteerd(8), by its code."""
    page = os.path.join(os.path.dirname(__file__), "..", "..", "man", "kvsteerd.8")
    text = open(page).read().split(".Sh LIMITS")[1].split("\n.Sh ")[0]
    codes = {row[0] for row in tables("kvsteerd", "failure")}
    for code in ("worker_head_too_large", "worker_interim", "worker_chunks", "worker_prefill_too_large", "head_too_large", "body_too_large", "malformed_request", "overloaded"):
        assert code in codes and code in text, code
