"""KVX/1 (engine-worker/kvx/kvx_frame.h) for tests: a decode worker made of a script, and a proxy
between two engines that does wrong at a given byte of a given frame."""

import collections
import socket
import struct
import threading

HELLO, HELLO_OK, PULL, PULL_OK, BLOCK, CREDIT, END, RELEASE, HEARTBEAT, HEARTBEAT_OK, CANCEL, PING, PONG = range(1, 14)
ERR = 15
PROTOCOL, COMPAT, WRONG_ENGINE, LEASE_GONE = 1, 2, 3, 4
BLOCK_BYTES = 144

TABLE = []
for _i in range(256):
    _c = _i
    for _ in range(8):
        _c = _c >> 1 ^ (0x82F63B78 if _c & 1 else 0)
    TABLE.append(_c)


def crc32c(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ TABLE[(crc ^ b) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame(kind, payload=b"", stream=0, aux=0, crc=None):
    head = struct.pack("<4sBBHIIIQ", b"KVX1", kind, 0, 0, stream, len(payload), crc32c(payload) if crc is None else crc, aux)
    return head + struct.pack("<I", crc32c(head)) + payload


def text(s):
    return struct.pack("<H", len(s)) + s.encode()


def pull(params, skip=0, credit=1000, token=None):
    return text(params["remote_request_id"]) + bytes.fromhex(token or params["kvx_token"]) + struct.pack("<II", skip, credit)


def heartbeat(*leases):
    """Of (request, token in hex) each."""
    return frame(HEARTBEAT, struct.pack("<H", len(leases)) + b"".join(text(request) + bytes.fromhex(token) for request, token in leases))


class Frame:
    def __init__(self, raw):
        _, self.kind, _, _, self.stream, n, self.crc, self.aux = struct.unpack("<4sBBHIIIQ", raw[:28])
        assert raw[:4] == b"KVX1" and struct.unpack("<I", raw[28:32])[0] == crc32c(raw[:28]) and len(raw) == 32 + n
        self.raw, self.payload = raw, raw[32:]
        assert crc32c(self.payload) == self.crc

    def code(self):
        return struct.unpack("<H", self.payload[:2])[0]


def length(head):
    """Of the whole frame that begins with these 32 bytes."""
    return 32 + struct.unpack("<I", head[12:16])[0]


class Peer:
    """A decode worker's end of a connection to a prefill worker."""

    def __init__(self, port, compat=None):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.compat = compat

    def hello(self, compat, version=1, block_bytes=BLOCK_BYTES, caps=1):
        self.send(frame(HELLO, struct.pack("<HBB36s32sQHBBII", version, 2, 0, b"tester", compat, block_bytes, 16, 0, 0, 65536, caps)))

    def greet(self, compat):
        self.hello(compat)
        f = self.read()
        assert f.kind == HELLO_OK
        return f

    def send(self, data):
        self.sock.sendall(data)

    def exact(self, n):
        data = b""
        while len(data) < n:
            piece = self.sock.recv(n - len(data))
            if not piece:
                return None
            data += piece
        return data

    def read(self):
        """The next frame; None: the end of the connection."""
        try:
            head = self.exact(32)
            body = head and self.exact(length(head) - 32) if head and length(head) > 32 else b""
        except ConnectionError:
            return None
        return None if head is None or body is None else Frame(head + body)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Proxy:
    """Between a decode and a prefill worker. When the nth frame (from 0) of a kind and a stream
    passes to the decode worker, from byte `at` of it on: "cut" ends the connection, "reset" with
    RST, "stall" sends nothing more, "flip" turns a bit; a function is given the frame's bytes and
    returns others. It does so on every connection.
    """

    def __init__(self, target, kind=None, nth=0, at=0, what="cut"):
        self.target, self.kind, self.nth, self.at, self.what = target, kind, nth, at, what
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections, self.happened, self.is_over = 0, threading.Event(), False
        self.sockets, self.compat = [], None
        threading.Thread(target=self.accept, daemon=True).start()

    def params(self, params):
        return {**params, "remote_port": self.port}

    def accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            if self.is_over:
                a.close()
                return
            self.connections += 1
            try:
                b = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                a.close()
                continue
            self.sockets += [a, b]
            threading.Thread(target=self.upwards, args=(a, b), daemon=True).start()
            threading.Thread(target=self.downwards, args=(b, a), daemon=True).start()

    def upwards(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        self.end(b)

    def downwards(self, b, a):
        data, seen = b"", collections.Counter()
        try:
            while piece := b.recv(65536):
                data += piece
                while len(data) >= 32 and len(data) >= length(data[:32]):
                    raw, data = data[: length(data[:32])], data[length(data[:32]) :]
                    if raw[4] == HELLO_OK:
                        self.compat = raw[32 + 40 : 32 + 72]
                    stream = raw[8:12]
                    seen[stream] += raw[4] == self.kind
                    if raw[4] != self.kind or seen[stream] != self.nth + 1:
                        a.sendall(raw)
                    elif not self.act(raw, a):
                        return
        except OSError:
            pass
        self.end(a)

    def act(self, raw, a):
        """False: nothing more goes this way."""
        if callable(self.what):
            a.sendall(self.what(raw))
            self.happened.set()
            return True
        at = self.at if self.at >= 0 else len(raw) + self.at
        assert at < len(raw)
        if self.what == "flip":
            a.sendall(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
            self.happened.set()
            return True
        a.sendall(raw[:at])
        self.happened.set()
        if self.what == "reset":
            a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            a.shutdown(socket.SHUT_RD)  # who reads from it must let go
            a.close()
        elif self.what == "cut":
            self.end(a)
        return False

    @staticmethod
    def end(s):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def stop(self):
        self.is_over = True
        self.end(self.listener)
        self.listener.close()
        for s in self.sockets:
            self.end(s)
            s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
