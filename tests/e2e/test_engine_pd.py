"""Prompts computed by one kvsteer-engine and answered by another: the text is that of one engine
alone, and every way in which the hand-off can fail."""

import collections
import concurrent.futures
import http.client
import itertools
import json
import random
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import kvx
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
    """engine(role, *flags) -> an Engine in which nothing takes time; in the end nothing is left in
    any that lives."""
    all_ = []

    def start(role, *flags, speed="0", **kw):
        for patience in ("--kvx-connect-timeout", "--kvx-stall-timeout"):  # a slow machine is no failure
            flags += () if patience in flags else (patience, "30s")
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
    """Same prompts, same bytes, whether unified or disaggregated; whole and streamed; what was
    cached by the decode worker is not taken again."""
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
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0, "the prefill worker has computed it"
    m = d.metrics()
    assert m["vllm:external_prefix_cache_queries_total"] == len(ids)
    assert m["vllm:external_prefix_cache_hits_total"] == m["vllm:prompt_tokens_cached_total"] == len(ids) - 1
    assert m["vllm:prefix_cache_hits_total"] == 0
    assert re.search(r'prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} %d\n' % (len(ids) - 1), d.get("/metrics"))
    assert re.search(r'prompt_tokens_by_source_total\{.*source="local_compute"\} 1\n', d.get("/metrics"))


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_c12_cached_is_what_nobody_had_to_compute(two, engine, is_stream):
    """The prefill worker's own hits, whatever was transferred, or cached by the decode worker; where
    it does not say, or its prompt is not taken, what was not computed here."""
    p, d = two

    def cached(prompt, params, at=d):
        body = {"prompt": prompt, "max_tokens": 3, "n": 2, "kv_transfer_params": params}
        if is_stream:
            body.update(stream=True, stream_options={"include_usage": True})
        status, fields, data = send(at, body)
        assert status == 200
        usage = json.loads(data.split(b"\n\n")[-3][6:] if is_stream else data)["usage"]
        assert usage["prompt_tokens"] == len(tokenize(prompt))
        return usage["prompt_tokens_details"]["cached_tokens"], fields["X-KV-Source"]

    prompt = "The sea is wide, and so is the sky. " * 40
    n, blocks = len(tokenize(prompt)), (len(tokenize(prompt)) - 1) // 16
    fresh = keep(p, prompt)
    assert fresh["remote_prefill_cached_tokens"] == 0
    assert cached(prompt, fresh) == (0, "transferred")
    again = keep(p, prompt)
    assert again["remote_prefill_cached_tokens"] == 16 * blocks
    assert cached(prompt, again)[0] == 16 * blocks
    longer = prompt + "It goes on. " * 20
    half = keep(p, longer)
    assert 16 * blocks - 16 <= half["remote_prefill_cached_tokens"] <= n < len(tokenize(longer))
    assert cached(longer, half) == (half["remote_prefill_cached_tokens"], "transferred")
    silent = {k: v for k, v in keep(p, "all new: " + longer).items() if k != "remote_prefill_cached_tokens"}
    assert cached("all new: " + longer, silent) == (len(tokenize("all new: " + longer)) - 1, "transferred")
    e = engine("decode", "--kv-load-failure-policy", "recompute")
    gone = {**keep(p, prompt), "remote_request_id": "cmpl-0000000000000000"}
    assert cached(prompt, gone, e) == (0, "recomputed")
    assert cached(prompt, None)[0] == 16 * blocks, "computed here, but for what is cached here"


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


# ---- failures, each a row of the protocol's table ----

NO = itertools.count()


def fresh(blocks=4):
    """A prompt that no cache has, of so many blocks, the last of them not full."""
    return f"{next(NO):04d}" + "abcd" * (blocks * 16 - 5)


