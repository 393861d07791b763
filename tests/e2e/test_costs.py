"""Costs and signals of cache_aware through the daemon: what waits for its prefill and when that is
over, how each ending takes it back, where a request goes because of it, and what explain tells.
Rows C1-C3, A1, A5 of the change requests as far as traffic shows them.
"""
import json
import threading

import pytest

import harness
from harness import Hold, Steps, make_request, wait_until
from routing import OPEN, chat, completion, place, send, user

CHAT = "/v1/chat/completions"
WORD = "lorem ipsum dolor sit amet, consectetur adipiscing. "


def prompt(seed, blocks):
    """A completion body of that many whole blocks of 128 bytes, different from its first byte on
    for each seed."""
    text = f"{seed:08d} " + WORD * (blocks * 3)
    return completion(text[:blocks * 128])


def counts(r, name="w0"):
    """(load, streams, queued blocks)"""
    m = r.admin("GET", "workers/" + name)[1]
    return m["load"], m["streams"], m["queued_blocks"]


def wait_counts(r, wanted, name="w0"):
    wait_until(lambda: counts(r, name) == wanted, f"{name}: {wanted}, not {counts(r, name)}")


def slow_request(r, body, **headers):
    c = r.connect()
    c.send(make_request("POST", "/v1/completions", body, {"X-Slow": "1", **headers}))
    return c


@pytest.fixture
def stepped(router, worker):
    steps = Steps("x-slow")
    w = worker("w0", steps)
    r = router([w], pool="cost = prefill_cost\nhealth_failures = 1000\n", keys=OPEN)
    return r, w, steps


# ---- when prefill is over ----

def test_a_stream_waits_until_its_first_event(stepped):
    r, w, steps = stepped
    c = slow_request(r, dict(prompt(1, 40), stream=True))
    w.wait_requests(1)
    assert counts(r) == (1, 0, 40), "from the pick on"
    steps.step(lambda x: x.begin())
    assert counts(r) == (1, 0, 40), "engines send the head of a stream before they compute"
    steps.step(lambda x: x.event("one"))
    assert c.read_head().status == 200, "held back until there is something to show"
    assert c.read_chunk() == b"data: one\n\n"
    assert counts(r) == (1, 1, 0)
    steps.step(lambda x: x.event("two"))
    assert c.read_chunk() == b"data: two\n\n"
    assert counts(r) == (1, 1, 0), "once"
    assert r.metric("kvsteer_worker_streams", worker="w0") == 1 and r.metric("kvsteer_worker_queued_blocks", worker="w0") == 0
    steps.finish(lambda x: x.end())
    assert c.read_chunk() == b""
    wait_counts(r, (0, 0, 0))


def test_any_other_answer_waits_until_its_head(stepped):
    r, w, steps = stepped
    c = slow_request(r, prompt(1, 40))
    w.wait_requests(1)
    assert counts(r) == (1, 0, 40)
    assert r.metric("kvsteer_worker_queued_blocks", worker="w0") == 40
    steps.step(lambda x: x.begin(content_type="application/json"))
    assert c.read_head().status == 200
    wait_counts(r, (1, 1, 0))
    steps.finish(lambda x: x.end())
    c.read_chunk()
    wait_counts(r, (0, 0, 0))
    # What is cached now is not computed again; only the tail waits.
    longer = prompt(1, 40)
    longer["prompt"] += "z" * 128 * 5
    c = slow_request(r, longer)
    w.wait_requests(2)
    assert counts(r) == (1, 0, 5)
    steps.finish(lambda x: x.answer())
    assert c.read_response("POST").status == 200
    wait_counts(r, (0, 0, 0))


def test_a_failed_stream_waits_no_more(stepped):
    """An event stream that says 500: nothing is computed for it."""
    r, w, steps = stepped
    c = slow_request(r, dict(prompt(1, 40), stream=True))
    w.wait_requests(1)
    steps.step(lambda x: x.begin(status=500))
    assert c.read_head().status == 500
    wait_counts(r, (1, 1, 0))
    steps.finish(lambda x: x.end())
    c.read_chunk()
    wait_counts(r, (0, 0, 0))


