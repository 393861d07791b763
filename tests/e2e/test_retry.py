"""Retries (DESIGN 10): what is tried again and where, what is not, the answer that is kept
meanwhile, the pool's budget, and clients that leave in between.

Workers are scripted; nothing sleeps. Which worker comes first is the policy's (least_requests: in
file order where all are idle).
"""
import json
import re
import signal
import threading

import pytest

import harness
from harness import Hold, answer_ok, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
# Workers that are wrong stay in: what is tested is the retries.
LASTING = "health_failures = 1000\nno_worker_wait = 0\ncb_failure_threshold = 1000000\n"
POOL = "policy = least_requests\n" + LASTING
RETRYABLE = [408, 429, 500, 502, 503, 504]


def says(status, body=None, fields=(), times=None):
    """A handler that answers with this status; after so many times, well."""
    left = [times]
    lock = threading.Lock()

    def run(x):
        with lock:
            if left[0] == 0:
                return answer_ok(x)
            if left[0] is not None:
                left[0] -= 1
        return x.answer(status, body if body is not None else json.dumps({"error": {"message": f"{x.worker.name} says {status}"}}), fields=fields)
    return run


def dies(x):
    x.wire.close()
    raise harness.Closed()


def retries(r):
    """{reason: how many}, without zeros."""
    found = {re.search(r'reason="([^"]*)"', s)[1]: int(v) for s, v in r.metrics().items() if s.startswith("kvsteer_retries_total{")}
    return {k: v for k, v in found.items() if v}


def told(r, n=1):
    """The retries of the n-th access line."""
    return int(r.wait_log(r"retries=(\d+)", count=n).group(1))


def counts(ws):
    return [len(w.requests) for w in ws]


# ---- what is tried again ----

@pytest.mark.tsan
@pytest.mark.parametrize("status", RETRYABLE)
def test_an_answer_that_says_not_here_is_had_elsewhere(router, worker, status):
    """With the very same request."""
    ws = [worker("w0", says(status)), worker("w1")]
    r = router(ws, pool=POOL)
    m = r.request(body=CHAT, headers={"X-Custom": "kept", "Authorization": "Bearer x"})
    assert m.status == 200 and m.json()["worker"] == "w1"
    assert counts(ws) == [1, 1]
    first, second = ws[0].requests[0], ws[1].requests[0]
    assert first.body == second.body == json.dumps(CHAT).encode()
    assert first.get("x-custom") == second.get("x-custom") == "kept" and second.get("authorization") == "Bearer x"
    assert first.get("x-request-id") == second.get("x-request-id")
    assert retries(r) == {str(status): 1}
    assert told(r) == 1


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 404, 409, 413, 422, 499, 501, 505, 529])
def test_other_answers_are_relayed(router, worker, status):
    ws = [worker("w0", says(status, {200: "{}", 204: ""}.get(status))), worker("w1")]
    r = router(ws, pool=POOL)
    assert r.request(body=CHAT).status == status
    assert counts(ws) == [1, 0] and retries(r) == {}


@pytest.mark.parametrize("status", [429, 500])
def test_two_workers_that_agree_are_believed(router, worker, status):
    """It may be the request: nobody else is asked."""
    ws = [worker(f"w{i}", says(status)) for i in range(4)]
    r = router(ws, pool=POOL)
    assert r.request(body=CHAT).status == status
    assert counts(ws) == [1, 1, 0, 0] and retries(r) == {str(status): 1}


def test_retry_on_is_what_is_retried(router, worker):
    """In place of the default: 529 is, and 503 is not. It is counted as what it is."""
    ws = [worker("w0", says(529)), worker("w1")]
    r = router(ws, pool=POOL + "retry_on = 404\nretry_on = 529\n")
    assert r.request(body=CHAT).json()["worker"] == "w1"
    ws[0].handler = says(404)
    assert r.request(body=CHAT).json()["worker"] == "w1"
    ws[0].handler = says(503)
    assert {r.request(body=CHAT).status for _ in range(2)} == {200, 503}, "ties take turns"
    assert retries(r) == {"404": 1, "529": 1}


def test_retry_on_none_retries_no_status(router, worker):
    """A worker that cannot be reached is no status: that is retried."""
    ws = [worker("w0", says(500)), worker("w1"), worker("w2")]
    r = router(ws, pool=POOL + "retry_on = none\n")
    assert r.request(body=CHAT).status == 500
    assert retries(r) == {}
    ws[0].stop()
    assert {r.request(body=CHAT).status for _ in range(3)} == {200}
    assert set(retries(r)) <= {"worker_unreachable"}


