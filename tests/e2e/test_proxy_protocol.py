"""The PROXY protocol (listen = ADDRESS proxy_protocol): a balancer says first who its client is."""
import os
import re
import socket
import struct
import subprocess
import tempfile

import pytest

import harness
from harness import make_request, wait_until, worker_conf

harness.become_subreaper()

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
BALANCER, STRANGER = "127.0.1.1", "127.0.0.9"
TRUSTED = "trusted_proxies = 127.0.1.0/24 10.0.0.0/8\nthreads = 1\n"
REFUSED = "kvsteer_proxy_protocol_refused_total"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def crc32c(data):
    crc = 0xffffffff
    for b in data:
        crc ^= b
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def addresses(family, source):
    target = {socket.AF_INET: "198.51.100.1", socket.AF_INET6: "2001:db8::1"}[family]
    return socket.inet_pton(family, source) + socket.inet_pton(family, target) + struct.pack(">HH", 4711, 443)


def v2(command, family, body):
    return SIGNATURE + bytes([command, family]) + struct.pack(">H", len(body)) + body


def tlv(kind, value):
    return bytes([kind]) + struct.pack(">H", len(value)) + value


def summed(body, wrong=0):
    h = v2(0x21, 0x11, body + tlv(3, bytes(4)))
    return h[:-4] + struct.pack(">I", crc32c(h) ^ wrong)


V4, V6 = addresses(socket.AF_INET, "192.0.2.7"), addresses(socket.AF_INET6, "2001:db8::7")

