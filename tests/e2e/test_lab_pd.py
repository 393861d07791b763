"""The two recorded incidents in miniature: two prefill and two decode engines, of which one is wedged or degraded behind a green health; and the same fleet when all is well."""
import concurrent.futures
import os
import random

import openai
import pytest
from engine_proc import Engine, expected, render, tokenize

import harness
from harness import wait_until
from lab import DEGRADED_WINDOW, PdLab, degrade, hold_each, mix_under_load, only_whole, tell_outcomes, wedge, whole

@pytest.fixture
def lab(router):
    return lambda *a, **kw: PdLab(router, *a, **kw)


def test_a_wedged_decode_engine(lab):
    """It holds streams and prompts that it has not taken yet; both end whole when it goes on, which it does by itself. Prefill does not notice."""
    with lab() as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b, 2, ["d0", "d1"])
        wedge(b, crowd, "d0", 2)
        b.clear("d0")
        b.wait_back("d0", "d1")
        whole(streams)
        assert b.split() > 60
    only_whole(b)


def test_a_wedged_prefill_engine(lab):
    """Whoever is in it waits for it; streams on decode engines do not notice, new requests go to the other one."""
    with lab() as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b, 1, ["d0", "d1"])
        wedge(b, crowd, "p0", 1)
        whole(streams)
        b.clear("p0")
        b.wait_back("p0", "p1")
    only_whole(b)


def test_a_degraded_decode_engine_attracts_nothing(lab):
    """Under least_requests it would get more the slower it is."""
    with lab(pool=DEGRADED_WINDOW) as b, b.crowd(clients=12) as crowd:
        crowd.serve(20)
        held = degrade(b, crowd, "d0")
        b.wait_back("d0", "d1")
        whole([held])
    only_whole(b)


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_restart_empty(lab, name):
    """Its own streams break; a prompt that it had computed, or was about to take, is computed and taken anew by others, and nobody notices."""
    with lab(pool="cb_failure_threshold = 1000\n") as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b, 2, ["d1"])
        b.restart(name)
        b.r.wait_log(rf"worker {name} was restarted")
        b.wait_back(name)
        whole(streams)
    bad = [o for o in b.outcomes if o.how != "whole"]
    assert all(o.how == "broken" and o.worker == "d0" for o in bad) and (name == "d0" or not bad), bad


SEEDS = range(int(os.environ.get("KVSTEER_LAB_SEEDS", "3")))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_under_load(lab, seed):
    """Of two engines at once, of either role: at least one of each role is well at any time."""
    rng = random.Random(seed)
    with lab(3, policy=("least_requests", "cache_aware", "round_robin")[seed % 3], seed=seed) as b, b.crowd() as crowd:
        mix_under_load(b, crowd, rng, most=2)
    tell_outcomes(b, f"seed {seed}")


# ---- all is well ----

def client_of(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=4 * harness.DEADLINE)


def converse(client, model, i, turns=3):
    """The texts of a conversation, streamed and whole in turns; each is what the engine's function gives."""
    messages = [{"role": "system", "content": f"You are number {i}. " + "Be brief. " * 40}]
    said = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} of {i}, please."})
        if turn % 2 == 0:
            chunks = client.chat.completions.create(model=model, messages=messages, max_tokens=12, stream=True)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        else:
            text = client.chat.completions.create(model=model, messages=messages, max_tokens=12).choices[0].message.content
        assert text == expected(tokenize(render(messages)), 12)
        said.append(text)
        messages.append({"role": "assistant", "content": text})
    return said


def test_the_text_is_that_of_one_engine(lab):
    """The real client through the router over four engines, and the same conversations with one engine alone: the same bytes."""
    with lab(flags=("--sim-speed", "0"), policy="cache_aware") as b, Engine("--served-model-name", "m", "--sim-speed", "0") as alone:
        with client_of(f"http://127.0.0.1:{b.r.port}") as split, client_of(alone.url) as one, concurrent.futures.ThreadPoolExecutor(4) as pool:
            over_four = list(pool.map(lambda i: converse(split, "m", i), range(12)))
            assert over_four == [converse(one, "m", i) for i in range(12)]
            prompt = "Once upon a time " * 50
            texts = [c.completions.create(model="m", prompt=prompt, max_tokens=40).choices[0].text for c in (split, one)]
            assert texts[0] == texts[1] == expected(tokenize(prompt), 40)
        wait_until(lambda: b.split() == 37, "every request went over both")
        m = {e.name: e.metrics() for e in b.engines}
        assert all(m[n]["vllm:nixl_num_failed_transfers_total"] == 0 for n in m)
        sent = sum(m[p]["kvsteer_engine_kv_sent_blocks_total"] for p in ("p0", "p1"))
        assert sent == sum(m[d]["vllm:nixl_num_descriptors_sum"] for d in ("d0", "d1")) > 0
        for d in ("d0", "d1"):  # computes the last token of each prompt, and the answers
            there = m[d]["vllm:external_prefix_cache_hits_total"] + m[d]["vllm:prefix_cache_hits_total"]
            assert there == m[d]["vllm:prompt_tokens_total"] - m[d]["vllm:time_to_first_token_seconds_count"]


def test_a_decode_engine_that_refuses_the_connect_is_replaced(router):
    """Its process is gone when the prompt is computed: the other one takes the blocks that wait, once computed."""
    with Engine("--role", "prefill", "--sim-speed", "0") as p, Engine("--role", "decode", "--sim-speed", "0") as d0, Engine("--role", "decode", "--sim-speed", "0") as d1:
        conf = "[pool default]\npolicy = round_robin\nkv_connector = nixl\nhealth_interval = 1000s\n"
        for name, role, e in (("p", "prefill", p), ("d0", "decode", d0), ("d1", "decode", d1)):
            conf += f"[worker {name}]\nurl = {e.url}\nrole = {role}\n"
        r = router(conf=conf, keys="expose_worker = on\n", wait=False)
        r.wait_workers("p", "d0", "d1")
        prompts = [f"{i} times upon a time " * 90 for i in range(2)]

        def ask(prompt):
            m = r.request(path="/v1/completions", body={"model": "sim", "prompt": prompt, "max_tokens": 20})
            assert m.status == 200 and m.json()["choices"][0]["text"] == expected(tokenize(prompt), 20)
            return m.get("x-kvsteer-worker")
        first = ask(prompts[0])
        left, dead = (d0, d1) if first == "d0" else (d1, d0)
        dead.stop()
        assert ask(prompts[1]) == first and "retries=1" in r.wait_log(r"(?s)(.*route=.*status=200[^\n]*){2}").group(0)
        assert p.metrics()["vllm:time_to_first_token_seconds_count"] == 2, "each prompt is computed once"
        assert left.metrics()["kvsteer_engine_kv_leases"] == p.metrics()["kvsteer_engine_kv_leases"] == 0
        wait_until(lambda: r.metric("kvsteer_pd_requests_total", way="split") == 2, "both are counted")
        assert r.metric("kvsteer_kv_releases_total") == 0
