"""Upgrade in place: another process takes over all sockets, and nobody notices; or it does not, and
the old one says why and carries on."""
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading

import pytest

import harness
from harness import Hold, Wire, make_request, wait_until, worker_conf

harness.become_subreaper()

STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Stream:
    """A handler: one event at once, another when let go."""

    def __init__(self):
        self.go = threading.Event()

    def __call__(self, x):
        if b"stream" not in x.request.body:
            harness.answer_ok(x)
            return
        x.begin()
        x.event("first")
        self.go.wait(3 * harness.DEADLINE)
        x.event("second")
        x.end()


def begin_stream(r):
    c = r.connect()
    c.send(make_request(body=STREAM))
    assert c.read_head().status == 200 and c.read_chunk() == b"data: first\n\n"
    return c


def end_stream(c):
    assert c.read_chunk() == b"data: second\n\n" and c.read_chunk() == b""
    c.close()


@pytest.fixture
def binary(tmp_path):
    """A copy of kvsteerd that a test may replace, as a package's upgrade would."""
    path = str(tmp_path / "kvsteerd")
    shutil.copy(harness.program("kvsteerd"), path)
    return path


def replace(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.chmod(path + ".new", 0o755)
    os.replace(path + ".new", path)


@pytest.mark.tsan
def test_another_process_takes_over_and_streams_go_on(router, worker):
    """Ports, admin socket and metrics are the same; what was in flight ends in the old process,
    which then exits with its guards balanced."""
    stream = Stream()
    r = router([worker("w0", stream), worker("w1", stream)], keys="threads = 2\n")
    streams = [begin_stream(r) for _ in range(6)]
    old = r.proc
    inode = os.stat(r.admin_path).st_ino
    status, answer = r.upgrade()
    assert status == 200 and answer["pid"] != old.pid, answer
    assert os.stat(r.admin_path).st_ino == inode
    told = r.admin("GET", "status")[1]
    assert told["pid"] == answer["pid"] and told["counters"]["requests_in_flight"] == 0
    # The old one may still have taken a connection or two from the sockets that both have.
    wait_until(lambda: r.request().status == 200 and r.admin("GET", "status")[1]["guards"]["taken"] > 0, "the new process is asked")
    assert r.admin("GET", "status")[1]["guards"]["taken"] < 6, "it counts from zero"
    assert old.poll() is None, "it finishes its streams"
    stream.go.set()
    for c in streams:
        end_stream(c)
    assert old.wait(harness.DEADLINE) == 0
    r.wait_log(r"guards taken=(\d+) dropped=\1\b")
    assert os.path.exists(r.admin_path), "the old process leaves the socket's file alone"


@pytest.mark.tsan
def test_sigusr2_and_kvsteerctl(router, worker):
    r = router([worker("w0")])
    r.signal(signal.SIGUSR2)
    pid = int(r.wait_log(r"upgrade: process (\d+) takes over").group(1))
    r.follow(pid)
    r.wait_former()
    wait_until(lambda: r.admin("GET", "status")[1]["pid"] == pid, "the new one answers")
    p = subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, "upgrade"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stderr == "", p
    assert f"{pid} finishes" in p.stdout
    r.follow(int(p.stdout.split()[1]))
    assert r.admin("GET", "status")[1]["pid"] == r.proc.pid
    assert r.request().status == 200


@pytest.mark.tsan
def test_idle_clients_are_told_before_they_are_closed(router, worker):
    """A kept connection, and one that has sent nothing yet, have their next request answered by the
    old process, which says close; none is cut."""
    r = router([worker("w0")])
    kept, fresh = r.connect(), r.connect()
    kept.send(make_request(body=STREAM))
    m = kept.read_response("POST")
    assert m.status == 200 and m.get("connection") != "close"
    wait_until(lambda: r.admin("GET", "status")[1]["counters"]["connections"] == 2, "both are accepted")
    old = r.proc
    assert r.upgrade()[0] == 200
    for c in (kept, fresh):
        c.send(make_request(body=STREAM))
        m = c.read_response("POST")
        assert m.status == 200 and m.get("connection") == "close"
        assert c.at_eof()
        c.close()
    assert old.wait(harness.DEADLINE) == 0


def test_a_stream_that_began_before_keeps_its_connection(router, worker):
    """Its head promised keep-alive: after its end the connection takes one more request."""
    stream = Stream()
    r = router([worker("w0", stream)])
    c = begin_stream(r)
    old = r.proc
    assert r.upgrade()[0] == 200
    stream.go.set()
    assert c.read_chunk() == b"data: second\n\n" and c.read_chunk() == b""
    c.send(make_request(body={"model": "m", "messages": []}))
    m = c.read_response("POST")
    assert m.status == 200 and m.get("connection") == "close"
    assert c.at_eof()
    c.close()
    assert old.wait(harness.DEADLINE) == 0


def test_a_broken_configuration_is_told_and_the_old_process_carries_on(router, worker):
    w = worker("w0")
    r = router([w], allow_errors=["upgrade failed"])
    r.write_conf(worker_conf([w], "policy = magic\n"))
    pid = r.proc.pid
    status, answer = r.upgrade()
    assert status == 422 and answer["error"]["code"] == "upgrade_failed"
    assert "policy" in answer["error"]["message"] and r.conf_path in answer["error"]["message"], answer
    p = subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, "upgrade"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and "policy" in p.stderr, p
    assert r.admin("GET", "status")[1]["pid"] == pid
    assert r.request().status == 200
    r.wait_log("upgrade failed, this process carries on")
    r.write_conf(worker_conf([w]))
    assert r.upgrade()[0] == 200


@pytest.mark.parametrize("what", ["absent", "no program", "false", "an address in use"])
def test_a_program_that_cannot_serve(router, worker, binary, what):
    w = worker("w0")
    r = router([w], binary=binary, allow_errors=["upgrade failed", "cannot listen"])
    busy = socket.create_server(("127.0.0.1", 0))
    if what == "absent":
        os.unlink(binary)
        says = "No such file"
    elif what == "no program":
        replace(binary, "\x01\x02")
        says = "cannot be executed"
    elif what == "false":
        replace(binary, "#!/bin/sh\nexit 1\n")
        says = "ended before it was ready"
    else:
        r.router_keys = f"listen = 127.0.0.1:{busy.getsockname()[1]}\n"
        r.write_conf(worker_conf([w]))
        says = "cannot listen"
    with r.connect() as c:
        status, answer = r.upgrade()
        assert status == 422 and says in answer["error"]["message"], answer
        c.send(make_request(body=STREAM))
        assert c.read_response("POST").get("connection") != "close"
    assert r.request().status == 200
    if what == "an address in use":
        r.router_keys = ""
        r.write_conf(worker_conf([w]))
    else:
        os.path.exists(binary) and os.unlink(binary)
        shutil.copy(harness.program("kvsteerd"), binary)
    busy.close()
    assert r.upgrade()[0] == 200
    assert r.request().status == 200


def test_a_program_that_hangs_is_ended_at_the_deadline(router, worker, binary):
    r = router([worker("w0")], binary=binary, allow_errors=["upgrade failed"])
    replace(binary, "#!/bin/sh\necho hanging $$ >&2\nexec sleep 1000\n")
    answers = []
    t = threading.Thread(target=lambda: answers.append(subprocess.run(
        [harness.program("kvsteerctl"), "-s", r.admin_path, "upgrade"], capture_output=True, text=True, timeout=90)))
    t.start()
    pid = int(r.wait_log(r"hanging (\d+)").group(1))
    assert r.request().status == 200
    t.join()
    assert answers[0].returncode == 1 and "not ready within" in answers[0].stderr
    assert harness.Adopted(pid).wait() == -signal.SIGKILL
    assert r.request().status == 200


class SlowUpgrade:
    """An upgrade whose new process waits for a worker that does not answer its probe yet."""

    def __init__(self, r, w):
        self.r, self.w, self.answers = r, w, []
        self.probe = Hold(lambda x: x.answer(200, "{}"))
        w.healthy = self.probe
        self.thread = threading.Thread(target=lambda: self.answers.append(r.admin("POST", "upgrade")))
        self.thread.start()
        r.wait_log("upgrade: starting ")

    def release(self):
        self.w.healthy = True
        self.probe.release()

    def outcome(self):
        self.thread.join()
        if self.answers[0][0] == 200:
            self.r.follow(self.answers[0][1]["pid"])
        return self.answers[0]


SLOW = "health_timeout = 1h\n"


def processes_of(r):
    """Those that run (zombies do not) with its configuration."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                words = f.read().split("\0")
        except OSError:
            continue
        if r.conf_path in words and "kvsteerd" in words[0]:
            found.append(int(pid))
    return found


@pytest.mark.tsan
def test_nothing_is_taken_over_before_a_worker_is_up(router, worker):
    """A second upgrade and a reload are refused meanwhile, SIGHUP is done by the new process;
    requests go on."""
    w = worker("w0")
    r = router([w], pool=SLOW, allow_errors=["reload failed.*an upgrade is under way"])
    slow = SlowUpgrade(r, w)
    status, answer = r.admin("POST", "upgrade")
    assert status == 409 and "under way" in answer["error"]["message"]
    status, answer = r.admin("POST", "reload")
    assert status == 422 and "under way" in answer["errors"][0]["message"]
    assert r.request().status == 200
    r.write_conf(worker_conf([w], SLOW + "balance_abs_threshold = 7\n"))
    r.signal(signal.SIGHUP)
    r.wait_log("the reload waits for the upgrade")
    r.write_conf(worker_conf([w], SLOW + "balance_abs_threshold = 8\n"))
    assert r.admin("GET", "status")[1]["pid"] == r.proc.pid
    slow.release()
    assert slow.outcome()[0] == 200
    wait_until(lambda: "balance_abs_threshold = 8" in r.admin("GET", "config")[1]["config"], "the reload was not lost")
    assert r.request().status == 200


def test_without_any_worker_up_it_fails_and_a_reload_is_not_lost(router, worker):
    w = worker("w0")
    r = router([w], pool=SLOW, allow_errors=["upgrade failed", "no worker is up", "the running process cancelled"])
    slow = SlowUpgrade(r, w)
    r.signal(signal.SIGHUP)
    r.write_conf(worker_conf([w], SLOW + "balance_abs_threshold = 9\n"))
    status, answer = slow.outcome()
    assert status == 422 and "no worker is up" in answer["error"]["message"], answer
    slow.release()
    wait_until(lambda: "balance_abs_threshold = 9" in r.admin("GET", "config")[1]["config"], "the reload was not lost")
    assert r.request().status == 200


@pytest.mark.tsan
def test_sigterm_while_an_upgrade_is_under_way(router, worker):
    """The old process stops, and no other is left behind."""
    w = worker("w0")
    r = router([w], pool=SLOW, allow_errors=["upgrade failed", "the running process cancelled"])
    slow = SlowUpgrade(r, w)
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    slow.release()
    assert slow.outcome()[0] == 422
    wait_until(lambda: not processes_of(r), "nobody is left")


def test_the_new_process_killed_before_it_is_ready(router, worker):
    w = worker("w0")
    r = router([w], pool=SLOW, allow_errors=["upgrade failed"])
    slow = SlowUpgrade(r, w)
    wait_until(lambda: len(w.probes) > 1, "its probe came")
    new = [p for p in processes_of(r) if p != r.proc.pid]
    assert len(new) == 1
    os.kill(new[0], signal.SIGKILL)
    status, answer = slow.outcome()
    assert status == 422 and "ended before it was ready" in answer["error"]["message"]
    slow.release()
    assert r.request().status == 200


def test_workers_of_the_api_and_drained_ones_are_taken_over(router, worker):
    """Otherwise an upgrade would lose a fleet that was added by scripts; secrets travel too, and
    are not logged."""
    w0, w1, w2 = worker("w0"), worker("w1"), worker("w2")
    r = router([w0, w2], pool="policy = round_robin\n")
    status, answer = r.admin("POST", "workers", {"name": "w1", "url": w1.url, "max_requests": 7, "worker_key": "s3cret", "models": ["m", "n*"]})
    assert status == 201, answer
    r.wait_workers("w1")
    assert r.admin("POST", "workers/w2/drain")[0] == 202
    assert r.admin("POST", "pools/default/generation", {"set": 41})[0] == 200
    before = r.admin("GET", "config")[1]
    assert r.upgrade()[0] == 200
    told = {w["name"]: w for w in r.admin("GET", "workers")[1]["workers"]}
    assert set(told) == {"w0", "w1", "w2"}
    assert told["w1"]["origin"] == "api" and told["w1"]["max_requests"] == 7 and told["w1"]["state"] == "healthy"
    assert told["w2"]["state"] == "draining"
    assert r.admin("GET", "status")[1]["pools"][0]["generation"] == 41
    assert r.admin("GET", "config")[1] == before
    w1.clear()
    seen = {r.request().json()["worker"] for _ in range(4)}
    assert seen == {"w0", "w1"}
    assert w1.requests[0].get("authorization") == "Bearer s3cret"
    assert "s3cret" not in r.log()
    assert r.admin("POST", "workers/w2/undrain")[0] == 202
    r.wait_workers("w2")


def test_c11_ranks_that_the_api_added_are_taken_over(router, worker):
    w = worker("n1")
    r = router([worker("w0")])
    status, told = r.admin("POST", "workers", {"name": "n1", "url": w.url, "dp_size": 2, "dp_start_rank": 4})
    assert status == 201 and [x["name"] for x in told["ranks"]] == ["n1@4", "n1@5"]
    r.wait_workers("n1@5")
    assert r.upgrade()[0] == 200
    assert [w["name"] for w in r.admin("GET", "workers")[1]["workers"]] == ["w0", "n1@4", "n1@5"]


@pytest.mark.parametrize("threads", [(4, 1), (1, 3)])
def test_another_number_of_threads_serves_every_queue(router, worker, threads):
    w = worker("w0")
    r = router([w], keys=f"threads = {threads[0]}\n")
    r.router_keys = f"threads = {threads[1]}\n"
    r.write_conf(worker_conf([w]))
    assert r.upgrade()[0] == 200
    assert r.admin("GET", "status")[1]["threads"] == threads[1]
    r.wait_former()
    wires = [r.connect() for _ in range(64)]
    for c in wires:
        c.send(make_request(body=STREAM))
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()


def test_listeners_come_and_go_with_an_upgrade(router, worker):
    w = worker("w0")
    r = router([w], keys="listen = 127.0.0.2:0\n")
    went = int(r.wait_log(r"listening on http://127\.0\.0\.2:(\d+)").group(1))
    r.router_keys = "listen = 127.0.0.3:0\n"
    r.write_conf(worker_conf([w]))
    assert r.upgrade()[0] == 200
    came = int(r.wait_log(r"listening on http://127\.0\.0\.3:(\d+)").group(1))
    with Wire(socket.create_connection(("127.0.0.3", came), harness.DEADLINE)) as c:
        c.send(make_request(body=STREAM))
        assert c.read_response("POST").status == 200

    def refused():
        try:
            socket.create_connection(("127.0.0.2", went), 1).close()
        except OSError:
            return True
        return False
    wait_until(refused, "nobody listens there")
    assert r.request().status == 200


def test_another_admin_socket_leaves_no_file_behind(router, worker):
    w = worker("w0")
    r = router([w])
    first = r.admin_path
    text = open(r.conf_path).read().replace(first, first + "2")
    with open(r.conf_path, "w") as f:
        f.write(text)
    assert r.upgrade()[0] == 200
    r.wait_former()
    assert not os.path.exists(first)
    r.admin_path = first + "2"
    assert stat.S_ISSOCK(os.stat(r.admin_path).st_mode)
    assert r.admin("GET", "status")[1]["pid"] == r.proc.pid


@pytest.mark.tsan
def test_a_stop_right_after_waits_for_the_old_process(router, worker):
    """With the main process a service manager ends all: so that one waits until the streams of its
    predecessor are through; idle clients do not hold it up."""
    stream = Stream()
    r = router([worker("w0", stream)], keys="drain_timeout = 1h\n")
    idle = r.connect()
    idle.send(make_request("GET", "/health"))
    assert idle.read_response("GET").status == 200
    c = begin_stream(r)
    old = r.proc
    assert r.upgrade()[0] == 200
    r.signal(signal.SIGTERM)
    assert idle.at_eof()
    r.wait_log("SIGTERM: stopping; draining")
    assert old.poll() is None and r.proc.poll() is None
    stream.go.set()
    end_stream(c)
    assert old.wait(harness.DEADLINE) == 0 and r.proc.wait(harness.DEADLINE) == 0
    idle.close()


def test_a_second_signal_cuts_the_old_process_too(router, worker):
    stream = Stream()
    r = router([worker("w0", stream)], keys="drain_timeout = 1h\n")
    c = begin_stream(r)
    old = r.proc
    assert r.upgrade()[0] == 200
    r.signal(signal.SIGTERM)
    r.wait_log("SIGTERM: stopping; draining")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0 and old.wait(harness.DEADLINE) == 0
    assert r.log().count("guards taken=1 dropped=1") == 1
    stream.go.set()
    c.close()


def test_the_old_process_told_to_stop(router, worker):
    """Its first SIGTERM closes idle clients, its second one cuts."""
    stream = Stream()
    r = router([worker("w0", stream)], keys="drain_timeout = 1h\n")
    idle = r.connect()
    idle.send(make_request("GET", "/health"))
    assert idle.read_response("GET").status == 200
    c = begin_stream(r)
    old = r.proc
    assert r.upgrade()[0] == 200
    old.send_signal(signal.SIGTERM)
    assert idle.at_eof() and old.poll() is None
    old.send_signal(signal.SIGTERM)
    assert old.wait(harness.DEADLINE) == 0
    stream.go.set()
    c.close()
    idle.close()
    assert r.request().status == 200


def test_a_command_line_without_a_file(router, worker, tmp_path):
    """Flags are given to the new process as they were; the program is found by its path."""
    w = worker("w0")
    r = harness.Router(tmp_path / "flags", args=["--worker-urls", w.url, "--port", "0", "--host", "127.0.0.1", "--metrics-listen", "127.0.0.1:0",
                                                 "--admin-socket", str(tmp_path / "flags" / "admin.sock")])
    try:
        r.wait_workers(w.netloc)
        for _ in range(2):
            assert r.upgrade()[0] == 200
            assert r.request().status == 200
    finally:
        r.stop()
