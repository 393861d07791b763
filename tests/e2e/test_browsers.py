"""Browser clients (C13): preflights and CORS headers of the router's own responses; and errors in the
shape of the API that was asked."""
import hashlib
import json

import pytest

import harness

PAGE = "https://chat.example.com"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LISTED = f"cors_origins = {PAGE} https://*.apps.test:8443\n"


def preflight(r, path, origin=PAGE, method="POST", headers="authorization,content-type,x-stainless-os,x-stainless-retry-count", more=()):
    fields = [("Origin", origin), ("Access-Control-Request-Method", method)]
    if headers:
        fields.append(("Access-Control-Request-Headers", headers))
    return r.request("OPTIONS", path, headers=fields + list(more))


def get(r, path, origin=PAGE, **kw):
    return r.request("GET", path, headers={"Origin": origin, **kw})


def names(m, field):
    return {n.strip().lower() for n in m.get(field, "").split(",")}


def cors_fields(m):
    return [n for n, _ in m.fields if n.lower().startswith("access-control-")]


@pytest.fixture
def keyed(tmp_path):
    path = tmp_path / "clients.keys"
    path.write_text(f"{hashlib.sha256(b'secret').hexdigest()} t\n")
    path.chmod(0o600)
    return f"api_keys = {path}\n"


def test_c13_preflights_are_answered_here_without_key_and_worker(router, worker, keyed):
    w = worker("w0")
    r = router([w], keys=LISTED + keyed)
    for path, methods in ((CHAT, {"post", "options"}), ("/v1/models", {"get", "head", "options"}), ("/health", {"get", "head", "options"}),
                          ("/v1/responses/resp_1", {"get", "head", "delete", "options"}), ("/v1/models/a/b", {"get", "head", "options"}),
                          ("/v1/messages", {"post", "options"}), ("/api/chat", {"post", "options"})):
        m = preflight(r, path)
        assert m.status == 204 and not m.body and m.get("content-length") is None, path
        assert m.get("access-control-allow-origin") == PAGE
        assert "origin" in names(m, "vary")
        assert names(m, "access-control-allow-methods") == methods == names(m, "allow"), path
        assert {"authorization", "content-type", "x-request-id", "x-stainless-os", "x-stainless-retry-count"} <= names(m, "access-control-allow-headers")
        assert "*" not in m.get("access-control-allow-headers")
        assert int(m.get("access-control-max-age")) > 0
    assert not w.requests
    # No worker is needed.
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    assert preflight(r, CHAT).status == 204


def test_c13_headers_that_pages_may_send(router, worker):
    r = router([worker("w0")], keys=LISTED + "priority_headers = X-Priority\n")
    asked = ["x-evil", "X-Stainless-Arch", "anthropic-version", "anthropic-dangerous-direct-browser-access", "x-api-key", "x-session-id", "x-priority", "x-stainless-",
             "cookie", "OpenAI-Organization", "x-kvsteer-model", "x-stainless-" + "a" * 80, "x-stainless-b@d"]
    m = preflight(r, CHAT, headers=", ".join(asked))
    allowed = names(m, "access-control-allow-headers")
    assert {"x-stainless-arch", "anthropic-version", "anthropic-dangerous-direct-browser-access", "x-api-key", "x-session-id", "x-priority", "openai-organization",
            "x-kvsteer-model"} <= allowed
    assert not allowed & {"x-evil", "cookie", "x-stainless-", "x-stainless-" + "a" * 80, "x-stainless-b@d", "*"}
    # However many are asked for, the answer is an answer.
    m = preflight(r, CHAT, headers=",".join(f"x-stainless-{i:040d}" for i in range(300)))
    assert m.status == 204 and "authorization" in names(m, "access-control-allow-headers")
    assert "authorization" in names(preflight(r, CHAT, headers=None), "access-control-allow-headers")


@pytest.mark.parametrize("origin, is_listed", [
    (PAGE, True), ("HTTPS://Chat.Example.com", True), ("https://a.apps.test:8443", True), ("https://a.b.apps.test:8443", True),
    ("http://chat.example.com", False), ("https://chat.example.com:444", False), ("https://chat.example.com.evil.test", False), ("https://evil.test", False),
    ("https://apps.test:8443", False), ("https://.apps.test:8443", False), ("https://a.apps.test", False), ("https://evil.test/.apps.test:8443", False),
    ("https://evil.test#.apps.test:8443", False), ("https://a.evilapps.test:8443", False), ("https://u@a.apps.test:8443", False), ("null", False),
    ("https://" + "a" * 300 + ".apps.test:8443", False)])
