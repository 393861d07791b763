"""The clients' functions of etc/clients, in Python and C, hash as the router does; and
kvsteer-bench --send-hashes."""
import ctypes
import json
import os
import random
import subprocess
import sys

import pytest

import harness
from routing import CLIENTS, OPEN, client_module, id_hashes

MOST = 1890


class Prefix(ctypes.Structure):
    _fields_ = [("unit", ctypes.c_char), ("size", ctypes.c_uint32), ("block_bytes", ctypes.c_size_t), ("part", ctypes.c_void_p),
                ("part_bytes", ctypes.c_size_t), ("hashes", ctypes.c_void_p), ("n", ctypes.c_size_t), ("cap", ctypes.c_size_t),
                ("last", ctypes.c_uint64), ("has_failed", ctypes.c_int)]


@pytest.fixture(scope="session")
def c_client():
    """kvsteer_prefix.c as a library."""
    lib = ctypes.CDLL(os.path.abspath(harness.program("tests/e2e/kvsteer_prefix.so")))
    lib.kvsteer_prefix_value.restype = ctypes.c_void_p
    lib.kvsteer_prefix_border.argtypes = [ctypes.c_void_p, ctypes.c_char, ctypes.c_char_p, ctypes.c_size_t]
    for name, kind in (("text", ctypes.c_char_p), ("media", ctypes.c_char_p), ("tokens", ctypes.c_void_p)):
        getattr(lib, "kvsteer_prefix_" + name).argtypes = [ctypes.c_void_p, kind, ctypes.c_size_t]
    lib.kvsteer_prefix_message.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.kvsteer_prefix_init.argtypes = [ctypes.c_void_p, ctypes.c_char, ctypes.c_uint32]
    lib.kvsteer_prefix_value.argtypes = lib.kvsteer_prefix_free.argtypes = [ctypes.c_void_p]
    return lib


def c_header(lib, fill, unit="b", size=128):
    """The value after fill(p), or None."""
    p = Prefix()
    at = ctypes.byref(p)
    lib.kvsteer_prefix_init(at, unit.encode(), size)
    fill(at)
    value = lib.kvsteer_prefix_value(at)
    lib.kvsteer_prefix_free(at)
    if value is None:
        return None
    text = ctypes.string_at(value).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(value))
    return text


def c_of_body(lib, path, body, size):
    """The same prompt by the C function's own calls."""
    if path == "/v1/completions":
        prompt = body["prompt"]
        if isinstance(prompt, list):
            ids = (ctypes.c_uint32 * len(prompt))(*prompt)
            return c_header(lib, lambda p: lib.kvsteer_prefix_tokens(p, ids, len(prompt)), "t", 32)
        return c_header(lib, lambda p: lib.kvsteer_prefix_text(p, prompt.encode(), len(prompt.encode())), "b", size)

    def fill(p):
        for m in body["messages"]:
            content = m["content"]
            if isinstance(content, str):
                lib.kvsteer_prefix_message(p, m["role"].encode(), content.encode(), len(content.encode()))
                continue
            lib.kvsteer_prefix_border(p, b"m", m["role"].encode(), len(m["role"].encode()))
            for part in content:
                if part["type"] == "text":
                    lib.kvsteer_prefix_border(p, b"x", part["text"].encode(), len(part["text"].encode()))
                else:
                    url = part["image_url"]["url"].encode()
                    lib.kvsteer_prefix_media(p, url, len(url))
    return c_header(lib, fill, "b", size)


ALPHABET = "abc \n\"\\/\u00e9\u4e2d\U0001f600\u0000\x7f"


def random_text(rng):
    return "".join(rng.choices(ALPHABET, k=rng.randrange(rng.choice((1, 20, 400)) + 1)))


def random_body(rng):
    what = rng.randrange(4)
    if what == 0:
        return "/v1/completions", {"prompt": random_text(rng)}
    if what == 1:
        return "/v1/completions", {"prompt": [rng.getrandbits(rng.choice((3, 17, 32))) for _ in range(rng.randrange(1, 300))]}
    messages = []
    for _ in range(rng.randrange(1, 6)):
        content = random_text(rng)
        if rng.randrange(4) == 0:
            content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": {"url": "http://x.test/" + random_text(rng)}}]
        messages.append({"role": rng.choice(("system", "user", "assistant")), "content": content})
    return "/v1/chat/completions", {"messages": messages}


