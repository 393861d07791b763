"""What an engine says before it has an answer is no answer: headers, comments, pings and a role of
a stream. And an error that it says in a stream is its failure, whatever the status was.
"""
import json
import re
import threading
import time

import pytest

from harness import LASTING, Steps, make_request
from test_resume import ON, breaks, chunk, resumes, story

POOL = "policy = least_requests\nretry_budget = 100%\n" + LASTING
ROLE, WORD, STOP = chunk("A", {"role": "assistant", "content": ""}), chunk("A", {"content": "x"}), chunk("A", {}, "stop")
ERROR = json.dumps({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}})


def typed(kind, **more):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


def data(text):
    return f"data: {text}\n\n".encode()


# path, body, what comes before content, content, the end
APIS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, [data(ROLE)], [data(WORD)], [data(STOP), data("[DONE]")]),
    "completions": ("/v1/completions", {"prompt": "hi"}, [data('{"choices":[{"index":0,"text":"","finish_reason":null}]}')],
                    [data('{"choices":[{"index":0,"text":"x","finish_reason":null}]}')], [data("[DONE]")]),
    "responses": ("/v1/responses", {"input": "hi"}, [typed("response.created"), typed("response.in_progress"), typed("response.output_item.added")],
                  [typed("response.output_text.delta", delta="x")], [typed("response.completed", response={"error": None})]),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}, [typed("message_start"), typed("ping"), typed("content_block_start")],
                 [typed("content_block_delta", delta={"type": "text_delta", "text": "x"})], [typed("message_delta", delta={"stop_reason": "end_turn"}), typed("message_stop")]),
    "inference_generate": ("/inference/v1/generate", {"token_ids": [1, 2, 3]}, [data('{"request_id":"1","choices":[{"index":0,"token_ids":[],"finish_reason":null}]}')],
                           [data('{"request_id":"1","choices":[{"index":0,"token_ids":[5],"finish_reason":null}]}')], [data("[DONE]")]),
    "generate": ("/generate", {"text": "hi"}, [b": ping\n\n"], [data('{"text": "x", "meta_info": {"id": "1", "finish_reason": null}}')], [data("[DONE]")]),
}


def ask(api):
    path, body, *_ = APIS[api]
    return make_request(path=path, body={"model": "m", "stream": True, **body})


def answer_of(r, request):
    with r.connect() as c:
        c.send(request)
        return c.read_response()


def line(r, **fields):
    """The access line that has these fields."""
    return r.wait_log(r"(?m)^.*" + "".join(rf"(?=.* {k}={v}\b)" for k, v in fields.items()) + r".*$").group(0)


# ---- F1, C02: the first content ----

@pytest.mark.parametrize("hold", ["on", "off"])
@pytest.mark.parametrize("api", APIS)
def test_f1_ttft_is_the_time_of_the_first_content(router, worker, api, hold):
    """Headers, then what comes before content, then content a while later: the time that is told
    lies between that which the worker took and that which the client waited."""
    _, _, before, content, end = APIS[api]
    s, at = Steps(), {}

    def say(x):
        threading.Event().wait(0.2)
        at["said"] = time.monotonic()
        for e in content:
            x.chunk(e)
    w = worker("w0", s)
    r = router([w], pool=POOL + f"hold_headers = {hold}\n")
    with r.connect() as c:
        at["asked"] = time.monotonic()
        c.send(ask(api))
        s.step(lambda x: at.update(came=time.monotonic()))
        s.step(lambda x: x.begin())
        for e in before:
            s.step(lambda x, e=e: x.chunk(e))
        s.step(say)
        m = c.read_head()
        got = b""
        while not got.endswith(content[-1]):
            got += c.read_chunk()
        at["seen"] = time.monotonic()
        s.finish(lambda x: ([x.chunk(e) for e in end], x.end()) and None)
        c.read_body(m)
        assert m.ended and got + m.body == b"".join(before + content + end), "not a byte is lost or changed"
    ttft = float(re.search(r" ttft_ms=([\d.]+)", line(r, status=200, end="ok")).group(1)) / 1000
    # the clock of a turn of the loop may be a little behind
    assert at["said"] - at["came"] - 0.005 <= ttft <= at["seen"] - at["asked"] + 0.001, (ttft, at)
    r.wait_metric(1, "kvsteer_ttft_seconds_count")
    assert abs(r.metric("kvsteer_ttft_seconds_sum") - ttft) < 0.001


