"""What one client may cost: each row of the security review (B1, B7, B8 ...) that a single client
could use, named after it."""
import json

import pytest

import harness
from harness import make_request, wait_until
from routing import OPEN, user
from test_pd import POOL, pd, prefilled  # noqa: F401 (a fixture)
from test_responses import PATH, Store, create

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
