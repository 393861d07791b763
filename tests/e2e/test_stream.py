"""Streams through the router: every event when it was sent and as it was sent, slow readers hold
the worker and nothing else, and an answer that breaks never looks whole.
"""
import hashlib
import random
import socket
import struct
import threading

import pytest

import harness
from harness import Closed, LASTING, LEAN, Steps, make_request, wait_until

CHAT = "/v1/chat/completions"
Q0 = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
PAIR = {"env": LEAN, "pool": "hold_headers = off\n"}  # of conftest.py


# ---- B01: events one by one ----

@pytest.mark.parametrize("n, size", [(60, 247), (200, 20), (40, 20000)])
def test_b01_each_event_arrives_before_the_next_is_sent(pair, n, size):
    """(a, b) The worker sends event k+1 only after the client has event k: nothing waits for more
    to come. Each arrives whole in its own chunk."""
    r, w = pair
    with r.connect() as c:
        for _ in range(2):  # (d) and again on the used connections
            s = w.handler = Steps()
            c.send(make_request(body=Q0))
            s.step(lambda x: x.begin())
            m = c.read_head()  # before any event
            assert m.status == 200 and m.get("content-type") == "text/event-stream" and m.get("transfer-encoding") == "chunked"
            for k in range(n):
                event = f"data: {k:06d}{'x' * (size - 14)}\n\n".encode()
                s.step(lambda x, e=event: x.chunk(e))
                got = c.read_chunk()
                while len(got) < len(event):  # a long one may need more than one read
                    got += c.read_chunk()
                assert got == event
            s.finish(lambda x: x.end())
            assert c.read_chunk() == b""
    assert len({x.conn_no for x in w.exchanges}) == 1


def test_b01_pieces_of_an_event_are_not_waited_for(pair):
    """Half an event, half a chunk, a chunk's size line alone: what is there is forwarded."""
    r, w = pair
    s = w.handler = Steps()
    with r.connect() as c:
        c.send(make_request(body=Q0))
        s.step(lambda x: x.begin())
        c.read_head()
        for sent, got in [(b"a\r\nda", b"da"), (b"ta: ", b"ta: "), (b"1234\r\n3\r", b"1234"), (b"\n5\n\n\r", b"5\n\n"), (b"\n", None), (b"1\r\n:\r\n", b":")]:
            s.step(lambda x, d=sent: x.send(d))
            if got is not None:
                assert c.read_chunk() == got
        s.finish(lambda x: x.end())
        assert c.read_chunk() == b""


@pytest.mark.parametrize("framing", ["length", "until-close"])
def test_b01_other_framings_stream_too(pair, framing):
    r, w = pair
    s = w.handler = Steps()
    line = "Content-Length: 30\r\n" if framing == "length" else ""
    with r.connect() as c:
        c.send(make_request(body=Q0))
        s.step(lambda x: x.send(f"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n{line}\r\n".encode()))
        c.read_head()
        for k in range(10):
            s.step(lambda x, k=k: x.send(b"%02d\n" % k))
            assert (c.read_exact(3) if framing == "length" else c.read_chunk()) == b"%02d\n" % k
        s.close()
        if framing == "until-close":
            assert c.read_chunk() == b""
        c.send(make_request("GET", "/health"))
        assert c.read_response().status == 200


# ---- B37, B59: bytes as they came ----

def odd_stream():
    """Legal but unusual pieces of an event stream."""
    return [b": keep-alive\n\n" * 300000, b":\n", b'data:{"a":1}\n\n', b"data: crlf\r\n\r\n", b"data: cr\r\r", b"event: message_start\nid: 7\nretry: 100\ndata: one\ndata: two\n\n",
            b'data: {"choices":[],"usage":{"total_tokens":1}}\n\n', b"data: [DONE]\n\n", b": trailer\n", b"\xef\xbb\xbf\0\xff", b"data: no end"]


