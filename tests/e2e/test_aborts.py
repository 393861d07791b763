"""Clients and workers that leave in the middle: nothing is left behind, nothing is retried that
must not be, and a broken answer never looks whole.

The storm (storm.c) plays both sides at speed; the other tests look at one moment each.
"""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading

import pytest

import harness
from harness import Closed, Hold, LEAN, make_request, wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)


# ---- the storm ----

class Storm:
    def __init__(self, seed, workers):
        self.proc = subprocess.Popen([harness.program("tests/e2e/storm"), str(seed), str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = [int(p) for p in self.proc.stdout.readline().split()[1:]]
        assert len(self.ports) == workers

    def conf(self, pool=""):
        """Its workers answer 500 and break off at random all the time: with breakers everybody
        would wait for one that may be tried."""
        return f"[pool default]\ncb_failure_threshold = 1000000000\n{pool}\n" + "".join(f"[worker s{i}]\nurl = http://127.0.0.1:{p}\n" for i, p in enumerate(self.ports))

    def go(self, port, cycles, abreast=48, streams=False, all_may_be_out=False, may_lose_long=False):
        """streams: some bodies go on while they come, so an early answer counts, and not every
        request can be repeated. all_may_be_out: breakers open all the time, so that a 503 at once is
        an answer. may_lose_long: workers are removed all the time, so that a 500 that is too long to
        be kept may have nobody behind it."""
        self.proc.stdin.write(f"go {port} {cycles} {abreast} {int(streams) + 2 * int(all_may_be_out) + 4 * int(may_lose_long)}\n")
        self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        assert line.startswith("done "), f"the storm ended: {line!r}"
        return json.loads(line[5:])

    def stop(self):
        self.proc.stdin.close()
        self.proc.wait(harness.DEADLINE)
        self.proc.stdout.close()


@pytest.fixture
def storm():
    made = []

    def make(seed, workers=4):
        made.append(Storm(seed, workers))
        return made[-1]
    yield make
    for s in made:
        s.stop()


def held(r):
    """What a router holds when nothing is going on: (descriptors, client connections, body
    memory)."""
    m = r.metrics()
    return r.fds(), m['kvsteer_connections{side="client"}'], m["kvsteer_body_memory_bytes"]


def wait_empty(r):
    """Nobody is connected on either side; returns the descriptors that are left."""
    r.wait_idle()

    def is_empty():
        m = r.metrics()
        return not (m['kvsteer_connections{side="client"}'] or m['kvsteer_connections{side="worker"}'] or m["kvsteer_body_memory_bytes"])
    wait_until(is_empty, "no connection and no body is left", 3 * harness.DEADLINE)
    return r.fds()


@pytest.mark.tsan
@pytest.mark.parametrize("seed,policy", [(1, "cache_aware"), (2, "cache_aware"), (6, "round_robin")])
def test_storm_of_10000_aborts_leaves_nothing(router, storm, seed, policy):
    """Three seeds of 6,000, the third with bodies that go on as they come, over every step: half
    heads and bodies, waiting, streaming, retrying, the very last byte."""
    s = storm(seed)
    streams = policy == "round_robin"
    r = router(conf=s.conf(f"policy = {policy}\nupstream_idle = 200ms\nhealth_failures = 1000\nretry_max_retries = 2\n"),
               keys="threads = 4\naccess_log = on\n", wait=False, env=LEAN)
    r.wait_workers("s0", "s1", "s2", "s3")
    first = s.go(r.port, 2000, streams=streams)
    fds, rss = wait_empty(r), r.rss_kib()
    then = s.go(r.port, 4000, streams=streams)
    for told in (first, then):
        assert told["violations"] == 0, told["violation"]
        assert told["left"] > told["cycles"] / 4 and told["complete"] > told["cycles"] / 10, told
        assert told["statuses"].get("200", 0) > 100 and told["statuses"].get("502", 0) > 10, told
    wait_until(lambda: wait_empty(r) <= fds + 2, f"no descriptor more than {fds} before")
    with open(f"/proc/{r.proc.pid}/maps") as f:
        has_shadow = "libtsan" in f.read()  # which grows with every address that was ever touched
    assert has_shadow or r.rss_kib() < rss + 24 * 1024, f"{rss} KiB before, {r.rss_kib()} after"
    m = r.metrics()
    assert m["kvsteer_guards_taken_total"] > 2000


@pytest.mark.tsan
@pytest.mark.parametrize("seed,policy,stall", [(7, "cache_aware", "60s"), (8, "cache_aware", "60ms"), (9, "round_robin", "60ms")])
def test_storm_with_breakers_that_open_and_close_all_the_time(router, storm, seed, policy, stall):
    """Trials that fail, hang, are left by their clients or lose their worker, waits for workers
    that are all out, and verdicts: no trial's place is lost, no guard, and nobody hangs."""
    s = storm(seed)
    pool = f"policy = {policy}\nupstream_idle = 200ms\nhealth_failures = 1000\nretry_max_retries = 2\nno_worker_wait = 20ms\n"
    pool += f"cb_failure_threshold = 3\ncb_success_threshold = 1\ncb_timeout = 20ms\nstall_timeout = {stall}\ndegraded_ratio = 0\n"
    r = router(conf=s.conf(pool).replace("cb_failure_threshold = 1000000000\n", ""), keys="threads = 4\n", wait=False, env=LEAN)
    r.wait_workers("s0", "s1", "s2", "s3")
    told = s.go(r.port, 3000, streams=policy == "round_robin", all_may_be_out=True)
    assert told["violations"] == 0, told["violation"]
    assert told["left"] > told["cycles"] / 4 and told["complete"] > told["cycles"] / 10, told
    wait_empty(r)
    log = r.log()
    assert log.count("breaker open for") > 10 and log.count("breaker open again for") > 10 and log.count("breaker closed") > 10
    m = r.metrics()
    assert m["kvsteer_guards_taken_total"] == m["kvsteer_guards_dropped_total"] > 1000
    # Each takes a trial again, and more, as soon as its time has come.
    wait_until(lambda: {c["out_of_play"] for c in r.explain(CHAT)["candidates"]} <= {None, "state"}, "no place is lost")


@pytest.mark.tsan
def test_storm_while_the_control_thread_changes_everything(router, storm):
    """Reloads that add and remove workers and change policies, drains, generations, explain and
    scrapes, all while clients and workers break off."""
    s = storm(3)
    pool = "upstream_idle = 200ms\nhealth_failures = 1000\n"
    lines = s.conf(pool).split("[worker ")
    r = router(conf=s.conf(pool), keys="threads = 4\n", wait=False, env=LEAN)
    r.wait_workers("s0", "s1", "s2", "s3")
    told = []
    t = threading.Thread(target=lambda: told.append(s.go(r.port, 4000, streams=True, may_lose_long=True)))
    t.start()
    i = 0
    while t.is_alive():
        i += 1
        keep = [w for j, w in enumerate(lines[1:]) if j == 0 or i >> j & 1]
        policy = ("cache_aware", "round_robin", "least_requests", "random")[i % 4]
        assert r.reload("[worker ".join([lines[0] + f"policy = {policy}\nbalance_abs_threshold = {i}\n", *keep]))[0]
        assert r.admin("POST", "workers/s1/drain")[0] in (202, 404)
        r.admin("POST", "pools/default/generation")
        r.explain(CHAT)
        r.admin("GET", "status")
        r.metrics()
        r.admin("POST", "workers/s1/undrain")
    t.join()
    assert i > 3 and told[0]["cycles"] == 4000
    assert told[0]["violations"] == 0, told[0]["violation"]
    r.wait_idle()  # s0 was there all the time: each 500 is its worker's, if it could be kept


@pytest.mark.tsan
@pytest.mark.parametrize("seed", [4, 5])
def test_the_end_in_the_middle_of_a_storm(router, storm, seed):
    """Two SIGTERMs while exchanges are in every state: exit 0, each guard dropped, nothing
    leaked."""
    s = storm(seed)
    r = router(conf=s.conf("health_failures = 1000\n"), keys="threads = 4\ndrain_timeout = 1h\n", wait=False)
    r.wait_workers("s0", "s1", "s2", "s3")
    told = []
    t = threading.Thread(target=lambda: told.append(s.go(r.port, 3000)))
    t.start()
    wait_until(lambda: r.metric("kvsteer_guards_taken_total") > 200, "the storm blows")
    r.signal(signal.SIGTERM)
    r.wait_log("draining")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    t.join()
    assert told[0]["cycles"] == 3000
    taken, dropped = re.search(r"guards taken=(\d+) dropped=(\d+)", r.log()).groups()
    assert taken == dropped and int(taken) > 200


# ---- B03: the client goes away ----

def until_gone(x):
    x.wait_gone()
    return "close"


def stream_until_gone(x):
    x.begin()
    try:
        while True:
            x.event("tick")
            if x.wait_gone(0.01):
                return "close"
    except Closed:
        return "close"


def leave(wire, how):
    wire.reset() if how == "rst" else wire.close()


@pytest.mark.tsan
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_b03_client_gone_mid_stream(router, worker, how):
    w = worker("w0", stream_until_gone)
    r = router([w])
    c = r.connect()
    c.send(make_request(body=STREAM))
    assert c.read_head().status == 200
    for _ in range(3):
        assert c.read_chunk() == b"data: tick\n\n"
    leave(c, how)
    assert w.wait_requests(1).gone.wait(harness.DEADLINE), "the worker sees its connection close"
    r.wait_idle()
    wait_until(lambda: r.metric("kvsteer_connections", side="worker") == 0, "it is not pooled")
    assert re_logged(r, "client_gone"), r.log()[-1000:]


def re_logged(r, token):
    return wait_until(lambda: token in r.log(), f"{token} in the access log")


@pytest.mark.tsan
@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False])
def test_b03_client_gone_before_the_head(router, worker, stream, how):
    """(b) and (c)."""
    w, other = worker("w0", until_gone), worker("w1", until_gone)
    r = router([w, other])
    c = r.connect()
    c.send(make_request(body=dict(CHAT, stream=stream)))
    x = wait_until(lambda: (w.exchanges + other.exchanges)[:1], "the request arrives")[0]
    leave(c, how)
    assert x.gone.wait(harness.DEADLINE)
    r.wait_idle()
    assert len(w.requests) + len(other.requests) == 1, "no further attempt"
    assert r.metric("kvsteer_connections", side="worker") == 0


