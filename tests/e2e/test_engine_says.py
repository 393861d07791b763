"""What an engine says of itself outweighs what the wire shows: counters that grow in silence, states
of its own, the size of its cache, its ranks."""
import itertools
import threading
import time

import pytest

import harness
from harness import make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = dict(CHAT, stream=True)


def start(router, ws, pool="", keys="", extra=""):
    r = router(conf=worker_conf(ws, pool, extra).replace("health_interval = 1s\n", "", 1), keys=keys, wait=False)
    return r.wait_workers(*[w.name for w in ws])


def growing(step=60):
    """A page of metrics whose counter of tokens grows each time that it is read."""
    n = itertools.count(step, step)
    return lambda: f'vllm:generation_tokens_total{{engine="0"}} {next(n)}.0\nvllm:num_requests_running{{engine="0"}} 1.0\n'


def seen(w, path):
    return sum(p.target == path for p in w.probes)


# ---- silence ----

def test_c03_silence_is_waited_for_while_the_engine_computes(router, worker):
    """A tool parser holds back an argument: six times the idle limit, and the stream is whole."""
    w = worker("w0")

    def holds_back(x):
        x.events("first")
        before = seen(w, "/metrics")
        wait_until(lambda: seen(w, "/metrics") >= before + 4, "it is asked while it computes")
        x.event("late")
        x.end()
    w.handler = holds_back
    w.metrics_text = growing()
    r = start(router, [w], "health_interval = 1s\nstream_idle_timeout = 500ms\ncb_failure_threshold = 1\n")
    wait_until(lambda: seen(w, "/metrics") >= 2, "it was seen to compute")
    m = r.request(body=STREAM)
    assert m.ended and m.body == b"data: first\n\ndata: late\n\n"
    assert r.metric("kvsteer_breaker_state", worker="w0") == 0 and r.worker_state("w0") == "healthy"


@pytest.mark.parametrize("says", ["nothing", "no growth", "growth"])
def test_c03_what_is_cut_for_silence_is_not_charged(router, worker, says):
    """The idle limit without growth, first_byte_timeout with it; in no case does the breaker count."""
    w = worker("w0")

    def stops(x):
        x.events("0")
        return x.wait_gone() and "close"
    w.handler = stops
    w.metrics_text = {"nothing": None, "no growth": "vllm:generation_tokens_total 7\n", "growth": growing()}[says]
    limits = "stream_idle_timeout = 300ms\nfirst_byte_timeout = 2s\n" if says == "growth" else "stream_idle_timeout = 300ms\n"
    r = start(router, [w], limits + "health_interval = 500ms\nresume_streams = off\ncb_failure_threshold = 1\n")
    wait_until(lambda: seen(w, "/metrics") >= (1 if says == "nothing" else 3), "it was asked")
    m = r.request(body=STREAM)
    assert not m.ended and b'"code":"worker_timeout"' in m.body
    assert w.wait_requests(1).gone.wait(harness.DEADLINE)
    assert r.metric("kvsteer_breaker_state", worker="w0") == 0
    assert r.metric("kvsteer_upstream_failures_total", worker="w0", reason="worker_timeout") == 1


@pytest.mark.parametrize("running", [1, 100])
def test_c03_an_engine_that_makes_tokens_is_not_degraded(router, worker, running):
    """Its streams are silent, its counter grows as those of its peer, whose streams show it. Where it
    runs a hundred for others, a hundredth of its tokens counts."""
    go = threading.Event()

    def silent(x):
        x.events("first")
        go.wait(3 * harness.DEADLINE)
        x.end()

    def talks(x):
        x.events("first")
        for i in range(80 if running == 1 else 4000):
            x.event(str(i))
            if go.wait(0.05):
                break
        go.set()
        x.end()
    ws = [worker("w0", silent), worker("w1", talks)]
    for w, n in zip(ws, (running, 1)):
        w.metrics_text = lambda n=n: f"vllm:generation_tokens_total {int(time.monotonic() * 20)}\nvllm:num_requests_running {n}\n"
    r = start(router, ws, "policy = round_robin\nhealth_interval = 200ms\ndegraded_window = 1s\nstall_timeout = 60s\n")
    wires = [r.connect() for _ in ws]
    for c in wires:
        c.send(make_request(body=STREAM))
    if running > 1:
        r.wait_log("degraded")
        go.set()
    for c in wires:
        assert c.read_response("POST").ended
    assert ("degraded" in r.log()) == (running > 1)


# ---- capacity ----

