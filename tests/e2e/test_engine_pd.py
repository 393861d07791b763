"""Prompts computed by one kvsteer-engine and answered by another: the text is that of one engine alone, and every way in which the hand-off can fail."""

import json
import re
import time
import urllib.error
import urllib.request

import openai
import pytest
from engine_proc import Engine, expected, render, tokenize

DEADLINE_S = 60
KEEP = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}


def wait_for(check, what=""):
    end = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < end, f"deadline: {what}"
        time.sleep(0.005)


@pytest.fixture
def engine():
    """engine(role, *flags) -> an Engine in which nothing takes time; in the end nothing is left in any that lives."""
    all_ = []

    def start(role, *flags, speed="0", **kw):
        e = Engine("--role", role, "--sim-speed", speed, *flags, **kw)
        all_.append(e)
        return e.start()

    yield start
    for e in all_:
        if e.process is not None and e.process.poll() is None:
            wait_for(lambda e=e: e.metrics()["vllm:kv_cache_usage_perc"] == 0, f"{e.flags}: blocks are free")
            m = e.metrics()
            assert m["vllm:num_requests_running"] == m["vllm:num_requests_waiting"] == m["vllm:corrupted_requests_total"] == 0
            assert m["kvsteer_engine_kv_leases"] == m["kvsteer_engine_kv_leased_blocks"] == 0
            assert " error " not in e.stop()


@pytest.fixture
def two(engine):
    """A prefill and a decode worker."""
    return engine("prefill"), engine("decode")


