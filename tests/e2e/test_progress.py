"""Workers judged by what their answers do, not by what /health says: the two recorded incidents in
miniature, B12, trials, and what is no fault of a worker."""
import contextlib
import re
import threading
import time

import pytest
from engine_proc import Engine

import harness
from harness import Closed, Hold, answer_ok, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)


def conf_of(workers, pool, extra=""):
    return worker_conf(workers, pool, extra).replace("health_interval = 1s\n", "", 1)


@contextlib.contextmanager
def engines(n, *flags):
    made = []
    try:
        for i in range(n):
            e = Engine("--served-model-name", "m", *flags, faults=True)
            e.start()
            e.name = f"w{i}"
            made.append(e)
        yield made
        for e in made:
            e.clear_faults()
    finally:
        for e in made:
            e.stop()


class Crowd:
    """Clients that stream one small completion after the other; each whole and right, or it is
    told."""

    def __init__(self, r, clients, tokens=10):
        self.r, self.tokens = r, tokens
        self.done, self.wrong, self.lock = 0, [], threading.Lock()
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, i):
        n = 0
        while not self.is_over.is_set():
            n += 1
            body = {"model": "m", "prompt": f"client {i}, request {n}", "max_tokens": self.tokens, "stream": True, "ignore_eos": True}
            try:
                m = self.r.request(path="/v1/completions", body=body)
                what = "" if m.status == 200 and m.ended and m.body.count(b"data: ") >= self.tokens and m.body.endswith(b"data: [DONE]\n\n") else \
                    f"{m.status} {m.body[-300:]}"
            except (OSError, Closed) as e:
                what = repr(e)
            with self.lock:
                self.done += 1
                if what:
                    self.wrong.append(what)

    def serve(self, n):
        """Waits until n more were served."""
        target = self.done + n
        wait_until(lambda: self.done >= target, f"{n} more served", 3 * harness.DEADLINE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for t in self.threads:
            t.join(3 * harness.DEADLINE)
            assert not t.is_alive()


def trials(seconds):
    """How many there may be in so long a time: after 5 s, and each with twice the time of the one
    before between them."""
    n, due, gap = 0, 5, 10
    while due <= seconds:
        n, due, gap = n + 1, due + gap, 2 * gap
    return n


def requests_of(r, name):
    return r.metric("kvsteer_worker_requests_total", worker=name)


# ---- the two recorded incidents ----

def test_a6_wedged_engine_with_green_health(router):
    """One of four engines holds what it has in silence while /health is green: nothing new goes
    there, what it has is kept and ends well when it goes on, and it is used again by itself."""
    with engines(4, "--sim-decode-rate", "100") as es:
        r = router(conf=conf_of(es, "policy = least_requests\nstall_timeout = 2s\ndegraded_ratio = 0\nhealth_interval = 200ms\n"), wait=False)
        r.wait_workers(*[e.name for e in es])
        with Crowd(r, 8) as crowd:
            crowd.serve(20)
            es[0].fault(wedge=True)
            found = r.wait_log(r"worker w0 healthy -> stalled \(no byte for ([\d.]+) s with (\d+) in flight while peers progress\)")
            held = r.metric("kvsteer_worker_load", worker="w0")
            assert held >= int(found.group(2)) >= 1, "one may have come between the look and the verdict"
            assert float(found.group(1)) < 2 * 2
            before = requests_of(r, "w0")
            crowd.serve(30)
            assert requests_of(r, "w0") == before and r.metric("kvsteer_worker_load", worker="w0") == held
            assert r.worker_state("w0") == "stalled" and r.metric("kvsteer_worker_state", worker="w0", state="stalled") == 1
            told = r.admin("GET", "workers/w0")[1]
            assert told["silent_ms"] >= 2000 and told["reason"].startswith("no byte for")
            assert {c["worker"]: c["out_of_play"] for c in r.explain(CHAT)["candidates"]} == {"w0": "state", "w1": None, "w2": None, "w3": None}
            assert es[0].get("/health") and not crowd.wrong
            es[0].clear_faults()
            r.wait_log(r"worker w0 stalled -> healthy \(it answers again, [\d.]+ s after it was found stalled\)")
            wait_until(lambda: requests_of(r, "w0") > before, "w0 is used again")
        assert crowd.wrong == []
        assert len(re.findall(r"-> stalled", r.log())) == 1 and "unhealthy" not in r.log()


def test_a6_degraded_engine_that_would_attract_traffic(router):
    """It answers, at a hundredth of its peers' rate, and its clients give up, so that it has the
    fewest requests: under least_requests it gets no more than trials all the same; and it comes
    back.

    An event or none falls into a slice of half a second, 2 events/s at most: slow, as long as the
    peers have 10. They have 100, but on a busy machine fewer."""
    with engines(4, "--sim-decode-rate", "100") as es:
        r = router(conf=conf_of(es, "policy = least_requests\nstall_timeout = 60s\ndegraded_window = 5s\n"), wait=False)
        r.wait_workers(*[e.name for e in es])
        with Crowd(r, 8) as crowd:
            crowd.serve(10)
            begun = time.monotonic()
            es[3].fault(slow=100)
            wires = []
            for _ in range(8):  # clients of ours find it among the others
                c = r.connect()
                c.send(make_request(path="/v1/completions", body={"model": "m", "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}))
                wires.append(c)
            found = r.wait_log(r"worker w3 healthy -> degraded \(([\d.]+) events/s and stream for 5.0 s with \d+ in flight, median of its peers ([\d.]+)\)",
                               3 * harness.DEADLINE)
            assert float(found.group(1)) < 0.2 * float(found.group(2))
            for c in wires:
                c.close()
            before = requests_of(r, "w3")
            wait_until(lambda: r.metric("kvsteer_worker_load", worker="w3") == 0, "its clients gave up", 3 * harness.DEADLINE)
            crowd.serve(60)
            assert requests_of(r, "w3") <= before + trials(time.monotonic() - begun), "no more than its trials, 5, 10, 20 ... s apart"
            es[3].clear_faults()
            r.wait_log(r"worker w3 degraded -> healthy", 3 * harness.DEADLINE)
            before = requests_of(r, "w3")
            wait_until(lambda: requests_of(r, "w3") > before + 2, "w3 is used again")
        assert not [w for w in crowd.wrong if not w.startswith("200")], crowd.wrong


def test_a6_trials_into_a_wedge_cost_nothing(router):
    """The breaker of a wedged engine is half-open again and again: each trial is one client's
    request, which is answered by the other engine, whole, though no retry is allowed; and it is
    used again once it is well."""
    with engines(2, "--sim-decode-rate", "100") as es:
        pool = "policy = least_requests\nstall_timeout = 1s\ndegraded_ratio = 0\nhealth_interval = 200ms\ncb_failure_threshold = 2\ncb_success_threshold = 1\n"
        r = router(conf=conf_of(es, pool + "cb_timeout = 100ms\nretry_max_retries = 0\n"), keys="allow_pin = on\n", wait=False).wait_workers("w0", "w1")
        es[0].fault(answer=500, answer_left=2)
        for _ in range(2):
            assert r.request(path="/v1/completions", body={"model": "m", "prompt": "x"}, headers={"X-Kvsteer-Worker": "w0"}).status == 500
        es[0].fault(wedge=True)
        with Crowd(r, 4) as crowd:
            r.wait_log(r"worker w0: breaker open again for 0.1 s \(its trial failed: worker_timeout\)", 2 * harness.DEADLINE)
            crowd.serve(20)
            assert r.metric("kvsteer_retries_total", reason="worker_timeout") >= 1 and not crowd.wrong
            es[0].clear_faults()
            before = requests_of(r, "w0")
            wait_until(lambda: requests_of(r, "w0") > before + 5, "w0 is used again", 3 * harness.DEADLINE)
        assert crowd.wrong == []


# ---- B12 ----

@pytest.mark.parametrize("sends", ["nothing", "head"])
def test_b12_silence_behind_a_green_health(router, worker, sends):
    """(a) no head, (b) a head and no body: after the first requests nothing goes there; it recovers
    by itself, with what it held."""
    go = threading.Event()

    def wedge(x):
        if sends == "head":
            x.begin()
        go.wait(3 * harness.DEADLINE)
        if sends == "head":
            x.event("late")
            x.end()
        else:
            answer_ok(x)
    ws = [worker("w0"), worker("w1", wedge), worker("w2")]
    r = router(conf=conf_of(ws, "policy = least_requests\nstall_timeout = 500ms\nhealth_interval = 100ms\n"), keys="allow_pin = on\n", wait=False)
    r.wait_workers("w0", "w1", "w2")
    held = [r.connect() for _ in range(3)]
    for c in held:
        c.send(make_request(body=STREAM, headers={"X-Kvsteer-Worker": "w1"}))
    ws[1].wait_requests(3)
    wait_until(lambda: r.request(body=CHAT).status == 200 and r.worker_state("w1") == "stalled", "w1 stalled")
    before = len(ws[1].requests)
    for _ in range(50):
        assert r.request(body=CHAT).status == 200
    assert len(ws[1].requests) == before
    go.set()
    r.wait_workers("w1")
    for c in held:
        assert c.read_response("POST").status == 200
        c.close()
    wait_until(lambda: r.request(body=CHAT).status == 200 and len(ws[1].requests) > before, "w1 is used again")


def test_b12_an_idle_one_is_tried_once_and_comes_back(router, worker):
    """Its clients have left: one small request is tried after five seconds, and no large one; while
    that hangs, no other; when it is answered, all is well. One that hangs for stall_timeout costs
    its client nothing: w0 answers it."""
    ws = [worker("w0"), worker("w1", Hold())]
    r = router(conf=conf_of(ws, "policy = least_requests\nstall_timeout = 2s\nretry_max_retries = 0\nhealth_interval = 100ms\n"),
               keys="allow_pin = on\n", wait=False)
    r.wait_workers("w0", "w1")
    wires = [r.connect() for _ in range(2)]
    for c in wires:
        c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w1"}))
    ws[1].wait_requests(2)
    wait_until(lambda: r.request(body=CHAT).status == 200 and r.worker_state("w1") == "stalled", "w1 stalled")
    for c in wires:
        c.close()
    wait_until(lambda: r.metric("kvsteer_worker_load", worker="w1") == 0, "its client has left")
    big = dict(CHAT, messages=[{"role": "user", "content": "x" * 20000}])
    seen = len(ws[1].requests)
    small = []

    def is_tried():
        """One small request after the other, each answered by w0, but for the last."""
        assert r.request(body=big).status == 200
        if not small or len(ws[0].requests) > small[-1][1]:
            before = len(ws[0].requests)
            small.append((r.connect(), before))
            small[-1][0].send(make_request(body=CHAT, close=True))
            wait_until(lambda: len(ws[0].requests) > before or len(ws[1].requests) > seen, "it is somewhere")
        return len(ws[1].requests) > seen
    wait_until(is_tried, "a trial", 2 * harness.DEADLINE)
    assert len(ws[1].requests) == seen + 1 and len(ws[1].requests[-1].body) < 1000
    for _ in range(20):
        assert r.request(body=big).status == 200
        assert r.request(body=CHAT).status == 200
    assert len(ws[1].requests) == seen + 1, "one at a time"
    for c, _ in small:
        assert c.read_response("POST").status == 200
        c.close()
    r.wait_log(r"method=POST .*worker=w0 .*status=200 .*retries=1")
    assert r.metric("kvsteer_retries_total", reason="worker_timeout") == 1 and len(ws[1].requests) == seen + 1
    ws[1].handler.release()
    wait_until(lambda: r.request(body=CHAT).status == 200 and r.worker_state("w1") == "healthy", "the next trial, ten seconds later", 2 * harness.DEADLINE)


# ---- data-parallel ranks ----

class Ranks:
    """A handler of two ranks: what rank 0 is asked it answers, rank 1 holds until it is let go. And
    what /metrics counts meanwhile."""

    def __init__(self, counts):
        self.counts, self.hold, self.n = counts, Hold(), 0
        self.asked = threading.Semaphore(0)

    def __call__(self, x):
        if x.request.get("x-data-parallel-rank") == "1":
            return self.hold(x)
        return answer_ok(x)

    def probe(self, x):
        if not x.request.target.endswith("/metrics"):
            return x.answer(200)
        self.n += 1
        self.asked.release()
        return x.answer(200, "".join(f"vllm:generation_tokens_total{labels} {self.n}\n" for labels in self.counts), content_type="text/plain")

    def wait_probes(self, n):
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(n):
            assert self.asked.acquire(timeout=harness.DEADLINE)


def ranks(router, worker, counts, stall):
    handler = Ranks(counts)
    w = worker("gpu", handler)
    w.healthy = handler.probe
    pool = f"[pool default]\npolicy = round_robin\nhealth_interval = 50ms\nstall_timeout = {stall}\ndegraded_ratio = 0\n"
    r = router(conf=f"{pool}[worker gpu]\nurl = {w.url}\ndp_size = 2\n", keys="allow_pin = on\n", wait=False).wait_workers("gpu@0", "gpu@1")
    return r, w, handler


@pytest.mark.parametrize("counts", [[], [""], ['{engine="0"}']], ids=["no tokens", "tokens of all", "tokens of the other"])
def test_a_wedged_rank_beside_a_busy_one(router, worker, counts):
    """Bytes, completions and tokens of one rank say nothing of the other: it is stalled, it alone,
    behind the same green /health."""
    r, w, handler = ranks(router, worker, counts, "1s")
    held = r.connect()
    held.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "gpu@1"}))
    w.wait_requests(1)
    wait_until(lambda: r.request(body=CHAT, headers={"X-Kvsteer-Worker": "gpu@0"}).status == 200 and r.worker_state("gpu@1") == "stalled", "stalled")
    r.wait_log(r"worker gpu@1 healthy -> stalled \(no byte for [\d.]+ s with 1 in flight")
    seen = len(w.requests)
    for _ in range(10):
        assert r.request(body=CHAT).status == 200
    assert [m.get("x-data-parallel-rank") for m in list(w.requests)[seen:]] == ["0"] * 10
    assert r.worker_state("gpu@0") == "healthy" and r.metric("kvsteer_worker_load", worker="gpu@1") == 1
    handler.hold.release()
    assert held.read_response("POST").status == 200
    r.wait_workers("gpu@1")
    held.close()


def test_a_rank_whose_own_tokens_grow_computes(router, worker):
    """An answer that comes whole is silent before that; that rank's tokens say that it is being
    computed."""
    r, w, handler = ranks(router, worker, ['{engine="0"}', '{engine="1"}'], "2s")
    held = r.connect()
    held.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "gpu@1"}))
    w.wait_requests(1)
    for _ in range(10):
        assert r.request(body=CHAT, headers={"X-Kvsteer-Worker": "gpu@0"}).status == 200
        handler.wait_probes(10)  # five seconds in all, at least, and more than two stall_timeouts
    assert r.worker_state("gpu@1") == "healthy" and "stalled" not in r.log()
    handler.hold.release()
    assert held.read_response("POST").status == 200
    held.close()


