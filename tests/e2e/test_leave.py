"""A worker that leaves, by DELETE or by a reload, is forgotten everywhere at once: by the queue, by idle connections, by its pool, by the metrics."""
import pytest

import harness
from harness import Hold, make_request, wait_until, worker_conf


def by_api(r, others):
    status, answer = r.admin("DELETE", "workers/w0")
    assert status == 202, answer


def by_reload(r, others):
    assert r.reload(worker_conf(others, r.pool_lines))[0]


WAYS = pytest.mark.parametrize("leave", [by_api, by_reload])


def start(router, workers, pool, keys="", extra=""):
    r = router(workers, pool=pool, keys=keys, extra=extra)
    r.pool_lines = pool
    return r


def waiting(r):
    return r.metric("kvsteer_queue_depth")


@WAYS
def test_who_waits_for_it_is_told(router, worker, leave):
    """One request is in flight at the only worker, which takes no more, and ends there; those that wait would wait for queue_timeout."""
    hold = Hold()
    w0 = worker("w0", hold)
    r = start(router, [w0], "no_worker_wait = 0\n", "queue_timeout = 600s\n", "max_requests = 1\n")
    with r.connect() as first, r.connect() as second:
        first.send(make_request(body={"model": "m", "messages": []}))
        w0.wait_requests(1)
        second.send(make_request(body={"model": "m", "messages": []}))
        wait_until(lambda: waiting(r) == 1, "one waits")
        leave(r, [])
        assert second.read_response("POST").status == 503
        hold.release()
        assert first.read_response("POST").status == 200
    assert waiting(r) == 0


def test_who_waits_in_a_pool_that_goes(router, worker):
    hold = Hold()
    w0 = worker("w0", hold)
    conf = f"[pool gone]\nno_worker_wait = 0\n[worker w0]\nurl = {w0.url}\npool = gone\nmax_requests = 1\n"
    r = router([w0], conf=conf, keys="queue_timeout = 600s\n")
    with r.connect() as first, r.connect() as second:
        first.send(make_request(body={"model": "m", "messages": []}))
        w0.wait_requests(1)
        second.send(make_request(body={"model": "m", "messages": []}))
        wait_until(lambda: waiting(r) == 1, "one waits")
        assert r.reload("[pool other]\nno_worker_wait = 0\n")[0]
        assert second.read_response("POST").status == 503
        hold.release()
        assert first.read_response("POST").status == 200


@WAYS
def test_its_idle_connections_close(router, worker, leave):
    """upstream_idle would keep them; and one that is in use is not kept when its response is there."""
    hold = Hold()
    w0, w1 = worker("w0"), worker("w1")
    r = start(router, [w0, w1], "policy = round_robin\nupstream_idle = 600s\n")
    for _ in range(4):
        assert r.chat([{"role": "user", "content": "hi"}]).status == 200
    assert w0.wires and w1.wires
    w0.handler = hold
    at = len(w0.requests)
    with r.connect() as a, r.connect() as b:
        for c in (a, b):  # one of them to each
            c.send(make_request(body={"model": "m", "messages": []}))
        w0.wait_requests(at + 1)
        leave(r, [w1])
        hold.release()
        assert a.read_response("POST").status == 200 and b.read_response("POST").status == 200
    wait_until(lambda: not w0.wires, "no connection to w0 is left")
    assert w1.wires


@WAYS
def test_its_models_count_no_more(router, worker, leave):
    """A request that names no model means the only one of the pool: that is w1's as soon as w0 is gone."""
    w0, w1 = worker("w0", models=("a",)), worker("w1", models=("b",))
    r = start(router, [w0, w1], "")
    prompt = {"messages": [{"role": "user", "content": harness.text(3, 9)}]}

    def held(model):
        answer = r.explain({**prompt, **model})
        return max(c["depth"] for c in answer["candidates"])
    assert r.request(body=prompt).status == 200
    assert held({}) > 0 and held({"model": "b"}) == 0
    leave(r, [w1])
    assert r.request(body=prompt).status == 200
    assert held({}) > 0
    assert held({"model": "b"}) == held({})
    assert [m["id"] for m in r.request("GET", "/v1/models").json()["data"]] == ["b"]


@WAYS
def test_its_metrics_go(router, worker, leave):
    w0, w1 = worker("w0"), worker("w1")
    r = start(router, [w0, w1], "")
    assert r.chat([{"role": "user", "content": "hi"}]).status == 200
    assert any('worker="w0"' in series for series in r.metrics())
    leave(r, [w1])
    assert not any('worker="w0"' in series for series in r.metrics())
