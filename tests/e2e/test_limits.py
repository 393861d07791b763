"""Bounds in size, number and time, and what every failure says: complete answers in OpenAI's shape,
connections that go on where they can, and a router that is as before once the pressure is gone.
"""
import hashlib
import json
import resource
import selectors
import socket
import threading

import pytest

import harness
from harness import Closed, Hold, LASTING, make_request, wait_until

CHAT = "/v1/chat/completions"
Q0 = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'


def digest(x):
    x.answer(200, json.dumps({"sha256": hashlib.sha256(x.request.body).hexdigest(), "bytes": len(x.request.body)}))


PAIR = {"keys": "max_body_size = 40m\n", "handler": digest}  # of conftest.py


def error_of(m, status, code):
    """Asserts one complete error of the router in OpenAI's shape."""
    assert m.status == status, (m.start, m.body)
    assert m.ended and m.get("content-type") == "application/json" and m.get("content-length") == str(len(m.body)) and m.get("transfer-encoding") is None
    error = m.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code and error["message"] and error["param"] is None, error
    assert m.get("x-request-id")
    return error


# ---- B09: sizes of bodies ----

def chat_of(mib):
    head = b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    tail = b'"}}]}]}'
    n = int(mib * (1 << 20)) - len(head) - len(tail)
    block = hashlib.shake_256(b"B09").hexdigest(1 << 19).encode()
    return head + (block * (n // len(block) + 1))[:n] + tail


@pytest.mark.parametrize("mib", [1, 2, 2.1, 8.5, 31])
@pytest.mark.parametrize("how", ["length", "chunked"])
def test_b09_big_bodies_arrive_whole(pair, mib, how):
    r, w = pair
    body = chat_of(mib)
    with r.connect() as c:
        if how == "length":
            c.send(make_request(body=body))
        else:
            c.send(f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 999983):
                part = body[i:i + 999983]
                c.send(b"%x\r\n%s\r\n" % (len(part), part))
            c.send(b"0\r\n\r\n")
        m = c.read_response()
        assert m.status == 200 and m.json() == {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
        c.send(make_request(body=Q0))
        assert c.read_response().status == 200
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "no body is held")


def test_b09_default_limit_takes_65_mib(worker, router):
    w = worker("w0", digest)
    r = router([w])
    body = chat_of(65)
    with r.connect() as c:
        c.send(make_request(body=body))
        assert c.read_response().json()["bytes"] == len(body)


@pytest.mark.parametrize("how", ["length", "chunked", "one-chunk", "expect-not-waited-for"])
def test_b09_413_reaches_a_client_that_keeps_sending(worker, router, how):
    """Above the limit: a complete answer for a client that reads only after it has sent all, and no
    reset meanwhile."""
    w = worker("w0", digest)
    r = router([w], keys="max_body_size = 1m\n")
    body = chat_of(12)
    with r.connect() as c:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
        if how == "chunked":
            c.send(head + "Transfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 65536):
                c.send(b"10000\r\n%s\r\n" % body[i:i + 65536])
            c.send(b"0\r\n\r\n")
        elif how == "one-chunk":
            c.send(head + f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n")
            c.send(body + b"\r\n0\r\n\r\n")
        else:
            c.send(head + ("Expect: 100-continue\r\n" if how != "length" else "") + f"Content-Length: {len(body)}\r\n\r\n")
            c.send(body)
        m = c.read_response()
        error_of(m, 413, "body_too_large")
        assert m.get("connection") == "close"
        assert c.recv_some() == b""  # FIN, no reset
    assert not w.requests


@pytest.mark.parametrize("limit", [100, 30000, 100000])
def test_b09_exactly_the_limit_is_taken(worker, router, limit):
    w = worker("w0", digest)
    r = router([w], keys=f"max_body_size = {limit}\n")
    for n, status in ((limit, 200), (limit + 1, 413)):
        for how in ("length", "chunked"):
            with r.connect() as c:
                body = b"x" * n
                if how == "length":
                    c.send(make_request(body=body))
                else:
                    c.send(f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (n, body))
                assert c.read_response().status == status, (n, how)


def test_b09_memory_of_all_bodies_is_bounded(worker, router):
    """body_memory: the request that goes over it is refused, those before are kept, and the memory
    comes back."""
    hold = Hold(digest)
    w = worker("w0", hold)
    r = router([w], keys="body_memory = 4m\nmax_body_size = 3m\n")
    first, second = r.connect(), r.connect()
    with first, second:
        first.send(make_request(body=chat_of(2.5)))
        w.wait_requests(1)
        second.send(make_request(body=chat_of(2.5)))
        error_of(second.read_response(), 503, "overloaded")
        hold.release()
        assert first.read_response().status == 200
        wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "no body is held")
        assert r.request(body=chat_of(2.5)).status == 200


def test_b09_a_promised_length_is_no_memory(worker, router):
    """100 clients that promise 400 MiB each and send a little cost only what they sent."""
    w = worker("w0", digest)
    r = router([w])
    before = r.rss_kib()
    clients = [r.connect() for _ in range(100)]
    for c in clients:
        c.send(f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nContent-Length: {400 << 20}\r\n\r\n" + "x" * 30000)
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") >= 100 * 65536, "the bodies began to arrive")
    assert r.rss_kib() < before + 200 * 1024
    for c in clients:
        c.close()
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "they are forgotten")


# ---- B55: sizes of heads ----

def test_b55_long_tokens_cookies_and_many_fields_pass(pair):
    r, w = pair
    token, cookie = "Bearer " + "t" * 9216, "c=" + "d" * 12288
    with r.connect() as c:
        c.send(make_request(body=Q0, headers={"Authorization": token, "Cookie": cookie}))
        assert c.read_response().status == 200
        assert w.requests[0].get("authorization") == token and w.requests[0].get("cookie") == cookie
        many = [(f"X-Field-{i:02}", "v" * 50) for i in range(95)]
        c.send(make_request(body=Q0, headers=many))
        assert c.read_response().status == 200
        assert [f for f in w.requests[1].fields if f[0].startswith("X-Field")] == many
        pad = 31 * 1024 - len(make_request(headers={"X-Pad": ""})) - len(make_request(body=Q0)) + len(Q0)
        c.send(make_request(body=Q0, headers={"X-Pad": "p" * pad}))
        assert c.read_response().status == 200 and w.requests[2].get("x-pad") == "p" * pad
        c.send(make_request(body=Q0, headers={"X-Without-Value": ""}))
        assert c.read_response().status == 200 and w.requests[3].get("x-without-value") == ""
        path = "/v1/models/" + "p" * 8000
        c.send(make_request("GET", path))
        assert c.read_response().status == 200 and w.requests[4].target == path


@pytest.mark.parametrize("what, status", [("33k", 431), ("100k", 431), ("150 fields", 431), ("9k path", 414), ("100k path", 414), ("10m line", 414), ("10m field", 431)])
def test_b55_beyond_is_a_complete_answer_and_a_close(pair, what, status):
    """Also for a client that sends all of it before it reads."""
    r, w = pair
    if what == "150 fields":
        request = make_request("GET", "/v1/models/x", headers=[(f"X-{i}", "v" * 40) for i in range(150)])
    elif "path" in what or "line" in what:
        n = 10 << 20 if "10m" in what else int(what.split("k")[0]) * 1024
        request = make_request("GET", "/v1/models/" + "p" * n)
    else:
        n = 10 << 20 if "10m" in what else int(what[:-1]) * 1024
        request = make_request("GET", "/v1/models/x", headers={"X": "p" * n})
    with r.connect() as c:
        try:
            c.send(request)
        except OSError:
            assert what.startswith("10m")  # nobody reads that much of a head
        error_of(c.read_response(), status, "head_too_large")
    assert not w.requests


def test_b55_the_workers_own_limits_are_relayed(pair):
    r, w = pair
    w.handler = lambda x: x.answer(431, '{"detail":"mine"}')
    m = r.request(body=Q0)
    assert m.status == 431 and m.json() == {"detail": "mine"}


def test_b55_answers_with_long_heads(pair):
    """16 KiB in one field, 120 fields, 32 KiB and 60 KiB in all pass; beyond 64 KiB or 256 fields
    it is 502."""
    r, w = pair
    for fields, ok in [([("X-Long", "v" * 16384)], True), ([(f"X-{i}", "v") for i in range(120)], True), ([(f"X-{i}", "v" * 500) for i in range(64)], True),
                       ([(f"X-{i}", "v" * 600) for i in range(100)], True), ([("X-Long", "v" * 70000)], False), ([(f"X-{i}", "") for i in range(300)], False)]:
        w.handler = lambda x: x.answer(200, "ok", fields)
        m = r.request(body=Q0)
        if ok:
            assert m.status == 200 and [f for f in m.fields if f in fields] == fields
        else:
            assert "64 KiB, 256 fields" in error_of(m, 502, "worker_head_too_large")["message"]


# ---- B14: many at once ----

class Crowd:
    """A worker for very many connections in one thread: begins a stream for each request, and ends
    all of them on release()."""

    def __init__(self, name="crowd"):
        self.name = name
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.select = selectors.DefaultSelector()
        self.buffers, self.held = {}, []
        self.wake, self.waker = socket.socketpair()
        self.listener.setblocking(False)
        self.select.register(self.listener, selectors.EVENT_READ)
        self.select.register(self.wake, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            for key, _ in self.select.select():
                if key.fileobj is self.wake:
                    if b"q" in self.wake.recv(4096):
                        return
                    held, self.held = self.held, []
                    for s in held:
                        s.sendall(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
                elif key.fileobj is self.listener:
                    self._accept()
                else:
                    self._read(key.fileobj)

    def _accept(self):
        try:
            s, _ = self.listener.accept()
        except OSError:
            return
        self.buffers[s] = b""
        self.select.register(s, selectors.EVENT_READ)

    def _read(self, s):
        try:
            data = s.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.select.unregister(s)
            self.buffers.pop(s)
            if s in self.held:
                self.held.remove(s)
            s.close()
            return
        self.buffers[s] += data
        if b"\r\n\r\n" not in self.buffers[s]:
            return
        head, body = self.buffers[s].split(b"\r\n\r\n", 1)
        if head.startswith(b"GET"):
            s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        elif len(body) < len(Q0):
            return
        else:
            s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
            self.held.append(s)
        self.buffers[s] = b""

    def release(self):
        self.waker.send(b"r")

    def stop(self):
        self.waker.send(b"q")
        self.thread.join(harness.DEADLINE)
        for s in list(self.buffers) + [self.listener, self.wake, self.waker]:
            s.close()


@pytest.fixture
def crowds():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        pytest.skip(f"{hard} descriptors are too few for 1,200 requests from both sides")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8192), hard))
    made = [Crowd(f"crowd{i}") for i in range(2)]
    yield made
    for c in made:
        c.stop()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def finish_stream(c):
    m = c.read_head()
    c.read_body(m)
    assert m.status == 200 and m.ended and m.body == b"data: 1\n\ndata: 2\n\n"


def test_b14_1200_streams_at_a_time_twice(router, crowds):
    """(a) All are at the workers at the same time, spread evenly; (c) and once more."""
    r = router(crowds, pool=LASTING + "policy = least_requests\n", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192)))
    for _ in range(2):
        clients = [r.connect() for _ in range(1200)]
        for c in clients:
            c.send(make_request(body=Q0))
        wait_until(lambda: sum(len(w.held) for w in crowds) == 1200, "all are at the workers", 3 * harness.DEADLINE)
        assert min(len(w.held) for w in crowds) >= 590
        wait_until(lambda: r.metric("kvsteer_worker_load") == 1200, "each counts")
        for w in crowds:
            w.release()
        for c in clients:
            finish_stream(c)
            c.close()
    r.wait_idle()


