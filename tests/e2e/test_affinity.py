"""Affinity: which worker a conversation returns to. Cases B04, B18, B36, B47, B64, B66 of the bug
log, row A2 of the change requests."""
import base64
import json
import random
import threading

import pytest

from harness import DEADLINE, make_request, text, wait_until
from routing import OPEN, HoldMarked, byte_hashes, chat, completion, held, media, place, prefix_header, send, served_by, settle, user


def pair(router, worker, n=2, **kw):
    ws = [worker(f"w{i}", HoldMarked()) for i in range(n)]
    return router(ws, keys=OPEN + kw.pop("keys", ""), **kw), ws


# ---- B04: the key is the whole prompt, in the order in which the engine renders it ----

SYSTEM = text(8, 100)


def tools(seed):
    def tool(i):
        return {"type": "function", "function": {"name": f"f{i}", "description": text(1, seed * 100 + i),
                                                 "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    return [tool(i) for i in range(20)]


def chat_turns(n, first, role="system", **fields):
    """Turn n of a conversation: the whole history and a new user turn."""
    messages = [{"role": role, "content": SYSTEM}, user(first)]
    for i in range(1, n):
        messages += [{"role": "assistant", "content": f"answer {i} to {first[:20]}"}, user(f"{i:03d} " + text(1, i)[:196])]
    return chat(*messages, **fields)


def turns_plain(who, n):
    return "/v1/chat/completions", chat_turns(n, text(4, who))


def turns_tools(who, n):
    return "/v1/chat/completions", chat_turns(n, text(4, 9), tools=tools(who))


def turns_developer(who, n):
    return "/v1/chat/completions", chat_turns(n, text(4, who), role="developer")


def turns_responses(who, n):
    items = [user(text(4, who))]
    for i in range(1, n):
        items += [{"type": "message", "id": f"msg_{who}{n}{i}", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {i}"}]},
                  user(f"{i:03d} " + text(1, i)[:196])]
    return "/v1/responses", {"model": "m", "instructions": SYSTEM, "input": items}


def turns_messages(who, n):
    items = [user(text(4, who))]
    for i in range(1, n):
        items += [{"role": "assistant", "content": f"answer {i}"}, user(f"{i:03d} " + text(1, i)[:196])]
    return "/v1/messages", {"system": SYSTEM, "messages": items, "model": "m", "max_tokens": 5}


def agent(n, query, result):
    messages = [{"role": "system", "content": SYSTEM}, user("look it up")]
    for i in range(n):
        call = {"id": f"call_{i}", "type": "function", "function": {"name": "grep", "arguments": json.dumps({"q": text(1, query)})}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": call["id"], "content": text(4, result + i)}]
    return "/v1/chat/completions", chat(*messages)


def turns_tool_calls(who, n):
    """Two agents that differ in what they asked their tools."""
    return agent(n, 50 + who, 10)


def turns_tool_results(who, n):
    """And in what their tools said."""
    return agent(n, 50, 10 * who)


SHAPES = [turns_plain, turns_tools, turns_developer, turns_responses, turns_messages, turns_tool_calls, turns_tool_results]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__[6:])
def test_b04_follow_ups_return_to_the_worker_of_the_conversation(router, worker, shape):
    r, _ = pair(router, worker)
    home = {1: "w0", 2: "w1"}
    for who, name in home.items():
        path, body = shape(who, 1)
        place(r, body, name, path)
    # In no order that ties broken in turn would follow.
    for n, order in enumerate([(1, 2), (2, 1), (1, 2), (2, 1), (2, 1)], 2):
        for who in order:
            path, body = shape(who, n)
            name, matched, blocks = send(r, body, path)
            assert name == home[who], f"turn {n} of {who}: {matched}/{blocks}"
            assert 0 < matched < blocks, "the last turn is found, the new one is not"


def test_b04_requests_without_a_session_id_are_not_one_conversation(router, worker):
    r, _ = pair(router, worker)
    seen = {served_by(r, chat(user(text(2, 200 + i)))) for i in range(4)}
    assert seen == {"w0", "w1"}


# ---- B18 and A2: the overload check judges the worker that the request wants, no other ----

def place_by_load(r, body, name, others):
    """As the bug log places a prefix: every other worker is busy while it is sent."""
    if others:
        with held(r, others[0], 5):
            place_by_load(r, body, name, others[1:])
        others[0].handler.open.clear()
        return
    assert served_by(r, body) == name


def conversation(seed, n=1):
    messages = [user(text(8, seed))]
    for i in range(1, n):
        messages += [{"role": "assistant", "content": f"answer {i}"}, user(text(1, seed + i)[:200])]
    return chat(*messages)


@pytest.mark.tsan
def test_a2_affinity_survives_an_unrelated_hot_worker(router, worker):
    """B18 (a)."""
    r, ws = pair(router, worker, 4)
    place_by_load(r, conversation(1), "w2", [ws[0], ws[1], ws[3]])
    with held(r, ws[0], 60):
        for n in range(2, 12):
            name, matched, _ = send(r, conversation(1, n))
            assert name == "w2" and matched > 60
    assert r.metric("kvsteer_route_decisions_total", reason="prefix_hit") >= 10
    assert r.metric("kvsteer_route_decisions_total", reason="overload_shed") == 0


def test_a2_affinity_yields_when_the_cached_worker_is_the_hot_one(router, worker):
    """B18 (b), to the letter: loads 60/0/0/0, the prefix on the hot worker alone; then one turn
    behind on an idle one too."""
    r, ws = pair(router, worker, 4)
    place(r, conversation(1, 3), "w0")
    place(r, conversation(5, 3), "w0")
    place(r, conversation(5, 2), "w3")
    with held(r, ws[0], 60):
        told = r.explain(conversation(1, 4))
        assert told["reason"] == "overload_shed" and told["chosen"] != "w0"
        assert served_by(r, conversation(1, 4)) == told["chosen"]
        settle(r)
        told = r.explain(conversation(5, 4))
        assert told["reason"] == "prefix_next" and told["chosen"] == "w3"
        assert served_by(r, conversation(5, 4)) == "w3"


def test_a2_both_thresholds_are_strict_and_both_must_be_passed(router, worker):
    """Hot is: more than balance_abs_threshold above the least loaded, and more than
    balance_rel_threshold times it."""
    r, ws = pair(router, worker, 2, pool="balance_abs_threshold = 4\nbalance_rel_threshold = 2\n")
    body = conversation(1)
    place(r, body, "w0")
    with held(r, ws[0], 4):
        assert served_by(r, body) == "w0", "4 above the least loaded is not more than 4"
    ws[0].handler.open.clear()
    with held(r, ws[1], 5), held(r, ws[0], 10):
        assert served_by(r, body) == "w0", "5 above, but 10 is not more than twice 5"
    ws[0].handler.open.clear()
    ws[1].handler.open.clear()
    with held(r, ws[1], 5), held(r, ws[0], 11):
        assert served_by(r, body) == "w1", "6 above, and 11 is more than twice 5"
    ws[0].handler.open.clear()
    place(r, conversation(7), "w0")
    with held(r, ws[0], 5):
        assert served_by(r, conversation(7)) == "w1", "5 above"


def test_b18c_a_single_request_makes_no_worker_hot(router, worker):
    r, ws = pair(router, worker, 4)
    place(r, conversation(1), "w2")
    with held(r, ws[2], 1):
        for n in range(2, 7):
            assert served_by(r, conversation(1, n)) == "w2"


def test_b18_a_holder_below_the_threshold_is_not_followed(router, worker):
    """cache_threshold: a worker that holds a tenth of the prompt is no home for it."""
    r, ws = pair(router, worker, 2)
    tenth, half = text(4, 1), text(4, 3)
    place(r, completion(tenth), "w0", "/v1/completions")
    place(r, completion(half), "w0", "/v1/completions")
    with held(r, ws[0], 1):
        assert served_by(r, completion(tenth + text(36, 2)), "/v1/completions") == "w1"
        assert served_by(r, completion(half + text(4, 5)), "/v1/completions") == "w0", "half of it is"


# ---- B36: what a policy by prefix does with ids ----

def test_b36_ids_neither_bind_nor_scatter(router, worker):
    """Per-request and look-alike ids: prompts decide, whatever the ids say; odd ids are carried as
    they came."""
    r, ws = pair(router, worker, 4)
    names = ["X-Session-ID", "X-Request-Id", "X-User-Id", "X-Correlation-Id", "X-Smg-Routing-Key"]
    place(r, conversation(1), "w3")
    for n, session in enumerate(["s-1", "s-10", "s-100", "S-1", "a,b", "", "x" * 8192], 2):
        for header in names:
            assert served_by(r, conversation(1, n), headers={header: session}) == "w3"
        assert served_by(r, dict(conversation(1, n), user=session)) == "w3"
    assert ws[3].requests[-2].get("x-smg-routing-key") == "x" * 8192
    seen = {served_by(r, conversation(10 + i), headers={"X-Session-ID": "s-1"}) for i in range(8)}
    assert len(seen) > 2, "one id does not pin unrelated prompts"


@pytest.mark.tsan
def test_b36c_when_a_worker_goes_only_its_own_conversations_move(router, worker):
    """And what it holds is not forgotten: a conversation that slept through the trip finds it
    again."""
    ws = [worker(f"w{i}", HoldMarked()) for i in range(4)]
    fast = "[pool default]\nhealth_interval = 50ms\nhealth_timeout = 2s\nhealth_failures = 1\nhealth_successes = 1\n"
    r = router(conf=fast + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws), keys=OPEN, wait=False, allow_errors=["w1"])
    r.wait_workers(*[w.name for w in ws])
    home = {k: served_by(r, conversation(300 + 10 * k)) for k in range(40)}
    asleep = next(k for k in home if home[k] == "w1")
    ws[1].healthy = False
    r.wait_workers("w1", state="unhealthy")
    moved = {}
    for k in home:
        if k == asleep:
            continue
        name = served_by(r, conversation(300 + 10 * k, 2))
        if home[k] == "w1":
            moved[k] = name
        else:
            assert name == home[k]
    assert len(moved) >= 4 and set(moved.values()) == {"w0", "w2", "w3"}, moved
    ws[1].healthy = True
    r.wait_workers("w1")
    assert served_by(r, conversation(300 + 10 * asleep, 2)) == "w1"
    for k in home:
        assert served_by(r, conversation(300 + 10 * k, 3)) == moved.get(k, home[k])


# ---- B47: content parts and media ----

def image(seed, kib=512):
    data = base64.b64encode(random.Random(seed).randbytes(kib * 768)).decode()
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}


def part(t):
    return {"type": "text", "text": t}


def test_b47a_a_part_of_text_equals_the_plain_string(router, worker):
    r, _ = pair(router, worker)
    turn = "hi " + text(4, 1)
    place(r, chat(user(turn)), "w1")
    name, matched, blocks = send(r, chat(user([part(turn)]), {"role": "assistant", "content": "a"}, user("more")))
    assert name == "w1" and matched >= blocks - 1
    name, matched, blocks = send(r, chat(user([part(turn[:2000]), part(turn[2000:])])))
    assert 2000 // 128 - 1 <= matched <= 2000 // 128 + 1, "two parts are not one"


def test_b47b_conversations_that_differ_by_their_image(router, worker):
    r, _ = pair(router, worker)

    def turn(seed, n):
        content = [part(text(2, 3)), image(seed), part("what is this? " + text(2, 4))]
        more = [m for i in range(n) for m in ({"role": "assistant", "content": f"it is {i}"}, user(text(1, 70 + i)))]
        return chat(user(content), *more)
    place(r, turn(1, 0), "w0")
    place(r, turn(2, 0), "w1")
    for n, order in enumerate([(1, 2), (2, 1), (1, 2)], 1):
        for seed in order:
            name, matched, blocks = send(r, turn(seed, n))
            assert name == f"w{seed - 1}" and matched > 30
            assert blocks < 200, "an image is a digest, not half a megabyte of blocks"


def test_b47c_the_same_image_first_with_another_question(router, worker):
    r, _ = pair(router, worker)
    for seed in (1, 2):
        place(r, chat(user([image(seed), part(text(1, seed))])), f"w{seed - 1}")
    for seed, question in [(2, 11), (2, 12), (1, 13), (1, 14), (2, 15)]:
        name, matched, blocks = send(r, chat(user([image(seed), part(text(1, question)[:200])])))
        assert name == f"w{seed - 1}" and matched == 32 < blocks, "all of the image and nothing of the question"


def test_b47c_the_image_need_not_come_first_and_the_block_may_be_large(router, worker):
    """Blocks of 2,048 bytes: what goes before the image, and at least one whole block of its
    own."""
    r, _ = pair(router, worker, pool="prefix_block = 2048\n")
    before = part("look at this: " + text(1, 5)[:300])
    for seed in (1, 2):
        place(r, chat(user([before, image(seed), part(text(1, seed))])), f"w{seed - 1}")
    for seed, question in [(2, 11), (2, 12), (1, 13), (1, 14), (2, 15)]:
        name, matched, _ = send(r, chat(user([before, image(seed), part(text(1, question)[:200])])))
        assert name == f"w{seed - 1}" and matched == 2


def test_b47c_a_client_can_hash_an_image_itself(router, worker):
    """The stream is public: hashes built from its description find what the router hashed."""
    r, _ = pair(router, worker)
    place(r, chat(user([part("see"), image(1), part("what? " + text(1, 1))])), "w1")
    stream = b"\xffmuser\xffxsee" + media(image(1)["image_url"]["url"]) + b"\xffxwhat? " + text(1, 1).encode()
    name, matched, blocks = send(r, chat(), headers=prefix_header(byte_hashes(stream)))
    assert name == "w1" and matched == blocks == len(stream) // 128


def test_b47d_images_leave_nothing_big_in_the_index(router, worker):
    r, _ = pair(router, worker, keys="threads = 1\n")
    for seed in range(40):
        send(r, chat(user([part(text(1, 300)), image(seed, 256), part(f"{seed}")])))
    pool = r.admin("GET", "status")[1]["pools"][0]
    # Of an image 32 blocks, and few of what goes before and after; of the index at most 64 KiB an
    # image (here, a tenth).
    assert pool["index"]["blocks"] < 40 * (32 + 12) and pool["index"]["bytes"] < 40 * 6554, pool
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "what held the bodies is given back")


