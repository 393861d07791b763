"""HTTP through the router: what a client sends is what the worker gets and back again, connections
on both sides live and end as they should, and what is ambiguous is refused. Named after the cases
of the bug log (B02 ...).
"""
import ctypes
import hashlib
import json
import os
import random
import socket
import subprocess
import threading

import pytest

import harness
from harness import Closed, LASTING, make_request, wait_until

CHAT = "/v1/chat/completions"
Q0 = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
PAIR = {"keys": "pass_paths = *\nmax_body_size = 64m\n"}  # of conftest.py


def digest(x):
    """A worker that tells what it got; extra members, as engines add them."""
    told = {"sha256": hashlib.sha256(x.request.body).hexdigest(), "bytes": len(x.request.body), "start": x.request.start, "x_new_field": {"a": [1]}}
    x.answer(200, json.dumps(told))


def names(m):
    return [n.lower() for n, _ in m.fields]


def assert_one_framing(m):
    assert len(m.all("content-length")) + len(m.all("transfer-encoding")) == 1, m.head


# ---- B02: connections to workers that end while idle ----

def test_b02_worker_that_closes_while_idle_costs_nothing(pair):
    """(a) The FIN of an idle connection is noticed before anybody asks; (d) a worker that closes
    after every answer without saying so."""
    r, w = pair
    w.handler = lambda x: digest(x) or "close"
    with r.connect() as c:
        for i in range(4):
            c.send(make_request(body=Q0))
            m = c.read_response()
            assert m.status == 200 and m.json()["bytes"] == len(Q0)
            wait_until(lambda: r.metric("kvsteer_connections", side="worker") == 0, "the closed connection is dropped")
    assert len(w.requests) == 4 and len({x.conn_no for x in w.exchanges}) == 4


def test_b02_reset_at_the_second_request_is_sent_again_once(worker, router):
    """(b) A pooled connection dies without a byte at the next request: a fresh one is used, and the
    client sees nothing of it."""
    first = []

    def reset_second(x):
        if not first:
            first.append(x.conn_no)
        elif x.conn_no == first[0]:
            x.wire.reset()
            return "close"
        digest(x)
        return None
    w = worker("w0", reset_second)
    r = router([w], pool=LASTING, keys="threads = 1\n")
    with r.connect() as c:
        for _ in range(3):
            c.send(make_request(body=Q0))
            assert c.read_response().status == 200
    conns = [x.conn_no for x in w.exchanges]
    assert len(conns) == 4 and conns[0] == conns[1] and conns[2] != conns[1] and conns[3] == conns[2], conns


def test_b02_races_of_200_closing_connections(pair):
    """(c) The worker closes after each answer, right as the next request comes: answered every
    time, run once each."""
    r, w = pair
    w.handler = lambda x: digest(x) or "close"
    with r.connect() as c:
        for i in range(200):
            body = json.dumps({"model": "m", "prompt": str(i)}).encode()
            c.send(make_request(path="/v1/completions", body=body))
            m = c.read_response()
            assert m.status == 200 and m.json()["sha256"] == hashlib.sha256(body).hexdigest(), (i, m.start, m.body)
    assert len(w.requests) == 200


def test_b02_idle_connections_live_shorter_than_engines_keep_them(worker, router):
    w = worker("w0")
    r = router([w], pool="upstream_idle = 50ms\n" + LASTING)
    assert r.request(body=Q0).status == 200
    wire = w.exchanges[0].wire
    wait_until(lambda: wire not in w.wires, "the router closes the idle connection")
    assert r.request(body=Q0).status == 200
    assert w.exchanges[1].conn_no != w.exchanges[0].conn_no


def test_b02_poison_goes_to_one_other_worker_only(worker, router):
    """A fresh connection that dies without a byte: one other worker gets the request, no third."""
    def poison(x):
        x.wire.reset()
        return "close"
    ws = [worker(f"w{i}", poison) for i in range(4)]
    r = router(ws, pool=LASTING)
    m = r.request(body=Q0)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_reset"
    assert sorted(len(w.requests) for w in ws) == [0, 0, 1, 1]


# ---- B08, B21: bodies are the worker's to judge ----

ODD_BODIES = [
    '{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}',
    '{"model":"m","messages":[{"role":"assistant","content":null},{"role":"user","content":"x"}]}',
    '{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[]}',
    '{"model":"m","messages":[{"role":"user","content":"x","z":1}],"chat_template_kwargs":{"x":true},"metadata":{"k":"v"}}',
    '{"model":"m","messages":[{"role":"user","content":"x"}],"max_completion_tokens":64}',
    '{"model":"m","messages":[{"role":"user","content":"x"}],"stop":null}',
    '{"model":"m","messages":[]}',
    '{"model":7,"messages":[{"role":"user","content":"x"}]}',
    '{"model":"m","messages":"x"}', "null", "[]", "", "{", '{"a":1}{"b":2}', '{"messages":[1,],}', '{"x":NaN}',
    "\ufeff{}", '{"messages":[{"role":"user","content":"\ud800"}]}', '{"mess\\u0061ges":[]}', "\x00\x01\xff",
]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/generate", "/tokenize"])
def test_b08_bodies_are_forwarded_unjudged(pair, path):
    r, w = pair
    w.handler = digest
    with r.connect() as c:
        for text in ODD_BODIES:
            body = text.encode("utf-8", "surrogatepass")
            c.send(make_request(path=path, body=body))
            m = c.read_response()
            assert m.status == 200, (text, m.start, m.body)
            assert m.json()["sha256"] == hashlib.sha256(body).hexdigest() and m.json()["x_new_field"] == {"a": [1]}, text
    assert [q.body for q in w.requests] == [t.encode("utf-8", "surrogatepass") for t in ODD_BODIES]


