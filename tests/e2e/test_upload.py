"""Bodies that nobody reads go on as they come (D1, D2): what routing needs stands in the head, and
the cost of the prompt is the worker's alone."""
import hashlib
import re
import threading

import pytest

import harness
from harness import Closed, make_request, text, wait_until
from routing import OPEN, byte_hashes, completion, in_parallel, place, prefix_header, send

PATH = "/v1/completions"
SPREAD = "policy = round_robin\n"
HASHES = "128b;a,b"
BIG = 200 << 20
WINDOW = 64 << 10


class Reader(harness.Worker):
    """A worker that is handed each request as soon as its head is there: script(wire, head) reads
    the body as it likes, and answers."""

    def __init__(self, name, script):
        self.script, self.heads, self.errors, self.ended = script, [], [], 0
        super().__init__(name)

    def _serve(self, wire, no):
        try:
            while True:
                wire.sock.settimeout(None)
                m = wire.read_head()
                wire.sock.settimeout(harness.DEADLINE * 3)
                if self._is_probe(m):
                    self._probe(harness.Exchange(self, wire, m, no))
                    continue
                with self.lock:
                    self.heads.append(m)
                    self.lock.notify_all()
                if self.script(wire, m) == "close":
                    break
        except (Closed, OSError):
            pass
        except BaseException as e:  # told by check()
            self.errors.append(e)
        finally:
            with self.lock:
                self.ended += 1
                self.lock.notify_all()
            self.wires.discard(wire)
            wire.close()

    def wait_heads(self, n):
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.heads) >= n, harness.DEADLINE), f"{len(self.heads)} of {n} requests"

    def check(self):
        assert not self.errors, self.errors


@pytest.fixture
def reader():
    made = []

    def make(name, script):
        made.append(Reader(name, script))
        return made[-1]
    yield make
    for w in made:
        w.stop()
        w.check()


def ok(wire, body=b"{}", status="200 OK", fields=""):
    wire.send(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body)


def take_all(wire, m):
    """Reads it all, piece by piece, and says what it was."""
    left, n, h = int(m.get("content-length", "0")), 0, hashlib.sha256()
    is_chunked = m.get("transfer-encoding") is not None
    while is_chunked or n < left:
        data = wire.read_chunk() if is_chunked else wire.read_exact(min(left - n, 1 << 16))
        if not data:
            break
        n += len(data)
        h.update(data)
    ok(wire, h.hexdigest().encode() + b" %d" % n)


def said(body):
    return hashlib.sha256(body).hexdigest().encode() + b" %d" % len(body)


def head(framing, fields="", path=PATH):
    return f"POST {path} HTTP/1.1\r\nHost: r\r\n{framing}\r\n{fields}\r\n".encode()


def length(n):
    return f"Content-Length: {n}"


CHUNKED = "Transfer-Encoding: chunked"
KEYED = f"X-Kvsteer-Prefix: {HASHES}\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def framed(how, body, fields=""):
    return head(length(len(body)), fields) + body if how == "length" else head(CHUNKED, fields) + chunk(body) + b"0\r\n\r\n"


def body_memory(r):
    return r.metric("kvsteer_body_memory_bytes")


