"""Prefill and decode apart (DESIGN 8): both legs of a request as scripted workers see them, every
way in which either fails, and what is given back.

Rows A4 and A5 of the origin systems are proven here for two roles.
"""
import json
import random
import re
import subprocess
import threading

import pytest

import harness
from harness import Hold, answer_ok, make_request, wait_until

WORDS = harness.text(2, 7)  # some 500 tokens: worth a prefill
CHAT = {"model": "m", "messages": [{"role": "user", "content": WORDS}]}
LASTING = "health_failures = 1000\nno_worker_wait = 0\ncb_failure_threshold = 1000000\n"
POOL = "policy = least_requests\nkv_connector = nixl\n" + LASTING
RELEASE = "/v1/kv/release"


def params(x, **more):
    """What a prefill worker says of the blocks that it keeps."""
    return {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[4, 5, 6]], "remote_engine_id": f"e-{x.worker.name}",
            "remote_request_id": f"cmpl-{x.worker.name}-{len(legs(x.worker))}", "remote_host": "10.0.0.7", "remote_port": 5600, "tp_size": 1,
            "kvx_token": "t0ken", "remote_num_tokens": 12345678901234567890, **more}


def prefilled(x):
    """A prefill worker's good answer; and a release is taken."""
    if x.request.target == RELEASE:
        return x.answer(200, "{}")
    return x.answer(200, json.dumps({"id": "p", "choices": [{"text": "x"}], "kv_transfer_params": params(x)}))


def streams(x):
    x.begin()
    for i in range(3):
        x.event(f'{{"n":{i},"worker":"{x.worker.name}"}}')
    x.event("[DONE]")
    x.end()


def says(status, fields=()):
    return lambda x: x.answer(status, json.dumps({"error": {"message": f"{x.worker.name} says {status}"}}), fields=fields)


def dies(x):
    x.wire.close()
    raise harness.Closed()


def hangs(x):
    x.wait_gone()
    return "close"


def pd_conf(ps, ds, pool="", of_prefill="", of_decode="", extra=""):
    conf = "[pool default]\n" + ("" if "health_interval" in pool else "health_interval = 1s\n") + pool + "\n"
    conf += f"[pool default prefill]\n{of_prefill}\n" if of_prefill else ""
    conf += f"[pool default decode]\n{of_decode}\n" if of_decode else ""
    for w, role in [(w, "prefill") for w in ps] + [(w, "decode") for w in ds]:
        conf += f"[worker {w.name}]\nurl = {w.url}\nrole = {role}\n{getattr(w, 'keys', '')}\n"
    return conf + extra


@pytest.fixture
def pd(router, worker):
    """pd(prefill=[handlers], decode=[handlers], ...) -> router, prefill workers p0.., decode
    workers d0.."""
    def make(prefill=(prefilled,), decode=(answer_ok,), pool=POOL, keys="", wait=True, **kw):
        ps = [worker(f"p{i}", h) for i, h in enumerate(prefill)]
        ds = [worker(f"d{i}", h) for i, h in enumerate(decode)]
        for w in ps + ds:
            w.keys = kw.pop(w.name + "_keys", "")
        parts = {k: kw.pop(k) for k in ("of_prefill", "of_decode", "extra") if k in kw}
        r = router(conf=pd_conf(ps, ds, pool, **parts), keys=keys, wait=False, **kw)
        if wait:
            r.wait_workers(*[w.name for w in ps + ds])
        return r, ps, ds
    return make


def legs(w):
    """The requests that reached it, without releases."""
    return [m for m in w.requests if m.target != RELEASE]


def releases(w):
    return [m.json() for m in w.requests if m.target == RELEASE]


def counts(ws):
    return [len(legs(w)) for w in ws]


def went(r, **expected):
    """How the requests went so far: counted as each ends, just after its last byte."""
    wait_until(lambda: ways(r) == expected, f"{expected}, not {ways(r)}")
    return True


def ways(r):
    found = {s.split('way="')[1].split('"')[0]: int(v) for s, v in r.metrics().items() if s.startswith("kvsteer_pd_requests_total{")}
    return {k: v for k, v in found.items() if v}


def wait_release(r, p, n=1):
    wait_until(lambda: len(releases(p)) >= n and r.metric("kvsteer_kv_releases_total", result="done") >= n, "the blocks are given back")
    return releases(p)[n - 1]


# ---- both legs ----

@pytest.mark.tsan
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_over_both(pd, stream):
    """nixl: prefill is asked for one token, its parameters go into decode's body as they are
    spelled, and decode's answer is the client's."""
    r, (p,), (d,) = pd(decode=[streams if stream else answer_ok], keys="expose_worker = on\n")
    body = dict(CHAT, stream=stream, max_tokens=50, temperature=0.25, **({"stream_options": {"include_usage": True}} if stream else {}))
    m = r.request(body=body, headers={"X-Request-Id": "mine-1", "Accept-Encoding": "gzip", "Authorization": "Bearer c"})
    assert m.status == 200 and m.ended and m.get("x-kvsteer-worker") == "d0" and m.get("x-request-id") == "mine-1"
    assert (b"[DONE]" in m.body) if stream else m.json()["worker"] == "d0"
    assert counts([p, d]) == [1, 1]
    first, second = p.requests[0].json(), d.requests[0].json()
    assert first.pop("kv_transfer_params") == {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                                              "remote_block_ids": None, "remote_host": None, "remote_port": None}
    assert first.pop("stream") is False and first.pop("max_tokens") == 1 and "stream_options" not in first
    assert first == {k: v for k, v in body.items() if k not in ("stream", "max_tokens", "stream_options")}
    told = second.pop("kv_transfer_params")
    assert second == body and told["remote_num_tokens"] == 12345678901234567890 and told["remote_engine_id"] == "e-p0"
    assert b'"remote_block_ids": [[4, 5, 6]]' in d.requests[0].body, "as it was spelled"
    for m in (p.requests[0], d.requests[0]):
        assert m.get("x-request-id") == "mine-1" and m.get("authorization") == "Bearer c" and m.target == "/v1/chat/completions"
    assert p.requests[0].get("accept-encoding") is None and d.requests[0].get("accept-encoding") == "gzip"
    line = r.wait_log(r".*route=.*status=200.*").group(0)
    assert "worker=d0" in line and "prefill=p0" in line and "prefill_ms=" in line and "retries=0" in line
    assert went(r, split=1) and releases(p) == []


def test_prefill_first_then_decode(pd):
    """Decode sees nothing before prefill answered; prefill's guard is dropped then (A4), and
    decode's when the stream ends."""
    at_p, at_d = Hold(prefilled), Hold(streams)
    r, (p,), (d,) = pd([at_p], [at_d])
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        p.wait_requests(1)
        assert load(r, "p0") == 1 and load(r, "d0") == 0 and counts([d]) == [0]
        at_p.release()
        d.wait_requests(1)
        assert load(r, "p0") == 0 and load(r, "d0") == 1
        at_d.release()
        assert b"[DONE]" in c.read_response().body
    r.wait_idle()


def load(r, name):
    return r.metric("kvsteer_worker_load", worker=name)


