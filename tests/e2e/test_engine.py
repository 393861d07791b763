"""kvsteer-engine, the real binary, through the real OpenAI client and through raw sockets."""

import asyncio
import collections
import concurrent.futures
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.error

import openai
import pytest
from engine_proc import Engine, expected, render, tokenize

DEADLINE_S = 60


@pytest.fixture
def engine():
    """An engine in which nothing takes time."""
    e = Engine("--sim-speed", "0").start()
    yield e
    metrics = e.metrics()
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0
    assert metrics["vllm:corrupted_requests_total"] == 0
    log = e.stop()
    assert " error " not in log and " warn " not in log, log


def client_of(e):
    return openai.OpenAI(base_url=e.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)


@pytest.fixture
def client(engine):
    with client_of(engine) as c:
        yield c


def wait_for(check):
    """Asks again until check() is true, or fails."""
    end = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < end, "deadline"


def dial(engine, *requests):
    s = socket.create_connection(("127.0.0.1", engine.port), timeout=DEADLINE_S)
    for r in requests:
        s.sendall(r)
    return s


def post(path, body, *lines):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    return (head + "".join(line + "\r\n" for line in lines) + "\r\n").encode() + data


def read_all(s):
    data = b""
    while piece := s.recv(65536):
        data += piece
    return data


def read_until(s, text):
    data = b""
    while text not in data:
        piece = s.recv(65536)
        assert piece, data
        data += piece
    return data


CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Tell me of the sea, at length."}]


