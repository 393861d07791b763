"""Load: how work spreads, what counts as load, and what routing costs. Cases B10, B28, B31, B33,
B56 of the bug log, rows A3 and C4 of the change requests."""
import os
import random
import threading
from collections import Counter

import pytest

import harness
from harness import DEADLINE, Hold, make_request, text, wait_until
from routing import OPEN, HoldMarked, chat, completion, dumps, held, in_parallel, place, send, served_by, user


def start(router, worker, n, handler=HoldMarked, keys="", **kw):
    ws = [worker(f"w{i}", handler()) for i in range(n)]
    return router(ws, keys=OPEN + keys, **kw), ws


def prompts(n, kib=2, seed=0):
    return [chat(user(text(kib, seed + i))) for i in range(n)]


def in_flight(r):
    return [int(v) for _, v in sorted(r.loads().items())]


def hold_all(r, bodies):
    """Sends each body on its own connection, all at once; the connections."""
    wires = [r.connect() for _ in bodies]
    in_parallel([lambda c=c, b=b: c.send(make_request(body=b)) for c, b in zip(wires, bodies)])
    return wires


def finish(wires, ws):
    for w in ws:
        w.handler.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()


# ---- B10: idle and cold fleets ----

@pytest.mark.parametrize("policy", ["cache_aware", "least_requests", "round_robin", "random"])
def test_b10a_an_idle_fleet_is_used_all_of_it(router, worker, policy):
    """Strictly one after another: every load is 0 at every pick (of one thread; two may overlap by
    a moment)."""
    r, ws = start(router, worker, 3, pool=f"policy = {policy}\n", keys="threads = 1\n")
    for body in prompts(60):
        served_by(r, body)
    shares = [len(w.requests) for w in ws]
    assert sum(shares) == 60
    if policy == "random":
        assert min(shares) >= 5, shares
    else:
        assert shares == [20, 20, 20]


@pytest.mark.tsan
def test_b10b_a_cold_fleet_takes_a_rush_evenly(router, worker):
    """Also over threads that know nothing of each other."""
    r, ws = start(router, worker, 3, Hold, keys="threads = 4\n")
    wires = hold_all(r, prompts(30))
    for w in ws:
        w.wait_requests(10)
    assert in_flight(r) == [10, 10, 10]
    finish(wires, ws)


# ---- B28: load counts from the choice of the worker ----

@pytest.mark.tsan
def test_b28_slow_prefill_counts(router, worker):
    r, ws = start(router, worker, 4, Hold)
    wires = hold_all(r, prompts(40, 100, 500))
    for w in ws:
        w.wait_requests(10)
    assert in_flight(r) == [10] * 4, "no answer byte came, yet they are all at work"
    finish(wires, ws)
    wait_until(lambda: in_flight(r) == [0] * 4, "and gone when answered")


@pytest.mark.tsan
def test_b28b_slow_uploads_count(router, worker):
    r, ws = start(router, worker, 4, Hold)
    whole = [make_request(body=b) for b in prompts(40, 20, 600)]
    wires = [r.connect() for _ in whole]
    for cut in (0.4, 0.8):
        for c, data in zip(wires, whole):
            c.send(data[int(len(data) * (cut - 0.4)):int(len(data) * cut)])
    assert max(in_flight(r)) - min(in_flight(r)) <= 4
    for c, data in zip(wires, whole):
        c.send(data[int(len(data) * 0.8):])
    for w in ws:
        w.wait_requests(10)
    assert in_flight(r) == [10] * 4
    finish(wires, ws)


# ---- B33: load is what is in flight now ----

def fresh(r, ws, n, seed):
    before = [len(w.requests) for w in ws]
    for body in prompts(n, 2, seed):
        served_by(r, body)
    return [len(w.requests) - b for w, b in zip(ws, before)]