def test_b14_600_requests_with_256_descriptors(router, crowds):
    """(b) The rest waits or is told 503; the router stays up, comes to rest, and all is well once
    the first have gone."""
    r = router(crowds, pool=LASTING, keys="threads = 2\n", preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    clients = [r.connect() for _ in range(600)]
    for c in clients:
        c.send(make_request(body=Q0))
    wait_until(lambda: sum(len(w.held) for w in crowds) >= 50, "some are at the workers")

    def rests():
        before = sum(harness_cpu(r))
        threading.Event().wait(0.5)
        return sum(harness_cpu(r)) - before < 0.1
    wait_until(rests, "it does not spin for want of descriptors")
    results = {}
    selector = selectors.DefaultSelector()
    for c in clients:
        selector.register(c.sock, selectors.EVENT_READ, c)
    while len(results) < len(clients):
        for w in crowds:
            w.release()
        for key, _ in selector.select(0.2):
            c = key.data
            m = c.read_head()
            for w in crowds:
                w.release()
            c.read_body(m)
            assert m.ended, m.head
            assert m.status == 200 or m.status == 503 and m.json()["error"]["code"] in ("no_worker", "overloaded") or m.status == 502, (m.start, m.body)
            results[c] = m.status
            selector.unregister(c.sock)
            c.close()
    assert list(results.values()).count(200) > 100, results.values()
    r.wait_idle()
    for _ in range(50):
        assert r.request("GET", "/v1/models/x").status == 200
    assert r.proc.poll() is None


def harness_cpu(r):
    """User and system seconds of the router so far."""
    with open(f"/proc/{r.proc.pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return int(fields[11]) / 100, int(fields[12]) / 100


def test_max_concurrent_requests_is_429(worker, router):
    hold = Hold()
    w = worker("w0", hold)
    r = router([w], keys="max_concurrent_requests = 2\nqueue_size = 0\n")
    clients = [r.connect() for _ in range(2)]
    for i, c in enumerate(clients):
        c.send(make_request(body=Q0))
        w.wait_requests(i + 1)
    m = r.request(body=Q0)
    error_of(m, 429, "queue_full")
    assert int(m.get("retry-after")) >= 1
    hold.release()
    for c in clients:
        assert c.read_response().status == 200
        c.close()
    wait_until(lambda: r.request(body=Q0).status == 200, "there is room again")


# ---- deadlines ----

SHORT = "head_timeout = 1s\nbody_timeout = 300ms\nkeepalive_timeout = 1s\n"


@pytest.mark.parametrize("part", [b"GET /v1/mod", b"GET /v1/models/x HTTP/1.1\r\nHost: r\r\nX-Slow: ", b"\r\n"])
def test_head_timeout_is_absolute(worker, router, part):
    """408 for half a head, also when bytes keep dripping in."""
    w = worker("w0")
    r = router([w], keys=SHORT)
    with r.connect() as c:
        c.send(part)
        stop = threading.Event()

        def drip():
            while not stop.wait(0.05):
                try:
                    c.send(b"x")
                except OSError:
                    return
        t = threading.Thread(target=drip)
        if b"X-Slow" in part:
            t.start()
        error_of(c.read_response(), 408, "client_timeout")
        stop.set()
        if t.ident:
            t.join()
        assert c.at_eof()


def test_head_timeout_of_a_connection_that_says_nothing(worker, router):
    """Nothing was asked: closed without a word."""
    r = router([worker("w0")], keys=SHORT)
    with r.connect() as c:
        assert c.recv_some() == b""


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_body_timeout_is_idle_time(worker, router, how):
    """A body that keeps coming outlives it."""
    w = worker("w0", digest)
    r = router([w], keys="body_timeout = 2s\n")
    with r.connect() as c:
        c.send(f"POST {CHAT} HTTP/1.1\r\nHost: r\r\n{'Transfer-Encoding: chunked' if how == 'chunked' else 'Content-Length: 11'}\r\n\r\n")
        for _ in range(11):
            threading.Event().wait(0.22)
            c.send(b"1\r\nx\r\n" if how == "chunked" else b"x")
        c.send(b"0\r\n\r\n" if how == "chunked" else b"")
        assert c.read_response().json()["bytes"] == 11


@pytest.mark.parametrize("how", ["length", "chunked", "refused"])
def test_body_that_stops_is_408(worker, router, how):
    """A refused one gets its refusal or the 408."""
    w = worker("w0", digest)
    r = router([w], keys=SHORT)
    path = "/nowhere" if how == "refused" else CHAT
    with r.connect() as c:
        c.send(f"POST {path} HTTP/1.1\r\nHost: r\r\n{'Transfer-Encoding: chunked' if how == 'chunked' else 'Content-Length: 11'}\r\n\r\n1\r\nx\r\n")
        m = c.read_response()
        assert m.status in ((404, 408) if how == "refused" else (408,))
        assert c.at_eof()
    assert not w.requests


def test_keepalive_timeout_of_used_connections(worker, router):
    """Head time does not run while idle; after the announced time a FIN."""
    r = router([worker("w0")], keys="head_timeout = 1s\nkeepalive_timeout = 4s\n")
    with r.connect() as c:
        c.send(make_request(body=Q0))
        assert c.read_response().get("keep-alive") == "timeout=4"
        threading.Event().wait(1.5)
        c.send(make_request(body=Q0))
        assert c.read_response().status == 200
        assert c.recv_some() == b""


@pytest.mark.parametrize("after", ["nothing", "half-head", "interim"])
def test_first_byte_timeout_is_504(worker, router, after):
    """And the worker's connection is closed, so that it stops. What is no answer yet does not count
    as its first byte's end."""
    def silent(x):
        if after != "nothing":
            x.send(b"HTTP/1.1 20" if after == "half-head" else b"HTTP/1.1 100 Continue\r\n\r\n")
        assert x.wait_gone()
        return "close"
    w = worker("w0", silent)
    r = router([w], pool=LASTING + "first_byte_timeout = 300ms\nstream_idle_timeout = 400ms\nretry_max_retries = 0\n")
    with r.connect() as c:
        for _ in range(2):
            c.send(make_request(body=Q0))
            error_of(c.read_response(), 504, "worker_timeout")
    w.wait_requests(2)
    assert all(x.gone.wait(harness.DEADLINE) for x in w.exchanges) and len(w.exchanges) == 2


def test_an_interim_answer_leaves_the_first_byte_its_time(worker, router):
    """100 Continue from a worker that then thinks for longer than a stream may be silent."""
    def think(x):
        x.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert not x.wait_gone(0.8)
        harness.answer_ok(x)
    w = worker("w0", think)
    r = router([w], pool=LASTING + "stream_idle_timeout = 200ms\n")
    assert r.request(body=Q0).status == 200


def test_first_byte_time_begins_when_the_request_is_sent(worker, router):
    """A long upload to a worker that reads slowly is not the worker's thinking time."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(harness.DEADLINE)
    r = router(conf=f"[pool default]\n{LASTING}first_byte_timeout = 2s\n[worker w0]\nurl = http://127.0.0.1:{listener.getsockname()[1]}\n", wait=False)

    def accept_post():
        while True:
            wire = harness.Wire(listener.accept()[0])
            m = wire.read_head()
            if m.method == "POST":
                return wire, m
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            wire.close()
    got = []
    t = threading.Thread(target=lambda: got.append(accept_post()))
    t.start()
    r.wait_workers("w0")
    body = b"x" * (24 << 20)
    with r.connect() as c:
        c.send(make_request(body=body))
        t.join()
        wire, m = got[0]
        read = 0
        for _ in range(10):
            threading.Event().wait(0.25)
            read += len(wire.read_exact(len(body) // 10))
        wire.read_exact(len(body) - read)
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert c.read_response().body == b"ok"
    wire.close()
    listener.close()
    r.allow_errors.append(".")


def test_stream_idle_timeout_breaks_the_stream_with_an_error_event(worker, router):
    def pause(x):
        x.events("1")
        assert x.wait_gone()
        return "close"
    w = worker("w0", pause)
    r = router([w], pool=LASTING + "stream_idle_timeout = 300ms\n")
    m = r.request(body=Q0)
    assert m.status == 200 and not m.ended and m.body.startswith(b"data: 1\n\n") and b'"code":"worker_timeout"' in m.body
    assert json.loads(m.body.rpartition(b"data: ")[2])["error"]["type"] == "upstream_error"


def test_stream_idle_timeout_is_silence_and_not_length(worker, router):
    def steady(x):
        x.begin()
        for i in range(12):
            assert not x.wait_gone(0.2)
            x.event(str(i))
        x.end()
    w = worker("w0", steady)
    r = router([w], pool=LASTING + "stream_idle_timeout = 2s\nfirst_byte_timeout = 2s\n")
    m = r.request(body=Q0)
    assert m.ended and m.body.count(b"data: ") == 12


def test_total_timeout(worker, router):
    def endless(x):
        x.begin()
        for _ in range(200):
            if x.wait_gone(0.05):
                break
            x.event("more")
        return "close"
    w = worker("w0", endless)
    r = router([w], pool=LASTING + "total_timeout = 1s\n")
    m = r.request(body=Q0)
    assert m.status == 200 and not m.ended and b'"code":"worker_timeout"' in m.body


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-"], ids=["nothing", "an-interim-head", "half-a-head"])
def test_total_timeout_before_the_answer(worker, router, says):
    """A worker that is silent: 504 when total_timeout is over, whatever first_byte_timeout is. No
    other worker is tried, and no breaker counts it."""
    def silent(x):
        x.send(says)
        x.wait_gone()
        return "close"
    ws = [worker("w0", silent), worker("w1", silent)]
    r = router(ws, pool="total_timeout = 500ms\nstall_timeout = 0\ncb_failure_threshold = 1\n")
    error_of(r.request(body=Q0), 504, "worker_timeout")
    assert sum(len(w.requests) for w in ws) == 1 and "breaker" not in r.log()
    r.wait_idle()


def test_total_timeout_of_an_upload(worker, router):
    """A body goes on as it comes, and its client keeps the rest: the worker is given up when
    total_timeout is over."""
    w = worker("w0")
    r = router([w], pool=LASTING + "total_timeout = 500ms\n", keys="body_timeout = 1h\n")
    with r.connect() as c:
        c.send(f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nX-Kvsteer-Prefix: 128b;\r\nContent-Length: 100000\r\n\r\n" + "y" * 50000)
        error_of(c.read_response("POST"), 504, "worker_timeout")
    r.wait_idle()


@pytest.mark.parametrize("idle", ["0", "300ms", "1h"])
def test_total_timeout_while_the_client_is_slow(worker, router, idle):
    """The client reads nothing, so that the exchange rests. Its worker is let go when total_timeout
    is over, and the client reads that its answer is cut."""
    def flood(x):
        x.begin()
        while True:  # until the router closes the connection
            x.chunk(b"data: " + b"y" * 65536 + b"\n\n")
    w = worker("w0", flood)
    r = router([w], pool=LASTING + f"total_timeout = 1s\nstream_idle_timeout = {idle}\n", keys="write_timeout = 1h\n")
    with r.connect() as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.send(make_request(body=Q0))
        assert w.wait_requests(1).gone.wait(harness.DEADLINE)
        r.wait_idle()
        m = c.read_head()
        c.read_body(m)
        # An error event stands only behind a whole event; the broken end says it otherwise.
        says_so = b'"code":"worker_timeout"' in m.body[-1024:]
        assert m.status == 200 and not m.ended and (says_so or not m.body.endswith(b"\n\n"))
    assert "worker_timeout" in r.wait_log(r".*route=.*").group(0)


def test_total_timeout_is_shared_by_all_attempts(worker, router):
    """The first worker takes a third of it and refuses. The second has what is left, and then the
    client gets the refusal."""
    left = []

    def answer(x):
        if not left:
            left.append(None)
            assert not x.wait_gone(2)
            return x.answer(503, b"{}")
        left.append(x.wait_gone(5))
        return "close"
    ws = [worker("w0", answer), worker("w1", answer)]
    r = router(ws, pool=LASTING + "total_timeout = 6s\nstall_timeout = 0\n")
    assert r.request(body=Q0).status == 503
    wait_until(lambda: len(left) == 2, "the second one has seen its end")
    assert left[1], "it is cut when six seconds are over, not eight"
    assert [len(w.requests) for w in ws] == [1, 1]


def test_no_keepalive_timeout_is_no_limit(worker, router):
    """The deadline of the first head is over long before the second head comes."""
    r = router([worker("w0")], keys="head_timeout = 300ms\nkeepalive_timeout = 0\n")
    with r.connect() as c:
        for _ in range(2):
            c.send(make_request(body=Q0))
            assert c.read_response("POST").status == 200
            c.sock.settimeout(1)
            with pytest.raises(socket.timeout):
                c.recv_some()
            c.sock.settimeout(harness.DEADLINE)


def test_connect_timeout_is_502(worker, router):
    """A worker whose accept queue is full takes no connection: the next one does."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    plugs = []
    url = f"http://127.0.0.1:{full.getsockname()[1]}"
    probe = harness.Worker("probe")  # stands in until the worker counts as healthy
    good = worker("w1")
    conf = f"[pool default]\n{LASTING}policy = round_robin\nconnect_timeout = 200ms\nhealth_timeout = 100ms\n[worker w1]\nurl = {good.url}\n[worker w0]\nurl = {probe.url}\n"
    port = probe.port
    r = router(conf=conf, wait=False)
    r.wait_workers("w0", "w1")
    full.close()
    probe.stop()
    jam = socket.socket()
    jam.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    jam.bind(("127.0.0.1", port))
    jam.listen(0)
    try:
        while True:
            s = socket.socket()
            plugs.append(s)
            s.settimeout(0.3)
            s.connect(("127.0.0.1", port))
    except OSError:
        pass
    for _ in range(4):
        assert r.request(body=Q0).status == 200
    assert len(good.requests) == 4
    assert url
    for s in plugs + [jam]:
        s.close()
    r.allow_errors.append(".")


# ---- B24: what failures say ----

def failing(kind, worker, router):
    """(router, raw request, status, code, is the connection kept)"""
    pool = LASTING + "retry_max_retries = 0\nno_worker_wait = 50ms\n" + ("first_byte_timeout = 300ms\n" if kind == "timeout" else "")
    keys = "max_body_size = 10k\n"

    def reset(x):
        x.wire.reset()
        return "close"
    handlers = {"reset": reset, "closed": lambda x: "close", "timeout": lambda x: x.wait_gone() and "close", "protocol": lambda x: x.send(b"junk\r\n\r\n") or "close",
                "half-head": lambda x: x.send(b"HTTP/1.1 200 OK\r\nConte") or "close"}
    w = worker("w0", handlers.get(kind, harness.answer_ok))
    if kind == "never-healthy":
        w.healthy = False
        return router([w], pool=pool, keys=keys, wait=False), None, 503, "no_worker", True
    if kind == "wrong-model":
        return router([w], pool=pool + "models = other\n", keys=keys), None, 404, "model_not_found", True
    r = router([w], pool=pool, keys=keys)
    if kind == "refused":
        w.stop()
        r.allow_errors.append(".")
        return r, None, 502, "worker_unreachable", True
    table = {"reset": (None, 502, "worker_reset", True), "closed": (None, 502, "worker_reset", True), "timeout": (None, 504, "worker_timeout", True),
             "protocol": (None, 502, "worker_protocol", True), "half-head": (None, 502, "worker_protocol", True),
             "too-large": (make_request(body=b"x" * 10241), 413, "body_too_large", False),
             "bad-line": (b"POST  /v1/chat/completions HTTP/1.1\r\nHost: r\r\n\r\n", 400, "malformed_request", False),
             "bad-version": (b"POST /v1/chat/completions HTTP/3.0\r\nHost: r\r\n\r\n", 505, "http_version", False),
             "long-head": (make_request(headers={"X": "y" * 40000}), 431, "head_too_large", False),
             "long-line": (make_request(path="/" + "y" * 9000), 414, "head_too_large", False),
             "bad-method": (make_request("BREW"), 501, "not_implemented", False), "method": (make_request("GET"), 405, "method_not_allowed", True),
             "path": (make_request(path="/v1/nowhere", body=Q0), 404, "path_not_found", True),
             "bad-prefix": (make_request(body=Q0, headers={"X-Kvsteer-Prefix": "junk"}), 400, "malformed_request", True),
             "bad-coding": (make_request(headers={"Transfer-Encoding": "gzip, chunked"}), 501, "not_implemented", False),
             "expectation": (make_request(headers={"Expect": "cake"}), 417, "expectation_failed", False)}
    return (r, *table[kind])


@pytest.mark.parametrize("kind", ["never-healthy", "wrong-model", "refused", "reset", "closed", "timeout", "protocol", "half-head", "too-large", "bad-line", "bad-version",
                                  "long-head", "long-line", "bad-method", "method", "path", "bad-prefix", "bad-coding", "expectation"])
def test_b24_every_failure_is_one_json_error(worker, router, kind):
    """Streaming or not; with the right length; the connection kept where framing allows; no address
    and no header in the text."""
    r, raw, status, code, is_kept = failing(kind, worker, router)
    for stream in (b"true", b"false"):
        with r.connect() as c:
            c.send(raw if raw is not None else make_request(body=Q0.replace(b"true", stream), headers={"Authorization": "Bearer s3cret"}))
            m = c.read_response()
            error = error_of(m, status, code)
            assert not any(secret in m.body for secret in (b"127.0.0.1", b"s3cret", b"w0"))
            assert error["type"].endswith("_error")
            assert (m.get("connection") == "close") == (not is_kept), m.head
            if status == 503:
                assert int(m.get("retry-after")) >= 1
            if is_kept:
                c.send(make_request("GET", "/health"))
                assert c.read_response().status == 200
            else:
                assert c.recv_some() == b""
