"""A failed connect is evidence at once: who refuses, or swallows packets, costs a few dials in all, is
suspect and probed, and a name that moves takes its traffic along."""
import os
import socket

import pytest

import harness
from harness import make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RARE = "policy = round_robin\ncb_failure_threshold = 1000000\n"


def rare(conf):
    return conf.replace("health_interval = 1s", "health_interval = 1h")


def start(router, ws, keys="", threads=2):
    return router(conf=rare(worker_conf(ws, RARE + keys)), keys=f"threads = {threads}\n", wait=False).wait_workers(*[w.name for w in ws])


def unreachable(r):
    return sum(int(v) for s, v in r.metrics().items() if s.startswith("kvsteer_retries_total{") and "unreachable" in s)


def out_of_play(r):
    return {c["worker"]: c["out_of_play"] for c in r.explain(CHAT)["candidates"]}


def listener_at(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", port))
    return s


class BlackHole:
    """A socket whose queue is full: connects to it get no answer."""

    def __init__(self, port):
        self.sock = listener_at(port)
        self.sock.listen(0)
        self.held = []
        for _ in range(8):
            c = socket.socket()
            c.setblocking(False)
            c.connect_ex(("127.0.0.1", port))
            self.held.append(c)

    def close(self):
        for s in [*self.held, self.sock]:
            s.close()


def test_a_worker_that_refuses_costs_three_dials_at_most(router, worker):
    ws = [worker(f"w{i}") for i in range(3)]
    r = start(router, ws)
    ws[1].stop()
    assert [r.request(body=CHAT).status for _ in range(40)] == [200] * 40
    assert 1 <= unreachable(r) <= 3
    assert out_of_play(r)["w1"] == "unreachable"
    r.wait_workers("w1", state="suspect")


def test_who_refused_is_probed_now_and_is_back(router, worker):
    """Long before health_interval ends."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = start(router, ws)
    ws[1].stop()
    while unreachable(r) == 0:
        assert r.request(body=CHAT).status == 200
    with listener_at(ws[1].port) as s:
        s.listen(16)
        s.settimeout(harness.DEADLINE)
        c, _ = s.accept()
        with c:
            assert b"GET /health" in c.recv(4096)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            wait_until(lambda: out_of_play(r)["w1"] is None, "w1 is back")


def test_a_black_hole_costs_one_timeout(router, worker):
    """While its connect is late, and after it failed, all others go elsewhere."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = start(router, ws, "connect_timeout = 3s\n")
    ws[1].stop()
    hole = BlackHole(ws[1].port)
    try:
        with r.connect() as a, r.connect() as b:
            for c in (a, b):  # round robin: one of them is for w1
                c.send(make_request(body=CHAT))
            wait_until(lambda: out_of_play(r)["w1"] == "late", "the connect is late")
            assert [r.request(body=CHAT).status for _ in range(20)] == [200] * 20
            assert unreachable(r) == 0
            assert [c.read_response().status for c in (a, b)] == [200, 200]
        assert [r.request(body=CHAT).status for _ in range(20)] == [200] * 20
        assert unreachable(r) == 1
    finally:
        hole.close()


def failed_connects(r, name):
    return r.metric("kvsteer_upstream_failures_total", worker=name, reason="worker_unreachable")


def storm(r, n):
    """So many requests at once, each on its own connection: their statuses."""
    wires = [r.connect() for _ in range(n)]
    try:
        for c in wires:
            c.send(make_request(body=CHAT))
        return [c.read_response().status for c in wires]
    finally:
        for c in wires:
            c.close()


def test_a_storm_costs_three_dials_at_who_refuses(router, worker):
    """Over all I/O threads: the first ones go ahead, the others wait for what these bring."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = start(router, ws, threads=4)
    ws[1].stop()
    assert storm(r, 200) == [200] * 200
    assert 1 <= failed_connects(r, "w1") <= 3


def test_a_storm_pays_four_timeouts_at_a_black_hole(router, worker):
    ws = [worker(f"w{i}") for i in range(2)]
    r = start(router, ws, "connect_timeout = 3s\n", threads=4)
    ws[1].stop()
    hole = BlackHole(ws[1].port)
    try:
        assert storm(r, 200) == [200] * 200
        assert 1 <= failed_connects(r, "w1") <= 4
    finally:
        hole.close()


def test_where_nobody_else_is_a_storm_waits_for_the_first_connects(router, worker):
    """A worker that was not tried yet takes it whole; one that is a black hole fails it after one timeout."""
    w = worker("w0")
    r = start(router, [w], "connect_timeout = 1s\nno_worker_wait = 1s\n", threads=4)
    assert storm(r, 100) == [200] * 100
    assert failed_connects(r, "w0") == 0
    w.stop()
    hole = BlackHole(w.port)
    try:
        assert set(storm(r, 100)) <= {502, 503}
        assert 1 <= failed_connects(r, "w0") <= 4
    finally:
        hole.close()


def moving_name(tmp_path):
    """The environment of a router for which slow.test is what the file says."""
    where = tmp_path / "address"
    where.write_text("127.0.0.1")
    until = tmp_path / "resolved"
    until.write_text("")
    return where, {"LD_PRELOAD": harness.program("tests/e2e/slow_name.so"), "SLOW_NAME_UNTIL": str(until), "SLOW_NAME_ADDRESS": str(where),
                   "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def test_a_name_that_moves_takes_its_traffic_along(router, worker, tmp_path):
    """A connect to the old address fails: the name is looked up again, now, and the new one is used."""
    where, env = moving_name(tmp_path)
    ws = [worker("w0"), worker("w1")]
    conf = rare(worker_conf(ws[:1], RARE, f"[worker moves]\nurl = http://slow.test:{ws[1].port}\n"))
    r = router(conf=conf, wait=False, env=env).wait_workers("w0", "moves")
    ws[1].stop()
    with socket.socket() as s:
        s.bind(("127.0.0.2", ws[1].port))
        s.listen(16)
        s.settimeout(harness.DEADLINE)
        where.write_text("127.0.0.2")
        while unreachable(r) == 0:
            assert r.request(body=CHAT).status == 200
        c, _ = s.accept()
        with c:
            assert b"GET /health" in c.recv(4096)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            wait_until(lambda: out_of_play(r)["moves"] is None, "the new address is used")


@pytest.mark.parametrize("says_start", [False, True])
def test_what_has_another_address_has_lost_its_cache_unless_the_process_is_known(router, worker, tmp_path, says_start):
    """Its old address swallows connects, so none was refused."""
    where, env = moving_name(tmp_path)
    old = worker("old")
    old.metrics_text = "process_start_time_seconds 1000.5\n" if says_start else None
    conf = rare(worker_conf([], "no_worker_wait = 0\nconnect_timeout = 200ms\n", f"[worker moves]\nurl = http://slow.test:{old.port}\n"))
    r = router(conf=conf, wait=False, env=env).wait_workers("moves")
    assert r.request(body=dict(CHAT, messages=[{"role": "user", "content": "x" * 1000}])).status == 200
    blocks = r.admin("GET", "workers/moves")[1]["blocks"]
    assert blocks > 0
    new = worker("new", host="127.0.0.2", port=old.port)
    new.metrics_text = old.metrics_text
    old.stop()
    hole = BlackHole(old.port)
    try:
        where.write_text("127.0.0.2")
        assert r.request(body=CHAT).status in (502, 503)
        wait_until(lambda: r.worker_state("moves") == "healthy" and any(p.target == "/health" for p in new.probes), "the new address is used")
        assert r.admin("GET", "workers/moves")[1]["blocks"] == (blocks if says_start else 0)
    finally:
        hole.close()
