"""SIGHUP while streams run: nothing that runs is hurt, counts of old and new workers never mix, and
a broken file changes nothing."""
import itertools
import os
import re
import signal
import socket
import threading

import pytest

import harness
from harness import Hold, Wire, make_request, wait_until, worker_conf

STREAM = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def stream_20(x):
    x.begin()
    for i in range(20):
        x.event(f"{x.worker.name} {i}")
        if i % 5 == 0:
            threading.Event().wait(0.001)  # so that streams overlap reloads
    x.end()


class Load:
    """Clients that ask for streams, one after another, on kept connections."""

    def __init__(self, r, n):
        self.r, self.done, self.failures, self.streams = r, threading.Event(), [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, n):
        with self.r.connect() as c:
            i = 0
            while not self.done.is_set():
                body = {"model": "m", "messages": [{"role": "user", "content": harness.text(1, n * 10 + i % 5)}], "stream": True}
                try:
                    c.send(make_request(body=body))
                    m = c.read_response("POST")
                    whole = m.status == 200 and m.ended and m.body.count(b"data: ") == 20
                    error = None if whole else (m.start, m.ended, m.body[-200:])
                except (harness.Closed, OSError) as e:
                    error = repr(e)
                with self.lock:
                    self.streams += 1
                    if error:
                        self.failures.append(error)
                if error:
                    return
                i += 1

    def stop(self):
        self.done.set()
        for t in self.threads:
            t.join()
        assert self.failures == [] and self.streams > 0


def sighup(r, result, n):
    """Sends SIGHUP and waits until n reloads ended that way."""
    r.signal(signal.SIGHUP)
    wait_until(lambda: r.metric("kvsteer_reloads_total", result=result) >= n, f"reload {n} {result}: {r.log()[-2000:]}")


@pytest.mark.tsan
def test_200_reloads_under_streaming_load(router, worker):
    """Workers come and go with each; every 20th file is broken. No request fails."""
    ws = [worker(f"w{i}", stream_20) for i in range(4)]
    r = router(ws, keys="threads = 4\naccess_log = off\n", allow_errors=["reload failed"])
    load = Load(r, 6)
    good, bad = 0, 0
    for i in itertools.count():
        if i >= 200 and load.streams >= 200:
            break
        if i % 20 == 19:
            r.write_conf(worker_conf(ws[:1], "policy = magic\n"))
            bad += 1
            sighup(r, "failed", bad)
            continue
        there = [w for j, w in enumerate(ws) if j == 0 or (i >> (j - 1)) & 1]
        r.write_conf(worker_conf(there, f"balance_abs_threshold = {i}\n" + ("policy = round_robin\n" if i % 7 == 3 else "")))
        good += 1
        sighup(r, "ok", good)
    load.stop()
    r.wait_idle()
    # what is left is what a daemon with the last file has
    assert {w["name"] for w in r.admin("GET", "workers")[1]["workers"]} == {w.name for w in there}
    fds = r.fds()
    for _ in range(20):
        good += 1
        r.write_conf(worker_conf(ws[:1 + good % 4]))
        sighup(r, "ok", good)
    r.write_conf(worker_conf(there))
    sighup(r, "ok", good + 1)
    r.wait_workers(*[w.name for w in there])
    wait_until(lambda: r.fds() <= fds + 4, f"descriptors: {fds} before, {r.fds()} after")


