"""Circuit breakers: what counts and what never does (B13), trials and their place, first-byte
time-outs (B12), rest by Retry-After, all of them open."""
import email.utils
import hashlib
import itertools
import re
import threading
import time

import pytest

from harness import DEADLINE, Closed, Hold, answer_ok, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)
# No retries: what is sent to a worker is what comes back from it.
POOL = "policy = round_robin\nretry_max_retries = 0\ncb_timeout = 60s\n"


def failing(status):
    return lambda x: x.answer(status, '{"error":{}}')


def pinned(r, name, body=CHAT):
    return r.request(body=body, headers={"X-Kvsteer-Worker": name})


def breaker(r, name):
    return r.admin("GET", "workers/" + name)[1]["breaker"]


def state(r, name):
    return {0: "closed", 1: "half-open", 2: "open"}[r.metric("kvsteer_breaker_state", worker=name)]


def out_of_play(r):
    return {c["worker"]: c["out_of_play"] for c in r.explain(CHAT)["candidates"]}


# ---- B13 ----

def test_b13_fifty_client_mistakes_put_nobody_out(router, worker):
    """(a): 400s come back unchanged, and then ten good requests are served by both."""
    def judge(x):
        if b"TOO_LONG" in x.request.body:
            return x.answer(400, '{"error":{"message":"too long"}}')
        return answer_ok(x)
    ws = [worker("w0", judge), worker("w1", judge)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 3\n")
    bad = dict(CHAT, messages=[{"role": "user", "content": "TOO_LONG"}])
    for _ in range(50):
        m = r.request(body=bad)
        assert m.status == 400 and m.json() == {"error": {"message": "too long"}}
    assert [r.request(body=CHAT).status for _ in range(10)] == [200] * 10
    assert all(len(w.requests) == 30 for w in ws)
    assert state(r, "w0") == state(r, "w1") == "closed" and "breaker" not in r.log()


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_b13_a_4xx_between_failures_resets_nothing(router, worker, status):
    """(b): 500, 4xx, 500, 4xx: out after the usual number of 500s; said once, with figures."""
    n = [0]

    def alternate(x):
        n[0] += 1
        x.answer(500 if n[0] % 2 else status)
    ws = [worker("w0", alternate), worker("w1")]
    r = router(ws, pool=POOL + "cb_failure_threshold = 4\n", keys="allow_pin = on\n")
    assert [pinned(r, "w0").status for _ in range(7)] == [500, status, 500, status, 500, status, 500]
    r.wait_log(r"worker w0: breaker open for 60.0 s \(4 failures within 120.0 s, the last: status 500\)")
    assert state(r, "w0") == "open" and breaker(r, "w0")["wait_ms"] > 50000
    assert out_of_play(r) == {"w0": "breaker", "w1": None}
    assert [r.request(body=CHAT).status for _ in range(10)] == [200] * 10 and len(ws[0].requests) == 7
    r.wait_log("breaker open")
    assert r.log().count("breaker open") == 1 and r.worker_state("w0") == "healthy"


def open_breaker(r, w, n=2):
    w.handler = failing(500)
    for _ in range(n):
        assert pinned(r, w.name).status == 500
    r.wait_log(rf"worker {w.name}: breaker open for")


def half_open(r, w):
    """The worker's breaker opens, and its time passes."""
    open_breaker(r, w)
    wait_until(lambda: state(r, w.name) == "half-open", "half-open")


def test_b13_half_open_and_a_4xx(router, worker):
    """(c): a 400 neither closes nor opens it, and gives the place back: the next trials go, and
    close it."""
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=POOL.replace("60s", "300ms") + "cb_failure_threshold = 2\ncb_success_threshold = 2\n", keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = failing(400)
    assert [pinned(r, "w0").status for _ in range(5)] == [400] * 5
    assert state(r, "w0") == "half-open"
    ws[0].handler = answer_ok
    assert pinned(r, "w0").status == 200 and state(r, "w0") == "half-open"
    assert pinned(r, "w0").status == 200 and state(r, "w0") == "closed"
    r.wait_log(r"worker w0: breaker closed \(2 trials in a row succeeded\)")


# ---- trials ----

def test_one_trial_at_a_time_and_a_failed_one_opens_it_anew(router, worker):
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=POOL.replace("60s", "300ms") + "cb_failure_threshold = 2\n", keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = Hold(failing(503))
    with r.connect() as c:
        c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"}))
        ws[0].wait_requests(3)
        assert out_of_play(r)["w0"] == "breaker"
        for _ in range(10):
            assert r.request(body=CHAT).status == 200
        assert len(ws[0].requests) == 3
        ws[0].handler.release()
        assert c.read_response("POST").status == 503
    r.wait_log(r"worker w0: breaker open again for 0.3 s \(its trial failed: status 503\)")


def test_a_trial_whose_client_leaves_gives_its_place_back(router, worker):
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=POOL.replace("60s", "300ms") + "cb_failure_threshold = 2\ncb_success_threshold = 1\n", keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = Hold()
    c = r.connect()
    c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"}))
    ws[0].wait_requests(3)
    c.close()
    wait_until(lambda: out_of_play(r)["w0"] is None, "the place is free")
    assert state(r, "w0") == "half-open"
    ws[0].handler.release()
    ws[0].handler = answer_ok
    assert pinned(r, "w0").status == 200 and state(r, "w0") == "closed"


def wedge(sends):
    """A handler that hangs until it is let go: before its answer, or after the head of a stream,
    which engines send before they compute."""
    def end(x):
        if sends == "nothing":
            return answer_ok(x)
        x.event("late")
        return x.end()
    hold = Hold(end)

    def handler(x):
        if sends == "head":
            x.begin()
        hold(x)
    handler.release = hold.release
    return handler


HANGS = POOL.replace("60s", "300ms") + "cb_failure_threshold = 2\ncb_success_threshold = 1\nstall_timeout = 1s\ndegraded_ratio = 0\n"


@pytest.mark.parametrize("sends", ["nothing", "head"])
def test_a_trial_that_hangs_costs_its_client_nothing(router, worker, sends):
    """It waits for stall_timeout, not for first_byte_timeout: then it is cancelled, counts, and
    goes to another worker, though no retry is allowed."""
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=HANGS + "retry_budget = 0%\n", keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = wedge(sends)
    while len(ws[0].requests) < 3:
        assert r.request(body=STREAM).status == 200
    r.wait_log(r"worker w0: breaker open again for 0.3 s \(its trial failed: worker_timeout\)")
    assert r.metric("kvsteer_retries_total", reason="worker_timeout") == 1 and r.metric("kvsteer_retries_refused_total") == 0
    assert r.metric("kvsteer_upstream_failures_total", worker="w0", reason="worker_timeout") == 1
    r.wait_log(r"worker=w1 .*status=200 .*retries=1")
    ws[0].handler.release()
    ws[0].handler = answer_ok

    def is_back():
        assert r.request(body=CHAT).status == 200
        return state(r, "w0") == "closed" and r.worker_state("w0") == "healthy"
    wait_until(is_back, "w0 is back", 2 * DEADLINE)


@pytest.mark.parametrize("sends", ["nothing", "head"])
def test_a_trial_that_hangs_where_nobody_else_is(router, worker, sends):
    """It counts as well, and its client goes on waiting: its answer comes, late and whole."""
    ws = [worker("w0")]
    r = router(ws, pool=HANGS, keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = wedge(sends)
    with r.connect() as c:
        c.send(make_request(body=STREAM))
        r.wait_log(r"worker w0: breaker open again for 0.3 s \(its trial failed: worker_timeout\)")
        ws[0].handler.release()
        if sends == "head":  # which is held back
            assert c.read_head().status == 200
            assert c.read_chunk() == b"data: late\n\n" and c.read_chunk() == b""
        else:
            assert c.read_response("POST").status == 200
    assert len(ws[0].requests) == 3 and not ws[0].exchanges[2].gone.is_set()


def test_a_trial_whose_head_is_all_it_sends(router, worker):
    """The head of a stream waits for its first byte: when the worker breaks instead, another one
    answers."""
    def half(x):
        x.begin()
        x.wire.reset()
        raise Closed()
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=HANGS, keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = half
    while len(ws[0].requests) < 3:
        m = r.request(body=STREAM)
        assert m.status == 200 and m.json()["worker"] == "w1"
    r.wait_log(r"worker w0: breaker open again for 0.3 s \(its trial failed: worker_(broke|reset|protocol)\)")


def test_a_trial_that_hangs_with_a_body_that_is_gone(router, worker):
    """A long body that went on as it came cannot be sent again: the trial counts, and its client's
    answer comes, late, from the same worker."""
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=HANGS, keys="allow_pin = on\n")
    half_open(r, ws[0])
    ws[0].handler = Hold()
    long = dict(CHAT, messages=[{"role": "user", "content": "x" * (3 << 20)}])
    with r.connect() as a, r.connect() as b:
        for c in (a, b):  # one for each worker
            c.send(make_request(body=long))
        ws[0].wait_requests(3)
        r.wait_log(r"worker w0: breaker open again for 0.3 s \(its trial failed: worker_timeout\)")
        ws[0].handler.release()
        assert {c.read_response("POST").json()["worker"] for c in (a, b)} == {"w0", "w1"}
    assert len(ws[0].requests) == 3 and len(ws[1].requests) == 1


def test_a_trial_goes_on_while_its_engine_computes(router, worker):
    """An answer that comes whole is silent before that: as long as the engine's count of tokens
    grows, it is waited for."""
    ws = [worker("w0"), worker("w1")]
    asked = threading.Semaphore(0)
    tokens = itertools.count(1)

    def probe(x):
        if not x.request.target.endswith("/metrics"):
            return x.answer(200)
        asked.release()
        return x.answer(200, f"vllm:generation_tokens_total {next(tokens)}\n", content_type="text/plain")
    ws[0].healthy = probe
    conf = worker_conf(ws, HANGS.replace("stall_timeout = 1s", "stall_timeout = 2s")).replace("health_interval = 1s", "health_interval = 50ms")
    r = router(conf=conf, keys="allow_pin = on\n", wait=False).wait_workers("w0", "w1")
    half_open(r, ws[0])
    ws[0].handler = Hold()
    with r.connect() as a, r.connect() as b:
        for c in (a, b):  # one for each worker
            c.send(make_request(body=CHAT))
        ws[0].wait_requests(3)
        while asked.acquire(blocking=False):
            pass
        for _ in range(100):  # five seconds, at least, and more than two stall_timeouts
            assert asked.acquire(timeout=DEADLINE)
        ws[0].handler.release()
        assert {c.read_response("POST").json()["worker"] for c in (a, b)} == {"w0", "w1"}
    assert state(r, "w0") == "closed" and r.metric("kvsteer_retries_total", reason="worker_timeout") == 0


# ---- what counts ----

def cut_stream(x):
    x.begin()
    x.event("one")
    x.wire.reset()
    raise Closed()


def no_answer(x):
    x.wire.reset()
    raise Closed()


def garbage(x):
    x.send(b"HTTP/1.1 two hundred\r\n\r\n")
    raise Closed()


def half_a_stream(x):
    x.begin()
    x.event("one")
    return "close"


@pytest.mark.parametrize("fault", [cut_stream, no_answer, garbage, half_a_stream])
def test_broken_answers_count(router, worker, fault):
    ws = [worker("w0", fault), worker("w1")]
    r = router(ws, pool=POOL + "cb_failure_threshold = 3\n", keys="allow_pin = on\n")
    for _ in range(3):
        with r.connect() as c:
            c.send(make_request(body=STREAM, headers={"X-Kvsteer-Worker": "w0"}, close=True))
            try:
                c.read_response("POST")
            except Closed:
                pass
    r.wait_log(r"worker w0: breaker open for 60.0 s \(3 failures within 120.0 s, the last: worker_(reset|broke|protocol)\)")


def test_refused_connections_count(router, worker):
    ws = [worker("w0"), worker("w1")]
    r = router(conf=worker_conf(ws, POOL + "cb_failure_threshold = 3\n").replace("health_interval = 1s", "health_interval = 1h"), keys="allow_pin = on\n",
               wait=False).wait_workers("w0", "w1")
    ws[0].stop()
    assert pinned(r, "w0").status == 502
    assert breaker(r, "w0")["failures"] == 1
    assert pinned(r, "w0").status == 503, "nobody else pays for it"


def test_clients_that_leave_and_long_answers_that_are_cut_never_count(router, worker):
    hold = Hold(lambda x: None)

    def endless(x):
        x.begin()
        while not x.wait_gone(0.02):
            x.event("more")
        return "close"
    ws = [worker("w0", hold), worker("w1", endless)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 2\ntotal_timeout = 1s\n", keys="allow_pin = on\n")
    for i in range(6):
        c = r.connect()
        c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"}))
        ws[0].wait_requests(i + 1)
        c.close()
    wait_until(lambda: r.metric("kvsteer_worker_load", worker="w0") == 0, "all have left")
    hold.release()
    for _ in range(3):
        with r.connect() as c:
            c.send(make_request(body=STREAM, headers={"X-Kvsteer-Worker": "w1"}))
            m = c.read_head()
            c.read_body(m)
            assert m.status == 200 and not m.ended
    assert state(r, "w0") == state(r, "w1") == "closed" and "breaker" not in r.log()
    assert breaker(r, "w0")["failures"] == breaker(r, "w1")["failures"] == 0


def test_b12_first_byte_time_outs_open_it(router, worker):
    """After five in a row with no success it gets no more than a trial each cb_timeout, and is back
    within one when it is well."""
    hold = Hold()
    ws = [worker("w0"), worker("w2"), worker("w1", hold)]
    pool = "policy = least_requests\nstall_timeout = 0\ncb_failure_threshold = 5\ncb_timeout = 500ms\ncb_success_threshold = 1\nretry_max_retries = 0\n"
    short = "first_byte_timeout = 200ms\n"  # of w1 alone: the others may take their time
    r = router(ws, pool=pool, extra=short)
    statuses = []

    def is_open():
        statuses.append(r.request(body=CHAT).status)
        return "worker w1: breaker open for" in r.log()
    wait_until(is_open, "five time-outs")
    assert statuses.count(504) == 5
    ws[2].wait_requests(5)
    assert len(ws[2].requests) == 5
    r.wait_log(r"worker w1: breaker open for 0.5 s \(5 failures within 120.0 s, the last: worker_timeout\)")
    hold.release()
    ws[2].handler = answer_ok
    assert r.reload(worker_conf(ws, pool))[0]

    def is_back():
        assert r.request(body=CHAT).status == 200
        return state(r, "w1") == "closed"
    wait_until(is_back, "closed by a trial")


def test_disabled_it_never_opens(router, worker):
    w = worker("w0", failing(500))
    r = router(args=["--worker-urls", w.url, "--disable-circuit-breaker", "--disable-retries", "--port", "0", "--metrics-listen", "127.0.0.1:0", "--admin-socket",
                     "none", "--cb-failure-threshold", "1"], wait=False)
    wait_until(lambda: r.request("GET", "/readiness").status == 200, "ready")
    assert [r.request(body=CHAT).status for _ in range(30)] == [500] * 30
    assert r.metric("kvsteer_breaker_state") == 0 and "has no effect" not in r.log()


# ---- Retry-After ----

@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_gives_a_worker_rest(router, worker, status, form):
    value = "9" if form == "seconds" else email.utils.formatdate(time.time() + 9, usegmt=True)
    ws = [worker("w0", lambda x: x.answer(status, fields=[("Retry-After", value)])), worker("w1")]
    r = router(ws, pool=POOL, keys="allow_pin = on\n")
    m = pinned(r, "w0")
    assert m.status == status and m.get("retry-after") == value
    assert out_of_play(r) == {"w0": "paused", "w1": None}
    told = breaker(r, "w0")
    assert told["state"] == "closed" and 0 < told["paused_ms"] <= 9000
    assert told["failures"] == 0, "busy is no failure"
    assert 0 < r.metric("kvsteer_breaker_wait_seconds", worker="w0") <= 9
    for _ in range(10):
        assert r.request(body=CHAT).status == 200
    assert len(ws[0].requests) == 1
    r.wait_log(r"worker w0 answered \d+: no requests to it for [789]\.\d s")


@pytest.mark.parametrize("value, least, most", [("1000000", 1, 10000), ("0", 0, 0), ("-5", 0, 0), ("soon", 0, 0), ("Thu, 01 Jan 1970 00:00:01 GMT", 0, 0),
                                                ("99999999999999999999999999", 0, 0), ("", 0, 0), ("x" * 300, 0, 0)])
def test_retry_after_is_bounded_and_read_strictly(router, worker, value, least, most):
    ws = [worker("w0", lambda x: x.answer(429, fields=[("Retry-After", value)])), worker("w1")]
    r = router(ws, pool=POOL, keys="allow_pin = on\n")
    assert pinned(r, "w0").status == 429
    assert least <= breaker(r, "w0")["paused_ms"] <= most


def by_user(x):
    """A quota of one user: 429 for a minute; all others are served."""
    if b"GREEDY" in x.request.body:
        return x.answer(429, '{"error":{"message":"quota"}}', fields=[("Retry-After", "60")])
    return answer_ok(x)


GREEDY = dict(CHAT, messages=[{"role": "user", "content": "GREEDY"}])


def asked_by_greedy(ws):
    return sum(b"GREEDY" in q.body for w in ws for q in list(w.requests))


def test_c04_one_users_429_pauses_one_worker_and_is_tried_on_one_other(router, worker):
    ws = [worker(f"w{i}", by_user) for i in range(4)]
    r = router(ws, pool="policy = round_robin\ncb_timeout = 60s\n")
    m = r.request(body=GREEDY)
    assert m.status == 429 and m.get("retry-after") == "60"
    assert asked_by_greedy(ws) == 2
    assert list(out_of_play(r).values()).count("paused") == 1
    assert max(breaker(r, w.name)["paused_ms"] for w in ws) <= 10000
    assert [r.request(body=CHAT).status for _ in range(12)] == [200] * 12


def test_c04_all_paused_and_nobody_waits(router, worker):
    """One request for each worker pauses it; those of others are served at once, and that ends it."""
    ws = [worker(f"w{i}", by_user) for i in range(2)]
    r = router(ws, pool="policy = round_robin\nretry_max_retries = 0\nno_worker_wait = 3600s\n")
    for _ in ws:
        assert r.request(body=GREEDY).status == 429
    assert list(out_of_play(r).values()) == ["paused", "paused"]
    assert r.request(body=CHAT).status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="least_bad") == 1
    assert list(out_of_play(r).values()).count("paused") == 1
    served = [w for w in ws if any(b"GREEDY" not in q.body for q in list(w.requests))]
    assert [r.request(body=CHAT).status for _ in range(3)] == [200] * 3
    assert len([q for q in list(served[0].requests) if b"GREEDY" not in q.body]) == 4, "the paused one still rests"


def test_c04_a_single_worker_is_never_waited_for(router, worker):
    w = worker("w0", by_user)
    r = router([w], pool="no_worker_wait = 3600s\n")
    for _ in range(3):
        assert r.request(body=GREEDY).status == 429
        assert r.request(body=CHAT).status == 200
        assert breaker(r, "w0")["paused_ms"] == 0


# ---- whose fault it is (B2) ----

def poisoned(fault):
    """A handler that fails for one prompt, and serves all others."""
    return lambda x: fault(x) if b"POISON" in x.request.body else answer_ok(x)


POISON = dict(CHAT, messages=[{"role": "user", "content": "POISON"}])


def states(r, ws):
    return [state(r, w.name) for w in ws]


def test_b2_forty_500s_of_a_prompt_keep_nobody_out(router, worker):
    """Alone, each retried once: whatever their breakers are, nobody waits, and all workers serve."""
    ws = [worker(f"w{i}", poisoned(failing(500))) for i in range(4)]
    r = router(ws, pool="policy = round_robin\nno_worker_wait = 3600s\n")
    for _ in range(40):
        assert r.request(body=POISON).status == 500
    before = [len(w.requests) for w in ws]
    assert list(out_of_play(r).values()) == [None] * 4
    assert [r.request(body=CHAT).status for _ in range(40)] == [200] * 40
    assert all(len(w.requests) > n for w, n in zip(ws, before))


def test_b2_a_small_share_of_500s_opens_nothing(router, worker):
    ws = [worker(f"w{i}", poisoned(failing(500))) for i in range(2)]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 3\n")
    for _ in range(20):
        assert [r.request(body=CHAT).status for _ in range(10)] == [200] * 10
        assert r.request(body=POISON).status == 500
    assert states(r, ws) == ["closed"] * 2 and "breaker" not in r.log()
    assert all(breaker(r, w.name)["failures"] >= 10 for w in ws)


def test_b2_a_worker_that_resets_everything_is_out_after_the_threshold(router, worker):
    """Whatever it has done before."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 4\n")
    assert [r.request(body=CHAT).status for _ in range(400)] == [200] * 400
    ws[0].handler = no_answer
    before = len(ws[0].requests)
    assert [r.request(body=CHAT).status for _ in range(40)] == [200] * 40
    assert states(r, ws) == ["open", "closed"]
    assert len(ws[0].requests) - before <= 8  # a pooled connection that breaks is tried again
    r.wait_log(r"worker w0: breaker open for 60.0 s \(4 failures within")


def test_b2_at_most_half_are_kept_out_by_status(router, worker):
    """Two of four may be; of three more than half are, so the requests are at fault: all serve."""
    ws = [worker(f"w{i}", failing(500) if i < 3 else answer_ok) for i in range(4)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 3\n", keys="allow_pin = on\n")
    for w in ws[:2]:
        open_breaker(r, w, 3)
    assert list(out_of_play(r).values()) == ["breaker", "breaker", None, None]
    open_breaker(r, ws[2], 3)
    assert list(out_of_play(r).values()) == [None] * 4
    # resets are another matter
    ws[3].handler = no_answer
    for _ in range(3):
        pinned(r, "w3")
    assert out_of_play(r)["w3"] == "breaker"


def test_b2_one_tenant_opens_nothing_alone(router, worker, tmp_path):
    keys = tmp_path / "keys"
    lines = []
    for name in ("good", "bad"):
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n")
    keys.write_text("".join(lines))
    keys.chmod(0o600)
    ws = [worker(f"w{i}", poisoned(no_answer)) for i in range(2)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 3\n", keys=f"api_keys = {keys}\n")
    for _ in range(30):
        assert r.request(body=POISON, headers={"Authorization": "Bearer bad"}).status == 502
        assert [r.request(body=CHAT, headers={"Authorization": "Bearer good"}).status for _ in ws] == [200] * 2
    assert states(r, ws) == ["closed"] * 2 and "breaker" not in r.log()
    for _ in range(6):
        assert r.request(body=POISON, headers={"Authorization": "Bearer good"}).status == 502
    assert states(r, ws) == ["open"] * 2


BUSY = [(503, '{"error":{"message":"The request queue is full."}}', []), (503, '{"error":{"message":"Model is overloaded","type":"overloaded"}}', []),
        (503, '{"detail":"Too many requests"}', []), (503, "", [("Retry-After", "0")]), (429, "", []), (529, '{"type":"overloaded_error"}', []),
        (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', [])]


@pytest.mark.parametrize("status, body, fields", BUSY)
def test_busy_is_not_broken(router, worker, status, body, fields):
    w = worker("w0", lambda x: x.answer(status, body, fields=fields))
    r = router([w], pool=POOL + "cb_failure_threshold = 2\n")
    assert [r.request(body=CHAT).status for _ in range(10)] == [status] * 10
    assert state(r, "w0") == "closed" and breaker(r, "w0")["failures"] == 0


def test_a_503_that_says_nothing_of_load_counts(router, worker):
    w = worker("w0", lambda x: x.answer(503, '{"error":{"message":"CUDA error: device-side assert"}}'))
    r = router([w], pool=POOL + "cb_failure_threshold = 3\n")
    assert [r.request(body=CHAT).status for _ in range(3)] == [503] * 3
    assert state(r, "w0") == "open"


@pytest.mark.parametrize("policy", ["cache_aware", "prefix_affinity", "consistent_hash"])
def test_a_half_open_worker_gets_its_trial_while_prompts_are_warm_elsewhere(router, worker, policy):
    """All requests are of one conversation, whose home is the other worker: one goes to the trial, and
    the conversation stays where it was."""
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool=f"policy = {policy}\nretry_max_retries = 0\ncb_timeout = 300ms\ncb_failure_threshold = 2\ncb_success_threshold = 1\n",
               keys="allow_pin = on\n")
    chat = dict(CHAT, user="me", messages=[{"role": "user", "content": "a long story " * 100}])
    home = r.request(body=chat).json()["worker"]
    other = next(w for w in ws if w.name != home)
    half_open(r, other)
    other.handler = answer_ok
    before = len(other.requests)
    served = [r.request(body=chat).json()["worker"] for _ in range(6)]
    assert served[0] == other.name
    if policy != "cache_aware":  # to it, both are warm by now
        assert served[1:] == [home] * 5 and len(other.requests) == before + 1
    assert state(r, other.name) == "closed" and r.metric("kvsteer_route_decisions_total", reason="trial") == 1


def test_a_long_prompt_is_moved_for_a_trial_only_when_it_is_overdue(router, worker):
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool="policy = consistent_hash\nretry_max_retries = 0\ncb_timeout = 2s\ncb_failure_threshold = 2\ncb_success_threshold = 1\n",
               keys="allow_pin = on\n")
    chat = dict(CHAT, user="me", messages=[{"role": "user", "content": "a long story " * 1000}])
    home = r.request(body=chat).json()["worker"]
    other = next(w for w in ws if w.name != home)
    half_open(r, other)
    other.handler = answer_ok
    began = len(ws[0].requests) + len(ws[1].requests)
    assert r.request(body=chat).json()["worker"] == home
    wait_until(lambda: r.request(body=chat).json()["worker"] == other.name, "the trial is overdue")
    assert state(r, other.name) == "closed" and len(ws[0].requests) + len(ws[1].requests) > began + 1


@pytest.mark.parametrize("policy", ["least_requests", "power_of_two"])
def test_c05_a_worker_that_refuses_at_once_draws_no_load(router, worker, policy):
    """It serves another model, say, and seems idle: under load nearly all requests went there."""
    def slow(x):
        x.wait_gone(0.1)  # as long as an answer takes
        return answer_ok(x)
    ws = [worker("wrong", failing(404)), worker("w1", slow), worker("w2", slow)]
    r = router(ws, pool=f"policy = {policy}\nretry_on = none\n")
    stop = threading.Event()

    def client():
        while not stop.is_set():
            r.request(body=CHAT)
    threads = [threading.Thread(target=client) for _ in range(8)]
    for t in threads:
        t.start()
    try:
        r.wait_log(r"worker wrong: 100 % of its responses are 4xx, of its peers' 0 %; being fast brings it no load")
        told = r.admin("GET", "workers/wrong")[1]
        assert told["outlier"] == "4xx" and r.metric("kvsteer_worker_outlier", worker="wrong") == 1
        assert r.admin("GET", "workers/w1")[1]["outlier"] is None
        before = [len(w.requests) for w in ws]
        wait_until(lambda: sum(len(w.requests) for w in ws) >= sum(before) + 200, "200 requests more")
        since = [len(w.requests) - n for w, n in zip(ws, before)]
        assert since[0] < sum(since) / 2, since
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert r.log().count("being fast brings it no load") == 1


# ---- all open ----

def test_all_open_wait_then_the_least_bad(router, worker):
    """While every breaker is open requests wait, and are then tried all the same: never a 503 of
    ours while a worker is there."""
    ws = [worker("w0", no_answer), worker("w1", no_answer)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 2\nno_worker_wait = 200ms\n")
    for _ in range(4):
        assert r.request(body=CHAT).status == 502
    assert state(r, "w0") == state(r, "w1") == "open"
    for w in ws:
        w.handler = answer_ok
    assert r.request(body=CHAT).status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="least_bad") >= 1


def test_all_open_for_longer_than_anyone_waits_and_nobody_waits(router, worker):
    ws = [worker("w0", no_answer), worker("w1", no_answer)]
    r = router(ws, pool=POOL + "cb_failure_threshold = 2\nno_worker_wait = 50s\n")
    for _ in range(4):
        assert r.request(body=CHAT).status == 502
    for w in ws:
        w.handler = answer_ok
    assert r.request(body=CHAT).status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="least_bad") == 1


def test_a_503_says_that_all_are_draining(router, worker):
    r = router([worker("w0"), worker("w1")], pool="no_worker_wait = 0\n")
    for name in ("w0", "w1"):
        assert r.admin("POST", f"workers/{name}/drain")[0] == 202
    m = r.request(body=CHAT)
    assert m.status == 503 and m.json()["error"]["code"] == "no_worker" and m.get("retry-after")
    assert m.json()["error"]["message"] == "No worker is available. Pool default has 2 workers: 2 draining. kvsteerctl status says why."


def test_all_are_down_and_the_client_learns_of_which_pool_and_where_to_look(router, worker):
    """Before probes have noticed, and then as the least bad one is tried in vain."""
    ws = [worker("w0"), worker("w1")]
    r = router(ws, pool="no_worker_wait = 0\ncb_failure_threshold = 100\n")
    for w in ws:
        w.stop()
    m = r.request(body=CHAT)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_unreachable"
    assert re.fullmatch(r"No worker could be reached\. Pool default has 2 workers: .*1 tried in vain.*\. kvsteerctl status says why\.",
                        m.json()["error"]["message"])
    r.wait_workers("w0", "w1", state="unhealthy")
    m = r.request(body=CHAT)
    assert m.json()["error"]["message"] == "No worker could be reached. Pool default has 2 workers: 2 unhealthy. kvsteerctl status says why."


def test_a_503_says_what_is_with_the_workers(router, worker):
    """The pool, the role, and how many of its workers are out for what; of a pinned request, its own."""
    ws = [worker(f"w{i}", (lambda x: "close") if i == 0 else answer_ok) for i in range(3)]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 1\ncb_timeout = 1000s\nretry_on = none\nno_worker_wait = 0\n",
               keys="allow_pin = on\n")
    assert r.request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"}).status == 502
    pinned = r.request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"})
    assert pinned.status == 503 and 990 <= int(pinned.get("retry-after")) <= 1000
    assert pinned.json()["error"]["message"] == "No worker is available. Pool default has 1 worker: 1 kept out by its breaker. kvsteerctl status says why."
    r.admin("POST", "workers/w1/drain")
    pinned = r.request(body=CHAT, headers={"X-Kvsteer-Worker": "w1"})
    assert pinned.json()["error"]["message"] == "No worker is available. Pool default has 1 worker: 1 draining. kvsteerctl status says why."


def test_a_restarted_worker_begins_with_a_closed_breaker(router, worker):
    ws = [worker("w0"), worker("w1")]
    for w in ws:
        w.metrics_text = "process_start_time_seconds 1000.5\n"
    r = router(ws, pool=POOL + "cb_failure_threshold = 2\n", keys="allow_pin = on\n")
    # The second report is asked for when the first has been read: its start is known.
    wait_until(lambda: sum(p.target == "/metrics" for p in list(ws[0].probes)) >= 2, "a second report")
    open_breaker(r, ws[0])
    ws[0].handler = answer_ok
    ws[0].metrics_text = "process_start_time_seconds 2000.5\n"
    r.wait_log(r"worker w0 was restarted")
    assert state(r, "w0") == "closed" and pinned(r, "w0").status == 200