def test_c13_origins(router, worker, origin, is_listed):
    r = router([worker("w0")], keys=LISTED)
    for m in (preflight(r, CHAT, origin), get(r, "/v1/models", origin), r.request(body=BODY, headers={"Origin": origin})):
        assert m.status in (200, 204)
        assert m.all("access-control-allow-origin") == ([origin] if is_listed else [])
        assert m.get("access-control-allow-credentials") == ("true" if is_listed else None)
        assert "origin" in names(m, "vary")
        assert is_listed or not cors_fields(m)


def test_c13_all_origins_never_with_credentials(router, worker):
    r = router([worker("w0")], keys="cors_origins = *\n")
    for m in (preflight(r, CHAT), get(r, "/v1/models"), get(r, "/nowhere"), r.request(body=BODY, headers={"Origin": PAGE})):
        assert m.all("access-control-allow-origin") == ["*"]
        assert m.get("access-control-allow-credentials") is None and m.get("vary") is None
    assert not cors_fields(r.request("GET", "/v1/models"))


def test_c13_own_answers_and_errors_can_be_read(router, worker, keyed):
    """Models, health, 401, 404, 405, 413, 429, 502 and 503."""
    w = worker("w0")
    r = router([w], keys=LISTED + keyed + "max_body_size = 1k\n")
    key = {"Origin": PAGE, "Authorization": "Bearer secret"}
    w.handler = lambda x: x.wire.reset()
    answers = [(200, get(r, "/v1/models", Authorization="Bearer secret")), (200, get(r, "/health")), (200, get(r, "/readiness")), (401, get(r, "/v1/models")),
               (401, r.request(body=BODY, headers={"Origin": PAGE})), (404, get(r, "/nowhere")), (404, get(r, "/pause")), (405, get(r, CHAT)),
               (413, r.request(body={"a": "x" * 2000}, headers=key)), (502, r.request(body=BODY, headers=key))]
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    answers += [(503, r.request(body=BODY, headers=key)), (503, get(r, "/readiness"))]
    for status, m in answers:
        assert m.status == status
        assert m.all("access-control-allow-origin") == [PAGE], status
        assert "x-request-id" in names(m, "access-control-expose-headers")


def test_c13_a_workers_fields_are_replaced(router, worker):
    w = worker("w0", lambda x: x.answer(200, "{}", fields=[("Access-Control-Allow-Origin", "*"), ("access-control-allow-credentials", "true"), ("Vary", "Accept"),
                                                           ("Access-Control-Expose-Headers", "*"), ("X-Kept", "1")]))
    r = router([w], keys=LISTED)
    m = r.request(body=BODY, headers={"Origin": PAGE})
    assert m.all("access-control-allow-origin") == [PAGE] and m.all("access-control-allow-credentials") == ["true"]
    assert m.get("x-kept") == "1" and [v.lower() for v in m.all("vary")] == ["accept", "origin"]
    assert not cors_fields(r.request(body=BODY, headers={"Origin": "https://evil.test"}))
    assert not cors_fields(r.request(body=BODY))

    def stream(x):
        x.begin(fields=[("Access-Control-Allow-Origin", "*")])
        x.event('{"choices":[{"delta":{"content":"a"},"index":0}]}')
        x.event("[DONE]")
        x.end()
    w.handler = stream
    m = r.request(body=dict(BODY, stream=True), headers={"Origin": PAGE})
    assert m.all("access-control-allow-origin") == [PAGE] and b"[DONE]" in m.body


def test_c13_without_the_key_nothing_is_new(router, worker, keyed):
    """But OPTIONS of what the router answers is 204 and its methods, for everybody."""
    w = worker("w0", lambda x: x.answer(200, "{}", fields=[("Access-Control-Allow-Origin", "*")]))
    r = router([w], keys=keyed)
    for path in ("/v1/models", "/health", "/readiness"):
        m = preflight(r, path)
        assert m.status == 204 and names(m, "allow") == {"get", "head", "options"} and not m.body and not cors_fields(m)
    assert preflight(r, CHAT).status == 401
    assert not cors_fields(get(r, "/v1/models")) and not cors_fields(get(r, "/nowhere"))
    m = r.request(body=BODY, headers={"Origin": PAGE, "Authorization": "Bearer secret"})
    assert m.get("access-control-allow-origin") == "*" and m.get("vary") is None
    assert len(w.requests) == 1


def test_c13_a_reload_changes_the_list(router, worker):
    w = worker("w0")
    r = router([w])
    assert not cors_fields(get(r, "/health"))
    assert preflight(r, CHAT).status == 200 and len(w.requests) == 1
    r.router_keys = LISTED
    assert r.reload(harness.worker_conf([w]))[0]
    assert get(r, "/health").get("access-control-allow-origin") == PAGE
    assert preflight(r, CHAT).status == 204 and len(w.requests) == 1


