"""Agents as they are: bodies in the shapes of today's clients find the worker that has their
conversation, and reach it byte for byte. Case C01 of the bug log."""
import json
import random

import pytest

import agents
from routing import OPEN, chat, place, user

TURNS, CONVERSATIONS = 6, 10


def played(r, ws, shape):
    """Places each conversation's first turn by hand, evenly, then plays the others in random order:
    how many of them came home."""
    turns = {who: 0 for who in range(CONVERSATIONS)}
    rng, home = random.Random(5), 0
    for who in turns:
        path, headers, body = shape(who, 0)
        place(r, json.dumps(body).encode(), ws[who % len(ws)].name, path, headers)
    order = [who for who in turns for _ in range(1, TURNS)]
    rng.shuffle(order)
    for who in order:
        turns[who] += 1
        path, headers, body = shape(who, turns[who])
        sent = json.dumps(body, ensure_ascii=who % 2 == 0).encode()
        m = r.request("POST", path, sent, headers)
        assert m.status == 200, m.start
        name = m.get("x-kvsteer-worker")
        worker = next(w for w in ws if w.name == name)
        assert worker.exchanges[-1].request.body == sent, "forwarded byte for byte"
        home += worker is ws[who % len(ws)]
    return home, len(order)


@pytest.mark.parametrize("shape", agents.SHAPES, ids=lambda f: f.__name__)
def test_c01_conversations_of_agents_come_home(router, worker, shape):
    ws = [worker(f"w{i}") for i in range(4)]
    home, all_turns = played(router(ws, keys=OPEN), ws, shape)
    assert all_turns == 50 and home >= 0.95 * all_turns, f"{home} of {all_turns}"


def units(r, path, body):
    return r.explain(body, path)["key"]["prompt_units"]


def test_c01_the_billing_line_adds_nothing_to_the_key(router, worker):
    """In system prompts of each API, where engines drop it; a user's text may hold it."""
    r = router([worker("w0")], keys=OPEN)
    line = agents.billing(1, 1)
    block, rest = {"type": "text", "text": line}, {"type": "text", "text": "Be brief."}

    def messages(**fields):
        return {"model": "m", "messages": [user("hi")], **fields}
    plain = units(r, "/v1/messages", messages(system="Be brief."))
    for system in ([rest], [block, rest], [rest, block], [{**block, "text": line + "\nmore"}, rest], line + "\nBe brief."):
        assert units(r, "/v1/messages", messages(system=system)) == plain, system
    for path in ("/v1/messages", "/v1/chat/completions"):
        plain = units(r, path, chat({"role": "system", "content": "Be brief."}, user("hi")))
        for content in ([rest], [block, rest], line + "\nBe brief."):
            assert units(r, path, chat({"role": "system", "content": content}, user("hi"))) == plain, content
        assert units(r, path, chat({"role": "user", "content": [block, rest]}, user("hi"))) == plain + len(line)
    plain = units(r, "/v1/responses", {"model": "m", "instructions": "Be brief.", "input": "hi"})
    assert units(r, "/v1/responses", {"model": "m", "instructions": line + "\nBe brief.", "input": "hi"}) == plain
    assert units(r, "/v1/messages/count_tokens", messages(system=[block, rest])) == 0, "counts go by load"
