"""The end of a daemon: SIGTERM with streams, uploads and idle clients at hand; a second signal; the
grace period (B25)."""
import signal
import threading

import pytest

import harness
from harness import Closed, Hold, make_request, wait_until

STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"u" * 40000 + b'"}]}'


class Streams:
    """A handler: each request gets one event at once, the second one when let go."""

    def __init__(self):
        self.go = threading.Event()

    def __call__(self, x):
        if x.request.get("x-upload"):
            harness.answer_ok(x)
            return
        x.begin()
        x.event("first")
        self.go.wait(3 * harness.DEADLINE)
        x.event("second")
        x.end()


def is_told(r, m):
    return m.status == 503 and m.json()["error"]["code"] == "draining" and m.get("connection") == "close" and int(m.get("retry-after")) >= 1


def all_are_told(r):
    """Each thread knows: whoever connects now and wants a worker is refused, and sees why."""
    try:
        return all(is_told(r, r.request(body=STREAM, headers={"X-Upload": "1"})) for _ in range(16))
    except Closed:  # it was connected, and idle still, as its thread heard of the stop
        return False


def started_streams(r, n):
    wires = [r.connect() for _ in range(n)]
    for c in wires:
        c.send(make_request(body=STREAM))
    for c in wires:
        c.head = c.read_head()
        assert c.head.status == 200 and c.read_chunk() == b"data: first\n\n"
    return wires


@pytest.mark.tsan
def test_b25_all_that_began_is_finished(router, worker):
    """10 streams and 2 half-sent uploads end well, 5 idle connections close, nothing new comes in,
    exit 0 once idle."""
    handler = Streams()
    ws = [worker("w0", handler), worker("w1", handler)]
    r = router(ws, keys="threads = 4\ndrain_timeout = 1h\n")
    streams = started_streams(r, 10)
    idle = [r.connect() for _ in range(5)]
    for c in idle:
        c.send(make_request("GET", "/health"))
        assert c.read_response("GET").status == 200
    upload = make_request(body=BODY, headers={"X-Upload": "1"})
    uploads = [r.connect() for _ in range(2)]
    for i, c in enumerate(uploads):
        c.send(upload[:(30, len(upload) - 700)[i]])  # one within the head, one within the body
    r.wait_in_flight(12)
    r.signal(signal.SIGTERM)
    r.wait_log("draining")
    wait_until(lambda: all_are_told(r), "nobody else is served")
    assert [r.request("GET", path).status for path in ("/readiness", "/health", "/liveness", "/v1/models")] == [503, 200, 200, 200]
    for c in idle:
        assert c.at_eof(), "idle connections close"
    assert r.proc.poll() is None
    for c, n in zip(uploads, (30, len(upload) - 700)):
        c.send(upload[n:])
        m = c.read_response("POST")
        assert m.status == 200 and m.ended and m.get("connection") == "close"
        assert c.at_eof()
    assert r.proc.poll() is None, "it waits for the streams"
    handler.go.set()
    for c in streams:
        assert c.read_chunk() == b"data: second\n\n" and c.read_chunk() == b""
        assert c.at_eof()
    assert r.proc.wait(harness.DEADLINE) == 0
    for c in streams + idle + uploads:
        c.close()


def test_a_stop_is_announced(router, worker):
    """Nothing is in flight: for drain_grace who connects is told all the same, a balancer's probe
    before others; a second signal ends it."""
    w = worker("w0")
    r = router([w], keys="threads = 2\ndrain_timeout = 2h\ndrain_grace = 1h\n")
    assert r.request("GET", "/readiness").status == 200
    r.signal(signal.SIGTERM)
    wait_until(lambda: all_are_told(r), "who comes late is told")
    m = r.request("GET", "/readiness")
    assert m.status == 503 and m.json()["error"]["code"] == "draining" and m.get("connection") == "close"
    assert r.request("GET", "/health").status == 200 and r.request("GET", "/v1/models").status == 200
    before = len(w.requests)
    late = r.connect()
    late.send(make_request(body=BODY))
    assert is_told(r, late.read_response("POST")) and late.at_eof()
    asks = r.connect()
    asks.send(make_request("POST", headers={"Expect": "100-continue", "Content-Length": "10"}, body=None))
    assert is_told(r, asks.read_response("POST")), "and sends no body for nothing"
    assert r.admin("GET", "status")[1]["state"] == "draining" and r.proc.poll() is None
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert len(w.requests) == before
    late.close(), asks.close()


@pytest.mark.parametrize("keys", ["drain_grace = 100ms\n", "drain_grace = 1h\ndrain_timeout = 100ms\n", "drain_grace = 0\ndrain_timeout = 0\n"])
def test_the_grace_ends(router, worker, keys):
    """By itself, and drain_timeout bounds it; nothing is in flight, and nothing is cut."""
    r = router([worker("w0")], keys="threads = 2\n" + keys)
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert "are cut" not in r.log()


