"""Probes and what they make of a worker: suspicion before eviction, bytes as proof of life, slow
probes, start-up (B30), credentials and paths (B58), and that none of it ever touches a load (A3).
"""
import re
import threading
import time

from harness import Closed, Hold, free_port, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)


def conf_of(workers, pool, extra=""):
    return worker_conf(workers, pool, extra).replace("health_interval = 1s\n", "", 1)


def failing(w, n):
    """Waits for n more probes of /health."""
    seen = sum(p.target == "/health" for p in w.probes)
    wait_until(lambda: sum(p.target == "/health" for p in w.probes) >= seen + n, f"{n} probes")


# ---- suspicion ----

def test_suspect_until_the_next_good_probe_and_used_all_the_while(router, worker):
    w, left = worker("w0"), [0]

    def health(x):
        bad = x.request.target == "/health" and left[0] > 0
        left[0] -= bad
        x.answer(503 if bad else 200, "{}")
    w.healthy = health
    r = router(conf=conf_of([w], "health_interval = 100ms\nhealth_failures = 1000\n"), wait=False).wait_workers("w0")
    left[0] = 10 ** 6
    r.wait_log(r"worker w0 healthy -> suspect \(status 503, 1st failure\)")
    assert r.metric("kvsteer_worker_state", worker="w0", state="suspect") == 1
    assert r.request("GET", "/readiness").status == 200 and len(r.request("GET", "/v1/models").json()["data"]) == 0
    assert r.explain(CHAT)["candidates"][0]["out_of_play"] is None
    assert r.request(body=CHAT).status == 200
    failing(w, 3)
    assert r.worker_state("w0") == "suspect"
    left[0] = 0
    r.wait_log(r"worker w0 suspect -> healthy \(200 in \d+ ms\)")
    assert r.log().count("-> suspect") == 1


def test_one_failure_is_enough_where_one_is_asked_for(router, worker):
    w = worker("w0")
    r = router(conf=conf_of([w], "health_interval = 50ms\nhealth_failures = 1\n"), wait=False).wait_workers("w0")
    w.healthy = False
    r.wait_log(r"worker w0 healthy -> unhealthy \(status 503, 1st failure\)")
    assert "suspect" not in r.log()
    w.healthy = True
    r.wait_workers("w0")


def test_a_worker_that_never_came_up_is_told_once(router):
    """A dead port, and a name that nobody knows: a line each, with the reason."""
    extra = f"[worker dead]\nurl = http://127.0.0.1:{free_port()}\n[worker nobody]\nurl = http://no-such-host.invalid:8000\n"
    r = router(conf=conf_of([], "health_interval = 50ms\nhealth_failures = 2\n", extra), wait=False)
    r.wait_log(r"warn +worker dead: has not come up: .*refused.*, 2nd failure; probes go on")
    r.wait_log(r"warn +worker nobody: has not come up: its name cannot be resolved, 2nd failure; probes go on")
    wait_until(lambda: all(re.search(r"[5-9]th failure", w["reason"]) for w in r.admin("GET", "workers")[1]["workers"]), "further probes failed")
    assert r.log().count("has not come up") == 2


def test_b22_bytes_now_and_then_begin_the_count_anew(router, worker):
    """Every probe fails, and an event comes less often than they do: some count, but never
    health_failures of them in a row."""
    go = threading.Event()

    def drip(x):
        x.begin()
        while not go.wait(0.4):
            x.event("tick")
        x.end()
    w = worker("w0", drip)
    r = router(conf=conf_of([w], "health_interval = 300ms\nhealth_timeout = 300ms\nhealth_failures = 4\n"), wait=False).wait_workers("w0")
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        assert c.read_head().status == 200
        w.healthy = False
        failing(w, 12)
        assert r.worker_state("w0") in ("healthy", "suspect") and "unhealthy" not in r.log()
        w.healthy = True
        go.set()
        while c.read_chunk():
            pass
    r.wait_workers("w0")


def test_probes_as_slow_as_sglangs_are_good(router, worker):
    """/health takes more than a second, as one that waits for a step does: with the defaults
    nothing is wrong with it."""
    w = worker("w0")

    def slow(x):
        if x.request.target == "/health":
            time.sleep(1.2)  # what the worker does, not what the test waits for
        x.answer(200, "{}")
    w.healthy = slow
    r = router(conf=conf_of([w], "health_interval = 100ms\n"), wait=False).wait_workers("w0")
    failing(w, 3)
    assert r.worker_state("w0") == "healthy" and "suspect" not in r.log()