class Failing:
    """A prefill and two decode workers: one fails what cannot be taken, one recomputes."""

    def __init__(self, engine, *flags):
        self.p = engine("prefill")
        self.d = engine("decode", *flags)
        self.r = engine("decode", "--kv-load-failure-policy", "recompute", *flags)

    def proxy(self, *a):
        return kvx.Proxy(json.loads(self.p.get("/server_info"))["kvx_port"], *a)

    def expect(self, meddle, why, prompt=None):
        """With the params that meddle() makes of good ones neither of them takes the prompt, and
        both say so as they should."""
        prompt = prompt or fresh()
        params = keep(self.p, prompt)
        failed = self.d.metrics()["vllm:nixl_num_failed_transfers_total"]
        bad = meddle(params)
        for stream in (False, True):
            got, _, data = send(self.d, {"prompt": prompt, "max_tokens": 4, "stream": stream, "kv_transfer_params": bad})
            error = json.loads(data)["error"]
            assert (got, error["code"], error["retryable"]) == (502, "kv_load_failed", True), error
            assert re.search(why, error["message"]), error
        assert self.d.metrics()["vllm:nixl_num_failed_transfers_total"] == failed + 2
        assert self.d.metrics()["vllm:kv_cache_usage_perc"] == 0
        assert take(self.r, prompt, bad, 4) == (200, "recomputed", expected(tokenize(prompt), 4))
        m = self.r.metrics()
        assert m["kvsteer_engine_kv_recomputed_total"] == m["vllm:nixl_num_failed_transfers_total"] >= 1
        return prompt, params

    def still_kept(self, prompt, params):
        """A failure here does not take the prompt from those who try again."""
        assert take(self.d, prompt, params, 4) == (200, "transferred", expected(tokenize(prompt), 4))
        wait_for(lambda: self.p.metrics()["kvsteer_engine_kv_leases"] == 0, "given back")


def give_back(e, params):
    body = {"remote_request_id": params["remote_request_id"], "token": params["kvx_token"]}
    assert e.post("/v1/kv/release", body)[0] == 200


@pytest.fixture
def failing(engine):
    return lambda *flags: Failing(engine, *flags)


def test_nobody_listens(failing):
    f = failing()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        prompt, params = f.expect(lambda p: {**p, "remote_port": s.getsockname()[1]}, "cannot be reached")
    f.still_kept(prompt, params)


def test_nobody_answers(failing):
    """A black hole: accepted by the kernel, and silence."""
    f = failing("--kvx-connect-timeout", "150ms")
    with socket.create_server(("127.0.0.1", 0)) as s:
        give_back(f.p, f.expect(lambda p: {**p, "remote_port": s.getsockname()[1]}, "cannot be reached")[1])


PLACES = [(kvx.HELLO_OK, 0, 0), (kvx.HELLO_OK, 0, 20), (kvx.HELLO_OK, 0, 50), (kvx.PULL_OK, 0, 0), (kvx.PULL_OK, 0, 31), (kvx.PULL_OK, 0, 33), (kvx.BLOCK, 0, 0), (kvx.BLOCK, 0, 7),
          (kvx.BLOCK, 0, 33), (kvx.BLOCK, 1, 100), (kvx.BLOCK, 3, 0), (kvx.BLOCK, 3, -1), (kvx.END, 0, 0), (kvx.END, 0, 15), (kvx.END, 0, -1)]


@pytest.mark.parametrize("what", ["cut", "reset"])
def test_the_connection_ends(failing, what):
    """Wherever it ends, nothing of what came is used, and the prompt can be taken on another
    way."""
    f = failing()
    for kind, nth, at in PLACES:
        why = "cannot be reached" if kind == kvx.HELLO_OK else "broke" if what == "cut" else "broke|cannot be reached"  # RST overtakes
        with f.proxy(kind, nth, at, what) as proxy:
            prompt, params = f.expect(proxy.params, why)
            assert proxy.happened.is_set()
            if kind == kvx.HELLO_OK:
                assert proxy.connections == 2 * 3, "two tries"
        assert f.p.metrics()["kvsteer_engine_kv_leases"] == 1
        f.still_kept(prompt, params)


def test_silence_in_the_middle(failing):
    f = failing("--kvx-stall-timeout", "200ms")
    for kind, nth, at in PLACES[4::3]:
        with f.proxy(kind, nth, at, "stall") as proxy:
            give_back(f.p, f.expect(proxy.params, "sends nothing")[1])


