"""What workers serve: the lists of /v1/models take part in the choice (C05), and the model is found
wherever a request names it (C06)."""
import json
import random

import pytest

from harness import make_request, wait_until
from routing import OPEN, chat, in_parallel, served_by, user

FAST = "[pool default]\nhealth_interval = 50ms\nhealth_timeout = 20s\n"


class Engine:
    """Answers 200 for the models that it has, else 404 as vLLM does."""

    def __init__(self, *models):
        self.has = set(models)

    def __call__(self, x):
        m = x.request
        said = x.request.body
        model = json.loads(said).get("model", "") if said[:1] == b"{" else None
        if m.target.startswith("/v1/models/"):
            return x.answer(404, b'{"detail":"Not Found"}')
        if model is None or model in self.has or not model:
            return x.answer(200, json.dumps({"model": model, "worker": x.worker.name}))
        return x.answer(404, json.dumps({"error": {"message": f"The model `{model}` does not exist.", "type": "NotFoundError", "code": 404}}))


def start(router, worker, lists, pool="policy = round_robin\n"):
    """One worker for each list, which serves what it lists."""
    ws = [worker(f"w{i}", Engine(*models), models=models) for i, models in enumerate(lists)]
    return fleet(router, ws, pool), ws


def fleet(router, ws, pool="policy = round_robin\n"):
    return router(conf=FAST + pool + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws), keys=OPEN, wait=False).wait_workers(*(w.name for w in ws))


def relist(w, *models):
    """The worker has other models now, and its list says so as soon as it is read."""
    w.handler.has, w.models = set(models), list(models)


def listed(r):
    return {m["id"] for m in r.request("GET", "/v1/models").json()["data"]}


def statuses(r, model, n=12, path="/v1/chat/completions"):
    return [r.request("POST", path, chat(user("hi"), model=model)).status for _ in range(n)]


# ---- C05 ----

@pytest.mark.parametrize("policy", ["cache_aware", "round_robin", "least_requests", "consistent_hash"])
def test_c05_a_request_goes_to_the_workers_that_list_its_model(router, worker, policy):
    r, ws = start(router, worker, [("llama-8b",), ("qwen-7b",), ("qwen-7b", "adapter")], f"policy = {policy}\n")
    for model, names in (("llama-8b", {"w0"}), ("qwen-7b", {"w1", "w2"}), ("adapter", {"w2"})):
        answers = in_parallel([lambda m=model: r.request("POST", "/v1/chat/completions", chat(user(m), model=m)) for _ in range(16)])
        assert {m.status for m in answers} == {200}
        assert {m.get("x-kvsteer-worker") for m in answers} <= names, model
        assert r.explain(chat(user("hi"), model=model))["chosen"] in names
    out = {c["worker"]: c["out_of_play"] for c in r.explain(chat(user("hi"), model="adapter"))["candidates"]}
    assert out == {"w0": "model", "w1": "model", "w2": None}
    # Nobody lists it: an engine may know it all the same, and says so itself.
    assert set(statuses(r, "gpt", 3)) == {404}


def test_c05_workers_with_models_of_their_own_go_by_these(router, worker):
    a, b = worker("w0", Engine("x", "y"), models=("x",)), worker("w1", Engine("y"), models=("y",))
    r = router(conf=f"[pool default]\npolicy = round_robin\n[worker w0]\nurl = {a.url}\nmodels = x y*\n[worker w1]\nurl = {b.url}\n", keys=OPEN)
    assert {served_by(r, chat(user("hi"), model="y")) for _ in range(6)} == {"w0", "w1"}
    assert {served_by(r, chat(user("hi"), model="x")) for _ in range(6)} == {"w0"}


