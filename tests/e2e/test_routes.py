"""The table of paths, row by row, as --dump-tables prints it: what the worker saw, with which key, and
the client's status; and what C18 asks for, by name."""
import json

import pytest

import harness
from harness import make_request

T = "The quick brown fox jumps over the lazy dog, and over every other dog of this town. " * 6  # blocks of 128 bytes
MESSAGES = [{"role": "user", "content": T}]
POOL = harness.LASTING

# A body of each endpoint, and of each path whose API calls its prompt otherwise.
BODIES = {
    "CHAT": {"messages": MESSAGES},
    "COMPLETIONS": {"prompt": T},
    "RESPONSES": {"input": T},
    "MESSAGES": {"messages": MESSAGES, "system": "s"},
    "EMBEDDINGS": {"input": T},
    "RERANK": {"query": T, "documents": [T, "b"]},
    "SCORE": {"text_1": T, "text_2": [T]},
    "GENERATE": {"text": T},
    "INFERENCE_GENERATE": {"token_ids": list(range(1000, 1100))},
    "TOKENIZE": {"prompt": T},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, [{"role": "user", "content": "b"}]]},
    "/cohere/v2/chat": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": T, "system": "s"},
    "/completion": {"prompt": list(range(100))},
    "/completions": {"prompt": T},
    "/infill": {"input_extra": [{"filename": "a.c", "text": T}], "input_prefix": "int ", "input_suffix": ";", "prompt": ""},
    "/v1/systemone": {"state": {"ticket": T}, "questions": {"q": {"type": "bool"}}},
    "/v1/decisions": {"input": T, "questions": [{"id": "q"}]},
    "/embeddings": {"input": [T, "b"]},
    "/embedding": {"content": T},
    "/v2/embed": {"texts": [T], "input_type": "search_query"},
    "/encode": {"text": T},
    "/pooling": {"messages": MESSAGES},
    "/classify": {"text": T},
    "/v1/classify": {"input": T},
    "/generative_scoring": {"query": T, "items": [T]},
}
OWN = ("HEALTH", "READINESS", "MODELS", "FINISH_SESSION")


class Row:
    def __init__(self, fields):
        self.path, self.label, self.methods, self.action, self.endpoint, self.shape, self.marks, self.source = fields
        self.methods = self.methods.split("_")
        self.is_keyed = self.endpoint not in ("OTHER", "PLAIN")

    def target(self):
        path = self.path.replace("{id}", "obj-1").replace("*", "_from_disk")
        return path + "m" if path.endswith("/") and path != "/" else path

    def body(self, method):
        if method in ("GET", "DELETE", "HEAD"):
            return None
        return json.dumps(dict(BODIES.get(self.path) or BODIES.get(self.endpoint) or {"any": "thing"}, model="m")).encode()


def rows(*actions):
    return [r for r in (Row(f) for f in harness.tables("kvsteerd", "route")) if r.action in actions]


def ask(c, method, target, body):
    c.send(make_request(method, target, body))
    return c.read_response(method)


def test_each_route_that_is_forwarded(router, worker):
    w = worker("w0")
    r = router([w], pool=POOL, keys="expose_worker = on\n")
    seen = 0
    with r.connect() as c:
        for row in rows("FORWARD"):
            for method in row.methods:
                body = row.body(method)
                target = row.target() + "?a=b%20c"
                m = ask(c, method, target, body)
                got = w.requests[seen]
                seen += 1
                assert m.status == 200 and len(w.requests) == seen, row.path
                assert (got.method, got.target, got.body) == (method, target, body or b""), row.path
                matched, total = m.get("x-kvsteer-cached").split("/")
                assert (int(total) > 0) == row.is_keyed, (row.path, total)
            m = ask(c, "PATCH", row.target(), b"{}")
            assert m.status == 405 and m.get("allow"), row.path
        assert len(w.requests) == seen
        # The key is of the prompt: what was sent is where it was sent.
        for row in (row for row in rows("FORWARD") if row.is_keyed):
            matched, total = ask(c, "POST", row.target(), row.body("POST")).get("x-kvsteer-cached").split("/")
            assert matched == total, row.path


