"""C21: other names for models (alias NAME = TARGET). The worker sees the target in an otherwise unchanged
body; the choice, the key and the lists go by it."""
import json

import harness
from harness import Exchange, answer_ok, make_request, wait_until

POOL = harness.LASTING + "alias fast = org/small-7b\nalias a-very-long-name-for-a-model-whose-own-name-is-short = m\n"
LONG = "a-very-long-name-for-a-model-whose-own-name-is-short"
TARGETS = {"fast": "org/small-7b", LONG: "m"}
MODELS = ("org/small-7b", "m")


def ids(r, path="/v1/models", **headers):
    return [x["id"] for x in r.request("GET", path, headers=headers).json()["data"]]


def body_of(model, n=10, before=""):
    """Odd spacing, escapes and a long text: what is kept is kept byte for byte."""
    return (before + '{ "messages" :[{"role":"user","content":"h\\u00e9 \\"' + "x" * n + '"}],\n "mod\\u0065l"\t: "' + model
            + '" , "x": [1.0, 1e2, {"model": "fast"}],"stream":false }\n').encode()


def seen(w):
    return [(m.body, int(m.get("content-length"))) for m in w.requests if m.method == "POST"]


def test_c21_the_body_has_the_target_and_all_else_is_kept(router, worker):
    """In the buffer behind its header, in memory of its own, shorter and longer, several on one connection."""
    w = worker("w0", models=MODELS)
    r = router([w], pool=POOL)
    for alias, target in TARGETS.items():
        for n in (0, 10, 500, 15000, 70000, 5 << 20):
            w.clear()
            m = r.request(body=body_of(alias, n))
            want = body_of(target, n)
            assert m.status == 200 and seen(w) == [(want, len(want))], (alias, n)
    w.clear()
    both = [body_of("fast", 3), body_of("m", 3), body_of(LONG, 30000), body_of("fast", 4)]
    with r.connect() as c:
        c.send(b"".join(make_request(body=b.decode()) for b in both))
        assert [c.read_response("POST").status for _ in both] == [200] * 4
    assert [b for b, _ in seen(w)] == [body_of("org/small-7b", 3), body_of("m", 3), body_of("m", 30000), body_of("org/small-7b", 4)]


def test_c21_a_body_in_chunks_and_an_escaped_name(router, worker):
    w = worker("w0", models=MODELS)
    r = router([w], pool=POOL)
    for n in (20, 100000):
        w.clear()
        body, want = body_of(LONG.replace("a-very", "a\\u002dvery"), n), body_of("m", n)
        with r.connect() as c:
            c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(body), 7001):
                piece = body[at:at + 7001]
                c.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            c.send(b"0\r\n\r\n")
            assert c.read_response("POST").status == 200
        assert seen(w) == [(want, len(want))]


def test_c21_the_last_of_several_counts_and_others_stay(router, worker):
    """As in Python; and what only looks like a model's name is left alone."""
    w = worker("w0", models=MODELS)
    r = router([w], pool=POOL)
    kept = ['{"model":"fast","model":"m","prompt":"a"}', '{"model":["fast"],"prompt":"a"}', '{"prompt":"fast","model":"Fast"}', '{"model":"fast","prompt":',
            '["fast"]', '{"model":"fast" }x', '{"prompt":{"model":"fast"}}']
    changed = ['{"model":"m","model":"fast","prompt":"a"}']
    for b in kept + changed:
        r.request(path="/v1/completions", body=b.encode())
    assert [b.decode() for b, _ in seen(w)] == kept + ['{"model":"m","model":"org/small-7b","prompt":"a"}']


def test_c21_every_endpoint_whose_body_is_read(router, worker):
    """With a key or without one, and whatever the policy needs."""
    w = worker("w0", models=MODELS)
    for policy in ("cache_aware", "round_robin"):
        r = router([w], pool=POOL + f"policy = {policy}\n")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses", "/v1/rerank", "/tokenize",
                     "/v1/moderations", "/generate"):
            for headers in ({}, {"X-Kvsteer-Model": "fast"}, {"X-Kvsteer-Prefix": "128b; 0011223344556677", "X-Session-Id": "s"}):
                w.clear()
                m = r.request(path=path, body=b'{"model":"fast","input":"a","prompt":"b"}', headers=headers)
                assert m.status == 200 and seen(w)[0][0] == b'{"model":"org/small-7b","input":"a","prompt":"b"}', (policy, path, headers)