def test_b21_spelling_and_order_survive(pair):
    r, w = pair
    w.handler = digest
    body = (rb'{ "model":"m" ,"seed":9007199254740993,"temperature":0.70,"top_p":1e-0,"bias":1e400,"response_format":{"type":"json_schema",'
            rb'"json_schema":{"name":"s","schema":{"type":"object","properties":{"zebra":{"type":"string"},"apple":{"type":"string"},'
            rb'"mango":{"type":"integer"}}}}},"messages":[{"role":"user","content":"caf\u00e9 \/ x"}]}' + b"\n")
    for _ in range(10):
        assert r.request(body=body).json()["sha256"] == hashlib.sha256(body).hexdigest()
    assert all(q.body == body for q in w.requests) and len(w.requests) == 10


# ---- B15: answers as the worker made them ----

ANSWERS = {
    "a-400-json": (b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 57\r\n\r\n"
                   b'{"error":{"message":"bad temperature","code":"x","p":12}}', 400, "application/json"),
    "b-500-chunked": (b"HTTP/1.1 500 Oops\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nboom!\r\n6;x=y\r\n again\r\n0\r\n\r\n",
                      500, "text/plain"),
    "c-error-event": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b'1f\r\ndata: {"error":{"message":"x"}}\r\n2\r\n\n\n\r\n0\r\n\r\n', 200, "text/event-stream"),
    "d-200-json": (b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"a": "b"}', 200, "application/json"),
    "e-no-type": (b"HTTP/1.1 503 X\r\nContent-Length: 3\r\nRetry-After: 7\r\n\r\nabc", 503, None),
    "f-204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None),
    "g-empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, None),
    "h-stream-by-length": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: a\n\n", 200, "text/event-stream"),
    "i-429": (b"HTTP/1.1 429 X\r\nContent-Type: application/json\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}", 429, "application/json"),
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_b15_answers_keep_status_type_body_and_one_framing(pair, name):
    r, w = pair
    data, status, kind = ANSWERS[name]
    w.handler = lambda x: x.send(data)
    if b"chunked" in data:
        body = b"boom! again" if "500" in name else b'data: {"error":{"message":"x"}}\n\n'
    else:
        body = data.split(b"\r\n\r\n", 1)[1]
    with r.connect() as c:
        for stream in (b"true", b"false"):
            c.send(make_request(body=Q0.replace(b"true", stream)))
            m = c.read_response()
            assert (m.status, m.get("content-type"), m.body, m.ended) == (status, kind, body, True)
            if status != 204:
                assert_one_framing(m)
            if m.get("content-length") is not None:
                assert int(m.get("content-length")) == len(m.body)
    # The connection of an engine that failed is not used again.
    assert len(w.requests) == 2 and (w.exchanges[0].conn_no == w.exchanges[1].conn_no) == (name != "c-error-event")


# ---- B20: header fields ----

def test_b20_end_to_end_fields_travel_and_hop_by_hop_ones_do_not(pair):
    r, w = pair

    def reply(x):
        x.answer(200, "ok", [("x-request-id", "worker-1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2; Path=/"), ("X-Worker", "0"), ("Connection", "close, X-Hop"),
                             ("X-Hop", "1"), ("Server", "uvicorn"), ("Keep-Alive", "timeout=5"), ("X-Empty", "")])
        return "close"
    w.handler = reply
    sent = [("Authorization", "Bearer k-1"), ("x-api-key", "k-2"), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "one"), ("anthropic-beta", "two, three"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("x-LaBeL", "Z  z\t;"), ("X-Empty", ""), ("Accept-Encoding", "gzip"),
            ("User-Agent", "test/1"), ("X-High", "caf\xe9")]
    hop = [("X-Request-Id", "req-abc"), ("Connection", "keep-alive, X-Drop"), ("Connection", "\tx-drop-too ,"), ("X-Drop", "1"), ("X-Drop-Too", "2"),
           ("Keep-Alive", "timeout=5"), ("TE", "trailers"), ("Proxy-Connection", "keep-alive"), ("Proxy-Authorization", "Basic k-3"), ("Upgrade", "h2c"),
           ("X-Kvsteer-Whatever", "1"), ("Via", "1.0 edge"), ("X-Forwarded-For", "10.0.0.9")]
    with r.connect() as c:
        c.send(make_request(body=Q0, headers=sent + hop))
        m = c.read_response()
        c.send(make_request("GET", "/v1/models/x"))  # the client's connection is not the worker's
        assert c.read_response().status == 200
    q = w.requests[0]
    for name, value in sent:
        assert (name, value.strip(" \t")) in q.fields, name
    assert [v for n, v in q.fields if n == "anthropic-beta"] == ["one", "two, three"]
    order = [f for f in q.fields if (f[0], f[1]) in [(n, v.strip(" \t")) for n, v in sent]]
    assert [n for n, _ in order] == [n for n, _ in sent]
    for gone in ("x-drop", "x-drop-too", "keep-alive", "te", "proxy-connection", "proxy-authorization", "upgrade", "x-kvsteer-whatever", "connection", "expect"):
        assert gone not in names(q), gone
    assert q.all("x-request-id") == ["req-abc"] and q.all("host") == [w.netloc]
    assert q.all("via") == ["1.0 edge, 1.1 kvsteer"] and q.all("x-forwarded-for") == ["127.0.0.1"] and q.all("x-forwarded-proto") == ["http"]
    assert m.all("set-cookie") == ["a=1", "b=2; Path=/"] and m.get("x-worker") == "0" and m.get("server") == "uvicorn"
    assert m.all("x-request-id") == ["worker-1"] and m.get("x-empty") == ""
    assert "x-hop" not in names(m) and m.get("connection") == "keep-alive" and m.get("keep-alive") == "timeout=75"
    r.wait_log(r"req-abc")
    assert not any(key in r.log() for key in ("k-1", "k-2", "k-3"))