def test_d2_the_router_and_both_clients_agree_on_thousands_of_prompts(router, worker, c_client):
    """Python and C say the same of each; and what the router hashed of a body is found by what they
    say of it."""
    python, rng, n_blocks = client_module(), random.Random(11), 0
    w = worker("w0")
    r = router([w], pool="prefix_block = 16\n", keys=OPEN)
    for i in range(4000):
        path, body = random_body(rng)
        text = json.dumps(body, ensure_ascii=rng.randrange(2) == 0)
        value = python.header(path, text.encode(), 16)
        assert value == c_of_body(c_client, path, body, 16), text
        hashes = value.count(",") + (value[-1] != ";")
        n_blocks += hashes
        if i % 4 == 0 and 0 < hashes < MOST:
            fresh = {**body, "cache_salt": str(i)}  # a name space of its own, so that nothing else is found
            said = {"X-Kvsteer-Prefix": value, "X-Kvsteer-Cache-Salt": str(i)}
            assert r.request("POST", path, json.dumps(fresh)).status == 200
            m = r.request("POST", path, "{}", said)
            assert m.get("x-kvsteer-cached") == f"{hashes}/{hashes}", text
    assert n_blocks > 40_000


def test_long_prompts_have_as_many_hashes_as_a_head_holds(c_client):
    python = client_module()
    long = "0123456789abcdef" * 40_000
    value = python.header("/v1/completions", json.dumps({"prompt": long}), 128)
    assert value == c_of_body(c_client, "/v1/completions", {"prompt": long}, 128) and value.count(",") == MOST - 1
    value = python.header("/v1/completions", json.dumps({"prompt": long}), 2048)
    assert value == c_of_body(c_client, "/v1/completions", {"prompt": long}, 2048) and value.count(",") == len(long) // 2048 - 1


def test_the_c_function_refuses_what_makes_no_sense(c_client):
    assert c_header(c_client, lambda p: None, "x") is None and c_header(c_client, lambda p: None, "b", 0) is None
    assert c_header(c_client, lambda p: c_client.kvsteer_prefix_text(p, b"x", 1), "t") is None
    assert c_header(c_client, lambda p: c_client.kvsteer_prefix_tokens(p, (ctypes.c_uint32 * 1)(1), 1), "b") is None
    assert c_header(c_client, lambda p: None) == "128b;", "hashed, and nothing to match"


def test_the_python_client_is_a_program_too():
    body = json.dumps({"prompt": list(range(64))})
    out = subprocess.run([sys.executable, os.path.join(CLIENTS, "kvsteer_prefix.py"), "/v1/completions"], input=body, capture_output=True,
                         text=True, check=True).stdout
    assert out == "32t;" + ",".join(f"{h:x}" for h in id_hashes(range(64))) + "\n"


# ---- the bench ----

@pytest.mark.parametrize("endpoint,path", [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
@pytest.mark.parametrize("more,block", [((), 128), (("--hash-block", "512"), 512)])
def test_the_bench_sends_what_the_clients_would(worker, endpoint, path, more, block):
    w = worker("w0", lambda x: x.answer(200, json.dumps({"choices": [{"index": 0, "message": {"content": "a"}, "text": "a", "finish_reason": "stop"}],
                                                         "usage": {"prompt_tokens": 1, "completion_tokens": 1}})))
    subprocess.run([harness.program("kvsteer-bench"), "--url", w.url, "--model", "m", "--requests", "6", "--connections", "2", "--endpoint", endpoint,
                    "--no-stream", "--prompt-tokens", "900", "--output-tokens", "1", "--send-hashes", *more],
                   check=True, capture_output=True, timeout=harness.DEADLINE * 2)
    python = client_module()
    assert len(w.requests) == 6
    for m in w.requests:
        assert m.get("x-kvsteer-prefix") == python.header(path, m.body, block) and m.get("x-kvsteer-prefix").count(",") > 3
        assert m.get("x-kvsteer-model") == "m"


def test_the_bench_without_it_sends_none(worker):
    w = worker("w0")
    subprocess.run([harness.program("kvsteer-bench"), "--url", w.url, "--model", "m", "--requests", "1", "--no-stream"], capture_output=True,
                   timeout=harness.DEADLINE * 2)
    assert w.requests and w.requests[0].get("x-kvsteer-prefix") is None
    out = subprocess.run([harness.program("kvsteer-bench"), "--hash-block", "64"], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert out.returncode == 2 and "--send-hashes" in out.stderr


def test_d1_the_bench_and_the_router_meet(router, worker):
    """Hashed by the bench, then by the router: one and the same prompt."""
    def answer(x):
        x.answer(200, json.dumps({"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],
                                  "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    w = worker("w0", answer)
    r = router([w], keys=OPEN)
    args = [harness.program("kvsteer-bench"), "--url", f"http://127.0.0.1:{r.port}", "--model", "m", "--requests", "1", "--no-stream", "--corpus", "hot",
            "--prompts", "1", "--seed", "5"]
    subprocess.run([*args, "--send-hashes"], check=True, capture_output=True, timeout=harness.DEADLINE * 2)
    told = r.request("POST", "/v1/chat/completions", w.requests[-1].body)
    matched, _, blocks = told.get("x-kvsteer-cached").partition("/")
    assert matched == blocks and int(blocks) > 10