def test_retry_on_of_the_worker_that_answers(router, worker):
    """And of now: a reload changes it."""
    ws = [worker("w0", says(503)), worker("w1")]
    conf = worker_conf(ws, POOL + "retry_on = none\n")
    r = router(conf=conf.replace(ws[0].url, ws[0].url + "\nretry_on = 503"), wait=False).wait_workers("w0", "w1")
    assert r.request(body=CHAT).json()["worker"] == "w1"
    assert r.reload(conf)[0]
    assert {r.request(body=CHAT).status for _ in range(2)} == {200, 503}
    assert retries(r) == {"503": 1}


@pytest.mark.parametrize("head", [False, True])
def test_every_method_that_is_forwarded(router, worker, head):
    ws = [worker("w0", says(503)), worker("w1")]
    r = router(ws, pool=POOL, keys="pass_paths = /status\n")
    assert r.request("HEAD" if head else "GET", "/status").status == 200
    assert counts(ws) == [1, 1]


def test_the_first_stream_event_ends_all_repeats(router, worker):
    def breaks(x):
        x.begin()
        x.event("1")
        dies(x)
    ws = [worker("w0", breaks), worker("w1")]
    r = router(ws, pool=POOL)
    m = r.request(body=dict(CHAT, stream=True))
    assert m.status == 200 and not m.ended and b"worker_broke" in m.body
    assert counts(ws) == [1, 0] and retries(r) == {}


# ---- when nobody has a better answer ----

def test_the_last_answer_is_the_workers_own(router, worker):
    """All were tried: status, fields and body of the last one, once each."""
    ws = [worker(f"w{i}", says(503, f"w{i} is full", [("Retry-After", str(7 + i)), ("X-Mine", f"w{i}")])) for i in range(3)]
    r = router(ws, pool=POOL, keys="expose_worker = on\n")
    m = r.request(body=CHAT)
    assert (m.status, m.body, m.get("retry-after"), m.get("x-mine"), m.get("x-kvsteer-worker")) == (503, b"w2 is full", "9", "w2", "w2")
    assert counts(ws) == [1, 1, 1]
    assert retries(r) == {"503": 2} and told(r) == 2
    r.wait_metric(1, "kvsteer_requests_total", code="503", reason="ok")


def test_with_no_other_worker_it_is_relayed_at_once(router, worker):
    w = worker("w0", says(429, "busy", [("Retry-After", "3")]))
    r = router([w], pool=POOL)
    m = r.request(body=CHAT)
    assert (m.status, m.body, m.get("retry-after")) == (429, b"busy", "3")
    assert counts([w]) == [1] and retries(r) == {} and r.metric("kvsteer_retries_refused_total") == 0


def test_workers_that_are_full_are_no_better(router, worker):
    """Nobody queues for a second opinion."""
    hold = Hold()
    ws = [worker("w0", says(503)), worker("w1", hold)]
    r = router(conf=worker_conf(ws, POOL).replace(ws[1].url, ws[1].url + "\nmax_requests = 1"), wait=False, keys="allow_pin = on\n").wait_workers("w0", "w1")
    with r.connect() as c:
        c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w1"}))
        ws[1].wait_requests(1)
        m = r.request(body=CHAT)
        assert m.status == 503 and b"w0 says 503" in m.body
        hold.release()
        assert c.read_response().status == 200
    assert retries(r) == {}


@pytest.mark.parametrize("then", ["refuses", "dies", "hangs", "lies"])
def test_an_answer_that_was_kept_is_better_than_none(router, worker, then):
    """w0 said 503; w1 gives no answer at all: the client reads w0's."""
    def hangs(x):
        x.wait_gone()
        return "close"

    def lies(x):
        x.send(b"HTTP/9.9 nonsense\r\n\r\n")
        return "close"
    w1 = worker("w1", {"dies": dies, "hangs": hangs, "lies": lies}.get(then, answer_ok))
    w0 = worker("w0", says(503, "kept", [("X-Mine", "yes")]))
    r = router([w0, w1], pool=POOL, extra="first_byte_timeout = 300ms\n")  # of w1
    if then == "refuses":
        w1.stop()
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        m = c.read_response()
        assert (m.status, m.body, m.get("x-mine")) == (503, b"kept", "yes")
        assert "worker=w0" in r.wait_log(r".*status=503.*").group(0)
        c.send(make_request("GET", "/health"))  # the connection goes on
        assert c.read_response().status == 200