def test_f7_capacity_of_data_parallel_ranks(router, worker):
    """vLLM says the blocks of both engines of each; a rank has its own tokens, or its share."""
    w = worker("gpu")

    def page(tokens):
        return "".join(f'vllm:cache_config_info{{block_size="32",engine="{k}",kv_cache_size_tokens="{tokens}",num_gpu_blocks="65536"}} 1.0\n' for k in (0, 1))
    w.metrics_text = page(1048576)
    r = router(conf=worker_conf([w]) + "dp_size = 2\n", wait=False).wait_workers("gpu@0", "gpu@1")
    for k in (0, 1):
        r.wait_metric(1048576, "kvsteer_worker_capacity_tokens", worker=f"gpu@{k}")
    w = worker("old")
    w.metrics_text = page("None")
    r = router(conf=worker_conf([w]) + "dp_size = 2\n", wait=False).wait_workers("old@0", "old@1")
    for k in (0, 1):
        r.wait_metric(1048576, "kvsteer_worker_capacity_tokens", worker=f"old@{k}")


def test_c08_llamacpp_has_room_in_its_slots(router, worker):
    """Its metrics say nothing of its cache, its props do: what all slots hold together."""
    w = worker("w0")
    w.metrics_text = "llamacpp:prompt_tokens_total 0\nllamacpp:requests_processing 0\n"
    w.told["/props"] = {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4, "is_sleeping": False}
    r = start(router, [w], "health_interval = 100ms\n")
    r.wait_metric(8192, "kvsteer_worker_capacity_tokens", worker="w0")
    n = seen(w, "/metrics")
    wait_until(lambda: seen(w, "/metrics") >= n + 3, "it is asked again and again")
    assert seen(w, "/props") == 1 and seen(w, "/server_info") == 1


# ---- states of its own ----

def test_c16_a_sleeping_engine_gets_nothing(router, worker):
    """/health stays green; it is asked with the probes whether it sleeps, and is back with the next
    one that says no. Where the path is not there it is left alone."""
    ws = [worker("w0"), worker("w1")]
    ws[0].told["/is_sleeping"] = {"is_sleeping": True}
    r = router(conf=worker_conf(ws, "policy = round_robin\ncb_failure_threshold = 1\n").replace("1s", "200ms", 1), wait=False)
    r.wait_workers("w0", state="sleeping")
    r.wait_workers("w1")
    for _ in range(6):
        assert r.request(body=CHAT).status == 200
    assert ws[0].requests == [] and len(ws[1].requests) == 6
    assert r.metric("kvsteer_worker_state", worker="w0", state="sleeping") == 1
    assert "sleeps" in r.admin("GET", "workers/w0")[1]["reason"]
    assert {c["worker"]: c["out_of_play"] for c in r.explain(CHAT)["candidates"]} == {"w0": "state", "w1": None}
    assert r.metric("kvsteer_breaker_state", worker="w0") == 0
    ws[0].told["/is_sleeping"] = {"is_sleeping": False}
    r.wait_workers("w0")
    for _ in range(4):
        assert r.request(body=CHAT).status == 200
    assert len(ws[0].requests) == 2
    wait_until(lambda: seen(ws[1], "/health") >= 3, "it is probed")
    assert seen(ws[1], "/is_sleeping") == 1, "404: not asked again"
    ws[0].told["/is_sleeping"] = {"is_sleeping": True}
    r.wait_workers("w0", state="sleeping")
    ws[0].healthy = False
    r.wait_workers("w0", state="unhealthy")
    assert "suspect" not in r.log()


@pytest.mark.parametrize("text", ['{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', "loading"])
def test_an_engine_that_loads_has_not_failed(router, worker, text):
    w = worker("w0")
    w.healthy = lambda x: x.answer(503, text)
    r = router(conf=worker_conf([w], "no_worker_wait = 0\n"), wait=False)
    r.wait_workers("w0", state="loading")
    assert r.request(body=CHAT).status == 503 and w.requests == []
    w.healthy = True
    r.wait_workers("w0")
    assert r.request(body=CHAT).status == 200
    w.healthy = lambda x: x.answer(503, text)
    r.wait_workers("w0", state="loading")
    assert "suspect" not in r.log() and "unhealthy" not in r.log()


@pytest.mark.parametrize("text,state", [
    ('{"error":{"message":"The engine is shutting down.","code":"draining"}}', "draining"), ("Server is shutting down", "draining"),
    ("Draining", "draining"), ('{"error":"The model is currently scaling. Please try again later."}', "loading")])
