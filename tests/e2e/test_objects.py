"""Objects that live on the worker that made them, whichever API made them: files, batches,
conversations, images, videos, meshes, sessions, streams. test_responses.py has the responses."""
import json
import re

import pytest

import harness
from routing import OPEN

ROUND = "policy = round_robin\n"


class Store:
    """A worker's handler that keeps objects under any path, and knows nobody else's."""

    def __init__(self, name):
        self.name, self.kept, self.n = name, set(), 0

    def make(self, prefix):
        self.n += 1
        ident = f"{prefix}-{self.name}-{self.n}"
        self.kept.add(ident)
        return ident

    def __call__(self, x):
        m = x.request
        path, _, query = m.target.partition("?")
        parts = path.split("/")[1:]
        body = json.loads(m.body) if m.body[:1] == b"{" else {}
        named = [body[k] for k in ("input_file_id", "session_id", "conversation") if k in body]
        named = [n["id"] if isinstance(n, dict) else n for n in named]
        named += [body["session_params"]["id"]] if "session_params" in body else []
        named += re.findall("conv_id=(.*)", query)
        if path in ("/open_session", "/v1/chat/completions"):
            named = []
        elif len(parts) > 2 and parts[0] == "v1" and parts[2] not in ("generations", "edits"):
            named.append(parts[2])
        if any(n not in self.kept for n in named):
            return x.answer(404, json.dumps({"from": self.name}))
        if m.get("x-conversation-id"):
            self.kept.add(m.get("x-conversation-id"))
        if m.method == "DELETE":
            self.kept -= set(named)
        if path == "/open_session":
            return x.answer(200, json.dumps(body.get("session_id") or self.make("session")))
        makes = m.method == "POST" and parts[0] == "v1" and (len(parts) == 2 or parts[-1] in ("remix", "edits", "generations"))
        answer = {"created": 1, "usage": {"id": "no"}, "from": self.name, **({"id": self.make(parts[1])} if makes else {})}
        x.answer(200, json.dumps(answer))


def start(router, worker, pool=ROUND, keys=""):
    ws = [worker(f"w{i}", Store(f"w{i}")) for i in range(3)]
    return router(ws, keys=OPEN + keys, pool=pool), ws


def form(name="a.bin"):
    b = "xxBOUNDARYxx"
    data = f'--{b}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\nabc\r\n--{b}--\r\n'
    return data, {"Content-Type": f"multipart/form-data; boundary={b}"}


def asked(ws):
    return sum(len(w.requests) for w in ws)


KINDS = [("/v1/videos", "/v1/videos/{}", ("", "/content")), ("/v1/meshes", "/v1/meshes/{}", ("", "/content")), ("/v1/images/generations", "/v1/images/{}", ("/content",)),
         ("/v1/images/edits", "/v1/images/{}", ("/content",)), ("/v1/files", "/v1/files/{}", ("", "/content")), ("/v1/conversations", "/v1/conversations/{}", ("", "/items")),
         ("/v1/batches", "/v1/batches/{}", ("",))]


@pytest.mark.parametrize("make, place, below", KINDS)
def test_objects_are_found_by_id(router, worker, make, place, below):
    r, ws = start(router, worker)
    homes = {}
    for i in range(6):
        m = r.request("POST", make, body={"model": "m", "prompt": "x"} if make != "/v1/files" else None)
        assert m.status == 200
        homes[m.json()["id"]] = m.json()["from"]
    assert set(homes.values()) == {"w0", "w1", "w2"}
    before = asked(ws)
    for ident, home in homes.items():
        for path in below:
            m = r.request("GET", place.format(ident) + path)
            assert m.status == 200 and m.json()["from"] == home, (ident, path)
    assert asked(ws) == before + len(homes) * len(below), "each was asked for once"


def test_forms_make_objects_too(router, worker):
    r, ws = start(router, worker)
    for i in range(4):
        data, fields = form()
        with r.connect() as c:
            c.send((f"POST /v1/files HTTP/1.1\r\nHost: r\r\nContent-Type: {fields['Content-Type']}\r\nContent-Length: {len(data)}\r\n\r\n{data}").encode())
            m = c.read_response("POST")
        assert r.request("GET", f"/v1/files/{m.json()['id']}").json()["from"] == m.json()["from"]