def test_many_at_once_are_balanced(pd):
    """Two threads, streams of all ways side by side: every one is answered, and every load is back
    to zero."""
    r, ps, ds = pd([prefilled] * 2, [streams] * 2, keys="threads = 2\n")
    bodies = [dict(CHAT, stream=True), {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, dict(CHAT, n=2)]
    bad = []

    def run(k):
        with r.connect() as c:
            for i in range(20):
                c.send(make_request(body=bodies[(k + i) % 3]))
                m = c.read_response()
                if m.status != 200 or not m.ended or b"[DONE]" not in m.body:
                    bad.append((m.status, m.body[:200]))
    threads = [threading.Thread(target=run, args=(k,)) for k in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(harness.DEADLINE * 3)
    assert bad == []
    r.wait_idle()
    wait_until(lambda: sum(ways(r).values()) == 320, "all are counted")
    assert sum(counts(ds)) == 320
    assert sum(counts(ps)) == ways(r)["split"]
    assert min(counts(ds)) > 0 and min(counts(ps)) > 0


# ---- what needs no prefill ----

def test_a_short_prompt_is_decodes_alone(pd):
    """pd_min_prefill: below so many tokens that decode would have to compute, no prefill."""
    r, (p,), (d,) = pd()
    assert r.request(body={"model": "m", "messages": [{"role": "user", "content": "hi"}]}).status == 200
    assert counts([p, d]) == [0, 1] and went(r, short=1)
    assert d.requests[0].json() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_what_decode_holds_already_needs_no_prefill(pd):
    """The same prompt again, and a turn more: only what decode's index does not have counts."""
    r, (p,), (d,) = pd(pool="policy = cache_aware\nkv_connector = nixl\n" + LASTING)
    for more in ("", " and more"):
        body = dict(CHAT, messages=CHAT["messages"] + ([{"role": "assistant", "content": "ok"}, {"role": "user", "content": more}] if more else []))
        assert r.request(body=body).status == 200
    assert counts([p, d]) == [1, 2] and went(r, split=1, short=1)


@pytest.mark.parametrize("tokens,leg", [(400, 1), (600, 0), (0, 1)])
def test_pd_min_prefill_is_counted_in_tokens(pd, tokens, leg):
    r, (p,), _ = pd(pool=POOL + f"pd_min_prefill = {tokens}\n")
    assert r.request(body=CHAT).status == 200
    assert counts([p]) == [leg]


def test_what_cannot_be_split_goes_to_decode_whole(pd):
    r, (p,), (d,) = pd()
    for path, body in [("/v1/chat/completions", dict(CHAT, n=2)), ("/v1/embeddings", {"model": "m", "input": WORDS}),
                       ("/tokenize", {"model": "m", "prompt": WORDS}), ("/v1/completions", {"model": "m", "prompt": [WORDS, WORDS], "n": 2})]:
        assert r.request(path=path, body=body).status == 200
        assert d.requests[-1].json() == body
    assert counts([p]) == [0] and went(r, whole=4)


# ---- prefill fails ----

@pytest.mark.parametrize("how", [500, 502, 503, 429, 408, "dies", "refuses", "lies", "bad_json", "error_in_200", "no_object", "huge", "cut", "slow"])
def test_a_failed_prefill_is_had_elsewhere(pd, how):
    """Before a byte was relayed: another prefill worker, and the client sees nothing of it."""
    handler = {"dies": dies, "lies": lies, "cut": cut, "slow": hangs, "bad_json": lambda x: x.answer(200, "{nonsense"),
               "error_in_200": lambda x: x.answer(200, '{"error":{"message":"no"}}'), "no_object": lambda x: x.answer(200, '{"kv_transfer_params":7}'),
               "huge": lambda x: x.answer(200, json.dumps({"kv_transfer_params": params(x), "more": "x" * (1 << 20)}))}.get(how, None)
    r, ps, (d,) = pd([handler or (says(how) if isinstance(how, int) else prefilled), prefilled],
                      p0_keys="first_byte_timeout = 400ms" if how == "slow" else "")
    if how == "refuses":
        ps[0].stop()
    m = r.request(body=CHAT)
    assert m.status == 200 and m.json()["worker"] == "d0"
    if how == "slow":
        ps[0].wait_requests(1)
    assert counts(ps) == [0 if how == "refuses" else 1, 1] and counts([d]) == [1]
    assert d.requests[0].json()["kv_transfer_params"]["remote_engine_id"] == "e-p1"
    line = r.wait_log(r".*status=200.*retries=1.*").group(0)
    assert "prefill=p1" in line
    r.wait_idle()


def large(x):
    x.answer(200, json.dumps({"kv_transfer_params": params(x), "more": "x" * 8192}))


def test_a_prefills_response_that_is_too_large_is_done_without(pd):
    """One other prefill worker is asked, then decode computes the prompt. It is nobody's failure."""
    r, ps, (d,) = pd([large] * 3, pool=POOL.replace("1000000", "1") + "max_prefill_response = 8k\n")
    assert r.request(body=CHAT).status == 200
    assert sum(counts(ps)) == 2 and went(r, no_prefill=1)
    assert r.metric("kvsteer_upstream_failures_total", reason="worker_prefill_too_large") == 2
    assert r.metric("kvsteer_breaker_state") == 0


def test_max_prefill_response_may_be_larger(pd):
    r, ps, (d,) = pd([large], pool=POOL + "max_prefill_response = 9k\n")
    assert r.request(body=CHAT).status == 200
    assert d.requests[0].json()["kv_transfer_params"]["remote_engine_id"] == "e-p0" and went(r, split=1)


@pytest.mark.parametrize("answer,code,says", [(large, "worker_prefill_too_large", "max_prefill_response"), (lambda x: x.answer(200, "{nonsense"), "worker_prefill", "kv_connector")])
def test_a_prefills_response_that_cannot_be_used_says_why(pd, answer, code, says):
    """Where decode may not do without: nothing was wrong with its HTTP."""
    r, ps, (d,) = pd([answer], pool=POOL + "max_prefill_response = 8k\n", keys="allow_pin = on\n")
    m = r.request(body=CHAT, headers={"X-Kvsteer-Worker": "p0"})
    error = m.json()["error"]
    assert m.status == 502 and error["code"] == code and says in error["message"] and counts([d]) == [0]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_what_prefill_refuses_is_the_clients_answer(pd, status):
    """What is wrong with the request is so everywhere: as it came, and decode is not asked."""
    r, ps, (d,) = pd([says(status, [("X-Mine", "yes")]), prefilled], keys="expose_worker = on\n")
    m = r.request(body=dict(CHAT, stream=True))
    assert (m.status, m.get("x-mine"), m.get("x-kvsteer-worker")) == (status, "yes", "p0") and b"p0 says" in m.body
    assert counts(ps) == [1, 0] and counts([d]) == [0]


def test_when_all_prefills_say_no_the_last_says_it(pd):
    """An overloaded prefill role is back pressure: decode is not given its work."""
    r, ps, (d,) = pd([says(503, [("Retry-After", "7")]), says(503, [("Retry-After", "9")])])
    m = r.request(body=CHAT)
    assert m.status == 503 and m.get("retry-after") == "9" and b"p1 says 503" in m.body
    assert counts(ps) == [1, 1] and counts([d]) == [0]


@pytest.mark.parametrize("role", ["p", "d"])
def test_a_trial_of_either_leg_that_hangs_costs_nothing(pd, role):
    """A wedged worker whose breaker is half-open: after stall_timeout the leg is had elsewhere,
    though no retry is allowed."""
    pool = POOL.replace("1000000\n", "2\n") + "cb_timeout = 300ms\nstall_timeout = 1s\ndegraded_ratio = 0\nretry_max_retries = 0\n"
    r, ps, ds = pd([prefilled] * 2, [answer_ok] * 2, pool=pool)
    sick = (ps if role == "p" else ds)[0]
    well = sick.handler
    sick.handler = says(500)
    wait_until(lambda: r.request(body=CHAT).status and f"worker {sick.name}: breaker open for" in r.log(), "its breaker is open")
    sick.handler = lambda x: well(x) if x.request.target == RELEASE else hangs(x)

    def is_tried():
        assert r.request(body=CHAT).status == 200
        return re.search(rf"worker {sick.name}: breaker open again for 0.3 s \(its trial failed: worker_timeout\)", r.log())
    wait_until(is_tried, "a trial has hung")
    assert r.metric("kvsteer_retries_total", reason="worker_timeout") == 1


def test_a_request_that_kills_two_prefills_goes_no_further(pd):
    r, ps, (d,) = pd([dies] * 3)
    m = r.request(body=CHAT)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_reset"
    assert counts(ps) == [1, 1, 0] and counts([d]) == [0]


def test_f4_the_only_prefill_that_dies_while_it_computes_is_done_without(pd):
    """No byte was sent, and decode computes prompts itself: no client pays for it."""
    r, (p,), (d,) = pd([dies])
    m = r.request(body=CHAT)
    assert m.status == 200 and m.json()["worker"] == "d0"
    assert counts([p]) == [1] and d.requests[0].json() == CHAT and went(r, no_prefill=1)


def lies(x):
    x.send(b"HTTP/9.9 nonsense\r\n\r\n")
    return "close"


def cut(x):
    x.send(b'HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"kv_tr')
    return "close"


def knows_engine(r, p, d):
    """mooncake: prefill's engine is known, so that it is asked."""
    def is_asked():
        assert r.request(body=CHAT).status == 200
        return legs(p)
    wait_until(is_asked, "the engine id is known")
    p.clear()
    d.clear()


def cut_half(x):
    """It computes, and its process is gone before the response is whole."""
    x.send(b'HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"kv_\r\n')
    return dies(x)


PREFILL_FAILS = {"dies": dies, "lies": lies, "cut": cut, "slow": hangs, "half": cut_half, "bad_json": lambda x: x.answer(200, "{nonsense"),
                 "error_in_200": lambda x: x.answer(200, '{"error":{"message":"no"}}'), "no_object": lambda x: x.answer(200, '{"kv_transfer_params":7}'),
                 **{s: says(s) for s in (500, 502, 503, 504)}}


@pytest.mark.parametrize("connector", ["nixl", "nixl_push", "mooncake"])
@pytest.mark.parametrize("how", ["refuses", *PREFILL_FAILS])
def test_f4_where_no_other_prefill_is_decode_computes(pd, worker, connector, how):
    """Whatever the only prefill worker's failure is, and whenever it comes: no byte was sent, and
    the prompt is decode's to compute."""
    boot = worker("boot")
    boot.told["/query"] = {"0": {"engine_id": "eng-a"}}
    well = prefilled if connector != "mooncake" else lambda x: x.answer(200, '{"choices":[{"index":0,"text":"x","finish_reason":"length"}]}')
    r, (p,), (d,) = pd([well], pool=POOL.replace("nixl", connector),
                       p0_keys=f"bootstrap_port = {boot.port}\n" + ("first_byte_timeout = 300ms\n" if how == "slow" else ""))
    if connector == "mooncake":
        knows_engine(r, p, d)
    if how == "refuses":
        p.stop()
    else:
        p.handler = PREFILL_FAILS[how]
    m = r.request(body=dict(CHAT, user="failing"))
    assert m.status == 200 and m.json()["worker"] == "d0"
    # One that dies on a connection that it had kept is asked once more, on a fresh one.
    assert counts([p])[0] in ([0] if how == "refuses" else [1, 2] if how == "dies" else [1])
    assert [x.json() for x in d.requests] == [dict(CHAT, user="failing")], "as it came: nothing is handed over"
    r.wait_idle()
    wait_until(lambda: ways(r).get("no_prefill"), "it is counted")
    assert releases(p) == []


@pytest.mark.parametrize("first,second", [(500, "refuses"), ("dies", 502), (503, 504)])
def test_f4_after_the_last_prefill_decode_computes(pd, first, second):
    """Also where a response of an earlier one is kept."""
    r, ps, (d,) = pd([prefilled] * 2)
    for p, how in zip(ps, (first, second)):
        if how == "refuses":
            p.stop()
        else:
            p.handler = PREFILL_FAILS[how]
    # Either may be first: in the other order, too, each fails once.
    assert r.request(body=CHAT).json()["worker"] == "d0" and d.requests[0].json() == CHAT
    assert went(r, no_prefill=1)


def test_f4_two_prefills_that_say_500_are_believed(pd):
    """It may be the request that makes them fail: decode is spared."""
    r, ps, (d,) = pd([says(500)] * 2)
    m = r.request(body=CHAT)
    assert m.status == 500 and b"says 500" in m.body and counts(ps) == [1, 1] and counts([d]) == [0]


@pytest.mark.parametrize("status,fields", [(429, []), (429, [("Retry-After", "1")]), (503, [("Retry-After", "1")])])
def test_f4_an_overloaded_prefill_is_back_pressure(pd, status, fields):
    r, (p,), (d,) = pd([says(status, fields)])
    m = r.request(body=CHAT)
    assert m.status == status and b"p0 says" in m.body and counts([d]) == [0]


@pytest.mark.parametrize("connector", ["sglang", "p2p_nccl"])
def test_f4_decode_that_would_wait_for_a_prefill_is_not_asked(pd, connector):
    """These decode workers compute nothing themselves: the failure is the client's response."""
    r, (p,), (d,) = pd([dies], [hangs], pool=POOL.replace("nixl", connector))
    m = r.request(body=CHAT)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_reset"
    r.wait_idle()


def test_without_parameters_decode_computes(pd):
    r, (p,), (d,) = pd([lambda x: x.answer(200, '{"choices":[],"kv_transfer_params":null}')])
    assert r.request(body=CHAT).status == 200
    assert d.requests[0].json() == CHAT and went(r, recomputed=1) and releases(p) == []


# ---- no prefill worker ----

def test_without_any_prefill_worker_decode_computes_all(pd):
    r, _, (d,) = pd(prefill=[])
    for _ in range(3):
        assert r.request(body=CHAT).json()["worker"] == "d0"
    assert d.requests[0].json() == CHAT and went(r, no_prefill=3)
    r.wait_log("no prefill worker is available")
    assert r.log().count("no prefill worker is available") == 1


def test_prefill_out_is_waited_for_once_and_told_once(pd):
    """DESIGN 9: the first waits no_worker_wait; the others need not, until one is back."""
    r, (p,), (d,) = pd(wait=False, keys="threads = 1\n", pool=POOL.replace("no_worker_wait = 0", "no_worker_wait = 300ms").replace("health_failures = 1000", "health_failures = 1"))
    r.wait_workers("p0", "d0")
    p.healthy = False
    r.wait_workers("p0", state="unhealthy")
    for _ in range(3):
        assert r.request(body=CHAT).json()["worker"] == "d0"
    assert counts([p]) == [0] and went(r, no_prefill=3)
    waited = [float(t) for t in re.findall(r"queue_ms=([0-9.]+)", r.wait_log(r"(?s)(.*status=200){3}.*").group(0))]
    assert waited[0] >= 300 and r.log().count("no prefill worker is available") == 1
    p.healthy = True
    r.wait_workers("p0")
    assert r.request(body=CHAT).status == 200 and counts([p]) == [1]
    r.wait_log("a prefill worker is available again")


def test_prefill_that_cannot_be_reached_is_done_without(pd):
    """It died since its last probe: connection refused, and nobody else."""
    r, (p,), (d,) = pd()
    p.stop()
    assert r.request(body=CHAT).json()["worker"] == "d0"
    assert went(r, no_prefill=1) and d.requests[0].json() == CHAT


def test_without_a_decode_worker_there_is_none(pd):
    r, (p,), _ = pd(decode=[])
    m = r.request(body=CHAT)
    assert m.status == 503 and m.json()["error"]["code"] == "no_worker" and counts([p]) == [0]


# ---- decode fails ----

@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_a_decode_that_refuses_the_connect_is_replaced(pd, worker, connector):
    """It knows nothing of the blocks, which wait for whoever names them: another decode worker gets
    the same parameters, and nothing is computed twice."""
    boot = worker("boot")
    boot.told["/query"] = {"0": {"engine_id": "eng-a"}}
    hold = Hold(prefilled)
    r, (p,), ds = pd([prefilled], [answer_ok] * 3, pool=POOL.replace("nixl", connector).replace("least_requests", "round_robin"),
                     p0_keys=f"bootstrap_port = {boot.port}", d0_keys="max_requests = 9")
    if connector == "mooncake":
        knows_engine(r, p, ds[0])
        wait_until(lambda: ways(r).get("split"), "it is over")
    for w in [p, *ds]:
        w.clear()
    p.handler = lambda x: hold(x) if x.request.target != RELEASE else prefilled(x)
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        p.wait_requests(1)
        for d in ds[:2]:
            d.stop()
        hold.release()
        m = c.read_response()
    assert m.status == 200 and m.json()["worker"] == "d2"
    assert counts([p]) == [1] and counts(ds) == [0, 0, 1]
    told = ds[2].requests[0].json()["kv_transfer_params"]
    if connector == "nixl":
        assert told["remote_request_id"] == "cmpl-p0-1" and releases(p) == []
    else:
        assert told["transfer_id"] == p.requests[0].json()["kv_transfer_params"]["transfer_id"] and told["remote_engine_id"] == "eng-a"
    r.wait_idle()
    wait_until(lambda: ways(r).get("split"), "it is counted")
    assert r.metric("kvsteer_kv_releases_total") == 0


def test_blocks_that_no_decode_could_be_connected_for_are_given_back(pd):
    """All of them refuse the connect: the client hears it, and prefill keeps nothing."""
    hold = Hold(prefilled)
    r, (p,), ds = pd([hold], [answer_ok] * 2)
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        p.wait_requests(1)
        for d in ds:
            d.stop()
        p.handler = prefilled
        hold.release()
        m = c.read_response()
    assert m.status == 502 and m.json()["error"]["code"] == "worker_unreachable"
    assert wait_release(r, p) == {"remote_request_id": "cmpl-p0-1", "token": "t0ken"} and counts([p]) == [1]


@pytest.mark.parametrize("how", [502, 503, 429, 504, "dies"])
def test_a_failed_decode_begins_anew(pd, how):
    """Another pair from the start; what the first prefill keeps is given back. One that had the
    request may have taken the blocks, and an engine that refuses it has prefill free them."""
    r, (p,), ds = pd(decode=[says(how) if isinstance(how, int) else dies, answer_ok])
    m = r.request(body=CHAT)
    assert m.status == 200 and m.json()["worker"] == "d1"
    assert counts([p]) == [2] and counts(ds) == [1, 1]
    assert ds[1].requests[0].json()["kv_transfer_params"]["remote_request_id"] == "cmpl-p0-2"
    assert wait_release(r, p) == {"remote_request_id": "cmpl-p0-1", "token": "t0ken"}
    assert len(releases(p)) == 1 and went(r, split=1)


def test_a_500_of_decode_is_tried_once_more(pd):
    """Its worker may be the sick one; two that say so are believed."""
    r, ps, ds = pd(decode=[says(500), answer_ok])
    assert r.request(body=CHAT).status == 200 and counts(ds) == [1, 1]
    ds[1].handler = says(500)
    m = r.request(body=CHAT)
    assert m.status == 500 and b"says" in m.body and sum(counts(ds)) == 4


@pytest.mark.parametrize("status", [400, 409])
def test_decodes_own_answer_is_relayed(pd, status):
    r, (p,), ds = pd(decode=[says(status), answer_ok])
    m = r.request(body=CHAT)
    assert m.status == status and b"d0 says" in m.body and counts(ds) == [1, 0]
    wait_release(r, p)


def test_a_decode_stream_that_breaks_is_seen_to_break(pd):
    """After its first byte nothing is repeated, and the blocks are decode's affair."""
    def breaks(x):
        x.begin()
        x.event("1")
        dies(x)
    r, (p,), ds = pd(decode=[breaks, streams])
    m = r.request(body=dict(CHAT, stream=True))
    assert m.status == 200 and not m.ended and b"worker_broke" in m.body
    assert counts([p]) == [1] and counts(ds) == [1, 0]
    r.wait_idle()
    assert releases(p) == [] and r.metric("kvsteer_kv_releases_total") == 0


def test_without_a_token_nothing_is_released(pd):
    """vLLM: its lease ends by itself."""
    r, (p,), _ = pd([lambda x: x.answer(200, json.dumps({"kv_transfer_params": {"remote_request_id": "a"}}))], decode=[says(500)])
    assert r.request(body=CHAT).status == 500
    r.wait_idle()
    assert releases(p) == [] and r.metric("kvsteer_kv_releases_total") == 0


@pytest.mark.parametrize("how", ["refuses", "404", "hangs"])
def test_a_release_that_fails_is_nobodys_affair(pd, how):
    def run(x):
        if x.request.target != RELEASE:
            return prefilled(x)
        return hangs(x) if how == "hangs" else x.answer(404, "{}")
    hold = Hold(says(400))
    r, (p,), (d,) = pd([run], [hold])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        d.wait_requests(1)
        if how == "refuses":
            p.stop()
        hold.release()
        assert c.read_response().status == 400
    wait_until(lambda: r.metric("kvsteer_kv_releases_total", result="failed") == 1, "it is given up")


# ---- clients that leave ----

@pytest.mark.tsan
@pytest.mark.parametrize("phase", ["prefill", "prefill_answer", "decode", "decode_stream"])
def test_a_client_that_leaves_closes_the_leg(pd, phase):
    """A4: aborting either phase returns both loads to zero; the worker sees it, and blocks of no
    more use are given back."""
    def half(x):
        x.send(b'HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"kv_tr')
        return hangs(x)

    def begins(x):
        x.begin()
        x.event("1")
        return hangs(x)
    at_p = {"prefill": hangs, "prefill_answer": half}.get(phase)
    r, (p,), (d,) = pd([lambda x: prefilled(x) if at_p is None or x.request.target == RELEASE else at_p(x)],
                       [begins if phase == "decode_stream" else hangs])
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        x = (d if phase.startswith("decode") else p).wait_requests(1)
        if phase == "decode_stream":
            c.read_head()
            assert b"1" in c.read_chunk()
    assert x.gone.wait(harness.DEADLINE)
    r.wait_idle()
    assert load(r, "p0") == load(r, "d0") == 0
    if phase == "decode":
        assert wait_release(r, p) == {"remote_request_id": "cmpl-p0-1", "token": "t0ken"}
    else:
        assert releases(p) == []
    r.wait_metric(1, "kvsteer_requests_total", reason="client_gone")


def test_a_client_that_leaves_while_it_waits_for_decode(pd):
    """After its prefill, in the queue: no guard is held, and the blocks are given back."""
    at_p, at_d = Hold(prefilled), Hold()
    r, (p,), (d,) = pd([at_p], [at_d], keys="allow_pin = on\n", d0_keys="max_requests = 1")
    with r.connect() as c, r.connect() as other:
        c.send(make_request(body=CHAT))
        p.wait_requests(1)
        other.send(make_request(body={"model": "m", "messages": []}))  # takes the only place meanwhile
        d.wait_requests(1)
        at_p.release()
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 1, "it waits for decode")
        assert load(r, "p0") == 0
        c.close()
        wait_release(r, p)
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 0, "it has gone")
        at_d.release()
        assert other.read_response().status == 200
    assert counts([d]) == [1]