def test_an_engine_that_drains_or_scales_has_not_failed(router, worker, text, state):
    """It gets nothing new, what it has goes on, nothing is counted; and it is back when it says so."""
    go = threading.Event()

    def slow(x):
        x.events("0")
        go.wait(harness.DEADLINE)
        x.end()
    ws = [worker("w0", slow), worker("w1")]
    r = router(conf=worker_conf(ws, "policy = round_robin\ncb_failure_threshold = 1\n").replace("1s", "200ms", 1), wait=False)
    r.wait_workers("w0", "w1")
    with r.connect() as c:
        for _ in range(2):
            if not ws[0].requests:
                c.send(make_request(body=STREAM))
                wait_until(lambda: ws[0].requests or ws[1].requests, "it is sent")
                if ws[1].requests:
                    assert c.read_response("POST").status == 200
        ws[0].wait_requests(1)
        ws[0].healthy = lambda x: x.answer(503, text)
        r.wait_workers("w0", state=state)
        for _ in range(4):
            assert r.request(body=CHAT).status == 200
        assert len(ws[0].requests) == 1
        assert "it says that it" in r.admin("GET", "workers/w0")[1]["reason"]
        assert r.metric("kvsteer_worker_state", worker="w0", state=state) == 1
        go.set()
        assert c.read_response("POST").ended
    ws[0].healthy = True
    r.wait_workers("w0")
    assert r.metric("kvsteer_breaker_state", worker="w0") == 0 and r.admin("GET", "workers/w0")[1]["failures"] == 0
    assert "suspect" not in r.log() and "unhealthy" not in r.log()


def test_c16_sglang_that_is_not_ready_gets_nothing(router, worker):
    """Released memory has no page of its own; /ready says whether requests are wanted. Only SGLang's
    is asked: elsewhere the path may mean another thing."""
    ws = [worker("w0"), worker("w1")]
    ws[0].metrics_text = "sglang:max_total_num_tokens{model_name=\"m\"} 30000.0\n"
    is_paused = threading.Event()
    for w in ws:
        w.told["/ready"] = lambda x: x.answer(503 if is_paused.is_set() else 200, "")
    r = router(conf=worker_conf(ws, "policy = round_robin\ncb_failure_threshold = 1\n").replace("1s", "200ms", 1), wait=False)
    r.wait_workers("w0", "w1")
    is_paused.set()
    r.wait_workers("w0", state="sleeping")
    assert "not ready" in r.admin("GET", "workers/w0")[1]["reason"]
    for _ in range(4):
        assert r.request(body=CHAT).status == 200
    assert ws[0].requests == [] and r.worker_state("w1") == "healthy" and seen(ws[1], "/ready") == 0
    is_paused.clear()
    r.wait_workers("w0")
    assert r.metric("kvsteer_breaker_state", worker="w0") == 0 and "suspect" not in r.log()


# ---- ranks of several nodes ----

def node(worker, name, ranks, says=None):
    """One that takes these ranks; its metrics call its engines `says`."""
    def handler(x):
        rank = x.request.get("x-data-parallel-rank")
        if rank is None or int(rank) in ranks:
            harness.answer_ok(x)
        else:
            x.answer(400, '{"error":{"message":"engine-core error","type":"invalid_request_error"}}')
    w = worker(name, handler)
    if says is not None:
        w.metrics_text = "".join(f'vllm:cache_config_info{{block_size="16",engine="{k}",num_gpu_blocks="{100 + k}"}} 1.0\n'
                                 f'vllm:num_requests_running{{engine="{k}"}} {k}.0\n' for k in says)
    return w


def two_nodes(a, b, lines):
    return worker_conf([a]) + f"dp_size = 4\n[worker {b.name}]\nurl = {b.url}\ndp_size = 4\n{lines}"


def names_of(first, second):
    return [f"n0@{k}" for k in range(first, first + 4)] + [f"n1@{k}" for k in range(second, second + 4)]


def send_80(r):
    return [r.request(body=dict(CHAT, messages=[{"role": "user", "content": f"{n:04} " + harness.text(1, n)}])).status for n in range(80)]


def test_c11_the_second_node_takes_ranks_of_its_own(router, worker):
    """80 prompts, all 200; names, header, metrics, pins and reports go by the number."""
    a, b = node(worker, "n0", range(4), range(4)), node(worker, "n1", range(4, 8), range(4, 8))
    r = router(conf=two_nodes(a, b, "dp_start_rank = 4\n"), keys="allow_pin = on\nexpose_worker = on\n", wait=False)
    r.wait_workers(*names_of(0, 4))
    assert send_80(r) == [200] * 80
    assert {m.get("x-data-parallel-rank") for m in a.requests} == set("0123")
    assert {m.get("x-data-parallel-rank") for m in b.requests} == set("4567") and len(b.requests) == 40
    assert r.metric("kvsteer_worker_requests_total", worker="n1@5") == 10
    for k in range(4, 8):
        r.wait_metric(16 * (100 + k), "kvsteer_worker_capacity_tokens", worker=f"n1@{k}")
        assert r.admin("GET", f"workers/n1@{k}")[1]["reported"]["running"] == k
    told = r.admin("GET", "workers/n1")[1]
    assert (told["dp_size"], told["dp_start_rank"], [x["rank"] for x in told["ranks"]]) == (4, 4, [4, 5, 6, 7])
    m = r.request(body=CHAT, headers={"X-Data-Parallel-Rank": "6"})
    assert m.status == 200 and m.get("x-kvsteer-worker") == "n1@6"
    assert r.request(body=CHAT, headers={"X-Data-Parallel-Rank": "8"}).status == 400
    assert r.admin("POST", "workers", {"name": "n1@7", "url": "http://127.0.0.1:1"})[0] == 409