def test_chat(client):
    answer = client.chat.completions.create(model="sim", messages=CHAT, max_tokens=20)
    ids = tokenize(render(CHAT))
    assert answer.object == "chat.completion"
    assert answer.model == "sim"
    assert len(answer.choices) == 1
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected(ids, 20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == len(ids) + 20
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_streamed(client):
    chunks = list(
        client.chat.completions.create(
            model="sim", messages=CHAT, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
    )
    ids = tokenize(render(CHAT))
    assert len({c.id for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert "".join(c.choices[0].delta.content for c in chunks[:-1]) == expected(ids, 20)
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * 21 + ["length"]
    assert chunks[0].choices[0].delta.content == "", "who speaks, with the first token and before it"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == len(ids)
    assert chunks[-1].usage.completion_tokens == 20


def test_stream_on_the_wire(engine):
    body = {"messages": CHAT, "max_tokens": 3, "stream": True}
    with dial(engine, post("/v1/chat/completions", body, "Connection: close")) as s:
        head, rest = read_all(s).split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Type: text/event-stream\r\n" in head
    data = b""
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        data += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
        if size == b"0":
            break
    assert rest == b""
    events = data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    documents = [json.loads(e.removeprefix(b"data: ")) for e in events[:-2]]
    assert len(documents) == 5
    assert all("usage" not in d for d in documents)


def test_completion_forms(engine, client):
    text = "The quick brown fox jumps over the lazy dog."
    ids = tokenize(text)
    for prompt in (text, [text], ids, [ids]):
        answer = client.completions.create(model="sim", prompt=prompt, max_tokens=5)
        assert answer.object == "text_completion"
        assert [c.text for c in answer.choices] == [expected(ids, 5)]
        assert answer.usage.prompt_tokens == len(ids)
    many = client.completions.create(model="sim", prompt=["one", "two", "three"], max_tokens=4, n=2)
    assert [c.index for c in many.choices] == [0, 1, 2, 3, 4, 5]
    assert [c.text for c in many.choices] == [
        expected(tokenize(p), 4, k) for p in ("one", "two", "three") for k in (0, 1)
    ]
    assert many.usage.completion_tokens == 24
    assert client.completions.create(model="sim", prompt="x").usage.completion_tokens == 16


def test_choices(client):
    ids = tokenize(render(CHAT))
    whole = client.chat.completions.create(model="sim", messages=CHAT, max_tokens=8, n=2)
    assert [c.message.content for c in whole.choices] == [expected(ids, 8, 0), expected(ids, 8, 1)]
    assert whole.usage.prompt_tokens == len(ids)
    assert whole.usage.completion_tokens == 16
    texts = ["", ""]
    for chunk in client.chat.completions.create(model="sim", messages=CHAT, max_tokens=8, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts == [expected(ids, 8, 0), expected(ids, 8, 1)]


def test_a_conversation_stays_cached(engine, client):
    messages, cached = [{"role": "system", "content": "word " * 100}], []
    for turn in range(4):
        messages.append({"role": "user", "content": f"Question {turn}: what comes next, and why?"})
        answer = client.chat.completions.create(model="sim", messages=messages)
        assert answer.choices[0].finish_reason == "stop"
        assert 16 <= answer.usage.completion_tokens < 64
        assert answer.choices[0].message.content == expected(
            tokenize(render(messages)), answer.usage.completion_tokens
        )
        cached.append((answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens))
        before = answer.usage.total_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        if turn > 0:
            # All that the turn before computed, its answer included, but for the last block.
            assert cached[turn][0] >= (last_total - 1) // 16 * 16
        last_total = before
    assert cached[0][0] == 0
    metrics = engine.metrics()
    assert metrics["vllm:prefix_cache_hits_total"] == sum(c for c, _ in cached)
    assert metrics["vllm:prefix_cache_queries_total"] == sum(p for _, p in cached)
    assert metrics["vllm:prompt_tokens_total"] == sum(p for _, p in cached)


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_flush(engine, client, path):
    def cached(**more):
        answer = client.completions.create(model="sim", prompt="flush me " * 50, max_tokens=1, **more)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached() == 0
    full = cached()
    assert full > 100
    assert engine.post(path, {})[0] == 200
    assert cached() == 0
    assert cached() == full
    # Salts part what would be the same.
    assert cached(extra_body={"cache_salt": "a"}) == 0
    assert cached(extra_body={"cache_salt": "b"}) == 0
    assert cached(extra_body={"cache_salt": "a"}) == full


def test_tools_and_parts_are_part_of_the_prompt(client):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    chats = [
        dict(messages=CHAT),
        dict(messages=CHAT, tools=[tool]),
        dict(messages=CHAT[:1] + [{"role": "user", "content": [{"type": "text", "text": CHAT[1]["content"]}]}]),
        dict(messages=CHAT[:1] + [{"role": "user", "content": [image, {"type": "text", "text": "x"}]}]),
        dict(
            messages=CHAT
            + [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            ]
        ),
    ]
    texts = [
        client.chat.completions.create(model="sim", max_tokens=12, **chat).choices[0].message.content
        for chat in chats
    ]
    assert texts[0] == texts[2]
    assert len(set(texts)) == len(texts) - 1


def test_choices_share_their_prompt(engine, client):
    """Five answers cost one prompt; who writes into the shared last block copies it first."""
    text = "Five ways to begin from here, and no two of them alike. " * 9
    ids = tokenize(text)
    assert len(ids) % 16 > 1
    answer = client.completions.create(model="sim", prompt=text, max_tokens=40, n=5)
    assert [c.text for c in answer.choices] == [expected(ids, 40, k) for k in range(5)]
    assert answer.usage.prompt_tokens == len(ids)
    metrics = engine.metrics()
    assert metrics["vllm:prompt_tokens_total"] == len(ids)
    assert metrics["kvsteer_engine_block_copies_total"] == 4
    assert metrics["kvsteer_engine_computed_tokens_total"] == len(ids) + 4 + 5 * 39


def test_a_chat_goes_on_after_the_answer_so_far(engine, client):
    """continue_final_message: whatever of an answer is in the request, the rest of it comes, and it
    ends where it would have ended."""
    messages = [{"role": "user", "content": "how long is this?"}]
    whole = client.chat.completions.create(model="sim", messages=messages)
    words = re.findall(r" \S+", whole.choices[0].message.content)
    assert "".join(words) == whole.choices[0].message.content and len(words) == whole.usage.completion_tokens
    for there in range(len(words) + 1):
        said = [*messages, {"role": "assistant", "content": "".join(words[:there])}]
        rest = client.chat.completions.create(model="sim", messages=said, extra_body={"continue_final_message": True, "add_generation_prompt": False})
        assert rest.choices[0].message.content == "".join(words[there:]), there
        assert rest.choices[0].finish_reason == "stop"
        assert rest.usage.completion_tokens == len(words) - there
        assert rest.usage.prompt_tokens == whole.usage.prompt_tokens + there
    answered = client.chat.completions.create(model="sim", messages=said, max_tokens=1)
    assert answered.usage.prompt_tokens > rest.usage.prompt_tokens, "else it is a turn of its own"
    for keys, why in [({"continue_final_message": 1}, "must be true or false"), ({"add_generation_prompt": "x"}, "must be true or false"),
                      ({"continue_final_message": True, "add_generation_prompt": True}, "cannot both be true")]:
        status, answer = engine.post("/v1/chat/completions", {"messages": said, **keys})
        assert status == 400 and why in answer["error"]["message"]


def test_min_tokens_and_ignore_eos(engine, client):
    ids = tokenize("stop here")
    full = expected(ids, 40)
    words = full.split(" ")
    stop = " " + words[3]
    late = len("".join(" " + w for w in words[1:11]))
    later = full.find(stop, late - len(stop) + 1)
    text = client.completions.create(model="sim", prompt="stop here", max_tokens=40, stop=stop).choices[0].text
    assert text == full[: full.index(stop)]
    for stream in (False, True):
        answer = client.completions.create(
            model="sim", prompt="stop here", max_tokens=40, stop=stop, stream=stream, extra_body={"min_tokens": 10}
        )
        text = "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
        assert text == (full if later < 0 else full[:later])
    least = client.chat.completions.create(model="sim", messages=CHAT, extra_body={"min_tokens": 100})
    assert least.usage.completion_tokens == 100
    assert least.choices[0].finish_reason == "stop"
    with Engine("--sim-speed", "0", "--max-model-len", "300") as e, client_of(e) as c:
        on = c.chat.completions.create(model="sim", messages=CHAT, extra_body={"ignore_eos": True})
        assert on.usage.total_tokens == 300
        assert on.choices[0].finish_reason == "length"


def test_usage_in_every_event(client):
    chunks = list(
        client.completions.create(
            model="sim", prompt="count", max_tokens=4, stream=True, stream_options={"continuous_usage_stats": True}
        )
    )
    assert [c.usage.completion_tokens for c in chunks] == [1, 2, 3, 4, 4]
    assert all(c.usage.prompt_tokens == len(tokenize("count")) for c in chunks)


def test_stop_strings(client):
    ids = tokenize("stop here")
    full = expected(ids, 40)
    words = full.split(" ")
    stop = words[5] + " " + words[6][:2]  # across two tokens
    want = full[: full.index(stop)]
    whole = client.completions.create(model="sim", prompt="stop here", max_tokens=40, stop=["never", stop])
    assert whole.choices[0].text == want
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.completions.create(model="sim", prompt="stop here", max_tokens=40, stop=stop, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == want
    assert chunks[-1].choices[0].finish_reason == "stop"
    held = list(client.completions.create(model="sim", prompt="stop here", max_tokens=9, stop="zzzzzzzz", stream=True))
    assert "".join(c.choices[0].text for c in held) == expected(ids, 9)
    assert held[-1].choices[0].finish_reason == "length"


def test_tokenize(engine):
    for text in ("hello wörld  x\n\n", "", "日本語 and \U0001f600!"):
        status, answer = engine.post("/tokenize", {"prompt": text})
        assert status == 200
        assert answer["tokens"] == tokenize(text)
        assert answer["count"] == len(answer["tokens"])
        assert answer["max_model_len"] == 65536
        assert engine.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": text})
    assert engine.post("/tokenize", {"messages": CHAT})[1]["tokens"] == tokenize(render(CHAT))


def test_data_parallel_ranks_part_caches(client):
    def cached(rank):
        answer = client.completions.create(
            model="sim", prompt="rank me " * 50, max_tokens=1, extra_headers={"X-data-parallel-rank": rank}
        )
        assert answer.choices[0].text == expected(tokenize("rank me " * 50), 1)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached("0") == cached("1") == 0
    assert cached("0") == cached("1") == cached("none") > 100


def test_a_long_prompt_shares_with_short_ones():
    """With a threshold short prompts are answered while a long one is computed; without, after
    it."""
    for flags, first in ((["--long-prefill-token-threshold", "64"], "short"), ([], "long")):
        with Engine("--sim-prefill-rate", "10000", "--sim-blocks", "8192", *flags) as e:
            with dial(e, post("/v1/completions", {"prompt": "long " * 5000, "max_tokens": 1}, "Connection: close")) as s:
                wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 1)
                status, answer = e.post("/v1/completions", {"prompt": "short", "max_tokens": 1})
                assert status == 200 and answer["choices"][0]["text"] == expected(tokenize("short"), 1)
                s.setblocking(False)
                try:
                    done = s.recv(1) != b""
                except BlockingIOError:
                    done = False
                assert done == (first == "long")
                s.settimeout(DEADLINE_S)
                assert expected(tokenize("long " * 5000), 1).encode() in read_all(s)


def test_served_model_name():
    with Engine("--sim-speed", "0", "--model", "/models/some-model", "--served-model-name", 'na"me') as e:
        assert client_of(e).models.list().data[0].id == 'na"me'
        assert 'model_name="na\\"me"' in e.get("/metrics")
        assert e.post("/v1/completions", {"model": "/models/some-model", "prompt": "x"})[0] == 404
        assert e.post("/v1/completions", {"model": 'na"me', "prompt": "x"})[0] == 200


BAD = [
    (b"", 400, "JSON"),
    (b"{", 400, "JSON"),
    (b"[1]", 400, "object"),
    (b'{"prompt": "x", "prompt"}', 400, "JSON"),
    (b"\xff\xfe\x00", 400, "JSON"),
    ({}, 400, "'prompt' is missing"),
    ({"prompt": None}, 400, "'prompt'"),
    ({"prompt": 5}, 400, "'prompt'"),
    ({"prompt": {}}, 400, "'prompt'"),
    ({"prompt": ""}, 400, "empty"),
    ({"prompt": []}, 400, "empty"),
    ({"prompt": ["a", 5]}, 400, "'prompt'"),
    ({"prompt": [1, "a"]}, 400, "Token ids"),
    ({"prompt": [-1]}, 400, "Token ids"),
    ({"prompt": [285278464]}, 400, "Token ids"),
    ({"prompt": [1.5]}, 400, "Token ids"),
    ({"prompt": ["x"] * 200}, 400, "128"),
    ({"prompt": ["x"] * 100, "n": 2}, 400, "128"),
    ({"prompt": "x", "n": 0}, 400, "'n'"),
    ({"prompt": "x", "n": True}, 400, "'n'"),
    ({"prompt": "x", "max_tokens": 0}, 400, "'max_tokens'"),
    ({"prompt": "x", "max_tokens": "5"}, 400, "'max_tokens'"),
    ({"prompt": "x", "max_tokens": 1.5}, 400, "'max_tokens'"),
    ({"prompt": "x", "max_tokens": 2**63}, 400, ""),
    ({"prompt": "x", "max_tokens": 65536}, 400, "maximum context length is 65536"),
    ({"prompt": "xy z" * 100000}, 400, "maximum context length is 65536"),
    ({"prompt": "x", "stream": "yes"}, 400, "'stream'"),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "'stream_options'"),
    ({"prompt": "x", "stream": True, "stream_options": 1}, 400, "'stream_options'"),
    ({"prompt": "x", "stream": True, "stream_options": {"include_usage": 1}}, 400, "'include_usage'"),
    ({"prompt": "x", "stop": 5}, 400, "'stop'"),
    ({"prompt": "x", "stop": [""]}, 400, "'stop'"),
    ({"prompt": "x", "stop": ["y"] * 17}, 400, "'stop'"),
    ({"prompt": "x", "temperature": "hot"}, 400, "'temperature'"),
    ({"prompt": "x", "temperature": -1}, 400, "'temperature'"),
    ({"prompt": "x", "top_p": 2}, 400, "'top_p'"),
    ({"prompt": "x", "cache_salt": 1}, 400, "'cache_salt'"),
    ({"prompt": "x", "min_tokens": -1}, 400, "'min_tokens'"),
    ({"prompt": "x", "min_tokens": "1"}, 400, "'min_tokens'"),
    ({"prompt": "x", "min_tokens": 9, "max_tokens": 8}, 400, "'min_tokens' (9)"),
    ({"prompt": "x", "min_tokens": 17}, 400, "'max_tokens' (16)"),
    ({"prompt": "x", "ignore_eos": 1}, 400, "'ignore_eos'"),
    ({"prompt": "x", "priority": 0.5}, 400, "'priority'"),
    ({"prompt": "x", "priority": 2**40}, 400, "'priority'"),
    ({"prompt": "x", "stream": True, "stream_options": {"continuous_usage_stats": 1}}, 400, "'continuous_usage_stats'"),
    ({"prompt": "x", "model": 5}, 400, "'model'"),
    ({"prompt": "x", "model": "other"}, 404, "`other` does not exist"),
    ({"prompt": "x", "model": "ä" * 5000}, 404, "does not exist"),
]
BAD_CHATS = [
    ({}, "'messages'"),
    ({"messages": []}, "'messages'"),
    ({"messages": "hello"}, "'messages'"),
    ({"messages": ["hello"]}, "'role'"),
    ({"messages": [{"content": "x"}]}, "'role'"),
    ({"messages": [{"role": "user", "content": 5}]}, "'content'"),
    ({"messages": [{"role": "user", "content": [5]}]}, "part"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'text'"),
    ({"messages": CHAT, "tools": {}}, "'tools'"),
]


def test_bad_bodies(engine):
    for body, want, text in BAD + [(b, 400, t) for b, t in BAD_CHATS]:
        is_chat = isinstance(body, dict) and ("messages" in body or (body, text) in BAD_CHATS)
        status, answer = engine.post("/v1/chat/completions" if is_chat else "/v1/completions", body)
        assert status == want, (body, answer)
        error = answer["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert text in error["message"], (body, error)
    assert engine.metrics()["vllm:prompt_tokens_total"] == 0
    status, answer = engine.post("/tokenize", {"prompt": 5})
    assert status == 400 and "'prompt'" in answer["error"]["message"]
    status, answer = engine.post("/detokenize", {"tokens": "x"})
    assert status == 400 and "'tokens'" in answer["error"]["message"]


def test_client_errors(engine, client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="other", messages=CHAT)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="sim", messages=[])
    assert engine.post("/v1/nothing", {})[0] == 404
    with dial(engine, b"GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as s:
        answer = read_all(s)
    assert answer.startswith(b"HTTP/1.1 405 ") and b"\r\nAllow: POST\r\n" in answer


def test_garbage(engine):
    """A megabyte of noise, as a body, as a chunked body and as a request; and a body beyond all
    bounds."""
    noise = bytes((i * 7919 + i // 251) & 255 for i in range(1 << 20))
    assert engine.post("/v1/completions", noise)[0] == 400
    assert engine.post("/v1/completions", b"[" * (1 << 20))[0] == 400
    assert engine.post("/v1/completions", b'{"prompt":' + b"[" * (1 << 20))[0] == 400
    with dial(engine, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") as s:
        try:
            s.sendall(noise)
        except OSError:
            pass
        assert read_until(s, b"\r\n").startswith(b"HTTP/1.1 400 ")
    with dial(engine) as s:
        try:
            s.sendall(noise)
        except OSError:
            pass
        assert read_until(s, b"\r\n").startswith(b"HTTP/1.1 400 ")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n"
    with dial(engine, head) as s:
        assert read_until(s, b"\r\n").startswith(b"HTTP/1.1 413 ")
    assert json.loads(engine.get("/health"))["status"] == "ok"


def test_long_prompts_come_back_right(client):
    text = "".join(f"Sentence number {i} of a long report about nothing. " for i in range(2500))
    ids = tokenize(text)
    assert len(ids) > 30000
    for _ in range(2):
        answer = client.completions.create(model="sim", prompt=text, max_tokens=4)
        assert answer.choices[0].text == expected(ids, 4)
        assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.prompt_tokens_details.cached_tokens == (len(ids) - 1) // 16 * 16


def test_many_at_once(engine):
    """Fifty conversations at once, streamed and whole, and every one hears its own continuation."""

    def one(i):
        prompt = f"Conversation {i % 25} begins. " + "It goes on and on. " * (i % 7) + f"And {i}."
        with client_of(engine) as c:
            if i % 2:
                chunks = c.completions.create(model="sim", prompt=prompt, max_tokens=30, stream=True)
                return prompt, "".join(chunk.choices[0].text for chunk in chunks)
            return prompt, c.completions.create(model="sim", prompt=prompt, max_tokens=30).choices[0].text

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        for prompt, text in pool.map(one, range(50)):
            assert text == expected(tokenize(prompt), 30), prompt
    assert engine.metrics()["vllm:request_success_total:length"] == 50


def test_a_small_cache_preempts_and_stays_right():
    """Ten sequences that need 13 blocks each share 20: some are computed twice, all are right."""
    with Engine("--sim-speed", "0", "--sim-blocks", "20") as e:
        prompts = [f"Number {i} says: " + "a b c d e f g h " * 4 for i in range(10)]

        def one(prompt):
            return e.post("/v1/completions", {"prompt": prompt, "max_tokens": 160})

        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            for prompt, (status, answer) in zip(prompts, pool.map(one, prompts)):
                assert status == 200
                assert answer["choices"][0]["text"] == expected(tokenize(prompt), 160)
                assert answer["usage"]["completion_tokens"] == 160
        metrics = e.metrics()
        assert metrics["vllm:num_preemptions_total"] > 0
        assert metrics["vllm:kv_cache_usage_perc"] == 0
        assert metrics["vllm:generation_tokens_total"] == 1600
        assert metrics["vllm:corrupted_requests_total"] == 0


def test_max_num_seqs():
    with Engine("--sim-decode-rate", "0.01", "--max-num-seqs", "2") as e:
        body = post("/v1/completions", {"prompt": "x", "max_tokens": 50, "stream": True})
        sockets = [dial(e, body) for _ in range(5)]
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 2)
        assert e.metrics()["vllm:num_requests_waiting"] == 3
        for s in sockets:
            s.close()
        wait_for(lambda: e.metrics()["vllm:request_success_total:abort"] == 5)
        assert e.metrics()["vllm:num_requests_running"] == 0


def test_small_steps_and_many_choices_stay_right():
    """Chunks of a block, few sequences at once, few blocks: preemption, forks that have to wait,
    and the same text."""
    with Engine("--sim-speed", "0", "--sim-blocks", "30", "--max-num-batched-tokens", "16", "--max-num-seqs", "3") as e:
        prompts = [f"{i} of these: " + "one two three four " * (5 * i) for i in range(8)]

        def one(prompt):
            return e.post("/v1/completions", {"prompt": prompt, "max_tokens": 90, "n": 4})

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for prompt, (status, answer) in zip(prompts, pool.map(one, prompts)):
                assert status == 200
                assert [c["text"] for c in answer["choices"]] == [expected(tokenize(prompt), 90, k) for k in range(4)]
        metrics = e.metrics()
        assert metrics["vllm:num_preemptions_total"] > 0
        assert metrics["vllm:kv_cache_usage_perc"] == metrics["vllm:corrupted_requests_total"] == 0


def test_priority():
    """The one that runs goes on for long; of those that wait, the urgent one is next, and the other
    never gets there."""
    with Engine("--sim-decode-rate", "0.001", "--max-num-seqs", "1") as e:
        running = dial(e, post("/v1/completions", {"prompt": "long", "max_tokens": 50}))
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 1)
        later = dial(e, post("/v1/completions", {"prompt": "later", "max_tokens": 2, "priority": 1}))
        wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 1)
        with dial(e, post("/v1/completions", {"prompt": "urgent", "max_tokens": 1, "priority": -1}, "Connection: close")) as s:
            wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 2)
            running.close()
            answer = json.loads(read_all(s).split(b"\r\n\r\n", 1)[1])
        assert answer["choices"][0]["text"] == expected(tokenize("urgent"), 1)
        later.close()


def test_a_full_queue_refuses():
    with Engine("--sim-decode-rate", "0.001", "--max-num-seqs", "1", "--max-waiting", "2") as e:
        body = post("/v1/completions", {"prompt": "long", "max_tokens": 50})
        sockets = [dial(e, body)]
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 1)
        sockets += [dial(e, body), dial(e, body)]
        wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 2)
        with dial(e, post("/v1/completions", {"prompt": "too many"}, "Connection: close")) as s:
            head, answer = read_all(s).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 429 ") and b"\r\nRetry-After: 1\r\n" in head + b"\r\n"
        assert json.loads(answer)["error"]["code"] == "queue_full"
        assert e.metrics()["kvsteer_engine_refused_total"] == 1
        sockets.pop().close()
        wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 1)
        assert e.post("/v1/completions", {"prompt": "two", "n": 2})[0] == 429
        for s in sockets:
            s.close()
        wait_for(lambda: e.metrics()["vllm:kv_cache_usage_perc"] == 0)


def test_step_latency():
    """Each chunk and each token takes that long besides: here too long to see any."""
    with Engine("--sim-step-latency", "1h") as e:
        with dial(e, post("/v1/completions", {"prompt": "x"})):
            wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 1)
            assert e.metrics()["vllm:generation_tokens_total"] == 0
            assert json.loads(e.get("/health"))["status"] == "ok"
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 0)