# ---- waiting ----

def test_no_prompt_is_computed_for_a_decode_that_is_full(pd):
    """It waits for decode first, and has it from then on."""
    at_d = Hold()
    r, (p,), (d,) = pd(decode=[at_d], d0_keys="max_requests = 1")
    with r.connect() as a, r.connect() as b:
        a.send(make_request(body=CHAT))
        d.wait_requests(1)
        b.send(make_request(body=CHAT))
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 1, "the second waits")
        assert counts([p]) == [1]
        at_d.release()
        assert a.read_response().status == b.read_response().status == 200
    assert counts([p, d]) == [2, 2]


def test_who_was_prefilled_is_served_before_newcomers(pd):
    """Its blocks are kept meanwhile: it waits for decode in front of those who have nothing yet."""
    at_p, first, order = Hold(prefilled), Hold(), []

    def decode(x):
        order.append(x.request.json()["user"])
        (first if len(order) == 1 else answer_ok)(x)
    r, (p,), (d,) = pd([at_p], [decode], d0_keys="max_requests = 1")
    short = {"model": "m", "messages": []}
    with r.connect() as a, r.connect() as b, r.connect() as c:
        a.send(make_request(body=dict(CHAT, user="prefilled")))
        p.wait_requests(1)
        b.send(make_request(body=dict(short, user="holds")))
        d.wait_requests(1)
        c.send(make_request(body=dict(short, user="newcomer")))
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 1, "the newcomer waits")
        at_p.release()
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 2, "and the prefilled one")
        first.release()
        assert [w.read_response().status for w in (a, b, c)] == [200] * 3
    assert order == ["holds", "prefilled", "newcomer"]


