"""What a service manager sees and does, by a scripted one: messages in order, the descriptor store,
the watchdog.

It speaks as systemd does: datagrams to NOTIFY_SOCKET, descriptors beside FDSTORE=1, and LISTEN_FDS
with LISTEN_PID at the next start.
"""
import array
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import harness
from harness import Hold, make_request, wait_until, worker_conf

harness.become_subreaper()

STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}

# Puts the descriptors named at 3 and up, sets LISTEN_PID to the process that it becomes.
EXEC = """import os, sys
fds = [os.dup(int(w)) for w in sys.argv[1].split(",") if w]
high = [__import__("fcntl").fcntl(fd, 1030, 500) for fd in fds]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i)
os.closerange(3 + len(high), 400)
os.environ["LISTEN_PID"] = sys.argv[2].replace("own", str(os.getpid()))
os.execv(sys.argv[3], sys.argv[3:])
"""


class Manager:
    """A service manager: one thread reads what comes, in order."""

    def __init__(self, path):
        self.path = str(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.messages, self.times, self.pids, self.store = [], [], [], {}
        self.lock = threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            try:
                data, control, _, _ = self.sock.recvmsg(8192, socket.CMSG_SPACE(4 * 253) + socket.CMSG_SPACE(12))
            except OSError:
                return
            if data == b"end":
                return
            fds, pid = array.array("i"), 0
            for level, kind, value in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(value[:len(value) // 4 * 4])
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid = int.from_bytes(value[:4], sys.byteorder)
            with self.lock:
                self.take(data.decode(), list(fds), pid)
                self.lock.notify_all()

    def take(self, text, fds, pid):
        fields = dict(line.split("=", 1) for line in text.split("\n"))
        if fields.get("FDSTORE") == "1":
            for fd in fds:
                # systemd keeps a socket once, under its first name
                if any(os.path.sameopenfile(fd, have) for names in self.store.values() for have in names):
                    os.close(fd)
                else:
                    self.store.setdefault(fields["FDNAME"], []).append(fd)
        else:
            assert not fds, f"descriptors beside {text!r}"
        if fields.get("FDSTOREREMOVE") == "1":
            for fd in self.store.pop(fields["FDNAME"], []):
                os.close(fd)
        self.messages.append(fields)
        self.times.append(time.monotonic())
        self.pids.append(pid)

    def env(self, watchdog_s=None):
        env = {"NOTIFY_SOCKET": self.path}
        if watchdog_s:
            env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        return env

    def wait(self, condition, what, deadline=harness.DEADLINE):
        with self.lock:
            assert self.lock.wait_for(condition, deadline), f"{what}: {self.messages}"

    def wait_message(self, key, pattern="", count=1):
        def found():
            return [m for m in self.messages if key in m and re.search(pattern, m[key])]
        self.wait(lambda: len(found()) >= count, f"{count} x {key}={pattern}")
        return found()[count - 1]

    def keys(self):
        """The keys that say what goes on, in the order that they came, repetitions left out."""
        with self.lock:
            keys = [k for m in self.messages for k in m if k in ("READY", "RELOADING", "STOPPING", "MAINPID", "FDSTORE", "FDSTOREREMOVE")]
        return [k for i, k in enumerate(keys) if i == 0 or keys[i - 1] != k]

    def stored(self):
        with self.lock:
            return {name: len(fds) for name, fds in self.store.items()}

    def wait_stored(self, **_):
        self.wait_message("FDSTORE")

    def start(self, make, *args, pid="own", watchdog_s=None, **kw):
        """Starts a router with all that is stored."""
        with self.lock:
            names = [name for name, fds in self.store.items() for _ in fds]
            fds = [fd for fds in self.store.values() for fd in fds]
        env = {**self.env(watchdog_s), "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(names)}
        wrap = [sys.executable, "-c", EXEC, ",".join(map(str, fds)), pid]
        return make(*args, env=env, wrap=wrap, pass_fds=fds, **kw)

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"end", self.path)
        self.thread.join()
        self.sock.close()
        for fds in self.store.values():
            for fd in fds:
                os.close(fd)


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path / "notify")
    yield m
    m.close()


# ---- messages ----

@pytest.mark.tsan
def test_every_message_in_order(router, worker, manager):
    """READY, a reload, a failed reload, an upgrade, the stop; each from the process that is the
    main one."""
    hold = Hold()
    w = worker("w0", hold)
    r = router([w], env=manager.env(), allow_errors=["reload failed"])
    manager.wait_message("READY")
    manager.wait_message("STATUS", "^1 of 1 workers healthy, 0 requests in flight, 0 served$")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert r.reload()[0]
    m = manager.wait_message("RELOADING")
    assert before <= int(m["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.wait_message("READY", count=2)
    assert not r.reload(worker_conf([w], "policy = magic\n"))[0]
    manager.wait_message("READY", count=3)
    manager.wait_message("STATUS", "; the last reload failed: .*policy")
    assert r.reload(worker_conf([w]))[0]
    manager.wait_message("READY", count=4)
    assert "failed" not in manager.messages[-1].get("STATUS", "")
    old = r.proc
    assert r.upgrade()[0] == 200
    assert manager.wait_message("MAINPID")["MAINPID"] == str(r.proc.pid)
    manager.wait_message("READY", count=5)
    assert old.wait(harness.DEADLINE) == 0
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        w.wait_requests(1)
        manager.wait_message("STATUS", ", 1 requests in flight")
        r.signal(signal.SIGTERM)
        m = manager.wait_message("STOPPING")
        assert int(m["EXTEND_TIMEOUT_USEC"]) > 1000000 and "1 requests in flight" in m["STATUS"]
        # more than one: time is asked for again and again while it drains
        manager.wait(lambda: len([m for m in manager.messages if "EXTEND_TIMEOUT_USEC" in m]) >= 3, "EXTEND_TIMEOUT_USEC again")
        hold.release()
        assert c.read_response("POST").status == 200
    assert r.proc.wait(harness.DEADLINE) == 0
    assert manager.keys() == ["READY", "FDSTORE", "RELOADING", "READY", "RELOADING", "READY", "RELOADING", "READY", "MAINPID", "READY", "STOPPING"]
    main = old.pid
    for m, pid in zip(manager.messages, manager.pids):
        assert pid == main, (m, pid)
        main = int(m.get("MAINPID", main))


def test_status_at_most_once_a_second(router, worker, manager):
    """Health that changes and requests that come and go all the time."""
    w = worker("w0")
    r = router(conf=f"[pool default]\nhealth_interval = 20ms\nhealth_failures = 1\nhealth_successes = 1\n[worker w0]\nurl = {w.url}\n",
               env=manager.env())
    manager.wait_message("READY")
    end = time.monotonic() + 3
    n = 0
    while time.monotonic() < end:
        w.healthy = n % 2 == 0
        n += 1
        assert r.request("GET", "/health").status == 200
    told = [t for t, m in zip(manager.times, manager.messages) if set(m) == {"STATUS"}]
    assert told and len(told) <= told[-1] - told[0] + 2, "one may have been read late"
    w.healthy = True
    manager.wait_message("STATUS", "^1 of 1")


# ---- the descriptor store ----

def port_of(r):
    return int(re.findall(r"listening on http://127\.0\.0\.1:(\d+)", r.log())[0])


def metrics_port_of(r):
    return int(re.findall(r"metrics on http://[^ ]*:(\d+)", r.log())[0])


@pytest.mark.parametrize("threads", [(2, 2), (4, 1), (1, 3)], ids=["as many", "fewer threads", "more threads"])
@pytest.mark.tsan
def test_a_restart_takes_the_sockets_over(router, worker, manager, threads):
    """Between the two processes connections wait; none is refused, whatever the number of
    threads."""
    ws = [worker("w0")]
    r = router(ws, keys=f"threads = {threads[0]}\n", env=manager.env())
    manager.wait(lambda: sum(map(len, manager.store.values())) == threads[0] + 1, "all sockets are stored")
    assert set(manager.stored()) == {"listen-127.0.0.1_0", "metrics-127.0.0.1_0"}
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    wires = [r.connect() for _ in range(64)]
    for c in wires:
        c.send(make_request(body=STREAM))
    s = manager.start(router, ws, keys=f"threads = {threads[1]}\n", wait=False)
    assert (port_of(s), metrics_port_of(s)) == (r.port, r.metrics_port)
    s.wait_workers("w0")
    for c in wires:
        m = c.read_response("POST")
        assert m.status == 200, m.start
        c.close()
    manager.wait(lambda: len(manager.store["listen-127.0.0.1_0"]) == max(threads), "what is new is stored, too")
    assert len(manager.store["metrics-127.0.0.1_0"]) == 1
    for _ in range(32):
        assert s.request().status == 200


def test_a_restart_takes_a_unix_socket_over(router, worker, manager):
    """The manager keeps it once, however many threads accept from it, and its file stays."""
    with tempfile.TemporaryDirectory(prefix="u") as folder:
        path = os.path.join(folder, "llm.sock")
        name = "listen-unix_" + path
        listen = f"127.0.0.1:0 unix:{path}"
        ws = [worker("w0")]
        r = router(ws, keys="threads = 2\n", listen=listen, env=manager.env())
        manager.wait(lambda: len(manager.store.get(name, [])) == 1, "it is stored")
        r.signal(signal.SIGTERM)
        assert r.proc.wait(harness.DEADLINE) == 0
        wires = []
        for _ in range(8):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.settimeout(harness.DEADLINE)
            s.connect(path)
            wires.append(harness.Wire(s))
            wires[-1].send(make_request(body=STREAM))
        # As ExecStartPre= asks, between the two.
        p = subprocess.run([harness.program("kvsteerd"), "-t", "-c", r.conf_path], capture_output=True, text=True, timeout=harness.DEADLINE,
                           env={**os.environ, "INVOCATION_ID": "1"})
        assert p.returncode == 0, p.stderr
        manager.start(router, ws, keys="threads = 3\n", listen=listen, wait=False).wait_workers("w0")
        for c in wires:
            assert c.read_response("POST").status == 200
            c.close()
        assert len(manager.store[name]) == 1


def test_who_connects_during_a_drain_waits_for_the_next_start(router, worker, manager):
    """The manager keeps the sockets: nobody is refused while the old process ends its streams."""
    hold = Hold()
    w = worker("w0", hold)
    r = router([w], keys="threads = 1\ndrain_grace = 1h\n", env=manager.env())
    manager.wait(lambda: len(manager.store) == 2, "stored")
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        w.wait_requests(1)
        r.signal(signal.SIGTERM)
        manager.wait_message("STOPPING")
        hold.release()
        assert c.read_response("POST").status == 200 and c.at_eof()
        late = r.connect()  # the thread has heard of the stop, or it would not have closed c
        late.send(make_request(body=STREAM))
    assert r.proc.wait(harness.DEADLINE) == 0
    manager.start(router, [w], wait=False).wait_workers("w0")
    assert late.read_response("POST").status == 200
    late.close()


def test_a_crash_loses_no_queued_connection(router, worker, manager):
    ws = [worker("w0")]
    r = router(ws, env=manager.env())
    manager.wait_message("FDSTORE")
    manager.wait(lambda: len(manager.store) == 2, "stored")
    r.kill()
    c = r.connect()
    c.send(make_request(body=STREAM))
    os.unlink(r.admin_path)
    manager.start(router, ws, wait=False).wait_workers("w0")
    assert c.read_response("POST").status == 200
    c.close()


def test_sockets_that_the_configuration_has_no_more_are_closed_and_forgotten(router, worker, manager):
    ws = [worker("w0")]
    r = router(ws, keys="listen = 127.0.0.2:0\n", env=manager.env())
    gone = int(r.wait_log(r"listening on http://127\.0\.0\.2:(\d+)").group(1))
    manager.wait(lambda: len(manager.store) == 3, "stored")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    s = manager.start(router, ws)
    manager.wait(lambda: set(manager.store) == {"listen-127.0.0.1_0", "metrics-127.0.0.1_0"}, "forgotten")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", gone), 1)
    assert s.request().status == 200


def test_a_reload_stores_and_forgets(router, worker, manager):
    ws = [worker("w0")]
    r = router(ws, env=manager.env())
    manager.wait(lambda: len(manager.store) == 2, "stored")
    r.router_keys = "listen = 127.0.0.2:0\n"
    assert r.reload(worker_conf(ws))[0]
    port = int(r.wait_log(r"listening on http://127\.0\.0\.2:(\d+)").group(1))
    manager.wait(lambda: "listen-127.0.0.2_0" in manager.store, "the new one is stored")
    r.router_keys = ""
    assert r.reload(worker_conf(ws))[0]
    manager.wait(lambda: "listen-127.0.0.2_0" not in manager.store, "it is forgotten")

    def refused():
        try:
            socket.create_connection(("127.0.0.2", port), 1).close()
        except OSError:
            return True
        return False
    wait_until(refused, "nobody listens there")


def test_a_name_of_another_spelling_is_replaced(router, worker, manager):
    """The address decides, not how it was spelled; the store has each socket once, under its name
    now."""
    ws = [worker("w0")]
    r = router(ws, keys="threads = 2\n", env=manager.env())
    manager.wait(lambda: sum(map(len, manager.store.values())) == 3, "stored")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    c = r.connect()
    c.send(make_request(body=STREAM))
    s = manager.start(router, conf=worker_conf(ws), keys="threads = 2\n", listen=f"127.0.0.1:{r.port}", wait=False)
    assert c.read_response("POST").status == 200
    c.close()
    manager.wait(lambda: manager.stored() == {f"listen-127.0.0.1_{r.port}": 2, "metrics-127.0.0.1_0": 1}, "renamed")
    assert port_of(s) == r.port


def test_sockets_for_another_process_are_left_alone(router, worker, manager):
    """LISTEN_PID is somebody else's: the variables were inherited, the descriptors are not ours."""
    ws = [worker("w0")]
    r = router(ws, env=manager.env())
    manager.wait(lambda: len(manager.store) == 2, "stored")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    s = manager.start(router, ws, pid="1")
    assert port_of(s) != r.port
    assert s.request().status == 200


@pytest.mark.parametrize("env", [{"LISTEN_FDS": "x"}, {"LISTEN_FDS": "99999999"}, {"LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c"}, {"LISTEN_FDS": "-1"},
                                 {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "::::"}, {"LISTEN_FDS": "0"}], ids=str)
def test_variables_that_promise_what_is_not_there(router, worker, env):
    wrap = [sys.executable, "-c", EXEC, "", "own"]
    r = router([worker("w0")], env=env, wrap=wrap)
    assert r.request().status == 200


def test_descriptors_that_are_no_listening_sockets(router, worker, manager, tmp_path):
    a, b = socket.socketpair()
    f = open(tmp_path / "file", "w")
    manager.store = {"listen-127.0.0.1_0": [os.dup(a.fileno())], "odd": [os.dup(f.fileno())]}
    r = manager.start(router, [worker("w0")])
    r.wait_log("is not a listening socket", count=2)
    assert r.request().status == 200
    manager.wait(lambda: "odd" not in manager.store, "forgotten")
    a.close(), b.close(), f.close()


def test_an_upgrade_leaves_the_store_as_it_is(router, worker, manager):
    ws = [worker("w0")]
    r = router(ws, keys="threads = 2\n", env=manager.env())
    manager.wait(lambda: sum(map(len, manager.store.values())) == 3, "stored")
    n = len([m for m in manager.messages if "FDSTORE" in m])
    assert r.upgrade()[0] == 200
    manager.wait_message("READY", count=2)
    r.wait_former()
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert len([m for m in manager.messages if "FDSTORE" in m]) == n
    c = r.connect()
    c.send(make_request(body=STREAM))
    s = manager.start(router, ws, keys="threads = 2\n", wait=False)
    s.wait_workers("w0")
    assert c.read_response("POST").status == 200
    c.close()


# ---- the watchdog ----

WATCHDOG_S = 2


WALL = 0x40000000  # of waitpid: threads too


class Hung:
    """One thread stopped, as a loop that is stuck would be; the others run on. is_there: it is
    permitted here."""

    def __init__(self, pid, name):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        self.pid = pid
        self.tid = next(tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if self.name_of(tid) == name)
        self.is_there = libc.ptrace(0x4206, self.tid, None, None) == 0 and libc.ptrace(0x4207, self.tid, None, None) == 0  # SEIZE, INTERRUPT
        if self.is_there:
            assert os.WIFSTOPPED(os.waitpid(self.tid, WALL)[1])

    def name_of(self, tid):
        with open(f"/proc/{self.pid}/task/{tid}/comm") as f:
            return f.read().strip()

    def kill(self):
        """All of it. A traced thread is its tracer's to bury, before the process is its
        parent's."""
        os.kill(self.pid, signal.SIGKILL)
        if self.is_there and self.tid != self.pid:
            while os.WIFSTOPPED(os.waitpid(self.tid, WALL)[1]):
                pass


def supervise(manager):
    """Returns when no keep-alive came for the whole time that was agreed."""
    while True:
        with manager.lock:
            last = max((t for t, m in zip(manager.times, manager.messages) if "WATCHDOG" in m), default=time.monotonic())
            left = last + WATCHDOG_S - time.monotonic()
            if left <= 0:
                return
            manager.lock.wait(left)


@pytest.mark.parametrize("thread", ["io/0", "io/2", None], ids=["first", "last", "control"])
def test_a_thread_that_hangs_leads_to_a_restart(router, worker, manager, thread):
    """Keep-alives come while all is well, idle or not; they end when one I/O thread, or the control
    thread, hangs; the supervisor restarts."""
    ws = [worker("w0")]
    r = router(ws, keys="threads = 3\n", env=manager.env(WATCHDOG_S), allow_errors=["does not answer"])
    manager.wait_message("WATCHDOG", count=6)
    assert r.request().status == 200
    with open(f"/proc/{r.proc.pid}/comm") as f:
        hung = Hung(r.proc.pid, thread or f.read().strip())
    if not hung.is_there:
        pytest.skip("a thread of another process cannot be stopped here (ptrace)")
    if thread:
        r.wait_log(rf"error .*thread {thread} does not answer: the watchdog gets no keep-alive")
    supervise(manager)
    hung.kill()
    assert r.proc.wait(harness.DEADLINE) == -signal.SIGKILL
    r.kill()
    n = len(manager.messages)
    os.unlink(r.admin_path)
    s = manager.start(router, ws, keys="threads = 3\n", watchdog_s=WATCHDOG_S)
    assert s.request().status == 200
    manager.wait(lambda: any("WATCHDOG" in m for m in manager.messages[n:]), "the new one is alive")


def test_keep_alives_move_with_an_upgrade(router, worker, manager):
    """WATCHDOG_PID names the process that systemd started; its successor feeds the watchdog all the
    same, and alone."""
    r = harness_router_with_watchdog_pid(router, worker, manager)
    manager.wait_message("WATCHDOG", count=2)
    old = r.proc.pid
    assert r.upgrade()[0] == 200
    manager.wait_message("READY", count=2)
    with manager.lock:
        at = next(i for i, m in enumerate(manager.messages) if "MAINPID" in m)
    manager.wait(lambda: len([m for m in manager.messages[at:] if "WATCHDOG" in m]) >= 3, "keep-alives go on")
    assert {p for m, p in zip(manager.messages[at + 1:], manager.pids[at + 1:])} == {r.proc.pid}
    assert {p for p in manager.pids[:at + 1]} == {old}


def harness_router_with_watchdog_pid(router, worker, manager):
    wrap = [sys.executable, "-c", "import os, sys\nos.environ['WATCHDOG_PID'] = str(os.getpid())\nos.execv(sys.argv[1], sys.argv[1:])\n"]
    return router([worker("w0")], env=manager.env(WATCHDOG_S), wrap=wrap)


def test_no_keep_alive_for_somebody_else(router, worker, manager):
    r = router([worker("w0")], env={**manager.env(0.05), "WATCHDOG_PID": "1"})
    manager.wait_message("STATUS", "^1 of 1")
    assert r.request().status == 200
    manager.wait_message("STATUS", ", 1 served")
    assert not any("WATCHDOG" in m for m in manager.messages)
