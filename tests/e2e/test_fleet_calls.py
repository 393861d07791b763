"""C17: calls that concern every worker of a pool are put to all of them, by clients (pass_paths) and by
kvsteerctl call and flush."""
import json
import subprocess

import pytest

import harness
from harness import text, wait_until
from routing import OPEN, chat, place, user

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


def test_c17_shut_without_pass_paths_and_bounded(router, worker):
    r, ws = start(router, worker, keys="")
    for path in ALL:
        assert r.request("POST", path, {}).status == 404
    assert not any(w.requests for w in ws)
    r, ws = start(router, worker)
    m = r.request("POST", "/update_weights_from_tensor", b"x" * ((1 << 20) + 1))
    assert (m.status, m.json()["error"]["code"]) == (413, "body_too_large")
    assert r.request("POST", "/update_weights_from_tensor", b"x" * (1 << 20)).status == 200
    assert [len(w.requests[-1].body) for w in ws] == [1 << 20] * 3


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