def test_a_full_queue_does_not_refuse_who_was_prefilled(pd):
    at_p, at_d = Hold(prefilled), Hold()
    r, (p,), (d,) = pd([at_p], [at_d], d0_keys="max_requests = 1", keys="queue_size = 0\n")
    with r.connect() as a, r.connect() as b:
        a.send(make_request(body=CHAT))
        p.wait_requests(1)
        b.send(make_request(body={"model": "m", "messages": []}))
        d.wait_requests(1)
        assert r.request(body=CHAT).json()["error"]["code"] == "queue_full"
        at_p.release()
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 1, "it waits")
        at_d.release()
        assert a.read_response().status == b.read_response().status == 200


def test_one_slot_of_the_process_is_enough(pd):
    """max_concurrent_requests = 1: both legs are one request."""
    r, (p,), (d,) = pd(keys="max_concurrent_requests = 1\n", d0_keys="max_requests = 1", p0_keys="max_requests = 1")
    threads = [threading.Thread(target=lambda: done.append(r.request(body=CHAT).status)) for _ in range(8)]
    done = []
    for t in threads:
        t.start()
    for t in threads:
        t.join(harness.DEADLINE * 2)
    assert done == [200] * 8 and counts([p, d]) == [8, 8]


def test_prefill_that_is_full_is_waited_for(pd):
    at_p = Hold(prefilled)
    r, (p,), (d,) = pd([at_p], p0_keys="max_requests = 1")
    with r.connect() as a, r.connect() as b:
        a.send(make_request(body=CHAT))
        p.wait_requests(1)
        b.send(make_request(body=CHAT))
        wait_until(lambda: r.metric("kvsteer_queue_depth") == 1, "the second waits")
        at_p.release()
        assert a.read_response().status == b.read_response().status == 200
    assert counts([p, d]) == [2, 2]


# ---- roles ----

def test_pairs_are_of_one_kv_group(pd):
    """Engines of different kinds are never mixed."""
    r, ps, ds = pd([prefilled] * 2, [answer_ok] * 2, p0_keys="kv_group = a", p1_keys="kv_group = b", d0_keys="kv_group = b", d1_keys="kv_group = a")
    for _ in range(6):
        assert r.request(body=CHAT).status == 200
    for d, engine in ((ds[0], "e-p1"), (ds[1], "e-p0")):
        assert [m.json()["kv_transfer_params"]["remote_engine_id"] for m in d.requests] == [engine] * len(d.requests)
    assert counts(ps) == [3, 3] and counts(ds) == [3, 3]


@pytest.mark.parametrize("name,status,seen", [("d1", 200, ([1, 0], [0, 1])), ("p1", 200, ([0, 1], [1, 0])), ("nobody", 400, ([0, 0], [0, 0]))])
def test_a_pin_names_either_leg(pd, name, status, seen):
    r, ps, ds = pd([prefilled] * 2, [answer_ok] * 2, keys="allow_pin = on\n")
    assert r.request(body=CHAT, headers={"X-Kvsteer-Worker": name}).status == status
    assert (counts(ps), counts(ds)) == seen


def test_each_role_has_its_own_policy(pd):
    """cache_aware for prefill keeps a prompt where it was; round_robin for decode does not."""
    r, ps, ds = pd([prefilled] * 2, [answer_ok] * 2, of_prefill="policy = cache_aware", of_decode="policy = round_robin")
    for _ in range(4):
        assert r.request(body=CHAT).status == 200
    assert sorted(counts(ps)) == [0, 4] and counts(ds) == [2, 2]
    assert r.wait_log(r"prefill_policy=prefix_hit")