def test_c05_a_worker_without_a_list_serves_anything(router, worker):
    def no_list(x):
        x.answer(404 if x.request.target == "/v1/models" else 200, b"{}")
    a, b = worker("w0", Engine("x", "y")), worker("w1", Engine("y"), models=("y",))
    a.healthy = no_list
    r = fleet(router, [a, b])
    assert {served_by(r, chat(user("hi"), model="y")) for _ in range(6)} == {"w0", "w1"}
    assert {r.request(body=chat(user("hi"), model="x")).status for _ in range(6)} <= {200, 404}


def test_c05_an_adapter_that_comes_is_found_and_one_that_goes_is_looked_for_elsewhere(router, worker):
    r, (a, b) = start(router, worker, [("base",), ("base",)], "cost = prefill_cost\n")
    assert set(statuses(r, "lora", 2)) == {404}
    relist(b, "base", "lora")
    # The 404 of a worker says that the lists are of yesterday: they are read with the next probe.
    wait_until(lambda: statuses(r, "lora", 2) == [200, 200], "the list is read again")
    assert statuses(r, "lora") == [200] * 12 and "lora" in listed(r)
    relist(a, "base", "lora")
    r.request(body=chat(user("hi"), model="nobody"))
    wait_until(lambda: {served_by(r, chat(user("hi"), model="lora")) for _ in range(4)} == {"w0", "w1"}, "both have it")
    # It goes from one: what that one answers is asked of the other, once, before any list says so.
    b.handler.has = {"base"}
    assert statuses(r, "lora") == [200] * 12


def test_c05_a_404_is_tried_on_one_other_worker(router, worker):
    r, ws = start(router, worker, [("m",)] * 4, "cost = prefill_cost\n")
    for w in ws:
        w.handler.has = set()
    assert statuses(r, "m", 1) == [404]
    assert sum(len(w.requests) for w in ws) == 2
    assert statuses(r, "other", 1) == [404]
    assert sum(len(w.requests) for w in ws) == 3, "nobody lists that"
    for w in ws:
        assert r.worker_state(w.name) == "healthy"


def test_c05_the_only_worker_of_a_model_is_down(router, worker):
    """503 for its model, rather than another engine's 404; and the list does not promise it."""
    r, (a, b) = start(router, worker, [("a",), ("b",)], "health_failures = 1\nno_worker_wait = 0\n")
    b.healthy = False
    r.wait_workers("w1", state="unhealthy")
    wait_until(lambda: listed(r) == {"a"}, "what cannot be had is not listed")
    r.request(body=chat(user("hi"), model="b"))
    assert not any(json.loads(m.body)["model"] == "b" for m in a.requests if m.body)
    assert r.request(body=chat(user("hi"), model="a")).status == 200


# ---- C06: forms ----

def form(parts, boundary="B0 y+1", end=True, quote=True):
    """parts: (name, file name or None, bytes)."""
    mark = b"--" + boundary.encode()
    out = b""
    for name, file, data in parts:
        head = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{file}"\r\nContent-Type: audio/wav' if file else "")
        out += mark + b"\r\n" + head.encode() + b"\r\n\r\n" + data + b"\r\n"
    return out + (mark + b"--\r\n" if end else b""), {"Content-Type": "multipart/form-data; boundary=" + (f'"{boundary}"' if quote else boundary)}


@pytest.fixture
def by_model(router, worker):
    """Two pools by model, one worker each; the first pool is the one that everything went to."""
    small, big = worker("small", models=("org/small",)), worker("big", models=("org/big",))
    conf = (f"[pool one]\nmodels = org/small\n[pool two]\nmodels = org/big\n"
            f"[worker small]\nurl = {small.url}\npool = one\n[worker big]\nurl = {big.url}\npool = two\n")
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers("small", "big")
    return r, small, big


AUDIO = random.Random(6).randbytes(1 << 20)
FORMS = ["/v1/audio/transcriptions", "/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/videos"]