@pytest.mark.parametrize("kib,is_kept", [(64, True), (65, False)])
def test_a_long_answer_is_not_kept_but_relayed_where_it_is_the_last(router, worker, kib, is_kept):
    """65 KiB are too long to keep: retried all the same; of the last worker it comes whole."""
    big = "x" * (kib << 10)
    ws = [worker("w0", says(503, big)), worker("w1", says(503, big))]
    r = router(ws, pool=POOL)
    m = r.request(body=CHAT)
    assert m.status == 503 and m.body == big.encode() and counts(ws) == [1, 1]
    ws[1].stop()
    found = {(m.status, m.body == big.encode()) for m in (r.request(body=CHAT) for _ in range(2))}
    assert found == ({(503, True)} if is_kept else {(503, True), (502, False)}), "ties take turns"


def in_pieces(x, status=503):
    """Header and body, each byte of it, in packets of their own."""
    x.send(b"HTTP/1.1 %d X\r\nContent-Length: 6\r\n\r\n" % status)
    for b in b"abcdef":
        x.send(bytes([b]))


@pytest.mark.tsan
@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_an_answer_whose_body_comes_behind_its_header_is_kept(router, worker, status):
    """Nobody else is left after it: the client reads the worker's own words, not ours."""
    ws = [worker("w0", lambda x: in_pieces(x, status)), worker("w1", dies)]
    r = router(ws, pool=POOL + "retry_budget = 100%\n")
    for _ in range(20):
        m = r.request(body=CHAT)
        assert (m.status, m.body) == (status, b"abcdef")


@pytest.mark.parametrize("then", ["well", "gone"])
def test_an_error_that_breaks_off_counts_as_its_status(router, worker, then):
    """w0 says 500 and closes in its body: retried as a 500; alone, its client sees that it broke."""
    def half(x):
        x.send(b"HTTP/1.1 500 X\r\nContent-Length: 6\r\n\r\nabc")
        return "close"
    ws = [worker("w0", half), worker("w1")]
    r = router(ws[:1] if then == "gone" else ws, pool=POOL)
    m = r.request(body=CHAT)
    assert m.status == (500 if then == "gone" else 200)
    assert retries(r) == ({} if then == "gone" else {"500": 1})
    if then == "gone":
        assert not m.ended and m.body == b"abc"


def test_a_late_body_of_an_error_comes_as_it_comes(router, worker):
    """No other worker: the header is there without it, half a second later, and the body when it
    is sent."""
    seen = threading.Event()

    def late(x):
        x.send(b"HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\n")
        seen.wait(harness.DEADLINE)
        x.send(b"abcdef")
    r = router([worker("w0", late)], pool=POOL)
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        m = c.read_head()
        seen.set()
        c.read_body(m)
    assert (m.status, m.body) == (503, b"abcdef")


@pytest.mark.parametrize("end", ["leaves", "total", "drain", "reload"])
def test_while_the_body_of_an_error_is_awaited(router, worker, end):
    """The client leaves; total_timeout passes; the daemon ends; the other worker is removed."""
    begun, more = threading.Event(), threading.Event()

    def half(x):
        x.send(b"HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nabc")
        begun.set()
        if end in ("leaves", "total"):
            assert x.wait_gone()
            return "close"
        more.wait(harness.DEADLINE)
        x.send(b"def")
        return None
    ws = [worker("w0", half), worker("w1")]
    r = router(ws, pool=POOL + ("total_timeout = 250ms\n" if end == "total" else ""))
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        assert begun.wait(harness.DEADLINE)
        if end == "leaves":
            c.reset()
            assert ws[0].exchanges[0].gone.wait(harness.DEADLINE)
        elif end == "total":
            assert c.read_response().status == 504
        elif end == "drain":
            r.signal(signal.SIGTERM)
            r.wait_log("draining")
            more.set()
            assert c.read_response().json()["worker"] == "w1"
            assert r.proc.wait(harness.DEADLINE) == 0
        else:
            assert r.reload(worker_conf(ws[:1], POOL))[0]
            more.set()
            m = c.read_response()
            assert (m.status, m.body) == (503, b"abcdef")
    if end in ("leaves", "total"):
        r.wait_idle()
        assert counts(ws) == [1, 0]


def test_a_late_body_is_not_waited_for(router, worker):
    """Not for long: w0's head says 503 and its body never comes: w1 answers, and w0's connection is
    closed."""
    def half(x):
        x.send(b"HTTP/1.1 503 X\r\nContent-Length: 5\r\n\r\n")
        assert x.wait_gone()
        return "close"
    ws = [worker("w0", half), worker("w1")]
    r = router(ws, pool=POOL)
    assert r.request(body=CHAT).json()["worker"] == "w1"
    assert ws[0].exchanges[0].gone.wait(harness.DEADLINE)


