"""Memory runs out, at every allocation of a call of the admin API in turn: the call is refused, nothing else is hurt.

alloc_fault.so, preloaded into kvsteerd, makes the n-th allocation fail, n = 1, 2, ... until the call needs fewer. A stream runs through all of it.
"""
import http.client
import json
import mmap
import os
import socket
import struct

import pytest

import harness
from harness import Steps, make_request, wait_until, worker_conf

WRAPPER = os.path.join(harness.builddir(), "tests/e2e/alloc_fault.so")
pytestmark = pytest.mark.skipif(not os.path.exists(WRAPPER), reason="alloc_fault.so is built by make check, without sanitizers")

MAIN, OTHERS = 0, 1
STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Fault:
    """What alloc_fault.c reads: left, failed, lasts, who."""

    def __init__(self, path):
        with open(path, "wb") as f:
            f.write(bytes(4096))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 4096)

    def _word(self, i, value=None):
        if value is not None:
            struct.pack_into("<q", self.map, 8 * i, value)
        return struct.unpack_from("<q", self.map, 8 * i)[0]

    def arm(self, n, lasts=False, who=MAIN):
        self._word(0, 0)
        self._word(1, 0)
        self._word(2, int(lasts))
        self._word(3, who)
        self._word(0, n)

    def disarm(self):
        """Whether an allocation failed."""
        self._word(0, 0)
        return self._word(1) > 0


class Admin:
    """One connection to the admin socket, made anew where it was closed."""

    def __init__(self, r):
        self.r, self.conn = r, None

    def ask(self, method, path, body=None, headers=None):
        """(status, JSON); (None, None) where the connection was closed instead."""
        if self.conn is None:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.settimeout(harness.DEADLINE)
            s.connect(self.r.admin_path)
            self.conn = http.client.HTTPConnection("localhost")
            self.conn.sock = s
        try:
            self.conn.request(method, "/admin/v1/" + path, json.dumps(body) if body is not None else None, headers or {})
            answer = self.conn.getresponse()
            text = answer.read()
            if answer.will_close:
                self.close()
            return answer.status, json.loads(text)
        except (OSError, http.client.HTTPException):
            self.close()
            return None, None

    def close(self):
        if self.conn is not None:
            self.conn.close()
        self.conn = None


class Rig:
    def __init__(self, tmp_path, router, worker, conf, keys=""):
        self.fault = Fault(tmp_path / "fault")
        self.steps = Steps(marked="X-Steps")
        self.w = worker("w0", self.steps)
        self.r = router([self.w], conf=conf(self.w), keys="threads = 2\n" + keys,
                        env={"LD_PRELOAD": WRAPPER, "ALLOC_FAULT": str(tmp_path / "fault")},
                        allow_errors=["out of memory", "no memory", "Cannot allocate memory", "reload failed"])
        self.r.wait_workers("w0")
        self.admin = Admin(self.r)
        self.client = self.r.connect()
        self.client.send(make_request(body=STREAM, headers={"X-Steps": "1"}))
        self.steps.step(lambda x: x.events("0"))
        assert self.client.read_head().status == 200
        assert self.client.read_chunk() == b"data: 0\n\n"
        self.n = 0

    def check_stream(self):
        """The stream that began first still runs."""
        self.n += 1
        text = str(self.n)
        self.steps.step(lambda x: x.event(text))
        assert self.client.read_chunk() == b"data: %d\n\n" % self.n

    def each(self, call, lasts, who=MAIN):
        """call() with its n-th allocation failing, n = 1, 2, ...: yields n and what it returned, until none of them failed."""
        n = 0
        while True:
            n += 1
            self.admin.ask("GET", "log_level")  # a connection is there, before memory is short
            self.fault.arm(n, lasts, who)
            answer = call()
            failed = self.fault.disarm()
            assert self.r.proc.poll() is None, f"kvsteerd ended at allocation {n}: {self.r.log()[-2000:]}"
            yield n, failed, answer
            if n % 16 == 1 or not failed:
                self.check_stream()
            if not failed:
                return

    def end(self):
        self.check_stream()
        self.steps.close(lambda x: x.end())
        assert self.client.read_chunk() == b""
        self.client.close()
        self.admin.close()


def is_refusal(status, answer):
    """Out of memory, told as such, or before there was an answer."""
    return status is None or (status == 503 and answer["error"]["code"] in ("out_of_memory", "overloaded"))


def config(rig):
    status, answer = rig.r.admin("GET", "config")
    assert status == 200
    return answer["config"]


