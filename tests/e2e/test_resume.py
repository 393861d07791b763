"""Streams that go on elsewhere when their worker breaks (resume_streams): with kvsteer-engine,
whose tokens are a function of all before them, the text must be that of an unbroken stream,
wherever it is broken; with scripted workers, what they are asked, what the client gets byte for
byte, and what is not resumed.
"""
import json
import re
import threading

import openai
import pytest

import harness
from engine_proc import Engine
from harness import Closed, make_request, wait_until, worker_conf

LASTING = "health_failures = 1000\nno_worker_wait = 0\ncb_failure_threshold = 1000000\nretry_budget = 100%\n"
ON = "policy = least_requests\nresume_streams = on\n" + LASTING
PROMPT = "a story that is told to its end"


def resumes(r):
    """{result: how many}, without zeros."""
    found = {re.search(r'result="([^"]*)"', s)[1]: int(v) for s, v in r.metrics().items() if s.startswith("kvsteer_resumes_total{")}
    return {k: v for k, v in found.items() if v}


# ---- with engines: the text is right ----

class Named:
    """An engine as worker_conf() wants it."""

    def __init__(self, name, engine):
        self.name, self.engine, self.url = name, engine, engine.url


@pytest.fixture
def engines():
    made = []

    def make(n, *flags):
        for i in range(n):
            made.append(Named(f"e{i}", Engine("--sim-speed", "0", *flags, faults=True).start()))
        return made
    yield make
    for e in made:
        e.engine.clear_faults()
        e.engine.stop()


def client_of(r):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{r.port}/v1", api_key="none", max_retries=0, timeout=harness.DEADLINE)


def streamed(client, is_chat, **more):
    """(text, finish reasons, usage, ids, roles, events) of a stream that must end well."""
    if is_chat:
        events = list(client.chat.completions.create(model="sim", messages=[{"role": "user", "content": PROMPT}], stream=True, stream_options={"include_usage": True}, **more))
    else:
        events = list(client.completions.create(model="sim", prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **more))
    choices = [c for e in events for c in e.choices]
    text = "".join((c.delta.content or "") if is_chat else c.text for c in choices)
    finish = [c.finish_reason for c in choices if c.finish_reason]
    usage = [(e.usage.prompt_tokens, e.usage.completion_tokens, e.usage.total_tokens) for e in events if e.usage and not e.choices]
    roles = [c.delta.role for c in choices if c.delta.role] if is_chat else []
    return text, finish, usage, {(e.id, e.created, e.model) for e in events}, roles, len(events)


@pytest.mark.parametrize("how", ["rst", "fin"])
@pytest.mark.parametrize("limit", [{}, {"max_tokens": 12}], ids=["natural", "limited"])
@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
def test_the_text_is_that_of_an_unbroken_stream(router, engines, is_chat, limit, how):
    """Cut before its first event, between any two, before its finish, its usage and its [DONE]."""
    es = engines(2)
    r = router(es, pool=ON + "hold_headers = off\n")  # on, it is a retry before the first event
    client = client_of(r)
    text, finish, usage, ids, roles, n = streamed(client, is_chat, **limit)
    assert len(ids) == 1 and len(finish) == 1 and len(usage) == 1 and roles == (["assistant"] if is_chat else [])
    assert resumes(r) == {}
    resumed = ended = 0
    for cut in range(n + 1):
        for e in es:
            e.engine.fault(cut_after=cut, cut_left=1 if e is es[0] else 0, cut_how=how)
        # Whichever is picked first: the faulty one gets one of two requests.
        before = sum(e.engine.faults()["count"]["cut"] for e in es)
        for _ in range(2):
            got = streamed(client, is_chat, **limit)
            assert got[:2] == (text, finish), cut
            assert len(got[3]) == 1 and got[4] == roles, (cut, got)
            assert got[2] in (usage, []), cut
            assert got[2] == usage or cut >= n - 3, "usage is missing only where the router made the end"
        assert sum(e.engine.faults()["count"]["cut"] for e in es) == before + 1, "it was cut"
        resumed, ended = (resumes(r).get(k, 0) for k in ("resumed", "ended"))
        # A reset may take the head along: then it is a retry, or the repeat of a request on a
        # connection that was given up.
        assert resumed + ended == cut + 1 if how == "fin" else resumed + ended <= cut + 1, resumes(r)
    assert set(resumes(r)) <= {"resumed", "ended"} and resumed > n // 2 and (ended >= 2 or how == "rst")
    assert "unexpected" not in r.log()


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
def test_broken_again_and_again(router, engines, is_chat):
    """Every engine cuts each stream after three tokens: it goes from one to the other until it is
    done, or the retries are."""
    es = engines(2)
    r = router(es, pool=ON + "retry_max_retries = 20\n")
    client = client_of(r)
    whole = streamed(client, is_chat, max_tokens=24)
    for e in es:
        e.engine.fault(cut_after=3 + is_chat)  # who speaks is an event of its own
    got = streamed(client, is_chat, max_tokens=24)
    assert got[:2] == whole[:2] and len(got[3]) == 1
    assert resumes(r)["resumed"] == 8 - (got[2] == []), "three tokens each"
    assert r.reload(worker_conf(es, ON + "retry_max_retries = 4\n"))[0]
    with pytest.raises(openai.APIError, match="ended before it was complete"):
        streamed(client, is_chat, max_tokens=24)
    assert resumes(r)["failed"] == 1


