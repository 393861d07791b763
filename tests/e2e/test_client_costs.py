"""What one client may cost: each row of the security review (B1, B7, B8 ...) that a single client
could use, named after it."""
import json
import select
import socket
import threading
import time

import pytest

import harness
from harness import Hold, make_request, wait_until
from routing import OPEN, user
from test_api_keys import Keys
from test_pd import POOL, pd, prefilled  # noqa: F401 (a fixture)
from test_responses import PATH, Store, create
from test_stream import queues

BLOCK = 20480  # the buffer that a connection is lent (IO_IN_BYTES)
HEAD_MAX = 32768  # and the largest header (HTTP_REQUEST_HEAD_MAX)


# ---- B8: what points into a client's buffer, and outlives its move ----

def header_of(n, method, path, *fields):
    """A header section of exactly n bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: r.test", *fields]
    room = n - len("\r\n".join(lines)) - 4
    while room > 0:
        take = room if room <= 4000 else min(4000, room - 10)
        lines.append("a:" + "x" * (take - 4))
        room -= take
    raw = ("\r\n".join(lines) + "\r\n\r\n").encode()
    assert len(raw) == n, (len(raw), n)
    return raw


def around(*bounds):
    return [n for b in bounds for n in range(b - 12, b + 13) if 600 < n <= HEAD_MAX]


# A quarter of the buffer must be free behind the header, or a body makes it grow.
ENDS = around(BLOCK - BLOCK // 4, BLOCK, HEAD_MAX + 16 - BLOCK // 4, HEAD_MAX)


def chunked(data, *sizes):
    """Its pieces, and the end, each framed."""
    out, at = [], 0
    for n in [*sizes, len(data)]:
        if data[at:at + n]:
            out.append(b"%x\r\n%s\r\n" % (len(data[at:at + n]), data[at:at + n]))
        at += n
    return out + [b"0\r\n\r\n"]


@pytest.mark.parametrize("kind", ["cancel", "chat", "pinned"])
def test_b8_headers_of_every_size_at_the_ends_of_buffers(pd, kind):
    """The body comes behind a header that fills its buffer, which moves: what was read of the header
    stays right. (The AddressSanitizer build sees who still looks at the old buffer.)"""
    r, _, ds = pd(decode=[Store("d0")], keys=OPEN + "threads = 1\n")
    ds[0].handler.ids.add("resp_x")
    fields = ["Transfer-Encoding: chunked", "Expect: 100-continue"] + (["X-Kvsteer-Worker: d0"] if kind == "pinned" else [])
    path, body = (PATH + "/resp_x/cancel", b"{}") if kind == "cancel" else ("/v1/chat/completions", json.dumps({"model": "m", "messages": [user("hi")]}).encode())
    c = r.connect()
    for n in ENDS:
        c.send(header_of(n, "POST", path, *fields))
        assert c.read_head().status == 100
        for piece in chunked(body, 1):
            c.send(piece)
        m = c.read_response()
        assert (m.status, m.get("x-kvsteer-worker")) == (200, "d0"), (n, m.body)
    assert len(ds[0].requests) == len(ENDS), "nobody was asked twice"
    assert all(q.target == path and q.body == body for q in ds[0].requests)
    c.close()


def test_b8_an_id_is_read_where_its_header_is(pd):
    """The block that held the header is lent to another client before the id in it is looked up."""
    r, _, ds = pd(decode=[Store(f"d{i}") for i in range(4)], keys=OPEN + "threads = 1\n")
    for _ in range(8):
        ident, home = create(r)
        before = sum(len(d.requests) for d in ds)
        c, other = r.connect(), r.connect()
        c.send(header_of(BLOCK - 100, "POST", f"{PATH}/{ident}/cancel", "Transfer-Encoding: chunked", "Expect: 100-continue"))
        assert c.read_head().status == 100
        first, *rest = chunked(b"{}", 1)
        c.send(first)
        r.wait_in_flight(1)
        other.send(b"GET /" + b"y" * 8000 + b" HTTP/1.1\r\nX: ")
        r.wait_in_flight(2)
        c.send(b"".join(rest))
        assert c.read_response().get("x-kvsteer-worker") == home
        assert sum(len(d.requests) for d in ds) == before + 1, "its worker was known"
        c.close()
        other.close()


# ---- B1: answers that their client does not read ----

SENT = 20 << 20
PAD = "X-Pad: " + "p" * 400


class Unread:
    """A client that sends n requests behind each other, and reads when it is told to."""

    def __init__(self, r, request, n):
        self.r, self.wire, self.n = r, r.connect(), n
        self.left = memoryview(request * n)
        self.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.wire.sock.setblocking(False)

    def send_some(self):
        """False: nothing more goes out for now."""
        try:
            self.left = self.left[self.wire.sock.send(self.left[:1 << 20]):]
        except BlockingIOError:
            return False
        return len(self.left) > 0

    def flood(self):
        """Sends until the router takes no more, though its only thread has had many turns."""
        while True:
            while self.send_some():
                pass
            for _ in range(10):
                assert self.r.request("GET", "/health").status == 200
            if not self.left or not self.send_some():
                return

    def read_all(self, status):
        """Reads until all are answered."""
        mark = b"HTTP/1.1 %d " % status
        got, rest = 0, b""
        end = time.monotonic() + harness.DEADLINE * 3
        while got < self.n:
            assert time.monotonic() < end, f"{got} answers of {self.n}"
            writes = [self.wire.sock] if self.left else []
            readable, writable, _ = select.select([self.wire.sock], writes, [], harness.DEADLINE)
            if writable:
                self.send_some()
            if readable:
                data = self.wire.sock.recv(1 << 20)
                assert data, f"closed after {got} answers of {self.n}, {len(self.left)} bytes not sent"
                rest += data
                got += rest.count(mark)
                rest = rest[rest.rfind(mark) + len(mark):] if mark in rest else rest[-len(mark) + 1:]
        assert got == self.n


def is_sanitized(r):
    with open(f"/proc/{r.proc.pid}/maps") as f:
        return "libasan" in f.read()


def raw(method, path, *fields, body=b""):
    lines = [f"{method} {path} HTTP/1.1", "Host: r.test", PAD, *fields, *([f"Content-Length: {len(body)}"] if method == "POST" else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


OWN = {  # kind: request, status of the answer
    "health": (raw("GET", "/health"), 200),
    "readiness": (raw("GET", "/readiness"), 200),
    "models": (raw("GET", "/v1/models", "Authorization: Bearer k"), 200),
    "no_such_path": (raw("GET", "/x"), 404),
    "no_such_method": (raw("PATCH", "/health"), 405),
    "no_key": (raw("POST", "/v1/chat/completions", body=b"{}"), 401),
    "no_such_model": (raw("POST", "/v1/chat/completions", "Authorization: Bearer k", body=b'{"model":"nobody"}'), 404),
    "limit": (raw("POST", "/v1/chat/completions", "Authorization: Bearer slow", body=b'{"model":"m"}'), 429),
    "preflight": (raw("OPTIONS", "/v1/chat/completions", "Origin: https://a.test", "Access-Control-Request-Method: POST"), 204),
    "session": (raw("POST", "/finish_session", "Content-Type: application/json", body=b"{}"), 403),
}


def start_with_keys(router, worker, tmp_path):
    keys = Keys(tmp_path, "k a", "slow b max_requests=1")
    return router([worker("w0", Hold())], pool="models = m\n", keys="threads = 1\naccess_log = off\ncors_origins = https://a.test\n" + keys.line,
                  env=harness.LEAN)


@pytest.mark.parametrize("kind", OWN)
def test_b1_answers_of_the_router_that_nobody_reads(router, worker, tmp_path, kind):
    """A request is not begun while its client has much to read yet; and all are answered once it
    reads."""
    r = start_with_keys(router, worker, tmp_path)
    request, status = OWN[kind]
    with r.connect() as busy, r.connect() as c:
        busy.send(OWN["limit"][0])  # it has all that its tenant may have
        r.wait_in_flight(1)
        c.send(request)
        m = c.read_response()
        assert m.status == status, m.body
        rss = r.rss_kib()
        c = Unread(r, request, SENT // len(request))
        c.flood()
        grown = r.rss_kib() - rss
        assert grown < (8192 if is_sanitized(r) else 1024), f"{grown} KiB"
        c.read_all(status)
        c.wire.close()


@pytest.mark.parametrize("kind", ["kept", "forwarded"])
def test_b1_answers_of_workers_that_nobody_reads(router, worker, kind):
    """What is kept of a worker's refusal while another is asked, and what is relayed."""
    text = b'{"error":{"message":"%s"}}' % (b"x" * 50000)
    status = 429 if kind == "kept" else 400
    ws = [worker(f"w{i}", lambda x: x.answer(status, text)) for i in range(2)]
    r = router(ws, pool=harness.LASTING + "retry_max_retries = 1\n", keys="threads = 1\naccess_log = off\n", env=harness.LEAN)
    request = raw("POST", "/v1/completions", body=b'{"model":"m","prompt":"x"}')
    with r.connect() as c:
        c.send(request)
        assert c.read_response().status == status
    rss = r.rss_kib()
    c = Unread(r, request, 400)
    c.flood()
    before = -1
    while before != len(ws[0].requests):  # until nothing moves any more
        before = len(ws[0].requests)
        c.flood()
    assert len(ws[0].requests) + len(ws[1].requests) < 700, "no request is begun that would be in vain"
    grown = r.rss_kib() - rss
    assert grown < (8192 if is_sanitized(r) else 1024), f"{grown} KiB"
    c.read_all(status)
    c.wire.close()