@pytest.mark.parametrize("kind", ["chunked", "one-write", "until-close"])
def test_b37_streams_are_byte_for_byte_the_same(pair, kind):
    r, w = pair
    pieces = odd_stream()

    def send(x):
        if kind == "until-close":
            x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(pieces))
            return "close"
        if kind == "one-write":
            x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                   + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n")
            return None
        x.begin()
        for p in pieces:
            x.chunk(p)
        x.end()
        return None
    w.handler = send
    with r.connect() as c:
        c.send(make_request(body=Q0))
        m = c.read_response()
        assert m.ended and m.body == b"".join(pieces)
        c.send(make_request("GET", "/health"))
        assert c.read_response().status == 200


def test_b37_the_end_is_when_the_worker_ends(pair):
    """(b) No [DONE]; (c) the message is open after [DONE] until the worker's last chunk."""
    r, w = pair
    s = w.handler = Steps()
    with r.connect() as c:
        c.send(make_request(body=Q0))
        s.step(lambda x: x.begin())
        s.step(lambda x: x.event("[DONE]"))
        c.read_head()
        assert c.read_chunk() == b"data: [DONE]\n\n"
        assert r.metric("kvsteer_worker_load") == 1  # still the worker's
        s.step(lambda x: x.send(b": after\n\n".join([b"9\r\n", b"\r\n"])))
        assert c.read_chunk() == b": after\n\n"
        s.finish(lambda x: x.end())
        assert c.read_chunk() == b""
    w.handler = lambda x: (x.begin(), x.event("only"), x.end()) and None
    assert r.request(body=Q0).body == b"data: only\n\n"


def test_b59_one_enormous_line(pair):
    """8 MB in one write and in 1 KiB pieces, and 64 MB without any newline: first bytes come before
    the line is complete, memory stays."""
    r, w = pair
    line = b'data: {"x":"' + random.Random(59).randbytes(4 << 20).hex().encode() + b'"}\n\n'

    def send_pieces(x):
        x.begin()
        for i in range(0, len(line), 1024):
            x.chunk(line[i:i + 1024])
        x.end()
    w.handler = lambda x: (x.begin(), x.chunk(line), x.end()) and None
    assert r.request(body=Q0).body == line
    w.handler = send_pieces
    assert r.request(body=Q0).body == line
    rss = r.rss_kib()
    s = w.handler = Steps()
    block = b"z" * (1 << 20)
    with r.connect() as c:
        c.send(make_request(body=Q0))
        s.step(lambda x: x.begin())
        c.read_head()
        s.step(lambda x: x.send(b"%x\r\n" % (64 << 20)))
        for _ in range(64):
            s.step(lambda x: x.send(block))
            n = 0
            while n < len(block):  # all of it, while the line goes on
                got = c.read_chunk()
                assert got == b"z" * len(got)
                n += len(got)
        assert r.rss_kib() < rss + 4096, f"{rss} KiB, then {r.rss_kib()}"
        s.finish(lambda x: x.send(b"\r\n0\r\n\r\n"))
        assert c.read_chunk() == b""


# ---- slow readers ----

def test_a_client_that_stops_reading_holds_the_worker(worker, router):
    """100 MB against a closed window: the router keeps little, the worker is held; other requests
    of the thread go on; then all arrives."""
    block = random.Random(1).randbytes(1 << 20)
    sent = []

    def pour(x):
        if x.request.method == "GET":
            return harness.answer_ok(x)
        x.begin(content_type="application/octet-stream")
        for _ in range(100):
            x.chunk(block)
            sent.append(len(block))
        x.end()
        return None
    w = worker("w0", pour)
    r = router([w], keys="threads = 1\n", pool=LASTING, env=LEAN)
    assert r.request("GET", "/v1/models/x").status == 200
    rss = r.rss_kib()
    with r.connect() as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.send(make_request(body=Q0))
        assert c.read_head().status == 200
        before = -1
        while before != len(sent):  # until nothing moves any more
            before = len(sent)
            for _ in range(20):
                assert r.request("GET", "/v1/models/x").status == 200
        assert len(sent) < 40, f"{len(sent)} MiB went through to nobody"
        assert r.rss_kib() < rss + 4096, f"{rss} KiB, then {r.rss_kib()}"
        wait_until(lambda: r.metric("kvsteer_worker_load") == 1, "the others have gone")
        want = hashlib.sha256(block * 100).hexdigest()
        told = hashlib.sha256()
        while True:
            data = c.read_chunk()
            if not data:
                break
            told.update(data)
        assert told.hexdigest() == want and len(sent) == 100
        c.send(make_request("GET", "/v1/models/x"))
        assert c.read_response().status == 200