def test_b03_client_gone_between_attempts(router, worker):
    """(d): the first attempt failed, the second is held: when the client goes there is no third."""
    tried = []

    def first_dies(x):
        tried.append(x)
        if len(tried) == 1:
            x.wire.close()
            raise Closed()
        return until_gone(x)
    ws = [worker(f"w{i}", first_dies) for i in range(4)]
    r = router(ws)
    c = r.connect()
    c.send(make_request(body=CHAT))
    second = wait_until(lambda: tried[1:2], "a second attempt")[0]
    assert second.worker is not tried[0].worker
    c.close()
    assert second.gone.wait(harness.DEADLINE)
    r.wait_idle()
    assert len(tried) == 2 and sum(len(w.requests) for w in ws) == 2


def test_half_closed_client_that_breaks_off_is_gone(router, worker):
    """After FIN it may have its answer (Connection: close said so); a reset says that it does not
    want it any more."""
    w = worker("w0", until_gone)
    r = router([w])
    c = r.connect()
    c.send(make_request(body=CHAT, close=True))
    c.sock.shutdown(socket.SHUT_WR)
    x = w.wait_requests(1)
    assert not x.wait_gone(0.2), "a half-closed client is still there"
    c.reset()
    assert x.gone.wait(harness.DEADLINE) or x.wait_gone()