@pytest.mark.parametrize("policy", ["cache_aware", "least_requests"])
def test_b33a_a_fast_worker_is_not_a_busy_one(router, worker, policy):
    """Six long requests here, dozens of finished ones there."""
    r, ws = start(router, worker, 2, pool=f"policy = {policy}\n")
    with held(r, ws[0], 6):
        for body in prompts(40, 1, 900):
            served_by(r, body, pin="w1")
        assert fresh(r, ws, 20, 100) == [0, 20]


def test_b33b_a_big_cache_is_no_load(router, worker):
    r, ws = start(router, worker, 2)
    for body in prompts(60, 4, 2000):
        served_by(r, body, pin="w1")
    with held(r, ws[0], 30):
        assert fresh(r, ws, 20, 100) == [0, 20]


def test_b33c_history_is_no_load(router, worker):
    r, ws = start(router, worker, 2, keys="threads = 1\n")
    for body in prompts(100, 1, 3000):
        served_by(r, body, pin="w0")
    shares = fresh(r, ws, 40, 100)
    assert shares == [20, 20]


def test_b33_a_worker_that_joins_is_not_flooded(router, worker):
    """Nor is it left out: what counts is now."""
    r, ws = start(router, worker, 2, keys="threads = 1\n")
    fresh(r, ws, 30, 100)
    w2 = worker("w2", HoldMarked())
    assert r.admin("POST", "workers", {"name": "w2", "url": w2.url})[0] == 201
    r.wait_workers("w2")
    shares = fresh(r, ws + [w2], 30, 400)
    assert max(shares) - min(shares) <= 2, shares


# ---- A3: honest load ----

def test_a3_health_cycles_never_change_a_load_counter(router, worker):
    """More than a dozen of them, healthy and not and healthy again, while requests are in
    flight."""
    fast = "health_interval = 20ms\nhealth_timeout = 20s\nhealth_failures = 2\nhealth_successes = 2\n"
    ws = [worker(f"w{i}", HoldMarked()) for i in range(2)]
    conf = "[pool default]\n" + fast + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws)
    r = router(conf=conf, keys=OPEN, wait=False, allow_errors=[r"w0"])
    r.wait_workers("w0", "w1")

    def watched_probes(n):
        until = len(ws[0].probes) + n
        while len(ws[0].probes) < until:
            assert in_flight(r) == [5, 0]
    with held(r, ws[0], 5):
        watched_probes(26)
        ws[0].healthy = False
        wait_until(lambda: r.worker_state("w0") == "unhealthy", "w0 unhealthy")
        watched_probes(6)
        assert in_flight(r) == [5, 0], "a failed probe cancels nothing"
        ws[0].healthy = True
        wait_until(lambda: r.worker_state("w0") == "healthy", "w0 healthy")
        watched_probes(6)
        assert fresh(r, ws, 4, 100) == [0, 4], "it is as busy as before"
    wait_until(lambda: in_flight(r) == [0, 0], "dropped as they end")
    assert r.metric("kvsteer_guards_taken_total") == r.metric("kvsteer_guards_dropped_total") == 9


@pytest.mark.tsan
def test_a3_load_falls_with_each_end_however_it_ends(router, worker):
    """Answered, broken off, refused by the worker, left by the client: one each, at once, and never
    below zero."""
    w = worker("w0", lambda x: x.request.get("x-end") and ENDS[x.request.get("x-end")](x))
    r = router([w], pool="retry_max_retries = 0\n", keys=OPEN, allow_errors=[r"w0"])
    for how in ENDS:
        open_now = threading.Event()
        ENDS_GATE[how] = open_now
        before = len(w.exchanges)
        c = r.connect()
        c.send(make_request(body=chat(user("x"), stream=True), headers={"X-End": how}))
        w.wait_requests(before + 1)
        wait_until(lambda: in_flight(r) == [1], f"{how}: counted")
        if how == "client":
            c.reset()
        open_now.set()
        wait_until(lambda: in_flight(r) == [0], f"{how}: dropped")
        c.close()


ENDS_GATE = {}


def _after_gate(act):
    def handler(x):
        ENDS_GATE[x.request.get("x-end")].wait(DEADLINE)
        return act(x)
    return handler