def test_b20_request_ids_are_kept_or_made_and_returned(pair):
    r, w = pair
    m = r.request(body=Q0)
    made = w.requests[0].get("x-request-id")
    assert len(made) == 32 and m.get("x-request-id") == made
    for bad in ("a b", "x" * 200, '"quoted"', "<script>"):
        w.clear()
        r.request(body=Q0, headers={"X-Request-Id": bad})
        assert w.requests[0].get("x-request-id") not in (bad, made), bad


# ---- B34: Expect ----

def expect_head(n, value="100-continue", path=CHAT):
    return f"POST {path} HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nContent-Length: {n}\r\nExpect: {value}\r\n\r\n"


def test_b34_100_continue_and_then_the_answer(pair):
    """(a) The body waits for the 100; exactly one comes."""
    r, w = pair
    w.handler = digest
    body = b'{"x":"' + b"y" * 1999992 + b'"}'
    with r.connect() as c:
        for _ in range(2):
            c.send(expect_head(len(body)))
            assert c.read_head().status == 100
            c.send(body)
            m = c.read_response()
            assert m.status == 200 and not m.interim and m.json()["sha256"] == hashlib.sha256(body).hexdigest()
    assert all(q.get("expect") is None for q in w.requests)


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_b34_too_large_is_said_instead_of_100(worker, router, how):
    """(b) 413, the body unread."""
    w = worker("w0")
    r = router([w], keys="max_body_size = 1m\n")
    with r.connect() as c:
        if how == "length":
            c.send(expect_head(2000000))
        else:
            c.send("POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
            assert c.read_head().status == 100  # its size is not known yet
            c.send("1e8480\r\n")
        m = c.read_response()
        assert m.status == 413 and not m.interim and m.json()["error"]["code"] == "body_too_large"
        assert c.at_eof()
    assert not w.requests


def test_b34_refused_paths_are_said_instead_of_100(worker, router):
    w = worker("w0")
    r = router([w])
    with r.connect() as c:
        c.send(expect_head(2000000, path="/invocations"))
        m = c.read_response()
        assert m.status == 404 and not m.interim
        assert c.at_eof()


def test_b34_interim_answers_of_the_worker_stay_there(pair):
    """(c) 100 and 103 from the worker, then 200: the client sees the 200 alone."""
    r, w = pair
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    def interim(x):
        x.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ok)
    w.handler = interim
    with r.connect() as c:
        for expect in ({}, {"Expect": "100-continue"}):
            c.send(make_request(body=Q0, headers=expect))
            m = c.read_response()
            assert m.status == 200 and not m.interim and m.body == b"ok", m.interim
    assert w.exchanges[0].conn_no == w.exchanges[1].conn_no


def test_b34_body_without_waiting_and_other_expectations(pair):
    """(d) The body comes at once: no 100 then. (e) Other expectations are 417. 1.0 knows no
    Expect."""
    r, w = pair
    with r.connect() as c:
        c.send(expect_head(len(Q0)).encode() + Q0)
        m = c.read_response()
        assert m.status == 200 and not m.interim
        c.send(expect_head(len(Q0), "something-else"))
        m = c.read_response()
        assert m.status == 417 and m.json()["error"]["code"] == "expectation_failed"
        assert c.at_eof()
    with r.connect() as c:
        c.send(expect_head(len(Q0)).replace("HTTP/1.1", "HTTP/1.0").encode() + Q0)
        assert c.read_response().status == 200
    assert [q.body for q in w.requests] == [Q0, Q0]


def test_b34_expect_with_an_empty_body_needs_no_100(pair):
    r, _ = pair
    with r.connect() as c:
        c.send(expect_head(0))
        m = c.read_response()
        assert m.status == 200 and not m.interim


# ---- B42, B43: targets and Host ----