def test_c21_key_and_salt_are_the_targets(router, worker):
    """A conversation goes on by either name, and explain calls both the same."""
    ws = [worker(f"w{i}", models=MODELS) for i in range(4)]
    r = router(ws, pool=POOL, keys="expose_worker = on\n")
    for seed in range(6):
        messages = [{"role": "user", "content": harness.text(4, seed)}]
        names = ["fast", "org/small-7b", "fast"] if seed % 2 else ["org/small-7b", "fast", "org/small-7b"]
        where = []
        for model in names:
            m = r.request(body={"model": model, "messages": messages})
            where.append(m.get("x-kvsteer-worker"))
            messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": harness.text(1, 100 + seed)}]
        assert len(set(where)) == 1 and int(m.get("x-kvsteer-cached").split("/")[0]) > 0, (seed, where)
        told = [r.explain({"model": model, "messages": messages}) for model in ("fast", "org/small-7b", "m")]
        assert told[0] == told[1] != told[2]


def two_pools(one, two, extra=""):
    return (f"[pool one]\nhealth_interval = 1s\n{harness.LASTING}models = org/small\nprefix_block = 64\n[pool two]\nhealth_interval = 1s\n{harness.LASTING}"
            f"models = org/big\nalias gpt-4o = org/big\n{extra}[worker one]\nurl = {one.url}\npool = one\n[worker two]\nurl = {two.url}\npool = two\n")


def test_c21_an_alias_is_of_its_pool(router, worker):
    """Which serves it though its models do not name it; a reload takes it away."""
    one, two = worker("one", models=["org/small"]), worker("two", models=["org/big"])
    r = router([one, two], conf=two_pools(one, two))
    messages = [{"role": "user", "content": harness.text(8, 1)}]
    for _ in range(5):
        assert r.request(body={"model": "gpt-4o", "messages": messages}).json()["worker"] == "two"
    assert all(json.loads(b)["model"] == "org/big" for b, _ in seen(two)) and not seen(one)
    assert r.request(body={"messages": messages}, headers={"X-Kvsteer-Model": "gpt-4o"}).json()["worker"] == "two"
    assert "model" not in json.loads(seen(two)[-1][0])
    assert r.request(body=b'{"model":"gpt-4o","messages":[', headers={"X-Kvsteer-Model": "gpt-4o"}).json()["worker"] == "two"
    assert seen(two)[-1][0] == b'{"model":"gpt-4o","messages":['  # broken: the worker says so
    assert r.explain({"model": "gpt-4o", "messages": messages}) == r.explain({"model": "org/big", "messages": messages})
    assert sorted(ids(r)) == ["gpt-4o", "org/big", "org/small"]
    r.reload(two_pools(one, two).replace("alias gpt-4o = org/big\n", ""))
    assert r.request(body={"model": "gpt-4o", "messages": messages}).status == 404
    assert sorted(ids(r)) == ["org/big", "org/small"]


def test_c21_both_names_are_listed_where_the_target_is(router, worker):
    w = worker("w0", models=["org/small-7b"])
    r = router([w], pool=POOL + "alias other = org/small-7b\n")
    m = r.request("GET", "/v1/models").json()
    assert m["data"] == [{"id": i, "object": "model"} for i in ("org/small-7b", "fast", "other")]  # the long one's model is not there
    assert ids(r, **{"anthropic-version": "2023-06-01"}) == ["org/small-7b", "fast", "other"]
    assert [x["name"] for x in r.request("GET", "/api/tags").json()["models"]] == ["org/small-7b", "fast", "other"]


def test_c21_one_of_the_list(router, worker):
    one, two = worker("one", models=["org/small"]), worker("two", models=["org/big"])
    r = router([one, two], conf=two_pools(one, two, "alias org/alias = org/big\nalias nowhere = org/big2\n").replace("models = org/big\n", "models = org/big org/big2\n"))
    for path in ("/v1/models/gpt-4o", "/v1/models/org/alias", "/v1/models/org%2Falias"):
        m = r.request("GET", path)
        assert m.status == 200 and m.json() == {"id": path.split("s/")[1].replace("%2F", "/"), "object": "model"}, path
    m = r.request("GET", "/v1/models/gpt-4o", headers={"anthropic-version": "2023-06-01"})
    assert m.json()["type"] == "model" and m.json()["id"] == "gpt-4o"
    assert sorted(ids(r)) == ["gpt-4o", "org/alias", "org/big", "org/small"]
    assert not [m for w in (one, two) for m in w.requests if m.get("via")]