@pytest.mark.parametrize("path", FORMS)
def test_c06_the_model_of_a_form_chooses_the_pool(by_model, path):
    r, small, big = by_model
    file = ("file", "a.wav", AUDIO + b'\r\n--B0 y\r\nContent-Disposition: form-data; name="model"\r\n\r\norg/small\r\n')
    for parts in ([("model", None, b"org/big"), file], [file, ("model", None, b"org/big"), ("language", None, b"de")],
                  [("model", None, b"org/small"), file, ("model", None, b"org/big")]):
        body, fields = form(parts)
        m = r.request("POST", path, body, fields)
        assert (m.status, m.get("x-kvsteer-worker")) == (200, "big"), m.body
        assert big.requests[-1].body == body
    for parts in ([file], [("model", "model.txt", b"org/big"), file], [("model", None, b""), file]):
        m = r.request("POST", path, *form(parts))
        assert (m.status, m.json()["error"]["code"]) == (400, "model_required")
    m = r.request("POST", path, *form([("model", None, b"gpt"), file]))
    assert (m.status, m.json()["error"]["code"]) == (404, "model_not_found")
    body, fields = form([file])
    assert r.request("POST", path, body, {**fields, "X-Kvsteer-Model": "org/big"}).get("x-kvsteer-worker") == "big"
    assert not small.requests