def _break_stream(x):
    x.begin()
    x.event("1")
    return "close"


ENDS = {
    "answer": _after_gate(harness.answer_ok),
    "stream": _after_gate(lambda x: (x.begin(), x.event("1"), x.end(), None)[3]),
    "broken": _after_gate(_break_stream),
    "silent": _after_gate(lambda x: "close"),
    "500": _after_gate(lambda x: x.answer(500, "{}")),
    "400": _after_gate(lambda x: x.answer(400, "{}")),
    "429": _after_gate(lambda x: x.answer(429, "{}")),
    "garbage": _after_gate(lambda x: x.send(b"\x16\x03\x01 what\r\n\r\n")),
    "client": _after_gate(lambda x: x.wait_gone()),
}


# ---- C4: one accept queue for each thread ----

def listening_sockets(port):
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f][1:]
    return sum(1 for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port)


@pytest.mark.tsan
def test_c4_threads_accept_from_queues_of_their_own(router, worker):
    """Each thread keeps its own connections to the workers: as many of those as threads, and each
    of them well used."""
    r, ws = start(router, worker, 1, keys="threads = 4\n", pool="upstream_idle = 10m\n")
    assert listening_sockets(r.port) == 4
    for _ in range(240):
        m = r.request(body=b"{}")
        assert m.status == 200
    by_thread = Counter(x.conn_no for x in ws[0].exchanges)
    assert len(by_thread) == 4 and min(by_thread.values()) >= 20, by_thread


# ---- B31: a bounded index ----