def test_broken_file_is_reported_and_changes_nothing(router, worker):
    w, other = worker("w0"), worker("w1")
    r = router([w], allow_errors=["reload failed"])
    before = r.admin("GET", "config")[1]
    good = worker_conf([w, other])
    for broken, key in [("policy = magic\n", "policy"), ("cache_treshold = 0.5\n", "cache_treshold"), ("prefix_ttl = 300\n", "prefix_ttl"),
                        ("health_interval = 0.5\n", "health_interval")]:
        r.write_conf(good.replace("[pool default]\nhealth_interval = 1s\n", "[pool default]\n" + broken))
        line = open(r.conf_path).read().split("\n").index(broken.strip()) + 1
        ok, answer = r.reload()
        assert not ok
        error = answer["errors"][0]
        assert (error["file"], error["line"], error["key"]) == (r.conf_path, line, key), answer
        assert error["message"] and error["hint"], error
        r.wait_log(rf"error .*reload failed, nothing changed: {re.escape(r.conf_path)}:{line}: {key}\b")
    r.write_conf(good + "[worker w0]\nurl = http://127.0.0.1:1\n")
    assert not r.reload()[0], "a section that stands twice"
    r.write_conf(good.replace("[worker w1]", "[worker w1"))
    assert not r.reload()[0]
    assert r.admin("GET", "config")[1] == before
    assert r.admin("GET", "workers/w1")[0] == 404
    assert r.request().status == 200
    assert r.reload(good)[0] and r.admin("GET", "workers/w1")[0] == 200


def test_missing_file_changes_nothing(router, worker):
    w = worker("w0")
    r = router([w], allow_errors=["reload failed"])
    os.unlink(r.conf_path)
    ok, answer = r.reload()
    assert not ok and answer["errors"][0]["file"] == r.conf_path
    assert r.request().status == 200


@pytest.mark.tsan
def test_counts_of_an_old_and_a_new_worker_never_mix(router, worker):
    """Removed and added again while its requests run: the new one starts at 0 and stays there when
    the old ones end."""
    hold = Hold()
    w, other = worker("w0", hold), worker("w1")
    r = router([w], pool="policy = least_requests\n")
    wires = [r.connect() for _ in range(3)]
    for c in wires:
        c.send(make_request(body=STREAM))
    w.wait_requests(3)
    assert r.admin("GET", "workers/w0")[1]["load"] == 3
    assert r.reload(worker_conf([other], "policy = least_requests\n"))[0]
    assert r.reload(worker_conf([w, other], "policy = least_requests\n"))[0]
    r.wait_workers("w0", "w1")
    assert r.admin("GET", "workers/w0")[1]["load"] == 0
    hold.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()
    r.wait_idle()
    assert r.admin("GET", "workers/w0")[1]["load"] == 0


def test_a_worker_that_moves_keeps_its_name_and_finishes_at_the_old_place(router, worker):
    hold = Hold()
    old, new = worker("w0", hold), worker("w0")
    r = router([old])
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        old.wait_requests(1)
        assert r.reload(worker_conf([new]))[0]
        r.wait_workers("w0")
        assert r.admin("GET", "workers/w0")[1]["url"] == new.url
        assert r.request().status == 200 and len(new.requests) == 1
        hold.release()
        assert c.read_response("POST").status == 200
    assert len(old.requests) == 1


def test_stream_through_a_removed_listener_is_finished(router, worker):
    """A listener is added by a reload and removed by the next one: its streams end well, its idle
    clients are not cut in an answer."""
    go = threading.Event()

    def stream(x):
        x.begin()
        x.event("first")
        go.wait(harness.DEADLINE)
        x.event("second")
        x.end()
    w = worker("w0", stream)
    r = router([w])
    r.router_keys = "listen = 127.0.0.2:0\n"
    assert r.reload(worker_conf([w]))[0]
    port = int(r.wait_log(r"listening on http://127\.0\.0\.2:(\d+)").group(1))
    with Wire(socket.create_connection(("127.0.0.2", port), harness.DEADLINE)) as c:
        c.send(make_request(body=STREAM))
        assert c.read_head().status == 200 and c.read_chunk() == b"data: first\n\n"
        r.router_keys = ""
        assert r.reload(worker_conf([w]))[0]

        def refused():
            try:
                socket.create_connection(("127.0.0.2", port), 1).close()
            except OSError:
                return True
            return False
        wait_until(refused, "the removed listener refuses")
        go.set()
        assert c.read_chunk() == b"data: second\n\n" and c.read_chunk() == b""
    assert r.request("GET", "/health").status == 200