def test_silence_at_the_beginning(failing):
    f = failing("--kvx-connect-timeout", "200ms")
    for kind, nth, at in PLACES[:3]:
        with f.proxy(kind, nth, at, "stall") as proxy:
            give_back(f.p, f.expect(proxy.params, "cannot be reached")[1])


def test_a_bit_is_wrong(failing):
    """The sums of header and payload find it, whatever it is."""
    f = failing()
    for kind, nth, at in [(kvx.HELLO_OK, 0, 5), (kvx.HELLO_OK, 0, 50), (kvx.PULL_OK, 0, 8), (kvx.PULL_OK, 0, 34)] + [(kvx.BLOCK, 2, at) for at in (0, 4, 9, 12, 13, 17, 21, 29, 32, 39, 41, 175)] + [(kvx.END, 0, 40)]:
        with f.proxy(kind, nth, at, "flip") as proxy:
            _, params = f.expect(proxy.params, "damaged")
            assert proxy.happened.is_set()
        give_back(f.p, params)


def other_block(raw):
    """Bytes of a block changed by somebody who knows the sums."""
    payload = bytearray(raw[32:])
    payload[60] ^= 1
    stream = kvx.Frame(raw).stream
    return kvx.frame(kvx.BLOCK, bytes(payload), stream)


def test_what_came_is_not_what_was_sent(failing):
    """A block that is whole but another one: the digest of all finds it."""
    f = failing()
    with f.proxy(kvx.BLOCK, 1, 0, other_block) as proxy:
        give_back(f.p, f.expect(proxy.params, "damaged")[1])


def test_the_blocks_of_another_prompt(failing):
    """All sums are right, and the blocks too, but for another prompt: they are compared with the
    prompt before they are used."""
    f = failing()
    other = fresh()
    params = keep(f.p, other)
    give_back(f.p, f.expect(lambda p: params, "damaged", prompt=fresh())[1])
    wait_for(lambda: f.p.metrics()["kvsteer_engine_kv_leases"] == 0, "the one that computed it has given it back")
    assert f.d.metrics()["vllm:corrupted_requests_total"] == 0


OK = (kvx.PULL_OK, struct.pack("<IIIQ", 4, 60, 1000, 0))