class TwoConfs:
    """A configuration and the next: other pools, policies, keys and addresses; workers that change, come and go."""

    def __init__(self, tmp_path):
        self.keys = tmp_path / "keys"
        self.port = harness.free_port()

    def first(self, w):
        with open(f"{self.keys}.first", "w") as f:
            f.write("%064x alice max_requests=3\n" % 1)
        return ("[pool p]\nmodels = a* b*\n[pool default]\nhealth_interval = 50ms\n"
                f"[worker w0]\nurl = {w.url}\npool = default\nmax_requests = 50\n[worker gone]\nurl = http://127.0.0.1:1\npool = p\n")

    def second(self, w):
        with open(f"{self.keys}.second", "w") as f:
            f.write("%064x alice max_requests=3\n%064x bob cache_group=g rate=5/s\n" % (1, 2))
        return ("[pool p]\nmodels = c* b*\npolicy = consistent_hash\n[pool q]\nmodels = q\nindex_memory = 1m\n"
                f"[pool default]\nhealth_interval = 60ms\n[worker w0]\nurl = {w.url}\npool = default\nmax_requests = 60\nworker_key = k\n"
                "[worker new]\nurl = http://127.0.0.1:2\npool = q\ndp_size = 2\n")

    def write(self, rig, name):
        rig.r.listen = "127.0.0.1:0" + (f" 127.0.0.1:{self.port}" if name == "second" else "")
        rig.r.write_conf(getattr(self, name)(rig.w))


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), harness.DEADLINE).close()
        return True
    except (ConnectionRefusedError, ConnectionResetError):
        return False


@pytest.mark.parametrize("lasts", [False, True], ids=["one", "all_behind"])
@pytest.mark.parametrize("who", [MAIN, OTHERS], ids=["control", "io"])
def test_reload(tmp_path, router, worker, lasts, who):
    """Refused, the old configuration is in force, its listeners and no others; or done, where what failed can wait."""
    confs = TwoConfs(tmp_path)
    rig = Rig(tmp_path, router, worker, confs.first)
    was, now, refused = config(rig), None, 0
    confs.write(rig, "second")
    for n, failed, (status, answer) in rig.each(lambda: rig.admin.ask("POST", "reload"), lasts, who):
        shown = config(rig)
        if status == 200:
            assert shown == now or now is None, n
            now = shown
        elif status is not None:
            assert is_refusal(status, answer), (n, status, answer)
            assert shown == was, n
            refused += 1
        wait_until(lambda: listens(confs.port) == (shown != was), f"the new address, at allocation {n}")
        if shown != was:  # back, for the next turn
            confs.write(rig, "first")
            assert rig.r.reload()[0]
            confs.write(rig, "second")
    assert now is not None and now != was
    assert refused > (200 if who == MAIN else 1)
    rig.end()


@pytest.mark.parametrize("lasts", [False, True], ids=["one", "all_behind"])
def test_workers(tmp_path, router, worker, lasts):
    """A worker is there, or it is not, as the answer says; and it can be had at the next try."""
    rig = Rig(tmp_path, router, worker, lambda w: worker_conf([w], "policy = consistent_hash\n"))
    new = {"name": "new", "url": "http://127.0.0.1:2", "max_requests": 5, "dp_size": 2, "models": ["a", "b*"], "worker_key": "secret"}
    refused = 0
    for n, failed, (status, answer) in rig.each(lambda: rig.admin.ask("POST", "workers", new), lasts):
        is_there = rig.r.admin("GET", "workers/new")[0] == 200
        if status is not None:
            assert status == 201 or is_refusal(status, answer), (n, status, answer)
            assert is_there == (status == 201), n
            refused += status != 201
        if is_there:
            assert rig.r.admin("DELETE", "workers/new")[0] == 202
    assert refused > 50
    refused = 0
    for how in ("", "?drain=30s"):
        assert rig.r.admin("POST", "workers", new)[0] == 201
        for n, failed, (status, answer) in rig.each(lambda: rig.admin.ask("DELETE", "workers/new" + how), lasts):
            shown = rig.r.admin("GET", "workers/new")
            is_leaving = shown[0] == 404 or shown[1]["state"] == "draining"
            if status is not None:
                assert status == 202 or is_refusal(status, answer), (n, status, answer)
                assert is_leaving == (status == 202), (n, how, status)
                refused += status != 202
            if is_leaving:
                wait_until(lambda: rig.r.admin("GET", "workers/new")[0] == 404, "new is removed")
                assert rig.r.admin("POST", "workers", new)[0] == 201
        assert rig.r.admin("DELETE", "workers/new")[0] == 202
    assert refused > 2
    rig.end()


def split(w):
    return (f"[pool default]\npd_min_prefill = 100000\n[worker w0]\nurl = {w.url}\nrole = decode\n"
            "[worker p0]\nurl = http://127.0.0.1:1\nrole = prefill\n[worker p1]\nurl = http://127.0.0.1:2\nrole = prefill\n")


@pytest.mark.parametrize("lasts", [False, True], ids=["one", "all_behind"])
@pytest.mark.parametrize("conf", [lambda w: worker_conf([w], "policy = cache_aware\n"), split], ids=["whole", "split"])
def test_explain(tmp_path, router, worker, lasts, conf):
    """The whole answer, or none."""
    rig = Rig(tmp_path, router, worker, conf)
    body = {"model": "m", "messages": [{"role": "user", "content": harness.text(7, 3)}]}
    assert rig.r.request(body=body).status == 200  # so that w0 holds the prompt
    whole = rig.r.explain(body)
    refused = 0
    for n, failed, (status, answer) in rig.each(lambda: rig.admin.ask("POST", "explain", body), lasts):
        if status == 200:
            assert answer == whole, n
        elif status is not None:
            assert is_refusal(status, answer), (n, status, answer)
            refused += 1
    assert refused > 50
    rig.end()
