"""Workers on unix sockets (C24)."""
import os
import socket
import tempfile
import threading

import pytest

import harness

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}


class UnixWorker(harness.Worker):
    """The same worker, on a unix socket too, by which it is known."""

    def __init__(self, path, name, handler=harness.answer_ok):
        super().__init__(name, handler)
        self.path = path
        self.url = "unix:" + path
        self.listen_unix()

    def listen_unix(self):
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.unix.bind(self.path)
        self.unix.listen(64)
        threading.Thread(target=self._accept_unix, args=(self.unix,), daemon=True).start()

    def _accept_unix(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            wire = harness.Wire(sock)
            self.wires.add(wire)
            threading.Thread(target=self._serve, args=(wire, 0), daemon=True).start()

    def stop_unix(self):
        self.unix.shutdown(socket.SHUT_RDWR)
        self.unix.close()
        os.unlink(self.path)
        for wire in list(self.wires):
            wire.sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def unix_worker():
    """Paths of sockets are short, so they lie in a folder of their own."""
    made = []
    with tempfile.TemporaryDirectory(prefix="u") as folder:
        def make(name):
            made.append(UnixWorker(os.path.join(folder, name + ".sock"), name))
            return made[-1]
        yield make
        for w in made:
            w.unix.close()
            w.stop()


def test_c24_a_worker_on_a_unix_socket(router, worker, unix_worker):
    """Beside one on TCP: probed, listed, sent to, with the base of its cache; Host is localhost."""
    u, w = unix_worker("u"), worker("w")
    r = router([u, w], pool="policy = round_robin\n", keys="expose_worker = on\n")
    seen = {r.request(body=CHAT).get("x-kvsteer-worker") for _ in range(4)}
    assert seen == {"u", "w"}
    m = u.requests[0]
    assert m.get("host") == "localhost" and m.target == "/v1/chat/completions" and m.json() == CHAT
    assert r.admin("GET", "workers/u")[1]["url"] == u.url
    assert any(p.target == "/v1/models" for p in u.probes)
    assert len(w.requests) == 2, "its TCP port is nobody's"


def test_c24_streams_and_big_bodies(router, unix_worker):
    def stream(x):
        x.begin()
        for i in range(50):
            x.event('{"choices":[{"delta":{"content":"a"},"index":0}]}')
        x.event("[DONE]")
        x.end()
    u = unix_worker("u")
    r = router([u])
    u.handler = stream
    m = r.request(body=dict(CHAT, stream=True))
    assert m.status == 200 and m.body.count(b"data:") == 51
    u.handler = lambda x: x.answer(200, "y" * 3000000)
    m = r.request(body=dict(CHAT, pad="z" * 3000000))
    assert m.status == 200 and len(m.body) == 3000000 and len(u.requests[-1].body) > 3000000


def test_c24_a_socket_that_goes_and_comes_back(router, worker, unix_worker):
    """A request goes elsewhere at once; the worker is back when its engine is."""
    u, w = unix_worker("u"), worker("w")
    r = router([u, w], pool="policy = round_robin\n")
    u.stop_unix()
    for _ in range(4):
        assert r.request(body=CHAT).status == 200
    r.wait_workers("u", state="unhealthy")
    assert len(w.requests) == 4
    u.listen_unix()
    r.wait_workers("u")
    for _ in range(2):
        assert r.request(body=CHAT).status == 200
    assert u.requests


def test_c24_flags_and_the_admin_api(router, unix_worker):
    u, v = unix_worker("u"), unix_worker("v")
    admin = os.path.join(os.path.dirname(u.path), "admin.sock")
    r = router(args=["--worker-urls", "unix://" + u.path, "--port", "0", "--prometheus-port", "0", "--admin-socket", admin])
    r.admin_path = admin
    r.wait_workers("u.sock")
    status, answer = r.admin("POST", "workers", {"url": v.url})
    assert status == 201, answer
    r.wait_workers("v.sock")
    assert r.request(body=CHAT).status == 200


def test_c24_prefill_and_decode_are_refused(router, unix_worker):
    u = unix_worker("u")
    with pytest.raises(AssertionError, match="a prefill or decode worker cannot be a unix socket"):
        router(conf=f"[worker u]\nurl = {u.url}\nrole = prefill\n[worker d]\nurl = http://127.0.0.1:1\nrole = decode\n", wait=False)