def test_usage_in_every_event_counts_tokens(router, engines):
    es = engines(2)
    r = router(es, pool=ON)
    client = client_of(r)

    def counts():
        events = list(client.completions.create(model="sim", prompt=PROMPT, stream=True, max_tokens=9, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        return [(e.usage.prompt_tokens, e.usage.completion_tokens, e.usage.total_tokens) for e in events]
    whole = counts()
    for e in es:
        e.engine.fault(cut_after=4, cut_left=1 if e is es[0] else 0)
    assert [counts(), counts()] == [whole, whole]
    assert resumes(r) == {"resumed": 1}


def test_many_streams_while_an_engine_restarts(router, engines):
    """Forty at once, their engine falls over twice: not one client notices."""
    es = engines(3, "--sim-decode-rate", "400")
    r = router(es, pool=ON, keys="threads = 2\n")
    client = client_of(r)
    wanted = {}
    for i in range(40):
        wanted[i] = client.completions.create(model="sim", prompt=f"{PROMPT} {i}", max_tokens=60).choices[0].text
    for e in es[:2]:
        e.engine.fault(cut_after=17, cut_left=9)
    got, errors = {}, []

    def run(i):
        try:
            got[i] = "".join(e.choices[0].text for e in client.completions.create(model="sim", prompt=f"{PROMPT} {i}", max_tokens=60, stream=True) if e.choices)
        except Exception as e:  # told below, with all others
            errors.append((i, e))
    threads = [threading.Thread(target=run, args=(i,)) for i in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == [] and got == wanted
    assert resumes(r)["resumed"] >= 9


# ---- with scripted workers: what is asked, what is seen ----

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 10}
TEXT = {"model": "m", "prompt": "Once", "stream": True, "max_tokens": 10}


def chunk(id_, delta, finish=None, **more):
    return json.dumps({"id": id_, "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def text_event(id_, text, finish=None):
    return json.dumps({"id": id_, "object": "text_completion", "created": 7, "model": "m", "choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def breaks(x, how="fin"):
    if how == "rst":
        x.wire.reset()
    elif how == "chunk":
        x.send(b"zz\r\n")
    elif how == "hang":
        x.wait_gone()
    x.wire.close()
    raise Closed()


def story(*events, end=True, head=None):
    """A handler: these events, then a clean end, or a break ("fin", "rst", "chunk", "hang")."""
    def run(x):
        x.begin(**(head or {}), then=[e if isinstance(e, bytes) else f"data: {e}\n\n".encode() for e in events])
        if end is True:
            x.end()
            return None
        return breaks(x, end)
    return run


def all_of(r, body, path="/v1/chat/completions", **kw):
    with r.connect() as c:
        c.send(make_request(body=body, path=path, **kw))
        m = c.read_head()
        c.read_body(m)
        return m


@pytest.mark.tsan
@pytest.mark.parametrize("how", ["fin", "rst", "chunk", "hang"])
def test_a_chat_as_the_next_worker_is_asked_it(router, worker, how):
    first = story(chunk("A", {"role": "assistant", "content": ""}), chunk("A", {"content": "He said \"é"}), chunk("A", {"content": "\n\U0001f600"}), end=how)
    second = story(chunk("B", {"role": "assistant", "content": ""}), chunk("B", {"content": " end"}), chunk("B", {}, "stop"), "[DONE]")
    ws = [worker("w0", first), worker("w1", second)]
    r = router(ws, pool=ON + "stream_idle_timeout = 300ms\n", keys="expose_worker = on\n")
    body = json.dumps(CHAT, indent=1).replace('"stream"', '"x-unknown": [1, {"messages": []}],\n "stream"')
    m = all_of(r, body, headers={"Authorization": "Bearer k"})
    assert m.status == 200 and m.ended and m.get("x-kvsteer-worker") == "w0"
    assert m.body.decode() == "".join(f"data: {e}\n\n" for e in [
        chunk("A", {"role": "assistant", "content": ""}), chunk("A", {"content": "He said \"é"}), chunk("A", {"content": "\n\U0001f600"}),
        chunk("A", {"content": " end"}), chunk("A", {}, "stop"), "[DONE]"])
    asked, again = ws[0].requests[0], ws[1].requests[0]
    assert asked.body.decode() == body
    assert again.json() == {**json.loads(body), "max_tokens": 8, "continue_final_message": True, "add_generation_prompt": False,
                            "messages": [*CHAT["messages"], {"role": "assistant", "content": "He said \"é\n\U0001f600"}]}
    assert again.body.decode().startswith(body[:body.index("]")].rstrip()), "spliced, not written anew"
    assert again.get("authorization") == "Bearer k" and again.get("x-request-id") == asked.get("x-request-id")
    assert int(again.get("content-length")) == len(again.body)
    assert resumes(r) == {"resumed": 1}
    assert "retries=1" in r.wait_log(r".*status=200 .*").group(0)


def test_a_completion_as_the_next_worker_is_asked_it(router, worker):
    ws = [worker("w0", story(text_event("A", " upon"), text_event("A", " a\t"), end="rst")), worker("w1", story(text_event("B", " time", "stop"), "[DONE]"))]
    r = router(ws, pool=ON)
    m = all_of(r, TEXT, "/v1/completions")
    assert m.ended and m.body.decode() == "".join(f"data: {e}\n\n" for e in [text_event("A", " upon"), text_event("A", " a\t"), text_event("A", " time", "stop"), "[DONE]"])
    assert ws[1].requests[0].json() == {**TEXT, "prompt": "Once upon a\t", "max_tokens": 8}


def counted(id_, text, prompt, completion, finish=None, cached=None):
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    return json.dumps({"id": id_, "object": "text_completion", "created": 7, "model": "m",
                       "choices": [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}],
                       "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}})


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_f5_usage_of_a_resumed_stream(router, worker, is_told):
    """The next worker cuts the text so far into 53 tokens, which were 5: the prompt has as many as
    the first worker said. Where it said nothing, the sum is that of the next worker."""
    first = [counted("A", f" w{i}", 14, i + 1) if is_told else text_event("A", f" w{i}") for i in range(5)]
    second = [counted("B", " end", 67, 1), counted("B", " it is", 67, 2, "length"), counted("B", None, 67, 2, cached=64)]
    ws = [worker("w0", story(*first, end="rst")), worker("w1", story(*second, "[DONE]"))]
    r = router(ws, pool=ON)
    m = all_of(r, dict(TEXT, stream_options={"include_usage": True, "continuous_usage_stats": is_told}), "/v1/completions")
    assert m.ended
    usage = [json.loads(e[6:])["usage"] for e in m.body.decode().split("\n\n") if e and "usage" in e]
    assert all(u["prompt_tokens"] + u["completion_tokens"] == u["total_tokens"] for u in usage)
    assert {u["prompt_tokens"] for u in usage} == {14 if is_told else 62}
    assert [u["completion_tokens"] for u in usage] == ([1, 2, 3, 4, 5] if is_told else []) + [6, 7, 7]
    assert usage[-1]["prompt_tokens_details"]["cached_tokens"] == (14 if is_told else 62)
    assert ws[1].requests[0].json()["max_tokens"] == 5


@pytest.mark.parametrize("step", [1, 7, 64])
def test_wherever_bytes_break_the_client_sees_whole_events(router, worker, step):
    """A stream of four events is cut after every step-th byte, inside events and between them."""
    events = [chunk("A", {"role": "assistant", "content": ""}), chunk("A", {"content": "one"}), chunk("A", {"content": " two"})]
    wire = "".join(f"data: {e}\n\n" for e in events).encode()
    cut, lock = [0], threading.Lock()

    def first(x):
        x.begin()
        if cut[0]:
            x.chunk(wire[:cut[0]])
        breaks(x)

    def second(x):
        said = x.request.json()["messages"][1:]
        rest = [" two", " three"] if said and said[0]["content"] == "one" else [" three"] if said else ["one", " two", " three"]
        story(chunk("B", {"role": "assistant"}), *(chunk("B", {"content": t}) for t in rest), chunk("B", {}, "stop"), "[DONE]")(x)

    def by_turn(x):
        with lock:
            turn[0] += 1
            mine = turn[0]
        (first if mine % 2 else second)(x)
    turn = [0]
    ws = [worker("w0", by_turn), worker("w1", by_turn)]
    r = router(ws, pool=ON)
    for cut[0] in range(0, len(wire) + 1, step):
        m = all_of(r, CHAT)
        assert m.ended, cut
        seen = [json.loads(e[6:]) for e in m.body.decode().split("\n\n") if e and e != "data: [DONE]"]
        assert m.body.endswith(b"data: [DONE]\n\n")
        deltas = [e["choices"][0]["delta"] for e in seen]
        assert "".join(d.get("content") or "" for d in deltas) == "one two three", cut
        assert [d["role"] for d in deltas if "role" in d] == ["assistant"], cut
        assert len({e["id"] for e in seen}) == 1, cut
    assert set(resumes(r)) == {"resumed"}  # a retry, where the first worker said nothing yet


# ---- whose end alone is missing ----

@pytest.mark.parametrize("events,limit,added", [
    ([chunk("A", {"content": "x"}, "stop")], 10, ["[DONE]"]),
    ([chunk("A", {"content": "x"}, "stop"), "[DONE]"], 10, []),
    ([chunk("A", {"content": "x"}), chunk("A", {"content": "y"})], 2, [chunk("A", {}, "length"), "[DONE]"]),
], ids=["done", "nothing", "length"])
def test_the_router_ends_what_is_complete(router, worker, events, limit, added):
    ws = [worker("w0", story(*events, end="rst")), worker("w1")]
    r = router(ws, pool=ON)
    m = all_of(r, dict(CHAT, max_tokens=limit))
    seen = [e[6:] for e in m.body.decode().split("\n\n") if e]
    assert m.ended and seen[:len(events)] == events and len(seen) == len(events) + len(added)
    for e, wanted in zip(seen[len(events):], added):
        if e != "[DONE]":
            assert {k: v for k, v in json.loads(e)["choices"][0].items() if k != "logprobs"} == json.loads(wanted)["choices"][0]
            assert json.loads(e)["id"] == "A"
        else:
            assert wanted == "[DONE]"
    assert ws[1].requests == [] and resumes(r) == {"ended": 1}
    assert "end=ok" in r.wait_log(r".*status=200 .*").group(0)


# ---- what is not resumed ----

def is_cut(m):
    return m.status == 200 and not m.ended and b'"code":"worker_broke"' in m.body


@pytest.mark.parametrize("more", [{"n": 2}, {"tools": [{"type": "function"}]}, {"logprobs": True}, {"response_format": {"type": "json_object"}},
                                  {"continue_final_message": True}, {"messages": "x"}], ids=lambda d: next(iter(d)))
def test_requests_that_are_not_fit_break_as_ever(router, worker, more):
    """Down to the bytes: half an event is handed on."""
    half = b"data: {\"half"
    ws = [worker("w0", story(chunk("A", {"content": "x"}), half, end="fin")), worker("w1")]
    r = router(ws, pool=ON)
    m = all_of(r, {**CHAT, **more})
    assert m.status == 200 and not m.ended and m.body.endswith(half)
    assert ws[1].requests == [] and resumes(r) == {}


@pytest.mark.parametrize("path,body", [("/v1/responses", {"model": "m", "input": "x", "stream": True}), ("/generate", {"text": "x", "stream": True})])
def test_other_endpoints_break_as_ever(router, worker, path, body):
    ws = [worker("w0", story('{"x":1}', end="fin")), worker("w1")]
    r = router(ws, pool=ON)
    assert is_cut(all_of(r, body, path)) and ws[1].requests == [] and resumes(r) == {}


def test_off_is_off(router, worker):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1")]
    r = router(ws, pool="policy = least_requests\n" + LASTING)
    assert is_cut(all_of(r, CHAT)) and ws[1].requests == [] and resumes(r) == {}


@pytest.mark.parametrize("event", [chunk("A", {"tool_calls": [{"index": 0}]}), chunk("A", {"reasoning_content": "hm"}), "not json"],
                         ids=["tool", "reasoning", "garbage"])
def test_streams_that_turned_out_otherwise_break(router, worker, event):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), event, end="fin")), worker("w1")]
    r = router(ws, pool=ON)
    m = all_of(r, CHAT)
    assert is_cut(m) and f"data: {event}\n\n".encode() in m.body
    assert ws[1].requests == [] and resumes(r) == {"unfit": 1}


def test_answers_of_another_kind_are_left_alone(router, worker):
    """Compressed, by length, or no event stream."""
    def by_length(x):
        x.send(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: 1\n\n")
        breaks(x)
    for handler in (story(b"\x1f\x8b123", end="fin", head={"fields": [("Content-Encoding", "gzip")]}), by_length,
                    story(b'{"a":', end="fin", head={"content_type": "application/json"})):
        ws = [worker("w0", handler), worker("w1")]
        r = router(ws, pool=ON)
        m = all_of(r, CHAT)
        assert m.status == 200 and not m.ended and ws[1].requests == [] and resumes(r) == {}


def test_bodies_are_kept_for_it_whatever_the_policy_reads(router, worker):
    """round_robin reads no bodies, a client sends hashes, and the body comes late and long: it is
    there when it is needed."""
    for headers in ({}, {"X-Kvsteer-Prefix": "128b;"}):
        ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1", story(chunk("B", {"content": "y"}, "stop"), "[DONE]"))]
        r = router(ws, pool=ON.replace("least_requests", "round_robin"))
        body = json.dumps(dict(CHAT, messages=[{"role": "user", "content": "x" * (2 << 20)}]))
        bytes_ = make_request(body=body, headers=headers)
        with r.connect() as c:
            c.send(bytes_[:5000])
            c.send(bytes_[5000:])
            m = c.read_response()
        assert m.ended and m.body.endswith(b"[DONE]\n\n")
        assert ws[1].requests[0].json()["messages"][1]["content"] == "x" and resumes(r) == {"resumed": 1}


def test_a_pinned_stream_breaks_as_ever(router, worker):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1")]
    r = router(ws, pool=ON, keys="allow_pin = on\n")
    assert is_cut(all_of(r, CHAT, headers={"X-Kvsteer-Worker": "w0"})) and ws[1].requests == [] and resumes(r) == {"failed": 1}


# ---- when nobody goes on ----

@pytest.mark.parametrize("then", ["400", "503", "dies", "json", "nobody"])
def test_nobody_who_goes_on(router, worker, then):
    """The client sees what it would have seen: the stream so far, the reason of the break, no
    end."""
    def second(x):
        if then == "dies":
            breaks(x)
        elif then == "json":
            x.answer(200, "{}")
        else:
            x.answer(int(then), '{"error":{}}')
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin"))] + ([worker("w1", second)] if then != "nobody" else [])
    r = router(ws, pool=ON)
    m = all_of(r, CHAT)
    assert is_cut(m) and m.body.startswith(f"data: {chunk('A', {'content': 'x'})}\n\n".encode())
    assert m.body.count(b"data: ") == 2
    assert resumes(r) == {"failed": 1}
    assert [len(w.requests) for w in ws] == [1] * len(ws)


def test_it_passes_over_those_who_do_not(router, worker):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1", lambda x: x.answer(503, "no")), worker("w2", breaks),
          worker("w3", story(chunk("B", {"role": "assistant"}), chunk("B", {"content": "y"}, "stop"), "[DONE]"))]
    r = router(ws, pool=ON)
    m = all_of(r, CHAT)
    assert m.ended and m.body.decode() == "".join(f"data: {e}\n\n" for e in [chunk("A", {"content": "x"}), chunk("A", {"content": "y"}, "stop"), "[DONE]"])
    assert [len(w.requests) for w in ws] == [1, 1, 1, 1] and resumes(r) == {"resumed": 1}


def test_b52_a_stream_that_kills_goes_to_one_other_worker(router, worker):
    """As a request: of those that were to go on, two may die without a byte, no more."""
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin"))] + [worker(f"w{i}", breaks) for i in range(1, 5)]
    r = router(ws, pool=ON)
    assert is_cut(all_of(r, CHAT))
    assert [len(w.requests) for w in ws] == [1, 1, 1, 0, 0] and resumes(r) == {"failed": 1}


def test_no_budget_no_second_worker(router, worker):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1")]
    r = router(ws, pool=ON.replace("retry_budget = 100%", "retry_budget = 0%"))
    assert is_cut(all_of(r, CHAT)) and ws[1].requests == [] and resumes(r) == {"failed": 1}
    assert r.metric("kvsteer_retries_refused_total") == 1


def test_its_body_counts_as_body_memory(router, worker):
    """A second body beside the client's, and gone with it; where there is no room for it nothing
    goes on."""
    held = harness.Hold(story(chunk("B", {"content": "y"}, "stop"), "[DONE]"))
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1", held)]
    r = router(ws, pool=ON, keys="body_memory = 1m\n")
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, messages=[{"role": "user", "content": "x" * 300_000}])))
        ws[1].wait_requests(1)
        assert r.metric("kvsteer_body_memory_bytes") >= 600_000
        held.release()
        assert c.read_response().ended
    r.wait_idle()
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "given back")
    big = dict(CHAT, messages=[{"role": "user", "content": "x" * 700_000}])
    answers = [all_of(r, big), all_of(r, big)]  # one of them begins with w0
    assert sorted(is_cut(m) for m in answers) == [False, True]
    assert resumes(r) == {"resumed": 1, "failed": 1}
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "given back")