def test_c13_preflights_of_what_is_not_served(router, worker):
    w = worker("w0")
    r = router([w], keys=LISTED)
    for path in ("/pause", "/nowhere"):
        m = preflight(r, path)
        assert m.status == 404 and m.get("access-control-allow-origin") == PAGE
    # An OPTIONS that is no preflight goes where it went.
    assert r.request("OPTIONS", CHAT).status == 200 and len(w.requests) == 1


# ---- the shape of errors ----

def fail_of(r, method, path, **headers):
    m = r.request(method, path, body={} if method == "POST" else None, headers=headers)
    assert m.get("content-type") == "application/json" and m.get("x-request-id")
    return m.status, m.json(), m.get("x-request-id")


def test_errors_have_the_shape_of_the_api_that_was_asked(router, worker):
    w = worker("w0", lambda x: x.wire.reset())
    r = router([w])
    text = "The worker closed the connection before it responded."
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/generate", "/rerank", "/v1/videos"):
        status, e, _ = fail_of(r, "POST", path)
        assert status == 502 and e == {"error": {"message": text, "type": "upstream_error", "param": None, "code": "worker_reset"}}, path
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/render"):
        status, e, rid = fail_of(r, "POST", path)
        assert status == 502 and e == {"type": "error", "error": {"type": "api_error", "message": text, "code": "worker_reset"}, "request_id": rid}, path
    for path in ("/api/chat", "/api/generate", "/api/show"):
        assert fail_of(r, "POST", path)[:2] == (502, {"error": text}), path
    for path in ("/completion", "/infill", "/embedding", "/apply-template"):
        assert fail_of(r, "POST", path)[:2] == (502, {"error": {"code": 502, "message": text, "type": "server_error"}}), path
    for path in ("/cohere/v2/chat", "/v2/embed"):
        status, e, rid = fail_of(r, "POST", path)
        assert status == 502 and e == {"message": text, "id": rid}, path


@pytest.mark.parametrize("status, anthropic, llama", [(401, "authentication_error", "authentication_error"), (404, "not_found_error", "not_found_error"),
                                                      (405, "invalid_request_error", "not_supported_error"), (413, "request_too_large", "invalid_request_error"),
                                                      (503, "overloaded_error", "unavailable_error")])
def test_errors_of_each_status(router, worker, keyed, status, anthropic, llama):
    w = worker("w0")
    r = router([w], keys="max_body_size = 1k\n" + (keyed if status == 401 else ""))
    if status == 503:
        assert r.admin("POST", "workers/w0/drain")[0] == 202
    method = "PATCH" if status == 405 else "POST"
    body = json.dumps({"a": "x" * (2000 if status == 413 else 1)})
    m = r.request(method, "/v1/messages/none" if status == 404 else "/v1/messages", body=body)
    assert m.status == status and m.json()["type"] == "error" and m.json()["error"]["type"] == anthropic and m.json()["error"]["message"]
    m = r.request(method, "/slots/1" if status == 404 else "/completion", body=body)
    assert m.status == status == m.json()["error"]["code"] and m.json()["error"]["type"] == llama
    m = r.request(method, "/api/none" if status == 404 else "/api/chat", body=body)
    assert m.status == status and isinstance(m.json()["error"], str)


def test_errors_of_shared_paths_follow_the_client(router, worker, keyed):
    r = router([worker("w0")], keys=keyed)
    assert fail_of(r, "GET", "/v1/models", **{"anthropic-version": "2023-06-01"})[1]["type"] == "error"
    assert fail_of(r, "GET", "/v1/nowhere", **{"anthropic-version": "2023-06-01"})[1]["error"]["type"] == "not_found_error"
    assert fail_of(r, "GET", "/v1/models")[1]["error"]["code"] == "unauthorized"


def test_models_are_listed_as_the_client_reads_them(router, worker):
    w = worker("w0", models=["org/a", "b"])
    r = router([w])
    m = r.request("GET", "/v1/models").json()
    assert m["object"] == "list" and [x["id"] for x in m["data"]] == ["org/a", "b"]
    m = r.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [(x["type"], x["id"], x["display_name"]) for x in m["data"]] == [("model", "org/a", "org/a"), ("model", "b", "b")]
    assert m["has_more"] is False and m["first_id"] == "org/a" and m["last_id"] == "b" and all(x["created_at"].endswith("Z") for x in m["data"])
    m = r.request("GET", "/api/tags").json()
    assert [(x["name"], x["model"]) for x in m["models"]] == [("org/a", "org/a"), ("b", "b")] and all(x["modified_at"] for x in m["models"])
    assert not w.requests
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    assert r.request("GET", "/api/tags").json() == {"models": []}
    m = r.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert m == {"data": [], "has_more": False, "first_id": None, "last_id": None}