def test_new_timeouts_are_for_new_requests(router, worker):
    """A request keeps the configuration that it began with."""
    w = worker("w0", Hold())
    r = router([w], pool="first_byte_timeout = 1h\n")
    with r.connect() as c, r.connect() as d:
        c.send(make_request(body=STREAM))
        w.wait_requests(1)
        assert r.reload(worker_conf([w], "first_byte_timeout = 100ms\n"))[0]
        d.send(make_request(body=STREAM))
        assert d.read_response("POST").status == 504
        w.handler.release()
        assert c.read_response("POST").status == 200


def test_reload_comes_while_the_last_one_is_still_asked_about(router, worker):
    """Ten SIGHUPs in a row, and the admin API in between: the last file holds in the end."""
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0])
    for i in range(10):
        r.write_conf(worker_conf([w0], f"balance_abs_threshold = {i + 1}\n"))
        r.signal(signal.SIGHUP)
        if i % 3 == 0:
            assert r.reload()[0]
    r.write_conf(worker_conf([w0, w1]))
    r.signal(signal.SIGHUP)
    r.wait_workers("w1")
    assert r.reload()[1]["changes"] == []


def test_the_log_says_what_changed_and_no_secret(router, worker):
    """One line for each change, the same as the answer's; a worker that stays keeps its counts."""
    w0, w1 = worker("w0"), worker("w1")
    first = f"[pool default]\nhealth_interval = 1s\n[worker w0]\nurl = {w0.url}\nworker_key = alpha-secret\n"
    r = router(conf=first)
    r.wait_workers("w0")
    assert r.request().status == 200
    second = f"[pool default]\nhealth_interval = 1s\npolicy = round_robin\n[worker w0]\nurl = {w0.url}\nworker_key = beta-secret\n[worker w1]\nurl = {w1.url}\n"
    status, answer = r.reload(second)
    assert status
    told = {(c["section"], c["key"]): (c["was"], c["now"]) for c in answer["changes"]}
    assert told == {("pool default", "policy"): ("cache_aware", "round_robin"), ("worker w0", "worker_key"): ("(set)", "(changed)"),
                    ("worker w1", "(section)"): ("absent", "present")}
    for (section, key), (was, now) in told.items():
        said = "added" if key == "(section)" else f"{key}: {was} -> {now}"
        line = rf"notice changed: \[{section}\] {re.escape(said)}\n"
        r.wait_log(line)
        assert len(re.findall(line, r.log())) == 1
    assert "-secret" not in r.log() and "-secret" not in str(answer)
    r.wait_workers("w1")
    assert r.admin("GET", "workers/w0")[1]["requests"] == 1
    r.write_conf(first)
    r.signal(signal.SIGHUP)
    r.wait_log(r"notice changed: \[worker w1\] removed")
    r.wait_log("notice reloaded: 3 changes")


def test_refused_changes_are_all_named(router, worker):
    """Keys that need a restart: each is an error of the answer with its value and a hint, and
    stands in the one line of the log."""
    w = worker("w0")
    r = router([w], keys="threads = 2\n", allow_errors=["reload failed"])
    r.router_keys = "threads = 3\nlog_format = json\n"
    refused = {"threads": "3", "log_format": "json"}
    ok, answer = r.reload(worker_conf([w], "policy = round_robin\n"))
    assert not ok
    errors = {e["key"]: e for e in answer["errors"]}
    if "log_format" not in errors:  # where that one is live
        refused.pop("log_format")
    assert set(errors) == set(refused)
    for key, value in refused.items():
        assert errors[key]["value"] == value and errors[key]["hint"] and "cannot change while the daemon runs" in errors[key]["message"]
    r.wait_log("reload failed")
    lines = [line for line in r.log().splitlines() if "reload failed" in line]
    assert len(lines) == 1 and all(key in lines[0] for key in refused), lines
    assert r.admin("GET", "status")[1]["pools"][0]["policy"] == "cache_aware", "nothing of it was taken"