@pytest.mark.parametrize("hold", ["on", "off"])
def test_c02_a_stream_that_computes_has_first_byte_timeout(router, worker, hold):
    """The silence before content is no silence inside a response, whatever came before it."""
    def late(x):
        x.begin(then=[data(ROLE)])
        threading.Event().wait(0.6)
        x.chunk(data(WORD))
        x.chunk(data(STOP))
        x.end()
    w = worker("w0", late)
    r = router([w], pool=POOL + f"hold_headers = {hold}\nstream_idle_timeout = 200ms\n")
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == data(ROLE) + data(WORD) + data(STOP)
    line(r, status=200, end="ok")


def test_c02_from_content_on_it_has_stream_idle_timeout(router, worker):
    w = worker("w0", lambda x: (x.begin(then=[data(ROLE), data(WORD)]), x.wait_gone()) and "close")
    r = router([w], pool=POOL + "stream_idle_timeout = 200ms\n")
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and not m.ended and b"worker_timeout" in m.body
    line(r, status=200, end="worker_timeout")


def test_c02_without_content_first_byte_timeout_passes(router, worker):
    """Held back: another worker is asked, once; then 504."""
    ws = [worker(f"w{i}", lambda x: (x.begin(then=[data(ROLE)]), x.wait_gone()) and "close") for i in range(3)]
    r = router(ws, pool=POOL + "first_byte_timeout = 200ms\n")
    m = answer_of(r, ask("chat"))
    assert m.status == 504 and m.json()["error"]["code"] == "worker_timeout"
    assert sum(len(w.requests) for w in ws) == 2


# ---- F2: held back ----

def empty(x):
    x.begin()
    x.end()


FAILURES = {
    "fin": story(end="fin"), "rst": story(end="rst"), "bad-chunk": story(end="chunk"), "role": story(ROLE, end="fin"), "ping": story(b": ping\n\n", b"event: ping\ndata: {}\n\n", end="rst"),
    "half": story(ROLE, data(WORD)[:20], end="fin"), "error": story(ERROR, "[DONE]"), "role-error": story(ROLE, ERROR, "[DONE]"),
    "abort": story(ROLE, chunk("A", {}, "abort"), "[DONE]"), "empty": empty, "role-end": story(ROLE),
}


@pytest.mark.parametrize("how", FAILURES)
def test_f2_a_worker_that_fails_before_content_is_replaced_unseen(router, worker, how):
    ws = [worker("w0", FAILURES[how]), worker("w1", story(ROLE, WORD, STOP, "[DONE]"))]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == b"".join(map(data, [ROLE, WORD, STOP, "[DONE]"]))
    assert [len(w.requests) for w in ws] == [1, 1]
    assert " worker=w1 " in line(r, status=200, end="ok", retries=1)
    why = "worker_error" if how in ("error", "role-error", "abort") else "worker_broke"
    assert r.metric("kvsteer_retries_total", reason=why) == 1
    assert r.admin("GET", "workers/w0")[1]["failures"] == 1 and r.admin("GET", "workers/w1")[1]["failures"] == 0


@pytest.mark.parametrize("api", APIS)
def test_f2_each_api(router, worker, api):
    _, _, before, content, end = APIS[api]
    ws = [worker("w0", story(*before, end="rst")), worker("w1", story(*before, *content, *end))]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask(api))
    assert m.status == 200 and m.ended and m.body == b"".join(before + content + end)


