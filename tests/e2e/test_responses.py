"""Responses that live on the worker that made them: continued, read, deleted and cancelled there,
and looked for in turn where nobody knows."""
import json
import threading

import pytest

import harness
from harness import make_request, wait_until
from routing import OPEN, completion, send

PATH = "/v1/responses"


class Store:
    """A worker's handler that keeps responses, as vLLM does: ids are its own, and nobody else's are
    known."""

    def __init__(self, name, streams=False, blanks="", headless=False):
        self.name, self.streams, self.blanks, self.headless = name, streams, blanks, headless
        self.ids, self.n = set(), 0

    def document(self, ident, **more):
        more = {"id": ident, "created_at": 1, "object": "response", "output": [{"id": "msg_1", "text": '"id":"resp_feigned"'}], **more}
        return json.dumps(more, separators=("," + self.blanks, ":" + self.blanks))

    def not_found(self, x, ident):
        x.answer(404, json.dumps({"error": {"message": f"{self.name} has no {ident}", "code": 404}}))

    def __call__(self, x):
        m = x.request
        path = m.target.partition("?")[0]
        if path == PATH and m.method == "POST":
            return self.create(x, json.loads(m.body))
        if not path.startswith(PATH):
            return harness.answer_ok(x)
        ident, _, verb = path[len(PATH) + 1:].partition("/")
        if ident not in self.ids:
            return self.not_found(x, ident)
        if m.method == "DELETE":
            self.ids.remove(ident)
        x.answer(200, json.dumps({"id": ident, "from": self.name, "verb": verb, "method": m.method}))

    def create(self, x, body):
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self.ids:
            return self.not_found(x, previous)
        self.n += 1
        ident = f"resp_{self.name}-{self.n}"
        self.ids.add(ident)
        if not self.streams:
            return x.answer(200, self.document(ident, previous_response_id=previous, **{"from": self.name}))
        x.begin()
        text = "event: response.created\ndata: " + json.dumps({"response": {"id": ident, "from": self.name}, "type": "response.created"}) + "\n\n"
        for c in text:  # in the smallest pieces
            x.chunk(c)
        x.event("[DONE]")
        x.end()


def start(router, worker, n=3, conf=None, keys="", pool="policy = round_robin\n", **kw):
    ws = [worker(f"w{i}", Store(f"w{i}", **kw)) for i in range(n)]
    return router(ws, keys=OPEN + keys, pool=pool), ws


def create(r, previous=None, **more):
    """(id, worker) of a new response."""
    body = {"model": "m", "input": "x" * 300, **({"previous_response_id": previous} if previous else {}), **more}
    m = r.request("POST", PATH, body)
    assert m.status == 200, m.body
    text = m.body.decode()
    return json.loads(text[text.index('{"response":') + 12:].partition(', "type"')[0] if "data:" in text else text)["id"], m.get("x-kvsteer-worker")


def seen(ws):
    return sum(len(w.requests) for w in ws)


@pytest.mark.parametrize("pool", ["policy = round_robin\n", "policy = cache_aware\nbalance_abs_threshold = 0\n"])
@pytest.mark.parametrize("kind", [{}, {"streams": True}, {"blanks": "\n \t"}])
def test_what_a_worker_made_stays_with_it(router, worker, kind, pool):
    """Every call about a response goes to its worker, the first time: no other is asked."""
    r, ws = start(router, worker, pool=pool, **kind)
    made = [create(r) for _ in range(9)]
    assert len({w for _, w in made}) == 3 or "cache_aware" in pool
    before = seen(ws)
    for ident, name in made:
        again, where = create(r, ident)
        assert where == name
        assert create(r, again)[1] == name, "and so on from turn to turn"
        for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            m = r.request(method, f"{PATH}/{ident}{path}")
            assert (m.status, m.get("x-kvsteer-worker"), m.json()["from"]) == (200, name, name)
    assert seen(ws) == before + 9 * 6
    assert r.metric("kvsteer_route_decisions_total", reason="response_home") == 9 * 6
    for route, n in (("response", 18), ("response_items", 9), ("response_cancel", 9)):
        r.wait_metric(n, "kvsteer_requests_total", route=route)


def test_unknown_ids_are_asked_for_in_turn(router, worker):
    """Made behind the router's back: the first who does not say 404 has it, and is known from then
    on. Nobody: the last worker's 404."""
    r, ws = start(router, worker, 5)
    ws[3].handler.ids |= {"resp_x", "resp_y"}
    for _ in range(6):
        m = r.request("GET", PATH + "/resp_x?include=a")
        assert m.status == 200 and m.json()["from"] == "w3"
    assert ws[3].requests[-1].target == PATH + "/resp_x?include=a"
    assert seen(ws) <= 5 + 5, "looked for once"
    for w in ws:
        w.clear()
    assert create(r, "resp_y")[1] == "w3" and len(ws[3].requests) == 1
    body = ws[3].requests[0].body
    assert all(m.body == body for w in ws for m in w.requests) and seen(ws) <= 5
    for w in ws:
        w.clear()
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        m = r.request(method, f"{PATH}/resp_nobody{path}")
        assert m.status == 404 and b"has no resp_nobody" in m.body, "a worker's own words"
    m = r.request("POST", PATH, {"model": "m", "input": "x", "previous_response_id": "resp_nobody"})
    assert m.status == 404 and b"has no resp_nobody" in m.body
    assert [len(w.requests) for w in ws] == [4] * 5, "each was asked once"
    m = r.request("POST", PATH, {"model": "m", "input": "x"})
    assert m.status == 200 and seen(ws) == 21, "without an id nobody is asked twice"


