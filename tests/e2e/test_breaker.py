"""Circuit breakers seen from outside: client mistakes say nothing (B13), requests that nobody answers do (B12), and a trial closes what is well again."""
import json
import threading
import time

import pytest

import harness
from harness import answer_ok, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOO_LONG = {"model": "m", "messages": [{"role": "user", "content": "TOO_LONG"}]}
REFUSAL = json.dumps({"error": {"message": "This model's maximum context length is 8 tokens.", "type": "BadRequestError", "param": None, "code": 400}})
CLOSED, HALF_OPEN, OPEN = 0, 1, 2


def state(r, name):
    return r.metric("kvsteer_breaker_state", worker=name)


def out_of_play(r, name):
    return {c["worker"]: c["out_of_play"] for c in r.explain(CHAT)["candidates"]}[name]


def refuses_long(x):
    if b"TOO_LONG" in x.request.body:
        x.answer(400, REFUSAL)
    else:
        answer_ok(x)


class Says:
    """A handler that answers with the status that .status() tells."""

    def __init__(self, status=lambda: 200):
        self.status = status

    def __call__(self, x):
        status = self.status()
        if status == 200:
            answer_ok(x)
        else:
            x.answer(status, REFUSAL)


@pytest.mark.tsan
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
def test_b13_client_mistakes_put_nobody_out(router, worker, status):
    """(a): fifty of them come through unchanged, and the next ten requests are served; each worker has its part of all."""
    def handler(x):
        if b"TOO_LONG" in x.request.body:
            x.answer(status, REFUSAL)
        else:
            answer_ok(x)
    ws = [worker("w0", handler), worker("w1", handler)]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 3\nretry_max_retries = 0\n")
    for _ in range(50):
        m = r.request(body=TOO_LONG)
        assert m.status == status and m.body == REFUSAL.encode()
    for _ in range(10):
        assert r.request(body=CHAT).status == 200
    for w in ws:
        assert state(r, w.name) == CLOSED and r.worker_state(w.name) == "healthy" and out_of_play(r, w.name) is None
        assert len(w.requests) == 30


def test_b13_a_mistake_between_failures_forgives_none(router, worker):
    """(b): 500, 400, 500, 400 ...: it is put out after as many 500s as any other."""
    turn = [0]

    def alternate():
        turn[0] += 1
        return 500 if turn[0] % 2 else 400
    ws = [worker("w0", Says(alternate)), worker("w1")]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 5\ncb_timeout = 1h\nretry_max_retries = 0\n", allow_errors=[r"w0"])
    seen = []
    while state(r, "w0") == CLOSED:
        assert len(seen) < 100, seen
        seen.append(r.request(body=CHAT).status)
    assert seen.count(500) == 5 and seen.count(400) == 4 and state(r, "w0") == OPEN, seen
    assert out_of_play(r, "w0") == "breaker" and state(r, "w1") == CLOSED
    for _ in range(10):
        assert r.request(body=CHAT).status == 200
    assert len(ws[0].requests) == 9


@pytest.mark.parametrize("status", [400, 429])
def test_b13_a_mistake_as_the_trial_decides_nothing(router, worker, status):
    """(c): half-open before, half-open after; its place is free for the next trial at once; two that succeed close it."""
    ws = [worker("w0", Says(lambda: 500)), worker("w1")]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 2\ncb_success_threshold = 2\ncb_timeout = 3s\nretry_max_retries = 0\n", allow_errors=[r"w0"])
    wait_until(lambda: r.request(body=CHAT).status in (200, 500) and state(r, "w0") == OPEN, "open")
    failed = len(ws[0].requests)
    ws[0].handler = Says(lambda: status)
    wait_until(lambda: state(r, "w0") == HALF_OPEN, "half-open, by itself")

    def trial(expect):
        """Requests until w0 has one more."""
        before, said = len(ws[0].requests), []
        while len(ws[0].requests) == before:
            assert len(said) < 20
            said.append(r.request(body=CHAT).status)
        assert said[-1] == expect, said
    for _ in range(3):
        trial(status)
        assert state(r, "w0") == HALF_OPEN, "neither opened anew, which would last 3 s, nor closed"
    assert len(ws[0].requests) == failed + 3
    ws[0].handler = answer_ok
    trial(200)
    assert state(r, "w0") == HALF_OPEN
    trial(200)
    assert state(r, "w0") == CLOSED