# ---- clients that leave ----

@pytest.mark.parametrize("when", ["asked", "going on"])
def test_b03_a_client_that_leaves_a_resumed_stream(router, worker, when):
    """The worker that was to go on, or does, sees it."""
    def second(x):
        if when == "going on":
            x.begin()
            x.event(chunk("B", {"content": "y"}))
        assert x.wait_gone()
        return "close"
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1", second)]
    r = router(ws, pool=ON)
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        c.read_head()
        c.read_chunk()
        x = ws[1].wait_requests(1)
        if when == "going on":
            c.read_chunk()
    assert x.gone.wait(harness.DEADLINE)
    r.wait_idle()
    r.wait_log("client_gone")


def test_the_connection_serves_the_next_request(router, worker):
    ws = [worker("w0", story(chunk("A", {"content": "x"}), end="fin")), worker("w1", story(chunk("B", {"content": "y"}, "stop"), "[DONE]"))]
    r = router(ws, pool=ON)
    with r.connect() as c:
        c.send(make_request(body=CHAT) + make_request("GET", "/health"))
        m = c.read_response()
        assert m.ended and m.body.endswith(b"[DONE]\n\n")
        assert c.read_response().json() == {"status": "ok"}
    with r.connect() as c:  # and 1.0 clients, whose end is a close
        ws[0].clear()
        body = json.dumps(CHAT)
        c.send(f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        m = c.read_response()
        assert m.status == 200 and m.body.endswith(b"[DONE]\n\n")
    wait_until(lambda: resumes(r).get("resumed", 0) >= 1, "resumed")