@pytest.mark.tsan
def test_late_clients_hold_nothing_up(router, worker):
    """One that says nothing, one in the middle of its head, one of its body: when what was in time
    is done, they are told or closed, and it ends."""
    handler = Streams()
    r = router([worker("w0", handler)], keys="threads = 2\ndrain_timeout = 1h\nhead_timeout = 1h\nbody_timeout = 1h\n")
    streams = started_streams(r, 2)
    r.signal(signal.SIGTERM)
    wait_until(lambda: all_are_told(r), "who comes late is told")
    mute, head, body = (r.connect() for _ in range(3))
    head.send(b"GET /readiness HTTP/1.1\r\nHo")
    upload = make_request(body=BODY)
    body.send(upload[:-700])
    wait_until(lambda: r.admin("GET", "status")[1]["counters"]["requests_in_flight"] == 4, "both are being read")
    assert r.metric("kvsteer_requests_in_flight") == 4
    handler.go.set()
    for c in streams:
        assert c.read_chunk() == b"data: second\n\n" and c.read_chunk() == b"" and c.at_eof()
    for c in (head, body):
        m = c.read_response("GET")
        assert m.status == 503 and m.json()["error"]["code"] == "draining" and c.at_eof()
    assert mute.at_eof()
    assert r.proc.wait(harness.DEADLINE) == 0
    for c in (mute, head, body, *streams):
        c.close()


@pytest.mark.tsan
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_b25_second_signal_cuts(router, worker, second):
    handler = Streams()
    w = worker("w0", handler)
    r = router([w], keys="threads = 2\ndrain_timeout = 1h\n")
    streams = started_streams(r, 10)
    r.signal(signal.SIGTERM)
    r.wait_log("draining")
    assert r.proc.poll() is None
    r.signal(second)
    assert r.proc.wait(harness.DEADLINE) == 0
    for c in streams:
        try:
            assert c.read_to_eof().find(b"\r\n0\r\n") < 0, "no clean end"
        except Closed:
            pass
        c.close()
    handler.go.set()
    assert "guards taken=10 dropped=10" in r.log()


def test_request_that_lies_in_an_idle_connection_is_answered_or_closed_cleanly(router, worker):
    """One byte of an answer means a whole one; otherwise EOF before any byte, and the client may
    try again."""
    w = worker("w0")
    r = router([w])
    wires = [r.connect() for _ in range(20)]
    for c in wires:
        c.send(make_request("GET", "/health"))
        c.read_response("GET")
    line = threading.Barrier(len(wires) + 1)
    seen = []

    def ask(c):
        line.wait(harness.DEADLINE)
        try:
            c.send(make_request(body=STREAM))
            m = c.read_response("POST")
            seen.append(m.status == 200 and m.ended)
        except Closed as e:
            seen.append(e.partial == b"")
        except OSError:
            seen.append(True)
        c.close()
    threads = [threading.Thread(target=ask, args=(c,)) for c in wires]
    for t in threads:
        t.start()
    line.wait(harness.DEADLINE)
    r.signal(signal.SIGTERM)
    for t in threads:
        t.join()
    assert r.proc.wait(harness.DEADLINE) == 0
    assert seen == [True] * len(wires)


def test_grace_ends_what_does_not(router, worker):
    """A stream that outlives drain_timeout is cut; exit 0 all the same, guards balanced."""
    handler = Streams()
    r = router([worker("w0", handler)], keys="drain_timeout = 200ms\n")
    streams = started_streams(r, 3)
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert "guards taken=3 dropped=3" in r.log()
    handler.go.set()
    for c in streams:
        c.close()


def test_sigterm_while_nobody_is_there(router, worker):
    r = router([worker("w0")])
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0


def test_sigterm_while_workers_are_silent(router, worker):
    """Probes that never end hold nothing up."""
    w = worker("w0")
    w.healthy = Hold()
    r = router([w], wait=False, pool="health_timeout = 1h\n")
    wait_until(lambda: w.probes, "a probe is out")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    w.healthy.release()


def test_clients_that_wait_for_a_worker_are_told(router, worker):
    """Draining begins while requests wait at a worker that never answers: the second signal ends
    them, their guards too."""
    w = worker("w0", lambda x: x.wait_gone())
    r = router([w], keys="drain_timeout = 1h\n")
    wires = [r.connect() for _ in range(4)]
    for c in wires:
        c.send(make_request(body=STREAM))
    w.wait_requests(4)
    r.signal(signal.SIGTERM)
    r.wait_log("draining, 4 requests in flight")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    for x in w.exchanges:
        assert x.gone.wait(harness.DEADLINE)
    for c in wires:
        c.close()