def test_a_batch_goes_where_its_file_is(router, worker):
    r, ws = start(router, worker)
    for i in range(4):
        f = r.request("POST", "/v1/files", body={}).json()
        before = asked(ws)
        b = r.request("POST", "/v1/batches", body={"input_file_id": f["id"], "endpoint": "/v1/chat/completions"}).json()
        assert b["from"] == f["from"] and asked(ws) == before + 1
        for method, verb in (("GET", ""), ("POST", "/cancel")):
            assert r.request(method, f"/v1/batches/{b['id']}{verb}", body={} if method == "POST" else None).json()["from"] == f["from"]
    # An unknown file is looked for.
    ws[1].handler.kept.add("file-old")
    assert r.request("POST", "/v1/batches", body={"input_file_id": "file-old"}).json()["from"] == "w1"
    assert r.request("POST", "/v1/batches", body={"input_file_id": "file-none"}).status == 404


def test_a_response_goes_where_its_conversation_is(router, worker):
    r, ws = start(router, worker)
    for i in range(4):
        c = r.request("POST", "/v1/conversations", body={}).json()
        for conversation in (c["id"], {"id": c["id"]}):
            before = asked(ws)
            m = r.request("POST", "/v1/responses", body={"model": "m", "input": "x", "conversation": conversation})
            assert m.status == 200 and m.get("x-kvsteer-worker") == c["from"] and asked(ws) == before + 1


@pytest.mark.parametrize("pool", [ROUND, "policy = cache_aware\n"])
def test_sglang_sessions_stay_where_they_were_opened(router, worker, pool):
    r, ws = start(router, worker, pool)
    opened = {}
    for i in range(6):
        m = r.request("POST", "/open_session", body={"capacity_of_str_len": 1000, **({"session_id": f"mine-{i}"} if i % 2 else {})})
        opened[m.json()] = m.get("x-kvsteer-worker")
        next(w for w in ws if w.name == m.get("x-kvsteer-worker")).handler.kept.add(m.json())
    for ident, home in list(opened.items()) * 2:
        before = asked(ws)
        m = r.request("POST", "/generate", body={"text": "x", "session_params": {"id": ident, "rid": None}})
        assert m.status == 200 and m.get("x-kvsteer-worker") == home and asked(ws) == before + 1
    for ident, home in opened.items():
        m = r.request("POST", "/close_session", body={"session_id": ident})
        assert m.status == 200 and m.get("x-kvsteer-worker") == home


def test_llamas_streams_are_found_by_conversation(router, worker):
    r, ws = start(router, worker)
    for i in range(4):
        m = r.request("POST", "/v1/chat/completions", body={"model": "m", "messages": []}, headers={"X-Conversation-Id": f"conv-{i}"})
        home = m.get("x-kvsteer-worker")
        before = asked(ws)
        assert r.request("GET", f"/v1/stream/conv-{i}?from=0").get("x-kvsteer-worker") == home
        assert r.request("GET", f"/v1/stream?conv_id=conv-{i}").get("x-kvsteer-worker") == home
        assert asked(ws) == before + 2
        assert r.request("DELETE", f"/v1/stream/conv-{i}").get("x-kvsteer-worker") == home
        assert r.request("GET", f"/v1/stream/conv-{i}").status == 404
    ws[2].handler.kept.add("old one")
    assert r.request("GET", "/v1/stream?conv_id=old%20one").status == 404, "the worker of this test decodes nothing"
    ws[2].handler.kept.add("old")
    assert r.request("GET", "/v1/stream?conv_id=old").get("x-kvsteer-worker") == "w2"


def test_unknown_objects_are_asked_for_in_all_pools(router, worker):
    a, b = worker("a", Store("a")), worker("b", Store("b"))
    r = router(conf=f"[pool one]\nmodels = m1\nhealth_interval = 1s\n[pool two]\nmodels = m2\nhealth_interval = 1s\n"
                    f"[worker a]\nurl = {a.url}\npool = one\n[worker b]\nurl = {b.url}\npool = two\n", keys=OPEN, wait=False)
    r.wait_workers("a", "b")
    b.handler.kept |= {"v1", "f1"}
    assert r.request("GET", "/v1/videos/v1").json()["from"] == "b"
    assert len(a.requests) == 1
    assert r.request("GET", "/v1/videos/v1").json()["from"] == "b"
    assert len(a.requests) == 1, "now it is known"
    assert r.request("POST", "/v1/batches", body={"input_file_id": "f1"}).json()["from"] == "b"
    assert r.request("GET", "/v1/videos/none").status == 404


def test_objects_of_a_worker_that_went_are_forgotten(router, worker):
    r, ws = start(router, worker)
    made = [r.request("POST", "/v1/videos", body={}).json() for _ in range(3)]
    gone = next(m for m in made if m["from"] == "w1")
    assert r.reload(harness.worker_conf([ws[0], ws[2]], ROUND))[0]
    assert r.request("GET", f"/v1/videos/{gone['id']}").status == 404
    ws[2].handler.kept.add(gone["id"])
    assert r.request("GET", f"/v1/videos/{gone['id']}").json()["from"] == "w2"