# ---- every ending takes back what was added ----

@pytest.mark.parametrize("when", ["before the head", "after the head", "in the stream"])
def test_a_client_that_leaves(stepped, when):
    r, w, steps = stepped
    c = slow_request(r, dict(prompt(1, 40), stream=True))
    w.wait_requests(1)
    if when != "before the head":
        steps.step(lambda x: x.begin())  # held back until the first event
    if when == "in the stream":
        steps.step(lambda x: x.event("one"))
        c.read_head()
        c.read_chunk()
    assert counts(r) == ((1, 1, 0) if when == "in the stream" else (1, 0, 40))
    c.reset()
    wait_counts(r, (0, 0, 0))
    steps.close()


@pytest.mark.parametrize("when", ["before the head", "after the head", "in the stream"])
def test_a_worker_that_breaks_off(stepped, when):
    r, w, steps = stepped
    c = slow_request(r, dict(prompt(1, 40), stream=True))
    w.wait_requests(1)
    if when != "before the head":
        steps.step(lambda x: x.begin())
    if when == "in the stream":
        steps.step(lambda x: x.event("one"))
        c.read_head()
        c.read_chunk()
    steps.close()
    wait_counts(r, (0, 0, 0))
    c.close()


def test_a_retry_takes_its_blocks_along(router, worker):
    """The first worker dies in silence: its queue is empty again while the second one computes."""
    first, second = Steps("x-slow"), Steps("x-slow")
    w0, w1 = worker("w0", first), worker("w1", second)
    r = router([w0, w1], pool="cost = prefill_cost\nhealth_failures = 1000\n", keys=OPEN)
    c = slow_request(r, prompt(1, 40))
    w0.wait_requests(1)
    assert (counts(r, "w0"), counts(r, "w1")) == ((1, 0, 40), (0, 0, 0))
    first.close()
    w1.wait_requests(1)
    assert (counts(r, "w0"), counts(r, "w1")) == ((0, 0, 0), (1, 0, 40))
    second.finish(lambda x: x.answer())
    assert c.read_response("POST").status == 200
    wait_counts(r, (0, 0, 0), "w1")


def test_reloads_lose_and_double_nothing(router, worker):
    """Blocks are counted under every policy, so that a change of policy finds them; the worker that
    a reload removes keeps its own."""
    hold = Hold()
    w0, w1 = worker("w0", hold), worker("w1")
    r = router([w0, w1], pool="policy = least_requests\n")
    c = r.connect()
    body = json.dumps(prompt(1, 40)).encode()
    c.send(make_request("POST", "/v1/completions", body))
    w0.wait_requests(1)
    guess = len(body) // 128
    assert counts(r) == (1, 0, guess), "nobody hashed it: by the length of the body"
    assert r.reload(harness.worker_conf([w0, w1], "cost = prefill_cost\n"))[0]
    assert counts(r) == (1, 0, guess)
    told = r.explain(prompt(2, 10), "/v1/completions")
    assert [t["terms"]["queued"] for t in told["candidates"]] == [-guess, 0] and told["chosen"] == "w1"
    assert r.reload(harness.worker_conf([w1], "cost = prefill_cost\n"))[0]
    hold.release()
    assert c.read_response("POST").status == 200
    r.wait_idle()


# ---- where requests go ----

