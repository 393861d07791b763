"""Keys of clients (api_keys, DESIGN 13): who is let in, what stops here, tenants apart in the
index, limits, priorities, reloads; and that no key is told anywhere. Nothing here sleeps or
measures time.
"""
import hashlib
import json
import os
import stat
import subprocess
import threading

import pytest

from harness import Hold, answer_ok, make_request, program, text, wait_until

PROMPT = [{"role": "user", "content": text(4, 7)}]


def sha(key):
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """A file of keys; lines are "KEY TENANT OPTIONS", written with the key's SHA-256."""

    def __init__(self, folder, *lines):
        self.path = os.path.join(str(folder), "keys")
        self.write(*lines)

    def write(self, *lines, raw=""):
        out = "# keys of clients\n"
        for line in lines:
            key, _, rest = line.partition(" ")
            out += f"{sha(key)} {rest}\n"
        with open(self.path + ".new", "w") as f:
            f.write(out + raw)
        os.chmod(self.path + ".new", 0o640)
        os.replace(self.path + ".new", self.path)

    @property
    def line(self):
        return f"api_keys = {self.path}\n"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def code(m):
    return m.json()["error"]["code"]


@pytest.mark.tsan
def test_a_key_opens_and_nothing_else(router, worker, tmp_path):
    w = worker("w0")
    keys = Keys(tmp_path, "sk-one acme", "sk-two acme", "sk-three zoe")
    r = router([w], keys=keys.line + "threads = 2\n")
    for headers in (bearer("sk-one"), {"authorization": "bearer sk-two"}, {"X-Api-Key": "sk-three"},
                    {"Authorization": "Bearer sk-one", "x-api-key": "sk-one"}, {"Authorization": "Basic dTpw", "x-api-key": "sk-one"}):
        assert r.chat(PROMPT, headers=headers).status == 200, headers
    n = len(w.requests)
    assert n == 5
    for headers in ({}, bearer("sk-four"), bearer("sk-on"), bearer("sk-one1"), bearer(sha("sk-one")), bearer("acme"), {"Authorization": "Basic sk-one"},
                    {"Authorization": "sk-one"}, {"Authorization": "Bearer"}, {"x-api-key": "sk one"}, {"x-api-key": "k" * 600}):
        m = r.chat(PROMPT, headers=headers)
        assert m.status == 401 and code(m) == "unauthorized" and m.get("WWW-Authenticate") == "Bearer", headers
    m = r.chat(PROMPT, headers={"Authorization": "Bearer sk-one", "x-api-key": "sk-two"})
    assert m.status == 400 and code(m) == "malformed_request"
    assert len(w.requests) == n, "who is refused reaches no worker"
    r.wait_metric(11, "kvsteer_requests_total", reason="unauthorized")


def test_what_needs_a_key_and_what_does_not(router, worker, tmp_path):
    r = router([worker("w0")], keys=Keys(tmp_path, "sk-one acme").line + "admin_key = sesame\n")
    for path in ("/health", "/liveness", "/readiness"):
        assert r.request("GET", path).status == 200
        assert r.request("GET", path, headers=bearer("wrong")).status == 200
    for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/m"), ("POST", "/v1/embeddings"), ("POST", "/tokenize"), ("GET", "/get_model_info"),
                         ("GET", "/v1/responses/resp_1"), ("OPTIONS", "/v1/chat/completions")):
        assert r.request(method, path).status == 401, path
        assert r.request(method, path, headers=bearer("sk-one")).status == 200, path
    assert r.request("POST", "/v1/load_lora_adapter", headers=bearer("sk-one")).status == 404
    # Ending sessions is for who administers: another key.
    assert r.request("POST", "/finish_session?session_id=s", headers=bearer("sk-one")).status == 401
    assert r.request("POST", "/finish_session?session_id=s", headers=bearer("sesame")).status == 200


