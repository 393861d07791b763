"""The faults of kvsteer-engine, each alone, together, and taken back: what a test of the router
tells it by --fault-socket is what its clients see."""

import collections
import concurrent.futures
import contextlib
import json
import os
import random
import socket
import stat
import subprocess
import threading
import time
import urllib.error

import pytest
from engine_proc import Engine, expected, render, tokenize
from test_engine import DEADLINE_S, dial, post, read_all, read_until, wait_for

NONE = {
    "wedge": False,
    "die_core": False,
    "die_after_ms": None,
    "die_how": "kill",
    "slow": 1,
    "cut_after": None,
    "cut_how": "rst",
    "cut_left": None,
    "hold_after": None,
    "answer": None,
    "answer_left": None,
    "retry_after": None,
    "hang_connect": False,
    "health": "ok",
    "health_delay_ms": 0,
}
COUNT = {"cut": 0, "answered": 0, "restarts": 0}
PROMPT = "what the engine says when all is well"
IDS = tokenize(PROMPT)


def ask(**more):
    return post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, **more})


def streamed(tokens=8, **more):
    return ask(stream=True, max_tokens=tokens, **more)


def body_of(data):
    """The bytes of a chunked answer, and whether its end is there."""
    head, rest = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 "), head
    out = b""
    while b"\r\n" in rest:
        size, rest = rest.split(b"\r\n", 1)
        if size == b"0":
            return out, True
        out += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return out, False


def events_of(data):
    return [e for e in body_of(data)[0].split(b"\n\n") if e]


def text_of(data):
    return "".join(json.loads(e[6:])["choices"][0]["text"] for e in events_of(data) if e != b"data: [DONE]")


def read_to_reset(s):
    """All bytes before the RST; fails for a FIN."""
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return data
        assert piece, data
        data += piece


def status_of(s):
    data = read_until(s, b"\r\n\r\n")
    return int(data.split(b" ", 2)[1]), data


def answers(engine):
    """A whole request on a connection of its own gets the right answer."""
    status, answer = engine.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})
    return status == 200 and answer["choices"][0]["text"] == expected(IDS, 8)


@contextlib.contextmanager
def faulty(*flags):
    """An engine that must be as if nothing had been, when its faults are cleared."""
    with Engine(*flags, faults=True) as e:
        yield e
        assert {k: v for k, v in e.clear_faults().items() if k != "count"} == NONE
        wait_for(lambda: e.metrics()["vllm:num_requests_running"] == 0)
        assert answers(e)
        metrics = e.metrics()
        assert metrics["vllm:kv_cache_usage_perc"] == metrics["vllm:corrupted_requests_total"] == 0
        assert metrics["vllm:num_requests_waiting"] == 0


@pytest.fixture
def engine():
    with faulty("--sim-speed", "0") as e:
        yield e


# ---- the socket ----


def test_state_is_read_and_changed(engine):
    assert engine.faults() == {**NONE, "count": COUNT}
    changed = {
        "wedge": True, "die_core": True, "die_after_ms": 1, "die_how": "core", "slow": 2.5, "cut_after": 3, "cut_how": "fin", "cut_left": 4, "hold_after": 2, "answer": 503, "answer_left": 5,
        "retry_after": 6, "hang_connect": True, "health": "silent", "health_delay_ms": 7,
    }
    assert changed.keys() == NONE.keys()
    told = NONE
    for key, value in changed.items():
        told = {**told, key: value}
        assert engine.fault(**{key: value}) == {**told, "count": COUNT}
    assert engine.faults() == {**changed, "count": COUNT}
    assert engine.fault(answer="reset", cut_after=0) == {
        **changed, "answer": "reset", "answer_left": None, "cut_after": 0, "cut_left": None, "count": COUNT
    }
    assert engine.clear_faults() == {**NONE, "count": COUNT}