@pytest.mark.parametrize("by_path", [True, False])
def test_the_search_goes_on_beyond_64_workers(router, worker, by_path):
    """Each of 70 workers is asked once, and the last one has it; of an id that nobody has, each says 404 before the client hears it."""
    r, ws = start(router, worker, 70)
    if by_path:
        def ask(ident):
            return r.request("GET", f"{PATH}/{ident}")
    else:
        def ask(ident):
            return r.request("POST", PATH, {"model": "m", "input": "x", "previous_response_id": ident})
    m = ask("resp_nobody")
    assert m.status == 404 and [len(w.requests) for w in ws] == [1] * 70
    for w in ws:
        w.clear()
    last = int(m.get("x-kvsteer-worker")[1:])
    ws[last].handler.ids.add("resp_x")
    assert ask("resp_x").status == 200 and len(ws[last].requests) == 1


def test_a_404_of_something_else_is_an_answer(router, worker):
    ws = [worker(f"w{i}", lambda x: x.answer(404, "no")) for i in range(3)]
    r = router(ws, pool="policy = round_robin\n")
    for path, body in (("/v1/chat/completions", {"previous_response_id": "resp_1"}), (PATH, {"input": "x"}), (PATH, "no JSON"), ("/v1/audio/speech", {})):
        n = seen(ws)
        m = r.request("POST", path, body)
        assert m.status == 404 and m.body == b"no" and seen(ws) == n + 1, path


def test_other_answers_end_the_search(router, worker):
    """500, 409 and the like are about a response that is there."""
    r, ws = start(router, worker)
    for w in ws:
        w.handler = lambda x: x.answer(409, "busy")
    m = r.request("POST", PATH + "/resp_1/cancel")
    assert m.status == 409 and seen(ws) == 1


def test_a_worker_that_went_is_not_waited_for(router, worker):
    """Drained, or removed by a reload: the others are asked, and say 404."""
    r, ws = start(router, worker)
    ident, name = create(r)
    assert r.admin("POST", f"workers/{name}/drain")[0] == 202
    m = r.request("GET", f"{PATH}/{ident}")
    assert m.status == 404 and m.get("x-kvsteer-worker") != name
    assert r.admin("POST", f"workers/{name}/undrain")[0] == 202
    assert r.request("GET", f"{PATH}/{ident}").get("x-kvsteer-worker") == name


def test_a_worker_that_forgot_is_not_believed(router, worker):
    """Restarted: it says 404 too, and the response was found elsewhere."""
    r, ws = start(router, worker)
    ident, name = create(r)
    home = next(w for w in ws if w.name == name)
    other = next(w for w in ws if w.name != name)
    home.handler.ids.clear()
    other.handler.ids.add(ident)
    for _ in range(3):
        m = r.request("GET", f"{PATH}/{ident}")
        assert m.status == 200 and m.get("x-kvsteer-worker") == other.name


def test_reloads_keep_what_is_known(router, worker):
    r, ws = start(router, worker)
    made = [create(r) for _ in range(6)]
    for policy in ("least_requests", "cache_aware", "random"):
        taken, answer = r.reload(harness.worker_conf(ws, f"policy = {policy}\n"))
        assert taken, answer
        for ident, name in made:
            assert r.request("GET", f"{PATH}/{ident}").get("x-kvsteer-worker") == name
    assert all(m.method == "POST" or m.target.rpartition("/")[2].startswith(f"resp_{w.name}-") for w in ws for m in w.requests)


def test_pools_are_searched_in_file_order(router, worker):
    """An id in the path names no model: any pool may have it."""
    ws = {n: worker(n, Store(n)) for n in ("a0", "a1", "b0", "b1")}
    conf = "[pool a]\nmodels = a\n[pool b]\nmodels = b\n" + "".join(f"[worker {n}]\nurl = {w.url}\npool = {n[0]}\n" for n, w in ws.items())
    r = router(conf=conf, keys=OPEN, wait=False)
    r.wait_workers(*ws)
    ws["b1"].handler.ids.add("resp_old")
    for model in "ab":
        for _ in range(4):
            ident, name = create(r, model=model)
            assert name[0] == model
            assert r.request("GET", f"{PATH}/{ident}").get("x-kvsteer-worker") == name
    assert r.request("GET", PATH + "/resp_old").get("x-kvsteer-worker") == "b1"
    assert r.request("DELETE", PATH + "/resp_old").get("x-kvsteer-worker") == "b1"
    assert r.request("GET", PATH + "/resp_old").status == 404
    m = r.request("POST", PATH, {"model": "c", "input": "x"})
    assert m.status == 404 and m.json()["error"]["code"] == "model_not_found"


