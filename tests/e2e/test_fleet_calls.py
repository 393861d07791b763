"""C17: calls that concern every worker of a pool are put to all of them, by clients (pass_paths) and by
kvsteerctl call and flush."""
import hashlib
import json
import subprocess
import threading

import pytest

import harness
from harness import text, wait_until
from routing import OPEN, chat, place, user
from test_unix import unix_worker  # noqa: F401  a fixture

PASS = "pass_paths = *\n"


def handler(status=200, body='{"done":true}'):
    return lambda x: x.answer(status, body) if not x.request.target.startswith("/v1/chat") else harness.answer_ok(x)


def start(router, worker, n=3, keys=PASS, **kw):
    ws = [worker(f"w{i}", handler()) for i in range(n)]
    return router(ws, keys=OPEN + keys, **kw), ws


def asked(ws, path):
    return [sum(m.target.partition("?")[0] == path for m in w.requests) for w in ws]


def depths(r, body):
    return {c["worker"]: c["depth"] for c in r.explain(body)["candidates"]}


ALL = ["/flush_cache", "/reset_prefix_cache", "/update_weights_from_disk", "/update_weights", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
       "/load_lora_adapter", "/unload_lora_adapter", "/sleep", "/wake_up", "/pause", "/resume", "/pause_generation", "/continue_generation",
       "/abort_request", "/release_memory_occupation", "/resume_memory_occupation"]


@pytest.mark.parametrize("path", ALL)
def test_c17_a_call_reaches_every_worker_as_it_came(router, worker, path):
    r, ws = start(router, worker)
    m = r.request("POST", path + "?level=1&x=%20", {"rid": "a"}, {"Content-Type": "application/json; charset=utf-8"})
    assert m.status == 200
    doc = m.json()
    assert doc["pool"] == "default" and "error" not in doc
    assert doc["workers"] == [{"worker": w.name, "status": 200, "answer": {"done": True}} for w in ws]
    for w in ws:
        got = w.requests[-1]
        assert (got.method, got.target, json.loads(got.body)) == ("POST", path + "?level=1&x=%20", {"rid": "a"})
        assert got.get("content-type") == "application/json; charset=utf-8"


def test_c17_200_only_if_all_did_and_each_is_named(router, worker):
    r, ws = start(router, worker)
    ws[1].handler = handler(400, "no\x00pe")
    ws[2].handler = lambda x: x.wire.reset()
    m = r.request("POST", "/v1/load_lora_adapter", {"lora_name": "a"})
    doc = m.json()
    assert m.status == 502
    assert (doc["error"]["type"], doc["error"]["code"]) == ("upstream_error", "not_by_all")
    assert doc["error"]["message"].startswith("2 of 3 workers did not do it: w1 (/v1/load_lora_adapter: status 400)")
    assert [(w["worker"], w["status"]) for w in doc["workers"]] == [("w0", 200), ("w1", 400), ("w2", 0)]
    assert doc["workers"][2]["message"] and "answer" not in doc["workers"][2]
    assert r.worker_state("w1") == "healthy"
    r.allow_errors.append("w2")


def test_c17_drained_workers_are_asked_too_and_questions_are_put_to_all(router, worker):
    r, ws = start(router, worker)
    assert r.admin("POST", "workers/w1/drain")[0] == 202
    ws[0].handler, ws[1].handler, ws[2].handler = (handler(body=b) for b in ('{"is_paused":false}', '{"is_paused":true}', "plain"))
    m = r.request("GET", "/is_paused")
    assert [w["answer"] for w in m.json()["workers"]] == [{"is_paused": False}, {"is_paused": True}, "plain"]
    assert all(w.requests[-1].method == "GET" for w in ws)


@pytest.mark.parametrize("path", ["/flush_cache", "/update_weights_from_disk", "/sleep"])
def test_c17_the_generation_changes_when_all_did_it(router, worker, path):
    r, ws = start(router, worker)
    prompts = [chat(user(text(4, i))) for i in range(3)]
    for w, p in zip(ws, prompts):
        place(r, p, w.name)
    ws[1].handler = handler(500)
    assert r.request("POST", path, {}).status == 502
    assert r.metric("kvsteer_pool_generation", pool="default") == 0, "it does not hold for all"
    assert [depths(r, p)[w.name] > 0 for w, p in zip(ws, prompts)] == [False, True, False], "who did it has nothing any more, who did not has all"
    ws[1].handler = handler()
    place(r, prompts[0], "w0")
    assert r.request("POST", path, {}).status == 200
    assert r.metric("kvsteer_pool_generation", pool="default") == 1
    assert not any(depths(r, p)[w.name] for w in ws for p in prompts)


