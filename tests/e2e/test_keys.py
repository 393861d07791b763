"""What a request is keyed by, and what that decides: bodies of every kind (B26, B69, B70), hashes
that the client sends (D2, D3, D6), pins, pools."""
import json
import random

import pytest

import harness
from harness import Hold, make_request, text, wait_until
from routing import (OPEN, HoldMarked, byte_hashes, chat, completion, dumps, held, id_hashes, in_parallel, place, prefix_header, send, served_by,
                     user)


def start(router, worker, n=2, keys="", **kw):
    ws = [worker(f"w{i}", HoldMarked()) for i in range(n)]
    return router(ws, keys=OPEN + keys, **kw), ws


def arrived(ws):
    return [m for w in ws for m in w.requests]


# ---- B26: prompts in their other legal shapes ----

PROMPTS = ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]], [], "", [1, "a"], [[1, "a"]], [[]], None, {"a": 1}, 5, [4294967295, 4294967296, -1, 1.5], True]


@pytest.mark.parametrize("path,field", [("/v1/completions", "prompt"), ("/v1/embeddings", "input"), ("/generate", "input_ids"), ("/tokenize", "prompt")])
def test_b26_every_shape_is_forwarded_byte_for_byte(router, worker, path, field):
    r, ws = start(router, worker)
    for p in PROMPTS:
        body = json.dumps({"model": "m", field: p}, separators=(" , ", " : "))
        name = served_by(r, body, path)
        got = ws[int(name[1])].requests[-1]
        assert got.body.decode() == body and got.target == path