@pytest.mark.parametrize("frames,why", [
    ([(kvx.BLOCK, b"\0" * 152)], "damaged"),
    ([(kvx.PULL_OK, struct.pack("<IIIQ", 3, 60, 1000, 0))], "damaged"),
    ([(kvx.PULL_OK, struct.pack("<IIIQ", 4, 59, 1000, 0))], "damaged"),
    ([(kvx.PULL_OK, b"")], "damaged"),
    ([OK, OK], "damaged"),
    ([OK, (kvx.BLOCK, struct.pack("<IHH", 1, 16, 0) + b"\0" * 144)], "damaged"),
    ([OK, (kvx.BLOCK, struct.pack("<IHH", 0, 16, 0) + b"\0" * 143)], "damaged"),
    ([OK, (kvx.BLOCK, struct.pack("<IHH", 0, 15, 0) + b"\0" * 144)], "damaged"),
    ([OK, (kvx.BLOCK, struct.pack("<IHH", 0, 16, 0) + b"\xff" * 144)], "damaged"),
    ([OK, (kvx.END, struct.pack("<IQ", 4, 0))], "damaged"),
    ([kvx.frame(kvx.PULL)], "damaged"),
    ([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"], "damaged"),
    ([(kvx.ERR, struct.pack("<H", 5) + kvx.text("no"))], "refuses"),
    ([kvx.frame(kvx.ERR, struct.pack("<H", 4) + kvx.text("no"))], "lease is over"),
    ([kvx.frame(kvx.ERR, b"\0\0")], "damaged"),
])
def test_a_prefill_worker_that_says_nonsense(failing, frames, why):
    """In place of PULL_OK."""
    f = failing()
    with f.proxy(kvx.PULL_OK, 0, 0, lambda raw: b"".join(kvx.frame(*x, stream=kvx.Frame(raw).stream) if isinstance(x, tuple) else x for x in frames)) as proxy:
        give_back(f.p, f.expect(proxy.params, why)[1])


def test_a_lease_ends(engine):
    """Nobody takes it: the blocks are free when its time is over, and who comes later is told
    so."""
    p, d = engine("prefill", "--kv-lease", "100ms"), engine("decode")
    prompt = fresh()
    params = keep(p, prompt)
    wait_for(lambda: p.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 1, "it is over")
    assert p.metrics()["vllm:kv_cache_usage_perc"] == 0
    status, _, error = take(d, prompt, params)
    assert status == 502 and error["code"] == "kv_load_failed" and "the lease is over" in error["message"]


def test_who_waits_for_its_turn_keeps_what_it_wants(engine):
    """Longer than a lease: signs of life come from a request's arrival on, though the step loop
    stands still."""
    p, d = engine("prefill", "--kv-lease", "6s"), engine("decode", faults=True)
    prompt = fresh()
    d.fault(wedge=True)
    params = keep(p, prompt)
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, d, prompt, params)
        wait_for(lambda: d.metrics()["vllm:num_requests_waiting"] == 1, "it waits")
        wait_for(lambda: time.monotonic() > begun + 7, "longer than the lease")
        assert p.metrics()["kvsteer_engine_kv_leases"] == 1 and p.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
        d.clear_faults()
        assert answer.result() == (200, "transferred", expected(tokenize(prompt), 8))


@pytest.mark.parametrize("kind,nth,at", [(kvx.HELLO_OK, 0, 0), (kvx.PULL_OK, 0, 0), (kvx.BLOCK, 0, 50), (kvx.BLOCK, 2, 0), (kvx.END, 0, 0)])
def test_a_client_leaves_while_blocks_come(two, kind, nth, at):
    """The blocks of both sides are free at once, long before the lease ends; but for a prefill
    worker that cannot be told, whose lease ends."""
    p, d = two
    prompt = fresh()
    params = keep(p, prompt)
    with kvx.Proxy(params["remote_port"], kind, nth, at, "stall") as proxy:
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "stream": True, "kv_transfer_params": proxy.params(params)}).encode()
        with socket.create_connection(("127.0.0.1", d.port), timeout=DEADLINE_S) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert proxy.happened.wait(DEADLINE_S)
        wait_for(lambda: d.metrics()["vllm:kv_cache_usage_perc"] == 0 and d.metrics()["vllm:num_requests_waiting"] == 0, "the decode worker's are free")
        if kind != kvx.HELLO_OK:
            wait_for(lambda: p.metrics()["kvsteer_engine_kv_leases"] == 0, "the prefill worker's are free")
            assert p.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 0
    if kind == kvx.HELLO_OK:  # its connection has just broken
        wait_for(lambda: d.metrics()["vllm:nixl_num_failed_notifications_total"] == 1, "it could not be told")
        give_back(p, params)
    assert d.metrics()["vllm:request_success_total:abort"] == 1


def test_the_decode_worker_dies(engine):
    """In the middle of it; another one takes all of it."""
    p, d, other = engine("prefill"), engine("decode"), engine("decode")
    prompt = fresh()
    params = keep(p, prompt)
    with kvx.Proxy(params["remote_port"], kvx.BLOCK, 2, 10, "stall") as proxy, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, d, prompt, proxy.params(params))
        assert proxy.happened.wait(DEADLINE_S)
        d.process.kill()
        d.process.communicate()
        assert isinstance(answer.exception(), (OSError, http.client.HTTPException))
    assert p.metrics()["kvsteer_engine_kv_leases"] == 1
    assert take(other, prompt, params) == (200, "transferred", expected(tokenize(prompt), 8))


