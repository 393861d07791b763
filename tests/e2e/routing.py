"""What the routing tests share: placing prompts, telling who answered, holding workers busy, the
public hash chain."""
import contextlib
import importlib.util
import json
import os
import threading

import xxhash

import harness
from harness import make_request

OPEN = "expose_worker = on\nallow_pin = on\n"  # [router] keys: answers name their worker, requests may choose one


CLIENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "etc", "clients")


def client_module():
    """etc/clients/kvsteer_prefix.py, from where it lies."""
    spec = importlib.util.spec_from_file_location("kvsteer_prefix", os.path.join(CLIENTS, "kvsteer_prefix.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def user(content):
    return {"role": "user", "content": content}


def chat(*messages, **fields):
    return {"model": "m", "messages": list(messages), **fields}


def completion(prompt, **fields):
    return {"model": "m", "prompt": prompt, **fields}


def send(r, body, path="/v1/chat/completions", pin=None, headers=None):
    """One request that must succeed: (worker, matched blocks, blocks)."""
    headers = dict(headers or {}, **({"X-Kvsteer-Worker": pin} if pin else {}))
    m = r.request("POST", path, body, headers)
    assert m.status == 200, f"{m.start} {m.body[:300]}"
    matched, _, blocks = m.get("x-kvsteer-cached").partition("/")
    return m.get("x-kvsteer-worker"), int(matched), int(blocks)


def served_by(r, body, path="/v1/chat/completions", pin=None, headers=None):
    return send(r, body, path, pin, headers)[0]


PINNED_MOST = 16000  # a pinned request's body is not read if it does not come with its head


def place(r, body, name, path="/v1/chat/completions", headers=None):
    """Makes a worker hold the prompt: pinned, or where the body is too long to be read then, as the
    only worker in play."""
    if len(body if isinstance(body, (str, bytes)) else json.dumps(body)) <= PINNED_MOST:
        assert served_by(r, body, path, pin=name, headers=headers) == name
        return
    others = [w["name"] for w in r.admin("GET", "workers")[1]["workers"] if w["name"] != name]
    for w in others:
        assert r.admin("POST", f"workers/{w}/drain")[0] == 202
    assert served_by(r, body, path, headers=headers) == name
    for w in others:
        assert r.admin("POST", f"workers/{w}/undrain")[0] == 202


def settle(r):
    """Waits until only held() requests count: a client may have its answer a moment before another
    thread sees the load fall."""
    harness.wait_until(lambda: sum(r.loads().values()) == getattr(r, "held", 0), "loads of what is held, no more")


@contextlib.contextmanager
def held(r, w, n):
    """n requests without a prompt in flight on one worker (its handler must be a Hold for them):
    its load is n within."""
    wires = []
    settle(r)
    r.held = getattr(r, "held", 0) + n
    seen = len(w.exchanges)
    try:
        for _ in range(n):
            c = r.connect()
            wires.append(c)
            c.send(make_request("POST", "/v1/chat/completions", "{}", {"X-Kvsteer-Worker": w.name, "X-Hold": "1"}))
        w.wait_requests(seen + n)
        yield
    finally:
        w.handler.release()
        for c in wires:
            assert c.read_response("POST").status == 200
            c.close()
        r.held -= n
        settle(r)


class HoldMarked(harness.Hold):
    """Holds the requests of held(), answers all others at once."""

    def __call__(self, x):
        if x.request.get("x-hold"):
            super().__call__(x)
        else:
            harness.answer_ok(x)


def in_parallel(jobs):
    """Runs the callables at once, each in its thread, started together; their results in order."""
    results, errors = [None] * len(jobs), []
    gate = threading.Barrier(len(jobs))

    def work(i):
        try:
            gate.wait(harness.DEADLINE)
            results[i] = jobs[i]()
        except BaseException as e:  # told below
            errors.append(e)
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(harness.DEADLINE * 4)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), "a request hangs"
    return results


def chain(data, block):
    """The public chain over whole blocks: h_i = XXH3-64 of block i with seed h_(i-1), the first
    with 0."""
    seed, out = 0, []
    for i in range(0, len(data) - block + 1, block):
        seed = xxhash.xxh3_64_intdigest(data[i:i + block], seed=seed)
        out.append(seed)
    return out


def byte_hashes(text, block=128):
    return chain(text.encode() if isinstance(text, str) else text, block)


def media(data):
    """What a media part is in the prompt stream: a border, and the digest of its URL or data as
    often as fills 4,096 bytes."""
    return b"\xffi" + xxhash.xxh3_64_intdigest(data.encode()).to_bytes(8, "little") * 512


def id_hashes(ids, block=32):
    return chain(b"".join(i.to_bytes(4, "little") for i in ids), 4 * block)


def prefix_header(hashes, block="128b"):
    return {"X-Kvsteer-Prefix": block + ";" + ",".join(f"{h:x}" for h in hashes)}


def dumps(body):
    return json.dumps(body).encode()