@pytest.mark.parametrize("minor", [0, 1])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_kept_answer_comes_in_the_clients_framing(router, worker, framing, minor):
    def run(x):
        if framing == "chunked":
            x.send(b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
        elif framing == "length":
            x.send(b"HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nabcdef")
        else:
            x.send(b"HTTP/1.0 503 X\r\n\r\nabcdef")
            return "close"
        return None
    ws = [worker("w0", run), worker("w1", dies)]
    r = router(ws, pool=POOL)
    body = json.dumps(CHAT).encode()
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.%d\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (minor, len(body), body))
        m = c.read_head()
        c.read_body(m)
    assert (m.status, m.body) == (503, b"abcdef")


# ---- no answer at all ----

def test_b52_a_request_that_kills_goes_to_one_other_worker(router, worker):
    ws = [worker(f"w{i}", dies) for i in range(4)]
    r = router(ws, pool=POOL + "retry_max_retries = 10\n")
    m = r.request(body=CHAT)
    assert m.status == 502 and m.json()["error"]["code"] == "worker_reset"
    assert sum(counts(ws)) == 2
    assert retries(r) == {"worker_reset": 1}


def test_b52_not_after_another_answer_either(router, worker):
    """503, dies, dies: one death is repeated, the second is not."""
    ws = [worker("w0", says(503, "kept")), worker("w1", dies), worker("w2", dies), worker("w3")]
    r = router(ws, pool=POOL)
    m = r.request(body=CHAT)
    assert m.status == 503 and m.body == b"kept" and counts(ws) == [1, 1, 1, 0]


def test_a_dead_port_is_passed_over(router, worker):
    ws = [worker("w0"), worker("w1"), worker("w2")]
    r = router(ws, pool=POOL)
    for w in ws[:2]:
        w.stop()
    assert r.request(body=CHAT).json()["worker"] == "w2"
    assert retries(r) == {"worker_unreachable": 2}


def test_a_worker_that_was_silent_too_long_is_not_repeated(router, worker):
    """It may be at work on it."""
    def hangs(x):
        x.wait_gone()
        return "close"
    ws = [worker("w0", hangs), worker("w1")]
    r = router(ws, pool=POOL + "first_byte_timeout = 200ms\n")
    assert r.request(body=CHAT).status == 504
    ws[0].wait_requests(1)
    assert counts(ws) == [1, 0] and retries(r) == {}


# ---- how many ----

@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_no_more_than_retry_max_retries(router, worker, most):
    ws = [worker(f"w{i}", says(503)) for i in range(4)]
    r = router(ws, pool=POOL + f"retry_max_retries = {most}\n")
    m = r.request(body=CHAT)
    assert m.status == 503 and f"w{most} says 503".encode() in m.body
    assert counts(ws) == [1] * (most + 1) + [0] * (3 - most)
    assert told(r) == most


def test_the_budget_bounds_them(router, worker):
    """A hundred in ten seconds are free; besides it is a share of the requests. What it refuses is
    relayed."""
    ws = [worker("w0", says(503, "no")), worker("w1", says(503, "no"))]
    r = router(ws, pool=POOL + "retry_budget = 10%\n")
    with r.connect() as c:
        for _ in range(200):
            c.send(make_request(body=CHAT))
            m = c.read_response()
            assert m.status == 503 and m.body == b"no"
    made, refused = retries(r)["503"], int(r.metric("kvsteer_retries_refused_total"))
    assert made + refused == 200, "each was worth one"
    assert 100 <= made < 200 and refused > 0
    assert sum(counts(ws)) == 200 + made


def test_a_budget_of_nothing(router, worker):
    ws = [worker("w0", says(503)), worker("w1")]
    r = router(ws, pool=POOL + "retry_budget = 0%\n")
    assert r.request(body=CHAT).status == 503
    ws[0].stop()
    assert {r.request(body=CHAT).status for _ in range(2)} == {200, 502}, "ties take turns, and nobody stands in"
    assert retries(r) == {}
    assert r.reload(worker_conf(ws, POOL + "retry_budget = 100%\n"))[0]
    assert "has no effect" not in r.log()


def test_ranks_are_workers_but_not_where_their_host_is_dead(router, worker):
    """A rank that says 503: its neighbour may do better. (A dead host: test_workers.py.)"""
    def by_rank(x):
        return says(503)(x) if x.request.get("x-data-parallel-rank") == "0" else answer_ok(x)
    w = worker("w0", by_rank)
    r = router(conf=f"[pool default]\n{POOL}[worker w0]\nurl = {w.url}\ndp_size = 2\n", wait=False).wait_workers("w0@0", "w0@1")
    assert r.request(body=CHAT).status == 200
    assert [m.get("x-data-parallel-rank") for m in w.requests] == ["0", "1"]