def test_two_take_the_same(engine):
    """Allowed until one of them gives it back; the other then hears that it is gone."""
    p, d, other = engine("prefill"), engine("decode", "--kvx-stall-timeout", "60s"), engine("decode")
    prompt = fresh(blocks=200)  # more than there is credit for at once
    params = keep(p, prompt)
    with kvx.Proxy(params["remote_port"], kvx.BLOCK, 40, 0, held := Held()) as proxy, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, d, prompt, proxy.params(params))
        assert held.came.wait(DEADLINE_S)
        assert take(other, prompt, params) == (200, "transferred", expected(tokenize(prompt), 8))
        wait_for(lambda: p.metrics()["kvsteer_engine_kv_leases"] == 0, "given back")
        held.go.set()
        status, _, error = answer.result()
        assert status == 502 and "the lease is over" in error["message"]


class Held:
    """Lets a frame pass when it is told to."""

    def __init__(self):
        self.came, self.go = threading.Event(), threading.Event()

    def __call__(self, raw):
        self.came.set()
        assert self.go.wait(DEADLINE_S)
        return raw


def test_the_prefill_worker_restarts(engine):
    """On the same port: another process has nothing for the params of the former one, and says
    so."""
    p, d = engine("prefill", faults=True), engine("decode")
    prompt = fresh()
    params = keep(p, prompt)
    p.restart_empty()
    assert p.metrics()["kvsteer_engine_kv_leases"] == 0 and p.metrics()["vllm:kv_cache_usage_perc"] == 0
    status, _, error = take(d, prompt, params)
    assert status == 502 and "another process" in error["message"]
    # who pretends to know the new one is found out by the token
    status, _, error = take(d, prompt, {**params, "remote_engine_id": json.loads(p.get("/server_info"))["engine_id"]})
    assert status == 502 and "another process" in error["message"]
    again = keep(p, prompt)
    assert again["remote_port"] == params["remote_port"] and again["remote_engine_id"] != params["remote_engine_id"]
    assert take(d, prompt, again)[:2] == (200, "transferred")


def test_the_prefill_worker_dies(engine):
    """While blocks come, and before: with policy recompute the client does not notice."""
    p, d = engine("prefill"), engine("decode", "--kv-load-failure-policy", "recompute")
    first, second = fresh(), fresh()
    params, later = keep(p, first), keep(p, second)
    with kvx.Proxy(params["remote_port"], kvx.BLOCK, 2, 10, "stall") as proxy, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, d, first, proxy.params(params))
        assert proxy.happened.wait(DEADLINE_S)
        p.process.kill()
        p.process.communicate()
        proxy.stop()
        assert answer.result() == (200, "recomputed", expected(tokenize(first), 8))
    assert take(d, second, later) == (200, "recomputed", expected(tokenize(second), 8))


def test_too_much_is_kept(engine):
    p = engine("prefill", "--sim-blocks", "40", "--max-leased-fraction", "0.25")
    params = [keep(p, fresh(5)), keep(p, fresh(5))]
    status, fields, data = send(p, {"prompt": fresh(1), "max_tokens": 1, "kv_transfer_params": KEEP})
    assert status == 503 and fields["Retry-After"] == "1", data
    assert send(p, {"prompt": fresh(20), "max_tokens": 1})[0] == 200, "others are served"
    for one in params:
        give_back(p, one)
    one = keep(p, fresh(10))
    give_back(p, one)


def test_engines_that_do_not_fit(engine):
    """Another model: 409, not to be tried again, before anything is sent."""
    p = engine("prefill")
    d, r = (engine("decode", "--model", "other", "--kv-load-failure-policy", policy) for policy in ("fail", "recompute"))
    assert json.loads(p.get("/server_info"))["kv_group"] != json.loads(d.get("/server_info"))["kv_group"]
    prompt = fresh()
    params = keep(p, prompt)
    for _ in range(2):
        status, _, error = take(d, prompt, params)
        assert (status, error["code"], error["retryable"]) == (409, "kv_incompatible", False)
    assert take(r, prompt, params) == (200, "recomputed", expected(tokenize(prompt), 8))
    assert p.metrics()["kvsteer_engine_kv_sent_blocks_total"] == 0
    give_back(p, params)


