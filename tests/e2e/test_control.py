"""The daemon around the data path: command line, probes, readiness, reload, drain, admin API,
kvsteerctl."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading

import pytest

import harness
from harness import Hold, Wire, free_port, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}

NEEDS_LOCALHOST = pytest.mark.skipif(not harness.has_localhost(), reason="localhost is no name here (no /etc/hosts)")


def run(name, *args, **kw):
    return subprocess.run([harness.program(name), *args], capture_output=True, text=True, timeout=60, **kw)


def fast_conf(workers, pool):
    """Workers probed as often as pool says: the harness's own interval must not stand there
    twice."""
    return worker_conf(workers, pool).replace("health_interval = 1s\n", "", 1)


# ---- command line ----

def test_version_help_and_usage():
    assert re.fullmatch(r"kvsteerd \S+\n", run("kvsteerd", "-V").stdout)
    help_text = run("kvsteerd", "-h")
    assert help_text.returncode == 0 and "--worker-urls" in help_text.stdout
    bad = run("kvsteerd", "--no-such-flag")
    assert bad.returncode == 2 and "--no-such-flag" in bad.stderr
    assert run("kvsteerctl", "-h").returncode == 0
    assert re.fullmatch(r"kvsteerctl \S+\n", run("kvsteerctl", "-V").stdout)


def test_check_and_print(tmp_path):
    good, bad = tmp_path / "good.conf", tmp_path / "bad.conf"
    good.write_text("[router]\nlisten = 127.0.0.1:0\nhash_secret = hush-hush\n[worker w]\nurl = http://127.0.0.1:1\n")
    bad.write_text("[router]\nlisten = 127.0.0.1:0\nthreads = many\n[worker w]\nurl = 8001\n")
    assert run("kvsteerd", "-t", "-c", str(good)).returncode == 0
    wrong = run("kvsteerd", "-t", "-c", str(bad))
    assert wrong.returncode == 1
    assert f"{bad}:3" in wrong.stderr and f"{bad}:5" in wrong.stderr, "all faults, each with its line"
    assert run("kvsteerd", "-c", str(bad)).returncode == 2
    printed = run("kvsteerd", "-T", "-c", str(good))
    assert printed.returncode == 0 and "listen = 127.0.0.1:0" in printed.stdout and "hush-hush" not in printed.stdout


@pytest.mark.parametrize("line", ["tls_cert = /c\ntls_key = /k", "client_ca = /ca"])
def test_keys_without_effect_are_refused(tmp_path, line):
    conf = tmp_path / "k.conf"
    conf.write_text(f"[router]\nlisten = 127.0.0.1:0\n{line}\n[worker w]\nurl = http://127.0.0.1:1\n")
    wrong = run("kvsteerd", "-t", "-c", str(conf))
    assert wrong.returncode == 1 and line.split()[0] in wrong.stderr


def test_start_fails_where_an_address_is_taken(tmp_path, router, worker):
    """SO_REUSEPORT would let a second daemon take half of the connections without a word."""
    r = router([worker("w0")])
    for key in ("listen", "metrics_listen", "admin_socket"):
        taken = {"listen": f"127.0.0.1:{r.port}", "metrics_listen": f"127.0.0.1:{r.metrics_port}", "admin_socket": r.admin_path}
        own = {"listen": "127.0.0.1:0", "metrics_listen": "none", "admin_socket": "none", key: taken[key]}
        conf = tmp_path / "second.conf"
        conf.write_text("[router]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) + "[worker w]\nurl = http://127.0.0.1:1\n")
        second = run("kvsteerd", "-c", str(conf))
        assert second.returncode == 1 and taken[key] in second.stderr, second.stderr
    assert r.chat(CHAT["messages"]).status == 200


def test_threads_share_a_port_and_balance(router, worker):
    w = worker("w0")
    r = router([w], keys="threads = 4\n")
    assert r.admin("GET", "status")[1]["threads"] == 4
    for i in range(40):
        assert r.chat([{"role": "user", "content": f"{i}"}]).status == 200
    assert len(w.requests) == 40


@NEEDS_LOCALHOST
def test_listens_on_ipv6_and_on_names(router, worker):
    w = worker("w0")
    r = router([w], keys="listen = [::1]:0\nlisten = localhost:0\n")
    listening = r.admin("GET", "status")[1]["listen"]
    assert any(a.startswith("[::1]:") for a in listening), listening
    port = int(next(a for a in listening if a.startswith("[::1]:")).rpartition(":")[2])
    with Wire(socket.create_connection(("::1", port), 10)) as c:
        c.send(make_request("GET", "/health", close=True))
        assert c.read_response().status == 200


# ---- health ----

def test_no_request_before_a_worker_is_healthy(router, worker):
    """B30: a worker that is still loading gets no traffic, and is used without a restart once it is
    up."""
    w = worker("w0")
    w.healthy = False
    r = router([w], pool="no_worker_wait = 0\n", wait=False)
    wait_until(lambda: len(w.probes) >= 2, "a starting worker is tried again and again")
    assert r.request("GET", "/health").status == 200
    ready = r.request("GET", "/readiness")
    assert ready.status == 503 and ready.json()["error"]["code"] == "no_worker"
    assert r.chat(CHAT["messages"]).status == 503
    assert w.requests == []
    w.healthy = True
    r.wait_workers("w0")
    assert r.request("GET", "/readiness").status == 200
    assert r.chat(CHAT["messages"]).status == 200
    r.wait_log(r"worker w0 starting -> healthy \(200 in \d+ ms\)")


def test_one_worker_down_breaks_nothing(router, worker):
    """B30 (a): the models of the others are listed, requests go to them."""
    w = worker("w1", models=("a", "b"))
    r = router([w], extra=f"[worker w0]\nurl = http://127.0.0.1:{free_port()}\n", wait=False)
    r.wait_workers("w1")
    models = r.request("GET", "/v1/models")
    assert [m["id"] for m in models.json()["data"]] == ["a", "b"]
    assert r.chat(CHAT["messages"]).status == 200
    assert r.worker_state("w0") == "starting"


@pytest.mark.tsan
def test_models_are_merged_without_doubles(router, worker):
    r = router([worker("w0", models=("m", "x")), worker("w1", models=("m", "y"))])
    ids = [m["id"] for m in r.request("GET", "/v1/models").json()["data"]]
    assert sorted(ids) == ["m", "x", "y"]


def test_down_and_up_again_with_reasons(router, worker):
    w = worker("w0", models=("gone",))
    r = router(conf=fast_conf([w], "health_interval = 50ms\nhealth_failures = 3\nhealth_successes = 2\nno_worker_wait = 0\n"), wait=False).wait_workers("w0")
    w.healthy = False
    r.wait_log(r"worker w0 suspect -> unhealthy \(status 503, 3rd failure\)")
    assert r.request("GET", "/v1/models").json()["data"] == []
    assert r.request("GET", "/readiness").status == 503
    assert r.chat(CHAT["messages"]).status == 200, "the only one there is, is the least bad"
    w.healthy = True
    r.wait_log(r"worker w0 unhealthy -> healthy")
    assert [m["id"] for m in r.request("GET", "/v1/models").json()["data"]] == ["gone"]
    assert r.metric("kvsteer_worker_state", worker="w0", state="healthy") == 1
    assert r.metric("kvsteer_worker_state", worker="w0", state="unhealthy") == 0


def test_refused_connections_make_a_worker_unhealthy(router, worker):
    w, other = worker("w0"), worker("w1")
    r = router(conf=fast_conf([w, other], "health_interval = 50ms\n"), wait=False).wait_workers("w0", "w1")
    w.stop()
    r.wait_log(r"worker w0 suspect -> unhealthy \(connection refused, 3rd failure\)")
    assert r.chat(CHAT["messages"]).status == 200


def test_redirects_are_not_followed_and_bodies_not_read(router, worker):
    """B58: W3 redirects, W4 answers 200 with an endless body, W5 closes without answering."""
    other = worker("other")

    def redirect(x):
        x.answer(302, "", fields=[("Location", other.url + "/health")])

    def endless(x):
        if not x.request.target.endswith("/health"):
            x.answer(404)
            return
        x.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            x.send(b"x" * 65536)

    def silent(x):
        x.wire.close()
        raise harness.Closed()

    w3, w4, w5 = worker("w3"), worker("w4"), worker("w5")
    w3.healthy, w4.healthy, w5.healthy = redirect, endless, silent
    r = router(conf=fast_conf([w3, w4, w5], "health_interval = 50ms\n"), wait=False)
    r.wait_workers("w4")
    wait_until(lambda: len(w3.probes) > 2 and len(w5.probes) > 2, "probes")
    assert r.worker_state("w3") == "starting" and r.worker_state("w5") == "starting"
    assert other.probes == []
    assert "302" in r.admin("GET", "workers/w3")[1]["reason"]


def test_probes_carry_the_workers_key_and_never_the_clients(router, worker):
    w = worker("w0")

    def guarded(x):
        if x.request.get("authorization") != "Bearer sesame":
            x.answer(401)
        else:
            x.answer(200, '{"data":[]}')
    w.healthy = guarded
    r = router(wait=False, conf=f"[worker w0]\nurl = {w.url}\nworker_key = sesame\nhealth_path = /alive?deep=1\n")
    # The harness answers /health itself; any other path reaches the handler.
    w.handler = guarded
    r.wait_workers("w0")
    r.chat(CHAT["messages"], headers={"Authorization": "Bearer client"})
    for m in w.probes + [q for q in w.requests if q.method == "GET"]:
        assert m.get("authorization") == "Bearer sesame"
        assert m.get("host") == w.netloc
    assert any(m.target == "/alive?deep=1" for m in w.requests)
    assert "sesame" not in r.log()


def test_probes_and_base_path(router, worker):
    """B51: probes reach BASE/health, requests BASE/v1/..., without a double slash."""
    w, w6 = worker("w0", base="/team-a"), worker("w6", host="::1")
    r = router(conf=worker_conf([]) + f"[worker w0]\nurl = {w.url}/\n[worker w6]\nurl = {w6.url}\n", wait=False)
    r.wait_workers("w0", "w6")
    wait_until(lambda: {m.target for m in w.probes} >= {"/team-a/health", "/team-a/v1/models", "/team-a/metrics"}, "all three")
    assert all(m.target.startswith("/team-a/") for m in w.probes)
    assert r.admin("GET", "workers/w6")[1]["url"] == w6.url


@NEEDS_LOCALHOST
def test_names_are_resolved_and_probed_with_their_name(router, worker):
    w = worker("w0")
    r = router(conf=f"[worker w0]\nurl = http://localhost:{w.port}\n", wait=False)
    r.wait_workers("w0")
    assert all(m.get("host") == f"localhost:{w.port}" for m in w.probes)
    assert r.chat(CHAT["messages"]).status == 200


@NEEDS_LOCALHOST
def test_worker_cidrs_after_resolving(router, worker):
    w = worker("w0")
    r = router(conf=f"[worker in]\nurl = http://localhost:{w.port}\nworker_cidrs = 127.0.0.0/8\n"
                    f"[worker out]\nurl = http://127.0.0.1:{w.port}/b\nworker_cidrs = 10.0.0.0/8\n"
                    "[worker meta]\nurl = http://169.254.169.254\n", wait=False)
    r.wait_workers("in")
    r.wait_workers("out", "meta", state="unhealthy")
    assert "worker_cidrs" in r.admin("GET", "workers/out")[1]["reason"]
    assert all(not m.target.startswith("/b") for m in w.probes)


def test_streaming_bytes_veto_a_failed_probe(router, worker):
    """A worker too busy to answer probes in time, but with tokens on the way, stays in."""
    w = worker("w0", handler=Hold(lambda x: x.end()))
    begun = threading.Event()

    def stream(x):
        x.begin()
        begun.set()
        while not stop.is_set():
            x.event("tick")
            stop.wait(0.01)
        x.end()
    stop = threading.Event()
    w.handler = stream
    r = router(conf=fast_conf([w], "health_interval = 200ms\nhealth_failures = 2\n"), wait=False).wait_workers("w0")
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        begun.wait(10)
        w.healthy = False
        n = len(w.probes)
        wait_until(lambda: len(w.probes) >= n + 5, "five failed probes")
        assert r.worker_state("w0") == "healthy"
        w.healthy = True
        stop.set()
        assert c.read_response().status == 200


def test_restart_empties_what_the_worker_is_believed_to_hold(router, worker):
    w = worker("w0")
    w.metrics_text = ('vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n'
                      "process_start_time_seconds 1000.5\n")
    r = router(conf=fast_conf([w], "health_interval = 50ms\n"), wait=False).wait_workers("w0")
    assert r.chat(CHAT["messages"]).status == 200
    assert r.admin("GET", "workers/w0")[1]["blocks"] > 0
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    assert r.admin("GET", "workers/w0")[1]["blocks"] > 0, "a short trip forgets nothing"
    w.healthy = True
    r.wait_workers("w0")
    assert r.admin("GET", "workers/w0")[1]["blocks"] > 0, "the same process"
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    w.metrics_text = "process_start_time_seconds 2000.5\n"
    w.healthy = True
    r.wait_workers("w0")
    assert r.admin("GET", "workers/w0")[1]["blocks"] == 0
    r.wait_log("worker w0 was restarted")


def test_capacity_is_learned(router, worker):
    """64 tokens are two blocks of 128 bytes: of a longer prompt no more than that is kept."""
    w = worker("w0")
    w.metrics_text = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="4"} 1.0\n'
    r = router([w])
    wait_until(lambda: r.metric("kvsteer_worker_capacity_tokens", worker="w0") == 64, "learned")
    assert r.chat(CHAT["messages"]).status == 200
    assert r.admin("GET", "workers/w0")[1]["blocks"] <= 2


# ---- reload ----

def test_reload_adds_changes_and_removes(router, worker):
    w0, w1 = worker("w0", models=("zero",)), worker("w1", models=("one",))
    r = router([w0])
    assert r.chat(CHAT["messages"]).status == 200
    ok, answer = r.reload(worker_conf([w0, w1], "cache_threshold = 0.5\n"))
    assert ok, answer
    changes = {(c["section"], c["key"]) for c in answer["changes"]}
    assert changes == {("pool default", "cache_threshold"), ("worker w1", "(section)")}
    r.wait_workers("w1")
    kept = r.admin("GET", "workers/w0")[1]
    assert kept["blocks"] > 0 and kept["requests"] == 1 and kept["state"] == "healthy"
    ok, answer = r.reload(worker_conf([w1]))
    assert ok and r.admin("GET", "workers/w0")[0] == 404
    assert [m["id"] for m in r.request("GET", "/v1/models").json()["data"]] == ["one"]
    assert r.chat(CHAT["messages"]).status == 200 and len(w1.requests) == 1
    assert r.metric("kvsteer_reloads_total", result="ok") == 2


@pytest.mark.tsan
def test_reload_reaches_every_thread(router, worker):
    w = worker("w0")
    r = router([w], keys="threads = 3\n")
    r.router_keys = "threads = 3\nexpose_worker = on\n"
    assert r.reload(worker_conf([w]))[0]
    # What is asked after the answer came may meet a thread that has not read its mailbox yet, for a
    # moment.
    wait_until(lambda: all(r.request(body=CHAT).get("x-kvsteer-worker") == "w0" for _ in range(30)), "the header on every thread")


@pytest.mark.tsan
def test_reload_without_a_pool_ends_it(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    two = f"[pool a]\nmodels = m\n[pool b]\n[worker w0]\nurl = {w0.url}\npool = a\n[worker w1]\nurl = {w1.url}\npool = b\n"
    r = router(conf=two.replace("[pool b]\n", "[pool b]\nhealth_interval = 20ms\n"), wait=False).wait_workers("w0", "w1")
    assert r.request(body=dict(CHAT, model="other")).json()["worker"] == "w1"
    assert r.reload(f"[pool a]\n[worker w0]\nurl = {w0.url}\npool = a\nhealth_interval = 20ms\n")[0]
    wait_until(lambda: r.request(body=dict(CHAT, model="other")).json().get("worker") == "w0", "pool a takes all")

    def five_more():
        n0 = len(w0.probes)
        wait_until(lambda: len(w0.probes) >= n0 + 5, "probes of what is left")
        return len(w1.probes)
    n1 = five_more()  # those that were under way have come by now
    assert five_more() == n1, "no more probes of what is gone"
    assert [p["name"] for p in r.admin("GET", "status")[1]["pools"]] == ["a"]


def test_bad_reload_changes_nothing(router, worker):
    w = worker("w0")
    r = router([w], allow_errors=[r"reload failed"])
    ok, answer = r.reload(worker_conf([w], "policy = magic\n") + "[worker b]\nurl = nowhere\n")
    assert not ok and len(answer["errors"]) == 2
    first = answer["errors"][0]
    assert first["file"] == r.conf_path and first["line"] and first["key"] == "policy" and first["hint"]
    r.wait_log("reload failed")
    assert len(re.findall("reload failed", r.log())) == 1, "one line"
    assert r.chat(CHAT["messages"]).status == 200
    assert r.metric("kvsteer_reloads_total", result="failed") == 1


def test_reload_refuses_what_needs_a_restart(router, worker):
    w = worker("w0")
    r = router([w], allow_errors=[r"reload failed"])
    r.router_keys = "threads = 7\n"
    ok, answer = r.reload(worker_conf([w], "policy = random\n"))
    assert not ok and answer["errors"][0]["key"] == "threads"
    assert r.admin("GET", "status")[1]["pools"][0]["policy"] == "cache_aware"


@pytest.mark.tsan
def test_reload_of_listeners(router, worker):
    """Sockets that stay are kept, new ones open, others close; one that cannot open changes
    nothing."""
    w = worker("w0")
    r = router([w], allow_errors=[r"reload failed"])
    with r.connect() as kept:
        kept.send(make_request("GET", "/health"))
        assert kept.read_response().status == 200
        r.router_keys = "listen = 127.0.0.1:0\nlisten = [::1]:0\n"
        assert r.reload(worker_conf([w]))[0]
        port6 = int(r.wait_log(r"listening on http://\[::1\]:(\d+)").group(1))
        with Wire(socket.create_connection(("::1", port6), 10)) as c:
            c.send(make_request("GET", "/health", close=True))
            assert c.read_response().status == 200
        assert r.chat(CHAT["messages"]).status == 200
        with socket.socket() as blocker:
            blocker.bind(("127.0.0.1", 0))
            blocker.listen()
            taken = f"127.0.0.1:{blocker.getsockname()[1]}"
            r.router_keys = f"listen = {taken}\n"
            ok, answer = r.reload(worker_conf([w]))
            assert not ok and answer["errors"][0]["value"] == taken
        r.router_keys = ""
        assert r.reload(worker_conf([w]))[0]

        def refused():
            try:
                socket.create_connection(("::1", port6), 1).close()
            except ConnectionRefusedError:
                return True
            return False
        wait_until(refused, "the removed address refuses")
        kept.send(make_request("GET", "/health"))
        assert kept.read_response().status == 200


@pytest.mark.tsan
def test_no_request_fails_because_of_reloads(router, worker):
    ws = [worker("w0"), worker("w1"), worker("w2")]
    r = router(ws)
    bad, done = [], threading.Event()

    def client(n):
        with r.connect() as c:
            i = 0
            while not done.is_set():
                c.send(make_request(body=dict(CHAT, user=f"{n}-{i}")))
                m = c.read_response()
                if m.status != 200:
                    bad.append((m.status, m.body))
                i += 1
    threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for i in range(20):
        keep = ws[:2] if i % 2 else ws
        assert r.reload(worker_conf(keep, f"balance_abs_threshold = {10 + i}\n"))[0]
    done.set()
    for t in threads:
        t.join()
    assert bad == []


def test_removed_worker_finishes_what_it_has(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", handler=hold), worker("w1")
    r = router([w0])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        assert r.reload(worker_conf([w1]))[0]
        r.wait_workers("w1")
        hold.release()
        m = c.read_response()
        assert m.status == 200 and m.json()["worker"] == "w0"


def test_workers_of_the_api_survive_a_reload(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0])
    assert r.admin("POST", "workers", {"name": "w1", "url": w1.url})[0] == 201
    r.wait_workers("w1")
    assert r.reload()[0]
    assert r.worker_state("w1") == "healthy"
    assert r.admin("GET", "workers/w1")[1]["origin"] == "api"


def test_reload_applies_a_shorter_probe_interval_at_once(router, worker):
    w = worker("w0")
    r = router(conf=fast_conf([w], "health_interval = 1h\n"), wait=False).wait_workers("w0")
    # One more comes soon after it was starting.
    wait_until(lambda: sum(m.target == "/health" for m in w.probes) == 2, "the last quick probe")
    w.healthy = False
    assert r.reload(fast_conf([w], "health_interval = 20ms\n"))[0]
    r.wait_workers("w0", state="unhealthy")


def test_reload_gives_probes_the_new_key(router, worker):
    w = worker("w0")

    def guarded(x):
        x.answer(200 if x.request.get("authorization") == "Bearer new" else 401, "{}")
    w.healthy = guarded
    conf = fast_conf([], "health_interval = 50ms\n") + f"[worker w0]\nurl = {w.url}\nworker_key = "
    r = router(conf=conf + "old\n", wait=False)
    wait_until(lambda: "401" in r.admin("GET", "workers/w0")[1]["reason"], "the old key is refused")
    ok, answer = r.reload(conf + "new\n")
    assert ok and "old" not in json.dumps(answer) and "new" not in [c["now"] for c in answer["changes"]]
    r.wait_workers("w0")


def test_sighup_reloads(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0])
    r.write_conf(worker_conf([w0, w1]))
    r.signal(signal.SIGHUP)
    r.wait_log("reloaded: 1 change\n")
    r.wait_workers("w1")


# ---- the end ----

@pytest.mark.tsan
def test_sigterm_finishes_what_is_in_flight(router, worker):
    """B25: streams finish, idle connections close, nothing new is accepted, exit 0."""
    hold = Hold(lambda x: (x.event("two"), x.end()))
    first = threading.Event()

    def stream(x):
        x.begin()
        x.event("one")
        first.set()
        hold(x)
    w = worker("w0", handler=stream)
    r = router([w])
    with r.connect() as idle, r.connect() as c, r.connect() as late:
        late.send("GET /readiness HTTP/1.1\r\nHost: x\r\n")
        idle.send(make_request("GET", "/readiness"))
        assert idle.read_response().status == 200
        c.send(make_request(body=dict(CHAT, stream=True)))
        w.wait_requests(1)
        first.wait(10)
        r.wait_in_flight(2)
        r.signal(signal.SIGTERM)
        r.wait_log("draining, 2 requests in flight")
        assert idle.at_eof()
        late.send("\r\n")
        m = late.read_response()
        assert m.status == 503 and m.json()["error"]["code"] == "draining" and m.get("connection") == "close"
        assert late.at_eof()

        m = r.request("GET", "/readiness")
        assert m.status == 503 and m.json()["error"]["code"] == "draining" and m.get("connection") == "close"
        assert r.request("GET", "/health").status == 200
        assert r.admin("GET", "status")[1]["state"] == "draining"
        assert r.reload()[0] is False
        r.allow_errors.append("reload failed")
        hold.release()
        m = c.read_response()
        assert m.ended and b"two" in m.body
        assert c.at_eof()
    assert r.proc.wait(20) == 0
    assert re.search(r"guards taken=1 dropped=1", r.log())
    assert not os.path.exists(r.admin_path)


@pytest.mark.tsan
def test_second_signal_cuts(router, worker):
    w = worker("w0", handler=Hold())
    r = router([w])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w.wait_requests(1)
        r.signal(signal.SIGTERM)
        r.wait_log("draining")
        assert r.proc.poll() is None
        r.signal(signal.SIGINT)
        assert r.proc.wait(20) == 0
    assert re.search(r"guards taken=1 dropped=1", r.log())
    w.handler.release()


def test_drain_timeout_cuts(router, worker):
    w = worker("w0", handler=Hold())
    r = router([w], keys="drain_timeout = 100ms\n")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w.wait_requests(1)
        r.signal(signal.SIGTERM)
        assert r.proc.wait(20) == 0
    assert "drain_timeout: cutting 1 connections" in r.log()
    w.handler.release()


def test_usr1_opens_the_log_again(router, worker):
    r = router([worker("w0")])
    os.rename(r.log_path, r.log_path + ".1")
    r.signal(signal.SIGUSR1)
    wait_until(lambda: os.path.exists(r.log_path) and "log file opened again" in r.log(), "a new log file")
    with open(r.log_path + ".1") as f:
        assert "Sanitizer" not in f.read()


def test_notifies_the_service_manager(tmp_path, router, worker):
    path = str(tmp_path / "notify")
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(path)
    s.settimeout(20)
    r = router([worker("w0")], env={"NOTIFY_SOCKET": path})
    seen = []

    def until(text):
        while not any(text in m for m in seen):
            seen.append(s.recv(4096).decode())
    until("READY=1")
    until("STATUS=1 of 1 workers healthy")
    assert r.reload()[0]
    until("RELOADING=1")
    r.signal(signal.SIGTERM)
    until("STOPPING=1")
    assert r.proc.wait(20) == 0
    s.close()


def test_few_descriptors(router, worker):
    """B14 (b): the excess waits; the daemon stays up, is reached by its operator, and serves again
    when descriptors are free."""
    w = worker("w0")
    r = router([w], preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    most = r.admin("GET", "status")[1]["max_connections"]
    assert 0 < most < 128
    idle = [r.connect() for _ in range(200)]
    wait_until(lambda: r.admin("GET", "status")[1]["counters"]["connections"] >= most, "as many as may be")
    assert r.admin("GET", "status")[1]["counters"]["connections"] == most
    assert r.metrics()["kvsteer_accept_paused_total"] > 0
    assert r.fds() < 256
    for c in idle:
        c.close()
    for i in range(20):
        assert r.chat([{"role": "user", "content": f"{i}"}]).status == 200


def test_worker_that_comes_and_goes_leaves_nothing(router, worker):
    w = worker("w0")
    r = router([w])
    fds = None
    for i in range(30):
        assert r.admin("POST", "workers", {"name": "x", "url": f"http://127.0.0.1:{free_port()}"})[0] == 201
        assert r.admin("DELETE", "workers/x")[0] == 202
        assert r.admin("GET", "workers/x")[0] == 404
        if i == 5:
            fds = r.fds()
    wait_until(lambda: r.fds() <= fds + 2, "no descriptor is left over")


# ---- admin API ----

def test_admin_errors(router, worker):
    r = router([worker("w0")])
    for method, path, body, status in [
            ("GET", "nothing", None, 404), ("PUT", "status", None, 405), ("GET", "workers/none", None, 404),
            ("GET", "workers/w0/x", None, 404), ("POST", "workers/none/drain", None, 404), ("POST", "workers/w0/jump", None, 404),
            ("POST", "workers", "{", 400), ("POST", "workers", [], 400), ("POST", "workers", {"name": "a"}, 400),
            ("POST", "workers", {"name": "a", "url": "ftp://x"}, 400), ("POST", "workers", {"name": "a b", "url": "http://127.0.0.1:1"}, 400),
            ("POST", "workers", {"name": "a", "url": "http://127.0.0.1:1", "pool": "none"}, 400),
            ("POST", "workers", {"name": "a", "url": "http://127.0.0.1:1", "role": {"x": 1}}, 400),
            ("POST", "workers", {"name": "w0", "url": "http://127.0.0.1:1"}, 409),
            ("DELETE", "workers/w0?drain=soon", None, 400), ("POST", "log_level", {"level": "loud"}, 400), ("POST", "log_level", None, 400),
            ("POST", "pools/none/generation", None, 404), ("POST", "pools/default/generation", {"set": -1}, 400),
            ("POST", "pools/default/size", None, 404), ("POST", "explain?path=/health", "{}", 400), ("POST", "explain?path=/nope", "{}", 400)]:
        got, answer = r.admin(method, path, body)
        assert got == status, (method, path, body, got, answer)
        assert answer["error"]["message"] and answer["error"]["code"], (method, path)


def test_worker_added_by_the_api_is_used(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0], pool="policy = round_robin\n")
    status, made = r.admin("POST", "workers", {"name": "w1", "url": w1.url, "max_requests": 5, "models": ["m", "n*"]})
    assert status == 201 and made["max_requests"] == 5
    assert r.admin("POST", "workers", {"name": "w2", "url": w1.url})[0] == 409, "the same URL and role"
    r.wait_workers("w1")
    for _ in range(4):
        assert r.chat(CHAT["messages"]).status == 200
    assert len(w0.requests) == 2 and len(w1.requests) == 2


def test_drain_and_undrain(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0, w1], pool="policy = round_robin\n")
    assert r.admin("POST", "workers/w0/drain")[1]["state"] == "draining"
    for _ in range(4):
        assert r.chat(CHAT["messages"]).status == 200
    assert len(w0.requests) == 0
    assert r.admin("POST", "workers/w0/undrain")[1]["state"] == "healthy"
    for _ in range(4):
        assert r.chat(CHAT["messages"]).status == 200
    assert len(w0.requests) == 2


def test_delete_with_drain_waits_for_the_last_request(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", handler=hold), worker("w1")
    r = router([w0])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        assert r.admin("DELETE", "workers/w0?drain=1h")[0] == 202
        assert r.worker_state("w0") == "draining"
        hold.release()
        assert c.read_response().status == 200
    wait_until(lambda: r.admin("GET", "workers/w0")[0] == 404, "it goes after its last request")
    assert r.admin("POST", "workers", {"name": "w1", "url": w1.url})[0] == 201
    r.wait_workers("w1")


def test_undrain_cancels_a_removal(router, worker):
    hold = Hold()
    w0 = worker("w0", handler=hold)
    r = router([w0])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        assert r.admin("DELETE", "workers/w0?drain=1h")[0] == 202
        assert r.admin("POST", "workers/w0/undrain")[1]["state"] == "healthy"
        hold.release()
        assert c.read_response().status == 200
    # One that is removed the same way shows that the list was gone through.
    r.admin("POST", "workers", {"name": "other", "url": f"http://127.0.0.1:{free_port()}"})
    r.admin("DELETE", "workers/other?drain=1h")
    wait_until(lambda: r.worker_state("other") is None, "the other one removed")
    assert r.chat(CHAT["messages"]).status == 200


def test_explain_tells_what_the_next_pick_does_and_changes_nothing(router, worker):
    ws = [worker(f"w{i}") for i in range(3)]
    r = router(ws)
    for i in range(12):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{i % 4} " * 200}]}
        before = r.metric("kvsteer_guards_taken_total")
        told = r.explain(body)
        assert r.explain(body) == told, "explaining twice is explaining once"
        assert r.metric("kvsteer_guards_taken_total") == before
        assert r.request(body=body).json()["worker"] == told["chosen"]
    assert told["reason"] == "prefix_hit" and told["key"]["blocks"] > 0
    chosen = next(c for c in told["candidates"] if c["worker"] == told["chosen"])
    assert chosen["depth"] == told["key"]["blocks"] and chosen["terms"]["fraction"] == 1


def test_explain_names_why_a_worker_is_out(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0, w1])
    r.admin("POST", "workers/w0/drain")
    told = r.explain(CHAT)
    out = next(c for c in told["candidates"] if c["worker"] == "w0")
    assert out["state"] == "draining" and out["out_of_play"] == "state" and told["chosen"] == "w1"


def test_generation(router, worker):
    r = router([worker("w0"), worker("w1")])
    assert r.chat(CHAT["messages"]).status == 200
    assert r.explain(CHAT)["reason"] == "prefix_hit"
    assert r.admin("POST", "pools/default/generation")[1]["generation"] == 1
    assert r.explain(CHAT)["reason"] == "no_match"
    assert r.admin("POST", "pools/default/generation", {"set": 0})[1]["generation"] == 0
    assert r.explain(CHAT)["reason"] == "prefix_hit"


def test_metrics_are_well_formed(router, worker):
    r = router([worker("w0")])
    r.chat(CHAT["messages"])
    status, text = r.admin("GET", "metrics")
    assert status == 200
    seen, types = set(), {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is declared twice"
            types[name] = kind
            continue
        if line.startswith("#"):
            continue
        series, value = line.rsplit(" ", 1)
        float(value)
        assert series not in seen, f"{series} stands twice"
        seen.add(series)
        name = series.split("{")[0]
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in types or types.get(base) == "histogram", f"{name} has no TYPE"
        assert name.startswith("kvsteer_")
    for name in ("kvsteer_worker_load", "kvsteer_worker_state", "kvsteer_worker_progress_age_seconds", "kvsteer_route_decisions_total",
                 "kvsteer_prefix_blocks", "kvsteer_prefix_evictions_total", "kvsteer_upstream_failures_total", "kvsteer_reloads_total",
                 "kvsteer_build_info", "kvsteer_index_bytes"):
        assert name in types, name
    assert r.metric("kvsteer_route_decisions_total", policy="cache_aware") == 1


def test_admin_socket_has_the_configured_mode(router, worker):
    r = router([worker("w0")], keys="admin_socket_mode = 0600\n")
    assert os.stat(r.admin_path).st_mode & 0o777 == 0o600


# ---- kvsteerctl ----

def ctl(r, *args, **kw):
    return run("kvsteerctl", "-s", r.admin_path, *args, **kw)


def test_ctl_commands(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0])
    assert "w0" in ctl(r, "status").stdout
    assert json.loads(ctl(r, "status", "--json").stdout)["workers"][0]["name"] == "w0"
    assert ctl(r, "add", "w1", w1.url, "max_requests=7").returncode == 0
    r.wait_workers("w1")
    assert re.search(r"w1 +healthy", ctl(r, "workers").stdout)
    assert re.search(r"max_requests +7", ctl(r, "workers", "w1").stdout)
    assert ctl(r, "drain", "w1").returncode == 0 and r.worker_state("w1") == "draining"
    assert ctl(r, "undrain", "w1").returncode == 0 and r.worker_state("w1") == "healthy"
    assert ctl(r, "remove", "w1", "--drain", "5s").returncode == 0
    wait_until(lambda: r.worker_state("w1") is None, "w1 removed")
    told = ctl(r, "explain", "-", input=json.dumps(CHAT))
    assert re.search(r"chosen +w0", told.stdout), told
    assert ctl(r, "reload").stdout == "reloaded, nothing changed\n"
    assert ctl(r, "generation", "default").stdout == "1\n"
    assert ctl(r, "generation", "default", "5").stdout == "5\n"
    assert ctl(r, "log-level", "debug").returncode == 0
    assert "[worker w0]" in ctl(r, "config").stdout
    assert "kvsteer_guards_taken_total" in ctl(r, "metrics").stdout


def test_ctl_exit_codes(router, worker, tmp_path):
    r = router([worker("w0")], allow_errors=["reload failed"])
    assert ctl(r, "workers", "none").returncode == 1
    r.write_conf("[pool default]\npolicy = magic\n")
    failed = ctl(r, "reload")
    assert failed.returncode == 1 and f"{r.conf_path}:" in failed.stderr and "magic" in failed.stderr
    assert ctl(r).returncode == 2 and ctl(r, "juggle").returncode == 2 and ctl(r, "drain").returncode == 2
    assert ctl(r, "add", "x", "http://127.0.0.1:1", "nonsense").returncode == 2
    missing = run("kvsteerctl", "-s", str(tmp_path / "none.sock"), "status")
    assert missing.returncode == 3 and "none.sock" in missing.stderr
    dead = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(dead)
    assert run("kvsteerctl", "-s", dead, "status").returncode == 3


def test_the_admin_sockets_folder_is_made_when_it_is_missing(worker, tmp_path):
    """A daemon started by hand has no RuntimeDirectory: one folder is made, not a whole path."""
    w = worker("w0")
    path = tmp_path / "run" / "admin.sock"
    conf = f"[router]\nlisten = 127.0.0.1:0\nmetrics_listen = none\nadmin_socket = %s\n[worker w0]\nurl = {w.url}\n"
    (tmp_path / "a.conf").write_text(conf % path)
    p = subprocess.Popen([harness.program("kvsteerd"), "-c", str(tmp_path / "a.conf")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: run("kvsteerctl", "-s", str(path), "status").returncode == 0, "the admin socket answers")
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(harness.DEADLINE) == 0
    (tmp_path / "b.conf").write_text(conf % (tmp_path / "no" / "such" / "admin.sock"))
    failed = run("kvsteerd", "-c", str(tmp_path / "b.conf"))
    assert failed.returncode == 1 and "no/such/admin.sock" in failed.stderr and "choose another path" in failed.stderr
