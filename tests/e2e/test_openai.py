"""The real OpenAI client through the real router: against scripted workers, and against
kvsteer-engine."""
import json
import os
import random

import harness
import openai
import pytest
from engine_proc import Engine, expected, render, tokenize
from routing import OPEN

WORDS = ["one", " two", " three", " \u00e9\U0001f600", " end"]


def chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def scripted(x):
    """What an engine answers, as the client's request asks for it."""
    body = json.loads(x.request.body)
    path = x.request.target
    if path == "/v1/embeddings":
        data = [{"object": "embedding", "index": i, "embedding": [float(i), 0.5]} for i in range(len(body["input"]))]
        return x.answer(200, json.dumps({"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}))
    if path == "/v1/completions":
        return x.answer(200, json.dumps({"id": "t1", "object": "text_completion", "created": 1, "model": "m",
                                         "choices": [{"index": 0, "text": body["prompt"][::-1], "finish_reason": "stop", "logprobs": None}]}))
    if body["messages"][-1]["content"] == "fail":
        return x.answer(422, json.dumps({"error": {"message": "not so", "type": "invalid_request_error", "param": "messages", "code": "odd"}}))
    if not body.get("stream"):
        return x.answer(200, json.dumps({"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}]}))
    x.begin()
    for w in WORDS:
        x.event(chunk({"content": w}))
        if w == " two" and body["messages"][-1]["content"] == "break":
            return "close"
    x.event(chunk({}, "stop"))
    x.event("[DONE]")
    return x.end()


@pytest.fixture
def fleet(router, worker):
    """(router, client, workers)."""
    ws = [worker(f"w{i}", scripted) for i in range(2)]
    r = router(ws, keys=OPEN)
    with client_of(r) as c:
        yield r, c, ws


def client_of(r):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{r.port}/v1", api_key="sk-test", max_retries=0, timeout=harness.DEADLINE)


ASK = [{"role": "user", "content": "count"}]


def test_chat_completions_embeddings_models(fleet):
    r, client, ws = fleet
    answer = client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    assert answer.parse().choices[0].message.content == "".join(WORDS)
    w = ws[int(answer.headers["x-kvsteer-worker"][1])]
    assert w.requests[-1].get("authorization") == "Bearer sk-test", "the client's key is the worker's to judge"
    assert answer.headers["x-request-id"] == w.requests[-1].get("x-request-id")
    assert client.completions.create(model="m", prompt="abc").choices[0].text == "cba"
    vectors = client.embeddings.create(model="m", input=["a", "b", "c"], encoding_format="float")
    assert [v.embedding for v in vectors.data] == [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]]
    assert [m.id for m in client.models.list()] == ["m"]


def test_chat_streamed(fleet):
    _, client, _ = fleet
    for _ in range(3):
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        chunks = list(stream)
        assert [c.choices[0].delta.content for c in chunks[:-1]] == WORDS
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_errors_reach_the_client_as_what_they_are(fleet):
    """The worker's own, the router's own, and a stream that broke: each is the client library's
    error, none a success."""
    r, client, _ = fleet
    with pytest.raises(openai.UnprocessableEntityError) as e:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "fail"}])
    assert e.value.code == "odd" and e.value.param == "messages"
    with pytest.raises(openai.NotFoundError) as e:
        client.post("/nowhere", cast_to=object, body={})
    assert e.value.code == "path_not_found"
    r.allow_errors.append(r"w\d")
    got = []
    with pytest.raises((openai.APIError, openai.APIConnectionError)) as e:
        for c in client.chat.completions.create(model="m", messages=[{"role": "user", "content": "break"}], stream=True):
            got.append(c.choices[0].delta.content)
    assert got == WORDS[:2] and "ended before it was complete" in str(e.value)


def test_a_client_that_stops_reading_leaves_nothing(router, worker):
    """The library closes its connection: the worker is told, and the load is gone."""
    def endless(x):
        x.begin()
        x.event(chunk({"content": "on"}))
        x.wait_gone()
    w = worker("w0", endless)
    r = router([w])
    with client_of(r) as client:
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        assert next(iter(stream)).choices[0].delta.content == "on"
        stream.close()
    assert w.wait_requests(1).gone.wait(harness.DEADLINE)
    r.wait_idle()


# ---- kvsteer-engine ----

@pytest.fixture
def engines():
    path = os.path.join(harness.builddir(), "kvsteer-engine")
    if not os.path.exists(path):
        pytest.skip("kvsteer-engine is not built")
    made = [Engine("--sim-speed", "0", binary=path).start() for _ in range(2)]
    yield made
    for e in made:
        e.stop()


@pytest.fixture
def served(router, engines):
    conf = "[pool default]\nhealth_interval = 1s\n" + "".join(f"[worker e{i}]\nurl = {e.url}\n" for i, e in enumerate(engines))
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("e0", "e1")
    with client_of(r) as c:
        yield r, c


def test_engine_answers_what_it_would_without_the_router(served):
    r, client = served
    model = client.models.list().data[0].id
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "say it"}]
    want = expected(tokenize(render(messages)), 12)
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12)
    assert whole.choices[0].message.content.strip() == want.strip() and whole.usage.completion_tokens == 12
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices).strip() == want.strip()
    assert chunks[-1].usage.completion_tokens == 12
    prompt = "tell me"
    text = client.completions.create(model=model, prompt=prompt, max_tokens=5).choices[0].text
    assert text.strip() == expected(tokenize(prompt), 5).strip()


def test_turns_find_the_cache_that_the_engine_really_has(served):
    """What the router believes is held, the engine reports as cached: three conversations in no
    fixed order."""
    r, client = served
    model = client.models.list().data[0].id
    talks = {k: [{"role": "system", "content": harness.text(4, k)}] for k in range(3)}
    home = {}
    order = [k for k in range(3) for _ in range(4)]
    random.Random(4).shuffle(order)
    for n, k in enumerate(order):
        talks[k].append({"role": "user", "content": f"question {n} about {k}?"})
        raw = client.chat.completions.with_raw_response.create(model=model, messages=talks[k], max_tokens=16)
        answer = raw.parse()
        talks[k].append({"role": "assistant", "content": answer.choices[0].message.content})
        worker = raw.headers["x-kvsteer-worker"]
        if k in home:
            assert worker == home[k]
            assert answer.usage.prompt_tokens_details.cached_tokens > 0.8 * answer.usage.prompt_tokens
        home[k] = worker
    assert set(home.values()) == {"e0", "e1"}
    assert r.metric("kvsteer_route_decisions_total", reason="prefix_hit") == len(order) - 3