def test_a_client_that_never_reads_again_is_dropped(worker, router):
    """write_timeout: the connection is cut, the worker is told, and nothing stays."""
    w = worker("w0", lambda x: x.begin() or [x.chunk(b"y" * (1 << 20)) for _ in range(100)] and None)
    r = router([w], keys="write_timeout = 300ms\n", pool=LASTING)
    with r.connect() as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.send(make_request(body=Q0))
        x = w.wait_requests(1)
        r.wait_log(r"end=client_stalled")
        assert x.gone.wait(harness.DEADLINE)
        r.wait_idle()
        with pytest.raises(Closed):
            while c.read_until(b"\n"):
                pass


def queues(local, remote):
    """(unread, unacknowledged, acknowledged so far) bytes of the 127.0.0.1 socket with these ports,
    whoever owns it: the kernel's sock_diag."""
    home = socket.inet_aton("127.0.0.1") + bytes(12)
    sockid = struct.pack("!HH", local, remote) + home + home + struct.pack("=III", 0, 0xffffffff, 0xffffffff)
    ask = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 2, 0, 0xffffffff) + sockid  # 2: with struct tcp_info
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as s:
            s.send(struct.pack("=IHHII", 16 + len(ask), 20, 1, 1, 0) + ask)
            answer = s.recv(8192)
    except OSError as e:
        pytest.skip(f"no sock_diag here: {e}")
    assert struct.unpack_from("=H", answer, 4) == (20,), answer
    queued = struct.unpack_from("=II", answer, 16 + 4 + 48 + 4)
    at = 16 + 72
    while at + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if kind == 2:
            return (*queued, struct.unpack_from("=Q", answer, at + 4 + 120)[0])  # tcpi_bytes_acked
        at += (size + 3) & ~3
    pytest.skip("sock_diag tells no tcp_info here")


def kernel_bytes(r, c):
    """What the kernel has taken of the answer to client c, which has read nothing: acknowledged, or
    on its way. (Both ends' queues would count twice what has arrived and is not acknowledged
    yet.)"""
    _, unacked, acked = queues(r.port, c.sock.getsockname()[1])
    return acked + unacked


def fill(r, c, s):
    """Has the worker send until the kernel is full and the router keeps some, then end; returns how
    many bytes that were. Needs one thread."""
    sent = 0
    s.do(lambda x: x.begin())
    while sent - kernel_bytes(r, c) < 32768:
        part = 16384  # small: above 64 KiB in the router the worker would be stopped before its end
        s.do(lambda x: x.chunk(b"y" * part))
        sent += part
        assert r.request("GET", "/health").status == 200  # its thread has come by
    s.finish(lambda x: x.end())
    r.wait_idle()  # for the worker it is done
    return sent


def test_an_answer_still_on_its_way_outlives_the_keep_alive_time(worker, router):
    """The end of an answer lies in the router, whose client rests longer than keepalive_timeout: it
    gets all of it, and goes on."""
    s = Steps()
    w = worker("w0", s)
    r = router([w], keys="keepalive_timeout = 100ms\nthreads = 1\n", pool=LASTING + PAIR["pool"])
    with r.connect() as c:
        c.send(make_request(body=Q0))
        sent = fill(r, c, s)
        threading.Event().wait(0.5)  # five keep-alive times
        m = c.read_head()
        c.read_body(m)
        assert m.ended and len(m.body) == sent
        assert c.recv_some() == b""  # then it was idle for long enough