@pytest.mark.parametrize("path,field", [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_b26_ids_and_the_text_that_spells_them_are_different_prompts(router, worker, path, field):
    r, _ = start(router, worker, 3)
    ids = [random.Random(1).randrange(100000) for _ in range(800)]

    def ask(prompt):
        return send(r, {"model": "m", field: prompt}, path)

    def spelled(n):
        return ",".join(map(str, ids[:n]))
    for prompt, name in [(ids[:400], "w0"), (spelled(400), "w1"), ([spelled(400)], "w2")]:
        place(r, {"model": "m", field: prompt}, name, path)
    for n in (500, 600, 700):
        assert ask(spelled(n))[0] == "w1"
        name, matched, blocks = ask(ids[:n])
        assert (name, matched, blocks) == ("w0", (400 if n == 500 else n - 100) // 32, n // 32)
        assert ask([spelled(n), "another"])[0] == "w2"
        assert ask([ids[:n], [1]])[0] == "w0", "the first of several lists of ids counts"
    place(r, {"model": "m", field: [7, 8, 9] * 20}, "w1", path)
    assert ask([7, 8, 9] * 21)[0] == "w1"
    assert ask([70, 8, 9] * 21)[1] == 0, "ids count, not how many there are"


def chunked(path, body, sizes):
    """The request in chunks of these sizes, in turn."""
    out, at, n = [f"POST {path} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()], 0, 0
    while at < len(body):
        part = body[at:at + sizes[n % len(sizes)]]
        out.append(b"%x\r\n%s\r\n" % (len(part), part))
        at, n = at + len(part), n + 1
    return out + [b"0\r\n\r\n"]


def test_one_prompt_however_it_is_spelt_and_sent(router, worker):
    """Blanks, escapes, the order of members, chunks and pieces of any size: the same key."""
    r, _ = start(router, worker)
    messages = [{"role": "system", "content": "\u00e9\u4e2d\U0001f600 \"q\" \\ / \n" + text(2, 1)}, user(text(2, 2))]
    tools = [{"type": "function", "function": {"name": "f", "description": text(1, 3)}}]
    body = {"model": "m", "tools": tools, "messages": messages}
    place(r, body, "w1")
    other_order = {"stream": False, "messages": [dict(reversed(m.items())) for m in messages], "tools": tools, "model": "m"}
    spellings = [json.dumps(body, ensure_ascii=False).encode(), json.dumps(body, indent=3).encode(), json.dumps(body, separators=(",", ":")).encode(),
                 dumps(other_order), dumps(body).replace(b"/", b"\\/"), dumps(body).replace(b'"content"', b'"\\u0063ontent"'),
                 b"\r\n\t " + dumps(body) + b" \n"]
    for spelt in spellings:
        name, matched, blocks = send(r, spelt)
        assert (name, matched) == ("w1", blocks) and blocks >= 40, spelt[:80]
    for sizes in ([1], [7, 1, 300], [4096], [100000]):
        with r.connect() as c:
            pieces = chunked("/v1/chat/completions", spellings[0], sizes)
            if sizes == [1]:
                c.send(b"".join(pieces))
            else:
                for p in pieces:
                    c.send(p)
            m = c.read_response("POST")
            assert m.status == 200 and (m.get("x-kvsteer-worker"), m.get("x-kvsteer-cached")) == ("w1", f"{blocks}/{blocks}")


# ---- B69: deep nesting ----

N = 100_000
DEEP = {
    "arrays-open": b'{"model":"m","x":' + b"[" * N,
    "arrays": b'{"model":"m","x":' + b"[" * N + b"]" * N + b"}",
    "objects-open": b'{"a":' * N,
    "objects": b'{"a":' * N + b"1" + b"}" * N,
    "in-a-message": b'{"model":"m","messages":' + b"[" * N + b"]" * N + b"}",
    "in-a-part": b'{"messages":[{"role":"user","content":[' + b'{"x":[' * N + b"]}" * N + b"]}]}",
    "in-a-tool": b'{"tools":[' + b'{"p":' * N + b"1" + b"}" * N + b"]}",
    "in-a-prompt": b'{"prompt":' + b"[" * N + b"1" + b"]" * N + b"}",
    "4-mb-of-brackets": b"[" * (4 << 20),
}


def test_b69_deep_nesting_costs_no_stack_and_disturbs_nobody(router, worker):
    """Forwarded by load, whole, while streams run untouched."""
    streams = Hold(lambda x: (x.event("2"), x.event("[DONE]"), x.end()))

    def handler(x):
        if x.request.get("x-stream") is None:
            return harness.answer_ok(x)
        x.begin()
        x.event("1")
        return streams(x)
    w = worker("w0", handler)
    r = router([w], keys=OPEN)
    wires = [r.connect() for _ in range(5)]
    for c in wires:
        c.send(make_request(body=chat(user("hi"), stream=True), headers={"X-Stream": "1"}))
        assert c.read_head().status == 200
        assert c.read_chunk() == b"data: 1\n\n"
    w.clear()
    for body in DEEP.values():
        for path in ("/v1/chat/completions", "/v1/completions"):
            served_by(r, body, path)
            assert w.requests[-1].body == body
            assert r.explain(body, path)["chosen"] == "w0"
    streams.release()
    for c in wires:
        assert b"".join(iter(c.read_chunk, b"")) == b"data: 2\n\ndata: [DONE]\n\n"
        c.close()


def test_b69_a_schema_of_1000_levels_is_a_schema(router, worker):
    """Tools nested that deep stand before the messages, and both make the key."""
    r, _ = start(router, worker)

    def body(seed, message, levels=1000):
        schema = b'{"type":"object","properties":{"a":' * levels + b'{"type":"string","x":%d}' % seed + b"}}" * levels
        tool = b'{"type":"function","function":{"name":"f","parameters":' + schema + b"}}"
        return b'{"model":"m","tools":[' + tool + b'],"messages":[' + dumps(user(message)) + b"]}"
    place(r, body(1, text(4, 1)), "w0")
    place(r, body(2, text(4, 1)), "w1")
    place(r, body(1, text(4, 2)), "w1")
    for seed, t, name in [(1, 1, "w0"), (2, 1, "w1"), (1, 1, "w0"), (1, 2, "w1"), (2, 1, "w1")]:
        got, matched, blocks = send(r, body(seed, text(4, t) + " and more of it"))
        assert got == name and matched >= blocks - 1 > 100


# ---- B70: duplicate names, bad bytes, junk ----

def test_b70_the_last_of_two_equal_names_decides(router, worker):
    """As in Python's and the engines' parsers."""
    r, ws = start(router, worker)
    one, two = dumps([user(text(4, 1))]), dumps([user(text(4, 2))])
    place(r, b'{"model":"m","messages":' + one + b"}", "w0")
    place(r, b'{"model":"m","messages":' + two + b"}", "w1")
    for name in ("w1", "w0", "w1", "w1", "w0", "w0"):
        first, second = (one, two) if name == "w1" else (two, one)
        body = b'{"model":"m","messages":' + first + b',"messages":' + second + b"}"
        got, matched, blocks = send(r, body)
        assert got == name and matched == blocks
        assert ws[int(name[1])].requests[-1].body == body


def test_b70_names_are_read_as_json_spells_them(router, worker):
    """"m\\u006fdel" is model; of two models the last counts; a model of another kind is none."""
    a, b = worker("wa"), worker("wb")
    conf = ("[pool a]\nmodels = alpha*\n[pool b]\nmodels = beta\n"
            f"[worker wa]\nurl = {a.url}\npool = a\n[worker wb]\nurl = {b.url}\npool = b\n")
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("wa", "wb")
    for body, name in [(b'{"m\\u006fdel":"beta"}', "wb"), (b'{"model":"alpha-1","model":"beta"}', "wb"),
                       (b'{"model":"beta","m\\u006fdel":"alph\\u0061"}', "wa"),
                       (b'{"x":{"model":"beta"},"model":"alpha"}', "wa"), (b'{"model":"\\u0062eta"}', "wb"),
                       (b'{"model":5}', "wa"), (b'{"model":null}', "wa")]:
        assert served_by(r, body) == name, body
    for body in (b'{"model":"Beta"}', b'{"model":"beta2"}', b'{"model":"beta\\u0000"}', b'{"model":"bet"}'):
        m = r.request(body=body)
        assert m.status == 404 and m.json()["error"]["code"] == "model_not_found", body


def test_b70_bad_bytes_leave_the_text_around_them_its_affinity(router, worker):
    r, ws = start(router, worker)

    def body(seed, bad, end=b""):
        return b'{"model":"m","messages":[{"role":"user","content":"' + text(4, seed).encode() + bad + text(1, 9).encode() + end + b'"}]}'
    for i, bad in enumerate([b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\xf5\x80\x80\x80", b"\x80"]):
        place(r, body(10 * i + 1, bad), "w0")
        place(r, body(10 * i + 2, bad), "w1")
        for seed in (1, 2, 2, 1):
            sent = body(10 * i + seed, bad, b" and on it goes")
            name, matched, _ = send(r, sent)
            assert name == f"w{seed - 1}" and matched >= 32, bad
            assert ws[seed - 1].requests[-1].body == sent


GOOD = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
JUNK = [
    # structure
    b"", b" ", b"null", b"[]", b"{}", b"true", b"0", b'"x"', b"[", b"]", b"{", b"}", b"{]", b"[}", b"{{}}", b"[[]", b"[]]", b"{}{}",
    GOOD + GOOD, GOOD + b"x", GOOD + b"\0", b"[1,]", b"[,1]", b"[1,,2]", b"[1 2]", b"[,]", b'{"a":1,}', b'{,"a":1}', b'{"a"}', b'{"a":}', b'{"a" 1}',
    b'{"a":1 "b":2}', b"{a:1}", b"{'a':1}", b'{1:1}', b'{"a":1}}', b'{"a"::1}', b'{"a":1,,"b":2}',
    b'{"messages":"x"}', b'{"messages":{}}', b'{"messages":[[]]}', b'{"messages":[5,null,"x",{}]}', b'{"messages":[{"content":7}]}',
    b'{"messages":[{"role":7,"content":"x"}]}', b'{"messages":null,"tools":3,"stream":"yes","model":[]}', b'{"messages":[{"role":"user"',
    b'{"messages":[{"role":"user","content":"', b'/* c */{}', b'{}// c', b'{"a":1}#', b"[1]x", b"* ", b"<html>", b"a", b"\x0c{}", b"\xc2\xa0{}",
    b'{"":1,"":2}', b'{"\\u0000":1}', b'{"\\uD800":1}',
    # numbers
    b"[NaN]", b"[-Infinity]", b"[+1]", b"[01]", b"[-]", b"[1.]", b"[.5]", b"[1e]", b"[1e+]", b"[0x1]", b"[1e9999]", b"[-0]",
    b"[" + b"9" * 5000 + b"]", b"[--1]", b"[1.2.3]", b"[2e1.5]",
    # strings
    b'["\\x"]', b'["\\"]', b'["\\u12"]', b'["\\u12G4"]', b'["\\ud83d"]', b'["\\udc00\\ud800"]', b'["\t"]', b'["\n"]', b'["\0"]', b'["a',
    b"['a']", b'["\\a"]', b'["\\\\\\"]',
    # bytes
    b"\xef\xbb\xbf" + GOOD, b"\xef\xbb\xbf", b"\xff\xfe", GOOD.decode().encode("utf-16"), GOOD.decode().encode("utf-16-be"),
    b"\xff" * 300, b'{"\xff":"\xfe"}', b'["\xe2\x82"]',
    b'["\xf0\x9f\x98\x80"]', b"\0" * 64, b"[tru]", b"[nul", b"[fals3]", b"[TRUE]", b"truetrue", random.Random(70).randbytes(5000)]


def test_b70_junk_is_the_workers_to_judge(router, worker):
    """No crash, no answer of ours: every body arrives as it was sent, on every path that is
    read."""
    r, ws = start(router, worker)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        with r.connect() as c:  # one connection: nothing of a bad body may stick to the next
            for body in JUNK:
                c.send(make_request("POST", path, body))
                m = c.read_response("POST")
                assert m.status == 200, f"{path} {body[:60]}: {m.start} {m.body[:200]}"
                w = ws[int(m.get("x-kvsteer-worker")[1])]
                assert w.requests[-1].body == body and w.requests[-1].target == path
        for w in ws:
            w.clear()
    assert len(JUNK) > 100


def test_b70_a_body_cut_short_anywhere(router, worker):
    """Every prefix of a body that has it all."""
    r, ws = start(router, worker, 1)
    parts = [{"type": "text", "text": "\u00e9\"\\ "}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": [1.5e3, None, True]}}}]
    whole = dumps(chat(user(parts), {"role": "tool", "tool_call_id": "c"}, tools=tools, stream=True, cache_salt="s", user="u"))
    with r.connect() as c:
        for n in range(len(whole) + 1):
            c.send(make_request("POST", "/v1/chat/completions", whole[:n]))
            assert c.read_response("POST").status == 200
            assert ws[0].requests[-1].body == whole[:n]


# ---- D2, D3, D6: hashes beside the prompt ----

def hashed(r, hashes, block="128b", body=b'{"model":"m"}', path="/v1/completions", pin=None):
    return send(r, body, path, pin, prefix_header(hashes, block))


def test_d2_hashes_of_the_client_meet_those_of_the_router(router, worker):
    """The chain is public: computed here, in Python, it finds what the router hashed from the text
    and from ids, and the other way round."""
    r, ws = start(router, worker)
    p = "é\n\"" + text(8, 1)
    ids = [random.Random(2).randrange(200000) for _ in range(640)]
    place(r, completion(p), "w1", "/v1/completions")
    place(r, completion(ids), "w0", "/v1/completions")
    n = len(p.encode()) // 128
    for _ in range(3):
        assert hashed(r, byte_hashes(p)) == ("w1", n, n)
        assert hashed(r, id_hashes(ids), "32t") == ("w0", 20, 20)
    assert hashed(r, byte_hashes(p)[:10]) == ("w1", 10, 10)
    assert hashed(r, byte_hashes(p)[:10] + [1, 2, 3]) == ("w1", 10, 13)
    assert hashed(r, byte_hashes(p)[5:])[1] == 0, "a chain starts at its start"
    assert not any(m.get("x-kvsteer-prefix") for m in arrived(ws)), "ours, not the worker's"
    other = "è\n" + text(6, 3)
    hashed(r, byte_hashes(other), pin="w0")
    n = len(other.encode()) // 128
    assert send(r, completion(other + text(1, 5)[:128]), "/v1/completions")[:2] == ("w0", n)


def test_d2_the_prompt_is_never_decoded(router, worker):
    """A prompt part that cannot be decoded is routed by its hashes, and travels untouched."""
    r, ws = start(router, worker)
    opaque = [b"\x80\x81" + random.Random(3).randbytes(4000), b"[" * 50000, b'{"prompt":"\xff']
    for i, body in enumerate(opaque):
        hashes = [random.Random(10 + i).getrandbits(64) for _ in range(30)]
        hashed(r, hashes, body=body, pin=f"w{i % 2}")
        for k in (1, 2, 3):
            more = hashes + list(range(k))
            assert hashed(r, more, body=body)[:2] == (f"w{i % 2}", 30 + k - 1)
            assert ws[i % 2].requests[-1].body == body


def test_d2_no_hashes_and_an_empty_list_are_not_the_same(router, worker):
    r, _ = start(router, worker)
    body = completion(text(4, 1))
    place(r, body, "w0", "/v1/completions")
    assert hashed(r, [], body=body)[1:] == (0, 0), "hashed, and nothing to match"
    assert r.metric("kvsteer_route_decisions_total", reason="hashes_sent") == 1
    assert send(r, body, "/v1/completions") == ("w0", 32, 32)


def test_d2_units_and_sizes_of_blocks_are_name_spaces_of_their_own(router, worker):
    r, _ = start(router, worker)
    hashes = byte_hashes(text(4, 1))
    hashed(r, hashes, pin="w1")
    for other in ("2048b", "128t", "32t", "256b"):
        assert hashed(r, hashes, other)[1] == 0, other
        assert hashed(r, hashes, other)[1] == 32, other
    for name, value in (("Model", "n"), ("Cache-Salt", "s"), ("Lora-Path", "l")):
        said = {**prefix_header(hashes), f"X-Kvsteer-{name}": value}
        for matched in (0, 32):
            told = r.explain("{}", "/v1/completions", said)
            assert max(c["depth"] for c in told["candidates"]) == matched, name
            assert send(r, b'{"model":"m"}', "/v1/completions", headers=said)[1] == matched, name
    assert send(r, b"{}", "/v1/completions", headers={**prefix_header(hashes), "X-Kvsteer-Model": "m"})[1] == 32, "the only model, said or not"


def test_d2_what_the_head_says_stands_for_what_the_body_would(router, worker):
    """Hashes meet those of bodies that the router reads: model, adapter and salt in both, each in
    its place."""
    r, _ = start(router, worker)
    p = text(4, 1)
    said = {"model": "n", "lora_path": "l", "cache_salt": "s"}
    for names in (["model"], ["lora_path"], ["cache_salt"], ["model", "cache_salt"], list(said)):
        fields = {n: said[n] for n in names}
        place(r, {"prompt": p, **fields}, "w1", "/v1/completions")
        headers = {"X-Kvsteer-" + n.replace("_", "-").title(): v for n, v in fields.items()}
        assert send(r, b"no JSON", "/v1/completions", headers={**prefix_header(byte_hashes(p)), **headers}) == ("w1", 32, 32), names
    r2, _ = start(router, worker)
    place(r2, {"model": "n", "lora_path": "l", "prompt": p}, "w1", "/v1/completions")
    for wrong in ({"X-Kvsteer-Model": "nl"}, {"X-Kvsteer-Model": "l", "X-Kvsteer-Lora-Path": "n"}, {"X_Kvsteer_Model": "n", "X-Kvsteer-Lora-Path": "l"}):
        assert max(c["depth"] for c in r2.explain("{}", "/v1/completions", {**prefix_header(byte_hashes(p)), **wrong})["candidates"]) == 0


def test_d2_explain_takes_hashes_as_a_request_does(router, worker):
    r, _ = start(router, worker)
    hashes = byte_hashes(text(4, 1))
    hashed(r, hashes, pin="w1")
    told = r.explain('{"model":"m"}', "/v1/completions", prefix_header(hashes + [5]))
    assert (told["chosen"], told["reason"], told["key"]["hashes_sent"], told["key"]["blocks"]) == ("w1", "prefix_hit", True, 33)
    assert next(c["depth"] for c in told["candidates"] if c["worker"] == "w1") == 32


def test_explain_reads_as_little_of_a_pinned_request_as_routing(router, worker):
    """A pin decides without the body, so with hashes in the head the body's model counts for
    nothing: neither for the request nor for explain."""
    r, _ = start(router, worker)
    hashes, path = byte_hashes(text(4, 1)), "/v1/responses"
    body, said = b'{"model":"other"}', prefix_header(hashes)
    pin = {**said, "X-Kvsteer-Worker": "w1"}
    for matched in (0, 32):
        told = r.explain(body, path, pin)
        assert (told["chosen"], told["reason"], told["key"]["model"], told["blocks"]) == ("w1", "pinned", None, 32)
        assert next(c["depth"] for c in told["candidates"] if c["worker"] == "w1") == matched
        assert send(r, body, path, headers=pin) == ("w1", matched, 32)
    told = r.explain(body, path, said)
    assert told["key"]["model"] == "other" and max(c["depth"] for c in told["candidates"]) == 0, "without a pin its body is read"
    assert send(r, body, path, headers=said)[1:] == (0, 32)


@pytest.mark.tsan
def test_d3_new_weights_make_every_older_prefix_worthless(router, worker):
    """Also hashes that the client sent; both ways of hashing find the new ones; nothing else
    changes."""
    r, _ = start(router, worker)
    body, hashes = completion(text(4, 1)), byte_hashes(text(4, 2))
    place(r, body, "w1", "/v1/completions")
    hashed(r, hashes, pin="w1")
    for generation in (1, 2):
        assert r.admin("POST", "pools/default/generation")[1]["generation"] == generation
        for matched in (0, 32):
            assert send(r, body, "/v1/completions")[1:] == (matched, 32)
            assert hashed(r, hashes)[1:] == (matched, 32)
    assert r.admin("POST", "pools/default/generation", {"set": 0})[0] == 200
    assert send(r, body, "/v1/completions") == ("w1", 32, 32), "generation 0 equals unsalted"


BAD_PREFIXES = ["", ";", "128", "128b", "128x;1", "b;1", "0b;1", "-1b;1", "128b;1,,2", "128b;1,", "128b;,1", "128b;g", "128b;0x1", "128b 1",
                "128b;12345678901234567", "128b;1;2", "99999999999b;1", "128b;1 2", "128B;1", "128b;-1", "t;", "128b;1,~"]


def test_d6_a_malformed_submission_is_refused_and_forgotten(router, worker):
    """400 each time, no worker bothered, and the connection serves the next request as if nothing
    had been."""
    r, ws = start(router, worker)
    with r.connect() as c:
        for bad in BAD_PREFIXES:
            c.send(make_request("POST", "/v1/completions", b'{"model":"m"}', {"X-Kvsteer-Prefix": bad}))
            m = c.read_response("POST")
            assert m.status == 400 and m.json()["error"]["code"] == "malformed_request", f"{bad!r}: {m.start}"
        assert arrived(ws) == []
        c.send(make_request("POST", "/v1/completions", b'{"model":"m"}', prefix_header([1, 2])))
        assert c.read_response("POST").get("x-kvsteer-cached") == "0/2"
        c.send(make_request("POST", "/v1/completions", completion(text(1, 1))))
        assert c.read_response("POST").get("x-kvsteer-cached") == "0/8"


def test_d6_hashes_that_the_grammar_allows(router, worker):
    r, _ = start(router, worker)
    for value in ("128b;A,b", "128b;a, b", "128b;000000000000000a,B", "128b;a,  b"):
        m = r.request("POST", "/v1/completions", b'{"model":"m"}', {"X-Kvsteer-Prefix": value})
        assert m.status == 200 and m.get("x-kvsteer-cached") in ("0/2", "2/2"), value
    assert m.get("x-kvsteer-cached") == "2/2", "all of them are the same two"
    many = [random.Random(6).getrandbits(64) for _ in range(1800)]
    hashed(r, many, pin="w1")
    assert hashed(r, many) == ("w1", 1800, 1800), "as many as a head holds"
    assert r.request("POST", "/v1/completions", b"{}", prefix_header(many * 2)).status == 431


# ---- pinned, and told ----

def test_pin_only_where_it_is_allowed(router, worker):
    ws = [worker(f"w{i}") for i in range(2)]
    closed = router(ws)
    for _ in range(4):
        m = closed.request(body=GOOD, headers={"X-Kvsteer-Worker": "w0"})
        assert m.status == 200 and m.get("x-kvsteer-worker") is None and m.get("x-kvsteer-cached") is None
    assert closed.request(body=GOOD, headers={"X-Kvsteer-Worker": "nobody"}).status == 200, "not read"
    assert len(ws[0].requests) + len(ws[1].requests) == 5
    opened = router(ws, keys=OPEN)
    for w in ws:
        w.clear()
    before = opened.metric("kvsteer_route_decisions_total", reason="pinned")
    for i in (0, 1, 1, 1, 0, 1):
        assert served_by(opened, GOOD, pin=f"w{i}") == f"w{i}"
    assert opened.metric("kvsteer_route_decisions_total", reason="pinned") == before + 6
    assert [len(w.requests) for w in ws] == [2, 4]
    for spelling in ("X_Kvsteer_Worker", "x-kvsteer_worker", "X-Kvsteer-Anything"):
        assert opened.request(body=GOOD, headers={spelling: "nobody"}).status == 200, "not the header, and not passed on"
    m = opened.request(body=GOOD, headers={"X-Kvsteer-Worker": "nobody"})
    assert m.status == 400 and m.json()["error"]["type"] == "invalid_request_error"
    for m in arrived(ws):
        assert not any(n.lower().replace("_", "-").startswith("x-kvsteer") for n, _ in m.fields)


def test_pin_goes_to_a_busy_worker_but_not_to_one_that_is_out(router, worker):
    r, ws = start(router, worker, pool="balance_abs_threshold = 2\nno_worker_wait = 0\n")
    with held(r, ws[0], 6):
        assert served_by(r, GOOD, pin="w0") == "w0"
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    m = r.request(body=GOOD, headers={"X-Kvsteer-Worker": "w0"})
    assert m.status == 503 and m.json()["error"]["code"] == "no_worker"
    assert served_by(r, GOOD) == "w1"


@pytest.mark.parametrize("how", ["pinned", "round_robin"])
def test_d1_a_body_that_nobody_needs_is_not_awaited(router, worker, how):
    """The worker is chosen, and has its load, while half of the body is still to come."""
    r, ws = start(router, worker, pool="policy = round_robin\n" if how == "round_robin" else "")
    data = make_request("POST", "/v1/chat/completions", chat(user(text(64, 1))), {"X-Kvsteer-Worker": "w1"} if how == "pinned" else {})
    with r.connect() as c:
        c.send(data[:len(data) // 2])
        try:
            wait_until(lambda: any(r.loads().values()), "a worker is chosen", 2)
        finally:
            c.send(data[len(data) // 2:])
            assert c.read_response("POST").status == 200


# ---- pools by model, models of workers, limits of workers ----

def test_pools_are_chosen_by_model_in_file_order(router, worker):
    names = ["big", "any7b", "rest"]
    ws = {n: worker(n, models=(n,)) for n in names}
    conf = ("[pool one]\nmodels = big-* exact\n[pool two]\nmodels = *-7b\n[pool three]\nmodels = rest? big-late\n"
            + "".join(f"[worker {n}]\nurl = {ws[n].url}\npool = {p}\n" for n, p in zip(names, ("one", "two", "three"))))
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers(*names)
    for model, name in [("big-1", "big"), ("exact", "big"), ("big-7b", "big"), ("x-7b", "any7b"), ("rest1", "rest"), ("big-late", "big"),
                        ("org/x-7b", "any7b")]:
        body = completion(text(1, 1), model=model)
        assert served_by(r, body, "/v1/completions") == name, model
        assert r.explain(body, "/v1/completions")["chosen"] == name
    for model in ("rest", "rest12", "exact1", "7b", "EXACT"):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            m = r.request("POST", path, {"model": model, "prompt": "x"})
            assert m.status == 404 and m.json()["error"]["code"] == "model_not_found", f"{model!r}: {m.start}"
            assert m.json()["error"]["type"] == "invalid_request_error"
    for body in (b'{"prompt":"no model at all"}', b'{"model":""}', b"not JSON"):
        m = r.request("POST", "/v1/completions", body)
        assert (m.status, m.json()["error"]["code"]) == (400, "model_required") and "field model" in m.json()["error"]["message"]


def test_pools_keep_prefixes_blocks_and_pins_apart(router, worker):
    """Each pool has its own index, block size and generation; a pin names a worker of the pool."""
    ws = [worker(f"w{i}") for i in range(4)]
    conf = ("[pool a]\nmodels = a\n[pool b]\nmodels = b\nprefix_block = 256\n"
            + "".join(f"[worker {w.name}]\nurl = {w.url}\npool = {'aabb'[i]}\n" for i, w in enumerate(ws)))
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("w0", "w1", "w2", "w3")
    p, path = text(8, 1), "/v1/completions"
    a, b = completion(p, model="a"), completion(p, model="b")
    place(r, a, "w1", path)
    place(r, b, "w2", path)
    for _ in range(2):
        assert send(r, a, path) == ("w1", 64, 64)
        assert send(r, b, path) == ("w2", 32, 32)
    assert send(r, b'{"model":"b"}', path, headers=prefix_header(byte_hashes(p, 256), "256b")) == ("w2", 32, 32)
    assert r.explain(b'{"model":"b"}', path, prefix_header(byte_hashes(p, 256), "256b"))["chosen"] == "w2"
    assert r.admin("POST", "pools/a/generation")[1]["generation"] == 1
    assert send(r, b, path) == ("w2", 32, 32), "the other pool's weights are what they were"
    assert send(r, a, path)[1:] == (0, 64)
    m = r.request("POST", path, a, {"X-Kvsteer-Worker": "w3"})
    assert m.status == 400, "it is no worker of this pool"


def test_workers_with_models_get_only_those(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    conf = f"[pool default]\n[worker w0]\nurl = {w0.url}\nmodels = llama-* tiny\n[worker w1]\nurl = {w1.url}\nmodels = qwen\n"
    r = router(conf=conf, keys=OPEN + "\n", wait=False)
    r.wait_workers("w0", "w1")
    for model, name in [("llama-8b", "w0"), ("qwen", "w1"), ("tiny", "w0")] * 3:
        assert served_by(r, completion(text(1, 1), model=model), "/v1/completions") == name
    told = r.explain(completion("x", model="qwen"), "/v1/completions")
    assert {c["worker"]: c["out_of_play"] for c in told["candidates"]} == {"w0": "model", "w1": None}


def test_max_requests_is_a_cap_that_affinity_cannot_break(router, worker):
    w0, w1 = worker("w0", HoldMarked()), worker("w1", HoldMarked())
    conf = f"[pool default]\nno_worker_wait = 0\n[worker w0]\nurl = {w0.url}\nmax_requests = 3\n[worker w1]\nurl = {w1.url}\n"
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("w0", "w1")
    body = completion(text(4, 1))
    place(r, body, "w0", "/v1/completions")
    with held(r, w0, 2):
        assert served_by(r, body, "/v1/completions") == "w0", "room for one more"
    w0.handler.open.clear()
    with held(r, w0, 3):
        told = r.explain(body, "/v1/completions")
        assert told["candidates"][0]["out_of_play"] == "full" and told["chosen"] == "w1"
        assert served_by(r, body, "/v1/completions") == "w1"
        m = r.request("POST", "/v1/completions", body, {"X-Kvsteer-Worker": "w0"})
        assert m.status == 503
    assert len(w0.requests) == 1 + 3 + 3


@pytest.mark.tsan
def test_max_requests_holds_under_a_rush(router, worker):
    """All at once from many connections: the cap is taken with the pick, so it is exact."""
    ws = [worker(f"w{i}", Hold()) for i in range(3)]
    conf = "[pool default]\nno_worker_wait = 0\nretry_max_retries = 0\n" + "".join(f"[worker {w.name}]\nurl = {w.url}\nmax_requests = 4\n" for w in ws)
    r = router(conf=conf, keys=OPEN + "threads = 4\nqueue_size = 0\n", wait=False)
    r.wait_workers("w0", "w1", "w2")
    wires = [r.connect() for _ in range(30)]
    in_parallel([lambda c=c, i=i: c.send(make_request(body=chat(user(text(1, i))))) for i, c in enumerate(wires)])
    for w in ws:
        w.wait_requests(4)
    wait_until(lambda: r.metric("kvsteer_requests_total", code="429") == 18, "the rest is told at once")
    assert all(len(w.requests) == 4 for w in ws)
    for w in ws:
        w.handler.release()
    assert sorted(c.read_response("POST").status for c in wires) == [200] * 12 + [429] * 18


def test_c07_ready_while_some_pool_can_serve(router, worker):
    a, b = worker("wa", models=("alpha",)), worker("wb", models=("beta", "alpha"))
    b.healthy = False
    fast = "health_interval = 50ms\nhealth_timeout = 20s\nhealth_failures = 1\nhealth_successes = 1\n"
    r = router(conf=f"[pool a]\nmodels = alpha\n{fast}[pool b]\nno_worker_wait = 0\n{fast}"
               f"[worker wa]\nurl = {a.url}\npool = a\n[worker wb]\nurl = {b.url}\npool = b\n", keys=OPEN, wait=False)
    r.wait_workers("wa")

    def ready(query=""):
        m = r.request("GET", "/readiness" + query)
        doc = m.json()
        assert (m.status == 200) == (doc["status"] == "ready") == ("error" not in doc)
        return m.status, {name: p["status"] for name, p in doc["pools"].items()}
    assert ready() == (200, {"a": "ready", "b": "not_ready"})
    assert ready("?strict") == ready("?strict=1") == (503, {"a": "ready", "b": "not_ready"})
    assert ready("?strict=0") == ready()
    assert ready("?pool=a") == ready("?x=1&strict&pool=a") == (200, {"a": "ready"})
    assert ready("?pool=b") == (503, {"b": "not_ready"})
    for query in ("?pool=c", "?pool=", "?pool=%zz", "?pool=" + "b" * 2000):
        m = r.request("GET", "/readiness" + query)
        assert (m.status, m.json()["error"]["code"]) == (404, "pool_not_found"), query
    assert r.request("HEAD", "/readiness?pool=b").status == 503
    assert r.request("GET", "/health").status == r.request("GET", "/liveness").status == 200
    assert served_by(r, completion("x", model="alpha"), "/v1/completions") == "wa", "what can be served is served"
    assert r.request(body=chat(model="beta")).status == 503
    b.healthy = True
    r.wait_workers("wb")
    wait_until(lambda: ready("?strict") == (200, {"a": "ready", "b": "ready"}), "both pools have a worker")

    def models():
        return sorted(m["id"] for m in r.request("GET", "/v1/models").json()["data"])
    wait_until(lambda: models() == ["alpha", "beta"], "merged, without doubles")
    b.healthy = False
    r.wait_workers("wb", state="unhealthy")
    assert ready() == (200, {"a": "ready", "b": "not_ready"})
    a.healthy = False
    r.wait_workers("wa", state="unhealthy")
    assert ready() == (503, {"a": "not_ready", "b": "not_ready"})
    a.healthy = True
    r.wait_workers("wa")
    wait_until(lambda: models() == ["alpha"], "of healthy workers only")
    r.allow_errors.append("wb")