def test_each_route_that_is_answered_here(router, worker):
    w = worker("w0")
    r = router([w])
    with r.connect() as c:
        for row in rows(*OWN):
            for method in row.methods:
                m = ask(c, method, row.target(), b"{}" if method == "POST" else None)
                # The admin key is missing where one is needed.
                assert m.status == (403 if row.action == "FINISH_SESSION" else 200), row.path
            assert ask(c, "PATCH", row.target(), b"{}").status == 405, row.path
        assert ask(c, "GET", "/models", None).json()["data"][0]["id"] == "m"
        w.healthy = False
        r.wait_workers("w0", state="unhealthy")
        for row in rows("READINESS"):
            assert ask(c, "GET", row.target(), None).status == 503, row.path
        for row in rows("HEALTH"):
            assert ask(c, "GET", row.target(), None).status == 200, row.path
    assert not w.requests


def test_each_route_that_is_closed(router, worker):
    w = worker("w0")
    r = router([w], pool=POOL)
    with r.connect() as c:
        for row in rows("FLEET", "CLOSED"):
            for method in row.methods:
                m = ask(c, method, row.target(), row.body(method))
                assert m.status == 404 and b"This path is not served here." in m.body, row.path
    for row in rows("WEBSOCKET"):
        with r.connect() as c:
            assert ask(c, "GET", row.target(), None).status == 501, row.path
    assert not w.requests


def test_each_closed_route_passes_if_the_operator_says_so(router, worker):
    w = worker("w0")
    paths = [row.target() for row in rows("FLEET", "CLOSED")]
    r = router([w], pool=POOL, keys="".join(f"pass_paths = {p}\n" for p in paths))
    with r.connect() as c:
        for row in rows("FLEET", "CLOSED"):
            for method in row.methods:
                w.clear()
                assert ask(c, method, row.target(), row.body(method)).status == 200, row.path
                assert [(x.method, x.target) for x in w.requests] == [(method, row.target())]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/pooling", "/v2/embed", "/encode", "/v1/tokenize", "/v1/detokenize",
                                  "/v1/chat/completions/render", "/v1/completions/render"])
def test_c18_routes_of_rewards_pooling_and_embeddings(router, worker, path):
    """Forwarded by default, to the pool that has the model, and counted among the load."""
    a, b = worker("a", models=["m1"]), worker("b", models=["m2"])
    hold = harness.Hold()
    b.handler = hold
    r = router(conf=f"[pool one]\nmodels = m1\nhealth_interval = 1s\n[pool two]\nmodels = m2\nhealth_interval = 1s\n"
                    f"[worker a]\nurl = {a.url}\npool = one\n[worker b]\nurl = {b.url}\npool = two\n", wait=False)
    r.wait_workers("a", "b")
    with r.connect() as c:
        body = json.dumps({"input": "x", "text": "x", "texts": ["x"], "messages": MESSAGES, "prompt": "x", "tokens": [1], "model": "m2"}).encode()
        c.send(make_request("POST", path, body))
        b.wait_requests(1)
        assert r.metric("kvsteer_worker_load", worker="b") == 1 and r.metric("kvsteer_worker_load", worker="a") == 0
        hold.release()
        assert c.read_response().status == 200
    assert b.requests[0].body == body and b.requests[0].target == path and not a.requests


def test_c18_what_load_balancers_ask_first(router, worker):
    w = worker("w0")
    r = router([w], pool=POOL)
    for path in ("/", "/healthz", "/readyz", "/ping", "/v1/health"):
        assert r.request("GET", path).status == 200, path
    assert not w.requests
    w.handler = lambda x: x.answer(200, '{"version":"0.32.0"}')
    assert r.request("GET", "/version").json() == {"version": "0.32.0"}


def test_c18_labels_of_metrics(router, worker):
    w = worker("w0")
    r = router([w], pool=POOL)
    for path in ("/chat/completions", "/v1/chat/completions"):
        assert r.request("POST", path, body=BODIES["CHAT"]).status == 200
    assert r.request("POST", "/pause", body={}).status == 404
    assert r.metric("kvsteer_requests_total", route="chat", code="200") == 2
    assert r.metric("kvsteer_requests_total", route="none", code="404") == 1