def test_b1_half_closed_clients_have_all_their_answers(router, worker, tmp_path):
    """A client that ends its requests with a FIN, and reads late."""
    r = start_with_keys(router, worker, tmp_path)
    request, status = OWN["no_such_path"]
    c = Unread(r, request, 5000)
    c.left, left = memoryview(b""), c.left
    sender = threading.Thread(target=lambda: (c.wire.sock.sendall(left), c.wire.sock.shutdown(socket.SHUT_WR)))
    c.wire.sock.setblocking(True)
    sender.start()
    sender.join()
    c.read_all(status)
    assert c.wire.at_eof()
    c.wire.close()


def test_b1_a_client_that_leaves_amid_unread_answers(router, worker, tmp_path):
    """Its connection goes with it: by a reset, and by the limit on its silence."""
    r = start_with_keys(router, worker, tmp_path)
    request, _ = OWN["no_such_path"]
    for _ in range(3):
        c = Unread(r, request, SENT // len(request))
        c.flood()
        c.wire.reset()
    r.wait_metric(0, "kvsteer_connections", side="client")


# ---- B7: what the kernel holds of those who do not read ----

UNSENT = 131072  # that the kernel takes of what it cannot send (SOCK_UNSENT_BYTES)


def in_kernel(r, c):
    """Bytes in the router's send queue to this client."""
    return queues(r.port, c.sock.getsockname()[1])[1]


def standstill(r, count):
    """Until nothing moves any more, though the router's only thread has had many turns."""
    before = None
    while before != count():
        before = count()
        for _ in range(20):
            assert r.request("GET", "/v1/models/x").status == 200


def pour(mib):
    block = b"z" * (1 << 20)

    def handler(x):
        if x.request.method == "GET":
            return harness.answer_ok(x)
        x.begin(content_type="application/octet-stream")
        for _ in range(mib):
            x.chunk(block)
        x.end()
    return handler


def test_b7_stopped_readers_cost_the_kernel_little(router, worker):
    """Clients that ask for much and read nothing: the kernel's queue of each is bounded, beside the
    64 KiB that the router holds; and all arrives in the end."""
    r = router([worker("w0", pour(12))], keys="threads = 1\n", pool=harness.LASTING)
    clients = [r.connect() for _ in range(12)]
    for c in clients:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.send(make_request(body={"model": "m", "prompt": "x"}))
    r.wait_in_flight(len(clients))
    wait_until(lambda: all(in_kernel(r, c) > 0 for c in clients), "all have stopped")
    standstill(r, lambda: [in_kernel(r, c) for c in clients])
    assert max(in_kernel(r, c) for c in clients) < 2 * UNSENT
    for c in clients:
        assert len(c.read_response().body) == 12 << 20
        c.close()


def test_b7_a_slow_reader_is_no_stalled_one(router, worker):
    """It takes less in write_timeout than the kernel waits for before it takes more of the router's
    bytes. What counts is what the reader took."""
    r = router([worker("w0", pour(12))], keys="threads = 1\nwrite_timeout = 2s\n", pool=harness.LASTING)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    sock.connect(("127.0.0.1", r.port))
    c = harness.Wire(sock)
    c.send(make_request(body={"model": "m", "prompt": "x"}))
    wait_until(lambda: in_kernel(r, c) > UNSENT / 2, "the kernel is full")
    begun = time.monotonic()
    while time.monotonic() < begun + 6:
        data = c.sock.recv(600)
        assert data, "cut"
        wait_until(lambda now=time.monotonic(): time.monotonic() > now + 0.1, "the reader's pace")
    assert "client_stalled" not in r.log()
    c.reset()
    r.wait_log("end=client_gone")


def test_b7_a_reader_that_stops_for_good_is_cut(router, worker):
    r = router([worker("w0", pour(12))], keys="threads = 1\nwrite_timeout = 300ms\n", pool=harness.LASTING)
    with r.connect() as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.send(make_request(body={"model": "m", "prompt": "x"}))
        r.wait_log("end=client_stalled")


# ---- B6: what clients say of KV transfers, and what engines answer ----

SENT_BY_CLIENT = {"kv_transfer_params": {"do_remote_decode": True, "remote_host": "169.254.169.254", "remote_port": 80},
                  "ec_transfer_params": {"a": 1}, "bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 2, "disagg_prefill_dp_rank": 3, "decode_tp_size": 8,
                  "vllm_xargs": {"kv_transfer_params": 1, "keep": 2}}
PROMPT = {"model": "m", "prompt": "hello", "max_tokens": 3}
TOLD = {"id": "x", "kv_transfer_params": {"kvx_token": "secret", "remote_host": "10.0.0.7"}, "choices": []}


def tells(x):
    x.answer(200, json.dumps(TOLD))


def forbidden_in(text):
    return [n for n in ("kv_transfer_params", "ec_transfer", "bootstrap_", "disagg", "decode_tp") if n in text]


@pytest.mark.parametrize("pool", ["", "policy = round_robin\nkv_connector = nixl\n", "policy = round_robin\nkv_connector = sglang\n", "kv_connector = nixl\n"])
@pytest.mark.parametrize("kind", ["length", "chunked", "large", "hashes", "escaped"])
def test_b6_unified_workers_see_no_transfer_fields(router, worker, pool, kind):
    """Whatever the policy, however the body comes and the names are spelled. (Where no connector is
    set, only bodies that routing reads.)"""
    if kind == "hashes" and "connector" not in pool:
        pytest.skip("such a body is not read")
    w = worker("w0", tells)
    r = router([w], pool=pool)
    body = {**PROMPT, **SENT_BY_CLIENT, "prompt": "hello" * (20000 if kind == "large" else 1)}
    text = json.dumps(body)
    if kind == "escaped":
        text = text.replace("kv_transfer", r"\u006bv_transfer").replace("bootstrap_", r"bootstrap\u005f")
    fields = {"X-Kvsteer-Prefix": "128b;1,2,3"} if kind == "hashes" else {}
    if kind == "chunked":
        with r.connect() as c:
            c.send("POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            c.send(b"".join(chunked(text.encode(), 9, 50, 11)))
            assert c.read_response().status == 200
    else:
        assert r.request("POST", "/v1/completions", text, fields).status == 200
    came = w.requests[0].body.decode()
    assert not forbidden_in(json.dumps(json.loads(came))), came
    assert json.loads(came) == {**PROMPT, "prompt": body["prompt"], "vllm_xargs": {"keep": 2}}
    assert len(came) == len(text), "blanks stand in their place"


def test_b6_ids_of_clients_name_no_peers(router, worker):
    """vLLM's P2P NCCL connector reads addresses from X-Request-Id."""
    w = worker("w0", tells)
    r = router([w])
    ident = "___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2_0123456789abcdef0123456789abcdef"
    assert r.request("POST", "/v1/completions", PROMPT, {"X-Request-Id": ident}).status == 200
    assert r.request("POST", "/v1/completions", PROMPT, {"X-Request-Id": "mine"}).status == 200
    assert "addr" not in w.requests[0].get("x-request-id") and w.requests[1].get("x-request-id") == "mine"


def test_b6_a_body_that_may_hide_them_is_refused(router, worker):
    w = worker("w0", tells)
    r = router([w])
    m = r.request("POST", "/v1/completions", '{"model":"m","prompt":NaN,"kv_transfer_params":{}}')
    assert m.status == 400 and not w.requests
    assert r.request("POST", "/v1/completions", '{"model":"m","prompt":NaN}').status == 200


def test_b6_bodies_stream_through_where_no_connector_is_set(router, worker):
    """A pool of unified workers whose policy reads no prompt: a large body reaches its worker before
    it is whole."""
    w = worker("w0", tells)
    r = router([w], pool="policy = round_robin\n")
    text = json.dumps({**PROMPT, "prompt": "x" * 200000})
    with r.connect() as c:
        c.send(make_request(body=None, path="/v1/completions").replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(text)) + text[:100000].encode())
        r.wait_metric(1, "kvsteer_worker_load")
        c.send(text[100000:])
        assert c.read_response().status == 200
    assert w.requests[0].body.decode() == text


@pytest.mark.parametrize("how", ["length", "chunks", "events", "null"])
def test_b6_clients_are_told_nothing_of_transfers(router, worker, how):
    """Engines tell hosts, blocks and tokens in their responses: they end at the router, and lengths
    stay."""
    text = json.dumps(TOLD)

    def handler(x):
        if how == "length":
            return x.answer(200, text)
        if how == "null":
            return x.answer(200, json.dumps({**TOLD, "kv_transfer_params": None}))
        x.begin(content_type="text/event-stream" if how == "events" else "application/json")
        pieces = [f"data: {text}\n\n", "data: [DONE]\n\n"] if how == "events" else text
        for p in pieces:
            x.chunk(p)
        x.end()
    r = router([worker("w0", handler)])
    body = {**PROMPT, "stream": how == "events"}
    m = r.request("POST", "/v1/completions", body)
    assert m.status == 200 and b"secret" not in m.body and b"10.0.0.7" not in m.body
    got = json.loads(m.body.decode().removeprefix("data: ").partition("\n\n")[0])
    assert got == ({**TOLD, "kv_transfer_params": None} if how == "null" else {"id": "x", "choices": []})
    if how == "length":
        assert len(m.body) == len(text)


@pytest.mark.parametrize("where", ["each", "first", "last"])
@pytest.mark.parametrize("place", ["front", "middle", "back"])
def test_b6_streams_tell_nothing_of_transfers(router, worker, where, place):
    """In whatever event of a stream, at whatever place in it."""
    secret = {"kv_transfer_params": {"kvx_token": "secret", "list": [1, {"a": "}"}]}}

    def event(i, n):
        choice = {"choices": [{"index": 0, "text": f"t{i}", "finish_reason": "stop" if i == n - 1 else None}]}
        tells = where == "each" or i == (0 if where == "first" else n - 1)
        parts = {"front": [secret, {"id": "x", "object": "text_completion"}, choice], "middle": [{"id": "x", "object": "text_completion"}, secret, choice],
                 "back": [{"id": "x", "object": "text_completion"}, choice, secret]}[place]
        return json.dumps({k: v for p in parts if tells or p is not secret for k, v in p.items()})

    def handler(x):
        x.begin()
        for i in range(8):
            x.event(event(i, 8))
        x.event("[DONE]")
        x.end()
    r = router([worker("w0", handler)])
    m = r.request("POST", "/v1/completions", {**PROMPT, "stream": True})
    assert b"secret" not in m.body
    events = m.body.decode().split("\n\n")
    assert [json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in events[:8]] == [f"t{i}" for i in range(8)]
    assert events[8:] == ["data: [DONE]", ""]


def test_b6_pass_lets_both_through(router, worker):
    w = worker("w0", tells)
    r = router([w], pool="kv_connector = nixl\nkv_params = pass\n")
    body = json.dumps({**PROMPT, **SENT_BY_CLIENT})
    m = r.request("POST", "/v1/completions", body, {"X-Request-Id": "___prefill_addr_a:1___decode_addr_b:2_x"})
    assert w.requests[0].body.decode() == body and m.json() == TOLD
    assert "addr" in w.requests[0].get("x-request-id")


def test_b6_decode_workers_tell_clients_nothing(pd):
    r, _, ds = pd(decode=[tells])
    m = r.request(body={"model": "m", "messages": [user(harness.text(2, 7))]})
    assert m.status == 200 and m.json() == {"id": "x", "choices": []}


# ---- B17: who keeps connections to the metrics ----

@pytest.mark.parametrize("kind", ["idle", "silent", "half", "unread", "body"])
def test_b17_nobody_is_locked_out_of_the_metrics(router, worker, kind):
    """More connections than the address takes, of every kind that asks for nothing: who asks is
    answered at once."""
    r = router([worker("w0")])
    get = "GET /metrics HTTP/1.1\r\nHost: r\r\n"
    sent = {"idle": get + "\r\n", "silent": "", "half": get, "unread": (get + "\r\n") * 300, "body": get + "Content-Length: 5\r\n\r\n"}[kind]
    held = []
    for _ in range(80):
        c = harness.Wire(socket.create_connection(("127.0.0.1", r.metrics_port), harness.DEADLINE))
        held.append(c)
        c.send(sent)
        if kind == "idle":
            assert c.read_response().status == 200
    with harness.Wire(socket.create_connection(("127.0.0.1", r.metrics_port), 3)) as c:
        c.sock.settimeout(3)  # every one of the limits that held them up is longer
        c.send(get + "\r\n")
        assert c.read_response().status == 200
    for c in held:
        c.close()


def test_b17_idle_connections_to_the_metrics_end_soon(router, worker):
    r = router([worker("w0")])
    with harness.Wire(socket.create_connection(("127.0.0.1", r.metrics_port), harness.DEADLINE)) as c:
        c.send("GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n")
        assert c.read_response().status == 200
        assert c.at_eof()  # within the test's deadline: 5 s, not 75


# ---- B22: connections to workers at max_connections ----

def test_b22_a_full_router_keeps_its_connections_to_workers(router, worker):
    """Clients that wait to be accepted are no reason to close them: nothing is short."""
    w = worker("w0")
    r = router([w], keys="threads = 1\nmax_connections = 2\n", pool="upstream_idle = 1h\n")
    with r.connect() as a, r.connect() as b:
        for _ in range(3):
            a.send(make_request(body=PROMPT, path="/v1/completions"))
            assert a.read_response().status == 200
        with r.connect() as waits:
            r.wait_log("max_connections is reached")
            wait_until(lambda: r.metric("kvsteer_accept_paused_total") >= 2, "it was tried again")
            a.send(make_request(body=PROMPT, path="/v1/completions"))
            assert a.read_response().status == 200
            b.close()
            waits.send(make_request("GET", "/health"))
            assert waits.read_response().status == 200
    assert len({x.conn_no for x in w.exchanges}) == 1


# ---- B20: total_timeout while the client is slow ----

def test_b20_total_timeout_holds_while_the_client_sends(router, worker):
    """A client that stops amid a body that streams through keeps its worker no longer."""
    w = worker("w0")
    r = router([w], pool="policy = round_robin\ntotal_timeout = 1s\n" + harness.LASTING, keys="body_timeout = 1h\n")
    with r.connect() as c:
        c.send("POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 200000\r\n\r\n" + "x" * 100000)
        r.wait_metric(1, "kvsteer_worker_load")
        r.wait_log("end=worker_timeout|end=client_timeout")
        r.wait_idle()
