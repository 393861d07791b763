"""Started by the vLLM router's flags, kvsteerd behaves as that router where its black-box tests look
(py_test/integration): workers that come and go by its API on the client port, the breaker, retries."""
import json
import threading
from urllib.parse import quote

import pytest

import harness
from harness import wait_until
from routing import chat, in_parallel, user

OWN = ["--port", "0", "--prometheus-port", "0"]


@pytest.fixture
def flags(router, tmp_path):
    """A daemon by flags alone."""
    made = []

    def start(ws, *args, keys=()):
        made.append(tmp_path / f"admin{len(made)}.sock")
        sock = made[-1]
        r = router(args=["--worker-urls", *[w.url for w in ws], *args, *OWN, *keys, "--admin-socket", str(sock)])
        r.admin_path = str(sock)
        return r.wait_workers(*[w.netloc for w in ws])
    return start


def ask(r, n=1, content="hi", **fields):
    return [r.request(body=chat(user(content), **fields)).status for _ in range(n)]


# ---- the worker list ----

def test_workers_come_and_go_by_its_api(flags, worker):
    """test_service_discovery_shim, test_worker_management: no worker at first, added, routed to, removed."""
    r = flags([])
    assert r.request("GET", "/health").status == 200
    assert ask(r) == [503]
    assert r.request("GET", "/list_workers").json() == {"urls": []}
    a, b = worker("a"), worker("b")
    for w in (a, b):
        m = r.request("POST", f"/add_worker?url={w.url}")
        assert (m.status, m.body.decode()) == (200, f"Successfully added worker: {w.url}")
        assert ask(r) == [200], "it is healthy when the call is answered"
    assert r.request("GET", "/list_workers").json() == {"urls": [a.url, b.url]}
    in_parallel([lambda i=i: ask(r, content=f"{i}") for i in range(20)])
    assert a.requests and b.requests
    m = r.request("POST", f"/add_worker?url={quote(a.url, safe='')}/")
    assert (m.status, m.body.decode()) == (400, f"Worker {a.url} already exists")
    m = r.request("POST", f"/remove_worker?url={a.url}")
    assert (m.status, m.body.decode()) == (200, f"Successfully removed worker: {a.url}")
    assert r.request("GET", "/list_workers").json() == {"urls": [b.url]}
    assert r.request("POST", "/remove_worker?url=http://nobody:1").status == 200
    n = len(a.requests)
    assert ask(r, 6) == [200] * 6 and len(a.requests) == n
    for query in ("", "?url=", "?urls=x"):
        assert r.request("POST", "/add_worker" + query).status == r.request("POST", "/remove_worker" + query).status == 400
    assert r.request("POST", "/add_worker?url=ftp://x").status == 400


def test_add_worker_waits_until_it_is_healthy(flags, worker):
    w = worker("w")
    w.healthy = False
    r = flags([], "--health-check-interval-secs", "1")
    got = []
    thread = threading.Thread(target=lambda: got.append(r.request("POST", f"/add_worker?url={w.url}")))
    thread.start()
    wait_until(lambda: len(w.probes) > 1, "it is probed")
    assert not got and ask(r) == [503]
    w.healthy = True
    thread.join(harness.DEADLINE)
    assert got[0].status == 200 and ask(r) == [200]
    # One that is removed meanwhile is told so, and a client that leaves changes nothing.
    bad = worker("bad")
    bad.healthy = False
    with r.connect() as c:
        c.send(harness.make_request("POST", f"/add_worker?url={bad.url}"))
        wait_until(lambda: bad.url in r.request("GET", "/list_workers").json()["urls"], "it is there")
        assert r.request("POST", f"/remove_worker?url={bad.url}").status == 200
        assert c.read_response().status == 400


def test_workers_as_objects_and_loads(flags, worker):
    ws = [worker(f"w{i}") for i in range(2)]
    r = flags(ws)
    doc = r.request("GET", "/workers").json()
    assert doc["total"] == 2 and doc["stats"] == {"prefill_count": 0, "decode_count": 0, "regular_count": 2}
    assert [(w["url"], w["worker_type"], w["is_healthy"], w["load"]) for w in doc["workers"]] == [(w.url, "regular", True, 0) for w in ws]
    assert r.request("GET", "/get_loads").json() == {"workers": [{"worker": w.url, "load": 0} for w in ws]}
    hold = harness.Hold()
    ws[0].handler = ws[1].handler = hold
    with r.connect() as c:
        c.send(harness.make_request(body=chat(user("hi"))))
        wait_until(lambda: sum(w["load"] for w in r.request("GET", "/get_loads").json()["workers"]) == 1, "one is in flight")
        hold.release()
        assert c.read_response().status == 200
    one = quote(ws[0].url, safe="")
    assert r.request("GET", f"/workers/{one}").json()["url"] == ws[0].url
    assert r.request("DELETE", f"/workers/{one}").status == 200
    m = r.request("GET", f"/workers/{one}")
    assert (m.status, m.json()["code"]) == (404, "WORKER_NOT_FOUND")
    assert r.request("POST", "/workers", {"url": ws[0].url}).status == 200
    assert r.request("POST", "/workers", b"x").status == r.request("POST", "/workers", {}).status == 400