TARGETS = [
    ("POST", "/v1/messages?beta=true"), ("GET", "/v1/models/org%2Fname-7B"), ("GET", "/v1/models/org/name-7B"), ("POST", "/v1/chat/completions/"),
    ("GET", "//v1//models"), ("GET", "/v1/x?a=1&a=2&b=%20&c=;x"), ("GET", "/v1/x/../models"), ("GET", "/v1/./models"), ("DELETE", "/v1/responses/r_1"),
    ("PUT", "/v1/files/1"), ("PATCH", "/v1/files/1?"), ("GET", "/a%2e%2e/b"), ("GET", "/v1/%41%7e~!$&'()*+,;=:@"), ("GET", "/v1/x?http://r.test/v1"),
]


def test_b42_method_path_and_query_arrive_byte_for_byte(pair):
    r, w = pair
    with r.connect() as c:
        for method, target in TARGETS:
            c.send(make_request(method, target, None if method == "GET" else b"{}"))
            assert c.read_response().status == 200, target
    assert [q.start for q in w.requests] == [f"{m} {t} HTTP/1.1" for m, t in TARGETS]
    assert [q.body for q in w.requests] == [b"" if m == "GET" else b"{}" for m, _ in TARGETS]


def test_b42_absolute_form_becomes_origin_form(pair):
    r, w = pair
    with r.connect() as c:
        for target, want in [("http://r.test/v1/chat/completions?x=1", "/v1/chat/completions?x=1"), ("http://r.test?x", "/?x"), ("HTTP://other.test:81/a", "/a")]:
            c.send(make_request("POST", target, b"{}"))
            assert c.read_response().status == 200
            assert w.requests[-1].target == want and w.requests[-1].get("host") == w.netloc
        c.send(make_request("GET", "/v1/x#frag"))
        assert c.read_response().status == 400
    assert len(w.requests) == 3


def test_b42_redirects_go_to_the_client(pair):
    r, w = pair
    where = "http://w0.internal:8000/v1/chat/completions"
    w.handler = lambda x: x.answer(307, "", [("Location", where)])
    m = r.request(body=Q0)
    assert m.status == 307 and m.get("location") == where and len(w.requests) == 1


def test_b43_host_is_the_workers(worker, router):
    """Whatever the client calls the router; 400 for two, none or a broken one; brackets for
    IPv6."""
    w = worker("w0")
    v6 = worker("w1", host="::1")
    r = router([w, v6], pool="policy = round_robin\n")
    with r.connect() as c:
        for host in ("llm.example.test", "llm.example.test:443", "[::1]:30000", "127.0.0.1"):
            c.send(make_request(body=Q0, host=host))
            assert c.read_response().status == 200
    assert [q.all("host") for q in w.requests] == [[f"127.0.0.1:{w.port}"]] * 2
    assert [q.all("host") for q in v6.requests] == [[f"[::1]:{v6.port}"]] * 2
    for lines in ("Host: a\r\nHost: a\r\n", "", "Host: a b\r\n", "Host: a@b\r\n", "Host: a:x\r\n"):
        with r.connect() as c:
            c.send(f"GET /v1/models/x HTTP/1.1\r\n{lines}\r\n")
            assert c.read_response().status == 400, lines
            assert c.at_eof()
    with r.connect() as c:
        c.send("GET /v1/models/x HTTP/1.0\r\n\r\n")
        assert c.read_response().status == 200
    assert len(w.requests) + len(v6.requests) == 5


# ---- B48: multipart ----