def test_credentials_stop_here(router, worker, tmp_path):
    w = worker("w0")
    r = router([w], keys=Keys(tmp_path, "sk-one acme").line)
    for headers in (bearer("sk-one"), {"X-API-KEY": "sk-one"}, {**bearer("sk-one"), "x-api-key": "sk-one", "Cookie": "session=sk-one", "X-Other": "stays"}):
        assert r.chat(PROMPT, headers=headers).status == 200
    for x in w.requests:
        assert b"sk-one" not in x.head and b"authorization" not in x.head.lower() and b"cookie" not in x.head.lower()
    assert w.requests[-1].get("X-Other") == "stays"


def test_the_worker_gets_its_own_key(router, worker, tmp_path):
    w = worker("w0")
    r = router([w], keys=Keys(tmp_path, "sk-one acme").line, extra="worker_key = sk-engine\n")
    assert r.chat(PROMPT, headers=bearer("sk-one")).status == 200
    assert r.chat(PROMPT, headers={"x-api-key": "sk-one"}).status == 200
    for x in w.requests:
        assert x.all("Authorization") == ["Bearer sk-engine"] and x.get("x-api-key") is None


def test_a_refused_request_leaves_its_connection_and_gets_no_continue(router, worker, tmp_path):
    w = worker("w0")
    r = router([w], keys=Keys(tmp_path, "sk-one acme").line)
    with r.connect() as c:
        for headers, status in (({}, 401), (bearer("sk-one"), 200), (bearer("no"), 401), (bearer("sk-one"), 200)):
            c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=headers))
            assert c.read_response().status == status
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
        m = c.read_response()
        assert m.status == 401, "before a byte of the body"
    assert len(w.requests) == 2


def cached(m):
    """(matched, total)"""
    return tuple(int(n) for n in m.get("X-Kvsteer-Cached").split("/"))


def test_tenants_never_meet_in_the_index_but_groups_do(router, worker, tmp_path):
    w = worker("w0")
    keys = Keys(tmp_path, "ka a", "kA a", "kb b", "kc c cache_group=a", "kd d cache_group=a")
    r = router([w], keys=keys.line + "expose_worker = on\n")

    def ask(key):
        return cached(r.chat(PROMPT, headers=bearer(key)))
    matched, total = ask("ka")
    assert matched == 0 and total > 20
    assert ask("ka") == (total, total)
    assert ask("kA") == (total, total), "another key of the tenant"
    assert ask("kb") == (0, total)
    assert ask("kc") == (0, total), "a group is no tenant of that name"
    assert ask("kd") == (total, total), "shared on purpose"
    assert ask("kb") == (total, total)


def test_a_rate_is_kept_and_says_when(router, worker, tmp_path):
    w = worker("w0")
    keys = Keys(tmp_path, "ka a rate=2/m", "kA a", "kb b")
    r = router([w], keys=keys.line + "threads = 2\n")
    assert r.chat(PROMPT, headers=bearer("ka")).status == 200
    assert r.request("GET", "/v1/models", headers=bearer("ka")).status == 200  # costs nothing
    assert r.chat(PROMPT, headers=bearer("kA")).status == 200
    for key in ("ka", "kA"):
        m = r.chat(PROMPT, headers=bearer(key))
        assert m.status == 429 and code(m) == "rate_limited" and m.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(m.get("Retry-After")) <= 30
    assert r.chat(PROMPT, headers=bearer("kb")).status == 200
    assert len(w.requests) == 3
    # A reload, of a file that says more, too, gives no fresh minute.
    keys.write("ka a rate=2/m", "kb b rate=5/m")
    assert r.reload()[0]
    assert r.chat(PROMPT, headers=bearer("ka")).status == 429
    assert r.chat(PROMPT, headers=bearer("kA")).status == 401
    keys.write("ka a")
    assert r.reload()[0]
    assert r.chat(PROMPT, headers=bearer("ka")).status == 200