# ---- the worker goes away ----

BREAKS = {
    "chunked": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n"),
    "in-a-chunk": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", b"7\r\nhello"),
    "length": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n", b"hello"),
    "events": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", b"d\r\ndata: hello\n\n\r\n"),
}


@pytest.mark.parametrize("by", ["fin", "rst"])
@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("minor", [0, 1])
def test_b05_worker_dies_mid_answer(router, worker, kind, by, minor):
    """What was sent is given, the end is no clean end, an event stream says why, and nobody is
    asked again."""
    relayed = threading.Event()

    def die(x):
        x.send(b"".join(BREAKS[kind]))
        relayed.wait(harness.DEADLINE)
        leave(x.wire, by)
        raise Closed()
    ws = [worker("w0", die), worker("w1", die)]
    r = router(ws)
    with r.connect() as c:
        c.send(make_request(body=STREAM).replace(b"HTTP/1.1", b"HTTP/1.%d" % minor, 1))
        m = c.read_head()
        got, cut = b"", False
        while b"hello" not in got:
            got += c.recv_some()
        relayed.set()
        try:
            got += c.read_to_eof()
        except Closed as e:
            got, cut = got + e.partial, True
    if m.get("transfer-encoding") == "chunked":
        assert b"\r\n0\r\n" not in got, "a clean end of a broken answer"
    elif m.get("content-length"):
        assert len(got) < int(m.get("content-length"))
    else:
        assert minor == 0 and (cut or kind == "events"), "without a length only a reset tells a 1.0 client"
    if kind == "events":
        events = re.sub(rb"(^|\r\n)[0-9a-f]+\r\n", b"", got) if minor == 1 else got
        assert b'\n\ndata: {"error"' in events and events.count(b"data: ") == 2
    assert sum(len(w.requests) for w in ws) == 1
    assert re_logged(r, "worker_broke")
    assert r.metric("kvsteer_connections", side="worker") == 0