@pytest.mark.parametrize(
    "body, says",
    [
        ("", ""),
        ("{", ""),
        ("[]", "object"),
        ("null", "object"),
        ('{"wedged":true}', "wedged"),
        ('{"wedge":1}', "wedge"),
        ('{"die_core":null}', "die_core"),
        ('{"die_after_ms":-1}', "die_after_ms"),
        ('{"die_how":"fin"}', "die_how"),
        ('{"slow":0.5}', "slow"),
        ('{"slow":10001}', "slow"),
        ('{"slow":"2"}', "slow"),
        ('{"slow":null}', "slow"),
        ('{"cut_after":-1}', "cut_after"),
        ('{"cut_after":1.5}', "cut_after"),
        ('{"cut_how":"maybe"}', "cut_how"),
        ('{"hold_after":-1}', "hold_after"),
        ('{"answer":200}', "answer"),
        ('{"answer":600}', "answer"),
        ('{"answer":"fin"}', "answer"),
        ('{"answer_left":true}', "answer_left"),
        ('{"retry_after":"soon"}', "retry_after"),
        ('{"health":"bad"}', "health"),
        ('{"health_delay_ms":null}', "health_delay_ms"),
        ('{"wedge":true,"health":"bad"}', "health"),
    ],
)
def test_what_is_no_fault_changes_nothing(engine, body, says):
    status, answer = engine.control("POST", "/faults", body)
    assert status == 400
    assert says in answer["error"]["message"] and answer["error"]["message"]
    assert engine.faults() == {**NONE, "count": COUNT}


def test_other_paths(engine):
    assert engine.control("GET", "/nowhere")[0] == 404
    assert engine.control("GET", "/restart")[0] == 405
    assert engine.post("/faults", {"wedge": True})[0] == 404, "not on the API's port"