def test_explain_tells_both_choices(pd):
    """And routes nothing; kvsteerctl prints both."""
    r, ps, ds = pd([prefilled] * 2, [answer_ok] * 2, of_prefill="policy = cache_aware", of_decode="policy = round_robin\nprefix_block = 256")
    assert r.request(body=CHAT).status == 200
    there = next(p.name for p in ps if legs(p))
    e = r.explain(CHAT)
    assert (e["role"], e["policy"], len(e["candidates"])) == ("decode", "round_robin", 2) and e["chosen"] in ("d0", "d1")
    p = e["prefill"]
    assert (p["role"], p["policy"], p["chosen"], p["reason"], p["skipped"]) == ("prefill", "cache_aware", there, "prefix_hit", None)
    assert [c["worker"] for c in p["candidates"]] == ["p0", "p1"]
    assert r.explain({"model": "m", "messages": []})["prefill"]["skipped"] == "short"
    assert r.explain(dict(CHAT, n=2))["prefill"]["skipped"] == "whole"
    e = r.explain(CHAT, headers={"X-Kvsteer-Worker": "p1"})
    assert e["prefill"]["chosen"] == "p1" and e["prefill"]["reason"] == "pinned" and e["reason"] != "pinned"
    assert sum(counts(ps)) == sum(counts(ds)) == 1
    out = subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, "explain", "-"], input=json.dumps(CHAT), capture_output=True, text=True, timeout=harness.DEADLINE)
    assert out.returncode == 0 and re.search(r"decode +round_robin", out.stdout) and re.search(r"prefill +cache_aware", out.stdout), out


def test_roles_with_blocks_of_their_own_size(pd):
    """Each role's index is asked by hashes of its own prefix_block."""
    r, (p,), (d,) = pd(pool="policy = cache_aware\nkv_connector = nixl\n" + LASTING, of_decode="prefix_block = 256")
    assert [r.request(body=CHAT).status for _ in range(2)] == [200, 200]
    assert went(r, split=1, short=1), "decode's own index knew the second"


def shown(r, body):
    """What explain says of decode's choice and of prefill's: (chosen, its depth, blocks of the key)
    of each."""
    e = r.explain(body)
    return [(c["chosen"], next(x["depth"] for x in c["candidates"] if x["worker"] == c["chosen"]), c["key"]["blocks"]) for c in (e, e["prefill"])]


def cached(m):
    return tuple(int(n) for n in m.get("x-kvsteer-cached").split("/"))


@pytest.mark.parametrize("of_prefill,of_decode", [
    ("", ""), ("prefix_block = 64", ""), ("policy = round_robin", ""), ("", "policy = round_robin"),
    ("policy = prefix_affinity\naffinity_hash_tokens = 64", ""), ("", "policy = prefix_affinity\naffinity_hash_tokens = 64")])