# ---- B06: counters ----

class Watch:
    """Samples the loads all the time: none may ever be negative."""

    def __init__(self, r):
        self.r, self.lowest, self.done = r, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.done.is_set():
            self.lowest = min([self.lowest, *self.r.loads().values()])
            self.done.wait(0.02)

    def stop(self):
        self.done.set()
        self.thread.join()
        assert self.lowest >= 0


def b06_worker(x):
    """Does what the request's X-Do says."""
    what = x.request.get("x-do", "ok")
    if what == "answer":
        return answer_with(x, 200)
    if what == "500":
        return answer_with(x, 500)
    if what == "wait":
        return until_gone(x)
    if what == "die":
        x.wire.reset()
        raise Closed()
    if what in ("stream", "die-mid-stream"):
        x.begin()
        x.event("one")
        if what == "stream":
            return until_gone(x)
        x.wire.reset()
        raise Closed()
    assert what == "race"
    x.begin()
    x.event("one")
    x.end()
    return None


def answer_with(x, status):
    x.answer(status, "{}")


def b06_cycle(r, what, rng):
    c = r.connect()
    request = make_request(body=dict(STREAM, seed=rng.random()), headers={"X-Do": what})
    try:
        if what == "half":
            c.send(request[:rng.randrange(1, len(request))])
        else:
            c.send(request)
        if what in ("500", "answer", "die", "die-mid-stream"):
            c.read_response("POST")
        if what == "stream":
            c.read_head()
            c.read_chunk()
        if what == "race":
            c.read_head()
            for _ in range(rng.randrange(400)):
                pass
    except Closed:
        pass
    leave(c, rng.choice(["fin", "rst"]))


@pytest.mark.tsan
def test_b06_1000_cycles_then_20_held_split_evenly(router, worker):
    ws = [worker("w0", b06_worker), worker("w1", b06_worker)]
    r = router(ws, pool="policy = cache_aware\nhealth_failures = 1000\ncb_failure_threshold = 1000000000\n", keys="threads = 2\n")
    watch = Watch(r)
    states = ["half", "wait", "stream", "die-mid-stream", "500", "die", "race", "answer"]

    def lane(n):
        rng = random.Random(n)
        for i in range(125):
            b06_cycle(r, states[(n + i) % len(states)], rng)
    lanes = [threading.Thread(target=lane, args=(n,)) for n in range(8)]
    for t in lanes:
        t.start()
    for t in lanes:
        t.join()
    watch.stop()
    r.wait_idle()
    hold = Hold()
    for w in ws:
        w.handler = lambda x: hold(x) if x.request.get("x-do") == "hold" else until_gone(x)

    def at(w):
        """Of the 20 only: a worker's thread may still be reading what a client gave up before."""
        return sum(x.request.get("x-do") == "hold" for x in list(w.exchanges))
    wires = []
    for i in range(20):
        wires.append(r.connect())
        body = {"model": "m", "messages": [{"role": "user", "content": harness.text(1, i)}]}
        wires[-1].send(make_request(body=body, headers={"X-Do": "hold"}))
    wait_until(lambda: sum(map(at, ws)) == 20, "20 held")
    assert sorted(r.loads().values()) == sorted(map(at, ws))
    assert all(8 <= at(w) <= 12 for w in ws), [at(w) for w in ws]
    hold.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()


@pytest.mark.tsan
def test_b06_close_races_the_last_byte(router, worker):
    """The worker's last byte and the client's end are let go at the same instant, 200 times: each
    guard is dropped once."""
    line = threading.Barrier(2)

    def last_byte(x):
        x.begin()
        x.event("one")
        line.wait(harness.DEADLINE)
        try:
            x.end()
        except Closed:
            return "close"
        return None
    w = worker("w0", last_byte)
    r = router([w], keys="threads = 1\n")
    for i in range(200):
        c = r.connect()
        c.send(make_request(body=STREAM))
        c.read_head()
        c.read_chunk()
        line.wait(harness.DEADLINE)
        for _ in range(i * 5):
            pass
        leave(c, "rst" if i % 2 else "fin")
    r.wait_idle()
    assert r.metrics()["kvsteer_guards_taken_total"] == 200