def test_only_peers(engine):
    """Neither does a request send the worker to anybody, nor does anybody get blocks."""
    p, d, strict = engine("prefill"), engine("decode"), engine("decode", "--kvx-peers", "10.0.0.0/8")
    closed = engine("prefill", "--kvx-peers", "10.0.0.0/8,192.168.0.0/16 fe80::/10")
    prompt = fresh()
    with socket.create_server(("127.0.0.1", 0)) as s:
        s.settimeout(0)
        params = keep(p, prompt)
        status, _, error = take(strict, prompt, {**params, "remote_port": s.getsockname()[1]})
        assert status == 502 and error["code"] == "kv_load_failed"
        with pytest.raises(BlockingIOError):
            s.accept()
    refused = keep(closed, prompt)
    status, _, error = take(d, prompt, refused)
    assert status == 502 and "cannot be reached" in error["message"]
    give_back(closed, refused)
    give_back(p, params)


@pytest.mark.parametrize("change", [{"remote_engine_id": None}, {"remote_request_id": ""}, {"remote_host": "p.example"}, {"remote_port": 0}, {"remote_port": "5600"},
                                    {"remote_block_ids": []}, {"remote_block_ids": [[]]}, {"remote_block_ids": None}, {"kvx_token": None}, {"kvx_token": "00"}, {"remote_request_id": "x" * 200}])
def test_params_of_no_use(two, change):
    """As those of another kind of engine: the prompt is computed."""
    p, d = two
    prompt = fresh()
    params = keep(p, prompt)
    assert take(d, prompt, {**params, **change}) == (200, None, expected(tokenize(prompt), 8))
    assert p.post("/v1/kv/release", {"remote_request_id": params["remote_request_id"], "token": params["kvx_token"]})[1] == {"released": True}
    assert d.metrics()["vllm:nixl_num_failed_transfers_total"] == 0


# ---- decode workers that say nonsense ----

@pytest.fixture
def raw(two):
    """A prefill worker, the compat bytes of its HELLO_OK, and params of a prompt of 4 blocks."""
    p, d = two
    prompt = fresh()
    with kvx.Proxy(json.loads(p.get("/server_info"))["kvx_port"]) as proxy:
        assert take(d, prompt, proxy.params(keep(p, prompt)))[:2] == (200, "transferred")
        wait_for(lambda: p.metrics()["kvsteer_engine_kv_leases"] == 0, "given back")
        compat = proxy.compat
    params = keep(p, fresh())
    yield p, compat, params
    give_back(p, params)


def test_credit_is_kept_to(raw):
    """No block comes without; END comes with the last one."""
    p, compat, params = raw
    with kvx.Peer(params["remote_port"]) as c:
        c.greet(compat)
        c.send(kvx.frame(kvx.PULL, kvx.pull(params, credit=0), 7))
        f = c.read()
        assert (f.kind, f.stream) == (kvx.PULL_OK, 7)
        blocks, tokens, left = struct.unpack("<III", f.payload[:12])
        assert (blocks, tokens) == (4, 60) and 0 < left <= 30000
        for i in range(4):
            c.send(kvx.frame(kvx.PING, aux=i))
            f = c.read()
            assert (f.kind, f.aux) == (kvx.PONG, i), "nothing but this came"
            c.send(kvx.frame(kvx.CREDIT, struct.pack("<I", 1), 7))
            f = c.read()
            assert (f.kind, f.stream) == (kvx.BLOCK, 7)
            assert struct.unpack("<IHH", f.payload[:8]) == (i, 16 if i < 3 else 12, 0) and len(f.payload) == 8 + 144
        assert c.read().kind == kvx.END
        # skip, and two streams at once
        c.send(kvx.frame(kvx.PULL, kvx.pull(params, skip=3), 8) + kvx.frame(kvx.PULL, kvx.pull(params, skip=4), 9))
        assert [(f.kind, f.stream) for f in (c.read() for _ in range(5))] == [(kvx.PULL_OK, 8), (kvx.BLOCK, 8), (kvx.END, 8), (kvx.PULL_OK, 9), (kvx.END, 9)]
        # a stream that is cancelled sends nothing more
        c.send(kvx.frame(kvx.PULL, kvx.pull(params, credit=1), 10) + kvx.frame(kvx.CANCEL, stream=10) + kvx.frame(kvx.CREDIT, struct.pack("<I", 9), 10) + kvx.frame(kvx.PING))
        assert [c.read().kind for _ in range(3)] == [kvx.PULL_OK, kvx.BLOCK, kvx.PONG]
        # signs of life, for what there is and what there is not, and by the right token only
        request, token = params["remote_request_id"], params["kvx_token"]
        c.send(kvx.heartbeat((request, token), ("other", token), (request, "11" * 32)))
        f = c.read()
        n, there, gone, others = struct.unpack("<HIII", f.payload)
        assert f.kind == kvx.HEARTBEAT_OK and n == 3 and there > 0 and gone == others == 0
        # given back by the right token only
        for token, leases in (("11" * 32, 1), (params["kvx_token"], 0)):
            c.send(kvx.frame(kvx.RELEASE, kvx.text(params["remote_request_id"]) + bytes.fromhex(token) + b"\1") + kvx.frame(kvx.PING))
            assert c.read().kind == kvx.PONG
            assert p.metrics()["kvsteer_engine_kv_leases"] == leases
        c.send(kvx.frame(kvx.PULL, kvx.pull(params), 11) + kvx.frame(kvx.PULL, kvx.pull(params, token="00" * 32), 12))
        assert [(f.kind, f.stream, f.code()) for f in (c.read(), c.read())] == [(kvx.ERR, 11, kvx.LEASE_GONE), (kvx.ERR, 12, kvx.WRONG_ENGINE)]