@pytest.mark.tsan
def test_so_many_requests_at_a_time_and_who_leaves_frees_a_place(router, worker, tmp_path):
    hold = Hold()
    w = worker("w0", hold)
    keys = Keys(tmp_path, "ka a max_requests=2", "kb b")
    r = router([w], keys=keys.line + "threads = 2\n")

    def start(key):
        c = r.connect()
        c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=bearer(key)))
        return c
    one, two = start("ka"), start("ka")
    w.wait_requests(2)
    m = r.chat(PROMPT, headers=bearer("ka"))
    assert m.status == 429 and code(m) == "rate_limited" and int(m.get("Retry-After")) >= 1
    other = start("kb")
    w.wait_requests(3)
    two.close()  # a client that leaves
    wait_until(lambda: r.metric("kvsteer_worker_load") == 2, "the client that left was noticed")
    three = start("ka")
    w.wait_requests(4)
    # A reload keeps the count: of those in flight before it, one is left, and three.
    keys.write("ka a max_requests=2", "kb b")
    assert r.reload()[0]
    assert r.chat(PROMPT, headers=bearer("ka")).status == 429
    hold.release()
    for c in (one, three, other):
        assert c.read_response().status == 200
        c.close()
    for _ in range(20):  # free as soon as the last byte is there
        assert r.chat(PROMPT, headers=bearer("ka")).status == 200


@pytest.mark.tsan
def test_a_reload_revokes_a_key_at_once_and_adds_one(router, worker, tmp_path):
    w = worker("w0")
    keys = Keys(tmp_path, "k0 acme", "always zoe")
    r = router([w], keys=keys.line + "threads = 4\n")
    idle = [r.connect() for _ in range(8)]  # connections of every thread, open all the time

    def ask(c, key):
        c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=bearer(key)))
        return c.read_response().status
    assert [ask(c, "k0") for c in idle] == [200] * 8
    for i in range(1, 12):
        keys.write(f"k{i} acme", "always zoe")
        ok, answer = r.reload()
        assert ok and any(change["key"] == "api_keys" for change in answer["changes"]), answer
        for c in idle:
            assert ask(c, f"k{i - 1}") == 401
            assert ask(c, f"k{i}") == 200
            assert ask(c, "always") == 200
    assert not [change for change in r.reload()[1]["changes"]]
    for c in idle:
        c.close()


def test_a_request_ends_under_the_keys_that_it_began_with(router, worker, tmp_path):
    hold = Hold()
    w = worker("w0", hold)
    keys = Keys(tmp_path, "k0 acme max_requests=1")
    r = router([w], keys=keys.line)
    with r.connect() as c:
        c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=bearer("k0")))
        w.wait_requests(1)
        keys.write("k1 zoe")
        assert r.reload()[0]
        assert r.chat(PROMPT, headers=bearer("k0")).status == 401
        hold.release()
        assert c.read_response().status == 200
    # And it may be switched off and on.
    r.router_keys = ""
    assert r.reload(f"[worker w0]\nurl = {w.url}\n")[0]
    assert r.chat(PROMPT).status == 200
    assert r.chat(PROMPT, headers=bearer("theirs")).status == 200
    assert w.requests[-1].get("Authorization") == "Bearer theirs"
    r.router_keys = keys.line
    assert r.reload(f"[worker w0]\nurl = {w.url}\n")[0]
    assert r.chat(PROMPT).status == 401


def test_a_broken_file_changes_nothing_and_is_told_by_its_line(router, worker, tmp_path):
    w = worker("w0")
    keys = Keys(tmp_path, "k0 acme")
    r = router([w], keys=keys.line, allow_errors=[r"reload failed, nothing changed"])
    keys.write("k1 acme", raw="sk-canary-in-the-clear acme\n")
    ok, answer = r.reload()
    assert not ok
    error = answer["errors"][0]
    assert error["file"] == keys.path and error["line"] == 3 and "SHA-256" in error["message"]
    r.wait_log(rf"{keys.path}:3: ")
    os.remove(keys.path)
    ok, answer = r.reload()
    assert not ok and keys.path in json.dumps(answer)
    assert r.chat(PROMPT, headers=bearer("k0")).status == 200
    assert r.chat(PROMPT, headers=bearer("k1")).status == 401
    assert "canary" not in r.log() and "canary" not in json.dumps(answer)