def test_the_last_answer_of_a_slow_client_arrives_and_leaves_nothing(worker, router):
    """Connection: close, FIN sent already, and the client reads late: it gets all, then the
    connection is gone soon, not after write_timeout."""
    s = Steps()
    w = worker("w0", s)
    r = router([w], keys="write_timeout = 600s\nthreads = 1\n", pool=LASTING + PAIR["pool"])
    with r.connect() as c:
        c.send(make_request(body=Q0, close=True))
        sent = fill(r, c, s)
        c.sock.shutdown(socket.SHUT_WR)
        m = c.read_head()
        c.read_body(m)
        assert m.ended and len(m.body) == sent and m.get("connection") == "close"
        assert c.recv_some() == b""
        wait_until(lambda: r.metric("kvsteer_connections", side="client") == 0, "the connection is gone")


# ---- answers that break ----

def cut_answers():
    """Short answers, and how much of each is its head."""
    return {
        "length": b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a":"b"}',
        "chunked": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n4;x=y\r\n\"b\"}\r\n0\r\nX: y\r\n\r\n",
        "events": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n",
        "events-until-close": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\ndata: 2\n\n",
    }


def judge_cut(name, data, at, how, m, rest):
    """The client's view of an answer that was cut after `at` bytes."""
    head = data.index(b"\r\n\r\n") + 4
    whole = at == len(data) or (name == "events-until-close" and at >= head + 9 and how == "fin")  # with an event
    what = (name, at, how, m.start, m.body, rest)
    if at < head:
        assert m.status == 502 and m.ended and m.json()["error"]["code"] in ("worker_reset", "worker_protocol"), what
        # the connection died before a byte, or in the midst of them; a reset may throw away what
        # was on its way
        assert how == "rst" or m.json()["error"]["code"] == ("worker_reset" if at == 0 else "worker_protocol"), what
        return
    if m.status == 502 and how == "rst":
        assert m.ended, what
        return
    assert m.status == 200, what
    if whole and (how == "fin" or m.ended):
        assert m.ended and m.body in (b'{"a":"b"}', b"data: 1\n\ndata: 2\n\n", b"data: 1\n\ndata: 2\n\n"[:max(0, at - head)]), what
        return
    assert not m.ended, what
    sent = data[head:at]
    if name.startswith("events"):
        body, sep, error = m.body.partition(b"data: {\"error\":")
        if name == "events":
            sent = b"".join([b"data: 1\n\n", b"data: 2\n\n"])
        assert sent.startswith(body), what
        # behind whole events only: half of one is no place for another
        assert bool(sep) == (body in (b"", b"data: 1\n\n", b"data: 1\n\ndata: 2\n\n")), what
        assert not sep or (error.endswith(b"}}\n\n") and b"worker_broke" in error), what
    else:
        assert b'{"a":"b"}'.startswith(m.body), what


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("name", sorted(cut_answers()))
def test_an_answer_cut_at_every_byte_never_looks_whole(pair, name, how):
    """FIN and RST after each byte: 502 before the head is complete, a broken message after; the
    connection to the worker is never used again, the next request never gets the rest."""
    r, w = pair
    data = cut_answers()[name]

    def cut(x):
        if x.request.get("x-at") is None:
            x.answer(200, "next")
            return None
        x.send(data[:int(x.request.get("x-at"))])
        if how == "rst":
            x.wire.reset()
        return "close"
    w.handler = cut
    for at in range(len(data) + 1):
        with r.connect() as c:
            c.send(make_request(body=Q0, headers={"X-At": str(at)}))
            m = c.read_response()
            rest = b""
            if m.ended:
                c.send(make_request("GET", "/v1/models/next", close=True))
                assert c.read_response().body == b"next", (name, at, how)
                rest = c.buf
            judge_cut(name, data, at, how, m, rest)
            assert rest == b""
    cut_on = [x.conn_no for x in w.exchanges if x.request.get("x-at") is not None]
    assert len(set(cut_on)) == len(cut_on)
    asked = [int(x.request.get("x-at")) for x in w.exchanges if x.request.get("x-at") is not None]
    for at in range(len(data) + 1):  # again only where the connection was a pooled one and died in silence
        assert asked.count(at) == 1 or asked.count(at) == 2 and (at == 0 or how == "rst"), (at, asked.count(at))