def multipart(ended=True):
    blob = random.Random(48).randbytes(1 << 20) * 26
    file = blob[:13 << 20] + b'\r\n--x\0\0"model"\r\n' + blob[13 << 20:]
    mark = b"--x y+1"
    parts = [b'\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n' + file,
             b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm', b'\r\nContent-Disposition: form-data; name="language"\r\n\r\nde']
    return mark + (b"\r\n" + mark).join(parts) + (b"\r\n" + mark + b"--\r\n" if ended else b"")


@pytest.mark.parametrize("how", ["length", "chunked", "expect", "malformed"])
def test_b48_multipart_uploads_pass(pair, how):
    r, w = pair
    w.handler = digest
    kind = 'multipart/form-data; boundary="x y+1"'
    body = multipart(how != "malformed")
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: r\r\nContent-Type: {kind}\r\n"
    with r.connect() as c:
        if how == "chunked":
            c.send(head + "Transfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 1 << 20):
                part = body[i:i + (1 << 20)]
                c.send(b"%x\r\n%s\r\n" % (len(part), part))
            c.send(b"0\r\n\r\n")
        else:
            c.send(head + f"Content-Length: {len(body)}\r\n" + ("Expect: 100-continue\r\n\r\n" if how == "expect" else "\r\n"))
            if how == "expect":
                assert c.read_head().status == 100
            c.send(body)
        m = c.read_response()
    assert m.status == 200 and m.json()["bytes"] == len(body) and m.json()["sha256"] == hashlib.sha256(body).hexdigest()
    assert w.requests[0].get("content-type") == kind
    assert w.requests[0].get("content-length") == (None if how == "chunked" else str(len(body))), "it goes on as it came"


def test_b48_uploads_without_a_prompt_are_spread(worker, router):
    ws = [worker(f"w{i}") for i in range(2)]
    r = router(ws)
    for _ in range(10):
        assert r.request(path="/v1/audio/transcriptions", body=b"--x\r\n\r\nsame\r\n--x--\r\n").status == 200
        r.wait_idle()  # its answer may be here before its load is gone
    assert [len(w.requests) for w in ws] == [5, 5]


# ---- B51: worker URLs ----

def test_b51_base_paths_and_ipv6(worker, router):
    a = worker("a", base="/team-a")
    b = worker("b", host="::1", base="/x/y")
    conf = f"[pool default]\npolicy = round_robin\n[worker a]\nurl = HTTP://127.0.0.1:{a.port}/team-a/\n[worker b]\nurl = http://[0:0::1]:{b.port}/x/y\n"
    r = router(conf=conf, wait=False)
    r.wait_workers("a", "b")
    for target in (CHAT, CHAT + "?q=/", CHAT, CHAT):
        assert r.request(path=target, body=Q0).status == 200
    assert sorted(q.target for q in a.requests + b.requests) == sorted(
        f"{base}{CHAT}{q}" for base, qs in (("/team-a", ["", ""]), ("/x/y", ["?q=/", ""])) for q in qs)
    assert all(p.target.startswith("/team-a/") and "//" not in p.target for p in a.probes)
    assert [q.get("host") for q in b.requests] == [f"[::1]:{b.port}"] * 2


@pytest.mark.parametrize("url", ["http://::1:8001", "8001", "http://h:99999", "http://h:0", "http://h:", "http://", "ftp://h", "http://u:p@h:1", "http://h/v1",
                                 "http://h/v1/", "http://h/a//b", "http://h/a/../b", "http://h/?x", "http://h:8000#f", "http://[::1", "http://h:80 80"])
def test_b51_bad_urls_are_refused_at_start_by_name(tmp_path, url):
    conf = tmp_path / "c.conf"
    conf.write_text(f"[worker w]\nurl = {url}\n")
    told = subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert told.returncode == 2 or told.returncode == 1, told
    assert f"{conf}:2: url" in told.stderr
    assert (url in told.stderr) == ("u:p@" not in url), told.stderr  # passwords are not told


def with_own_hosts(path):
    """A preexec_fn: the process sees path as /etc/hosts. Skips where that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_user = 0 if os.geteuid() == 0 else 0x10000000
    hosts = str(path).encode()

    def enter():
        if libc.unshare(0x20000 | new_user) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(hosts, b"/etc/hosts", None, 0x1000, None):
            raise OSError(ctypes.get_errno(), "no mount namespace")
    try:
        subprocess.run(["true"], check=True, preexec_fn=enter)
    except subprocess.SubprocessError:
        pytest.skip("an own /etc/hosts needs a mount namespace, which is not permitted here")
    return enter


MANY = ["127.0.0.1", "::1", "127.0.0.2"]


def alone_at_its_port(worker, listens):
    """A worker at one of these addresses whose port nobody has at the others."""
    while True:
        w = worker("w0", host=listens)
        try:
            return w, [harness.bound(a, w.port) for a in MANY if a != listens]
        except OSError:
            w.stop()


@pytest.mark.parametrize("listens", MANY)
def test_names_with_dead_and_live_addresses(worker, router, tmp_path, listens):
    """A name with three addresses, of which one answers: every request arrives, whichever is tried
    first."""
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{a} many.test\n" for a in MANY))
    w, kept = alone_at_its_port(worker, listens)
    r = router(conf=f"[pool default]\nupstream_idle = 0\n{LASTING}[worker w0]\nurl = http://many.test:{w.port}\n", wait=False, preexec=with_own_hosts(hosts))
    r.wait_workers("w0")
    for _ in range(6):
        m = r.request(body=Q0)
        assert m.status == 200, m.body
    assert {q.get("host") for q in w.requests} == {f"many.test:{w.port}"} and len(w.requests) == 6
    for s in kept:
        s.close()


# ---- B68: what clients do with their connections ----

def half_closed(r, request, before=lambda: None, after=lambda: None):
    """Sends, half-closes, and returns what comes until EOF."""
    with r.connect() as c:
        c.send(request)
        before()
        c.sock.shutdown(socket.SHUT_WR)
        after()
        try:
            return c.read_to_eof()
        except Closed as e:
            return e.partial


@pytest.mark.parametrize("how", ["auto", "abort", "allow"])
def test_b68_half_closed_clients(worker, router, how):
    """(a) The FIN is there before the worker answers. auto: answered if the request said close (or
    was 1.0 without keep-alive)."""
    w = worker("w0")
    r = router([w], keys=f"threads = 1\nhalf_close = {how}\n", pool=LASTING)
    cases = [("1.1", "", how == "allow"), ("1.1", "Connection: close\r\n", how != "abort"), ("1.0", "", how != "abort"),
             ("1.0", "Connection: keep-alive\r\n", how == "allow")]
    for version, line, is_answered in cases:
        w.clear()
        request = f"POST {CHAT} HTTP/{version}\r\nHost: r\r\n{line}Content-Length: {len(Q0)}\r\n\r\n".encode() + Q0
        if is_answered:
            hold = harness.Hold()
            w.handler = hold

            def fin_was_seen():
                w.wait_requests(1)
                assert r.request("GET", "/health").status == 200  # its thread has come by since the FIN arrived
                hold.release()
            got = half_closed(r, request, after=fin_was_seen)
            assert got.startswith(b"HTTP/1.1 200 ") and b"Connection: close\r\n" in got and b'"w0"' in got, (version, line, got)
        else:
            w.handler = lambda x: x.wait_gone() and "close"
            assert half_closed(r, request, before=lambda: w.wait_requests(1)) == b""
            assert w.exchanges[0].gone.wait(harness.DEADLINE)
            assert half_closed(r, request) == b""  # the FIN comes with the request: it may not even get to the worker
        r.wait_idle()


def test_b68_half_close_inside_a_request_ends_it(pair):
    r, w = pair
    for part in (b"POST /v1/completions HTTP/1.1\r\nHo", b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 9\r\n\r\n{",
                 b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"):
        assert half_closed(r, part) == b""
    assert not w.requests


def test_b68_pipelined_requests_to_different_workers_keep_their_order(worker, router):
    """(b) GET, POST with a body, GET in one segment; the second is slow."""
    slow = harness.Hold(digest)
    handler = lambda x: slow(x) if x.request.method == "POST" else digest(x)
    ws = [worker(f"w{i}", handler) for i in range(3)]
    r = router(ws, pool="policy = round_robin\n")
    with r.connect() as c:
        c.send(make_request("GET", "/v1/models/1") + make_request("POST", "/v1/completions", b'{"prompt":"2"}') + make_request("GET", "/v1/models/3"))
        assert c.read_response().json()["start"] == "GET /v1/models/1 HTTP/1.1"
        wait_until(lambda: sum(len(w.requests) for w in ws) == 2, "the second is under way")
        slow.release()
        assert c.read_response().json()["start"] == "POST /v1/completions HTTP/1.1"
        assert c.read_response().json()["start"] == "GET /v1/models/3 HTTP/1.1"
    assert [len(w.requests) for w in ws] == [1, 1, 1]


def test_pipelining_100_requests(pair):
    """With and without bodies, more than the router reads ahead: answers in order, none lost, in
    one connection to the worker."""
    r, w = pair
    w.handler = lambda x: x.answer(200, x.request.target + ":" + hashlib.sha256(x.request.body).hexdigest())
    want, data = [], b""
    for i in range(100):
        body = None if i % 3 == 0 else bytes([97 + i % 26]) * (7 * i if i % 3 == 1 else 100 * i)
        data += make_request("GET" if body is None else "POST", f"/v1/n/{i}", body)
        want.append(f"/v1/n/{i}:{hashlib.sha256(body or b'').hexdigest()}")
    with r.connect() as c:
        sender = threading.Thread(target=c.send, args=(data,))
        sender.start()
        got = [c.read_response().body.decode() for _ in range(100)]
        sender.join()
    assert got == want
    assert len({x.conn_no for x in w.exchanges}) == 1


def test_b68_1000_requests_on_one_connection(pair):
    """(d) and no descriptor more at the end."""
    r, w = pair
    with r.connect() as c:
        c.send(make_request(body=Q0))
        assert c.read_response().status == 200
        fds = r.fds()
        for _ in range(999):
            c.send(make_request(body=Q0))
            assert c.read_response().status == 200
        assert r.fds() <= fds + 1
    assert len(w.requests) == 1000


def test_b68_keep_alive_is_announced_and_kept(worker, router):
    """(c) An idle connection is closed after the announced time, by a FIN and nothing else."""
    w = worker("w0")
    r = router([w], keys="keepalive_timeout = 1s\n")
    with r.connect() as c:
        c.send(make_request(body=Q0))
        m = c.read_response()
        assert m.get("keep-alive") == "timeout=1" and m.get("connection") == "keep-alive"
        assert c.recv_some() == b""
    wait_until(lambda: r.metric("kvsteer_connections", side="client") == 0, "it is gone")


# ---- B72: upgrades ----

@pytest.mark.parametrize("path", ["/v1/realtime?model=m", CHAT])
def test_b72_websockets_are_501_at_once(worker, router, path):
    w = worker("w0")
    r = router([w])
    with r.connect() as c:
        c.send(f"GET {path} HTTP/1.1\r\nHost: r\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
               "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: realtime\r\n\r\n\x81\x85\0\0\0\0hello")
        m = c.read_response()
        assert m.status in ((501,) if "realtime" in path else (405, 501)) and m.get("content-type") == "application/json" and m.json()["error"]["code"]
        if m.status == 501:
            assert c.at_eof()  # the frame is not read as a request
    assert not w.requests


def test_b72_a_worker_cannot_switch_protocols(pair):
    r, w = pair
    w.handler = lambda x: x.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    m = r.request(body=Q0)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_protocol"


# ---- B73: ambiguous framing ----

SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: r\r\n\r\n"
AMBIGUOUS = [
    "Content-Length: 6\r\nTransfer-Encoding: chunked", "Content-Length: 6\r\nContent-Length: 7", "Content-Length: +6", "Content-Length: 6,6", "Content-Length: 0x6",
    "Content-Length: 18446744073709551622", "Content-Length: -1", "Content-Length:", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x", "Transfer-Encoding : chunked", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding: chunked\r\n x",
    "Content-Length: 6\nTransfer-Encoding: chunked", "Content-Length: 6\rX: y", "Content\0-Length: 6", "Content Length: 6", "NoColon", "Transfer_Encoding: chunked",
    "Connection: Content-Length\r\nContent-Length: 6", "Content-Length: 6 6", "Transfer-Encoding:\r\n\r\n",
]


@pytest.mark.parametrize("lines", AMBIGUOUS)
def test_b73_ambiguous_framing_is_400_and_close(pair, lines):
    r, w = pair
    with r.connect() as c:
        c.send(f"POST /v1/completions HTTP/1.1\r\nHost: r\r\n{lines}\r\n\r\n0\r\n\r\nX".encode("latin-1") + SMUGGLED)
        m = c.read_response()
        assert m.status in (400, 413) and m.get("connection") == "close" and m.json()["error"]["type"] == "invalid_request_error"
        assert c.at_eof()
    assert not w.requests


@pytest.mark.parametrize("size", ["0x5", "5 ", "-1", "", "+5", "5\n", "g", "11111111111111111", "5;x\0", "5\r"])
def test_b73_bad_chunk_sizes(pair, size):
    r, w = pair
    with r.connect() as c:
        c.send(f"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\nhello\r\n0\r\n\r\n".encode("latin-1") + SMUGGLED)
        m = c.read_response()
        assert m.status in (400, 413)
        assert c.at_eof()
    assert not w.requests


def test_b73_chunked_bodies_go_on_by_length(pair):
    """Legal ones in every form: one framing at the worker, extensions and trailers gone, the next
    request its own."""
    r, w = pair
    w.handler = digest
    bodies = [b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"3;a=b\r\nhel\r\n002\r\nlo\r\n000\r\nX-Trailer: 1\r\n\r\n", b"".join(b"1\r\n%c\r\n" % b for b in b"hello") + b"0\r\n\r\n"]
    with r.connect() as c:
        for coding in ("chunked", "Chunked"):
            for body in bodies:
                c.send(f"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: {coding}\r\n\r\n".encode() + body + make_request("GET", "/v1/after"))
                plain = b"" if body == bodies[0] else b"hello"
                assert c.read_response().json()["sha256"] == hashlib.sha256(plain).hexdigest()
                assert c.read_response().json()["start"] == "GET /v1/after HTTP/1.1"
    assert len(w.requests) == 16
    for q in w.requests[::2]:
        assert q.get("transfer-encoding") is None and q.all("content-length") == [str(len(q.body))] and "x-trailer" not in names(q)


# ---- versions and methods ----

def test_http10_clients(pair):
    """Without keep-alive the answer ends by closing, chunked answers lose their framing; with it
    both sides say so and go on."""
    r, w = pair

    def stream(x):
        x.begin()
        x.event("1")
        x.event("2")
        x.end()
    with r.connect() as c:
        c.send(make_request(body=Q0).replace(b"HTTP/1.1", b"HTTP/1.0"))
        m = c.read_response()
        assert m.status == 200 and m.get("connection") == "close" and m.get("content-length") == str(len(m.body)) and c.at_eof()
    w.handler = stream
    with r.connect() as c:
        c.send(make_request(body=Q0, headers={"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        m = c.read_response()
        assert m.get("transfer-encoding") is None and m.get("content-length") is None and m.body == b"data: 1\n\ndata: 2\n\n"
        assert m.get("connection") == "close"
    w.handler = digest
    with r.connect() as c:
        for _ in range(3):
            c.send(make_request(body=Q0, headers={"Connection": "Keep-Alive"}).replace(b"HTTP/1.1", b"HTTP/1.0"))
            m = c.read_response()
            assert m.status == 200 and m.get("connection") == "keep-alive" and m.get("transfer-encoding") is None
    assert all(q.start.endswith(" HTTP/1.1") for q in w.requests)
    for request in (make_request("PUT", "/health", headers={"Connection": "keep-alive"}), make_request("GET", "/health", headers={"Connection": "keep-alive"})):
        with r.connect() as c:  # the router's own answers close
            c.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert c.read_response().get("connection") == "close" and c.at_eof()


@pytest.mark.parametrize("minor", range(2, 10))
def test_a_higher_minor_version_is_read_as_1_1(pair, minor):
    """RFC 9110, 2.5: of clients and of workers. Keep-alive and chunks are as in 1.1, and the
    messages that the router sends say 1.1."""
    r, w = pair
    version = f"HTTP/1.{minor}".encode()

    def say(x):
        x.send(version + b" 100 Continue\r\n\r\n" + version + b" 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    w.handler = say
    with r.connect() as c:
        for _ in range(2):
            c.send(make_request(body=Q0).replace(b"HTTP/1.1", version))
            m = c.read_response()
            assert m.start.startswith("HTTP/1.1 200 ") and m.body == b"abc" and m.ended and m.get("transfer-encoding") == "chunked"
    assert all(x.start.endswith(" HTTP/1.1") for x in w.requests) and len({x.conn_no for x in w.exchanges}) == 1


@pytest.mark.parametrize("version,status", [("0.9", 505), ("2.0", 505), ("2.1", 505), ("9.9", 505), ("1.10", 400), ("1.", 400), ("01.1", 400), ("1.x", 400)])
def test_other_versions_are_refused(pair, version, status):
    r, w = pair
    with r.connect() as c:
        c.send(make_request(body=Q0).replace(b"HTTP/1.1", b"HTTP/" + version.encode()))
        m = c.read_response()
        assert m.status == status and c.at_eof()
    assert w.requests == []


def test_http10_workers(pair):
    """A 1.1 answer for the client from a 1.0 worker: by length, and until it closes."""
    r, w = pair

    def by_length(x):
        x.send(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello")
        return "close"

    def until_close(x):
        x.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        x.send(b"data: 2\n\n")
        return "close"
    with r.connect() as c:
        for handler, body in ((by_length, b"hello"), (until_close, b"data: 1\n\ndata: 2\n\n")) * 3:
            w.handler = handler
            c.send(make_request(body=Q0))
            m = c.read_response()
            assert m.status == 200 and m.body == body and m.ended
            assert_one_framing(m)
    assert len({x.conn_no for x in w.exchanges}) == 6
    assert all(q.start.endswith(" HTTP/1.1") for q in w.requests)


def test_head_and_options(pair):
    """HEAD: the length of what GET would give and no body, the connection goes on. OPTIONS is the
    worker's (CORS), * too."""
    r, w = pair

    def reply(x):
        if x.request.method == "OPTIONS":
            x.send(b"HTTP/1.1 204 No Content\r\nAllow: POST\r\nAccess-Control-Allow-Origin: *\r\n\r\n")
        elif x.request.method == "HEAD" and x.request.target.endswith("chunked"):
            x.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        else:
            x.answer(200, "hello")
    w.handler = reply
    with r.connect() as c:
        c.send(make_request("HEAD", "/v1/models/x"))
        m = c.read_response("HEAD")
        assert m.status == 200 and m.get("content-length") == "5" and m.body == b""
        c.send(make_request("HEAD", "/v1/chunked"))
        assert c.read_response("HEAD").status == 200
        c.send(make_request("OPTIONS", CHAT, headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"}))
        m = c.read_response("OPTIONS")
        assert m.status == 204 and m.get("access-control-allow-origin") == "*" and m.get("content-length") is None
        for method in ("HEAD", "GET"):
            c.send(make_request(method, "/health"))
            m = c.read_response(method)
            assert m.status == 200 and m.get("content-length") != "0" and (m.body == b"") == (method == "HEAD")
        c.send(make_request("HEAD", "/v1/models"))
        m = c.read_response("HEAD")
        assert m.status == 200 and int(m.get("content-length")) > 20
    assert [q.method for q in w.requests] == ["HEAD", "HEAD", "OPTIONS"]
    assert len({x.conn_no for x in w.exchanges}) == 1


def test_304_has_no_body(pair):
    r, w = pair
    w.handler = lambda x: x.send(b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 99\r\n\r\n")
    with r.connect() as c:
        for _ in range(2):
            c.send(make_request("GET", "/v1/x"))
            assert c.read_response().status == 304


def test_refused_paths_and_methods(worker, router):
    """404 and 405 with Allow, connection kept, nothing at the worker; the body of a refused request
    is skipped, not parsed as the next."""
    w = worker("w0")
    r = router([w])
    cases = [("POST", "/v1/load_lora_adapter", 404), ("POST", "/pause", 404), ("POST", "/update_weights", 404), ("GET", "/invocations", 404), ("GET", "/docs", 404),
             ("POST", CHAT + "/", 404), ("POST", "/V1/chat/completions", 404), ("POST", "/v1//chat/completions", 404), ("POST", "/v1/chat%2fcompletions", 404),
             ("GET", CHAT, 405), ("DELETE", CHAT, 405), ("PUT", "/health", 405), ("HEAD", CHAT, 405), ("POST", "/metrics", 404)]
    with r.connect() as c:
        for method, path, status in cases:
            c.send(make_request(method, path, SMUGGLED if method in ("POST", "PUT") else None))
            m = c.read_response(method)
            assert m.status == status, (method, path, m.start)
            assert (m.get("allow") is not None) == (status == 405), path
        assert m.get("connection") is None
        for method, status in (("BREW", 501), ("CONNECT", 405), ("TRACE", 405), ("get", 501)):
            with r.connect() as c2:
                c2.send(f"{method} {'r:80' if method == 'CONNECT' else '/v1/models/x'} HTTP/1.1\r\nHost: r\r\n\r\n")
                assert c2.read_response().status in (status, 400), method
                assert c2.at_eof()
        c.send(make_request(body=Q0))
        assert c.read_response().status == 200
    assert len(w.requests) == 1