def test_asyncio_clients_and_cancellation(engine):
    """Forty tasks of one client: half run to their ends, half are cancelled in the middle."""

    async def whole(client, i):
        chunks = await client.completions.create(model="sim", prompt=f"task {i}", max_tokens=20, stream=True)
        assert "".join([c.choices[0].text async for c in chunks]) == expected(tokenize(f"task {i}"), 20)

    async def cut(client, i):
        chunks = await client.completions.create(model="sim", prompt=f"cut {i}", max_tokens=60000, stream=True)
        async for _ in chunks:
            break
        await chunks.close()

    async def main():
        async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as client:
            await asyncio.gather(*[(whole if i % 2 else cut)(client, i) for i in range(40)])

    asyncio.run(main())
    wait_for(lambda: engine.metrics()["vllm:request_success_total:abort"] == 20)
    assert engine.metrics()["vllm:request_success_total:length"] == 20


def test_ten_thousand_requests_and_random_aborts():
    """Twenty clients, a pool of 40 blocks: who hears to the end hears right, and nothing is left
    behind."""
    total, clients = 10000, 20

    def client(e, seed):
        rng = random.Random(seed)
        s, whole, tokens = None, 0, 0
        for i in range(total // clients):
            s = s or dial(e)
            prompt = f"{rng.randrange(9)} tells: " + "a story of old " * rng.randrange(12) + str(rng.randrange(40))
            n = rng.randrange(1, 12)
            body = {"prompt": prompt, "max_tokens": n, "stream": rng.random() < 0.3}
            s.sendall(post("/v1/completions", body))
            if rng.random() < 0.3:
                s.close()
                s = None
                continue
            if body["stream"]:
                data = read_until(s, b"0\r\n\r\n")
                text = "".join(json.loads(t) for t in re.findall(rb'"text":("[^"]*")', data))
            else:
                data = read_until(s, b"\r\n\r\n")
                head, data = data.split(b"\r\n\r\n", 1)
                want = int(re.search(rb"Content-Length: (\d+)", head)[1])
                while len(data) < want:
                    data += s.recv(65536)
                answer = json.loads(data)
                text = answer["choices"][0]["text"]
            assert text == expected(tokenize(prompt), n), prompt
            whole += 1
            tokens += n
        if s:
            s.close()
        return whole, tokens

    with Engine("--sim-speed", "0", "--sim-blocks", "40", "--max-num-seqs", "12") as e:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            ends = list(pool.map(lambda seed: client(e, seed), range(clients)))
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] + e.metrics()["vllm:num_requests_waiting"] == 0)
        metrics = e.metrics()
        whole = sum(w for w, _ in ends)
        assert 6000 < whole < 8000
        assert metrics["vllm:request_success_total:length"] >= whole
        assert metrics["vllm:request_success_total:length"] + metrics["vllm:request_success_total:abort"] <= total
        assert metrics["vllm:request_success_total:error"] == metrics["vllm:corrupted_requests_total"] == 0
        assert metrics["vllm:generation_tokens_total"] >= sum(t for _, t in ends)
        assert 0 < metrics["vllm:prefix_cache_hits_total"] < metrics["vllm:prefix_cache_queries_total"]
        assert metrics["vllm:prompt_tokens_cached_total"] == metrics["vllm:prefix_cache_hits_total"]
        assert metrics["vllm:kv_cache_usage_perc"] == 0