def test_a_worker_that_is_down_does_not_end_the_search(router, worker):
    r, ws = start(router, worker, pool="policy = round_robin\nhealth_failures = 100000\n")
    ws[2].handler.ids.add("resp_x")
    ws[0].stop()
    for _ in range(4):
        assert r.request("GET", PATH + "/resp_x").status == 200
    r.allow_errors.append("w0")


def test_long_bodies_are_asked_with_again(router, worker):
    """A continued response is routed by its body: it is read whole, however long, and goes to each
    worker as it came."""
    r, ws = start(router, worker)
    ws[1].handler.ids.add("resp_x")
    body = json.dumps({"model": "m", "input": "y" * 300_000, "previous_response_id": "resp_x"})
    for how in ("length", "chunked", "hashed"):
        with r.connect() as c:
            if how == "chunked":
                c.send(f"POST {PATH} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n")
            else:
                c.send(make_request("POST", PATH, body, {"X-Kvsteer-Prefix": "128b;a"} if how == "hashed" else {}))
            m = c.read_response()
        assert m.status == 200 and m.get("x-kvsteer-worker") == "w1"
    assert all(m.body.decode() == body for w in ws for m in w.requests)


PATHS = ["/v1/responses/", "/v1/responses/a/b", "/v1/responses/%61", "/v1/responses/..", "/v1/responses/../chat/completions", "/v1/responses/a/cancel/",
         "/v1/responses/a%2Fcancel", "/v1/responses/a;x/cancel", "/v1/responses/" + "a" * 257]


def test_an_id_is_one_plain_segment(router, worker):
    r, ws = start(router, worker)
    for path in PATHS:
        for method in ("GET", "DELETE", "POST"):
            m = r.request(method, path)
            assert m.status == 404 and m.json()["error"]["code"] == "path_not_found", path
    m = r.request("PUT", PATH + "/resp_1", "{}")
    assert m.status == 405 and m.get("allow")
    assert r.request("GET", PATH + "/resp_1/cancel").status == 405
    assert seen(ws) == 0


@pytest.mark.tsan
def test_conversations_of_many_clients(router, worker):
    """From several threads at once, each goes on where its response is, at once after its last
    byte."""
    r, ws = start(router, worker, keys="threads = 4\n")
    lock = threading.Lock()
    for w in ws:
        w.handler.create = (lambda f: lambda x, body: locked(lock, f, x, body))(w.handler.create)
    wrong = []

    def talk():
        ident, name = create(r)
        for _ in range(15):
            ident, where = create(r, ident)
            if where != name:
                wrong.append((name, where))
    threads = [threading.Thread(target=talk) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and seen(ws) == 12 * 16


def locked(lock, f, *args):
    with lock:
        return f(*args)


def test_the_first_bytes_are_enough(router, worker):
    """Known before the answer has ended: a client may cancel what is still streaming. What is read
    is bounded."""
    hold = threading.Event()

    def stream(x):
        if x.request.target.endswith("/cancel"):
            hold.set()
            return x.answer(200, json.dumps({"cancelled": x.worker.name}))
        x.begin()
        x.event(json.dumps({"type": "response.created", "response": {"id": f"resp_{x.worker.name}"}}))
        hold.wait(harness.DEADLINE)
        x.event("[DONE]")
        x.end()
    ws = [worker(f"w{i}", stream) for i in range(4)]
    r = router(ws, keys=OPEN, pool="policy = round_robin\n")
    with r.connect() as c:
        c.send(make_request("POST", PATH, {"model": "m", "input": "x", "stream": True}))
        name = c.read_head().get("x-kvsteer-worker")
        assert b"response.created" in c.read_chunk()
        m = r.request("POST", f"{PATH}/resp_{name}/cancel", "{}")
        assert m.json() == {"cancelled": name} and seen(ws) == 2
        assert b"[DONE]" in c.read_chunk()
    for w in ws:
        w.handler = lambda x: x.answer(200, '{"x":"' + "y" * 20_000 + '","id":"resp_late"}' if x.request.method == "POST" else "{}")
    assert r.request("POST", PATH, {"input": "x"}).status == 200
    before = r.metric("kvsteer_route_decisions_total", reason="response_home")
    assert r.request("GET", PATH + "/resp_late").status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="response_home") == before, "too late to be read"
    assert send(r, completion("x"), "/v1/completions")
    wait_until(lambda: not any(r.loads().values()), "all over")