def test_the_socket_is_its_owners(engine):
    mode = os.stat(engine.fault_path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    done = subprocess.run(
        [engine.binary, "--port", "0", "--fault-socket", engine.fault_path],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )
    assert done.returncode == 1 and engine.fault_path in done.stderr
    assert engine.faults() == {**NONE, "count": COUNT}, "the first one keeps it"


def test_the_socket_goes_with_its_engine(tmp_path):
    e = Engine("--sim-speed", "0", faults=True).start()
    assert os.path.exists(e.fault_path)
    e.stop()
    assert not os.path.exists(e.fault_path)
    done = subprocess.run(
        [e.binary, "--port", "0", "--fault-socket", str(tmp_path / "no" / "such")],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )
    assert done.returncode == 1 and "no/such" in done.stderr


# ---- wedge ----


def test_wedged_in_mid_stream_and_green(engine):
    """Streams stand, new requests are taken, /health is green, also long after a step would have
    been due; then all goes on and is right."""
    engine.fault(wedge=True)
    before = engine.metrics()["kvsteer_engine_steps_total"]
    with dial(engine, streamed(5)) as s, dial(engine, ask()) as t:
        head = read_until(s, b"\r\n\r\n")
        wait_for(lambda: engine.metrics()["vllm:num_requests_waiting"] == 2)
        assert json.loads(engine.get("/health"))["status"] == "ok"
        assert engine.metrics()["kvsteer_engine_steps_total"] == before
        engine.fault(wedge=False)
        data = head + read_until(s, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert text_of(data) == expected(IDS, 5)
        assert status_of(t)[0] == 200


def test_wedged_with_tokens_out():
    """A stream that has begun stops between two tokens, and what stood does not catch up."""
    with faulty("--sim-decode-rate", "200") as e:
        e.fault(slow=40)  # so that it has not ended before it is wedged
        with dial(e, streamed(40)) as s:
            data = read_until(s, b'"text":')
            e.fault(wedge=True)
            e.fault(slow=1)
            n = e.metrics()["vllm:generation_tokens_total"]
            assert 1 <= n < 40
            stood_from = time.monotonic()
            wait_for(lambda: time.monotonic() - stood_from > 0.3)  # 60 tokens' time, were it not wedged
            assert e.metrics()["vllm:generation_tokens_total"] == n
            before_us = time.monotonic()
            e.fault(wedge=False)
            data += read_until(s, b"0\r\n\r\n")
            assert text_of(data) == expected(IDS, 40)
            assert time.monotonic() - before_us > (40 - n - 1) / 200 * 0.9, "no burst"


def test_clients_that_leave_a_wedged_engine_free_their_blocks():
    with faulty("--sim-decode-rate", "20") as e:
        with dial(e, streamed(50)) as s:
            read_until(s, b'"text":')
            e.fault(wedge=True)
            assert e.metrics()["vllm:kv_cache_usage_perc"] > 0
        wait_for(lambda: e.metrics()["vllm:request_success_total:abort"] == 1)
        assert e.metrics()["vllm:kv_cache_usage_perc"] == 0


def test_deep_health_tells_a_live_loop(engine):
    assert json.loads(engine.get("/health?deep=1"))["status"] == "ok"
    probe = b"GET /health?deep=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    engine.fault(wedge=True)
    with dial(engine, probe) as a, dial(engine, probe) as b:
        b.close()  # left before it was answered
        assert json.loads(engine.get("/health"))["status"] == "ok"
        assert status_of(a)[0] == 503, "after 5 s"
    with dial(engine, probe) as c:
        wait_for(lambda: json.loads(engine.get("/health"))["status"] == "ok")
        engine.fault(wedge=False)
        assert status_of(c)[0] == 200


# ---- the death of the engine behind the API ----

BROKEN = {"error": {"message": "The engine failed.", "type": "InternalServerError", "param": None, "code": 500}}


def chat(n_tokens=8, **more):
    return post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": n_tokens, **more})


def test_f1_the_head_of_a_stream_is_sent_at_once(engine):
    """As vLLM does: before its request has had a turn. The event that says who speaks comes with the
    first token."""
    engine.fault(wedge=True)
    with dial(engine, chat(stream=True)) as s, dial(engine, streamed()) as t:
        data = read_until(s, b"\r\n\r\n")
        assert status_of(t)[0] == 200
        wait_for(lambda: engine.metrics()["vllm:num_requests_waiting"] == 2)
        assert body_of(data) == (b"", False)
        engine.fault(wedge=False)
        events = events_of(data + read_until(s, b"0\r\n\r\n"))
        deltas = [json.loads(e[6:])["choices"][0]["delta"] for e in events[:-1]]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert len(deltas) == 1 + 8 + 1 and all(d.keys() == {"content"} for d in deltas[1:])
        read_until(t, b"0\r\n\r\n")


def test_roles_of_all_choices_come_first(engine):
    with dial(engine, chat(stream=True, n=3, stream_options={"include_usage": True, "continuous_usage_stats": True})) as s:
        events = [json.loads(e[6:]) for e in events_of(read_until(s, b"0\r\n\r\n"))[:-1]]
    assert [(e["choices"][0]["index"], "role" in e["choices"][0]["delta"]) for e in events[:3]] == [(0, True), (1, True), (2, True)]
    assert all(e["usage"]["completion_tokens"] == 0 for e in events[:3])
    assert not any("role" in e["choices"][0]["delta"] for e in events[3:-1])


@pytest.mark.parametrize("n_events", [0, 1, 3])
def test_f3_a_dead_engine_ends_its_streams_cleanly(n_events):
    """Whatever they have said: an error event, [DONE], and the end of the answer."""
    with faulty("--sim-decode-rate", "20") as e:
        e.fault(slow=10000 if n_events == 0 else 1)
        with dial(e, streamed(60)) as s, dial(e, ask(max_tokens=60)) as whole, dial(e, chat(stream=True, n=2)) as t:
            data = read_until(s, b"\r\n\r\n")
            while data.count(b"data: ") < n_events:
                data += s.recv(65536)
            wait_for(lambda: e.metrics()["vllm:num_requests_running"] + e.metrics()["vllm:num_requests_waiting"] == 4)
            e.fault(die_core=True)
            data += read_until(s, b"0\r\n\r\n")
            last = read_until(t, b"0\r\n\r\n")
            for said in (data, last):
                assert json.loads(events_of(said)[-2][6:]) == BROKEN and events_of(said)[-1] == b"data: [DONE]"
                assert said.count(b'"error"') == 1
            status, answer = status_of(whole)
            assert status == 500 and b"The engine failed." in answer
            for c in (s, t, whole):
                c.sendall(streamed())
                assert status_of(c)[0] == 500, "all that follows, on the same connection"
            assert e.post("/v1/completions", {"prompt": PROMPT})[0] == 500
            with pytest.raises(urllib.error.HTTPError, match="503"):
                e.get("/health")
            with pytest.raises(urllib.error.HTTPError, match="503"):
                e.get("/health?deep=1")
            assert e.metrics()["vllm:num_requests_running"] == e.metrics()["vllm:num_requests_waiting"] == 0
            assert e.get("/v1/models"), "the API server lives"


# ---- slow ----


def test_slow_and_back():
    """Measured in the engine's own clock: how many tokens a sequence gets while another time passes
    is what the factor says, within a wide margin."""
    with faulty("--sim-decode-rate", "1000") as e:

        def seconds(n):
            begun = time.monotonic()
            status, answer = e.post("/v1/completions", {"prompt": PROMPT, "max_tokens": n})
            assert status == 200 and answer["choices"][0]["text"] == expected(IDS, n)
            return time.monotonic() - begun

        e.fault(slow=50)
        assert seconds(11) >= 10 * 0.050
        e.fault(slow=2)
        assert seconds(101) >= 100 * 0.002
        e.fault(slow=1)
        quick = min(seconds(11) for _ in range(20))
        assert quick < 10 * 0.050, "it is over"


def test_slow_in_mid_stream():
    with faulty("--sim-decode-rate", "500") as e:
        e.fault(slow=100)  # so that it has not ended before it is slower still
        with dial(e, streamed(30)) as s:
            data = read_until(s, b'"text":')
            e.fault(slow=10000)  # a token in 20 s
            n = e.metrics()["vllm:generation_tokens_total"]
            assert n < 30
            begun = time.monotonic()
            wait_for(lambda: time.monotonic() - begun > 0.2)
            assert e.metrics()["vllm:generation_tokens_total"] <= n + 1
            e.fault(slow=1)
            data += read_until(s, b"0\r\n\r\n")
            assert text_of(data) == expected(IDS, 30)


# ---- cut ----


@pytest.mark.parametrize("how", ["rst", "fin"])
@pytest.mark.parametrize("n", [0, 1, 5, 9])
def test_streams_are_cut(engine, how, n):
    """After n events; 8 tokens make 9 with the one that says why it ends, and the last, [DONE]."""
    engine.fault(cut_after=n, cut_how=how)
    with dial(engine, streamed()) as s:
        data = read_to_reset(s) if how == "rst" else read_all(s)
    body, ended = body_of(data)
    assert not ended
    assert len(events_of(data)) == n
    assert b"[DONE]" not in body
    assert text_of(data) == expected(IDS, min(n, 8))
    assert engine.faults()["count"]["cut"] == 1
    assert engine.metrics()["vllm:num_requests_running"] == 0
    assert answers(engine), "only streams"


def test_a_stream_of_fewer_events_is_whole(engine):
    engine.fault(cut_after=10)
    with dial(engine, streamed()) as s:
        assert body_of(read_until(s, b"0\r\n\r\n"))[1]
    assert engine.faults()["count"]["cut"] == 0


def test_as_many_streams_as_told(engine):
    engine.fault(cut_after=2, cut_left=2)
    for left in (1, 0):
        with dial(engine, streamed()) as s:
            assert len(events_of(read_to_reset(s))) == 2
        assert engine.faults()["cut_left"] == left
    for _ in range(3):
        with dial(engine, streamed()) as s:
            assert body_of(read_until(s, b"0\r\n\r\n"))[1]
    assert engine.faults()["count"]["cut"] == 2


def test_running_streams_are_cut_at_their_next_event():
    with faulty("--sim-decode-rate", "20") as e:
        with dial(e, streamed(60)) as s, dial(e, ask(stream=True, max_tokens=60, n=3)) as t:
            first = read_until(s, b'"text":')
            read_until(t, b'"index":2')
            e.fault(cut_after=0, cut_left=2)
            data = first + read_to_reset(s)
            assert 0 < len(events_of(data)) < 60
            read_to_reset(t)
            assert e.faults()["count"]["cut"] == 2
        assert e.metrics()["vllm:kv_cache_usage_perc"] == 0, "all three choices are gone"


# ---- answers ----


@pytest.mark.parametrize("status", [429, 500, 503])
def test_answers(engine, status):
    engine.fault(answer=status, answer_left=2, retry_after=7)
    for _ in range(2):
        with dial(engine, ask()) as s:
            got, head = status_of(s)
            assert got == status and b"\r\nRetry-After: 7\r\n" in head
    assert answers(engine)
    engine.fault(answer=status)
    for stream in (True, False):
        for _ in range(3):
            got, answer = engine.post("/v1/chat/completions", {"messages": [], "stream": stream})
            assert got == status and answer["error"]["code"] == "fault", "before anything is looked at"
    with dial(engine, ask()) as s:
        assert b"Retry-After" in status_of(s)[1]
        engine.fault(retry_after=None)
        s.sendall(ask())
        got, head = status_of(s)
        assert got == status and b"Retry-After" not in head
        engine.fault(answer=None)
        s.sendall(ask())
        assert status_of(s)[0] == 200, "on the same connection"
    assert engine.faults()["count"]["answered"] == 10
    assert engine.get("/v1/models") and engine.get("/health")


def test_connections_that_die_without_a_byte(engine):
    engine.fault(answer="reset", answer_left=2)
    for _ in range(2):
        with dial(engine, ask()) as s:
            assert read_to_reset(s) == b""
    assert answers(engine)


def test_streams_that_get_their_headers_and_no_more(engine):
    """For as many requests as told, while others are answered; whole answers get nothing."""
    engine.fault(answer="head", answer_left=3)
    with dial(engine, streamed()) as s, dial(engine, chat(stream=True)) as t:
        head = status_of(s)[1]
        assert b"\r\nContent-Type: text/event-stream\r\n" in head and status_of(t)[0] == 200
        with dial(engine, ask()) as whole:
            wait_for(lambda: engine.faults()["answer_left"] == 0)
            assert answers(engine)
            for c in (s, t, whole):
                c.setblocking(False)
                with pytest.raises(BlockingIOError):
                    c.recv(1)
    assert engine.faults()["count"]["answered"] == 3
    with dial(engine, streamed()) as s:
        assert body_of(read_until(s, b"0\r\n\r\n"))[1]


# ---- silence while tokens are made ----


@pytest.mark.parametrize("n", [0, 1, 2])
def test_c03_streams_are_silent_while_the_engine_computes(n):
    """Its counters grow; the end brings all that was held back, and nothing is lost."""
    with faulty("--sim-decode-rate", "200") as e:
        e.fault(hold_after=n)
        with dial(e, chat(40, stream=True)) as s:
            wait_for(lambda: e.metrics()["vllm:generation_tokens_total"] >= 20)
            data = read_until(s, b"0\r\n\r\n")
        choices = [json.loads(d[6:])["choices"][0] for d in events_of(data)[:-1]]
        assert len(choices) == max(n, 1) + 1
        assert choices[-1]["finish_reason"] == "length" and choices[0]["delta"]["role"] == "assistant"
        ids = tokenize(render([{"role": "user", "content": PROMPT}]))
        assert "".join(c["delta"]["content"] for c in choices) == expected(ids, 40)
        assert len(tokenize(choices[-1]["delta"]["content"])) == 40 - max(n - 1, 0)


def test_what_was_held_back_comes_when_the_fault_ends():
    with faulty("--sim-decode-rate", "100") as e:
        e.fault(hold_after=1)
        with dial(e, streamed(60)) as s:
            data = read_until(s, b'"text":')
            wait_for(lambda: e.metrics()["vllm:generation_tokens_total"] >= 10)
            e.fault(hold_after=None)
            data += read_until(s, b"0\r\n\r\n")
        assert text_of(data) == expected(IDS, 60)
        assert 3 < len(events_of(data)) < 60


# ---- sleep ----


def post_to(engine, path):
    return engine.post(path, b"")


def cached_of(engine):
    """How much of a long prompt was cached."""
    answer = engine.post("/v1/completions", {"prompt": PROMPT * 9, "max_tokens": 1})[1]
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_c16_a_sleeping_engine_takes_requests_and_answers_none(level):
    """/health stays 200, as vLLM's does. Level 0 keeps the cache."""
    with faulty("--sim-decode-rate", "100") as e:
        assert json.loads(e.get("/is_sleeping")) == {"is_sleeping": False}
        assert cached_of(e) == 0
        with dial(e, streamed(500)) as s, dial(e, ask(max_tokens=500)) as whole:
            data = read_until(s, b'"text":')
            wait_for(lambda: json.loads(e.get("/load")) == {"server_load": 2})
            assert post_to(e, f"/sleep?level={level}") == (200, {"status": "sleeping", "level": level})
            data += read_until(s, b"0\r\n\r\n")
            assert json.loads(events_of(data)[-2][6:])["choices"][0]["finish_reason"] == "abort"
            assert events_of(data)[-1] == b"data: [DONE]"
            assert b'"finish_reason":"abort"' in read_until(whole, b'"usage"')
        assert json.loads(e.get("/is_sleeping")) == {"is_sleeping": True}
        for path in ("/health", "/ping", "/metrics", "/v1/models"):
            assert e.get(path)
        assert e.post("/ping", b"")[0] == 200
        with dial(e, streamed(3)) as s:
            head = read_until(s, b"\r\n\r\n")
            wait_for(lambda: e.metrics()["vllm:num_requests_waiting"] == 1)
            assert body_of(head) == (b"", False)
            steps = e.metrics()["kvsteer_engine_steps_total"]
            assert post_to(e, "/wake_up") == (200, {"status": "awake", "tags": None})
            assert text_of(head + read_until(s, b"0\r\n\r\n")) == expected(IDS, 3)
            assert e.metrics()["kvsteer_engine_steps_total"] > steps
        assert (cached_of(e) > 0) == (level == 0)
        assert json.loads(e.get("/is_sleeping")) == {"is_sleeping": False}


def test_sleep_that_keeps_its_requests():
    with faulty("--sim-decode-rate", "100") as e:
        with dial(e, streamed(40)) as s:
            data = read_until(s, b'"text":')
            assert post_to(e, "/sleep?level=0&mode=keep")[0] == 200
            n = e.metrics()["vllm:generation_tokens_total"]
            assert n < 40
            for query in ("level=3", "level=x", "level=", "mode=wait"):
                assert post_to(e, "/sleep?" + query)[0] == 400, query
            assert e.metrics()["vllm:generation_tokens_total"] == n
            post_to(e, "/wake_up")
            assert text_of(data + read_until(s, b"0\r\n\r\n")) == expected(IDS, 40)
        post_to(e, "/sleep")
        e.restart_empty()
        assert json.loads(e.get("/is_sleeping")) == {"is_sleeping": False}


# ---- connects ----


def connect_now(engine):
    """A connect that has at most a moment; None: it hangs."""
    s = socket.socket()
    s.settimeout(0.3)
    try:
        s.connect(("127.0.0.1", engine.port))
    except TimeoutError:
        s.close()
        return None
    return s


def test_connects_hang(engine):
    kept = dial(engine)
    engine.fault(hang_connect=True)
    assert [connect_now(engine) for _ in range(3)] == [None] * 3
    kept.sendall(ask())
    assert status_of(kept)[0] == 200, "those that exist go on"
    kept.close()
    with socket.socket() as patient:
        patient.settimeout(DEADLINE_S)
        patient.setblocking(False)
        with pytest.raises(BlockingIOError):
            patient.connect(("127.0.0.1", engine.port))
        engine.fault(hang_connect=False)
        patient.settimeout(DEADLINE_S)
        patient.sendall(ask())  # once its next SYN was answered
        assert status_of(patient)[0] == 200
    assert answers(engine)
    for _ in range(3):  # again, and each time anew
        engine.fault(hang_connect=True)
        assert connect_now(engine) is None
        engine.fault(hang_connect=False)
        assert answers(engine)


def test_the_end_of_an_engine_whose_connects_hang():
    with Engine("--sim-speed", "0", faults=True) as e:
        e.fault(hang_connect=True, health="silent")


# ---- health ----


def test_health_alone_fails(engine):
    engine.fault(health="fail")
    with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as s:
        assert status_of(s)[0] == 503
    with dial(engine, b"GET /health?deep=1 HTTP/1.1\r\nHost: x\r\n\r\n") as s:
        assert status_of(s)[0] == 503
    assert answers(engine)
    engine.fault(health="ok")
    assert json.loads(engine.get("/health"))["status"] == "ok"


def test_health_is_silent(engine):
    engine.fault(health="silent")
    probes = [dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(3)]
    probes.pop().close()
    assert answers(engine)
    for p in probes:
        p.setblocking(False)
        with pytest.raises(BlockingIOError):
            p.recv(1)
        p.settimeout(DEADLINE_S)
    engine.fault(health="fail")
    assert status_of(probes[0])[0] == 503
    engine.fault(health="silent")
    probes[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answers(engine)
    engine.fault(health="ok")
    assert status_of(probes[0])[0] == 200
    assert status_of(probes[1])[0] == 503, "it was answered the first time"
    for p in probes:
        p.close()


def test_health_is_late(engine):
    engine.fault(health_delay_ms=300)
    begun = time.monotonic()
    assert json.loads(engine.get("/health"))["status"] == "ok"
    assert time.monotonic() - begun >= 0.29, "by its clock of whole milliseconds"
    with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert answers(engine), "only /health, and one that left does no harm"
    engine.fault(health_delay_ms=3600000)
    with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as s:
        engine.fault(health_delay_ms=0)
        with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as t:
            assert status_of(t)[0] == 200
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.recv(1)


# ---- restart ----


def test_restart_empty(engine):
    def identity():
        info = json.loads(engine.get("/server_info"))
        health = json.loads(engine.get("/health"))
        assert info["engine_id"] == health["engine_id"]
        return info["engine_id"], engine.metrics()["process_start_time_seconds"]

    long = {"prompt": "remember this " * 50, "max_tokens": 2}

    def cached():
        return engine.post("/v1/completions", long)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached() == 0 and cached() > 0
    before = identity()
    with dial(engine) as idle, dial(engine, b"POST /v1/completions HTTP/1.1\r\nContent-Le") as half:
        wait_for(lambda: engine.post("/v1/completions", long)[0] == 200)
        engine.fault(wedge=True)
        with dial(engine, streamed(50)) as s, dial(engine, ask()) as t:
            read_until(s, b"\r\n\r\n")
            wait_for(lambda: engine.metrics()["vllm:num_requests_waiting"] == 2)
            assert engine.restart_empty()["wedge"], "faults stay"
            for broken in (s, t, idle, half):
                assert read_to_reset(broken) == b""
    engine.fault(wedge=False)
    metrics = engine.metrics()
    assert metrics["vllm:prompt_tokens_total"] == metrics["vllm:request_success_total:abort"] == 0
    assert metrics["vllm:time_to_first_token_seconds_count"] == 0
    after = identity()
    assert after[0] != before[0] and after[1] > before[1]
    assert cached() == 0 and cached() > 0
    assert engine.faults()["count"]["restarts"] == 1


def test_restart_amid_streams():
    with faulty("--sim-decode-rate", "100", "--sim-blocks", "64") as e:
        for turn in range(5):
            streams = [dial(e, streamed(50, n=2)) for _ in range(6)]
            for s in streams:
                read_until(s, b'"text":')
            e.restart_empty()
            for s in streams:
                read_to_reset(s)
                s.close()
            assert e.metrics()["vllm:num_requests_running"] == 0
        assert e.faults()["count"]["restarts"] == 5


# ---- together ----


def test_faults_together(engine):
    """Each is seen beside the others, and ends alone."""
    engine.fault(health="fail", answer=503, answer_left=1, cut_after=3, cut_how="fin")
    with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as s:
        assert status_of(s)[0] == 503
    with dial(engine, streamed()) as s:
        assert status_of(s)[0] == 503
    engine.fault(wedge=True)
    with dial(engine, streamed()) as s:
        head = read_until(s, b"\r\n\r\n")
        engine.fault(hang_connect=True)
        assert connect_now(engine) is None
        engine.fault(wedge=False)
        data = head + read_all(s)
        assert len(events_of(data)) == 3 and not body_of(data)[1]
    engine.fault(hang_connect=False, cut_after=None)
    assert answers(engine)
    with dial(engine, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as s:
        assert status_of(s)[0] == 503
    assert engine.faults()["count"] == {"cut": 1, "answered": 1, "restarts": 0}


def random_change(rng):
    """A fault or two, or the end of some."""
    return rng.choice([
        {"wedge": rng.random() < 0.5},
        {"slow": rng.choice([1, 1, 3, 20])},
        {"cut_after": rng.randrange(12), "cut_how": rng.choice(["rst", "fin"]), "cut_left": rng.randrange(4)},
        {"cut_after": None},
        {"answer": rng.choice([429, 500, 503, "reset"]), "answer_left": rng.randrange(4), "retry_after": rng.choice([None, 1])},
        {"hang_connect": rng.random() < 0.5},
        {"health": rng.choice(["ok", "fail", "silent"]), "health_delay_ms": rng.choice([0, 20])},
    ])


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_under_load(seed):
    """What is whole is right, what is not is only what a fault explains, and nothing is left when
    they end."""
    rng, stop, outcomes = random.Random(seed), threading.Event(), collections.Counter()
    lock = threading.Lock()

    def client(n):
        mine = random.Random(1000 * seed + n)
        while not stop.is_set():
            prompt, tokens, stream = f"client {n} asks {mine.randrange(50)}", mine.randrange(1, 12), mine.random() < 0.7
            body = {"prompt": prompt, "max_tokens": tokens, "stream": stream}
            data, s = b"", socket.socket()
            s.settimeout(0.5)  # it may hang: then this one leaves
            try:
                s.connect(("127.0.0.1", e.port))
                s.sendall(post("/v1/completions", body, "Connection: close"))
                data = read_all(s)
                how = "answered"
            except TimeoutError:
                how = "hung"
            except ConnectionError:
                how = "reset"
            finally:
                s.close()
            if how == "answered" and data.startswith(b"HTTP/1.1 200 "):
                if not stream:
                    assert json.loads(data.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"] == expected(tokenize(prompt), tokens)
                elif body_of(data)[1]:
                    assert text_of(data) == expected(tokenize(prompt), tokens)
                else:
                    how = "cut"
                    assert expected(tokenize(prompt), tokens).startswith(text_of(data))
            elif how == "answered":
                how = "refused"
                assert int(data.split(b" ", 2)[1]) in (429, 500, 503), data
            with lock:
                outcomes[how] += 1

    with faulty("--sim-decode-rate", "500", "--sim-blocks", "64") as e:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(client, n) for n in range(6)]
            try:
                for turn in range(40):
                    e.fault(**random_change(rng))
                    if turn % 20 == 19:
                        e.restart_empty()
                    seen = sum(outcomes.values())
                    wait_for(lambda: sum(outcomes.values()) > seen + 2 or any(c.done() for c in clients))
            finally:
                stop.set()
            for c in clients:
                c.result()
        count = e.faults()["count"]
        assert count["restarts"] == 2
        assert outcomes["answered"] > 0 and sum(outcomes.values()) > 80, outcomes
        assert outcomes["cut"] <= count["cut"] and outcomes["refused"] <= count["answered"]