def test_c06_a_large_file_before_the_model_in_bounded_memory(by_model):
    r, small, big = by_model
    body, fields = form([("file", "a.wav", AUDIO * 26), ("model", None, b"org/big")])
    m = r.request("POST", "/v1/audio/transcriptions", body, fields)
    assert (m.status, m.get("x-kvsteer-worker")) == (200, "big")
    assert big.requests[-1].body == body
    with r.connect() as c:  # and chunked, in cuts that fall anywhere
        c.send(f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: r\r\nContent-Type: {fields['Content-Type']}\r\nTransfer-Encoding: chunked\r\n\r\n")
        body, _ = form([("file", "a.wav", AUDIO[:5000]), ("model", None, b"org/big")])
        for i in range(0, len(body), 37):
            part = body[i:i + 37]
            c.send(b"%x\r\n%s\r\n" % (len(part), part))
        c.send(b"0\r\n\r\n")
        m = c.read_response("POST")
    assert (m.status, m.get("x-kvsteer-worker")) == (200, "big")


def test_c06_broken_forms_are_answered_400(by_model):
    r, small, big = by_model
    whole, fields = form([("model", None, b"org/big"), ("file", "a", b"x")])
    for body, kind in [(b"", fields), (whole, {"Content-Type": "multipart/form-data"}), (whole, {"Content-Type": "multipart/form-data; boundary=other"}),
                       (whole[:20], fields), (whole, {"Content-Type": 'multipart/form-data; boundary=""'}), (whole, {"Content-Type": "text/plain"}),
                       (whole.replace(b"form-data", b"file"), fields)]:
        if body:
            m = r.request("POST", "/v1/audio/transcriptions", body, kind)
            assert (m.status, m.json()["error"]["code"]) == (400, "model_required"), kind
    # The model is there though the end is not: the engine's affair.
    cut, _ = form([("model", None, b"org/big"), ("file", "a", b"x")], end=False)
    assert r.request("POST", "/v1/audio/transcriptions", cut, fields).get("x-kvsteer-worker") == "big"


def test_c06_json_of_audio_and_images(by_model):
    r, small, big = by_model
    for path in ("/v1/audio/speech", "/v1/images/generations", "/v1/actions/generations", "/rollout/generate", "/v1/videos", "/v1/moderations"):
        assert served_by(r, {"model": "org/big", "input": "x"}, path) == "big", path
        assert r.request("POST", path, {"input": "x"}).status == 400
    assert not small.requests


def test_c05_the_model_of_a_form_chooses_the_worker(router, worker):
    r, (a, b) = start(router, worker, [("x",), ("y",)])
    body, fields = form([("file", "a.wav", AUDIO), ("model", None, b"y")])
    assert {r.request("POST", "/v1/audio/transcriptions", body, fields).get("x-kvsteer-worker") for _ in range(4)} == {"w1"}


# ---- C06: GET /v1/models/ID ----

def test_c06_one_model_is_asked_of_who_lists_it(by_model):
    r, small, big = by_model
    for path in ("/v1/models/org/big", "/v1/models/org%2Fbig", "/v1/models/%6frg/big?x=1"):
        m = r.request("GET", path)
        assert (m.status, m.get("x-kvsteer-worker")) == (200, "big"), path
        assert big.requests[-1].target == path
    assert r.request("GET", "/v1/models/org/small").get("x-kvsteer-worker") == "small"
    for path in ("/v1/models/gpt", "/v1/models/org%2fbig2", "/v1/models/org+big"):
        m = r.request("GET", path, headers={"anthropic-version": "2023-06-01"} if "gpt" in path else {})
        assert m.status == 404, path
        assert m.json().get("type") == ("error" if "gpt" in path else None)


def test_c06_an_engine_without_that_path_is_answered_for_from_the_list(router, worker):
    """vLLM lists its models and has no path for one; Claude Code asks for it first."""
    r, ws = start(router, worker, [("org/big",), ("other",)])
    for path in ("/v1/models/org/big", "/v1/models/org%2Fbig"):
        m = r.request("GET", path)
        assert (m.status, m.json()["id"], m.json()["object"]) == (200, "org/big", "model")
        m = r.request("GET", path, headers={"anthropic-version": "2023-06-01"})
        assert (m.json()["type"], m.json()["id"], m.json()["display_name"]) == ("model", "org/big", "org/big")
        assert r.request("HEAD", path).status == 200
    assert {w.name: len(w.requests) for w in ws} == {"w0": 6, "w1": 0}
    m = r.request("GET", "/v1/models/nobody")
    assert (m.status, m.body) == (404, b'{"detail":"Not Found"}'), "the engine's own"


# ---- C06: no model ----

def test_c06_a_body_without_a_model(by_model):
    r, small, big = by_model
    paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/tokenize", "/v1/messages", "/generate"]
    for path in paths:
        for body in ({"prompt": "x", "messages": [user("x")]}, {"model": None, "input": "x"}, {"model": 7}, [], "text"):
            m = r.request("POST", path, json.dumps(body))
            assert m.status == 400, (path, body)
            if path == "/v1/messages":
                assert m.json()["type"] == "error" and "field model" in m.json()["error"]["message"]
            else:
                assert m.json()["error"]["code"] == "model_required"
        m = r.request("POST", path, {"prompt": "x", "messages": [user("x")]}, {"X-Kvsteer-Model": "org/big"})
        assert (m.status, m.get("x-kvsteer-worker")) == (200, "big"), path
    assert not small.requests
    assert r.admin("POST", "explain", {"messages": [user("x")]})[0] == 404


def test_c06_one_pool_needs_no_model(router, worker):
    r = router([worker("w0")], keys=OPEN)
    assert served_by(r, {"messages": [user("x")]}) == "w0"


def test_c06_the_pool_with_the_only_model(router, worker):
    a, b = worker("a", models=("m",)), worker("b", models=("m",))
    r = router(conf=f"[pool one]\nmodels = m\n[pool two]\nmodels = m x\n[worker a]\nurl = {a.url}\npool = one\n[worker b]\nurl = {b.url}\npool = two\n",
               keys=OPEN, wait=False)
    r.wait_workers("a", "b")
    wait_until(lambda: r.request(body={"messages": [user("x")]}).status == 200, "both lists were read")
    assert served_by(r, {"messages": [user("x")]}) == "a"


def test_c06_a_continued_response_needs_no_model(by_model):
    """Its worker is known."""
    r, small, big = by_model
    big.handler = lambda x: x.answer(200, json.dumps({"id": "resp_1", "object": "response", "worker": "big"}))
    assert r.request("POST", "/v1/responses", {"model": "org/big", "input": "x"}).status == 200
    with r.connect() as c:
        c.send(make_request("GET", "/v1/responses/resp_1"))
        assert c.read_response().get("x-kvsteer-worker") == "big"
