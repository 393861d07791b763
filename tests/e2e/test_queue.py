"""Requests that wait (DESIGN 10): the order in which they are served, what bounds them, who frees a
place, priorities, and what happens when every worker is out. Nothing here sleeps: a worker holds
what it has until the test releases it, and who waits is read from kvsteer_queue_depth.
"""
import json
import socket
import threading

import pytest

from harness import DEADLINE, Closed, Hold, answer_ok, make_request, wait_until

CAP = "max_requests = 1\n"


class Gate:
    """A handler: notes each request's number and lets one of them go at a time."""

    def __init__(self, then=answer_ok):
        self.then, self.seen, self.turns = then, [], threading.Semaphore(0)

    def __call__(self, x):
        self.seen.append(json.loads(x.request.body)["n"])
        self.turns.acquire(timeout=60)
        self.then(x)

    def let(self, n=1):
        for _ in range(n):
            self.turns.release()


def held_stream(go, last):
    """A handler: a first event, and the last one when it may go on."""
    def handler(x):
        x.begin()
        x.event("1")
        go.wait(60)
        x.event(last)
        x.end()
    return handler


def chat(n, **fields):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": f"question {n}"}], "n": n, **fields})


def ask(r, n, headers=None, **fields):
    """A connection with request n under way."""
    c = r.connect()
    c.send(make_request(body=chat(n, **fields), headers=headers))
    return c


def wait_depth(r, n):
    wait_until(lambda: r.metric("kvsteer_queue_depth") == n, f"{n} in the queue")


def queued(r, first, last, **kw):
    """Requests first..last, each in the queue before the next is sent."""
    out = []
    depth = int(r.metric("kvsteer_queue_depth"))
    for n in range(first, last + 1):
        out.append(ask(r, n, **kw))
        depth += 1
        wait_depth(r, depth)
    return out


def finish(clients, status=200):
    for c in clients:
        assert c.read_response().status == status
        c.close()


def capped(router, worker, handler, keys="", extra=CAP, threads=2, pool="", n=1):
    ws = [worker(f"w{i}", handler) for i in range(n)]
    conf = "[pool default]\nhealth_interval = 1s\npolicy = least_requests\n" + pool
    for w in ws:
        conf += f"[worker {w.name}]\nurl = {w.url}\n{extra}"
    r = router(conf=conf, keys=f"threads = {threads}\n" + keys, wait=False)
    r.wait_workers(*[w.name for w in ws])
    return r, ws


@pytest.mark.tsan
def test_20_clients_of_one_slot_are_served_in_order_of_arrival(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate)
    clients = [ask(r, 1)]
    w.wait_requests(1)
    clients += queued(r, 2, 20)
    assert r.metric("kvsteer_worker_load") == 1  # who waits is no load
    gate.let(20)
    finish(clients)
    assert gate.seen == list(range(1, 21))


def test_beyond_queue_size_429_at_once_with_retry_after(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate, keys="queue_size = 3\n")
    clients = [ask(r, 1)]
    w.wait_requests(1)
    clients += queued(r, 2, 4)
    m = r.request(body=chat(5))
    assert m.status == 429 and m.json()["error"]["code"] == "queue_full" and 1 <= int(m.get("retry-after")) <= 60
    wait_depth(r, 3)
    gate.let(4)
    finish(clients)
    gate.let(1)
    assert r.request(body=chat(6)).status == 200
    assert gate.seen == [1, 2, 3, 4, 6]


def test_queue_size_0_is_no_queue(router, worker):
    hold = Hold()
    r, (w,) = capped(router, worker, hold, keys="queue_size = 0\n")
    c = ask(r, 1)
    w.wait_requests(1)
    assert r.request(body=chat(2)).status == 429
    hold.release()
    finish([c])


def test_queue_timeout_is_408_and_frees_the_place(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate, keys="queue_timeout = 300ms\nqueue_size = 1\n")
    c = ask(r, 1)
    w.wait_requests(1)
    for n in (2, 3):
        m = r.request(body=chat(n))
        assert m.status == 408 and m.json()["error"]["code"] == "queue_timeout"
    gate.let()
    finish([c])
    assert gate.seen == [1]


