"""Clients by a unix socket (listen = unix:/path)."""
import os
import socket
import stat
import subprocess
import tempfile
import threading

import pytest

import harness
from harness import make_request, wait_until, worker_conf

harness.become_subreaper()

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def path():
    """Paths of sockets are short, so it lies in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="u") as folder:
        yield os.path.join(folder, "llm.sock")


def dial(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(harness.DEADLINE)
    s.connect(path)
    return harness.Wire(s)


def ask(path, headers=()):
    with dial(path) as c:
        c.send(make_request(body=CHAT, headers=list(headers)))
        return c.read_response("POST")


def start(router, worker, path, keys=""):
    return router([worker("w0")], keys=f"threads = 2\n{keys}", listen=f"127.0.0.1:0 unix:{path}")


def check(tmp_path, listen, keys=""):
    conf = tmp_path / "c.conf"
    conf.write_text(f"[router]\nadmin_socket = {tmp_path}/admin.sock\nmetrics_listen = none\nlisten = {listen}\n{keys}[worker w]\nurl = http://127.0.0.1:1\n")
    return subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)


def test_a_client_by_a_unix_socket(router, worker, path):
    """Beside TCP: any local user may connect, the status names it, and the log tells how it came."""
    r = start(router, worker, path)
    st = os.stat(path)
    assert stat.S_ISSOCK(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o666
    r.wait_log(rf"listening on unix:{path} on 2 threads")
    assert ask(path, [("X-Request-Id", "by-unix"), ("X-Forwarded-For", "1.2.3.4")]).status == 200
    assert r.request(body=CHAT).status == 200
    r.wait_log(r"id=by-unix client=unix ")
    assert f"unix:{path}" in r.admin("GET", "status")[1]["listen"]
    # Pipelining, keep-alive, half of a request: as ever.
    with dial(path) as c:
        c.send(make_request(body=CHAT) * 2)
        assert [c.read_response("POST").status for _ in range(2)] == [200, 200]
        c.send(b"POST /v1/chat")
    r.stop()
    assert not os.path.exists(path), "its file goes at the end"


def test_many_clients_at_once_over_all_threads(router, worker, path):
    r = start(router, worker, path)
    wires = [dial(path) for _ in range(64)]
    for c in wires:
        c.send(make_request(body=CHAT))
    assert [c.read_response("POST").status for c in wires] == [200] * 64
    for c in wires:
        c.close()


def test_unix_peers_are_believed_only_if_named(router, worker, path):
    w = worker("w0")
    r = router([w], keys="threads = 1\n", listen=f"127.0.0.1:0 unix:{path}")
    xff = [("X-Forwarded-For", "1.1.1.1, 192.0.2.7"), ("X-Real-IP", "192.0.2.7")]
    for keys, client, upstream, real in (("trusted_proxies = 0.0.0.0/0 ::/0\n", "unix", "unknown", []),
                                         ("trusted_proxies = unix:\n", "192.0.2.7", "1.1.1.1, 192.0.2.7, unknown", ["192.0.2.7"])):
        r.router_keys = "threads = 1\n" + keys
        assert r.reload(worker_conf([w]))[0]
        rid = "u-" + client
        assert ask(path, xff + [("X-Request-Id", rid)]).status == 200
        r.wait_log(rf"id={rid} client={client} ")
        q = w.requests[-1]
        assert q.all("x-forwarded-for") == [upstream] and q.all("x-real-ip") == real


def test_a_dead_socket_is_replaced_a_live_one_refused(router, worker, path, tmp_path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(path)
    s.listen()
    p = check(tmp_path, f"unix:{path}")
    assert p.returncode == 1 and f"unix:{path}" in p.stderr and "in use" in p.stderr and "another path" in p.stderr
    r = harness.Router(tmp_path / "no", conf=worker_conf([worker("w0")]), listen=f"127.0.0.1:0 unix:{path}", expect_ready=False)
    assert r.proc.wait(harness.DEADLINE) == 1 and "in use" in r.log()
    r.kill()
    assert os.path.exists(path), "what is another's stays"
    s.close()
    assert check(tmp_path, f"unix:{path}").returncode == 0
    start(router, worker, path)
    assert ask(path).status == 200


@pytest.mark.parametrize("listen, said", [
    ("unix:", "no absolute path"), ("unix:llm.sock", "no absolute path"), ("unix://run/a.sock", "no absolute path"),
    ("unix:/" + "a" * 107, "too long"), ("unix:/run/a unix:/run/a", "given twice"), ("unix:/nowhere/at/all.sock", "No such file"),
])
def test_addresses_that_cannot_be(tmp_path, listen, said):
    p = check(tmp_path, listen)
    assert p.returncode == 1 and said in p.stderr, p.stderr


def test_a_file_that_is_no_socket_stays(tmp_path, path):
    with open(path, "w") as f:
        f.write("mine")
    p = check(tmp_path, f"unix:{path}")
    assert p.returncode == 1 and "File exists" in p.stderr
    with open(path) as f:
        assert f.read() == "mine"


def test_a_reload_opens_keeps_and_closes_it(router, worker, path):
    w = worker("w0")
    r = router([w], keys="threads = 2\n", allow_errors=["reload failed"])
    tcp = r.listen
    r.listen = f"{tcp} unix:{path}"
    assert r.reload(worker_conf([w]))[0]
    inode = os.stat(path).st_ino
    with dial(path) as c:
        assert r.reload(worker_conf([w], pool="prefix_ttl = 99s\n"))[0]
        assert os.stat(path).st_ino == inode, "kept as it is"
        r.listen = f"{tcp} unix:{path} unix:/nowhere/at/all.sock"
        assert not r.reload(worker_conf([w]))[0]
        assert os.stat(path).st_ino == inode
        r.listen = tcp
        assert r.reload(worker_conf([w]))[0]
        assert not os.path.exists(path)
        r.wait_log(rf"no longer listening on unix:{path}")
        c.send(make_request(body=CHAT))
        assert c.read_response("POST").status == 200, "who is connected stays"
    r.listen = f"{tcp} unix:{path}"
    assert r.reload(worker_conf([w]))[0] and ask(path).status == 200


def test_a_reload_that_fails_leaves_no_file(router, worker, path):
    w = worker("w0")
    r = router([w], allow_errors=["reload failed"])
    r.listen += f" unix:{path} unix:/nowhere/at/all.sock"
    assert not r.reload(worker_conf([w]))[0]
    assert not os.path.exists(path)


@pytest.mark.tsan
def test_an_upgrade_keeps_it(router, worker, path):
    """The same socket: nobody is refused meanwhile, and the old process leaves its file alone."""
    r = start(router, worker, path)
    inode = os.stat(path).st_ino
    is_over, refused = threading.Event(), []

    def keep_asking():
        while not is_over.is_set():
            try:
                assert ask(path).status == 200
            except Exception as e:
                refused.append(repr(e))
    t = threading.Thread(target=keep_asking)
    t.start()
    try:
        assert r.upgrade()[0] == 200
        r.wait_former()
        assert os.stat(path).st_ino == inode
        assert r.upgrade()[0] == 200
        r.wait_former()
    finally:
        is_over.set()
        t.join()
    assert not refused, refused[:3]
    assert os.stat(path).st_ino == inode and ask(path).status == 200
    r.stop()
    assert not os.path.exists(path)


def test_an_upgrade_may_drop_it(router, worker, path):
    w = worker("w0")
    r = router([w], listen=f"127.0.0.1:0 unix:{path}")
    r.listen = "127.0.0.1:0"
    r.write_conf(worker_conf([w]))
    assert r.upgrade()[0] == 200
    r.wait_former()
    wait_until(lambda: not os.path.exists(path), "its file is gone")
