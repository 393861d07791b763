"""request_header and response_header: set, add and remove headers by name."""
import subprocess

import pytest

import harness
from harness import worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RULES = """request_header = set X-Region eu 1
request_header = add X-Tag ours
request_header = add X-Tag again
request_header = remove X-Debug
response_header = set X-Served-By us; a=b
response_header = add Strict-Transport-Security max-age=1
response_header = remove Server
response_header = set Retry-After 7
"""


def values(m, name):
    return [v for n, v in m.fields if n.lower() == name.lower()]


def test_what_workers_get(router, worker):
    w = worker("w0")
    r = router([w], keys=RULES)
    sent = [("x-region", "mine"), ("X_Region", "spoofed"), ("X-Region", "twice"), ("X-Tag", "theirs"), ("X-Debug", "1"), ("x_debug", "2"), ("X-Debugger", "3")]
    assert r.request(body=CHAT, headers=sent).status == 200
    q = w.requests[0]
    assert values(q, "x-region") == ["eu 1"] and values(q, "x_region") == []
    assert values(q, "x-tag") == ["theirs", "ours", "again"]
    assert values(q, "x-debug") == values(q, "x_debug") == [] and values(q, "x-debugger") == ["3"]
    assert q.json() == CHAT


def test_what_clients_get(router, worker):
    """Of a worker and of the router itself: once each."""
    def answer(x):
        x.answer(200, "ok", [("Server", "uvicorn"), ("X-Served-By", "them"), ("Strict-Transport-Security", "max-age=0"), ("X-Else", "stays")])
    w = worker("w0", answer)
    r = router([w], keys=RULES, pool="no_worker_wait = 0\n")
    m = r.request(body=CHAT)
    assert values(m, "server") == [] and values(m, "x-served-by") == ["us; a=b"] and values(m, "x-else") == ["stays"]
    assert values(m, "strict-transport-security") == ["max-age=0", "max-age=1"] and m.body == b"ok"
    for path, status in (("/health", 200), ("/v1/models", 200), ("/no/such/path", 404), ("/metrics", 404)):
        m = r.request("GET", path)
        assert m.status == status
        assert values(m, "x-served-by") == ["us; a=b"] and values(m, "strict-transport-security") == ["max-age=1"]
        assert len(values(m, "x-request-id")) == 1
    r.admin("POST", "workers/w0/drain")
    m = r.request(body=CHAT)
    assert m.status == 503 and values(m, "retry-after") == ["7"]


def test_streams_and_a_reload(router, worker):
    def answer(x):
        x.begin()
        x.event("a")
        x.event("[DONE]")
        x.end()
    w = worker("w0", answer)
    r = router([w], keys=RULES)
    m = r.request(body={**CHAT, "stream": True})
    assert values(m, "x-served-by") == ["us; a=b"] and b"[DONE]" in m.body
    r.router_keys = "response_header = set X-Served-By another\n"
    assert r.reload(worker_conf([w]))[0]
    m = r.request(body=CHAT)
    assert values(m, "x-served-by") == ["another"] and values(w.requests[-1], "x-region") == []


def run(tmp_path, keys, how):
    conf = tmp_path / "c.conf"
    conf.write_text(f"[router]\nadmin_socket = {tmp_path}/a.sock\nmetrics_listen = none\nlisten = 127.0.0.1:0\n{keys}[worker w]\nurl = http://127.0.0.1:1\n")
    return subprocess.run([harness.program("kvsteerd"), how, "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)


BAD = [("request_header", f"set {n} x") for n in (
    "Content-Length", "transfer_encoding", "Connection", "Keep-Alive", "TE", "Trailer", "Upgrade", "HOST", "Expect", "Via", "Authorization", "X-Api-Key",
    "X-Request-Id", "X-Kvsteer-Worker", "x_kvsteer_anything", "X-Forwarded-For", "X-Forwarded-Host", "X-Data-Parallel-Rank", "Content-Type",
    "Content-Encoding", "Proxy-Authorization", "HTTP2-Settings", "a:b", "X\u00e4")]
BAD += [("response_header", f"remove {n}") for n in (
    "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Content-Type", "Content-Encoding", "X-Request-Id", "X-Kvsteer-Cached", "Via",
    "Access-Control-Allow-Origin", "Trailer")]
BAD += [("request_header", v) for v in ("set X-A", "remove X-A b", "X-A b", "replace X-A b", "set X-A " + "a" * 1024)]


@pytest.mark.parametrize("n", range(len(BAD)))
def test_what_no_rule_may_say(tmp_path, n):
    key, value = BAD[n]
    p = run(tmp_path, f"{key} = {value}\n", "-t")
    assert p.returncode == 1 and f":5: {key} = " in p.stderr, p.stderr


def test_too_many_of_them(tmp_path):
    rules = "".join(f"request_header = add X-A{i} {'a' * 900}\n" for i in range(4))
    p = run(tmp_path, rules, "-t")
    assert p.stderr.count("\n") == 1 and ":8: " in p.stderr
    assert p.returncode == 1 and "one rule too many" in p.stderr


def test_they_are_printed_as_they_are_read(tmp_path):
    first = run(tmp_path, RULES, "-T")
    assert first.returncode == 0
    for line in RULES.splitlines():
        assert line + "\n" in first.stdout
    again = tmp_path / "again.conf"
    again.write_text(first.stdout)
    p = subprocess.run([harness.program("kvsteerd"), "-T", "-c", str(again)], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert p.stdout == first.stdout