def test_explain_shows_the_keys_that_both_legs_then_use(pd, of_prefill, of_decode):
    """Whatever the two roles read of a prompt, and however they cut it into blocks."""
    blocks = {"prefix_block = 64": len(WORDS) // 64}.get(of_prefill, len(WORDS) // 128)
    r, (p,), (d,) = pd(pool="policy = cache_aware\nkv_connector = nixl\npd_min_prefill = 0\n" + LASTING, keys="expose_worker = on\n",
                       of_prefill=of_prefill, of_decode=of_decode)
    for n in range(2):
        (_, _, decode_blocks), (chosen, depth, prefill_blocks) = shown(r, CHAT)
        assert chosen == "p0" and r.explain(CHAT)["prefill"]["skipped"] is None
        assert prefill_blocks in (blocks, blocks + 1) and decode_blocks in (len(WORDS) // 128, len(WORDS) // 128 + 1)
        m = r.request(body=CHAT)
        assert m.status == 200 and cached(m)[0] == depth
        assert cached(m)[1] in (0, prefill_blocks), "0: the role has no index"
    assert went(r, split=2)


def test_explain_tells_a_short_prompt_by_the_whole_of_it(pd):
    """Where decode's policy reads only a prompt's beginning, prefill's reads it all, and so does
    the look at decode."""
    r, (p,), (d,) = pd(pool="policy = cache_aware\nkv_connector = nixl\n" + LASTING, of_decode="policy = prefix_affinity\naffinity_hash_tokens = 64")
    said = r.explain(CHAT)["prefill"]
    assert said["skipped"] is None and said["uncached_tokens"] > 256
    assert r.request(body=CHAT).status == 200
    assert went(r, split=1)


def test_a_request_that_is_not_split_is_keyed_as_decode_cuts_prompts(pd):
    """And explain says so: decode's index is asked by hashes of decode's blocks, or nothing would
    ever match."""
    r, (p,), (d,) = pd(pool="policy = cache_aware\nkv_connector = nixl\n" + LASTING, of_prefill="prefix_block = 64", keys="expose_worker = on\n")
    body = dict(CHAT, n=2)
    for n in range(2):
        (chosen, depth, blocks), _ = shown(r, body)
        assert (chosen, depth) == ("d0", n * blocks) and blocks in (len(WORDS) // 128, len(WORDS) // 128 + 1)
        assert cached(r.request(body=body)) == (depth, blocks)
    assert went(r, whole=2)


def test_c07_a_split_pool_is_ready_while_its_decode_role_is(pd):
    r, (p,), (d,) = pd(pool=POOL.replace("health_failures = 1000", "health_failures = 1"))
    pool = r.request("GET", "/readiness").json()["pools"]["default"]
    assert pool == {"status": "ready", "roles": {"prefill": {"workers": 1, "usable": 1}, "decode": {"workers": 1, "usable": 1}}}
    p.healthy = False
    r.wait_workers("p0", state="unhealthy")
    m = r.request("GET", "/readiness")
    assert m.status == 200 and m.json()["pools"]["default"]["status"] == "partial" and m.json()["pools"]["default"]["roles"]["prefill"]["usable"] == 0
    assert r.request("GET", "/readiness?strict").status == 503
    assert r.request(body=CHAT).status == 200, "decode workers compute prompts themselves"
    p.healthy = True
    r.wait_workers("p0")
    d.healthy = False
    r.wait_workers("d0", state="unhealthy")
    m = r.request("GET", "/readiness")
    assert m.status == 503 and m.json()["pools"]["default"]["status"] == "not_ready"
    assert r.admin("DELETE", "workers/d0")[0] == 202
    wait_until(lambda: r.admin("GET", "workers/d0")[0] == 404, "it is gone")
    assert r.request("GET", "/readiness").status == 503, "prefill workers alone answer nobody"
    assert [m["policy"] for m in r.admin("GET", "status")[1]["pools"]] == ["least_requests"]


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["drain", "delete", "reload"])
def test_a_role_changes_in_mid_leg(pd, leg, how):
    """Drained, removed or reconfigured: the leg goes on to its end, and nothing is lost."""
    at_p, at_d = Hold(prefilled), Hold(streams)
    r, ps, ds = pd([at_p, prefilled], [at_d, streams])
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        ps[0].wait_requests(1)
        if leg == "decode":
            at_p.release()
            ds[0].wait_requests(1)
        w = ps[0] if leg == "prefill" else ds[0]
        if how == "drain":
            assert r.admin("POST", f"workers/{w.name}/drain")[0] == 202
        elif how == "delete":
            assert r.admin("DELETE", f"workers/{w.name}")[0] == 202
        else:
            assert r.reload(pd_conf([p for p in ps if p is not w], [d for d in ds if d is not w], POOL.replace("least_requests", "round_robin")))[0]
        at_p.release()
        at_d.release()
        m = c.read_response()
        assert m.status == 200 and m.ended and b"[DONE]" in m.body
    assert r.chat(CHAT["messages"], stream=True).status == 200
    r.wait_idle()


def test_a5_thresholds_of_a_role_count_where_it_inherits_its_policy(pd):
    """The decode role has thresholds and no policy of its own: a load of one more sheds there, and
    not in prefill."""
    at_d = Hold()
    r, ps, ds = pd([prefilled] * 2, [at_d] * 2, pool="policy = cache_aware\nkv_connector = nixl\npd_min_prefill = 0\n" + LASTING,
                   of_decode="balance_abs_threshold = 0\nbalance_rel_threshold = 1")
    with r.connect() as a, r.connect() as b:
        for n, c in enumerate((a, b), 1):
            c.send(make_request(body=CHAT))
            wait_until(lambda k=n: sum(counts(ds)) == k, "decode has it")
        assert sorted(counts(ps)) == [0, 2] and counts(ds) == [1, 1]
        at_d.release()
        assert a.read_response().status == b.read_response().status == 200


def test_a4_probes_never_touch_loads_of_either_role(pd):
    """Twelve health cycles with requests in both phases: their loads stay."""
    at_p, at_d = Hold(prefilled), Hold()
    calls = []

    def first_passes(x):
        calls.append(1)
        (prefilled if len(calls) == 1 or x.request.target == RELEASE else at_p)(x)
    r, (p,), (d,) = pd([first_passes], [at_d], pool="health_interval = 50ms\n" + POOL)
    with r.connect() as a, r.connect() as b:
        a.send(make_request(body=CHAT))
        d.wait_requests(1)
        b.send(make_request(body=CHAT))
        p.wait_requests(2)
        begin = (len(p.probes), len(d.probes))
        wait_until(lambda: len([m for m in p.probes[begin[0]:] if m.target == "/health"]) >= 12
                   and len([m for m in d.probes[begin[1]:] if m.target == "/health"]) >= 12, "12 health cycles")
        assert load(r, "p0") == load(r, "d0") == 1
        at_p.release()
        at_d.release()
        assert a.read_response().status == b.read_response().status == 200


# ---- sglang: both at once ----

SGLANG = "policy = least_requests\nkv_connector = sglang\n" + LASTING


def meets(bar):
    """A handler that answers once the other leg is there, too: neither is sent before the other."""
    def run(x):
        bar.wait(harness.DEADLINE)
        streams(x)
    return run


@pytest.mark.tsan
def test_sglang_both_legs_at_once(pd):
    """The same body to both, with a room that both know; decode's answer is the client's."""
    bar = threading.Barrier(2)
    r, (p,), (d,) = pd([meets(bar)], [meets(bar)], pool=SGLANG, keys="expose_worker = on\n", p0_keys="bootstrap_port = 9123")
    body = dict(CHAT, stream=True, bootstrap_room=7, bootstrap_host="evil", max_tokens=5)
    with r.connect() as c:
        for _ in range(2):
            c.send(make_request(body=body))
            m = c.read_response()
            assert m.status == 200 and b'"worker":"d0"' in m.body and b"[DONE]" in m.body and m.get("x-kvsteer-worker") == "d0"
    r.wait_idle()
    rooms = set()
    for first, second in zip(p.requests, d.requests):
        assert first.json() == second.json()
        b = first.json()
        assert (b.pop("bootstrap_host"), b.pop("bootstrap_port")) == ("127.0.0.1", 9123)
        rooms.add(b.pop("bootstrap_room"))
        assert b == {k: v for k, v in body.items() if not k.startswith("bootstrap")}
    assert len(rooms) == 2 and all(0 <= room < 1 << 63 for room in rooms)
    assert went(r, split=2)
    assert "prefill=p0" in r.wait_log(r".*status=200.*").group(0)


def test_sglang_short_prompts_take_both_legs_too(pd):
    """Its decode servers wait for a prefill, whatever the length."""
    r, (p,), (d,) = pd([answer_ok], pool=SGLANG)
    assert r.request(body={"model": "m", "messages": []}).json()["worker"] == "d0"
    p.wait_requests(1)


def test_sglang_a_prefill_that_is_slower_is_drained(pd):
    """Decode's answer ends the request; prefill's exchange goes on to its end, and holds its guard
    until then."""
    hold = Hold(streams)
    r, (p,), (d,) = pd([hold], pool=SGLANG)
    with r.connect() as c:
        for n in (1, 2):  # the connection is free for the next one
            c.send(make_request(body=CHAT))
            assert c.read_response().json()["worker"] == "d0"
            wait_until(lambda k=n: load(r, "p0") == k and load(r, "d0") == 0, "prefill is still busy")
        assert not p.wait_requests(1).gone.is_set()
        hold.release()
    r.wait_idle()


@pytest.mark.parametrize("connector", ["nixl", "sglang"])
@pytest.mark.parametrize("silent", ["prefill", "decode"])
def test_total_timeout_of_either_leg(pd, connector, silent):
    """One after the other or side by side: 504 when it is over. Neither leg is tried on another
    worker, and both are closed."""
    decode = [hangs, hangs] if silent == "decode" or connector == "sglang" else [answer_ok, answer_ok]
    pool = SGLANG if connector == "sglang" else POOL
    r, ps, ds = pd([hangs, hangs] if silent == "prefill" else [prefilled, prefilled], decode, pool=pool + "total_timeout = 2s\nstall_timeout = 0\n")
    m = r.request(body=CHAT)
    assert m.status == 504 and m.json()["error"]["code"] == "worker_timeout"
    r.wait_idle()
    assert sum(counts(ps)) == 1 and sum(counts(ds)) == (0 if connector == "nixl" and silent == "prefill" else 1)


@pytest.mark.parametrize("how", [500, 503, 429, "dies", "refuses", "cut"])
def test_sglang_a_failed_prefill_closes_both(pd, how):
    """Before the client has a byte: decode's exchange is closed, another prefill is taken, with
    another room."""
    gate = threading.Event()

    def fails(x):
        gate.wait(harness.DEADLINE)
        if how != "cut":
            return dies(x) if how == "dies" else says(how)(x)
        x.send(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\nab")
        return "close"

    def decode(x):
        return streams(x) if x.request.json()["bootstrap_port"] == 9001 else hangs(x)
    r, ps, (d,) = pd([fails, streams], [decode], pool=SGLANG, p1_keys="bootstrap_port = 9001")
    if how == "refuses":
        ps[0].stop()
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        if how != "refuses":
            d.wait_requests(1)
        gate.set()
        m = c.read_response()
        assert m.status == 200 and b"[DONE]" in m.body
    ps[1].wait_requests(1)
    good = [m.json() for m in d.requests if m.json()["bootstrap_port"] == 9001]
    assert [b["bootstrap_room"] for b in good] == [ps[1].requests[0].json()["bootstrap_room"]]
    if how != "refuses":
        assert d.exchanges[0].gone.wait(harness.DEADLINE)
        assert d.requests[0].json()["bootstrap_room"] != d.requests[1].json()["bootstrap_room"] and counts(ps) == [1, 1]
    r.wait_idle()


def test_sglang_what_prefill_refuses_is_the_answer(pd):
    r, ps, (d,) = pd([says(400), streams], [hangs], pool=SGLANG)
    m = r.request(body=CHAT)
    assert m.status == 400 and b"p0 says" in m.body
    wait_until(lambda: all(x.gone.is_set() for x in d.exchanges), "decode's exchange is closed")
    r.wait_idle()


def after_prefill(p, then):
    """A decode worker's handler that waits until prefill has its part, too."""
    def run(x):
        p().wait_requests(1)
        return then(x)
    return run


@pytest.mark.parametrize("how", [503, "dies"])
def test_sglang_a_failed_decode_closes_both(pd, how):
    def hangs_first(x):
        return hangs(x) if x is p.exchanges[0] else streams(x)
    fails = after_prefill(lambda: p, says(how) if isinstance(how, int) else dies)
    r, (p,), ds = pd([hangs_first], [fails, streams], pool=SGLANG)
    m = r.request(body=dict(CHAT, stream=True))
    assert m.status == 200 and b'"worker":"d1"' in m.body
    p.wait_requests(2)
    assert p.exchanges[0].gone.wait(harness.DEADLINE)
    r.wait_idle()


def test_sglang_a_decode_that_refuses_ends_prefill_too(pd):
    r, (p,), (d,) = pd([hangs], [after_prefill(lambda: p, says(422))], pool=SGLANG)
    assert r.request(body=CHAT).status == 422
    assert p.exchanges[0].gone.wait(harness.DEADLINE)
    r.wait_idle()


@pytest.mark.parametrize("how", [500, "dies"])
def test_sglang_prefill_failing_later_is_decodes_affair(pd, how):
    """Once the client has bytes, nothing is repeated, and the stream is decode's."""
    began, gate = threading.Event(), threading.Event()

    def prefill(x):
        began.wait(harness.DEADLINE)
        return says(how)(x) if how == 500 else dies(x)

    def decode(x):
        x.begin()
        x.event("1")
        gate.wait(harness.DEADLINE)
        x.event("[DONE]")
        x.end()
    r, (p,), (d,) = pd([prefill], [decode], pool=SGLANG)
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        c.read_head()
        assert b"1" in c.read_chunk()
        began.set()
        wait_until(lambda: load(r, "p0") == 0, "prefill has ended")
        assert load(r, "d0") == 1
        gate.set()
        assert b"[DONE]" in c.read_chunk()
    r.wait_idle()
    assert r.metric("kvsteer_upstream_failures_total", worker="p0") == 1


@pytest.mark.tsan
@pytest.mark.parametrize("stage", ["both", "stream"])
def test_sglang_a_client_that_leaves_closes_both(pd, stage):
    def begins(x):
        x.begin()
        x.event("1")
        return hangs(x)
    r, (p,), (d,) = pd([hangs], [begins if stage == "stream" else hangs], pool=SGLANG)
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, stream=True)))
        x, y = p.wait_requests(1), d.wait_requests(1)
        if stage == "stream":
            c.read_head()
            assert b"1" in c.read_chunk()
    assert x.gone.wait(harness.DEADLINE) and y.gone.wait(harness.DEADLINE)
    r.wait_idle()


def test_sglang_without_prefill_there_is_no_answer(pd):
    r, _, (d,) = pd(prefill=[], pool=SGLANG)
    assert r.request(body=CHAT).json()["error"]["code"] == "no_worker" and counts([d]) == [0]
    assert r.request(path="/v1/embeddings", body={"model": "m", "input": "a"}).status == 200  # needs none


