"""One line in the log for each admin call that changes something: who, what, how it ended."""
import os
import re
import socket
import subprocess

import pytest

import harness
from harness import wait_until, worker_conf

harness.become_subreaper()

LINE = re.compile(r"notice +audit: (\S+) (\S+) status=(\d+) uid=(\d+) pid=(\d+)\n")


def audits(r):
    return [m.groups() for m in LINE.finditer(r.log())]


# method, path, body, status: each leaves one line.
CHANGES = [
    ("POST", "log_level", {"level": "info"}, 200),
    ("POST", "log_level", {"level": "canary-body"}, 400),
    ("POST", "workers", {"name": "w9", "url": "http://127.0.0.1:9", "worker_key": "canary-body"}, 201),
    ("POST", "workers", {"name": "w9", "url": "http://127.0.0.1:9"}, 409),
    ("POST", "workers/w0/drain", None, 202),
    ("POST", "workers/w0/undrain", None, 202),
    ("POST", "workers/nobody/drain", None, 404),
    ("DELETE", "workers/w9?drain=1s", None, 202),
    ("POST", "pools/default/generation", None, 200),
    ("POST", "finish_session?session_id=canary-body", None, 200),
    ("POST", "reload", None, 200),
    ("PUT", "status", None, 405),
    ("POST", "no/such/call", None, 404),
]


@pytest.mark.parametrize("n", range(len(CHANGES)))
def test_each_change_is_one_line(router, worker, n):
    method, path, body, status = CHANGES[n]
    r = router([worker("w0")])
    made = [r.admin(m, p, b)[0] for m, p, b, _ in CHANGES[:n] if p.startswith("workers")]
    before = len(made)
    if made:
        r.wait_log(LINE.pattern, count=before)
    assert r.admin(method, path, body)[0] == status
    r.wait_log(LINE.pattern, count=before + 1)
    assert audits(r)[before:] == [(method, "/admin/v1/" + path.split("?")[0], str(status), str(os.getuid()), str(os.getpid()))]
    assert "canary-body" not in "".join(line for line in r.log().splitlines() if "audit:" in line)


def test_who_only_looks_leaves_none(router, worker):
    r = router([worker("w0")])
    for path in ("status", "workers", "workers/w0", "tenants", "config", "metrics"):
        r.admin("GET", path)
    r.explain({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    r.admin("POST", "log_level", {"level": "info"})
    r.wait_log(r"audit: POST \S+log_level ")
    assert len(audits(r)) == 1


def test_it_names_the_process_that_asked(router, worker):
    r = router([worker("w0")])
    p = subprocess.Popen([harness.program("kvsteerctl"), "-s", r.admin_path, "drain", "w0"], stdout=subprocess.DEVNULL)
    assert p.wait(harness.DEADLINE) == 0
    r.wait_log(LINE.pattern)
    assert audits(r)[0][1:] == ("/admin/v1/workers/w0/drain", "202", str(os.getuid()), str(p.pid))


def test_a_call_whose_client_left_is_told_too(router, worker):
    """An upgrade goes on without whoever asked for it, and is still one line."""
    r = router([worker("w0")], allow_errors=["upgrade"])
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(r.admin_path)
    s.sendall(b"POST /admin/v1/upgrade HTTP/1.1\r\nHost: a\r\n\r\n")
    s.close()
    r.follow(int(r.wait_log(r"upgrade: process (\d+) takes over").group(1)))
    r.wait_former()
    wait_until(lambda: r.admin("GET", "status")[1]["pid"] == r.proc.pid, "the new one answers")
    assert [a[1:3] for a in audits(r)] in ([("/admin/v1/upgrade", "0")], [("/admin/v1/upgrade", "200")])