def test_a_long_queue_outweighs_a_prefix(router, worker):
    """The conversation's worker has 2,000 blocks to compute first: its 100 are sooner computed
    elsewhere. A short queue does not outweigh them."""
    steps = Steps("x-slow")
    w0, w1 = worker("w0", steps), worker("w1")
    r = router([w0, w1], pool="cost = prefill_cost\nhealth_failures = 1000\n", keys=OPEN)
    place(r, prompt(1, 100), "w0", "/v1/completions")
    short = slow_request(r, prompt(2, 50), **{"X-Kvsteer-Worker": "w0"})
    w0.wait_requests(2)
    assert r.explain(prompt(1, 100), "/v1/completions")["reason"] == "prefix_hit"
    huge = slow_request(r, prompt(3, 2000), **{"X-Kvsteer-Worker": "w0"})
    w0.wait_requests(3)
    assert counts(r) == (2, 0, 2050)
    told = r.explain(prompt(1, 100), "/v1/completions")
    assert (told["chosen"], told["reason"]) == ("w1", "overload_shed")
    assert send(r, prompt(1, 100), "/v1/completions") == ("w1", 0, 100)
    assert r.metric("kvsteer_route_decisions_total", reason="overload_shed") == 1
    for _ in range(2):
        steps.finish(lambda x: x.answer())
    assert short.read_response("POST").status == huge.read_response("POST").status == 200
    r.wait_idle()
    assert send(r, prompt(1, 100), "/v1/completions")[1] == 100, "either holds it now"


def test_b65_two_tiny_requests_are_less_than_one_huge_one(router, worker):
    """B65 (a): w0 computes 400 KB and has shown nothing yet, w1 streams two short answers: ten
    prompts of 50 KB go to w1. Counting requests, as the other costs do and say, they would go to
    w0. (b), n = 8, is one request in flight by design (DESIGN 7)."""
    end = threading.Event()

    def stream(x):
        if not x.request.get("x-slow"):
            return harness.answer_ok(x)
        x.begin()
        x.event("first")
        end.wait(harness.DEADLINE * 3)
        x.end()
    w0, w1 = worker("w0", Steps("x-slow")), worker("w1", stream)
    r = router([w0, w1], pool="cost = prefill_cost\n", keys=OPEN)
    slow = [slow_request(r, prompt(1, 3200), **{"X-Kvsteer-Worker": "w0"})]
    w0.wait_requests(1)
    slow += [slow_request(r, completion(f"tiny {n}", stream=True), **{"X-Kvsteer-Worker": "w1"}) for n in range(2)]
    wait_counts(r, (2, 2, 0), "w1")
    assert [send(r, prompt(10 + n, 400), "/v1/completions")[0] for n in range(10)] == ["w1"] * 10
    end.set()
    w0.handler.finish(harness.answer_ok)
    for c in slow:
        assert c.read_response("POST").status == 200
        c.close()


def test_prompts_that_cannot_be_read_count_by_their_length(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", hold), worker("w1")
    r = router([w0, w1], pool="cost = prefill_cost\n")
    c = r.connect()
    c.send(make_request("POST", CHAT, b"{" + b"x" * 12799))
    w0.wait_requests(1)
    assert counts(r) == (1, 0, 100)
    for i in range(3):
        assert r.request("POST", CHAT, b"{" + b"y" * 1279).json()["worker"] == "w1"
    hold.release()
    assert c.read_response("POST").status == 200


def test_a_body_that_is_still_coming_counts_as_long_as_it_says(router, worker):
    """Nobody reads it here, so that it goes on as it comes: its length is known from the head."""
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0, w1], pool="cost = prefill_cost\nsignal = none\n")
    with r.connect() as c:
        c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 12800\r\n\r\n" + "x" * 1000)
        wait_counts(r, (1, 0, 100))
        for i in range(3):
            assert r.request("POST", CHAT, b"{" + b"y" * 1279).json()["worker"] == "w1"
        c.send("x" * 11800)
        assert c.read_response("POST").json()["worker"] == "w0"