def test_who_does_not_know_the_token_keeps_no_lease(raw, engine):
    """However often it says that it wants it: the lease ends in its time."""
    _, compat, _ = raw
    p = engine("prefill", "--kv-lease", "300ms")
    params = keep(p, "abcd" * 20)
    with kvx.Peer(params["remote_port"]) as c:
        c.greet(compat)

        def is_over():
            c.send(kvx.heartbeat((params["remote_request_id"], "22" * 32)))
            assert c.read().payload == struct.pack("<HI", 1, 0)
            return p.metrics()["vllm:nixl_num_kv_expired_reqs_total"] == 1

        wait_for(is_over, "the lease ends")


@pytest.mark.parametrize("first", [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 32, b"\0" * 64, b"KVX1" + b"\xff" * 60, kvx.frame(99), kvx.frame(kvx.HELLO, b"\0" * 70000),
    kvx.frame(kvx.HELLO, b"abc", crc=1), kvx.frame(kvx.BLOCK, b"\0" * 70000)],
    ids=["HTTP", "zeros", "damaged", "unknown", "long HELLO", "wrong sum", "BLOCK to a prefill worker"])
def test_no_frames(raw, first):
    """The connection ends, without a word."""
    p, compat, params = raw
    with kvx.Peer(params["remote_port"]) as c:
        c.send(first)
        assert c.read() is None
    assert p.metrics()["kvsteer_engine_kv_leases"] == 1


@pytest.mark.parametrize("frames,code", [
    (lambda compat, params: [kvx.frame(kvx.PULL, kvx.pull(params), 1)], kvx.PROTOCOL),
    (lambda compat, params: [kvx.frame(kvx.HELLO)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", b"\1" * 32)], kvx.COMPAT),
    (lambda compat, params: [("hello", compat, {"version": 2})], kvx.COMPAT),
    (lambda compat, params: [("hello", compat, {"block_bytes": 145})], kvx.COMPAT),
    (lambda compat, params: [("hello", compat, {"caps": 2})], kvx.COMPAT),
    (lambda compat, params: [("hello", compat), ("hello", compat)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.END, b"\0" * 12, 1)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.PULL, b"", 1)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.PULL, kvx.pull(params, skip=5), 1)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.PULL, kvx.pull(params), 0)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.PULL, kvx.pull(params, credit=0), 1), kvx.frame(kvx.PULL, kvx.pull(params), 1)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.heartbeat(*[("a", "00" * 32)] * 257)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.HEARTBEAT, struct.pack("<H", 1) + kvx.text(params["remote_request_id"]))], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.CREDIT, b"\0", 1)], kvx.PROTOCOL),
    (lambda compat, params: [("hello", compat), kvx.frame(kvx.RELEASE, b"\0\0")], kvx.PROTOCOL),
])
def test_frames_that_are_not_expected(raw, frames, code):
    """ERR says why, then the connection ends; nothing is given back."""
    p, compat, params = raw
    with kvx.Peer(params["remote_port"]) as c:
        for f in frames(compat, params):
            if isinstance(f, tuple):
                c.hello(f[1], **(f[2] if len(f) > 2 else {}))
            else:
                c.send(f)
        last = None
        while (f := c.read()) is not None:
            last = f
        assert (last.kind, last.stream, last.code()) == (kvx.ERR, 0, code)
    assert p.metrics()["kvsteer_engine_kv_leases"] == 1