@pytest.mark.tsan
def test_a_client_that_leaves_frees_its_place(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate, keys="queue_size = 2\n")
    first = ask(r, 1)
    w.wait_requests(1)
    second, third = queued(r, 2, 3)
    second.close()
    wait_depth(r, 1)
    (fourth,) = queued(r, 4, 4)
    gate.let(3)
    finish([first, third, fourth])
    assert gate.seen == [1, 3, 4]


@pytest.mark.tsan
def test_clients_that_leave_as_they_are_granted(router, worker):
    """Grants race with clients that leave: no slot is lost, whoever stays is served."""
    r, (w,) = capped(router, worker, answer_ok, keys="queue_size = 1000\n", threads=4)
    for round_no in range(20):
        clients = [ask(r, n) for n in range(30)]
        for c in clients[::3]:
            c.reset()
        finish([c for i, c in enumerate(clients) if i % 3])
    r.wait_idle()


def test_a_slot_lasts_until_the_body_ends(router, worker):
    ended = threading.Event()
    r, (w,) = capped(router, worker, held_stream(ended, "[DONE]"))
    a = ask(r, 1, stream=True)
    a.read_head()
    (b,) = queued(r, 2, 2, stream=True)
    assert len(w.requests) == 1
    ended.set()
    w.wait_requests(2)
    b.read_response()
    a.close()
    b.close()


def test_overload_costs_no_stream(router, worker):
    more = threading.Event()
    r, (w,) = capped(router, worker, held_stream(more, "2"), keys="queue_size = 2\n")
    a = ask(r, 1)
    head = a.read_head()
    assert head.status == 200
    waiting = queued(r, 2, 3)
    assert [r.request(body=chat(n)).status for n in range(4, 40)] == [429] * 36
    more.set()
    a.read_body(head, response_to="POST")
    assert head.body == b"data: 1\n\ndata: 2\n\n"
    for c in waiting:
        assert c.read_response().status == 200
        c.close()
    a.close()


def test_max_concurrent_requests_holds_over_workers_and_pools(router, worker):
    gate = Gate()
    a, b = worker("a", gate), worker("b", gate)
    conf = (f"[pool one]\nmodels = m\nhealth_interval = 1s\n[pool two]\nmodels = other\nhealth_interval = 1s\n"
            f"[worker a]\npool = one\nurl = {a.url}\n[worker b]\npool = two\nurl = {b.url}\n")
    r = router(conf=conf, keys="threads = 2\nmax_concurrent_requests = 2\n", wait=False).wait_workers("a", "b")
    clients = [ask(r, 1), ask(r, 2)]
    a.wait_requests(2)
    clients += queued(r, 3, 3) + queued(r, 4, 4, model="other")
    gate.let()
    wait_until(lambda: len(gate.seen) == 3, "one of two goes")
    gate.let()
    wait_until(lambda: len(gate.seen) == 4, "the other pool's goes when this pool's slot is free")
    gate.let(2)
    finish(clients)


PRIORITY = "X-My-Class"


def test_priorities_by_header_where_the_operator_names_one(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate, keys=f"priority_headers = {PRIORITY}\n")
    clients = [ask(r, 1)]
    w.wait_requests(1)
    for n, word in ((2, "low"), (3, None), (4, "HIGH"), (5, "nonsense"), (6, "high")):
        clients += queued(r, n, n, headers={PRIORITY: word} if word else {})
    gate.let(6)
    finish(clients)
    assert gate.seen == [1, 4, 6, 3, 5, 2]


def test_a_claim_of_priority_is_nothing_by_default(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate)
    clients = [ask(r, 1)]
    w.wait_requests(1)
    clients += queued(r, 2, 2)
    clients += queued(r, 3, 3, headers={PRIORITY: "high", "X-Kvsteer-Priority": "high"})
    gate.let(3)
    finish(clients)
    assert gate.seen == [1, 2, 3]