def peak_kib(r):
    with open(f"/proc/{r.proc.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))


# ---- D1: neither buffered nor parsed ----

WAYS = {"hashes": ("", KEYED), "empty-list": ("", "X-Kvsteer-Prefix: 128b;\r\n"), "pinned": ("", "X-Kvsteer-Worker: w0\r\n"), "round_robin": (SPREAD, ""),
        "random": ("policy = random\n", ""), "least_requests": ("policy = least_requests\n", "")}


@pytest.mark.parametrize("how", ["length", "chunked"])
@pytest.mark.parametrize("way", WAYS)
def test_d1_the_worker_has_each_byte_before_the_next_is_sent(router, reader, way, how):
    """In lockstep: what was sent has arrived while the rest is still to come, and nothing is
    gathered."""
    got, step = [], threading.Semaphore(0)

    def script(wire, m):
        for _ in range(6):
            got.append(wire.read_exact(40_000) if how == "length" else wire.read_chunk())
            step.release()
        assert how == "length" or wire.read_chunk() == b""
        ok(wire)
    w = reader("w0", script)
    pool, fields = WAYS[way]
    r = router([w], pool=pool, keys=OPEN)
    with r.connect() as c:
        c.send(head(length(240_000) if how == "length" else CHUNKED, fields))
        for i in range(6):
            part = bytes([i]) * (40_000 if how == "length" else 100)
            c.send(part if how == "length" else chunk(part))
            assert step.acquire(timeout=harness.DEADLINE) and got[i] == part
        if how == "chunked":
            c.send(b"0\r\n\r\n")
        assert c.read_response().status == 200
    assert w.heads[0].get("content-length") == ("240000" if how == "length" else None)
    assert not any(n.lower().startswith("x-kvsteer") for n, _ in w.heads[0].fields)


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_d1_200_mb_pass_through_a_router_that_does_not_grow(router, reader, how):
    part = bytes(range(256)) * 4096
    sum_up, seen = hashlib.sha256(), []

    def script(wire, m):
        n = 0
        while n < BIG:
            data = wire.recv_some(1 << 20) if how == "length" else wire.read_chunk()
            assert data
            sum_up.update(data)
            n += len(data)
            seen.append(0)
        assert n == BIG and (how == "length" or wire.read_chunk() == b"")
        ok(wire)
    w = reader("w0", script)
    r = router([w], keys="max_body_size = 1g\n")
    before = peak_kib(r)
    with r.connect() as c:
        c.send(head(length(BIG) if how == "length" else CHUNKED, KEYED))
        for i in range(BIG // len(part)):
            c.send(part if how == "length" else chunk(part))
            if i % 20 == 10:
                assert body_memory(r) <= 2 * WINDOW
        c.send(b"0\r\n\r\n" if how == "chunked" else b"")
        assert c.read_response().status == 200
    assert sum_up.hexdigest() == hashlib.sha256(part * (BIG // len(part))).hexdigest()
    assert peak_kib(r) < before + 8 * 1024, f"{before} KiB before, at most {peak_kib(r)} in between"
    wait_until(lambda: body_memory(r) == 0, "nothing is held")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_d1_one_byte_a_write(router, reader, framing):
    """Head, body, chunk lines and trailers byte by byte: the worker gets the body, and no
    trailer."""
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD)
    body = text(1, 1).encode()[:300]
    data = framed("length", body) if framing == "length" else (head(CHUNKED) + chunk(body[:7]) + b"1;ext=\"x\"\r\n" + body[7:8] + b"\r\n"
                                                               + chunk(body[8:]) + b"0\r\nX-Trailer: t\r\n\r\n")
    with r.connect() as c:
        for i in range(len(data)):
            c.send(data[i:i + 1])
        assert c.read_response().body == said(body)
        c.send(framed("length", b"next"))
        assert c.read_response().body == said(b"next"), "and the connection goes on"
    assert len(w.wires) >= 1 and w.heads[0].get("trailer") is None


@pytest.mark.parametrize("size", [1, 1000, 19_000, 20_480, 70_000, 300_000])
@pytest.mark.parametrize("how", ["length", "chunked"])
def test_d1_pipelined_requests_behind_a_body_that_goes_on(router, reader, how, size):
    """Three requests in one write: each body ends where it ends."""
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD)
    bodies = [bytes([i]) * size for i in range(3)]
    with r.connect() as c:
        sender = threading.Thread(target=c.send, args=(b"".join(framed(how, b) for b in bodies) + make_request("GET", "/health"),))
        sender.start()
        for b in bodies:
            assert c.read_response().body == said(b)
        assert c.read_response().json() == {"status": "ok"}
        sender.join()
    assert w.connections <= 3 + len(w.probes), "and the worker's connection is used again"


def test_d1_requests_without_a_body_are_as_they_were(router, reader):
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD)
    with r.connect() as c:
        for method, path, framing in (("GET", "/v1/models/m", ""), ("HEAD", "/v1/models/m", ""), ("POST", PATH, "Content-Length: 0\r\n")):
            w.script = lambda wire, m: wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + (b"" if m.method == "HEAD" else b"ok"))
            c.send(f"{method} {path} HTTP/1.1\r\nHost: r\r\n{framing}\r\n")
            assert c.read_response(method).status == 200
    assert [m.method for m in w.heads] == ["GET", "HEAD", "POST"]