# What comes first, the client (None: closed without a word), and X-Forwarded-For of the request.
ROWS = [
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", "192.0.2.7", None),
    (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n", "2001:db8::7", None),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:192.0.2.1 4711 443\r\n", "192.0.2.7", None),
    (b"PROXY UNKNOWN\r\n", BALANCER, None),
    (v2(0x21, 0x11, V4), "192.0.2.7", None),
    (v2(0x21, 0x21, V6), "2001:db8::7", None),
    (v2(0x20, 0x00, b""), BALANCER, None),
    (v2(0x20, 0x11, V4), BALANCER, None),
    (v2(0x21, 0x00, b""), BALANCER, None),
    (v2(0x21, 0x31, bytes(216)), BALANCER, None),
    (v2(0x21, 0x11, V4 + tlv(1, b"http/1.1") + tlv(2, b"llm.test")), "192.0.2.7", None),
    (v2(0x21, 0x11, V4 + tlv(0xee, bytes(4096 - 28 - 3))), "192.0.2.7", None),
    (summed(V4), "192.0.2.7", None),
    (summed(V4 + tlv(2, b"llm.test")), "192.0.2.7", None),
    # whom it names is believed only if he is trusted himself
    (v2(0x21, 0x11, V4), "192.0.2.7", "1.1.1.1"),
    (v2(0x21, 0x11, addresses(socket.AF_INET, "10.0.0.5")), "1.1.1.1", "1.1.1.1"),
    (v2(0x20, 0x00, b""), "1.1.1.1", "1.1.1.1"),
    # none of it
    (b"", None, None),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\n", None, None),
    (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 443\r\n", None, None),
    (b"PROXY TCP4 192.0.2.300 198.51.100.1 4711 443\r\n", None, None),
    (b"PROXY TCP4 2001:db8::7 2001:db8::1 4711 443\r\n", None, None),
    (b"PROXY UDP4 192.0.2.7 198.51.100.1 4711 443\r\n", None, None),
    (b"PROXY UNKNOWN " + b"x" * 100 + b"\r\n", None, None),
    (b"proxy TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", None, None),
    (b" PROXY UNKNOWN\r\n", None, None),
    (b"\r\nPROXY UNKNOWN\r\n", None, None),
    (v2(0x21, 0x11, V4) + v2(0x21, 0x11, V4), "400", None),
    (v2(0x11, 0x11, V4), None, None),
    (v2(0x2f, 0x11, V4), None, None),
    (v2(0x21, 0x51, V4), None, None),
    (v2(0x21, 0x21, V4), None, None),
    (v2(0x21, 0x11, V4 + b"\1\0\5abc"), None, None),
    (v2(0x21, 0x11, V4 + tlv(0xee, bytes(4096 - 28 - 2))), None, None),
    (summed(V4, wrong=1), None, None),
    (b"\x16\x03\x01\x02\x00\x01\x00", None, None),
]


def connect(port, source=BALANCER):
    return harness.Wire(socket.create_connection(("127.0.0.1", port), harness.DEADLINE, source_address=(source, 0)))


def is_closed(c):
    """True: the connection ends, without a byte."""
    try:
        return c.sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    w = harness.Worker("w0")
    r = harness.Router(tmp_path_factory.mktemp("balanced"), conf=worker_conf([w]), router_keys=TRUSTED, listen="127.0.0.1:0 proxy_protocol")
    r.wait_workers("w0")
    yield r, w
    r.stop()
    w.stop()


@pytest.mark.parametrize("n", range(len(ROWS)))
def test_what_comes_first(balanced, n):
    r, w = balanced
    first, client, xff = ROWS[n]
    w.clear()
    rid = f"proxy-{n}"
    before = r.metric(REFUSED, reason="malformed")
    headers = [("X-Request-Id", rid)] + ([("X-Forwarded-For", xff)] if xff else [])
    request = make_request(body=CHAT, headers=headers)
    with connect(r.port) as c:
        c.send(first + request)
        if client is None:
            assert is_closed(c)
        else:
            assert c.read_response("POST").status == (400 if client == "400" else 200)
    if client is None:
        assert not w.requests and rid not in r.log()
        r.wait_metric(before + 1, REFUSED, reason="malformed")
        return
    if client == "400":
        return
    assert r.wait_log(rf"id={rid} client=(\S+)").group(1) == client
    assert r.metric(REFUSED, reason="malformed") == before
    peer = BALANCER if client == BALANCER or first.startswith(SIGNATURE + b"\x20") else "10.0.0.5" if xff == client else client
    assert w.requests[0].all("x-forwarded-for") == [f"1.1.1.1, {peer}" if client == xff else peer]


@pytest.mark.parametrize("n", [0, 5, 13])
def test_byte_by_byte(balanced, n):
    r, w = balanced
    first, client, _ = ROWS[n]
    rid = f"cut-{n}"
    with connect(r.port) as c:
        c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for b in first:
            c.send(bytes([b]))
        for _ in range(2):  # it says so once for all its requests
            c.send(make_request(body=CHAT, headers=[("X-Request-Id", rid)]))
            assert c.read_response("POST").status == 200
    r.wait_log(rf"id={rid} client={re.escape(client)} ", count=2)


def test_strangers_are_closed_at_once(balanced):
    r, w = balanced
    before = r.metric(REFUSED, reason="stranger")
    for first in (b"PROXY TCP4 127.0.1.1 127.0.0.1 1 2\r\n", b""):
        with connect(r.port, STRANGER) as c:
            try:
                c.send(first + make_request(body=CHAT))
            except ConnectionError:
                continue
            assert is_closed(c)
    r.wait_metric(before + 2, REFUSED, reason="stranger")
    r.wait_log(rf"a connection of {STRANGER} is closed: .*trusted_proxies")


def test_it_must_come_within_the_heads_time(router, worker):
    """Whether nothing came, or a part of it; the request's own time begins after it."""
    r = router([worker("w0")], keys=TRUSTED + "head_timeout = 300ms\n", listen="127.0.0.1:0 proxy_protocol")
    for first in (b"", b"PROXY TCP4 192.0.2.7 ", SIGNATURE + b"\x21"):
        with connect(r.port) as c:
            c.send(first)
            assert is_closed(c)
    r.wait_metric(3, REFUSED, reason="timeout")
    with connect(r.port) as c:
        c.send(b"PROXY UNKNOWN\r\nPOST / HT")
        assert c.read_response("POST").status == 408


def test_a_balancers_check_that_only_connects_is_nothing(balanced):
    r, w = balanced
    before = [r.metric(REFUSED, reason=k) for k in ("malformed", "timeout", "stranger")]
    accepted = r.metric("kvsteer_connections_accepted_total")
    connect(r.port).close()
    r.wait_metric(accepted + 1, "kvsteer_connections_accepted_total")
    wait_until(lambda: r.metric("kvsteer_connections", side="client") == 0, "it is gone")
    assert [r.metric(REFUSED, reason=k) for k in ("malformed", "timeout", "stranger")] == before
    with connect(r.port) as c:
        c.send(b"PROXY TCP4 192.0.2.7")
    r.wait_metric(before[0] + 1, REFUSED, reason="malformed")


def test_one_address_with_and_one_without(router, worker):
    """A reload turns it on and off; each address has its own."""
    w = worker("w0")
    other = harness.free_port()
    r = router([w], keys=TRUSTED, listen=f"127.0.0.1:0 127.0.0.1:{other} proxy_protocol")
    r.wait_log(rf"listening on http://127.0.0.1:{other} on 1 thread, with the PROXY protocol")
    assert r.request(body=CHAT).status == 200

    def status(port, first=b""):
        with connect(port) as c:
            c.send(first + make_request(body=CHAT))
            try:
                return c.read_response("POST").status
            except (harness.Closed, ConnectionError):
                return None
    line = b"PROXY UNKNOWN\r\n"
    assert (status(other), status(other, line), status(r.port, line)) == (None, 200, 400)
    r.listen = f"127.0.0.1:0 127.0.0.1:{other}"
    assert r.reload(worker_conf([w]))[0]
    assert (status(other), status(other, line)) == (200, 400)
    r.listen = f"127.0.0.1:0 127.0.0.1:{other} proxy_protocol"
    assert r.reload(worker_conf([w]))[0]
    assert (status(other), status(other, line)) == (None, 200)
    assert r.upgrade()[0] == 200
    r.wait_former()
    assert (status(other), status(other, line)) == (None, 200)


def test_over_a_unix_socket(router, worker):
    w = worker("w0")
    with tempfile.TemporaryDirectory(prefix="u") as folder:
        path = os.path.join(folder, "llm.sock")
        r = router([w], keys="trusted_proxies = unix:\nthreads = 2\n", listen=f"127.0.0.1:0 unix:{path} proxy_protocol", allow_errors=["reload failed"])
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(harness.DEADLINE)
        s.connect(path)
        with harness.Wire(s) as c:
            c.send(v2(0x21, 0x21, V6) + make_request(body=CHAT, headers=[("X-Request-Id", "u-1")]))
            assert c.read_response("POST").status == 200
        r.wait_log(r"id=u-1 client=2001:db8::7 ")
        r.listen = f"127.0.0.1:0 unix:{path}"
        done, answer = r.reload(worker_conf([w]))
        assert not done and "restart" in str(answer)


@pytest.mark.parametrize("listen, keys, said", [
    ("proxy_protocol 127.0.0.1:0", TRUSTED, "behind no address"), ("127.0.0.1:0 proxy_protocol proxy_protocol", TRUSTED, "behind no address"),
    ("127.0.0.1:0 proxy_protocol", "", "nobody may use"), ("127.0.0.1:0 proxy-protocol", TRUSTED, "no port"),
])
def test_what_cannot_be(tmp_path, listen, keys, said):
    conf = tmp_path / "c.conf"
    conf.write_text(f"[router]\nadmin_socket = none\nlisten = {listen}\n{keys}[worker w]\nurl = http://127.0.0.1:1\n")
    p = subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert p.returncode == 1 and said in p.stderr, p.stderr
