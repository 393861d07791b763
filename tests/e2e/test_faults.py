"""Workers that are silent, slow, lost or broken: limits are about silence (B16), one bad worker
hurts nobody else (B17), bytes are life (B22), and start-up waits for nobody (B30, B58).
"""
import os
import socket
import threading

import pytest

import harness
from harness import Closed, Hold, Wire, Worker, free_port, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)


def conf_without_interval(workers, pool, extra=""):
    return worker_conf(workers, pool, extra).replace("health_interval = 1s\n", "", 1)


# ---- B16: limits are about silence ----

def paced(n, gap, then=None):
    """A handler: n events, each gap seconds after the one before."""
    def run(x):
        x.begin()
        for i in range(n):
            x.event(str(i))
            if x.wait_gone(gap):
                return "close"
        if then is not None:
            return then(x)
        x.end()
        return None
    return run


def test_b16_a_stream_outlives_every_limit_on_silence(router, worker):
    """(a), (c): twelve events over 3 s with limits of 2 s, and not a byte that the worker did not
    send."""
    w = worker("w0", paced(12, 0.25))
    r = router([w], pool="first_byte_timeout = 2s\nstream_idle_timeout = 2s\n", keys="write_timeout = 2s\nbody_timeout = 2s\nkeepalive_timeout = 2s\nhead_timeout = 2s\n")
    m = r.request(body=STREAM)
    assert m.status == 200 and m.ended
    assert m.body == b"".join(b"data: %d\n\n" % i for i in range(12))


def test_b16_silence_in_a_stream_ends_it(router, worker):
    """(c): as a broken answer, with the reason as an event and without a clean end; the worker is
    told."""
    def stops(x):
        x.events("0", "1", "2")
        return x.wait_gone() and "close"
    w = worker("w0", stops)
    r = router([w], pool="stream_idle_timeout = 500ms\n")
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        m = c.read_head()
        c.read_body(m)
        assert m.status == 200 and not m.ended
        assert m.body.startswith(b"data: 0\n\ndata: 1\n\ndata: 2\n\n") and b'"code":"worker_timeout"' in m.body
    assert w.wait_requests(1).gone.wait(harness.DEADLINE)
    assert "worker_timeout" in r.wait_log(r"worker_timeout").group(0)


@pytest.mark.parametrize("stream", [True, False])
def test_b16_silence_before_the_head(router, worker, stream):
    """(b), (d): longer than any limit between bytes is fine; the limit of the first byte is 504, as
    JSON, streaming or not, and nobody is tried again."""
    open_ = threading.Event()

    def think(x):
        open_.wait(harness.DEADLINE) if x.request.get("x-long") is None else x.wait_gone()
        harness.answer_ok(x)
    ws = [worker("w0", think), worker("w1", think)]
    r = router(ws, pool="stream_idle_timeout = 300ms\nfirst_byte_timeout = 10s\n")
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=stream)))
        wait_until(lambda: sum(len(w.requests) for w in ws) == 1, "it arrives")
        assert not (ws[0].exchanges + ws[1].exchanges)[0].wait_gone(1), "three idle limits are no reason to give up"
        open_.set()
        assert c.read_response("POST").status == 200
    assert r.reload(worker_conf(ws, "first_byte_timeout = 300ms\n"))[0]
    m = r.request(body=dict(CHAT, stream=stream), headers={"X-Long": "1"})
    assert m.status == 504 and m.json()["error"]["code"] == "worker_timeout"
    assert m.get("content-type") == "application/json"
    wait_until(lambda: sum(len(w.requests) for w in ws) == 2, "its worker has read it")


def test_b16_total_timeout_where_one_is_wanted(router, worker):
    w = worker("w0", paced(10000, 0.02))
    r = router([w], pool="total_timeout = 1s\n")
    m = r.request(body=STREAM)
    assert m.status == 200 and not m.ended and b'"code":"worker_timeout"' in m.body


# ---- B17: one silent worker ----