ODD_PARTS = [
    {"type": "input_audio", "input_audio": {"data": "AAAA" * 500, "format": "wav"}},
    {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
    {"type": "image_url", "image_url": "https://example.test/a.png"},
    {"type": "hologram", "depth": [1, {"a": None}]}, {"type": 7}, {}, "plain", None, 5, [["x"]]]


def test_b47e_parts_of_other_types_pass_untouched(router, worker):
    r, ws = pair(router, worker)
    for i, odd in enumerate(ODD_PARTS):
        body = json.dumps(chat(user([part(text(1, i)), odd, part("end " * 100)])), separators=(",  ", ": "))
        first = send(r, body)
        assert send(r, body)[0] == first[0], f"{odd}: the same prompt returns"
        for w in ws:
            assert all(m.body.decode() in (body, "") for m in w.requests)
            w.clear()
    audio = [{"type": "input_audio", "input_audio": {"data": d * 500}} for d in ("AAAA", "BBBB")]
    with_audio = [chat(user([part("a" * 200), a, part("b" * 900)])) for a in audio]
    place(r, with_audio[0], "w0")
    place(r, with_audio[1], "w1")
    for i in (0, 1, 1, 0, 0, 1):
        assert served_by(r, with_audio[i]) == f"w{i}"


# ---- B64: a prefix match, block by block from the start ----

@pytest.mark.tsan
def test_b64a_groups_that_share_a_prefix_stay_together(router, worker):
    r, _ = pair(router, worker, 4)
    heads = [text(8, 400 + g) for g in range(5)]
    order = [g for g in range(5) for _ in range(25)]
    random.Random(5).shuffle(order)
    seen = {g: {} for g in range(5)}
    for i, g in enumerate(order):
        name = served_by(r, completion(heads[g] + text(1, 1000 + i)[:600]), "/v1/completions")
        seen[g][name] = seen[g].get(name, 0) + 1
    for g, by_worker in seen.items():
        top = sorted(by_worker.values(), reverse=True)
        assert sum(top[:2]) >= 20, f"group {g}: {by_worker}"
    assert len({max(s, key=s.get) for s in seen.values()}) >= 3, f"all groups on few workers: {seen}"


def test_b64b_what_is_not_at_the_start_does_not_match(router, worker):
    r, _ = pair(router, worker)
    p1, p2 = text(4, 1), text(4, 2)
    place(r, completion(p1), "w0", "/v1/completions")
    place(r, completion(p2), "w1", "/v1/completions")
    assert send(r, completion(p2 + p1), "/v1/completions") == ("w1", 32, 64)
    assert send(r, completion(p1 + p2), "/v1/completions") == ("w0", 32, 64)
    assert send(r, completion("x" * 128 + p1), "/v1/completions")[1] == 0, "shifted by one block"


def test_b64c_an_early_difference_is_none_a_late_one_is_a_match(router, worker):
    r, ws = pair(router, worker)
    p = text(8, 1)
    place(r, completion(p), "w1", "/v1/completions")
    late = p[:4000] + "#" + p[4001:]
    assert send(r, completion(late), "/v1/completions") == ("w1", 31, 64)
    with held(r, ws[1], 1):
        assert send(r, completion("#" + p[1:]), "/v1/completions") == ("w0", 0, 64)


def test_b64d_a_strict_prefix_of_what_is_cached(router, worker):
    r, _ = pair(router, worker)
    p = text(8, 1)
    place(r, completion(p[:2048]), "w0", "/v1/completions")
    place(r, completion(p), "w1", "/v1/completions")
    for _ in range(3):
        assert send(r, completion(p[:4096]), "/v1/completions") == ("w1", 32, 32)
    seen = set()
    for _ in range(2):  # what both hold whole is a tie, and ties go round
        settle(r)
        seen.add(served_by(r, completion(p[:1024]), "/v1/completions"))
    assert seen == {"w0", "w1"}


# ---- B66: one text in several partitions of the cache ----

@pytest.mark.parametrize("first,second", [
    ({"cache_salt": "t1"}, {"cache_salt": "t2"}), ({"model": "m"}, {"model": "m:lora-a"}),
    ({"lora_path": "a"}, {"lora_path": "b"}), ({}, {"cache_salt": "t2"}),
], ids=["salt", "model", "lora", "salted-or-not"])
def test_b66_partitions_of_the_cache_do_not_meet(router, worker, first, second):
    r, ws = pair(router, worker)
    body = chat(user(text(8, 1)))
    one, two = {**body, **first}, {**body, **second}
    place(r, one, "w0")
    with held(r, ws[0], 5):
        for i in range(10):
            name, matched, blocks = send(r, two)
            assert name == "w1" and (matched == 0) == (i == 0), "its own cache is all that counts"
    for i in (0, 1, 1, 0, 0, 1):
        assert send(r, (one, two)[i])[:2] == (f"w{i}", blocks)


def test_b66_an_empty_salt_equals_none(router, worker):
    r, _ = pair(router, worker)
    body = chat(user(text(8, 1)))
    place(r, body, "w1")
    for salted in ({"cache_salt": ""}, {"cache_salt": None}, {}):
        name, matched, blocks = send(r, {**body, **salted})
        assert name == "w1" and matched == blocks


# ---- what a worker is believed to hold ----

def depth(r, name, body):
    return next(c["depth"] for c in r.explain(body, "/v1/completions")["candidates"] if c["worker"] == name)


@pytest.mark.tsan
def test_a_prompt_that_was_not_taken_is_not_held(router, worker):
    """Refused, broken off before its head, left by the client: what went before stays, what was new
    goes."""
    held_open = threading.Event()

    def handler(x):
        how = x.request.get("x-how")
        if how == "gone":
            held_open.set()
            return x.wait_gone() and "close"
        if how == "silent":
            return "close"
        return x.answer(int(how or 200), "{}")
    ws = [worker(f"w{i}", handler) for i in range(2)]
    r = router(ws, pool="retry_max_retries = 0\n", keys=OPEN, allow_errors=["w0"])
    short, long = completion(text(4, 1)), completion(text(12, 1))
    place(r, short, "w0", "/v1/completions")
    for how in ("500", "503", "400", "429", "302", "silent", "gone"):
        with r.connect() as c:
            c.send(make_request("POST", "/v1/completions", long, {"X-Kvsteer-Worker": "w0", "X-How": how}))
            if how == "gone":
                assert held_open.wait(DEADLINE)
                assert depth(r, "w0", long) == 96, "it is on its way, so the next of its kind follows it"
                c.reset()
            else:
                assert c.read_response("POST").status == (502 if how == "silent" else int(how))
        r.wait_idle()
        assert depth(r, "w0", long) == 32, how
    place(r, long, "w0", "/v1/completions")
    assert depth(r, "w0", long) == 96 and depth(r, "w1", long) == 0


def test_d5_prefixes_that_are_not_used_expire(router, worker):
    r, ws = pair(router, worker, pool="prefix_ttl = 300ms\n")
    body = completion(text(4, 1))
    place(r, body, "w1", "/v1/completions")
    wait_until(lambda: depth(r, "w1", body) == 0, "it counts no more")
    assert r.explain(body, "/v1/completions")["reason"] == "no_match"
    wait_until(lambda: r.metric("kvsteer_prefix_evictions_total", reason="ttl") == 32, "and is swept, as many blocks as there were")
    assert r.admin("GET", "workers/w1")[1]["blocks"] == 0


# ---- what explain says is what happens ----

def test_explain_equals_what_then_happens(router, worker):
    """Under load and in every outcome of the policy; the reason is counted as told."""
    r, ws = pair(router, worker, 3, pool="balance_abs_threshold = 3\n")
    rng = random.Random(8)
    reasons = set()
    with held(r, ws[1], 5):
        for i in range(60):
            body = conversation(rng.randrange(6), rng.randrange(1, 4))
            if i % 6 == 0:
                body = conversation(100 + i)
                place(r, body, "w1")
            settle(r)
            told = r.explain(body)
            depth = next(c["depth"] for c in told["candidates"] if c["worker"] == told["chosen"])
            before = r.metric("kvsteer_route_decisions_total", reason=told["reason"])
            assert send(r, body) == (told["chosen"], depth, told["blocks"])
            assert r.metric("kvsteer_route_decisions_total", reason=told["reason"]) == before + 1
            reasons.add(told["reason"])
    assert {"prefix_hit", "no_match", "overload_shed"} <= reasons, reasons