# ---- with everything else ----

def test_faults_in_both_roles(engine):
    """What the control socket tells works as ever: a wedge holds either leg, streams break, answers
    fail."""
    p, d = engine("prefill", faults=True), engine("decode", faults=True)
    prompt = fresh()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        p.fault(wedge=True)
        first = pool.submit(keep, p, prompt)
        wait_for(lambda: p.metrics()["vllm:num_requests_waiting"] == 1, "it stands still")
        assert not first.done()
        p.clear_faults()
        params = first.result()
        d.fault(wedge=True)
        second = pool.submit(take, d, prompt, params)
        wait_for(lambda: d.metrics()["vllm:num_requests_waiting"] == 1, "it stands still")
        d.clear_faults()
        assert second.result() == (200, "transferred", expected(tokenize(prompt), 8))
    prompt = fresh()
    d.fault(cut_after=3, cut_how="fin")
    with pytest.raises((http.client.HTTPException, OSError)):
        send(d, {"prompt": prompt, "max_tokens": 8, "stream": True, "kv_transfer_params": keep(p, prompt)})
    d.clear_faults()
    p.fault(answer=503, retry_after=3, answer_left=1)
    status, fields, _ = send(p, {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": KEEP})
    assert (status, fields["Retry-After"]) == (503, "3")


def test_a_drained_prefill_worker_waits_for_who_takes(engine):
    p, d = engine("prefill"), engine("decode")
    prompt = fresh()
    params = keep(p, prompt)
    p.process.terminate()
    assert b"draining" in p.process.stderr.readline() + p.process.stderr.readline() + p.process.stderr.readline()
    assert p.process.poll() is None
    assert take(d, prompt, params) == (200, "transferred", expected(tokenize(prompt), 8))
    assert p.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("blocks", [4096, 150])
def test_a_crowd(engine, blocks):
    """Two and two, many at once, with clients that leave; with few blocks, so that much is
    preempted and computed again: every text is right."""
    flags = ("--sim-blocks", blocks, "--max-num-seqs", 16, "--kv-lease", "10s")
    ps = [engine("prefill", *flags) for _ in range(2)]
    ds = [engine("decode", *flags, "--kv-load-failure-policy", "recompute") for _ in range(2)]
    sources = collections.Counter()

    def one(i):
        rng = random.Random(i)
        p, d = rng.choice(ps), rng.choice(ds)
        prompt = f"topic {rng.randrange(6)} " * rng.randrange(1, 60) + f"request {i}"
        while True:
            status, _, data = send(p, {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": KEEP})
            if status != 503:
                break
        params = json.loads(data)["kv_transfer_params"]
        if rng.random() < 0.2:
            body = json.dumps({"prompt": prompt, "max_tokens": 200, "stream": True, "kv_transfer_params": params}).encode()
            with socket.create_connection(("127.0.0.1", d.port), timeout=DEADLINE_S) as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                s.recv(rng.choice([1, 500, 5000])) if rng.random() < 0.7 else None
            return
        status, source, said = take(d, prompt, params, 40)
        assert (status, said) == (200, expected(tokenize(prompt), 40)), said
        sources[source] += 1

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(one, range(240)))
    print(sources)
    assert sources["transferred"] > 20 and set(sources) <= {"transferred", "local", "recomputed"}
