"""A reader of stderr that stops: it costs lines of the log, counted, and never service."""
import os
import re
import socket
import threading

import pytest

import harness
from harness import wait_until

BATCH = 250
PLAIN = b"GET /not-here HTTP/1.1\r\nHost: r.test\r\n\r\n"


class Reader:
    """The reading end of the router's stderr: reads until the router is up, then only when told."""

    def __init__(self, kind, copy_path):
        self.copy_path = copy_path
        if kind == "pipe":
            self.fd, self.far = os.pipe()
        else:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if kind == "stream" else socket.SOCK_DGRAM)
            self.fd, self.far = near.detach(), far.detach()
        self.thread = None

    def read_until(self, pattern):
        """Copies what comes to the router's log, in a thread of its own."""
        def run():
            text = b""
            with open(self.copy_path, "ab") as copy:
                while not re.search(pattern, text):
                    piece = os.read(self.fd, 65536)
                    if not piece:
                        return
                    text += piece
                    copy.write(piece)
                    copy.flush()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def close(self):
        os.close(self.far)
        os.close(self.fd)


@pytest.fixture(params=["pipe", "stream", "datagram"])
def reader(request, tmp_path):
    os.makedirs(tmp_path / "r0")
    r = Reader(request.param, tmp_path / "r0" / "kvsteerd.log")
    yield r
    r.close()


def start(router, reader, **kw):
    reader.read_until(rb" is up: ")
    return router(preexec=lambda: os.dup2(reader.far, 2), wait=False, **kw)


def ask(r, n):
    """n requests, pipelined; each is answered, and has its line in the access log."""
    with r.connect() as c:
        for _ in range(n // BATCH):
            c.send(PLAIN * BATCH)
            got = b""
            while got.count(b"HTTP/1.1 404 ") < BATCH or not got.endswith(b"}"):
                piece = c.sock.recv(1 << 20)
                assert piece, "the router closed"
                got += piece


def test_a_reader_of_the_log_that_stops_costs_lines_and_no_request(router, worker, reader):
    """100,000 requests are served, the lines that found no room are counted, and SIGTERM ends it:
    the router's stop() insists on that."""
    w = worker("w0")
    r = start(router, reader, workers=[w])
    r.wait_workers("w0")
    ask(r, 100_000)
    assert r.chat([{"role": "user", "content": "hi"}]).status == 200
    assert r.metric("kvsteer_log_lines_lost_total") > 50_000
    r.stop()


def test_a_reader_that_goes_on_is_told_how_many_lines_were_lost(router, worker, reader):
    r = start(router, reader, workers=[worker("w0")])
    reader.thread.join()
    while r.metric("kvsteer_log_lines_lost_total") == 0:
        ask(r, 5_000)
    reader.read_until(rb"lines of this log were lost")
    reader.thread.join()
    told = wait_until(lambda: re.search(r"(\d+) lines of this log were lost", r.log()), "the number")
    assert 0 < int(told.group(1)) <= r.metric("kvsteer_log_lines_lost_total")
    reader.read_until(rb"stopped\n")
    r.stop()
    assert "stopped" in harness.wait_until(lambda: "stopped" in r.log() and r.log(), "its last line")