def test_who_waits_for_another_model_holds_up_nobody(router, worker):
    gate = Gate()
    x, y = worker("x", gate), worker("y", gate)
    r = router(conf=f"[pool default]\nhealth_interval = 1s\n[worker x]\nurl = {x.url}\nmodels = x\n{CAP}[worker y]\nurl = {y.url}\nmodels = y\n{CAP}", wait=False)
    r.wait_workers("x", "y")
    clients = [ask(r, 1, model="x"), ask(r, 2, model="y")]
    wait_until(lambda: len(gate.seen) == 2, "both are busy")
    blocked = queued(r, 3, 3, model="x") + queued(r, 4, 4, model="y")
    gate.let(4)
    finish(clients + blocked)
    assert sorted(gate.seen[2:]) == [3, 4] and len(x.requests) == len(y.requests) == 2


# ---- every worker is out ----

def out(router, worker, pool, n=2, handler=answer_ok):
    """A router whose n workers miss their probes."""
    ws = [worker(f"w{i}", handler) for i in range(n)]
    conf = f"[pool default]\nhealth_interval = 50ms\n{pool}" + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws)
    r = router(conf=conf, wait=False).wait_workers(*[w.name for w in ws])
    for w in ws:
        w.healthy = False
    r.wait_workers(*[w.name for w in ws], state="unhealthy")
    return r, ws


def test_b22_requests_wait_for_a_worker_that_comes_back(router, worker):
    r, ws = out(router, worker, "no_worker_wait = 60s\n")
    clients = queued(r, 1, 3)
    ws[1].healthy = True
    finish(clients)
    assert len(ws[1].requests) == 3 and not ws[0].requests


def test_b22_the_least_bad_worker_is_the_last_resort(router, worker):
    r, ws = out(router, worker, "no_worker_wait = 100ms\n")
    for n in range(4):
        assert r.request(body=chat(n)).status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="least_bad") == 4
    assert len(ws[0].requests) == len(ws[1].requests) == 2


def test_no_worker_wait_0_tries_the_least_bad_at_once(router, worker):
    r, ws = out(router, worker, "no_worker_wait = 0\n")
    assert r.request(body=chat(1)).status == 200
    assert r.metric("kvsteer_route_decisions_total", reason="least_bad") == 1


def test_a_pinned_worker_that_is_out_is_503_at_once(router, worker):
    ws = [worker(f"w{i}") for i in range(2)]
    conf = "[pool default]\nhealth_interval = 50ms\nno_worker_wait = 60s\n" + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws)
    r = router(conf=conf, keys="allow_pin = on\n", wait=False).wait_workers("w0", "w1")
    ws[0].healthy = False
    r.wait_workers("w0", state="unhealthy")
    m = r.request(body=chat(1), headers={"X-Kvsteer-Worker": "w0"})
    assert m.status == 503 and m.json()["error"]["code"] == "no_worker"


def test_a_starting_or_draining_worker_is_no_resort(router, worker):
    w = worker("w0")
    r = router([w], pool="no_worker_wait = 100ms\n")
    status, _ = r.admin("POST", "workers/w0/drain")
    assert status == 202
    m = r.request(body=chat(1))
    assert m.status == 503 and m.json()["error"]["code"] == "no_worker" and m.get("retry-after")
    assert not w.requests


def test_undrain_serves_who_waits(router, worker):
    w = worker("w0")
    r = router([w], pool="no_worker_wait = 60s\n")
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    clients = queued(r, 1, 2)
    assert r.admin("POST", "workers/w0/undrain")[0] == 202
    finish(clients)


def test_a_worker_that_is_added_serves_who_waits(router, worker):
    w, other = worker("w0"), worker("w1")
    r = router([w], pool="no_worker_wait = 60s\n")
    assert r.admin("POST", "workers/w0/drain")[0] == 202
    clients = queued(r, 1, 2)
    status, answer = r.admin("POST", "workers", {"name": "w1", "url": other.url})
    assert status == 201, answer
    finish(clients)
    assert len(other.requests) == 2


# ---- ends ----