# ---- p2p_nccl: addresses in the id ----

P2P = "policy = least_requests\nkv_connector = p2p_nccl\n" + LASTING


def test_p2p_nccl_both_addresses_are_in_the_id(pd):
    """Decode is picked before prefill is asked; the client's own id reaches neither."""
    r, (p,), (d,) = pd(pool=P2P, p0_keys="bootstrap_port = 21001", d0_keys="bootstrap_port = 22001")
    evil = "___prefill_addr_10.9.9.9:1___decode_addr_10.9.9.9:2_" + "0" * 32
    m = r.request(body=CHAT, headers={"X-Request-Id": evil})
    assert m.status == 200 and m.json()["worker"] == "d0" and "10.9.9.9" not in (m.get("x-request-id") or "")
    first, second = p.requests[0].get("x-request-id"), d.requests[0].get("x-request-id")
    assert first == second and re.fullmatch(r"___prefill_addr_127.0.0.1:21001___decode_addr_127.0.0.1:22001_[0-9a-f]{32}", first)
    assert p.requests[0].json()["max_tokens"] == 1 and "max_tokens" not in d.requests[0].json()
    assert r.request(path="/tokenize", body={"model": "m", "prompt": "a"}, headers={"X-Request-Id": evil}).status == 200
    assert "10.9.9.9" not in d.requests[1].get("x-request-id")


def test_p2p_nccl_decode_is_reserved(pd):
    """It is told where to put the blocks: the same worker is asked after prefill, and counts from
    the start."""
    at_p = Hold(prefilled)
    r, (p,), ds = pd([at_p], [answer_ok] * 2, pool=P2P, d0_keys="bootstrap_port = 22000", d1_keys="bootstrap_port = 22001")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        x = p.wait_requests(1)
        k = int(re.search(r"decode_addr_127.0.0.1:2200(\d)_", x.request.get("x-request-id")).group(1))
        assert load(r, f"d{k}") == 1 and load(r, f"d{1 - k}") == 0 and load(r, "p0") == 1
        at_p.release()
        assert c.read_response().json()["worker"] == f"d{k}"


def test_p2p_nccl_another_prefill_is_another_id(pd):
    r, ps, (d,) = pd([says(503), prefilled], pool=P2P, p0_keys="bootstrap_port = 21000", p1_keys="bootstrap_port = 21001")
    assert r.request(body=CHAT).status == 200
    assert "prefill_addr_127.0.0.1:21001" in d.requests[0].get("x-request-id")
    assert ps[1].requests[0].get("x-request-id") == d.requests[0].get("x-request-id") != ps[0].requests[0].get("x-request-id")


# ---- what must not reach an engine ----

@pytest.mark.parametrize("connector", ["nixl", "sglang", "p2p_nccl"])
@pytest.mark.parametrize("n", [1, 2])
def test_what_clients_say_of_transfers_reaches_nobody(pd, connector, n):
    """Overwritten where a leg has such a field, else gone: also nested, spelled with escapes,
    twice; in whole requests and on any path."""
    r, (p,), (d,) = pd(pool=POOL.replace("nixl", connector))
    evil = '"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.66.6.6"},"bootstrap_host":"10.66.6.6","bootstrap\\u005froom":666,"n":%d' % n
    body = '{%s,"model":"m","messages":%s,"kv_transfer\\u005fparams":{"remote_host":"10.66.6.6"},"sampling_params":{"extra_args":{%s}},"vllm_xargs":{%s}}' % (
        evil, json.dumps(CHAT["messages"]), evil, evil)
    for path in ("/v1/chat/completions", "/v1/embeddings", "/tokenize"):
        assert r.request(path=path, body=body).status == 200
    for m in p.requests + d.requests:
        assert b"10.66.6.6" not in m.body and b"666" not in re.sub(rb"\d{4,}", b"", m.body), "but in a random room of many digits"
        assert m.json()["messages"] == CHAT["messages"]
    assert len(d.requests) == 3


def test_what_cannot_be_read_and_seems_to_say_so_is_refused(pd):
    r, (p,), (d,) = pd()
    m = r.request(body='{"model":"m","messages":[],"kv_transfer_params":{"remote_host":"10.66.6.6"},}')
    assert m.status == 400 and m.json()["error"]["code"] == "malformed_request"
    assert counts([p, d]) == [0, 0]


def test_a_body_that_would_stream_through_is_read(pd):
    """Pinned, hashed by its client, in chunks: it is taken apart all the same."""
    r, (p,), (d,) = pd(keys="allow_pin = on\n")
    data = json.dumps(dict(CHAT, kv_transfer_params={"remote_host": "10.66.6.6"})).encode()
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Kvsteer-Worker: d0\r\nX-Kvsteer-Prefix: 128b;1,2,3,4,5,6,7,8,9,a,b,c,d\r\n"
               b"X-Kvsteer-Model: m\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        assert c.read_response().status == 200
    assert counts([p, d]) == [1, 1] and b"10.66.6.6" not in p.requests[0].body + d.requests[0].body
    assert d.requests[0].get("transfer-encoding") is None


def test_copies_count_as_body_memory(pd):
    """Both legs' bodies, and the prefill's answer: above body_memory 503, and all of it is given
    back."""
    hold = Hold(prefilled)
    r, (p,), (d,) = pd([hold], keys="body_memory = 128k\n")
    big = dict(CHAT, messages=[{"role": "user", "content": harness.text(50, 3)}])
    with r.connect() as c:
        c.send(make_request(body=big))
        p.wait_requests(1)
        assert 2 * 50 * 1024 < r.metric("kvsteer_body_memory_bytes") < 128 * 1024
        m = r.request(body=big)
        assert m.status == 503 and m.json()["error"]["code"] == "overloaded"
        hold.release()
        assert c.read_response().status == 200
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "nothing is held")
    assert counts([p]) == [1]


def test_stored_responses_stay_with_their_decode_worker(pd):
    """What continues one goes there whole; who has it by id alone is asked there, too."""
    def stores(x):
        x.answer(200, json.dumps({"id": f"resp_{x.worker.name}", "object": "response"}))
    r, (p,), ds = pd(decode=[stores, stores])
    m = r.request(path="/v1/responses", body={"model": "m", "input": WORDS})
    assert m.status == 200 and counts([p]) == [1]
    home = next(d for d in ds if legs(d))
    for _ in range(3):
        assert r.request(path="/v1/responses", body={"model": "m", "input": WORDS, "previous_response_id": f"resp_{home.name}"}).status == 200
    assert r.request("GET", f"/v1/responses/resp_{home.name}").status == 200
    assert len(home.requests) == 5 and counts([p]) == [1]


# ---- nixl_push ----

@pytest.mark.parametrize("own", [False, True])
def test_nixl_push_both_legs_carry_one_transfer_id(pd, own):
    """And one request id, by which vLLM 0.32 pairs them; an id in prefill's parameters holds."""
    def answers(x):
        x.answer(200, json.dumps({"choices": [], "kv_transfer_params": params(x, transfer_mode="push", **({"transfer_id": "its own"} if own else {}))}))
    r, (p,), (d,) = pd([answers], pool=POOL.replace("nixl", "nixl_push"))
    for _ in range(2):
        assert r.request(body=CHAT, headers={"X-Request-Id": "mine"}).status == 200
    ids = []
    for first, second in zip(p.requests, d.requests):
        asked, given = first.json()["kv_transfer_params"], second.json()["kv_transfer_params"]
        ids.append(asked.pop("transfer_id"))
        assert asked == {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                         "remote_block_ids": None, "remote_host": None, "remote_port": None}
        assert given.pop("transfer_id") == ("its own" if own else ids[-1])
        assert given["transfer_mode"] == "push" and given["remote_engine_id"] == "e-p0" and given["remote_block_ids"] == [[4, 5, 6]]
        assert first.get("x-request-id") == second.get("x-request-id") == "mine"
    assert len(set(ids)) == 2 and all(re.fullmatch(r"xfer-[0-9a-f-]{36}", i) for i in ids)


# ---- what prefill held already ----

def told(cached, prompt=2048):
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1, "prompt_tokens_details": {"cached_tokens": cached}}}


@pytest.mark.parametrize("path,says_so,seen", [
    ("/v1/chat/completions", told(256), (256, 2048)),
    ("/v1/chat/completions", told(0), (0, 2048)),
    ("/v1/chat/completions", {**told(None), "more": {"remote_prefill_cached_tokens": 512}}, (512, 2048)),
    ("/v1/chat/completions", {**told(1), "more": {"remote_prefill_cached_tokens": 0}}, (0, 2048)),
    ("/v1/completions", told(17), (17, 2048)),
    ("/v1/responses", {"usage": {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 128}}}, (128, 900)),
    ("/v1/messages", {"usage": {"input_tokens": 700, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 100}}, (200, 1000)),
    ("/inference/v1/generate", {"more": {"remote_prefill_cached_tokens": 64}}, (64, None)),
    ("/v1/chat/completions", told(None), None)])