@pytest.mark.parametrize("cost", ["overload_check", "relative_load", "free_capacity", "prefill_cost"])
@pytest.mark.parametrize("signal", ["longest_prefix", "first_block", "none"])
def test_every_cost_goes_with_every_signal(router, worker, cost, signal):
    """Cold requests one by one rotate; what explain says is what happens; a warm one is followed
    unless the signal is none."""
    ws = [worker(f"w{i}") for i in range(3)]
    r = router(ws, pool=f"signal = {signal}\ncost = {cost}\n", keys=OPEN)
    for i in range(9):
        told = r.explain(prompt(i, 4), "/v1/completions")
        assert r.request("POST", "/v1/completions", prompt(i, 4)).get("x-kvsteer-worker") == told["chosen"] == f"w{i % 3}"
        assert told["reason"] == ("policy_order" if signal == "none" else "no_match")
        r.wait_idle()
    again = [send(r, prompt(i, 4), "/v1/completions") for i in (4, 4, 4)]
    if signal == "none":
        assert [name for name, _, _ in again] == ["w0", "w1", "w2"] and all(blocks == 0 for _, _, blocks in again)
        assert r.metric("kvsteer_prefix_blocks") == 0 and r.metric("kvsteer_index_bytes") == 0
    else:
        assert again == [("w1", 4, 4)] * 3
        assert r.metric("kvsteer_route_decisions_total", reason="prefix_hit") == 3


def test_paced_traffic_spreads(router, worker):
    """One after another, each answered before the next: load is zero at every pick, and all prompts
    begin with the same 60 blocks. Conversations stay."""
    ws = [worker(f"w{i}") for i in range(4)]
    r = router(ws, pool="cost = prefill_cost\n", keys=OPEN)
    system = user(WORD * 150)
    served = {}
    for i in range(60):
        name, _, _ = send(r, chat(system, user(f"{i} " + WORD * 30)))
        served[name] = served.get(name, 0) + 1
        r.wait_idle()
    assert len(served) >= 3 and max(served.values()) <= 30, served
    turns = [user(WORD * 200 + "of another kind")]
    turns[0]["content"] = "7" + turns[0]["content"]
    home, _, _ = send(r, chat(*turns))
    for turn in range(6):
        turns += [{"role": "assistant", "content": "ok"}, user(f"{turn} " + WORD)]
        name, matched, blocks = send(r, chat(*turns))
        assert name == home and matched > blocks * 0.9
        r.wait_idle()


# ---- explain ----

TERMS = {
    "overload_check": {"fraction"}, "relative_load": {"fraction", "load"}, "free_capacity": {"fraction", "free"},
    "prefill_cost": {"uncached", "queued", "decode", "recent"},
}


@pytest.mark.parametrize("cost", sorted(TERMS))
def test_explain_tells_each_term(router, worker, cost):
    hold = Hold()
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0, w1], pool=f"cost = {cost}\nbeta = 0.25\n", keys=OPEN)
    place(r, prompt(1, 16), "w0", "/v1/completions")
    w0.handler = hold
    c = r.connect()
    c.send(make_request("POST", "/v1/completions", prompt(2, 4), {"X-Kvsteer-Worker": "w0"}))
    w0.wait_requests(2)
    longer = completion(prompt(1, 16)["prompt"] + "z" * 4 * 128)
    told = r.explain(longer, "/v1/completions")
    w0_told, w1_told = told["candidates"]
    assert set(w0_told["terms"]) == set(w1_told["terms"]) == TERMS[cost]
    assert (w0_told["depth"], w0_told["blocks"], w0_told["fraction"], w0_told["load"]) == (16, 20, 0.8, 1)
    assert (w1_told["depth"], w1_told["fraction"], w1_told["load"]) == (0, 0, 0)
    if cost != "overload_check":
        for t in told["candidates"]:
            assert sum(t["terms"].values()) == pytest.approx(t["score"], abs=1e-5)
    else:
        assert [t["is_overloaded"] for t in told["candidates"]] == [False, False]
    expected = {"relative_load": [0.8 - 0.125, 0.125], "free_capacity": [0.4 + 0.5 * 255 / 256, 0.5]}
    if cost in expected:
        assert [t["score"] for t in told["candidates"]] == pytest.approx(expected[cost], abs=1e-5)
    if cost == "prefill_cost":
        assert [t["terms"]["uncached"] for t in told["candidates"]] == [-12, -60], "3 for each block: one waits, but not at every worker"
        assert [t["terms"]["queued"] for t in told["candidates"]] == [-4, 0]
    assert (told["chosen"], told["reason"]) == ("w0", "prefix_hit")
    hold.release()
    assert c.read_response("POST").status == 200