# ---- D2: the sent hashes route what cannot be read ----

def test_d2_a_body_that_is_no_json_goes_by_its_hashes(router, worker):
    """Binary, of any size and framing; an empty list matches nothing, and no header of a body that
    cannot be read matches nothing either."""
    ws = [worker(f"w{i}") for i in range(3)]
    r = router(ws, keys=OPEN)
    p = text(8, 1)
    place(r, completion(p), "w1", PATH)
    sent = prefix_header(byte_hashes(p))
    for n in (1, 5000, 30_000, 300_000):
        junk = b"\xff\x00{" * n
        assert send(r, junk, PATH, headers=sent) == ("w1", 64, 64)
        assert ws[1].requests[-1].body == junk
        with r.connect() as c:
            c.send(framed("chunked", junk, f"X-Kvsteer-Prefix: {sent['X-Kvsteer-Prefix']}\r\n"))
            m = c.read_response()
            assert (m.get("x-kvsteer-worker"), m.get("x-kvsteer-cached")) == ("w1", "64/64")
    before = r.metric("kvsteer_route_decisions_total", reason="hashes_sent")
    assert send(r, completion(p), PATH, headers=prefix_header([]))[1:] == (0, 0)
    assert r.metric("kvsteer_route_decisions_total", reason="hashes_sent") == before + 1
    assert send(r, completion(p), PATH) == ("w1", 64, 64), "without the header the router hashes"


def test_d2_a_model_in_the_head_chooses_the_pool(router, worker):
    """Where pools have models, it takes the place of the body's; else the body is read for it."""
    a, b = worker("wa"), worker("wb")
    conf = (f"[pool a]\nmodels = alpha*\n{SPREAD}[pool b]\nmodels = beta\n[worker wa]\nurl = {a.url}\npool = a\n"
            f"[worker wb]\nurl = {b.url}\npool = b\n")
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("wa", "wb")
    for model, name in (("alpha-1", "wa"), ("beta", "wb")):
        fields = f"X-Kvsteer-Model: {model}\r\n" + KEYED
        with r.connect() as c:
            data = framed("length", b"\xff" * 100_000, fields)
            c.send(data[:50_000])
            wait_until(lambda: any(r.loads().values()), "a worker is chosen by half of the body")
            c.send(data[50_000:])
            assert c.read_response().get("x-kvsteer-worker") == name
    m = r.request("POST", PATH, b"x" * 100, {"X-Kvsteer-Model": "gamma", "X-Kvsteer-Prefix": HASHES})
    assert m.status == 404 and m.json()["error"]["code"] == "model_not_found"
    assert send(r, {"model": "beta", "prompt": "x"}, PATH, headers={"X-Kvsteer-Prefix": HASHES})[0] == "wb"
    assert r.explain("x", PATH, {"X-Kvsteer-Model": "alpha-2", "X-Kvsteer-Prefix": HASHES})["pool"] == "a"


# ---- each side waits for the other ----