def test_who_may(flags, router, worker):
    """From loopback by flags alone, never for a request that was forwarded or that a web page makes; else
    with the admin key."""
    w = worker("w")
    r = flags([w])
    for field in ({"X-Forwarded-For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}, {"Via": "1.1 x"}, {"Origin": "http://evil.example"}):
        assert r.request("POST", f"/remove_worker?url={w.url}", headers=field).status == 404, field
    assert r.request("GET", "/list_workers").status == 200
    assert r.request("POST", "/list_workers").status == 405
    plain = router([w])
    for method, path in (("POST", "/add_worker?url=http://a:1"), ("GET", "/list_workers"), ("GET", "/workers"), ("GET", "/get_loads"), ("GET", "/workers/x")):
        assert plain.request(method, path).status == 404
    keyed = router([w], keys="admin_key = sesame\n")
    assert keyed.request("GET", "/list_workers").status == 401
    assert keyed.request("GET", "/list_workers", headers={"Authorization": "Bearer sesam"}).status == 401
    assert keyed.request("GET", "/list_workers", headers={"Authorization": "Bearer sesame"}).json() == {"urls": [w.url]}


# ---- test_circuit_breaker ----

CB = ["--cb-failure-threshold", "3", "--cb-success-threshold", "2", "--cb-timeout-duration-secs", "1", "--cb-window-duration-secs", "10"]


def failing(x):
    x.answer(500, "{}")


def test_its_breaker_opens_after_failures_in_a_row_and_answers_503_at_once(flags, worker):
    w = worker("w", failing)
    r = flags([w], *CB, "--disable-retries")
    assert ask(r, 5) == [500, 500, 500, 503, 503]
    assert len(w.requests) == 3
    # A trial that fails opens it again.
    wait_until(lambda: ask(r) == [500], "the trial")
    assert ask(r, 2) == [503, 503]
    w.handler = harness.answer_ok
    wait_until(lambda: ask(r) == [200], "the trial")
    wait_until(lambda: ask(r, 3) == [200] * 3, "closed")


def test_its_breaker_ignores_4xx_is_of_one_worker_and_may_be_disabled(flags, worker):
    w = worker("w", lambda x: x.answer(400, "{}"))
    r = flags([w], *CB, "--disable-retries")
    assert ask(r, 8) == [400] * 8
    bad, good = worker("bad", failing), worker("good")
    r = flags([bad, good], *CB, "--disable-retries", "--policy", "round_robin")
    got = ask(r, 20)
    assert got.count(500) == 3 and got[-5:] == [200] * 5
    r = flags([bad], "--disable-circuit-breaker", "--disable-retries")
    assert ask(r, 12) == [500] * 12


def test_with_retries_a_failing_worker_is_unseen(flags, worker):
    bad, good = worker("bad", failing), worker("good")
    r = flags([bad, good], *CB, "--retry-max-retries", "3", "--policy", "round_robin")
    assert ask(r, 12) == [200] * 12


# ---- test_retries, test_fault_tolerance ----

class FailFirst:
    def __init__(self, n, how=failing):
        self.left, self.how = n, how

    def __call__(self, x):
        self.left -= 1
        if self.left >= 0:
            return self.how(x)
        harness.answer_ok(x)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_worker_alone_is_asked_again(flags, worker, status):
    w = worker("w", FailFirst(2, lambda x: x.answer(status, "{}")))
    r = flags([w], "--retry-max-retries", "3", "--retry-initial-backoff-ms", "10")
    assert ask(r) == [200] and len(w.requests) == 3


def test_retries_end(flags, worker):
    w = worker("w", failing)
    r = flags([w], "--retry-max-retries", "3")
    assert ask(r) == [500] and len(w.requests) == 3
    w.clear()
    two = [worker(f"t{i}", failing) for i in range(2)]
    r = flags(two, "--retry-max-retries", "5", "--disable-circuit-breaker")
    assert ask(r) == [500] and sum(len(w.requests) for w in two) == 5


def test_a_worker_that_crashes_within_a_request(flags, worker):
    bad, good = worker("bad", lambda x: x.wire.reset()), worker("good")
    r = flags([bad, good], "--retry-max-retries", "3", "--policy", "round_robin")
    assert ask(r, 6) == [200] * 6 and bad.requests
    r.allow_errors.append(bad.netloc)


# ---- cache_aware with short prompts ----

def test_prompts_shorter_than_a_block_come_home(flags, worker):
    ws = [worker(f"w{i}") for i in range(3)]
    r = flags(ws, "--policy", "cache_aware", "--cache-threshold", "0.99", "--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0")
    for content in ("hi", "hello", "once upon a time"):
        told = [r.chat([user(content)]).json()["worker"] for _ in range(8)]
        assert len(set(told)) == 1, content
    assert len({r.chat([user(f"prompt {i}")]).json()["worker"] for i in range(9)}) == 3, "others reach all workers"
    told = {r.request("POST", "/v1/completions", {"model": "m", "prompt": [1, 2, 3]}).json()["worker"] for _ in range(6)}
    assert len(told) == 1, "token ids, too"


def test_what_its_flags_change_is_told(flags, worker):
    r = flags([worker("w")])
    config = str(r.admin("GET", "config")[1])
    for line in ("no_worker_wait = 0", "last_resort = off", "retry_same = on", "cb_full_5xx = on", "short_prompts = on"):
        assert line in config, line
    r = flags([worker("x")], keys=["--no-worker-wait", "2s", "--short-prompts", "off"])
    config = str(r.admin("GET", "config")[1])
    assert "no_worker_wait = 2s" in config and "short_prompts = on" not in config and "last_resort = off" in config
    assert json.loads(json.dumps(config))