def test_the_check_of_the_configuration_reads_the_file(tmp_path):
    keys = Keys(tmp_path, "k0 acme")
    conf = tmp_path / "k.conf"
    conf.write_text(f"[router]\nlisten = 127.0.0.1:0\n{keys.line}[worker w]\nurl = http://127.0.0.1:1\n")

    def check(*flags):
        return subprocess.run([program("kvsteerd"), *flags, "-c", str(conf)], capture_output=True, text=True, timeout=60)
    assert check("-t").returncode == 0
    assert f"api_keys = {keys.path}" in check("-T").stdout
    os.chmod(keys.path, 0o644)
    warned = check("-t")
    assert warned.returncode == 0 and "every user may read this file" in warned.stderr
    os.chmod(keys.path, stat.S_IRUSR | stat.S_IWOTH)
    refused = check("-t")
    assert refused.returncode == 1 and "every user may write" in refused.stderr
    keys.write("k0 acme priority=urgent")
    refused = check("-t")
    assert refused.returncode == 1 and f"{keys.path}:2: priority" in refused.stderr
    assert check().returncode == 2, "it does not start, either"
    os.remove(keys.path)
    refused = check("-t")
    assert refused.returncode == 1 and "No such file" in refused.stderr


def test_a_keys_priority_replaces_the_headers(router, worker, tmp_path):
    seen, turns = [], threading.Semaphore(0)

    def gate(x):
        seen.append(json.loads(x.request.body)["n"])
        turns.acquire(timeout=60)
        answer_ok(x)
    w = worker("w0", gate)
    keys = Keys(tmp_path, "high a priority=high", "normal a priority=normal", "low b priority=low", "none b")
    r = router([w], keys=keys.line + "priority_headers = X-Priority\n", extra="max_requests = 1\n")
    clients = []

    def ask(n, key, said=None):
        headers = {**bearer(key), **({"X-Priority": said} if said else {})}
        c = r.connect()
        c.send(make_request(body={"model": "m", "messages": PROMPT, "n": n}, headers=headers))
        clients.append(c)
        if n > 0:
            wait_until(lambda: r.metric("kvsteer_queue_depth") == n, f"{n} in the queue")
    ask(0, "normal")
    w.wait_requests(1)
    for n, (key, said) in enumerate([("low", "high"), ("none", "low"), ("normal", "high"), ("none", "high"), ("high", "low"), ("none", None)], 1):
        ask(n, key, said)
    for _ in clients:
        turns.release()
    for c in clients:
        assert c.read_response().status == 200
        c.close()
    assert seen == [0, 4, 5, 3, 6, 1, 2]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_names_tenants_and_nothing_tells_a_key(router, worker, tmp_path, form):
    canary = "sk-canary-7f3a"
    w = worker("w0")
    keys = Keys(tmp_path, f"{canary} acme rate=2/m cache_group=g", "other zoe")
    r = router([w], keys=keys.line + f"log_format = {form}\nlog_level = debug\n")
    for headers in (bearer(canary), {"x-api-key": canary}, bearer(canary), bearer(canary + "x"), {**bearer(canary), "x-api-key": "other"}, {}):
        r.chat(PROMPT, headers=headers)
    r.admin("POST", "reload")
    r.wait_log(r"tenant=acme .* end=ok" if form == "text" else r'"tenant":"acme".*"end":"ok"')
    r.wait_log(r"tenant=acme .* end=rate_limited" if form == "text" else r'"tenant":"acme".*"end":"rate_limited"')
    r.wait_log(r"tenant=- .* end=unauthorized" if form == "text" else r'"tenant":"".*"end":"unauthorized"')
    told = [r.log(), json.dumps(r.metrics())]
    for path in ("status", "config", "workers", "tenants"):
        told.append(json.dumps(r.admin("GET", path)))
    for t in told:
        assert canary not in t and sha(canary) not in t and sha(canary)[:16] not in t
    for x in w.requests:
        assert canary.encode() not in x.head