def test_f2_off_is_as_it_was(router, worker):
    """The headers come before any event, and a worker that dies then is seen."""
    s = Steps()
    ws = [worker("w0", s), worker("w1")]
    r = router(ws, pool=POOL + "hold_headers = off\n")
    with r.connect() as c:
        c.send(ask("chat"))
        s.step(lambda x: x.begin())
        m = c.read_head()
        assert m.status == 200
        s.close()
        c.read_body(m)
    assert not m.ended and b"worker_broke" in m.body and ws[1].requests == []


def test_f2_two_workers_may_fail_no_more(router, worker):
    """A request that fails wherever it goes is given to one other worker."""
    ws = [worker(f"w{i}", story(ROLE, end="fin")) for i in range(4)]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 502 and m.json()["error"]["code"] == "worker_broke"
    assert sum(len(w.requests) for w in ws) == 2


def test_f2_no_budget_no_other_worker(router, worker):
    ws = [worker("w0", story(ROLE, end="fin")), worker("w1")]
    r = router(ws, pool=POOL + "retry_max_retries = 0\n")
    m = answer_of(r, ask("chat"))
    assert m.status == 502 and ws[1].requests == []


@pytest.mark.parametrize("path,stream_type", [("/v1/chat/completions", "application/json"), ("/sse", "text/event-stream")])
def test_other_answers_are_not_held_back(router, worker, path, stream_type):
    s = Steps()
    w = worker("w0", s)
    r = router([w], pool=POOL, keys="pass_paths = /sse\n")
    with r.connect() as c:
        c.send(make_request(path=path, body={"model": "m"}))
        s.step(lambda x: x.begin(content_type=stream_type))
        m = c.read_head()
        s.finish(lambda x: (x.event("1"), x.end()) and None)
        c.read_body(m)
        assert m.ended and m.body == data("1")


def test_what_comes_before_content_is_not_held_for_long(router, worker):
    """Comments keep a client's connection alive: it gets them after 15 s, the headers with them."""
    s = Steps()
    w = worker("w0", s)
    r = router([w], pool=POOL)
    with r.connect() as c:
        c.sock.settimeout(40)
        began = time.monotonic()
        c.send(ask("chat"))
        s.step(lambda x: x.begin(then=[b": ping\n\n"]))
        m = c.read_head()
        assert c.read_chunk() == b": ping\n\n" and time.monotonic() - began >= 14.9
        s.finish(lambda x: (x.event(WORD), x.event("[DONE]"), x.end()) and None)
        c.read_body(m)
        assert m.ended
    assert float(re.search(r" ttft_ms=([\d.]+)", line(r, status=200, end="ok")).group(1)) > 14900


# ---- other spellings of a stream ----

def lines(*events):
    return b"".join(map(data, events))


@pytest.mark.parametrize("content_type", ["Text/Event-Stream", "text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM;charset=UTF-8", "text/event-stream ; x=y"])
def test_f2_a_stream_by_any_spelling_of_its_type(router, worker, content_type):
    ws = [worker("w0", lambda x: (x.begin(content_type=content_type, then=[data(ROLE)]), "close")[1]), worker("w1", story(ROLE, WORD, STOP, "[DONE]"))]
    m = answer_of(router(ws, pool=POOL), ask("chat"))
    assert m.status == 200 and m.ended and m.body == lines(ROLE, WORD, STOP, "[DONE]")