# ---- what is no fault of a worker ----

def test_a_slow_client_is_no_stall(router, worker):
    """w0's client reads nothing of a large answer, w1's has not sent its body: neither is judged,
    though w2, which came last, is."""
    def flood(x):
        x.begin()
        with contextlib.suppress(Closed):
            for _ in range(4000):
                x.event("y" * 65536)
    ws = [worker("w0", flood), worker("w1"), worker("w2", Hold()), worker("w3")]
    pool = "policy = least_requests\nstall_timeout = 500ms\ndegraded_window = 1s\n"
    r = router(conf=conf_of(ws, pool), keys="allow_pin = on\nbody_timeout = 60s\n", wait=False).wait_workers("w0", "w1", "w2", "w3")

    def pinned(name, body, **more):
        c = r.connect()
        data = make_request(body=body, headers={"X-Kvsteer-Worker": name, "X-Kvsteer-Prefix": "128b;", **more})
        return c, data
    slow, data = pinned("w0", STREAM)
    slow.send(data)
    assert slow.read_head().status == 200
    wait_until(lambda: r.metric("kvsteer_worker_streams", worker="w0") == 1, "w0 streams")
    late, data = pinned("w1", dict(CHAT, messages=[{"role": "user", "content": "z" * 100000}]))
    late.send(data[:50000])
    wait_until(lambda: r.metric("kvsteer_worker_load", worker="w1") == 1, "w1 has the other")
    silent, data = pinned("w2", CHAT)
    silent.send(data)
    ws[2].wait_requests(1)
    other = threading.Event()

    def others():
        while not other.is_set():
            r.request(body=CHAT)
    t = threading.Thread(target=others, daemon=True)
    t.start()
    r.wait_workers("w2", state="stalled")
    other.set()
    t.join()
    assert [r.worker_state(n) for n in ("w0", "w1", "w3")] == ["healthy"] * 3, r.log()[-3000:]
    slow.close()
    late.close()
    ws[2].handler.release()
    assert silent.read_response("POST").status == 200
    silent.close()
    r.wait_workers("w2")