def test_c11_a_reload_changes_the_first_rank(router, worker):
    a, b = node(worker, "n0", range(4)), node(worker, "n1", range(2, 10))
    r = router(conf=two_nodes(a, b, "dp_start_rank = 4\n"), wait=False).wait_workers(*names_of(0, 4))
    assert send_80(r) == [200] * 80
    kept = r.admin("GET", "workers/n1@5")[1]["blocks"]
    assert kept > 0 and r.reload(two_nodes(a, b, "dp_start_rank = 2\n"))[0]
    assert [w["name"] for w in r.admin("GET", "workers")[1]["workers"]] == names_of(0, 2)
    assert r.admin("GET", "workers/n1@5")[1]["blocks"] == kept, "a rank that stays keeps what it has"
    b.clear()
    assert send_80(r) == [200] * 80 and {m.get("x-data-parallel-rank") for m in b.requests} == set("2345")


def test_c11_one_rank_of_a_node(router, worker):
    """--data-parallel-size-local 1: the only rank has a number too."""
    w = node(worker, "n", [3])
    r = router(conf=worker_conf([w]) + "dp_start_rank = 3\n", wait=False).wait_workers("n@3")
    assert r.request(body=CHAT).status == 200 and w.requests[0].get("x-data-parallel-rank") == "3"


@pytest.mark.parametrize("takes", ["across nodes", "its own"])
def test_c11_how_an_engine_counts_is_asked_where_it_says_other_numbers(router, worker, takes):
    """vLLM's frontends differ in what they want, and call their engines alike in their metrics."""
    a = node(worker, "n0", range(4), range(4))
    b = node(worker, "n1", range(4, 8) if takes == "across nodes" else range(4), range(4, 8))
    r = router(conf=two_nodes(a, b, ""), wait=False).wait_workers(*names_of(0, 0))
    assert len(b.requests) == 1 and b.requests[0].get("x-data-parallel-rank") == "7" and a.requests == []
    assert b.requests[0].json()["max_tokens"] == 1 and b.requests[0].json()["model"] == "m"
    b.clear()
    assert send_80(r) == [200] * 80
    assert {m.get("x-data-parallel-rank") for m in b.requests} == set("4567" if takes == "across nodes" else "0123")
    for k in range(4):
        r.wait_metric(16 * (104 + k), "kvsteer_worker_capacity_tokens", worker=f"n1@{k}")
    assert ("numbers its ranks from 4" in r.log()) == (takes == "across nodes")
    assert r.reload(two_nodes(a, b, "") + "max_requests = 9\n")[0]
    n = seen(b, "/metrics")
    wait_until(lambda: seen(b, "/metrics") >= n + 2, "two more reports")
    assert all(m.get("via") is not None for m in b.requests), "asked once for each process"


# ---- errors ----

def test_f9_answers_of_500_are_errors_of_the_worker(router, worker):
    w = worker("w0", lambda x: x.answer(500, "{}"))
    r = router([w], pool="retry_max_retries = 0\n")
    for _ in range(2):
        assert r.request(body=CHAT).status == 500
    told = r.admin("GET", "workers/w0")[1]
    assert told["failures"] == 2 and told["failures_by_reason"] == {"status_5xx": 2}
    assert r.metric("kvsteer_upstream_failures_total", worker="w0", reason="status_5xx") == 2


# ---- a process that says nothing of itself ----

@pytest.mark.parametrize("says_start", [False, True])
def test_refused_connections_are_a_lost_cache_unless_the_process_is_known(router, worker, says_start):
    w = worker("w0")
    w.metrics_text = "process_start_time_seconds 1000.5\n" if says_start else None
    r = router([w], pool="no_worker_wait = 0\n")
    wait_until(lambda: seen(w, "/metrics") >= 1, "it was asked")
    assert r.request(body=dict(CHAT, messages=[{"role": "user", "content": "x" * 1000}])).status == 200
    blocks = r.admin("GET", "workers/w0")[1]["blocks"]
    assert blocks > 0
    w.stop()
    r.wait_workers("w0", state="suspect")
    again = worker("w0", port=w.port)
    again.metrics_text = w.metrics_text
    r.wait_workers("w0")
    assert r.admin("GET", "workers/w0")[1]["blocks"] == (blocks if says_start else 0)