def test_a_hundred_thousand_keys(router, worker, tmp_path):
    w = worker("w0")
    n = 100000
    keys = Keys(tmp_path, *(f"key-{i} tenant-{i % 1000}" for i in range(n)))
    r = router([w], keys=keys.line)
    with r.connect() as c:
        for i in (0, 1, 4711, n - 1, n, n + 1):
            c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=bearer(f"key-{i}")))
            assert c.read_response().status == (200 if i < n else 401)
    keys.write(*(f"key-{i} tenant-{i % 1000}" for i in range(1, n)))
    assert r.reload()[0]
    assert r.chat(PROMPT, headers=bearer("key-0")).status == 401
    assert r.chat(PROMPT, headers=bearer("key-1")).status == 200


def ctl(r, *words):
    done = subprocess.run([program("kvsteerctl"), "-s", r.admin_path, *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_tenants_are_listed_with_their_limits_and_counts(router, worker, tmp_path):
    hold = Hold()
    w = worker("w0", hold)
    keys = Keys(tmp_path, "k0 acme max_requests=1", "k1 acme", "k2 zoe rate=1/m cache_group=g")
    r = router([w], keys=keys.line)
    with r.connect() as c:
        c.send(make_request(body={"model": "m", "messages": PROMPT}, headers=bearer("k0")))
        w.wait_requests(1)
        assert r.chat(PROMPT, headers=bearer("k1")).status == 429
        status, answer = r.admin("GET", "tenants")
        assert status == 200 and answer["api_keys"] == {"tenants": 2, "keys": 3} == r.admin("GET", "status")[1]["api_keys"]
        acme, zoe = answer["tenants"]
        assert acme == {"name": "acme", "keys": 2, "cache_group": None, "max_requests": 1, "rate": None, "in_flight": 1, "requests": 1,
                        "refused_max_requests": 1, "refused_rate": 0}
        assert zoe["name"] == "zoe" and zoe["rate"] == "1/m" and zoe["cache_group"] == "g" and zoe["requests"] == 0
        hold.release()
        assert c.read_response().status == 200
    for status in (200, 429, 429):
        assert r.chat(PROMPT, headers=bearer("k2")).status == status
    acme, zoe = r.admin("GET", "tenants")[1]["tenants"]
    assert (acme["in_flight"], zoe["in_flight"], zoe["requests"], zoe["refused_rate"]) == (0, 0, 1, 2)
    code, out = ctl(r, "tenants")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][:3] == ["acme", "2", "0"] and lines[2][0] == "zoe" and "1/m" in lines[2]
    r.router_keys = ""
    assert r.reload(f"[worker w0]\nurl = {w.url}\n")[0]
    assert r.admin("GET", "tenants")[1] == {"api_keys": None, "tenants": []}
    assert "not set" in ctl(r, "tenants")[1]


def test_explain_asks_for_a_tenant(router, worker, tmp_path):
    r = router([worker("w0")], keys=Keys(tmp_path, "k0 acme", "k1 zoe").line)
    assert r.chat(PROMPT, headers=bearer("k0")).status == 200
    body = {"model": "m", "messages": PROMPT}

    def depth(tenant):
        answer = r.explain(body, path="/v1/chat/completions" + (f"&tenant={tenant}" if tenant else ""))
        assert answer["tenant"] == (tenant or None)
        return answer["candidates"][0]["depth"]
    assert depth("acme") > 20
    assert depth("zoe") == 0 and depth("") == 0
    status, answer = r.admin("POST", "explain?tenant=nobody", body)
    assert status == 404 and answer["error"]["code"] == "tenant_not_found"
    path = tmp_path / "body.json"
    path.write_text(json.dumps(body))
    code, out = ctl(r, "--json", "explain", "--tenant", "acme", str(path))
    assert code == 0 and json.loads(out)["tenant"] == "acme"