def send(e, body, path="/v1/completions"):
    """Status, header fields and body of an answer."""
    request = urllib.request.Request(e.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def keep(e, prompt, **more):
    """The kv_transfer_params of a prompt that e has computed for another."""
    status, _, data = send(e, {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": KEEP, **more})
    answer = json.loads(data)
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length", answer
    return answer["kv_transfer_params"]


def take(e, prompt, params, n=8, **more):
    """Status, where the prompt came from, and the text or the error."""
    status, fields, data = send(e, {"prompt": prompt, "max_tokens": n, "kv_transfer_params": params, **more})
    answer = json.loads(data)
    return status, fields["X-KV-Source"], answer["choices"][0]["text"] if status == 200 else answer["error"]


PROMPTS = ["x", "abcd" * 15, "abcd" * 16, "abcd" * 17, "The sea is wide. " * 40, "long" + " and" * 5999]


# ---- what it is for ----

def test_the_text_is_that_of_one_engine(two, engine):
    """Same prompts, same bytes, whether unified or disaggregated; whole and streamed; what was cached by the decode worker is not taken again."""
    p, d = two
    u = engine("unified")
    for prompt in PROMPTS:
        params = keep(p, prompt)
        alone = take(u, prompt, None)
        assert alone[:2] == (200, None) and alone[2] == expected(tokenize(prompt), 8)
        status, source, text = take(d, prompt, params)
        assert (status, text) == (200, alone[2])
        assert source == ("local" if len(tokenize(prompt)) in (1, 17) else "transferred")
    m, sent = d.metrics(), p.metrics()["kvsteer_engine_kv_sent_blocks_total"]
    assert m["vllm:nixl_num_descriptors_sum"] == sent
    assert m["vllm:nixl_bytes_transferred_sum"] == sent * 144
    prompt = PROMPTS[-1] + " and on, and on"
    n, there = len(tokenize(prompt)), len(tokenize(PROMPTS[-1])) // 16
    assert take(d, prompt, keep(p, prompt))[:2] == (200, "transferred")
    assert p.metrics()["kvsteer_engine_kv_sent_blocks_total"] - sent == (n + 15) // 16 - there


def test_chats_and_streams_by_the_openai_client(two, engine):
    p, d = two
    messages = [{"role": "user", "content": "Tell me of the sea, at length. " * 9}]
    with openai.OpenAI(base_url=p.url + "/v1", api_key="none", max_retries=0) as a, openai.OpenAI(base_url=d.url + "/v1", api_key="none", max_retries=0) as b:
        first = a.chat.completions.create(model="sim", messages=messages, max_tokens=1, extra_body={"kv_transfer_params": KEEP})
        params = first.model_extra["kv_transfer_params"]
        assert first.choices[0].message.content == expected(tokenize(render(messages)), 1)
        chunks = list(b.chat.completions.create(model="sim", messages=messages, max_tokens=20, stream=True, stream_options={"include_usage": True}, extra_body={"kv_transfer_params": params}))
    ids = tokenize(render(messages))
    assert "".join(c.choices[0].delta.content for c in chunks if c.choices) == expected(ids, 20)
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == len(ids) - 1
    m = d.metrics()
    assert m["vllm:external_prefix_cache_queries_total"] == len(ids)
    assert m["vllm:external_prefix_cache_hits_total"] == m["vllm:prompt_tokens_cached_total"] == len(ids) - 1
    assert m["vllm:prefix_cache_hits_total"] == 0
    assert re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} %d\n' % (len(ids) - 1), d.get("/metrics"))
    assert re.search(r'prompt_tokens_by_source_total\{.*source="local_compute"\} 1\n', d.get("/metrics"))


def test_choices_share_what_was_taken(two):
    p, d = two
    prompt = "Five ways to go on from here. " * 9
    status, _, data = send(d, {"prompt": prompt, "max_tokens": 9, "n": 5, "kv_transfer_params": keep(p, prompt)})
    assert status == 200
    assert [c["text"] for c in json.loads(data)["choices"]] == [expected(tokenize(prompt), 9, k) for k in range(5)]
    assert d.metrics()["kvsteer_engine_computed_tokens_total"] == 5 + 5 * 8


def test_what_params_say(two, engine):
    p, d = two
    prompt = "abcd" * 40
    params = keep(p, prompt, max_completion_tokens=7)
    info = json.loads(p.get("/server_info"))
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    assert params["remote_engine_id"] == info["engine_id"] and params["remote_num_tokens"] == 40
    assert (params["remote_host"], params["remote_port"]) == (info["kvx_host"], info["kvx_port"]) == ("127.0.0.1", info["kvx_port"])
    assert len(params["remote_block_ids"]) == 1 and len(params["remote_block_ids"][0]) == 3
    assert re.fullmatch(r"cmpl-[0-9a-f]{16}", params["remote_request_id"]) and re.fullmatch(r"[0-9a-f]{64}", params["kvx_token"])
    assert params["tp_size"] == params["kvx_proto"] == 1 and params["transfer_mode"] == "pull" and params["kvx_lease_ms"] == 30000
    assert (info["role"], json.loads(d.get("/server_info"))["role"]) == ("prefill", "decode")
    assert json.loads(p.get("/health"))["role"] == "prefill" and json.loads(d.get("/health"))["role"] == "decode"
    assert info["kv_group"] == json.loads(d.get("/server_info"))["kv_group"]
    assert take(d, prompt, params)[0] == 200
    # requests decide, not roles; a unified engine without a listener does nothing of it
    assert take(p, "other " + prompt, keep(d, "other " + prompt))[:2] == (200, "transferred")
    u = engine("unified")
    status, _, data = send(u, {"prompt": prompt, "max_tokens": 3, "kv_transfer_params": KEEP})
    assert status == 200 and "kv_transfer_params" not in json.loads(data) and json.loads(data)["choices"][0]["text"] == expected(tokenize(prompt), 3)
    # no hand-off for lists, n and streams
    for more in ({"prompt": ["a", "b"]}, {"n": 2}, {"stream": True}):
        assert b"remote_engine_id" not in send(p, {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": KEEP, **more})[2]
    assert send(p, {"prompt": "x", "kv_transfer_params": 7})[0] == 400


def test_release_by_http(two):
    p, d = two
    params = keep(p, "abcd" * 40)
    assert p.metrics()["kvsteer_engine_kv_leased_blocks"] == 3 and p.metrics()["vllm:kv_cache_usage_perc"] == 3 / 4096
    body = {"remote_request_id": params["remote_request_id"], "token": params["kvx_token"]}
    assert p.post("/v1/kv/release", {**body, "token": "0" * 64})[0] == 403
    for bad in ({}, {"remote_request_id": 1, "token": body["token"]}, {**body, "token": "x"}, {**body, "token": None}, [], b"{"):
        assert p.post("/v1/kv/release", bad)[0] == 400
    assert p.metrics()["kvsteer_engine_kv_leases"] == 1
    assert p.post("/v1/kv/release", body) == (200, {"released": True})
    assert p.post("/v1/kv/release", body) == (200, {"released": False})
    assert p.metrics()["vllm:kv_cache_usage_perc"] == 0
    status, source, error = take(d, "abcd" * 40, params)
    assert (status, error["code"], error["retryable"]) == (502, "kv_load_failed", True)