def calculated_hits(trace, capacity):
    """Of each (tokens, hash ids of 512 tokens) how many are cached, by a plain LRU over blocks of
    16 (0: unbounded)."""
    kept, hits = collections.OrderedDict(), []
    for n, ids in trace:
        blocks = [(ids[i // 32], i % 32) for i in range(n // 16)]
        found = next((i for i, b in enumerate(blocks[: (n - 1) // 16]) if b not in kept), (n - 1) // 16)
        hits.append(found * 16)
        used = blocks[:found]
        for b in used:
            del kept[b]
        while capacity and len(kept) + (n + 15) // 16 > capacity:
            kept.popitem(last=False)
        # Free again, the last block first; one that ends a prompt and was there is not named twice.
        for i in range(len(blocks) - 1, -1, -1):
            if i < found or blocks[i] not in kept:
                kept[blocks[i]] = True
    return hits


@pytest.mark.parametrize("blocks", [200000, 1500])
def test_hit_rate_of_a_replayed_trace(shared, blocks):
    """The conversation trace's first requests, as ids: each answer's cached tokens are those that a
    calculation gives."""
    with open(os.path.join(shared, "traces", "conversation_trace.jsonl")) as f:
        rows = [json.loads(next(f)) for _ in range(400)]
    # Short ones, so that this takes seconds.
    trace = [(min(r["input_length"], 512 * len(r["hash_ids"])), r["hash_ids"]) for r in rows if r["input_length"] < 8000]
    trace = trace[:150]
    with Engine("--sim-speed", "0", "--sim-blocks", str(blocks)) as e:
        cached = []
        for n, ids in trace:
            prompt = [h * 512 + k for h in ids for k in range(512)][:n]
            status, answer = e.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            assert status == 200
            assert answer["choices"][0]["text"] == expected(prompt, 1)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        unbounded = calculated_hits(trace, 0)
        assert cached == (unbounded if blocks == 200000 else calculated_hits(trace, blocks))
        assert (sum(cached) < sum(unbounded)) == (blocks == 1500)
        metrics = e.metrics()
        assert metrics["vllm:prompt_tokens_cached_total"] == sum(cached) > 0
        assert metrics["vllm:prompt_tokens_total"] == sum(n for n, _ in trace)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_client_that_leaves_frees_its_blocks(stream, how):
    with Engine("--sim-decode-rate", "0.001") as e:
        body = {"prompt": "abort " * 200, "max_tokens": 50, "stream": stream}
        s = dial(e, post("/v1/completions", body))
        wait_for(lambda: e.metrics()["vllm:kv_cache_usage_perc"] > 0)
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if how == "half-close":
            s.shutdown(socket.SHUT_WR)
        else:
            s.close()
        wait_for(lambda: e.metrics()["vllm:request_success_total:abort"] == 1)
        metrics = e.metrics()
        assert metrics["vllm:kv_cache_usage_perc"] == 0
        assert metrics["vllm:num_requests_running"] == 0
        s.close()


def test_leaving_while_waiting_or_in_prefill():
    with Engine("--sim-prefill-rate", "0.001") as e:
        sockets = [dial(e, post("/v1/completions", {"prompt": f"wait {i} " * 50})) for i in range(3)]
        wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 2)
        assert re.search(r'waiting_by_reason\{.*reason="capacity"\} 2\n', e.get("/metrics"))
        assert e.metrics()["vllm:num_requests_running"] == 1
        for n, s in enumerate(sockets, 1):
            s.close()
            wait_for(lambda: e.metrics()["vllm:request_success_total:abort"] == n)
        metrics = e.metrics()
        assert metrics["vllm:kv_cache_usage_perc"] == metrics["vllm:num_requests_waiting"] == 0


def test_a_half_closed_client_that_said_so_gets_its_answer(engine):
    body = {"prompt": "still here", "max_tokens": 5}
    with dial(engine, post("/v1/completions", body, "Connection: close")) as s:
        s.shutdown(socket.SHUT_WR)
        answer = json.loads(read_all(s).split(b"\r\n\r\n", 1)[1])
    assert answer["choices"][0]["text"] == expected(tokenize("still here"), 5)


def test_a_slow_reader_parks_its_sequence(engine):
    """Without time a stream runs as fast as its client reads; one that does not read holds up
    nobody."""
    body = {"prompt": "slow", "max_tokens": 30000, "stream": True}
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", engine.port))
    s.sendall(post("/v1/completions", body, "Connection: close"))

    seen = []

    def stands_still():
        seen.append(engine.metrics()["vllm:generation_tokens_total"])
        return len(seen) > 20 and 0 < seen[-20] == seen[-1] < 30000

    wait_for(stands_still)
    assert engine.post("/v1/completions", {"prompt": "quick", "max_tokens": 3})[0] == 200
    s.settimeout(DEADLINE_S)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    data = read_all(s)
    assert data.endswith(b"0\r\n\r\n") and b"data: [DONE]" in data
    assert data.count(b'"text":" ') == 30000
    s.close()


def test_pipelined_and_reused_connections(engine):
    bodies = [post("/v1/completions", {"prompt": f"pipe {i}", "max_tokens": 3}) for i in range(5)]
    last = post("/v1/completions", {"prompt": "pipe 5", "max_tokens": 3}, "Connection: close")
    with dial(engine, b"".join(bodies) + last) as s:
        data = read_all(s)
    texts = re.findall(rb'"text":"([^"]*)"', data)
    assert [t.decode() for t in texts] == [expected(tokenize(f"pipe {i}"), 3) for i in range(6)]


def test_sigterm_finishes_what_runs():
    e = Engine("--sim-decode-rate", "20").start()
    with dial(e, post("/v1/completions", {"prompt": "last words", "max_tokens": 10, "stream": True})) as s:
        data = read_until(s, b'"text":')
        e.process.send_signal(signal.SIGTERM)
        data += read_all(s)
    assert b"data: [DONE]" in data and data.endswith(b"0\r\n\r\n")
    assert "draining" in e.stop()


def test_sigterm_has_a_deadline():
    e = Engine("--sim-decode-rate", "0.001", "--drain-timeout", "100ms").start()
    with dial(e, post("/v1/completions", {"prompt": "never", "max_tokens": 10, "stream": True})) as s:
        read_until(s, b"HTTP/1.1 200 ")
        assert "drain timeout" in e.stop()


def test_sigterm_twice():
    e = Engine("--sim-decode-rate", "0.001", "--drain-timeout", "1h").start()
    with dial(e, post("/v1/completions", {"prompt": "never", "max_tokens": 10, "stream": True})) as s:
        read_until(s, b"HTTP/1.1 200 ")
        e.process.send_signal(signal.SIGTERM)
        wait_for(lambda: health_of(e) == (503, "draining"))
        assert "ending at once" in e.stop()


def health_of(engine):
    """Status, and the code of an error."""
    try:
        engine.get("/health")
        return 200, None
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())["error"]["code"]


def test_a_draining_engine_says_so():
    """While something runs: a router that asks learns why, and no request is lost to a refused
    connect. When nothing runs, nobody can connect."""
    e = Engine("--sim-decode-rate", "50", faults=True).start()
    with dial(e, post("/v1/completions", {"prompt": "last words", "max_tokens": 10, "stream": True})) as s:
        data = read_until(s, b'"text":')
        e.fault(wedge=True)
        e.process.send_signal(signal.SIGTERM)
        wait_for(lambda: health_of(e) == (503, "draining"))
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, answer = e.post(path, {"prompt": "more"})
            assert (status, answer["error"]["code"]) == (503, "draining")
        assert e.get("/metrics")
        e.fault(wedge=False)
        data += read_all(s)
    assert b"data: [DONE]" in data and data.endswith(b"0\r\n\r\n")
    assert e.process.wait(DEADLINE_S) == 0
    assert refuses(e.port)
    e.stop()


def refuses(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
    except ConnectionError:  # a connection that the closing listener still held is reset
        return True
    return False


@pytest.mark.parametrize(
    "flags, code, out, err",
    [
        (["-V"], 0, r"kvsteer-engine \d+\.\d+\.\d+\n", ""),
        (["--help"], 0, r"(?s)usage: .*--sim-blocks.*", ""),
        (["--port", "65536"], 2, "", "--port 65536: a whole number from 0 to 65535"),
        (["--port", "x"], 2, "", "--port x"),
        (["--sim-speed", "-1"], 2, "", "--sim-speed -1"),
        (["--sim-speed", "nan"], 2, "", "--sim-speed nan"),
        (["--sim-blocks", "1"], 2, "", "--sim-blocks 1"),
        (["--max-num-batched-tokens", "15"], 2, "", "--max-num-batched-tokens 15: a whole number from 16"),
        (["--max-waiting", "-1"], 2, "", "--max-waiting -1"),
        (["--sim-step-latency", "5"], 2, "", "--sim-step-latency 5"),
        (["--sim-blocks", "4", "--max-model-len", "65"], 2, "", "--max-model-len 65: from 2 to 64"),
        (["--drain-timeout", "5"], 2, "", "--drain-timeout 5"),
        (["--backend", "cuda"], 2, "", "no such backend"),
        (["--log-level", "loud"], 2, "", "--log-level loud"),
        (["--model", ""], 2, "", "--model"),
        (["--nothing"], 2, "", "--nothing"),
        (["extra"], 2, "", "extra"),
        (["--host", "not-an-address"], 2, "", "not-an-address"),
        (["--modle", "x"], 2, "", "did you mean --model?"),
        (["--port"], 2, "", "--port requires an argument"),
        (["-c", "/nonexistent/file"], 2, "", "/nonexistent/file: cannot be read: No such file"),
        (["--host", "192.0.2.1", "--port", "0"], 1, "", "192.0.2.1"),
    ],
)
def test_command_line(flags, code, out, err):
    done = subprocess.run([Engine().binary, *flags], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done
    assert re.fullmatch(out, done.stdout), done.stdout
    assert err in done.stderr


def configured(*flags):
    return subprocess.run([Engine().binary, *map(str, flags)], capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_shipped_file_says_the_defaults(tmp_path):
    """Every key of etc/kvsteer-engine.conf, commented out, is what holds without it."""
    shipped = os.path.join(os.path.dirname(__file__), "..", "..", "etc", "kvsteer-engine.conf")
    assert configured("-t", "-c", shipped).returncode == 0
    without = configured("-T")
    assert without.returncode == 0 and without.stderr == ""
    assert configured("-T", "-c", shipped).stdout == without.stdout
    with open(shipped) as f:
        text = re.sub(r"^#(\w+ = )", r"\1", f.read(), flags=re.M)
    (tmp_path / "all.conf").write_text(text)
    told = configured("-t", "-T", "-c", tmp_path / "all.conf")
    assert told.returncode == 0 and "the configuration is good" in told.stderr
    given = dict(line.split(" = ") for line in told.stdout.splitlines()[1:])
    plain = dict(line.split(" = ") for line in without.stdout.splitlines()[1:] if line[0] != "#")
    assert plain.items() <= given.items()
    assert [k.lstrip("# ") for k in (line.split(" = ")[0] for line in without.stdout.splitlines()[1:])] == list(given)


def test_files_and_flags(tmp_path):
    """What the units do: a common file, an instance's over it; a flag goes before both."""
    common, instance = tmp_path / "kvsteer-engine.conf", tmp_path / "gpu0.conf"
    common.write_text("[engine]\nsim_speed = 0\nserved_model_name = common\nsim_blocks = 64\n")
    instance.write_text('[engine]\nserved_model_name = "an instance"\nport = 1\n')
    with Engine("-c", common, "-c", instance, "--sim-blocks", "32") as e:
        assert json.loads(e.get("/v1/models"))["data"][0]["id"] == "an instance"
        assert json.loads(e.get("/v1/models"))["data"][0]["max_model_len"] == 32 * 16


@pytest.mark.parametrize("text, says", [
    ("[engine]\nprot = 1\n", ":2: prot: no such key; did you mean port?"),
    ("[engine]\nport = 65536\n", ":2: port = 65536: a whole number from 0 to 65535 is expected"),
    ("[engine]\nhost = localhost\n", ":2: host = localhost: an IPv4 or IPv6 address is expected"),
    ("[engine]\nbackend = cuda\n", ":2: backend = cuda: there is no such backend"),
    ("[engine]\nlog_level = loud\n", ":2: log_level = loud: error, warn, notice, info or debug is expected"),
    ("[engine]\ndrain_timeout = 5\n", ":2: drain_timeout = 5: a whole number with a unit"),
    ("[router]\n", ":1: [router]: no such section; [engine] is the only one"),
    ("[engine]\nsim_blocks = 4\nmax_model_len = 65\n", "from 2 to 64 is expected"),
])
def test_a_faulty_file(tmp_path, text, says):
    """It does not start, -t says the same and exits 1, and a reader finds the line."""
    file = tmp_path / "e.conf"
    file.write_text(text)
    for flags, code in (([], 2), (["-t"], 1)):
        done = configured("-c", file, *flags)
        assert done.returncode == code and done.stdout == ""
        assert says in done.stderr
        if says[0] == ":":
            assert f"kvsteer-engine: {file}{says}" in done.stderr


def test_a_taken_port_is_an_error(engine):
    """SO_REUSEPORT shares a port only among listeners of ours; a plain one keeps us out."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = str(s.getsockname()[1])
        done = subprocess.run(
            [engine.binary, "--port", port], capture_output=True, text=True, timeout=DEADLINE_S
        )
    assert done.returncode == 1
    assert "listening on 127.0.0.1" in done.stderr


def test_ipv6():
    if not os.path.exists("/proc/net/if_inet6") or "00000000000000000000000000000001" not in open("/proc/net/if_inet6").read():
        pytest.skip("no IPv6 loopback here")
    with Engine("--host", "::1", "--sim-speed", "0") as e:
        assert e.url.startswith("http://[::1]:")
        assert json.loads(e.get("/health"))["status"] == "ok"