def form(model, file, name="model"):
    """A file first, and a part that only looks like it behind."""
    parts = [b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + file, f'Content-Disposition: form-data; name="{name}"\r\n\r\n{model}'.encode(),
             b'Content-Disposition: form-data; name="prompt"\r\n\r\nfast']
    return b"".join(b"--b0\r\n" + p + b"\r\n" for p in parts) + b"--b0--\r\n"


def test_c21_the_model_of_a_form(router, worker):
    w = worker("w0", models=MODELS)
    r = router([w], pool=POOL)
    for n in (10, 100000, 6 << 20):
        for alias, target in TARGETS.items():
            w.clear()
            body, want = form(alias, b"\0\xff" * n), form(target, b"\0\xff" * n)
            with r.connect() as c:
                c.send(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b0\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
                assert c.read_response("POST").status == 200
            assert seen(w) == [(want, len(want))], (n, alias)


def test_c21_a_retry_sends_the_target_again(router, worker):
    def fails(x):
        x.answer(503)
    ws = [worker("w0", fails, models=MODELS), worker("w1", models=MODELS)]
    r = router(ws, pool=POOL + "policy = round_robin\n")
    for n in (10, 100000):
        for w in ws:
            w.clear()
        for _ in range(2):
            assert r.request(body=body_of(LONG, n)).status == 200
        want = body_of("m", n)
        assert seen(ws[0]) and all(s == (want, len(want)) for w in ws for s in seen(w)), n
    assert r.metric("kvsteer_retries_total") >= 2


def test_c21_both_legs_have_the_target(router, worker):
    def prefilled(x: Exchange):
        body = json.loads(x.request.body)
        if body.get("kv_transfer_params", {}).get("do_remote_decode"):
            x.answer(200, json.dumps({"id": "p", "kv_transfer_params": {"do_remote_prefill": True, "do_remote_decode": False,
                     "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_host": "127.0.0.1", "remote_port": 1}}))
        else:
            answer_ok(x)
    p, d = worker("p0", prefilled, models=MODELS), worker("d0", models=MODELS)
    conf = f"[pool default]\nhealth_interval = 1s\npolicy = least_requests\nkv_connector = nixl\n{POOL}"
    conf += f"[worker p0]\nurl = {p.url}\nrole = prefill\n[worker d0]\nurl = {d.url}\nrole = decode\n"
    r = router([p, d], conf=conf)
    m = r.request(body={"messages": [{"role": "user", "content": harness.text(4, 9)}], "model": "fast"})
    assert m.status == 200 and m.json()["worker"] == "d0"
    wait_until(lambda: seen(p) and seen(d), "both legs")
    assert {json.loads(b)["model"] for b, _ in seen(p) + seen(d)} == {"org/small-7b"}
    assert json.loads(seen(d)[0][0])["kv_transfer_params"]["remote_engine_id"] == "e"


def test_c21_the_flag_of_the_vllm_stack(router, worker):
    w = worker("w0", models=MODELS)
    r = router(args=["--worker-urls", w.url, "--port", "0", "--prometheus-port", "0", "--admin-socket", "none", "--static-aliases", "fast:org/small-7b,q:m"], wait=False)
    wait_until(lambda: ids(r) == ["org/small-7b", "m", "fast", "q"], "the lists")
    assert r.request(body=body_of("q")).status == 200
    assert seen(w) == [(body_of("m"), len(body_of("m")))]


def test_c21_body_memory_holds_and_is_given_back(router, worker):
    w = worker("w0", models=MODELS)
    r = router([w], pool=POOL, keys="body_memory = 4m\n")
    for _ in range(10):
        assert r.request(body=body_of("fast", 3 << 20)).status == 200
        r.wait_metric(0, "kvsteer_body_memory_bytes")
    assert r.request(body=body_of("fast", 5 << 20)).status == 503
    r.wait_metric(0, "kvsteer_body_memory_bytes")
    assert r.request(body=body_of("fast", 3 << 20)).status == 200
    r.wait_metric(0, "kvsteer_body_memory_bytes")