# ---- A3 ----

def test_a3_health_cycles_and_flaps_never_touch_a_load(router, worker):
    """Twelve times down and up, with requests in flight all the while: the counts stay what they
    are, and go to zero with the requests."""
    ws = [worker("w0", Hold()), worker("w1", Hold())]
    r = router(conf=conf_of(ws, "policy = least_requests\nhealth_interval = 20ms\nhealth_failures = 2\n"), wait=False).wait_workers("w0", "w1")
    wires = [r.connect() for _ in range(10)]
    for c in wires:
        c.send(make_request(body=CHAT))
    for w in ws:
        w.wait_requests(5)
    want = r.loads()
    assert sorted(want.values()) == [5, 5]
    for _ in range(12):
        ws[0].healthy = False
        r.wait_workers("w0", state="unhealthy")
        assert r.loads() == want
        ws[0].healthy = True
        r.wait_workers("w0")
        assert r.loads() == want
    for w in ws:
        w.handler.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()
    wait_until(lambda: not any(r.loads().values()), "loads are zero")


# ---- B30 ----

def test_b30_one_of_two_is_down(router, worker):
    """(a): nothing listens at the first URL."""
    w = worker("w1")
    conf = f"[pool default]\nhealth_interval = 50ms\n[worker w0]\nurl = http://127.0.0.1:{free_port()}\n[worker w1]\nurl = {w.url}\n"
    r = router(conf=conf, wait=False).wait_workers("w1")
    assert [m["id"] for m in r.request("GET", "/v1/models").json()["data"]] == ["m"]
    assert r.request(body=CHAT).status == 200
    assert r.worker_state("w0") == "starting" and r.request("GET", "/readiness").status == 200


def test_b30_a_worker_that_loads_gets_no_post(router, worker):
    """(b): it takes POSTs, but /health says 503: it gets none, not even as the last resort, until
    it says 200."""
    w, loading = worker("w0"), [True]
    w.healthy = lambda x: x.answer(503 if loading[0] else 200, "{}")
    r = router(conf=conf_of([w], "health_interval = 50ms\nno_worker_wait = 100ms\n"), wait=False)
    failing(w, 5)
    for _ in range(3):
        assert r.request(body=CHAT).status == 503
    assert w.requests == [] and r.worker_state("w0") == "starting"
    loading[0] = False
    r.wait_workers("w0")
    assert r.request(body=CHAT).status == 200


# ---- B58 ----

def test_b58_six_workers_at_once(router, worker):
    """One needs a key, one has another path, one says 503, one redirects, one answers with 100 MB,
    one closes without a word."""
    ws = [worker(f"w{i}") for i in range(6)]
    read = []

    def with_key(x):
        good = x.request.get("authorization") == "Bearer sesame"
        x.answer(200 if good else 401, "{}")

    def other_path(x):
        x.answer(404 if x.request.target == "/health" else 200, '{"data":[]}')

    def huge(x):
        if x.request.target != "/health":
            return x.answer(404)
        x.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        sent = 0
        try:
            while sent < 100000000:
                x.send(b"x" * 65536)
                sent += 65536
        except Closed:
            pass
        read.append(sent)
        raise Closed()

    def close(x):
        raise Closed()
    ws[0].healthy, ws[1].healthy, ws[2].healthy = with_key, other_path, False
    ws[3].healthy = lambda x: x.answer(302, fields=[("Location", "/moved")])
    ws[4].healthy, ws[5].healthy = huge, close
    conf = conf_of(ws, "health_interval = 100ms\nhealth_timeout = 1s\npolicy = round_robin\n")
    conf = conf.replace(f"url = {ws[0].url}\n", f"url = {ws[0].url}\nworker_key = sesame\n")
    conf = conf.replace(f"url = {ws[1].url}\n", f"url = {ws[1].url}\nhealth_path = /v1/models\n")
    r = router(conf=conf, wait=False).wait_workers("w0", "w1", "w4")
    wait_until(lambda: read, "the large body is given up")
    assert max(read) < 50000000, "read stops early"
    for i in (2, 3, 5):
        failing(ws[i], 2)
        assert r.worker_state(f"w{i}") == "starting"
    for _ in range(12):
        assert r.request(body=CHAT, headers={"Authorization": "Bearer client"}).status == 200
    assert [len(w.requests) > 0 for w in ws] == [True, True, False, False, True, False]
    assert not any(p.target == "/moved" for p in ws[3].probes)
    assert all(p.get("authorization") in (None, "Bearer sesame") for w in ws for p in w.probes)