class Deaf:
    """Answers probes; takes connections for anything else and never reads them."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(4096)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.name, self.held = "deaf", []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        try:
            if s.recv(4, socket.MSG_PEEK) != b"GET ":
                self.held.append(s)
                return
            w = Wire(s)
            w.read_head()
            w.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            w.close()
        except (OSError, Closed):
            s.close()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for s in self.held:
            s.close()


@pytest.fixture
def deaf():
    d = Deaf()
    yield d
    d.stop()


@pytest.mark.tsan
def test_b17_a_worker_that_never_reads_freezes_nobody(router, worker, deaf):
    """200 requests hang on it, 5 probes never return, a name cannot be resolved: the others answer
    200 of 200."""
    ws = [worker("w0"), worker("w2")]
    silent = worker("w3")
    silent.healthy = lambda x: x.wait_gone() and None
    extra = f"[worker w3]\nurl = {silent.url}\n[worker w4]\nurl = http://no-such-host.invalid:8000\n"
    r = router(conf=worker_conf(ws + [deaf], "health_timeout = 1h\nfirst_byte_timeout = 1h\nconnect_timeout = 1m\n", extra), wait=False, keys="allow_pin = on\nthreads = 2\n")
    r.wait_workers("w0", "w2", "deaf")
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}
    stuck = [r.connect() for _ in range(200)]
    for c in stuck:
        c.send(make_request(body=body, headers={"X-Kvsteer-Worker": "deaf"}))
    wait_until(lambda: r.metric("kvsteer_worker_load", worker="deaf") == 200, "200 outstanding", 3 * harness.DEADLINE)
    wait_until(lambda: len(silent.probes) >= 1, "a probe is out")
    with r.connect() as c:
        for i in range(200):
            c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": ("w0", "w2")[i % 2]}))
            assert c.read_response("POST").status == 200
        for _ in range(20):
            c.send(make_request(body=CHAT))  # unpinned: the stuck one is never preferred
            assert c.read_response("POST").status == 200
    assert r.request("GET", "/readiness").status == 200
    assert r.metric("kvsteer_worker_load", worker="deaf") == 200
    for c in stuck:
        c.close()
    r.wait_idle()
    r.reload(worker_conf(ws + [deaf], "first_byte_timeout = 300ms\nconnect_timeout = 1m\n"))
    for _ in range(3):
        m = r.request(body=body, headers={"X-Kvsteer-Worker": "deaf"})
        assert m.status == 504 and m.json()["error"]["code"] == "worker_timeout"


@pytest.mark.skipif(not harness.has_localhost(), reason="localhost is no name here (no /etc/hosts)")
def test_b17_a_name_that_is_slow_to_resolve_freezes_nobody(router, worker, tmp_path):
    """The look-up stands still until we let it go: requests, probes, admin and reload go on, and so
    does the end; later the name is used."""
    until = str(tmp_path / "resolved")
    env = {"LD_PRELOAD": harness.program("tests/e2e/slow_name.so"), "SLOW_NAME_UNTIL": until, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    w, slow = worker("w0"), worker("slow")
    conf = worker_conf([w], "", f"[worker slow]\nurl = http://slow.test:{slow.port}\n")
    r = router(conf=conf, wait=False, env=env).wait_workers("w0")
    for _ in range(20):
        assert r.request(body=CHAT).status == 200
    assert r.worker_state("slow") == "starting" and slow.probes == []
    assert r.reload(conf.replace("[worker slow]", "[worker slower]"))[0]
    assert r.reload(conf)[0]
    assert r.admin("POST", "workers", {"name": "other", "url": f"http://localhost:{w.port}/b"})[0] == 201
    with open(until, "w"):
        pass
    r.wait_workers("slow")
    assert all(m.get("host") == f"slow.test:{slow.port}" for m in slow.probes)


def test_b17_the_end_does_not_wait_for_a_name(router, worker, tmp_path):
    # The look-up's thread outlives everything: what it holds is no leak that matters.
    env = {"LD_PRELOAD": harness.program("tests/e2e/slow_name.so"), "SLOW_NAME_UNTIL": str(tmp_path / "never"),
           "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0:detect_leaks=0"}
    w = worker("w0")
    r = router(conf=worker_conf([w], "", "[worker slow]\nurl = http://slow.test:1\n"), wait=False, env=env).wait_workers("w0")
    r.signal(15)
    assert r.proc.wait(harness.DEADLINE) == 0


# ---- B22: bytes are life ----

class Busy:
    """/health hangs while more than limit requests run; streams events until let go."""

    def __init__(self, w, limit):
        self.w, self.limit, self.running, self.lock = w, limit, 0, threading.Lock()
        self.go = threading.Event()
        self.hung = 0
        w.handler, w.healthy = self.stream, self.health

    def stream(self, x):
        with self.lock:
            self.running += 1
        try:
            x.begin()
            while not self.go.is_set():
                x.event("tick")
                self.go.wait(0.02)
            x.end()
        finally:
            with self.lock:
                self.running -= 1

    def health(self, x):
        if self.running > self.limit and x.request.target == "/health":
            self.hung += 1
            x.wait_gone()
        else:
            x.answer(200, '{"data":[]}' if x.request.target == "/v1/models" else "{}")


@pytest.mark.tsan
def test_b22_busy_workers_stay_in(router, worker):
    """30 streams run on 3 workers whose probes all time out: none is put out, and new requests go
    on."""
    ws = [worker(f"w{i}") for i in range(3)]
    busy = [Busy(w, 5) for w in ws]
    r = router(conf=conf_without_interval(ws, "health_interval = 300ms\nhealth_timeout = 500ms\nhealth_failures = 3\npolicy = least_requests\n"), wait=False)
    r.wait_workers("w0", "w1", "w2")
    wires = [r.connect() for _ in range(30)]
    for c in wires:
        c.send(make_request(body=STREAM))
        assert c.read_head().status == 200
    assert [b.running for b in busy] == [10, 10, 10]
    before = [b.hung for b in busy]
    wait_until(lambda: all(b.hung >= n + 5 for b, n in zip(busy, before)), "five probes of each hang")
    # Suspect: one failure counted, since the machine stood still for longer than a probe may take.
    assert {r.worker_state(w.name) for w in ws} <= {"healthy", "suspect"}, r.log()[-2000:]
    assert "-> unhealthy" not in r.log()
    for b in busy:
        b.go.set()
    for c in wires:
        while c.read_chunk():
            pass
        c.close()


def test_b22_a_single_worker_that_is_put_out_keeps_what_it_has(router, worker):
    """(b): no byte comes and no probe is answered: it is put out, but its client waits and
    succeeds."""
    w = worker("w0", Hold())
    r = router(conf=conf_without_interval([w], "health_interval = 50ms\nhealth_timeout = 400ms\n"), wait=False).wait_workers("w0")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w.wait_requests(1)
        w.healthy = lambda x: x.wait_gone() and None
        r.wait_workers("w0", state="unhealthy")
        w.handler.release()
        assert c.read_response("POST").status == 200
        w.healthy = True
        r.wait_workers("w0")


def test_b22_fails_open_when_every_worker_is_out(router, worker):
    ws = [worker("w0"), worker("w1")]
    r = router(conf=conf_without_interval(ws, "health_interval = 50ms\nno_worker_wait = 100ms\n"), wait=False).wait_workers("w0", "w1")
    for w in ws:
        w.healthy = False
    r.wait_workers("w0", "w1", state="unhealthy")
    assert r.request(body=CHAT).status == 200


# ---- B30, B58: start-up and probes ----

def test_b30_no_worker_at_all_then_one(router):
    """(c): live, not ready, 503 as JSON; used without a restart once it is up, and once more after
    it was away."""
    port = free_port()
    r = router(conf=f"[pool default]\nhealth_interval = 100ms\nno_worker_wait = 0\n[worker w0]\nurl = http://127.0.0.1:{port}\n", wait=False)
    assert r.request("GET", "/liveness").status == 200 and r.request("GET", "/health").status == 200
    for path in ("/readiness", "/v1/chat/completions"):
        m = r.request("GET" if path == "/readiness" else "POST", path, None if path == "/readiness" else CHAT)
        assert m.status == 503 and m.json()["error"]["code"] == "no_worker"
    assert m.get("retry-after")
    assert r.request("GET", "/v1/models").json()["data"] == []
    for _ in range(2):
        w = Worker("w0", port=port)
        r.wait_workers("w0")
        assert r.request("GET", "/readiness").status == 200
        assert r.request(body=CHAT).status == 200
        w.stop()
        r.wait_workers("w0", state="unhealthy")


@pytest.mark.parametrize("status", [100, 101, 204, 299, 300, 307, 401, 404, 500, 503])
def test_b58_only_2xx_is_health(router, worker, status):
    w, good = worker("w0"), worker("w1")

    def say(x):
        x.send(b"HTTP/1.1 %d X\r\n%s\r\n" % (status, b"" if status in (100, 101, 204) else b"Content-Length: 0\r\nLocation: /ok\r\n"))
        if status < 200:
            x.wait_gone()
    w.healthy = say
    r = router(conf=conf_without_interval([w, good], "health_interval = 50ms\nhealth_timeout = 200ms\n"), wait=False).wait_workers("w1")
    if 200 <= status < 300:
        r.wait_workers("w0")
        return
    seen = len(w.probes)
    wait_until(lambda: len(w.probes) >= seen + 4, "four probes")
    assert r.worker_state("w0") == "starting"
    for _ in range(10):
        assert r.request(body=CHAT).status == 200
    assert w.requests == []
    assert not any(m.target == "/ok" for m in w.probes)


def test_b58_a_head_that_never_ends_is_no_health(router, worker):
    """A byte now and then is not an answer: the limit is for the whole probe."""
    w, good = worker("w0"), worker("w1")

    def drip(x):
        try:
            x.send(b"HTTP/1.1 200 OK\r\nX-")
            while not x.wait_gone(0.01):
                x.send(b"a")
        except Closed:
            pass
        return None
    w.healthy = drip
    r = router(conf=conf_without_interval([w, good], "health_interval = 50ms\nhealth_timeout = 200ms\n"), wait=False).wait_workers("w1")
    seen = len(w.probes)
    wait_until(lambda: len(w.probes) >= seen + 3, "three probes, each given up")
    assert r.worker_state("w0") == "starting"


def test_b58_client_credentials_are_never_on_a_probe(router, worker):
    w = worker("w0")
    r = router(conf=conf_without_interval([w], "health_interval = 50ms\n"), wait=False).wait_workers("w0")
    secret = {"Authorization": "Bearer canary-7", "X-Api-Key": "canary-8", "Cookie": "canary-9"}
    for _ in range(5):
        assert r.request(body=CHAT, headers=secret).status == 200
    seen = len(w.probes)
    wait_until(lambda: len(w.probes) >= seen + 5, "probes after that")
    assert all(b"canary" not in m.head for m in w.probes)
    assert w.requests[0].get("authorization") == "Bearer canary-7", "where the router does not judge, they pass"


# ---- A3: what health says is no load ----

@pytest.mark.tsan
def test_a3_twelve_cycles_with_flaps_under_held_requests(router, worker):
    """Down and up twelve times, with single failed probes between, a drain, a reload, a stall:
    requests that are held count, each once, all the time."""
    ws = [worker(f"w{i}", Hold()) for i in range(3)]
    pool = "health_interval = 20ms\nhealth_timeout = 20s\nhealth_failures = 2\nhealth_successes = 2\nstall_timeout = 0\n"
    r = router(conf=conf_without_interval(ws, pool), keys="allow_pin = on\n", wait=False).wait_workers("w0", "w1", "w2")
    held = {"w0": 5, "w1": 2, "w2": 0}
    wires = []
    for name, n in held.items():
        for _ in range(n):
            wires.append(r.connect())
            wires[-1].send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": name}))
    ws[0].wait_requests(5)
    ws[1].wait_requests(2)

    def loads():
        return {n: r.metric("kvsteer_worker_load", worker=n) for n in held}

    def unchanged():
        assert loads() == held
        assert r.metric("kvsteer_guards_taken_total") == 7 and r.metric("kvsteer_guards_dropped_total") == 0

    def probes(w, n):
        seen = len(w.probes)
        wait_until(lambda: len(w.probes) >= seen + n, "probes")

    def flap(w):
        """One probe that fails, then good ones."""
        failed = []

        def once(x):
            x.answer(503 if not failed else 200, '{"data":[]}' if x.request.target == "/v1/models" else "{}")
            failed.append(1)
        w.healthy = once
        probes(w, 4)
        w.healthy = True
    for cycle in range(12):
        w = ws[cycle % 3]
        w.healthy = False
        r.wait_workers(w.name, state="unhealthy")
        unchanged()
        w.healthy = True
        r.wait_workers(w.name)
        unchanged()
        flap(ws[(cycle + 1) % 3])
        unchanged()
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    probes(ws[0], 3)
    unchanged()
    assert r.admin("POST", "workers/w0/undrain")[0] == 202
    assert r.reload(conf_without_interval(ws, pool.replace("stall_timeout = 0", "stall_timeout = 100ms")))[0]
    r.wait_workers("w0", "w1", state="stalled")
    unchanged()
    for w in ws:
        w.handler.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()
    r.wait_workers("w0", "w1", "w2")
    wait_until(lambda: loads() == dict.fromkeys(held, 0), "dropped as they end")
    assert r.metric("kvsteer_guards_taken_total") == r.metric("kvsteer_guards_dropped_total") == 7
    wait_until(lambda: r.log().count("-> unhealthy") == 12, "each went out four times")