def test_what_only_begins_like_a_stream_is_none(router, worker):
    """Another type: its bytes are the client's, whatever they say."""
    w = worker("w0", lambda x: x.answer(200, data(ERROR), content_type="text/event-streams"))
    r = router([w], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.body == data(ERROR)
    line(r, status=200, end="ok", retries=0)


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n" * 16])
def test_f2_interim_responses_before_a_stream_are_no_answer(router, worker, interim):
    """The worker that sent nothing else is replaced; one that goes on is waited for."""
    def dies_after(x):
        x.send(interim)
        x.begin(then=[data(ROLE)])
        return "close"

    def lives(x):
        x.send(interim)
        story(ROLE, WORD, STOP, "[DONE]")(x)
    ws = [worker("w0", dies_after), worker("w1", lives)]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == lines(ROLE, WORD, STOP, "[DONE]") and [len(w.requests) for w in ws] == [1, 1]
    line(r, status=200, end="ok", retries=1)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_f2_streams_that_end_with_their_connection(router, worker, version):
    """Of 1.0 workers, and of 1.1 without a length: held back, and whole only if they say so."""
    head = version + b" 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    def send(*events):
        def say(x):
            x.send(head + lines(*events))
            return "close"
        return say
    ws = [worker("w0", send(ROLE)), worker("w1", send(ROLE, WORD, STOP, "[DONE]"))]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == lines(ROLE, WORD, STOP, "[DONE]")
    line(r, status=200, end="ok", retries=1)
    r = router([worker("w0", send(ROLE, WORD))], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert not m.ended and m.body.startswith(lines(ROLE, WORD)) and b"worker_broke" in m.body
    line(r, status=200, end="worker_broke")


@pytest.mark.parametrize("content_type,first", [("application/x-ndjson", b'{"message":{"content":"x"},"done":false}\n'), ("application/json-seq", b'\x1e{"x":1}\n'), ("text/plain", b"x")])
def test_other_streams_go_on_as_they_come(router, worker, content_type, first):
    """Lines of JSON, as Ollama sends them: neither held back nor gathered, and no end is missed."""
    s = Steps()
    w = worker("w0", s)
    r = router([w], pool=POOL, keys="pass_paths = /api/chat\n")
    with r.connect() as c:
        c.send(make_request(path="/api/chat", body={"model": "m", "messages": []}))
        s.step(lambda x: x.begin(content_type=content_type))
        m = c.read_head()
        s.step(lambda x: x.chunk(first))
        assert m.get("content-type") == content_type and c.read_chunk() == first
        s.finish(lambda x: (x.chunk(first), x.end()) and None)
        assert c.read_chunk() == first and c.read_chunk() == b""
    line(r, status=200, end="ok", retries=0)


# ---- F3: an error in a stream ----

def test_f3_an_error_event_is_a_failure(router, worker):
    """The client gets what the worker said, to the end, and the log, the metrics and the worker's
    counts say what it was."""
    w = worker("w0", story(ROLE, WORD, ERROR, "[DONE]"))
    r = router([w], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == b"".join(map(data, [ROLE, WORD, ERROR, "[DONE]"]))
    line(r, status=200, end="worker_error", worker="w0")
    r.wait_metric(1, "kvsteer_requests_total", reason="worker_error")
    told = r.admin("GET", "workers/w0")[1]
    assert told["failures"] == 1 and r.metric("kvsteer_upstream_failures_total", reason="worker_error") == 1


@pytest.mark.parametrize("api,error", [
    ("completions", data(ERROR)), ("completions", data('{"choices":[{"index":0,"text":"","finish_reason":"error"}]}')),
    ("responses", typed("error", code="x", message="y")), ("responses", typed("response.failed", response={"error": {"code": "server_error"}})),
    ("messages", typed("error", error={"type": "api_error", "message": "x"})),
    ("generate", data('{"text": "x", "meta_info": {"finish_reason": {"type": "abort", "message": "x", "status_code": 500}}}'))])
def test_f3_each_api(router, worker, api, error):
    _, _, before, content, _ = APIS[api]
    w = worker("w0", story(*before, *content, *content, *content, error))
    r = router([w], pool=POOL)
    m = answer_of(r, ask(api))
    assert m.ended and m.body == b"".join([*before, *content * 3, error])
    line(r, status=200, end="worker_error")


def test_f3_errors_open_the_breaker(router, worker):
    w = worker("w0", story(ERROR, "[DONE]"))
    r = router([w, worker("w1", story(WORD, "[DONE]"))], pool="policy = round_robin\nretry_budget = 100%\ncb_failure_threshold = 3\n")
    for _ in range(10):
        assert answer_of(r, ask("chat")).body == data(WORD) + data("[DONE]")
    r.wait_log("worker w0: .*breaker")
    assert len(w.requests) < 10


def test_f3_with_nobody_else_the_client_gets_what_the_worker_said(router, worker):
    """At once; and kept, where the other worker could not be reached."""
    r = router([worker("w0", story(ERROR, "[DONE]"))], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == data(ERROR) + data("[DONE]")
    line(r, status=200, end="worker_error", retries=0)
    r = router([worker("w0", story(ERROR, "[DONE]")), worker("w1", breaks)], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.status == 200 and m.ended and m.body == data(ERROR) + data("[DONE]")
    line(r, status=200, end="worker_error", retries=1)


@pytest.mark.parametrize("events", [[json.dumps({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}), "[DONE]"], [chunk("A", {"content": "x"}, "length"), "[DONE]"]])
def test_f3_what_the_client_did_is_no_failure(router, worker, events):
    ws = [worker("w0", story(*events)), worker("w1")]
    r = router(ws, pool=POOL)
    m = answer_of(r, ask("chat"))
    assert m.ended and m.body == b"".join(map(data, events)) and ws[1].requests == []
    line(r, status=200, end="ok")
    assert r.admin("GET", "workers/w0")[1]["failures"] == 0


def said_then_failed(r, s):
    """The answer to a chat whose worker s fails once the client has its first content."""
    with r.connect() as c:
        c.send(ask("chat"))
        s.step(lambda x: x.begin(then=[data(ROLE), data(WORD)]))
        m = c.read_head()
        while not m.body.endswith(data(WORD)):
            m.body += c.read_chunk()
        s.finish(lambda x: (x.send(b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in (data(ERROR), data("[DONE]")))), x.end()) and None)
        return c.read_body(m)


def test_f3_a_stream_is_resumed_after_an_error_event(router, worker):
    """resume_streams: a dead engine behind a living API server."""
    s = Steps()
    ws = [worker("w0", s), worker("w1", story(chunk("B", {"role": "assistant"}), chunk("B", {"content": "y"}, "stop"), "[DONE]"))]
    r = router(ws, pool=ON)
    m = said_then_failed(r, s)
    assert m.ended and m.body == b"".join(map(data, [ROLE, WORD, chunk("A", {"content": "y"}, "stop"), "[DONE]"]))
    assert resumes(r) == {"resumed": 1} and r.admin("GET", "workers/w0")[1]["failures"] == 1
    line(r, status=200, end="ok", retries=1)


def test_f3_where_nobody_resumes_the_client_gets_what_the_worker_said(router, worker):
    s = Steps()
    r = router([worker("w0", s)], pool=ON)
    m = said_then_failed(r, s)
    assert m.ended and m.body.startswith(b"".join(map(data, [ROLE, WORD, ERROR])))
    line(r, status=200, end="worker_error")
    assert resumes(r) == {"failed": 1}


# ---- an error with status 200 that is no stream ----

def says_200(body, how="whole"):
    """With its header, by length or in chunks."""
    def say(x):
        if how == "chunks":
            x.begin(content_type="application/json", then=[body[:-1], body[-1:]])
            x.end()
        else:
            x.answer(200, body)
    return say


OBJECTS = [ERROR.encode(), b'{"object": "error", "message": "EngineCore", "type": "InternalServerError", "code": 500}', b'{"error":"gone"}']


@pytest.mark.parametrize("how", ["whole", "chunks"])
@pytest.mark.parametrize("error", OBJECTS)
def test_c02_an_error_object_with_status_200_is_no_answer(router, worker, error, how):
    """It is the client's, and a failure of its worker."""
    ws = [worker("w0", says_200(error, how)), worker("w1")]
    r = router(ws, pool=POOL)
    m = answer_of(r, make_request(body={"model": "m", "messages": []}))
    assert m.status == 200 and m.ended and m.body == error
    line(r, status=200, end="worker_error", retries=0)
    assert r.metric("kvsteer_upstream_failures_total", reason="worker_error") == 1 and ws[1].requests == []


@pytest.mark.parametrize("path,body", [("/v1/chat/completions", b'{"error":{"message":"no such thing","type":"NotFoundError","code":404}}'), ("/v1/chat/completions", b'{"error":null,"id":"x"}'),
                                       ("/v1/chat/completions", b'{"id":"x","error":{"code":500}}'), ("/v1/embeddings", b'{"error":"x"}'), ("/v1/chat/completions", b'{"error":'),
                                       ("/v1/chat/completions", b'{"error":"' + b"x" * 200000 + b'"}')],
                         ids=["client", "null", "later", "other-path", "half", "long"])
def test_c02_other_objects_are_answers(router, worker, path, body):
    """The client's own errors, other members, other paths, what is not whole or very long."""
    ws = [worker("w0", says_200(body)), worker("w1")]
    r = router(ws, pool=POOL)
    m = answer_of(r, make_request(path=path, body={"model": "m", "input": "x", "messages": []}))
    assert m.status == 200 and m.ended and m.body == body and ws[1].requests == []
    line(r, status=200, end="ok", retries=0)


def test_c02_an_error_object_behind_its_header_is_told(router, worker):
    """The header has gone: nothing is tried again, and the log and the counts say it."""
    s = Steps()
    w = worker("w0", s)
    r = router([w, worker("w1")], pool=POOL)
    body = ERROR.encode()
    with r.connect() as c:
        c.send(make_request(body={"model": "m", "messages": []}))
        s.step(lambda x: x.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)))
        m = c.read_head()
        s.finish(lambda x: x.send(body))
        c.read_body(m)
    assert m.ended and m.body == body
    line(r, status=200, end="worker_error", retries=0)
    assert r.admin("GET", "workers/w0")[1]["failures"] == 1


ABORT = chunk("A", {}, "abort")


def aborted_stream(r, s, ask_for_it):
    """The answer to a chat whose engine aborts it after its first word, and after ask_for_it()."""
    with r.connect() as c:
        c.send(ask("chat").replace(b"\r\n", b"\r\nX-Stream: 1\r\n", 1))
        s.step(lambda x: x.begin(then=[data(ROLE), data(WORD)]))
        m = c.read_head()
        while not m.body.endswith(data(WORD)):
            m.body += c.read_chunk()
        ask_for_it()
        s.finish(lambda x: (x.event(ABORT), x.event("[DONE]"), x.end()) and None)
        return c.read_body(m)


@pytest.mark.parametrize("pool", [POOL, ON])
@pytest.mark.parametrize("how", ["/abort_request", "/abort_requests", "/pause?mode=abort", "/pause_generation", "drain", "nobody", "/v1/other"])
def test_f3_an_abort_that_was_asked_for_is_no_failure(router, worker, how, pool):
    """By a call that passes through the router, or since the worker is drained."""
    s = Steps("x-stream")
    w = worker("w0", s)
    r = router([w], pool=pool, keys="pass_paths = *\n")

    def ask_for_it():
        if how == "drain":
            r.admin("POST", "workers/w0/drain")
        elif how != "nobody":
            assert r.request("POST", how, b'{"rid":"A"}').status == 200
    m = aborted_stream(r, s, ask_for_it)
    assert m.ended and m.body.startswith(b"".join(map(data, [ROLE, WORD, ABORT])))
    is_asked = how not in ("nobody", "/v1/other")
    line(r, status=200, end="ok" if is_asked else "worker_error", route="chat")
    assert r.admin("GET", "workers/w0")[1]["failures"] == (0 if is_asked else 1)


def test_f3_an_abort_before_content_is_not_tried_elsewhere(router, worker):
    """Somebody wanted it to end."""
    s = Steps("x-stream")
    ws = [worker("w0", s), worker("w1")]
    r = router(ws, pool=POOL, keys="pass_paths = *\nallow_pin = on\n")
    with r.connect() as c:
        c.send(ask("chat").replace(b"\r\n", b"\r\nX-Stream: 1\r\n", 1))
        s.do(lambda x: x.begin(then=[data(ROLE)]))
        assert r.request("POST", "/abort_request", b"{}", headers={"X-Kvsteer-Worker": "w0"}).status == 200
        s.finish(lambda x: (x.event(ABORT), x.event("[DONE]"), x.end()) and None)
        m = c.read_response()
    assert m.ended and m.body == b"".join(map(data, [ROLE, ABORT, "[DONE]"])) and ws[1].requests == []
    line(r, status=200, end="ok", retries=0, route="chat")


def error_of(api, tail):
    """The router's error event at the end of a stream, read as the clients of this API read it."""
    lines = tail.decode().split("\n")
    assert lines[-2:] == ["", ""] and tail.endswith(b"\n\n"), tail
    named = api in ("responses", "messages")
    assert lines[:-2] == (["event: error"] if named else []) + [lines[-3]] and lines[-3].startswith("data: "), tail
    told = json.loads(lines[-3][6:])
    if named:
        assert told["type"] == "error"
    if api == "responses":
        assert told["code"] == told["error"]["code"] and told["message"] and "sequence_number" in told
    if api == "messages":
        assert told["error"]["type"] == "api_error"
    return told["error"]["code"]


@pytest.mark.parametrize("how", ["fin", "chunk"])
@pytest.mark.parametrize("api", APIS)
def test_f3_an_error_event_stands_behind_whole_events_alone(router, worker, api, how):
    """In the shape of each API; wherever the stream is cut: inside an event's name or data, before
    and inside its blank line, by the end of the connection or by a chunk that is none."""
    _, _, before, content, _ = APIS[api]
    whole, last = b"".join(before + content * 2), content[0]

    def say(x):
        cut = int(x.request.get("x-cut"))
        x.begin(then=[whole] + ([last[:cut]] if cut else []))
        if how == "chunk":
            x.send(b"zz\r\n")
            x.wait_gone()
        return "close"
    r = router([worker("w0", say)], pool=POOL)
    for cut in (0, 1, 8, len(last) // 2, len(last) - 2, len(last) - 1, len(last)):
        m = answer_of(r, ask(api).replace(b"\r\n", b"\r\nX-Cut: %d\r\n" % cut, 1))
        assert not m.ended and m.body.startswith(whole + last[:cut]), (cut, m.body)
        tail = m.body[len(whole) + cut:]
        if 0 < cut < len(last):
            assert tail == b"", (cut, tail)
        else:
            assert error_of(api, tail) == "worker_broke"


def test_f3_half_of_a_long_event_is_no_place_for_another(router, worker):
    """Longer than what is kept of an event, it is known to be half all the same."""
    def say(x):
        x.begin(then=[data(ROLE), data(WORD), b"data: " + b"x" * 200000 + (b"\n\n" if x.request.get("x-whole") else b"\n")])
        return "close"
    r = router([worker("w0", say)], pool=POOL)
    m = answer_of(r, ask("chat"))
    assert not m.ended and m.body.endswith(b"xxx\n")
    m = answer_of(r, ask("chat").replace(b"\r\n", b"\r\nX-Whole: 1\r\n", 1))
    assert not m.ended and error_of("chat", m.body[m.body.index(b"xxx\n\n") + 5:]) == "worker_broke"


@pytest.mark.parametrize("api", APIS)
def test_f3_a_stream_without_its_end_is_broken(router, worker, api):
    """The framing ends well, the stream does not say so."""
    _, _, before, content, _ = APIS[api]
    w = worker("w0", story(*before, *content))
    r = router([w], pool=POOL)
    m = answer_of(r, ask(api))
    assert not m.ended and m.body.startswith(b"".join(before + content)) and b'"code":"worker_broke"' in m.body
    line(r, status=200, end="worker_broke")
    assert r.admin("GET", "workers/w0")[1]["failures"] == 1


def test_c02_a_client_may_leave_while_headers_are_held(router, worker):
    s = Steps()
    w = worker("w0", s)
    r = router([w], pool=POOL)
    gone = threading.Event()
    with r.connect() as c:
        c.send(ask("chat"))
        s.do(lambda x: x.begin(then=[data(ROLE)]))
    s.close(lambda x: x.wait_gone() and gone.set())
    assert gone.wait(20)
    line(r, status=0, end="client_gone")