def test_a_drain_serves_who_waits(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate)
    clients = [ask(r, 1)]
    w.wait_requests(1)
    clients += queued(r, 2, 3)
    r.signal(15)
    r.wait_log("draining")
    gate.let(3)
    finish(clients)
    assert gate.seen == [1, 2, 3]
    assert r.proc.wait(DEADLINE) == 0


def test_a_second_signal_cuts_who_waits(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate)
    clients = [ask(r, 1)]
    w.wait_requests(1)
    clients += queued(r, 2, 3)
    r.signal(15)
    r.wait_log("draining")
    r.signal(15)
    for c in clients:
        with pytest.raises(Closed):
            c.read_response()
        c.close()
    assert r.proc.wait(DEADLINE) == 0
    gate.let(3)


def test_a_reload_that_drops_the_pool_lets_who_waits_end(router, worker):
    gate = Gate()
    r, (w,) = capped(router, worker, gate, keys="queue_timeout = 2s\n")
    first = ask(r, 1)
    w.wait_requests(1)
    waiting = queued(r, 2, 2)
    other = worker("v0")
    r.reload(f"[pool fresh]\nhealth_interval = 1s\n[worker v0]\npool = fresh\nurl = {other.url}\n")
    assert waiting[0].read_response().status in (408, 503)
    gate.let(2)
    finish([first])
    for c in waiting:
        c.close()


@pytest.mark.parametrize("with_head", [0, 3000])
@pytest.mark.parametrize("blocks", [1000, 20000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_that_goes_on_as_it_comes_waits_too(router, worker, framing, blocks, with_head):
    """What its client sends while it waits is the body's, in its place: the worker gets all of it,
    in order."""
    hold = Hold()
    r, (w,) = capped(router, worker, hold)
    first = r.connect()
    first.send(make_request(body=chat(1)))
    w.wait_requests(1)
    data = b"".join(b"%07d," % i for i in range(blocks))
    parts = [data[:with_head], data[with_head:5000], data[5000:60000], data[60000:]]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r.test\r\nX-Kvsteer-Prefix: 128b;\r\n"
    if framing == "length":
        head += b"Content-Length: %d\r\n\r\n" % len(data)
    else:
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        parts = [b"%x\r\n%s\r\n" % (len(p), p) if p else b"" for p in parts] + [b"0\r\n\r\n"]
    with r.connect() as c:
        c.send(head + parts[0])
        wait_depth(r, 1)
        c.send(parts[1])
        r.metrics()  # it may have been read by now, or not: either is right
        sender = threading.Thread(target=lambda: [c.send(p) for p in parts[2:]], daemon=True)
        sender.start()
        if blocks == 1000:
            sender.join()  # all of it is there before anything is let go
        r.metrics()
        hold.release()
        assert c.read_response("POST").status == 200
        sender.join(DEADLINE)
    assert w.requests[1].body == data
    finish([first])


def test_a_client_that_leaves_while_its_body_waits_is_noticed(router, worker):
    hold = Hold()
    r, (w,) = capped(router, worker, hold)
    first = r.connect()
    first.send(make_request(body=chat(1)))
    w.wait_requests(1)
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r.test\r\nX-Kvsteer-Prefix: 128b;\r\nContent-Length: 100000\r\n\r\n" + b"x" * 3000)
        wait_depth(r, 1)
        c.send(b"y" * 3000)
        c.close()
    wait_depth(r, 0)
    hold.release()
    finish([first])
    assert len(w.requests) == 1


def test_a_half_closed_client_whose_body_stays_away_is_noticed_after_the_wait(router, worker):
    """It sent its FIN while it waited, in the middle of its body: no answer is awaited for ever."""
    hold = Hold()
    r, (w,) = capped(router, worker, hold)
    first = r.connect()
    first.send(make_request(body=chat(1)))
    w.wait_requests(1)
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: r.test\r\nX-Kvsteer-Prefix: 128b;\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n")
        wait_depth(r, 1)
        c.send(b"y" * 3000)
        c.sock.shutdown(socket.SHUT_WR)
        r.metrics()
        hold.release()
        assert c.at_eof()
    finish([first])