def test_a_pinned_request_stays(router, worker):
    ws = [worker("w0", says(503)), worker("w1")]
    r = router(ws, pool=POOL, keys="allow_pin = on\n")
    assert r.request(body=CHAT, headers={"X-Kvsteer-Worker": "w0"}).status == 503
    assert counts(ws) == [1, 0]


# ---- bodies that go on as they come ----

STREAMED = "policy = round_robin\n" + LASTING


def test_a_streamed_body_is_repeated_only_while_it_is_whole(router, worker):
    """Small and here with its head: it is. Long, and some of it gone: the answer is relayed."""
    def first_says(x):
        return says(503)(x) if len(ws[0].requests) + len(ws[1].requests) == 1 else answer_ok(x)
    ws = [worker("w0", first_says), worker("w1", first_says)]
    r = router(ws, pool=STREAMED)
    assert r.request(body=CHAT).status == 200
    assert sum(counts(ws)) == 2
    for w in ws:
        w.clear()
    assert r.request(body=dict(CHAT, messages=[{"role": "user", "content": "x" * (3 << 20)}])).status == 503
    assert sum(counts(ws)) == 1


# ---- clients that leave in between ----

def slow_retries(worker, n=5):
    return [worker(f"w{i}", says(503)) for i in range(n)]


@pytest.mark.tsan
def test_b03_no_attempt_for_a_client_that_left(router, worker):
    """(d): clients leave at every moment of a chain of attempts; what is left behind is nothing,
    and the workers see an end of it."""
    ws = slow_retries(worker, 5)
    r = router(ws, pool=POOL + "retry_budget = 100%\nretry_max_retries = 4\n")
    for i in range(60):
        c = r.connect()
        c.send(make_request(body=CHAT))
        wait_until(lambda n=i: sum(counts(ws)) > n, "an attempt")
        if i % 2:
            c.reset()
        else:
            c.close()
    r.wait_idle()
    r.wait_log(r"client_gone")
    before = sum(counts(ws))
    assert r.request(body=CHAT).status == 503
    r.wait_idle()
    assert sum(counts(ws)) == before + 5, "nothing was attempted for those who left"


def test_b03_a_client_that_leaves_in_the_back_off_is_noticed_at_once(router, worker):
    """The worker that would come next never sees it: the client's FIN is there before the 503 that
    leads to the back-off."""
    gone = threading.Event()

    def late(x):
        gone.wait(harness.DEADLINE)
        says(503)(x)
    ws = [worker("w0", says(503)), worker("w1", late), worker("w2")]
    r = router(ws, pool=POOL)
    c = r.connect()
    c.send(make_request(body=CHAT))
    x = ws[1].wait_requests(1)
    c.close()
    assert x.wait_gone()
    gone.set()
    r.wait_log("client_gone")
    r.wait_idle()
    assert counts(ws) == [1, 1, 0]


def test_a_half_closed_client_waits_for_its_answer(router, worker):
    """Connection: close and a FIN: it gets the answer of whoever has one, back-offs and all."""
    ws = [worker("w0", says(503)), worker("w1", says(503)), worker("w2", says(503)), worker("w3")]
    r = router(ws, pool=POOL)
    with r.connect() as c:
        c.send(make_request(body=CHAT, close=True))
        c.sock.shutdown(1)
        assert c.read_response().json()["worker"] == "w3"
    assert told(r) == 3


def test_the_next_request_waits_behind_the_retries(router, worker):
    """Pipelined: in order."""
    ws = [worker("w0", says(503, times=1)), worker("w1", says(503, times=1)), worker("w2", says(503, times=1)), worker("w3")]
    r = router(ws, pool=POOL)
    with r.connect() as c:
        c.send(make_request(body=CHAT) + make_request("GET", "/health"))
        assert c.read_response().json()["worker"] == "w3"
        assert c.read_response().json() == {"status": "ok"}


# ---- many at once ----

@pytest.mark.tsan
def test_half_the_fleet_says_no(router, worker):
    """Of 4 workers 2 refuse everything: every client is served, and guards balance."""
    ws = [worker("w0", says(503)), worker("w1", says(429)), worker("w2"), worker("w3")]
    r = router(ws, pool=STREAMED + "retry_budget = 100%\n", keys="threads = 2\n")
    failures = []

    def client():
        with r.connect() as c:
            for _ in range(25):
                c.send(make_request(body=CHAT))
                if c.read_response().status != 200:
                    failures.append(1)
    threads = [threading.Thread(target=client) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert sum(retries(r).values()) == len(ws[0].requests) + len(ws[1].requests)