@pytest.mark.parametrize("how", ["length", "chunked"])
def test_a_slow_worker_stops_the_client(router, reader, how):
    """It holds the router's window and the kernel's buffers full, no more; read later, all is
    there."""
    start = threading.Event()

    def script(wire, m):
        start.wait(harness.DEADLINE * 2)
        take_all(wire, m)
    w = reader("w0", script)
    r = router([w], pool=SPREAD)
    body = bytes(range(256)) * (96 << 12)
    sent = []

    def upload(c):
        c.sock.settimeout(harness.DEADLINE * 3)
        c.send(head(length(len(body)) if how == "length" else CHUNKED))
        for i in range(0, len(body), 1 << 18):
            part = body[i:i + (1 << 18)]
            c.send(part if how == "length" else chunk(part))
            sent.append(len(part))
        c.send(b"" if how == "length" else b"0\r\n\r\n")
    with r.connect() as c:
        t = threading.Thread(target=upload, args=(c,))
        t.start()
        w.wait_heads(1)
        seen = [0, 0]

        def stands():
            seen[:] = [sum(sent), seen[1] + 1 if sum(sent) == seen[0] else 0]
            return seen[1] > 100
        wait_until(stands, "the client is stopped")
        assert sum(sent) < len(body) / 2 and body_memory(r) <= 2 * WINDOW
        start.set()
        assert c.read_response().body == said(body)
        t.join()


# ---- answers that come before the body's end ----

EARLY = [("413 Too Big", "Connection: close\r\n"), ("401 No", ""), ("200 OK", ""), ("503 Busy", "Retry-After: 1\r\n")]