def rss_env():
    """Freed memory shows as freed under AddressSanitizer too."""
    return {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:allocator_release_to_os_interval_ms=100"}


def pipeline(r, bodies, path="/v1/completions"):
    """The bodies over one connection, one after another."""
    with r.connect() as c:
        for body in bodies:
            c.send(make_request("POST", path, body))
            assert c.read_response("POST").status == 200


def index_of(r):
    return r.admin("GET", "status")[1]["pools"][0]["index"]


@pytest.mark.tsan
def test_b31_memory_is_bounded_whatever_was_ever_seen(router, worker):
    """Unique prompts, then shared heads with random tails cut anywhere: dozens of times what the
    index holds."""
    bound = 512 * 1024
    r, ws = start(router, worker, 4, pool="index_memory = 512k\nprefix_block = 16\n", env=rss_env())
    rng = random.Random(31)
    base = text(64, 31)

    def unique(i):
        at = rng.randrange(len(base) // 2)
        return completion(f"{i:08d}{base[at:at + 16000]}")

    def check_bound():
        assert 0 < index_of(r)["bytes"] <= bound + 1024  # two roles without workers have their empty ones

    def rush(n):
        in_parallel([lambda k=k: pipeline(r, [unique(1000 * rng.randrange(10 ** 6) + k) for _ in range(n)]) for k in range(4)])
        for w in ws:
            w.clear()
        check_bound()
    rush(60)
    warm = r.rss_kib()
    for _ in range(4):
        rush(60)
    heads = [f"head{h:02d}" + text(8, 3100 + h) for h in range(50)]
    for _ in range(3):
        bodies = [completion(rng.choice(heads)[:rng.randrange(1, 8192)] + f"{rng.getrandbits(60):x}" + base[:rng.randrange(6000)])
                  for _ in range(200)]
        in_parallel([lambda k=k: pipeline(r, bodies[k::4]) for k in range(4)])
        for w in ws:
            w.clear()
        check_bound()
    assert r.rss_kib() <= warm * 1.2 + 4096, f"{warm} KiB when warm"
    assert r.metric("kvsteer_prefix_evictions_total", reason="memory") > 10000
    recent = [completion(f"recent{i:04d}" + base[:1024]) for i in range(100)]
    homes = [served_by(r, b, "/v1/completions") for b in recent]
    assert set(homes) == {"w0", "w1", "w2", "w3"}
    order = list(range(100))
    rng.shuffle(order)
    for i in order:
        name, matched, blocks = send(r, dict(recent[i], prompt=recent[i]["prompt"] + "and on"), "/v1/completions")
        assert name == homes[i] and matched >= blocks - 1, "the most recent ones still go home"


def test_b31_capacity_of_a_worker_bounds_what_it_is_believed_to_hold(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    conf = f"[pool default]\n[worker w0]\nurl = {w0.url}\ncapacity = 4096\n[worker w1]\nurl = {w1.url}\ncapacity = 0\n"
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("w0", "w1")
    first, last = completion(text(4, 1)), completion(text(4, 50))
    place(r, first, "w0", "/v1/completions")
    for i in range(2, 8):
        place(r, completion(text(4, i)), "w0", "/v1/completions")
    place(r, last, "w0", "/v1/completions")
    blocks = r.admin("GET", "workers/w0")[1]["blocks"]
    assert blocks == 4096 * 4 // 128
    told = [r.explain(b, "/v1/completions") for b in (first, last)]
    assert [max(c["depth"] for c in t["candidates"]) for t in told] == [0, 32], "the least recently used went"


# ---- B56: very long prompts ----

def cpu_seconds(r):
    with open(f"/proc/{r.proc.pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_history(k, kib, messages=120):
    """A long chat; all of them share all but the last message."""
    t = text(kib, 56)
    step = len(t) // messages
    history = [{"role": ("user", "assistant")[i % 2], "content": t[i * step:(i + 1) * step]} for i in range(messages)]
    return dumps(chat(*history, user(f"and {k}? " + text(4, k))))


def ids_prompt(n):
    r = random.Random(n)
    return dumps(completion([r.randrange(128000) for _ in range(n)]))


LONG = {
    "chats": lambda kib: ("/v1/chat/completions", shared_history(kib, kib)),
    "ids": lambda kib: ("/v1/completions", ids_prompt(kib * 128)),
    "escapes": lambda kib: ("/v1/completions", b'{"model":"m","prompt":"' + b"\\u00e9" * (kib * 170) + b'"}'),
    "messages": lambda kib: ("/v1/chat/completions", dumps(chat(*[user("ten bytes!")] * (kib * 24)))),
}


@pytest.mark.parametrize("kind", LONG)
def test_b56_cost_is_linear_in_length(router, worker, kind):
    """CPU, not time: eight times the bytes may cost eight times as much, twice over for a shared
    machine (a square would be 64 times)."""
    r, ws = start(router, worker, 2, keys="threads = 1\n")

    def cost(kib, times):
        path, body = LONG[kind](kib)
        before = cpu_seconds(r)
        first = send(r, body, path)
        for _ in range(times - 1):
            name, matched, blocks = send(r, body, path)
            assert name == first[0] and matched == blocks == first[2] > kib, "found again, to its end"
        for w in ws:
            assert all(m.body == body for m in w.requests)
            w.clear()
        return cpu_seconds(r) - before
    cost(64, 2)
    small, big = cost(256, 8), cost(2048, 8)
    assert big <= 16 * max(small, 0.08), f"{small} s for 256 KiB, {big} s for 2 MiB"


@pytest.mark.tsan
def test_b56_short_requests_pass_beside_long_ones(router, worker):
    """Everything is answered right while many megabytes of chats arrive, and all of them return to
    the head they share."""
    r, ws = start(router, worker, 3, keys="threads = 2\n")
    bodies = [shared_history(k, 1024) for k in range(8)]
    home = served_by(r, bodies[0])
    done = threading.Event()

    def long_chat(k):
        name, matched, blocks = send(r, bodies[k])
        assert name == home and matched > blocks * 0.9

    def short_ones():
        n = 0
        with r.connect() as c:
            while not done.is_set() or n < 20:
                c.send(make_request(body=chat(user("hi"))))
                assert c.read_response("POST").status == 200
                n += 1

    def long_ones():
        try:
            in_parallel([lambda k=k: long_chat(k) for k in range(8)])
        finally:
            done.set()
    in_parallel([long_ones, short_ones, short_ones])
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "what held the bodies is given back")