@pytest.mark.parametrize("half", [b"", b"data: half"], ids=["whole", "half"])
def test_a_broken_stream_says_so_and_ends_without_an_end(pair, half):
    """An error event after what came, but not in the midst of an event; no last chunk, the
    connection is closed; for 1.0 clients a reset, since EOF would look like the end."""
    r, w = pair
    for version in ("1.1", "1.0"):
        s = w.handler = Steps()
        with r.connect() as c:
            c.send(make_request(body=Q0).replace(b"HTTP/1.1", b"HTTP/" + version.encode()))
            s.step(lambda x: x.begin())
            s.step(lambda x: x.event("1"))
            m = c.read_head()
            assert c.read_until(b"data: 1\n\n")
            if half:
                s.step(lambda x: x.chunk(half))
                assert c.read_until(b"half")
            s.close()
            with pytest.raises(Closed) as e:
                while True:
                    c.read_until(b"\n\n\0")
            if version == "1.1":
                assert (b'data: {"error":{' in e.value.partial and b'"code":"worker_broke"' in e.value.partial) == (not half)
                assert b"0\r\n\r\n" not in e.value.partial
            else:
                assert e.value.reset
                assert m.get("connection") == "close"


def test_a_broken_json_answer_has_no_event_in_it(pair):
    r, w = pair

    def broken(x):
        x.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\nzz\r\n")
    w.handler = broken
    with r.connect() as c:
        c.send(make_request(body=Q0))
        m = c.read_response()
        assert m.status == 200 and not m.ended and m.body == b'{"a":'


def test_surplus_after_an_answer_is_dropped_with_its_connection(pair):
    """Bytes behind the end are nobody's: not the client's, not the next request's."""
    r, w = pair
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    for first in (ok, chunked, b"HTTP/1.1 204 X\r\n\r\n"):
        w.clear()
        w.handler = lambda x: x.send(first + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil") if x.request.method == "POST" else x.answer(200, "mine")
        with r.connect() as c:
            for _ in range(3):
                c.send(make_request(body=Q0))
                assert c.read_response().body == (b"" if b"204" in first else b"ok")
                c.send(make_request("GET", "/v1/models/x"))
                assert c.read_response().body == b"mine"
        conns = [x.conn_no for x in w.exchanges]
        assert conns[0] != conns[1] and conns[2] != conns[3] and conns[4] != conns[5]


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nok", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 0 Unknown\r\n\r\n", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", b"\0" * 100,
    b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70000 + b"\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_answers_that_are_not_http_are_502(pair, data):
    r, w = pair
    w.handler = lambda x: x.send(data) or "close"
    with r.connect() as c:
        c.send(make_request(body=Q0))
        m = c.read_response()
        own = {b"HTTP/1.1 200 OK\r\nX: yyy": "worker_head_too_large", b"HTTP/1.1 100 Continue": "worker_interim"}
        code = next((own[begin] for begin in own if data.startswith(begin)), "worker_protocol")
        assert m.status == 502 and m.json()["error"]["code"] == code
        w.handler = harness.answer_ok
        c.send(make_request(body=Q0))  # the client's connection is fine
        assert c.read_response().status == 200
    assert len(w.requests) == 2