@pytest.mark.parametrize("status,fields", EARLY)
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_early_answer_reaches_the_client(router, reader, status, fields, goes_on):
    """Whole, with its connection's end told; also to a client that reads only when it has sent all.
    What it still sends harms nobody."""
    def script(wire, m):
        wire.read_exact(10)
        ok(wire, b"early", status, fields)
        return "close" if "close" in fields else None
    w = reader("w0", script)
    r = router([w], pool=SPREAD)
    n = 3 << 20
    with r.connect() as c:
        c.send(head(length(n)) + b"x" * (n // 3))
        if goes_on:
            try:
                c.send(b"x" * (n - n // 3))
            except OSError:
                pass
        m = c.read_response()
        assert m.status == int(status[:3]) and m.body == b"early"
        assert goes_on or m.get("connection") == "close", "the rest of the body is not awaited"
    r.wait_idle()
    r.request("GET", "/health")


def test_an_answer_and_its_body_pass_in_both_directions(router, reader):
    """The worker answers as it reads; the client sends the next part when it has the answer to the
    last."""
    def script(wire, m):
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            wire.send(chunk(wire.read_exact(30_000)[:3]))
        wire.send(b"0\r\n\r\n")
    w = reader("w0", script)
    r = router([w], pool=SPREAD)
    with r.connect() as c:
        c.send(head(length(150_000)))
        for i in range(5):
            c.send(bytes([48 + i]) * 30_000)
            if i == 0:
                assert c.read_head().status == 200
            assert c.read_chunk() == bytes([48 + i]) * 3
        assert c.read_chunk() == b""


# ---- who leaves, and when ----

POINTS = ["head", "first-byte", "middle", "chunk-line", "last-byte"]


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("point", POINTS)
def test_a_client_that_leaves_takes_its_exchange_along(router, reader, point, how):
    """The worker's connection is closed at once, never ended as if the body were whole."""
    gone = threading.Event()

    def script(wire, m):
        try:
            while wire.sock.recv(65536):
                pass
        except OSError:
            pass
        gone.set()
        return "close"
    w = reader("w0", script)
    r = router([w], pool=SPREAD)
    n = 100_000
    data = {"head": head(length(n)), "first-byte": head(length(n)) + b"x", "middle": head(length(n)) + b"x" * (n // 2), "last-byte": head(length(n)) + b"x" * (n - 1),
            "chunk-line": head(CHUNKED) + chunk(b"x" * 70_000) + b"1"}[point]
    c = r.connect()
    c.send(data)
    w.wait_heads(1)
    c.reset() if how == "reset" else c.close()
    assert gone.wait(harness.DEADLINE), "the worker is left waiting"
    r.wait_idle()
    wait_until(lambda: body_memory(r) == 0, "nothing is held")


@pytest.mark.parametrize("size", [200_000, 10_000_000])
def test_a_client_that_leaves_while_its_worker_is_slow(router, reader, size):
    """The client's stream rests then; its end is noticed all the same."""
    gone, start = threading.Event(), threading.Event()

    def script(wire, m):
        start.wait(harness.DEADLINE)
        try:
            while wire.sock.recv(1 << 20):
                pass
        except OSError:
            pass
        gone.set()
        return "close"
    w = reader("w0", script)
    r = router([w], pool=SPREAD)
    c = r.connect()
    c.send(head(length(2 * size)))
    c.sock.setblocking(False)
    left = memoryview(b"x" * size)
    idle = 0
    while left and idle < 200:
        try:
            left, idle = left[c.sock.send(left):], 0
        except BlockingIOError:
            idle += 1
            threading.Event().wait(0.002)
    w.wait_heads(1)
    c.reset()
    wait_until(lambda: not any(r.loads().values()), "the exchange is over while the worker reads nothing")
    start.set()
    assert gone.wait(harness.DEADLINE)


# ---- what is wrong with it ----

@pytest.mark.parametrize("bad,status", [(b"zz\r\n", 400), (b"5\r\nhello!!", 400), (b"ffffffffffffffffff\r\n", 400), (b"200000\r\n", 413)])
def test_a_body_that_goes_wrong_half_way(router, reader, bad, status):
    """The worker sees it break off, the client is told."""
    cut = []

    def script(wire, m):
        wire.read_body(m)
        cut.append(m.ended)
        return "close"
    w = reader("w0", script)
    r = router([w], pool=SPREAD, keys="max_body_size = 1m\n")
    with r.connect() as c:
        c.send(head(CHUNKED) + chunk(b"x" * 70_000))
        w.wait_heads(1)
        c.send(bad)
        m = c.read_response()
        assert m.status == status and m.get("connection") == "close"
    wait_until(lambda: cut == [False], "the worker saw no end")


def test_a_body_that_is_too_large_by_its_length_bothers_nobody(router, reader):
    w = reader("w0", take_all)
    r = router([w], keys="max_body_size = 1m\n")
    with r.connect() as c:
        c.send(head(length((1 << 20) + 1), KEYED))
        assert c.read_response().status == 413
    with r.connect() as c:
        body = b"x" * (1 << 20)
        c.send(framed("length", body, KEYED))
        assert c.read_response().body == said(body)
    assert len(w.heads) == 1


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_a_body_that_stops_is_408_and_its_worker_is_free(router, reader, how):
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD, keys="body_timeout = 300ms\n")
    with r.connect() as c:
        c.send(head(length(50_000)) + b"x" * 20_000 if how == "length" else head(CHUNKED) + chunk(b"x" * 20_000))
        m = c.read_response()
        assert m.status == 408 and m.json()["error"]["code"] == "client_timeout"
    r.wait_idle()


def test_the_workers_time_does_not_run_while_the_client_is_awaited(router, reader):
    """first_byte_timeout is the worker's, not that of a body on its way; also behind an interim
    answer."""
    def script(wire, m):
        wire.read_exact(1)
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        wire.read_exact(29_999)
        ok(wire)
    w = reader("w0", script)
    r = router([w], pool=SPREAD + "first_byte_timeout = 800ms\nstream_idle_timeout = 800ms\nretry_max_retries = 0\n")
    with r.connect() as c:
        c.send(head(length(30_000)))
        for part in (b"x", b"x" * 9_999, b"x" * 20_000):
            threading.Event().wait(1.2)
            c.send(part)
        assert c.read_response().status == 200


def test_a_worker_that_takes_nothing_is_timed_out(router, reader):
    stay = threading.Event()
    w = reader("w0", lambda wire, m: stay.wait(harness.DEADLINE * 2) and "close")
    r = router([w], pool=SPREAD + "first_byte_timeout = 500ms\nretry_max_retries = 0\nhealth_failures = 1000\n")
    n = 64 << 20
    with r.connect() as c:
        def upload():
            try:
                c.send(head(length(n)) + b"x" * n)
            except OSError:
                pass
        t = threading.Thread(target=upload)
        t.start()
        m = c.read_response()
        assert m.status == 504 and m.json()["error"]["code"] == "worker_timeout"
        c.close()
        t.join()
    stay.set()


# ---- Expect: 100-continue ----

@pytest.mark.parametrize("how", ["length", "chunked", "small"])
def test_the_body_is_asked_for_when_its_worker_is_there(router, reader, how):
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD)
    body = b"x" * (500 if how == "small" else 200_000)
    with r.connect() as c:
        c.send(head(CHUNKED if how == "chunked" else length(len(body)), "Expect: 100-continue\r\n"))
        assert c.read_head().status == 100
        w.wait_heads(1)
        c.send(chunk(body) + b"0\r\n\r\n" if how == "chunked" else body)
        assert c.read_response().body == said(body)
    assert w.heads[0].get("expect") is None


def test_without_a_worker_the_body_is_not_asked_for(router, reader):
    w = reader("w0", take_all)
    r = router([w], pool=SPREAD + "no_worker_wait = 0\n")
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    with r.connect() as c:
        c.send(head(length(200_000), "Expect: 100-continue\r\n"))
        assert c.read_head().status == 503
    assert not w.heads


# ---- once more, elsewhere ----

def test_a_worker_that_cannot_be_reached_costs_no_byte(router, worker):
    """Nothing was sent: the body goes to another one, whole."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = router(ws, pool=SPREAD + "health_failures = 100000\nretry_budget = 100%\n", keys=OPEN)
    ws[0].stop()
    for n in (10, 15_000, 500_000):
        for how in ("length", "chunked"):
            for _ in range(2):
                body = bytes([n % 251]) * n
                with r.connect() as c:
                    c.send(framed(how, body))
                    assert c.read_response().status == 200
                    assert ws[1].requests[-1].body == body
    r.allow_errors.append("w0")


def test_what_was_handed_on_is_not_sent_again(router, reader):
    """A worker that dies with part of a long body in hand: 502, and no other worker hears of it. A
    short one is still held, and goes on as ever."""
    ends = []

    def die(wire, m):
        size = int(m.get("content-length"))
        wire.read_exact(min(size, 400_000))
        ends.append(m)
        return "close"
    ws = [reader(f"w{i}", die) for i in range(2)]
    r = router(ws, pool=SPREAD + "health_failures = 100000\n")
    with r.connect() as c:
        c.send(head(length(800_000)) + b"x" * 500_000)
        m = c.read_response()
        assert m.status == 502 and m.json()["error"]["code"] == "worker_reset"
    assert len(ends) == 1
    with r.connect() as c:
        c.send(head(length(1000)) + b"x" * 500)
        wait_until(lambda: len(ws[0].heads) + len(ws[1].heads) == 2, "it has arrived")
        c.send(b"x" * 500)
        assert c.read_response().status == 502
    assert len(ends) == 3, "a request that died in silence goes to exactly one other worker"
    r.allow_errors.append("w[01]")


@pytest.mark.tsan
def test_many_uploads_at_once(router, reader):
    """Of all sizes and framings, from several threads: each arrives as it was."""
    ws = [reader(f"w{i}", take_all) for i in range(2)]
    r = router(ws, pool=SPREAD, keys="threads = 4\n")

    def talk(seed):
        with r.connect() as c:
            for k in range(12):
                body = bytes([seed, k]) * (1 << (k + 4))
                c.send(framed("chunked" if (seed + k) % 2 else "length", body))
                assert c.read_response().body == said(body)
    in_parallel([lambda i=i: talk(i) for i in range(16)])