def test_half_open_has_one_trial_at_a_time(router, worker):
    """While it is out nobody else goes there; when its client leaves, the next one may; when it fails, all wait for cb_timeout anew."""
    gate = harness.Hold()
    ws = [worker("w0", Says(lambda: 500)), worker("w1")]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 2\ncb_success_threshold = 1\ncb_timeout = 2s\nretry_max_retries = 0\n", allow_errors=[r"w0"])
    wait_until(lambda: r.request(body=CHAT).status in (200, 500) and state(r, "w0") == OPEN, "open")
    ws[0].handler = gate
    wait_until(lambda: state(r, "w0") == HALF_OPEN, "half-open")
    for _ in range(2):  # the second one takes the place of the first one, whose client left
        before = len(ws[0].requests)
        wires = []
        while len(ws[0].requests) == before:
            assert len(wires) < 20
            wires.append(r.connect())
            wires[-1].send(harness.make_request(body=CHAT))
            wait_until(lambda n=len(wires): r.metric("kvsteer_worker_load", worker="w0") == 1 or len(ws[1].requests) >= n, "it arrived somewhere")
        wait_until(lambda: len(ws[0].requests) == before + 1, "the trial")
        for _ in range(6):
            assert r.request(body=CHAT).status == 200
        assert len(ws[0].requests) == before + 1
        for c in wires:
            c.close()
        wait_until(lambda: r.metric("kvsteer_worker_load", worker="w0") == 0, "the client is gone")
        assert state(r, "w0") == HALF_OPEN
    ws[0].handler = Says(lambda: 503)
    before = len(ws[0].requests)
    while len(ws[0].requests) == before:
        assert r.request(body=CHAT).status in (200, 503)
    assert state(r, "w0") == OPEN
    gate.release()


def test_b12_first_byte_timeouts_open_it(router, worker):
    """No stall is judged here: five requests that waited in vain for a first byte are enough, then there are trials alone; and it comes back within one cool-down."""
    gate = threading.Event()

    def silent(x):
        if not gate.is_set():
            x.wait_gone()
            return "close"
        return answer_ok(x)
    ws = [worker("w0"), worker("w1", silent), worker("w2")]
    pool = "policy = round_robin\nstall_timeout = 0\nfirst_byte_timeout = 300ms\ncb_failure_threshold = 5\ncb_success_threshold = 1\ncb_timeout = 2s\nretry_max_retries = 0\n"
    r = router(ws, pool=pool, allow_errors=[r"w1"])
    said, opened = [], None
    while opened is None:
        assert len(said) < 60, said
        said.append(r.request(body=CHAT).status)
        if state(r, "w1") == OPEN:
            opened = time.monotonic()
    assert said.count(504) == 5 == len(ws[1].requests) and set(said) == {200, 504}
    said = [r.request(body=CHAT).status for _ in range(300)]
    trials = len(ws[1].requests) - 5
    assert said.count(504) == trials <= 1 + (time.monotonic() - opened) / 2
    gate.set()
    before = len(ws[1].requests)
    wait_until(lambda: r.request(body=CHAT).status in (200, 504) and state(r, "w1") == CLOSED, "closed")
    assert len(ws[1].requests) == before + 1, "one trial did it"
    for _ in range(6):
        assert r.request(body=CHAT).status == 200
    assert len(ws[1].requests) > before + 1


@pytest.mark.parametrize("fields, rests", [((("Retry-After", "1h"),), False), ((("Retry-After", "60"),), True), ((), False),
                                           ((("Retry-After", "Wed, 30 Nov 2050 08:00:00 GMT"),), True),
                                           ((("Retry-After", "Wed, 30 Nov 2005 08:00:00 GMT"),), False), ((("Retry-After", "0"),), False)])
@pytest.mark.parametrize("status", [429, 503, 200])
def test_retry_after_gives_rest(router, worker, status, fields, rests):
    """Of a 429 or 503 alone, in seconds or as a date to come."""
    def busy(x):
        x.answer(status, REFUSAL, fields)
    ws = [worker("w0", busy), worker("w1")]
    r = router(ws, pool="policy = round_robin\nretry_max_retries = 0\n", allow_errors=[r"w0"])
    while not ws[0].requests:
        r.request(body=CHAT)
    if rests and status != 200:
        assert out_of_play(r, "w0") == "paused"
        for _ in range(6):
            assert r.request(body=CHAT).status == 200
        assert len(ws[0].requests) == 1
    else:
        assert out_of_play(r, "w0") is None
    assert r.worker_state("w0") == "healthy"


def test_all_that_are_out_are_tried_all_the_same(router, worker):
    """When every breaker is open the least bad one gets the request, after no_worker_wait, rather than nobody."""
    ws = [worker("w0", Says(lambda: 500)), worker("w1", Says(lambda: 500))]
    r = router(ws, pool="policy = round_robin\ncb_failure_threshold = 2\ncb_timeout = 1h\nno_worker_wait = 100ms\nretry_max_retries = 0\n", allow_errors=[r"w[01]"])
    for _ in range(4):
        assert r.request(body=CHAT).status == 500
    assert [state(r, "w0"), state(r, "w1")] == [OPEN, OPEN]
    for w in ws:
        w.handler = answer_ok
    for _ in range(3):
        assert r.request(body=CHAT).status == 200
    assert "least_bad" in r.log()