def test_c17_one_worker_alone_is_asked_where_it_is_named(router, worker):
    r, ws = start(router, worker)
    prompts = [chat(user(text(4, i))) for i in range(3)]
    for w, p in zip(ws, prompts):
        place(r, p, w.name)
    m = r.request("POST", "/flush_cache", {}, {"X-Kvsteer-Worker": "w1"})
    assert (m.status, m.json()) == (200, {"done": True})
    assert asked(ws, "/flush_cache") == [0, 1, 0]
    assert r.metric("kvsteer_pool_generation", pool="default") == 0
    assert [depths(r, p)[w.name] > 0 for w, p in zip(ws, prompts)] == [True, False, True]


def test_c17_of_several_pools_the_one_that_is_named(router, worker):
    ws = [worker(f"w{i}", handler(), models=(["small", "big"][i // 2],)) for i in range(4)]
    conf = "[pool a]\nmodels = small\n[pool b]\nmodels = big\n" + "".join(f"[worker w{i}]\nurl = {w.url}\npool = {'aabb'[i]}\n" for i, w in enumerate(ws))
    r = router(conf=conf, keys=OPEN + PASS, wait=False).wait_workers(*(w.name for w in ws))
    m = r.request("POST", "/flush_cache", {})
    assert (m.status, m.json()["error"]["code"]) == (400, "model_required")
    m = r.request("POST", "/flush_cache", {}, {"X-Kvsteer-Model": "big"})
    assert (m.status, m.json()["pool"]) == (200, "b")
    assert asked(ws, "/flush_cache") == [0, 0, 1, 1]
    assert r.request("POST", "/flush_cache", {}, {"X-Kvsteer-Model": "huge"}).status == 404
    # Without the header, the model of the body.
    assert r.request("POST", "/flush_cache", {"model": "small"}).json()["pool"] == "a"
    assert r.request("POST", "/flush_cache", {"model": "small"}, {"X-Kvsteer-Model": "big"}).json()["pool"] == "b"
    assert r.request("POST", "/flush_cache", {"model": "huge"}).status == 404
    assert r.request("POST", "/flush_cache", "no JSON").status == 400
    assert asked(ws, "/flush_cache") == [1, 1, 2, 2]


def test_c17_shut_without_pass_paths_and_bounded(router, worker):
    r, ws = start(router, worker, keys="")
    for path in ALL:
        assert r.request("POST", path, {}).status == 404
    assert not any(w.requests for w in ws)
    r, ws = start(router, worker)
    m = r.request("POST", "/update_weights_from_tensor", b"x" * ((64 << 20) + 1))
    assert (m.status, m.json()["error"]["code"]) == (413, "body_too_large")
    assert r.request("POST", "/update_weights_from_tensor", b"x" * (64 << 20)).status == 200
    assert [len(w.requests[-1].body) for w in ws] == [64 << 20] * 3
    wait_until(lambda: r.metric("kvsteer_body_memory_bytes") == 0, "all bodies are freed")
    # One that says how long it is need not be sent.
    with r.connect() as c:
        c.send(f"POST /update_weights HTTP/1.1\r\nHost: a\r\nContent-Length: {(64 << 20) + 1}\r\nExpect: 100-continue\r\n\r\n".encode())
        m = c.read_response()
        assert (m.status, m.json()["error"]["code"]) == (413, "body_too_large")


def test_c17_one_worker_answers_itself(router, worker):
    r, (w,) = start(router, worker, 1)
    m = r.request("POST", "/flush_cache", {})
    assert (m.status, m.json()) == (200, {"done": True})
    w.handler = handler(418, "teapot")
    m = r.request("POST", "/v1/load_lora_adapter", {"lora_name": "a"})
    assert (m.status, m.body) == (418, b"teapot")


def test_c17_a_client_that_leaves_changes_nothing(router, worker):
    """Half a fleet's weights would be worse than an answer that nobody reads."""
    r, ws = start(router, worker)
    hold = harness.Hold()
    ws[2].handler = hold
    with r.connect() as c:
        c.send(harness.make_request("POST", "/update_weights_from_disk", {"path": "x"}))
        for w in ws:
            w.wait_requests(1)
    hold.release()
    wait_until(lambda: r.metric("kvsteer_pool_generation", pool="default") == 1, "all did it")
    assert sum(r.loads().values()) == 0


def test_c17_an_adapter_that_was_loaded_is_known_with_the_next_probe(router, worker):
    ws = [worker(f"w{i}", handler(), models=("base",)) for i in range(2)]
    r = router(conf="[pool default]\nhealth_interval = 50ms\n" + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws),
               keys=OPEN + PASS, wait=False).wait_workers("w0", "w1")
    for w in ws:
        w.models.append("lora")
    assert r.request("POST", "/v1/load_lora_adapter", {"lora_name": "lora"}).status == 200
    wait_until(lambda: "lora" in {m["id"] for m in r.request("GET", "/v1/models").json()["data"]}, "the list has it")


def test_c17_credentials_go_on_as_in_other_requests(router, worker, tmp_path):
    """Where the router has no keys, the client's own; else the workers' keys."""
    ws = [worker(f"w{i}", handler()) for i in range(2)]
    conf = "[pool default]\nhealth_interval = 1s\n" + "".join(f"[worker {w.name}]\nurl = {w.url}\nworker_key = sesame\n" for w in ws)
    r = router(conf=conf, keys=PASS, wait=False).wait_workers("w0", "w1")
    for headers, sees in (({"Authorization": "Bearer mine"}, ("Bearer mine", None)), ({"X-Api-Key": "mine"}, (None, "mine")), ({}, ("Bearer sesame", None))):
        assert r.request("POST", "/sleep", {}, dict(headers, **{"X-Request-Id": "r-1"})).status == 200
        for w in ws:
            m = w.requests[-1]
            assert (m.get("authorization"), m.get("x-api-key"), m.get("x-request-id")) == (*sees, "r-1")
    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(b"client").hexdigest() + " t\n")
    keys.chmod(0o600)
    r = router(conf=conf, keys=PASS + f"api_keys = {keys}\n", wait=False).wait_workers("w0", "w1")
    assert r.request("POST", "/sleep", {}).status == 401
    assert r.request("POST", "/sleep", {}, {"Authorization": "Bearer client"}).status == 200
    assert [w.requests[-1].get("authorization") for w in ws] == ["Bearer sesame"] * 2


def test_c17_an_answer_is_cut_and_may_be_no_json(router, worker):
    """A worker that did it has done it, however much it says of it."""
    r, ws = start(router, worker)
    for w, body in zip(ws, ("x" * 200000, "plain \x01 text", "")):
        w.handler = handler(body=body)
    m = r.request("POST", "/wake_up")
    big, plain, empty = m.json()["workers"]
    assert m.status == 200 and big["answer"] == "x" * 65536 and big["is_cut"] is True
    assert plain["answer"] == "plain \x01 text" and "is_cut" not in plain and "answer" not in empty


def test_c17_one_that_does_not_answer_in_time_is_named(router, worker):
    hold = harness.Hold()
    ws = [worker("w0", handler()), worker("w1", hold)]
    r = router(ws, pool="first_byte_timeout = 300ms\n", keys=PASS)
    m = r.request("POST", "/update_weights", {})
    assert m.status == 502 and m.json()["error"]["message"] == "1 of 2 workers did not do it: w1 (timed out)"
    hold.release()


def test_c17_each_engine_once_whatever_its_ranks(router, worker):
    a, b = worker("a", handler()), worker("b", handler())
    r = router(conf=f"[pool default]\nhealth_interval = 1s\n[worker a]\nurl = {a.url}\ndp_size = 4\n[worker b]\nurl = {b.url}\n", keys=PASS, wait=False)
    r.wait_workers("a@0", "a@3", "b")
    assert [x["worker"] for x in r.request("POST", "/sleep?level=1", {}).json()["workers"]] == ["a", "b"]
    assert [m.target for m in a.requests] == ["/sleep?level=1"]


@pytest.mark.parametrize("connector", ["nixl", "sglang"])
def test_c17_prefill_and_decode(router, worker, connector):
    p, d = worker("p", handler()), worker("d", handler())
    r = router(conf=f"[pool default]\nhealth_interval = 1s\nkv_connector = {connector}\n[worker p]\nurl = {p.url}\nrole = prefill\n"
                    f"[worker d]\nurl = {d.url}\nrole = decode\n", keys=PASS, wait=False).wait_workers("p", "d")
    for body in ({"level": 1}, [1], None):
        m = r.request("POST", "/pause", body)
        assert m.status == 200 and [w["worker"] for w in m.json()["workers"]] == ["p", "d"], m.body
    assert [m.body for m in p.requests] == [m.body for m in d.requests] == [b'{"level": 1}', b"[1]", b""]


def test_c17_by_unix_sockets(router, worker, unix_worker):  # noqa: F811
    a, b = unix_worker("a"), worker("b")
    r = router([a, b], keys=PASS)
    assert r.request("POST", "/sleep", {"level": 1}).status == 200
    assert [[(m.target, m.body) for m in w.requests] for w in (a, b)] == [[("/sleep", b'{"level": 1}')]] * 2
    assert ctl(r, "call", "default", "/wake_up")[0] == 0 and len(a.requests) == len(b.requests) == 2


@pytest.mark.tsan
def test_c17_many_at_once(router, worker):
    r, ws = start(router, worker, keys=PASS + "threads = 2\n")
    statuses = []

    def calls():
        for _ in range(10):
            statuses.append(r.request("POST", "/reset_mm_cache", {}).status)
    threads = [threading.Thread(target=calls) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert statuses == [200] * 80 and asked(ws, "/reset_mm_cache") == [80] * 3


def test_c17_no_more_than_32_under_way(router, worker):
    hold = harness.Hold()
    r, ws = start(router, worker, 2)
    ws[0].handler = hold
    clients = [r.connect() for _ in range(32)]
    for c in clients:
        c.send(harness.make_request("POST", "/sleep", {}))
    ws[0].wait_requests(32)
    m = r.request("POST", "/sleep", {})
    assert (m.status, m.json()["error"]["code"]) == (429, "queue_full")
    hold.release()
    for c in clients:
        assert c.read_response().status == 200
        c.close()
    assert r.request("POST", "/sleep", {}).status == 200


@pytest.mark.tsan
def test_c17_the_daemon_ends_while_one_is_under_way(router, worker):
    r, ws = start(router, worker, 2)
    ws[1].handler = harness.Hold()
    with r.connect() as c:
        c.send(harness.make_request("POST", "/sleep", {}))
        ws[1].wait_requests(1)
    r.stop()
    ws[1].handler.release()


# ---- kvsteerctl ----

def ctl(r, *words):
    done = subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_c17_kvsteerctl_call(router, worker, tmp_path):
    r, ws = start(router, worker, keys="")
    file = tmp_path / "body.json"
    file.write_text('{"a":1}')
    assert ctl(r, "call", "default", "/sleep?level=1", str(file)) == (0, "".join(f'w{i}  200  {{"done":true}}\n' for i in range(3)), "")
    assert [(w.requests[-1].method, w.requests[-1].target, w.requests[-1].body) for w in ws] == [("POST", "/sleep?level=1", b'{"a":1}')] * 3
    assert r.metric("kvsteer_pool_generation", pool="default") == 1, "an engine that sleeps has no cache"
    assert ctl(r, "call", "--method", "GET", "default", "/is_paused")[0] == 0
    assert ws[0].requests[-1].method == "GET"
    ws[1].handler = handler(404)
    code, out, err = ctl(r, "call", "default", "/x")
    assert (code, out) == (1, "") and "1 of 3 workers did not do it: w1 (/x: status 404)" in err
    code, out, _ = ctl(r, "--json", "call", "default", "/x")
    assert code == 1 and [w["status"] for w in json.loads(out)["workers"]] == [200, 404, 200]
    for words, message in ((("call", "default"), "PATH"), (("call", "none", "/x"), "no pool none"), (("call", "default", "x"), "path"),
                           (("call", "default", "/a b"), "path"), (("call", "--method", "PATCH", "default", "/x"), "PATCH"),
                           (("call", "default", "/x", "/nonexistent"), "/nonexistent")):
        code, out, err = ctl(r, *words)
        assert code != 0 and message in err, (words, err)


def test_c17_a_flush_that_holds_for_some_forgets_these(router, worker):
    r, ws = start(router, worker, keys="")
    prompts = [chat(user(text(4, i))) for i in range(3)]
    for w, p in zip(ws, prompts):
        place(r, p, w.name)
    ws[2].handler = handler(500)
    assert ctl(r, "flush", "default")[0] == 1
    assert r.metric("kvsteer_pool_generation", pool="default") == 0
    assert [depths(r, p)[w.name] > 0 for w, p in zip(ws, prompts)] == [False, False, True]
