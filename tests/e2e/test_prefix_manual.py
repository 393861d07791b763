"""kvsteer-prefix(7) is true: its code runs as it is printed, its examples agree with a second
implementation, which clients may use (etc/clients/kvsteer_prefix.py), and with the daemon."""
import ast
import doctest
import json
import os
import random
import re
import shutil
import subprocess

import pytest
import xxhash

import harness
from routing import OPEN, chain, client_module

prefix_stream = client_module()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "man", "kvsteer-prefix.7")
MARK = re.compile(r"\||<(4096|8) ([^>]*)>|<bytes ([^>]*)>|<ids ([^>]*)>")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def plain(roff):
    """The text of a literal display, as a reader sees it."""
    for escape, text in (("\\-", "-"), ("\\(aq", "'"), ("\\&", "")):
        roff = roff.replace(escape, text)
    assert not re.search(r"\\[^e]", roff), "an escape that this does not know"
    return roff.replace("\\e", "\\")


def displays():
    return [plain(d) for d in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", read(PAGE), re.M | re.S)]


def display(start):
    """The one that begins so."""
    found = [d for d in displays() if d.startswith(start)]
    assert len(found) == 1, f"{len(found)} displays begin with {start!r}"
    return found[0]


def little(n, size):
    return int(n).to_bytes(size, "little")


def stream_bytes(text):
    """What the = lines of an example stand for."""
    out, at = b"", 0
    for m in MARK.finditer(text):
        out += text[at:m.start()].encode()
        at = m.end()
        if m[0] == "|":
            out += b"\xff"
        elif m[1]:
            out += little(xxhash.xxh3_64_intdigest(m[2].encode()), 8) * (int(m[1]) // 8)
        elif m[3]:
            out += bytes.fromhex(m[3])
        else:
            out += b"".join(little(i, 4) for i in m[4].split())
    return out + text[at:].encode()


def examples():
    """(path, body, stream, header) of each."""
    out = []
    for block in display("POST ").strip().split("\n\n"):
        lines = block.split("\n")
        body = "\n".join(x for x in lines[1:-1] if not x.startswith("= "))
        wanted = "".join(x[2:] for x in lines if x.startswith("= "))
        out.append((lines[0].split()[1], body, stream_bytes(wanted), lines[-1]))
    assert len(out) >= 14
    return out


def client():
    """The names that the page's code defines."""
    names = {}
    exec(compile(display("import xxhash"), PAGE, "exec"), names)
    return names


def header(unit, data, size):
    return f"{size}{unit};" + ",".join(f"{h:x}" for h in chain(data, size * (4 if unit == "t" else 1)))


def whole(unit, data):
    """The stream as one block."""
    return header(unit, data, len(data) // (4 if unit == "t" else 1))


# ---- the page and the second implementation ----

def test_the_code_of_the_page_gives_what_the_page_says():
    case = doctest.DocTestParser().get_doctest(display(">>>"), client(), "page", PAGE, 0)
    told = []
    result = doctest.DocTestRunner(verbose=False).run(case, out=told.append)
    assert result.failed == 0 and result.attempted >= 10, "".join(told)


def test_the_values_of_the_page_are_those_of_another_implementation():
    shown = re.findall(r"^'(.*)'$", display(">>>"), re.M)
    letters = b"0123456789abcdef"
    system = {"role": "system", "content": "Be brief. " * 12}
    talk = [prefix_stream.stream("/v1/chat/completions", json.dumps({"messages": m}))[1]
            for m in ([system], [system, {"role": "user", "content": "Say why. " * 14}])]
    assert shown == [
        header("b", letters * 16, 128), header("b", letters * 15, 128), header("b", "caf\u00e9 ".encode() * 50, 128), "128b;",
        header("b", letters * 256, 2048), header("t", b"".join(little(i, 4) for i in range(1000, 1064)), 32),
        header("b", talk[0], 128), header("b", talk[1], 128)]
    assert shown[7].startswith(shown[6] + ","), "a turn more extends what was"


def test_the_streams_of_the_page_are_those_of_another_implementation():
    for path, body, wanted, line in examples():
        unit, data = prefix_stream.stream(path, body)
        assert data == wanted, f"{path}\n{body}"
        assert line == whole(unit, data), f"{path}\n{body}"


def test_the_code_of_the_page_makes_the_streams_of_another_implementation():
    """Of the page's chats, but for tools and reasoning, which its code leaves to the reader."""
    names, n = client(), 0
    for path, body, _, _ in examples():
        if path == "/v1/chat/completions":
            messages = json.loads(body)["messages"]
            for m in messages:
                m.pop("reasoning_content", None)
            wanted = prefix_stream.stream(path, json.dumps({"messages": messages}))[1]
            assert b"".join(map(names["message"], messages)) == wanted, body
            n += len(messages)
    assert n >= 4


C_STRINGS = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
PATHS = {"OTHER": "/v1/moderations", "CHAT": "/v1/chat/completions", "GENERATE": "/generate", "TOKENIZE": "/tokenize",
         **{name: "/v1/" + name.lower() for name in ("COMPLETIONS", "MESSAGES", "RESPONSES", "EMBEDDINGS", "RERANK", "SCORE")}}


def c_bytes(literals):
    return b"".join(ast.literal_eval("b" + x) for x in re.findall(r'"(?:[^"\\]|\\.)*"', literals))


def test_the_unit_tests_and_another_implementation_agree():
    """The golden streams of check_route_key.c, where ~ is a border, @...@ and #...# are digests."""
    source, n = read(os.path.join(ROOT, "tests", "unit", "check_route_key.c")), 0
    for name, body, wanted in re.findall(r"\{ ENDPOINT_(\w+), " + C_STRINGS + r",\s*" + C_STRINGS + r"\}", source):
        wanted = re.sub(rb"([@#])(.*?)\1", lambda m: little(xxhash.xxh3_64_intdigest(m[2]), 8) * (512 if m[1] == b"@" else 1),
                        c_bytes(wanted).replace(b"~", b"\xff"))
        body = c_bytes(body).decode("utf-8", "surrogateescape")
        assert prefix_stream.stream(PATHS[name], body)[1] == wanted, f"{name} {body}"
        n += 1
    assert n > 90


def test_the_page_lists_the_letters_of_the_source():
    source = read(os.path.join(ROOT, "src", "route", "route_prompt.c"))
    letters = re.findall(r"^\tTAG_\w+ = '(.)'", source, re.M)
    rows = re.findall(r'^\.It Li "0xFF 0x(..)" Ta (?:\\&)?(.) Ta ', read(PAGE), re.M)
    assert sorted(letters) == sorted(letter for _, letter in rows) and len(letters) == len(set(letters)) > 15
    for code, letter in rows:
        assert int(code, 16) == ord(letter)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_a_reader_sees_the_displays_as_they_are_tested():
    shown = subprocess.run(["mandoc", "-Tascii", "-Owidth=120", PAGE], capture_output=True, check=True, text=True).stdout
    lines = {line.strip() for line in re.sub(r".\x08", "", shown).split("\n")}
    for d in displays():
        for line in d.split("\n"):
            assert line.strip() in lines, line


# ---- the page and the daemon ----

def start(router, worker):
    """Only w1 is in play, so that it holds what is sent without being pinned: prompts of any length
    are read then."""
    ws = [worker(f"w{i}") for i in range(2)]
    r = router(ws, keys=OPEN)
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    return r, ws


def depth(r, value, path="/v1/completions"):
    """How many of these blocks w1 holds, as explain says."""
    told = r.explain("{}", path, {"X-Kvsteer-Prefix": value})
    assert told["key"]["hashes_sent"]
    return next(c["depth"] for c in told["candidates"] if c["worker"] == "w1")


def hold(r, path, body):
    """Makes w1 hold the prompt; what explain says of its key."""
    m = r.request("POST", path, body)
    assert m.status == 200 and m.get("x-kvsteer-worker") == "w1"
    return r.explain(body, path)["key"]


def test_the_daemon_hashes_the_bodies_of_the_page_as_the_page_says(router, worker):
    """With prefix_block as long as the stream, one hash says all of it. Ids have blocks of 32:
    theirs are in the next test."""
    r, ws = start(router, worker)
    n = 0
    for path, body, data, line in examples():
        size = line.split(";")[0]
        if size.endswith("t"):
            key = r.explain(body, path)["key"]
            assert (key["unit"], key["block"], key["prompt_units"]) == ("t", 32, len(data) // 4)
            continue
        taken, answer = r.reload(harness.worker_conf(ws, f"prefix_block = {len(data)}\n"))
        assert taken, answer
        assert depth(r, line) == 0
        key = hold(r, path, body)
        assert (key["unit"], key["block"], key["blocks"], key["prompt_units"]) == ("b", len(data), 1, len(data)), body
        assert depth(r, line) == 1, f"{path}\n{body}"
        other = f"{size};{int(line.split(';')[1], 16) ^ 1:x}"
        assert depth(r, other) == 0, "the hash matters"
        n += 1
    assert n >= 12


def test_the_daemon_has_the_chains_of_the_page(router, worker):
    """Texts, ids and a conversation, by the page's code; a turn more finds all that was."""
    r, _ = start(router, worker)
    names = client()
    text, tokens = "0123456789abcdef" * 16, list(range(1000, 1064))
    turns = [{"role": "system", "content": "Be brief. " * 12}]
    more = turns + [{"role": "user", "content": "Say why. " * 14}]
    stream = {len(m): b"".join(map(names["message"], m)) for m in (turns, more)}
    hold(r, "/v1/completions", {"prompt": text})
    assert depth(r, names["prefix"](text.encode())) == 2
    assert depth(r, names["prefix"](text.encode() + b"x" * 128)) == 2
    hold(r, "/v1/completions", {"prompt": tokens})
    assert depth(r, names["prefix"](names["ids"](tokens), "t", 32)) == 2
    hold(r, "/v1/chat/completions", {"messages": turns})
    n = len(stream[1]) // 128
    assert n > 0 and depth(r, names["prefix"](stream[2])) == n
    hold(r, "/v1/chat/completions", {"messages": more})
    assert depth(r, names["prefix"](stream[2])) == len(stream[2]) // 128 > n


def test_media_count_in_full_up_to_a_number(router, worker):
    r, _ = start(router, worker)
    parts = [{"type": "image_url", "image_url": {"url": f"http://x.test/{i}"}} for i in range(1030)]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]})
    data = prefix_stream.stream("/v1/chat/completions", body)[1]
    assert len(data) == 6 + 1024 * 4098 + 6 * 10
    assert r.explain(body)["key"]["prompt_units"] == len(data)


CALL = ["id", "function", "custom", "name", "arguments", "input"]
PART = ["content", "tool_use_id", "text", "refusal", "thinking", "data", "cache_control", "input", "id", "name", "source", "url", "image_url", "file"]
PART_TYPES = [*prefix_stream.TEXTS, *prefix_stream.THOUGHTS, *prefix_stream.MEDIA, "odd"] + 5 * ["tool_use", "tool_result"]
ITEM_TYPES = ["message", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output", "reasoning", "item_reference", "odd"]
# What a member of this name usually holds: objects with some of these members, of one of these
# types.
LISTS = {"messages": (["role", "name", "content", "tool_calls", "function_call", "tool_call_id", "reasoning", "reasoning_content"], []),
         "input": (["role", "call_id", "id", "status", "name", "arguments", "input", "output", "summary", "content", "cache_control"], ITEM_TYPES),
         "tool_calls": (CALL, []), "tools": (["name", "cache_control", "function"], []), "documents": (["text", "id"], []), "text_2": (["text", "id"], []),
         **{name: (PART, PART_TYPES) for name in ("content", "system", "instructions", "output", "summary", "reasoning")}}
OBJECTS = {"function": CALL, "custom": CALL, "function_call": CALL, **{name: prefix_stream.PLACES for name in ("file", "image_url", "data")},
           "source": ["url", "data", "file_data", "file_url", "file_id"]}
HOMES = {**prefix_stream.TEXTS, **prefix_stream.THOUGHTS, "tool_result": "content", "tool_use": "input", "image": "source"}
FIELDS = ["messages", "tools", "functions", "system", "instructions", "input", "previous_response_id", "prompt", "text", "input_ids", "token_ids", "image_data",
          "query", "documents", "text_1", "text_2"]
MORE_FIELDS = ["data_1", "data_2", "queries", "items", "input_extra", "input_prefix", "input_suffix", "content", "texts", "inputs", "state"]
BILLING = "x-anthropic-billing-header: v=2; cch=0fe1a;"
SPELLINGS = ['"some text of a part"', f'"{BILLING}"', f'"{BILLING}\\ntext"', '"data"', '"caf\\u00e9 \\"\\\\ \\ud83d\\ude00"', '"data:image/png;base64,AAAA"', '"d\\u0061ta:,x"', '""', '"\\ud800"',
             "1.50", "-0", "1e3", "17", "4294967295", "4294967296", "null", "true", "false", "[ ]", "{ }"]


def spell_object(rng, depth, names, types):
    """Members in any order, a few twice; a type mostly has the member that it needs."""
    members = []
    if types and rng.random() < 0.9:
        kind = rng.choice(types)
        members.append(f'"type":"{kind}"')
        names = names + 4 * [HOMES.get(kind, kind)]
    members += [f'"{name}" : {spell_random(rng, depth - 1, name)}' for name in rng.choices(names, k=rng.randrange(7))]
    rng.shuffle(members)
    return "{" + ",\n".join(members) + "}"


def spell_random(rng, depth, name):
    """A JSON value for a member of this name: mostly what belongs there, at times anything."""
    what = rng.random()
    if depth > 0 and what < 0.7 and name in LISTS:
        names, types = LISTS[name]
        items = [spell_object(rng, depth, names, types) if rng.random() < 0.9 else spell_random(rng, depth - 1, "") for _ in range(rng.randrange(4))]
        return "[" + " ,".join(items) + "]"
    if depth > 0 and what < 0.8 and name in OBJECTS:
        return spell_object(rng, depth, OBJECTS[name], [])
    if name == "role" and what < 0.75:
        return rng.choice(['"system"', '"user"'])
    if what < 0.75:
        start = rng.choice([f"{BILLING}\\n", f"{BILLING} ", *6 * [""]])
        return f'"{start}{rng.randrange(100)} of {name}"'
    if what < 0.8:
        return "[" + ", ".join(str(rng.randrange(200000)) for _ in range(rng.randrange(1, 80))) + "]"
    if what < 0.85:
        return "[" + ", ".join(rng.choices(SPELLINGS, k=2)) + "]"
    return rng.choice(SPELLINGS)


def test_the_daemon_and_another_implementation_agree_on_any_body(router, worker):
    r, ws = start(router, worker)
    taken, answer = r.reload(harness.worker_conf(ws, "prefix_block = 16\n"))
    assert taken, answer
    rng, deep = random.Random(7), 0
    paths = [*PATHS.values(), "/inference/v1/generate", "/score", "/v2/rerank", "/reranking", "/chat/completions", "/completion", "/infill", "/pooling", "/classify"]
    for i in range(1000):
        path = paths[i % len(paths)]
        body = "{" + ",".join(f'"{f}":{spell_random(rng, 6, f)}' for f in rng.sample(FIELDS + (MORE_FIELDS if i % 2 else []), 10)) + "}"
        unit, data = prefix_stream.stream(path, body)
        size, units = (32, len(data) // 4) if unit == "t" else (16, len(data))
        key = r.explain(body, path)["key"]
        assert (key["unit"], key["prompt_units"], key["blocks"]) == (unit, units, units // size), f"{path}\n{body}"
        if 0 < units // size < 1500:
            hold(r, path, body)
            value = header(unit, data, size)
            assert depth(r, value, path) == units // size, f"{path}\n{body}"
            deep += 1
    assert deep > 300


def test_the_command_of_the_page_asks_the_daemon(router, worker):
    r, _ = start(router, worker)
    command = display("# echo")[2:]
    assert command.count("kvsteerctl ") == 1
    r.request("POST", "/v1/completions", b'{"model": "m"}', {"X-Kvsteer-Prefix": "128b;7a", "X-Kvsteer-Worker": "w1"})
    command = command.replace("kvsteerctl ", f"{harness.program('kvsteerctl')} -s {r.admin_path} --json ")
    told = json.loads(subprocess.run(command, shell=True, check=True, capture_output=True, timeout=harness.DEADLINE).stdout)
    assert told["key"]["blocks"] == 2 and {c["worker"]: c["depth"] for c in told["candidates"]} == {"w0": 0, "w1": 1}


# ---- the header ----

def lists():
    """The well formed and the malformed values."""
    good, bad = display("128b;a,b"), display("128b\n")
    return good.split("\n")[:-1], bad.split("\n")[:-1]


def test_the_daemon_takes_the_values_of_the_page_and_refuses_the_others(router, worker):
    r, ws = start(router, worker)
    good, bad = lists()
    assert len(good) >= 4 and len(bad) >= 14
    assert re.match(r"(\d+)b;", good[-1])
    for value in bad + [""]:
        m = r.request("POST", "/v1/completions", b"{}", {"X-Kvsteer-Prefix": value})
        assert m.status == 400 and m.json()["error"]["code"] == "malformed_request", value
        assert r.admin("POST", "explain?path=/v1/completions", "{}", {"X-Kvsteer-Prefix": value})[0] == 400, value
    assert all(not w.requests or all(q.method == "GET" for q in w.requests) for w in ws)
    for value in good:
        m = r.request("POST", "/v1/completions", b"{}", {"X-Kvsteer-Prefix": value, "X-Kvsteer-Worker": "w1"})
        assert m.status == 200 and m.get("x-kvsteer-cached").endswith("/%d" % (value.count(",") + (value[-1] != ";"))), value
    assert depth(r, "128b;000a,B") == 2 and depth(r, "32t;FFFFFFFFFFFFFFFF") == 1
    assert depth(r, "128b;b,a") == 0 and depth(r, "256b;a,b") == 0 and depth(r, "128t;a,b") == 0


def test_an_empty_list_is_not_an_absent_header(router, worker):
    r, _ = start(router, worker)
    body = {"prompt": "x" * 256}
    hold(r, "/v1/completions", body)
    for value, blocks in ((None, 2), ("128b;", 0)):
        told = r.explain(body, "/v1/completions", {"X-Kvsteer-Prefix": value} if value else {})
        assert told["key"]["blocks"] == blocks and told["key"]["hashes_sent"] == (value is not None)


def test_as_many_hashes_as_the_page_says_fit_a_head(router, worker):
    r, _ = start(router, worker)
    for n, status in ((1890, 200), (1930, 431)):
        value = "128b;" + ",".join(["f" * 16] * n)
        assert r.request("POST", "/v1/completions", b"{}", {"X-Kvsteer-Prefix": value}).status == status