def test_c12_what_prefill_had_cached_is_told(pd, path, says_so, seen):
    """Decode's own number would be nearly all of the prompt: prefill's is in the access log and in
    X-Kvsteer-Cached, behind the blocks that the router believed in."""
    def answers(x):
        said = dict(says_so)
        x.answer(200, json.dumps({"id": "p", "choices": [{"text": "x"}], "kv_transfer_params": params(x, **said.pop("more", {})), **said}))
    r, (p,), (d,) = pd([answers], keys="expose_worker = on\n")
    body = {"/v1/completions": {"prompt": WORDS}, "/v1/responses": {"input": WORDS}, "/inference/v1/generate": {"token_ids": list(range(2048))}}.get(path, CHAT)
    m = r.request(path=path, body={"model": "m", "max_tokens": 5, **body})
    assert m.status == 200 and counts([p, d]) == [1, 1]
    line = r.wait_log(r".*route=.*status=200.*").group(0)
    parts = m.get("x-kvsteer-cached").split("; ")
    assert re.fullmatch(r"\d+/\d+", parts[0])
    if seen is None:
        assert parts[1:] == [] and "prefill_cached" not in line
        return
    wanted = [f"prefill_cached={seen[0]}"] + ([f"prefill_tokens={seen[1]}"] if seen[1] is not None else [])
    assert parts[1:] == wanted and line.split("prefill_ms=")[1].split()[1:] == wanted


@pytest.mark.parametrize("how", ["json", "list", "events"])
def test_c12_sglang_prefill_is_overheard(pd, how):
    """Its response is nobody's; what it says of its cache is in the access log, if it ends first."""
    ended = threading.Event()

    def prefill(x):
        if how == "events":
            x.begin()
            x.event(json.dumps({"text": "a", "meta_info": {"prompt_tokens": 40, "cached_tokens": 32}}))
            x.event("[DONE]")
            x.end()
        else:
            said = {"text": "a", "meta_info": {"prompt_tokens": 20, "cached_tokens": 16}}
            x.answer(200, json.dumps([said, said] if how == "list" else {**said, **told(32, 40)}))
        ended.set()

    def decode(x):
        ended.wait(harness.DEADLINE)
        wait_until(lambda: load(r, "p0") == 0 and ways(r) is not None, "prefill has ended")
        answer_ok(x)
    r, (p,), (d,) = pd([prefill], [decode], pool=SGLANG)
    body = {"text": [WORDS, WORDS] if how == "list" else WORDS, "stream": how == "events"}
    assert r.request(path="/generate", body=body).status == 200
    assert "prefill_cached=32 prefill_tokens=40" in r.wait_log(r".*route=.*status=200.*").group(0)


# ---- a storm ----

@pytest.mark.tsan
@pytest.mark.parametrize("connector", ["nixl", "sglang", "p2p_nccl"])
def test_a_storm_of_aborts_leaves_nothing(pd, connector):
    """Clients that leave at every step, and workers of both roles that fail in every way: guards,
    memory and connections are balanced."""
    rnd, came = random.Random(connector), threading.Condition()

    def any_of(*ways):
        def run(x):
            if x.request.target == RELEASE:
                return prefilled(x)
            with came:
                way = rnd.choice(ways)
                came.notify_all()
            return way(x)
        return run

    def half(x):
        x.begin()
        x.event("1")
        return hangs(x)
    prefill = any_of(prefilled, prefilled, streams, says(503), says(500), says(400), dies, hangs, half)
    decode = any_of(streams, streams, answer_ok, says(503), says(400), dies, hangs, half)
    r, ps, ds = pd([prefill] * 2, [decode] * 2, keys="threads = 4\nqueue_timeout = 2s\n",
                   pool=POOL.replace("nixl", connector) + "first_byte_timeout = 150ms\nstream_idle_timeout = 150ms\nupstream_idle = 100ms\n",
                   **{f"{w}_keys": "max_requests = 6" for w in ("p0", "p1", "d0", "d1")})
    arrived = [0]

    def run(seed):
        mine = random.Random(seed)
        for _ in range(25):
            try:
                with r.connect() as c:
                    data = make_request(body=dict(CHAT if mine.random() < 0.8 else {"model": "m", "messages": []}, stream=mine.random() < 0.5))
                    how = mine.randrange(5)
                    c.send(data[:mine.randrange(1, len(data))] if how == 0 else data)
                    if how == 1:  # once any worker has got one more
                        with came:
                            came.wait(0.1)
                    elif how == 2:
                        c.sock.recv(mine.randrange(1, 200))
                    elif how >= 3:
                        c.read_response()
                        with came:
                            arrived[0] += 1
                    if mine.random() < 0.3:
                        c.reset()
            except (harness.Closed, OSError):
                pass
    threads = [threading.Thread(target=run, args=(k,)) for k in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(harness.DEADLINE * 6)
        assert not t.is_alive()
    r.wait_idle()
    wait_until(lambda: not r.metric("kvsteer_body_memory_bytes") and not r.metric("kvsteer_connections", side="worker")
               and not r.metric("kvsteer_connections", side="client"), "nothing is held")
    assert arrived[0] > 100 and sum(ways(r).values()) > 100
    for w in ps + ds:
        w.handler = prefilled if w in ps else streams
    # A worker that is not given the machine for 150 ms is timed out, even now.
    wait_until(lambda: r.request(body=dict(CHAT, stream=True)).status == 200, "it serves as ever")


# ---- mooncake: prefill's engine is known by its bootstrap server ----

def test_mooncake(pd, worker):
    """The engine id comes from GET /query of the bootstrap server; both legs share a transfer id.
    Until it is known, decode does it all."""
    boot = worker("boot")
    r, (p,), (d,) = pd(pool=POOL.replace("nixl", "mooncake"), p0_keys=f"bootstrap_port = {boot.port}\nworker_key = secret")
    assert r.request(body=CHAT).status == 200
    assert counts([p, d]) == [0, 1] and d.requests[0].json() == CHAT and went(r, no_prefill=1)
    boot.told["/query"] = {"0": {"engine_id": "eng-a", "worker_addr": {}}}

    def goes_over_both():
        assert r.request(body=CHAT).status == 200
        return legs(p)
    wait_until(goes_over_both, "the engine id is known")
    first, second = p.requests[0].json(), d.requests[-1].json()
    id_ = first["kv_transfer_params"].pop("transfer_id")
    assert re.fullmatch(r"xfer-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", id_) and first["max_tokens"] == 1
    assert first["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert second.pop("kv_transfer_params") == {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": id_,
                                               "remote_bootstrap_addr": f"http://127.0.0.1:{boot.port}", "remote_engine_id": "eng-a"}
    assert second == CHAT
    assert r.request(body=CHAT).status == 200 and p.requests[1].json()["kv_transfer_params"]["transfer_id"] != id_
    assert all(m.get("authorization") is None for m in boot.probes), "the worker's key is not the bootstrap server's affair"
    assert p.requests[0].get("authorization") == "Bearer secret"


def test_f6_mooncake_a_first_token_that_ends_the_text(pd, worker):
    """vLLM's producer forgets such a transfer, and decode would wait: the prefill leg asks for one
    token whatever it is, and where it ends by itself all the same, decode computes the prompt."""
    boot = worker("boot")
    boot.told["/query"] = {"0": {"engine_id": "eng-a"}}
    r, (p,), (d,) = pd(pool=POOL.replace("nixl", "mooncake"), p0_keys=f"bootstrap_port = {boot.port}")
    ends = [b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}']
    p.handler = lambda x: x.answer(200, ends[0])

    def hands_over():
        assert r.request(body=CHAT).status == 200
        return "kv_transfer_params" in d.requests[-1].json()
    wait_until(hands_over, "the engine id is known, and the prefill was cut")
    assert p.requests[-1].json()["min_tokens"] == 1
    ends[0] = b'{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}'
    n = len(p.requests)
    assert r.request(body=CHAT).status == 200
    assert len(p.requests) == n + 1 and d.requests[-1].json() == CHAT and wait_until(lambda: ways(r).get("recomputed") == 1, "it is counted") is not False


def test_mooncake_another_engine_is_learned(pd, worker):
    """Its process was restarted: the next round knows the new id."""
    boot = worker("boot")
    boot.told["/query"] = {"0": {"engine_id": "eng-a"}}
    r, (p,), (d,) = pd(pool=POOL.replace("nixl", "mooncake").replace("policy", "health_interval = 100ms\npolicy", 1), p0_keys=f"bootstrap_port = {boot.port}")

    def engine():
        assert r.request(body=CHAT).status == 200
        return d.requests[-1].json().get("kv_transfer_params", {}).get("remote_engine_id")
    wait_until(lambda: engine() == "eng-a", "the first")
    boot.told["/query"] = {"0": {"engine_id": "eng-b"}}
    wait_until(lambda: engine() == "eng-b", "the second")
