"""kvsteerctl against a live daemon: every command in both forms, and exit codes that scripts can trust."""
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest

import harness
from harness import Hold, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}


def ctl(r, *args, **kw):
    path = r if isinstance(r, str) else r.admin_path
    return subprocess.run([harness.program("kvsteerctl"), "-s", path, *args], capture_output=True, text=True, timeout=3 * harness.DEADLINE, **kw)


def ok(r, *args, **kw):
    p = ctl(r, *args, **kw)
    assert p.returncode == 0 and p.stderr == "", (args, p)
    return p.stdout


def as_json(r, *args, **kw):
    return json.loads(ok(r, "--json", *args, **kw))


def test_status_says_what_the_daemon_does(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", hold), worker("w1")
    r = router([w0, w1], pool="policy = least_requests\n")
    w1.healthy = False
    r.wait_workers("w1", state="unhealthy")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        text, told = ok(r, "status"), as_json(r, "status")
        assert told["guards"]["taken"] - told["guards"]["dropped"] == 1
        assert told["threads"] >= 1 and told["version"] in text and told["uptime_ms" if "uptime_ms" in told else "uptime"] >= 0
        assert [p["policy"] for p in told["pools"]] == ["least_requests"]
        states = {w["name"]: (w["state"], w["load"]) for w in told["workers"]}
        assert states == {"w0": ("healthy", 1), "w1": ("unhealthy", 0)}
        assert re.search(r"w1 .*unhealthy", text) and "least_requests" in text
        assert "1 in flight, 0 waiting, 0 ended, 0 errors" in text
        hold.release()
        assert c.read_response("POST").status == 200


def test_status_counts_hits_and_errors(router, worker):
    """The share of recent prompts that workers were believed to hold; an answer of 500 and one that breaks off are errors, 404 is none."""
    def answer(x):
        if b"give up" in x.request.body:
            x.answer(status=500, body=b"{}")
        elif b"break" in x.request.body:
            x.begin()
            x.wire.close()
        else:
            harness.answer_ok(x)
    r = router([worker("w0", answer)])
    told = as_json(r, "status")
    assert told["hit_share"] is None and told["workers"][0]["hit_share"] is None and " - of recent prompts" in ok(r, "status")
    for _ in range(4):
        assert r.request(body=CHAT).status == 200
    told = as_json(r, "status")
    w0 = told["workers"][0]
    assert w0["prompt_blocks"] > 0 and w0["prompt_blocks"] * 3 == w0["matched_blocks"] * 4 and told["hit_share"] == w0["hit_share"] == 0.75
    metrics = r.metrics()
    labels = '{worker="w0",pool="default",role="unified"}'
    assert metrics["kvsteer_worker_prompt_blocks_total" + labels] == w0["prompt_blocks"] and metrics["kvsteer_worker_matched_blocks_total" + labels] == w0["matched_blocks"]
    text = ok(r, "status")
    assert "75% of recent prompts" in text and re.search(r"^w0 +healthy +0 +4 +75% +0 ", text, re.M)
    assert r.request(path="/nope", body=CHAT).status == 404
    assert r.request(body={"prompt": "give up"}, path="/v1/completions").status == 500
    with r.connect() as c:
        c.send(make_request(body={"prompt": "break"}, path="/v1/completions"))
        assert c.read_response("POST").status == 502, "nothing was shown: the client gets an error, not a stream"
    wait_until(lambda: as_json(r, "status")["counters"]["requests_ended"] == 7, "all are counted")
    assert as_json(r, "status")["counters"]["requests_errors"] == 2


def test_workers_as_table_and_as_json(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0, w1])
    rows = ok(r, "workers").splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["w0", "w1"]
    assert len({row.rstrip().find("healthy") for row in rows[1:]}) == 1, "columns are in line"
    both = as_json(r, "workers")["workers"]
    assert [w["url"] for w in both] == [w0.url, w1.url]
    for key in ("name", "url", "pool", "role", "state", "reason", "load", "progress_age_ms", "blocks", "breaker", "requests", "failures", "origin"):
        assert key in both[0], key
    one = as_json(r, "workers", "w1")
    assert set(one) >= set(both[1]) and all(one[key] == both[1][key] for key in ("name", "url", "pool", "role", "state", "requests", "origin"))
    assert w1.url in ok(r, "workers", "w1") and w0.url not in ok(r, "workers", "w1")


def test_drain_and_undrain_with_a_request_in_flight(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", hold), worker("w1")
    r = router([w0, w1], pool="policy = round_robin\n")
    c, d = r.connect(), r.connect()
    for wire in (c, d):
        wire.send(make_request(body=CHAT))
    w0.wait_requests(1)
    ok(r, "drain", "w0")
    assert as_json(r, "workers", "w0")["state"] == "draining" and as_json(r, "workers", "w0")["load"] == 1
    for _ in range(4):
        assert r.request(body=CHAT).json()["worker"] == "w1"
    hold.release()
    assert {c.read_response("POST").status, d.read_response("POST").status} == {200}
    c.close(), d.close()
    ok(r, "undrain", "w0")
    assert as_json(r, "workers", "w0")["state"] == "healthy"
    assert ctl(r, "drain", "none").returncode == 1 and ctl(r, "undrain", "none").returncode == 1


def test_add_and_remove(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0])
    ok(r, "add", "w1", w1.url, "max_requests=7", "health_path=/v1/models")
    r.wait_workers("w1")
    told = as_json(r, "workers", "w1")
    assert told["max_requests"] == 7 and told["origin"] == "api"
    for bad in (["w1", w1.url], ["w0", "http://127.0.0.1:1"]):
        p = ctl(r, "add", *bad)
        assert p.returncode == 1 and p.stderr.strip(), "it exists"
    for bad in (["x", "ftp://x"], ["x y", "http://127.0.0.1:1"], ["x", "http://127.0.0.1:1", "pool=none"], ["x", "http://127.0.0.1:1", "no_such_key=1"]):
        p = ctl(r, "add", *bad)
        assert p.returncode == 1 and p.stderr.strip() and "Traceback" not in p.stderr, bad
    assert {w["name"] for w in as_json(r, "workers")["workers"]} == {"w0", "w1"}
    assert ok(r, "remove", "w1") == "w1: removed, 0 requests in flight\n"
    assert r.admin("GET", "workers/w1")[0] == 404
    assert ctl(r, "remove", "w1").returncode == 1


def test_drain_with_a_timeout_waits_until_nothing_is_in_flight(router, worker):
    hold = Hold()
    w0 = worker("w0", hold)
    r = router([w0])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        p = ctl(r, "drain", "w0", "--timeout", "200ms")
        assert p.returncode == 1 and "w0 has 1 requests in flight after 200ms" in p.stderr
        assert as_json(r, "workers", "w0")["state"] == "draining"
        hold.release()
        assert c.read_response("POST").status == 200
    ok(r, "drain", "w0", "--timeout", "1h")
    assert ctl(r, "drain", "w0", "--timeout", "soon").returncode == 2
    assert ctl(r, "drain", "nobody", "--timeout", "1s").returncode == 1


def test_remove_with_drain_waits_for_the_stream(router, worker):
    hold = Hold()
    w0, w1 = worker("w0", hold), worker("w1")
    r = router([w0])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w0.wait_requests(1)
        ok(r, "add", "w1", w1.url)
        ok(r, "remove", "w0", "--drain", "1h")
        assert as_json(r, "workers", "w0")["state"] == "draining"
        hold.release()
        assert c.read_response("POST").status == 200
    wait_until(lambda: ctl(r, "workers", "w0").returncode == 1, "it goes")
    assert ctl(r, "remove", "w1", "--drain", "soon").returncode in (1, 2)


def test_explain_shows_the_terms_of_the_score(router, worker, tmp_path):
    r = router([worker("w0"), worker("w1")], pool="cost = prefill_cost\n")
    path = tmp_path / "body.json"
    path.write_text(json.dumps(CHAT))
    rows = [line.split() for line in ok(r, "explain", "--file", str(path)).splitlines()]
    title = next(row for row in rows if row[:1] == ["WORKER"])
    assert title == ["WORKER", "STATE", "DEPTH", "CACHED", "LOAD", "UNCACHED", "QUEUED", "DECODE", "RECENT", "SCORE", "OVERLOADED", "EXCLUDED"]
    assert {row[0] for row in rows if row and row[0] in ("w0", "w1")} == {"w0", "w1"}
    assert all(len(row) == len(title) for row in rows if row and row[0] in ("w0", "w1")), "each term in its column"
    r.admin("POST", "workers/w0/drain")
    out = next(row for row in map(str.split, ok(r, "explain", str(path)).splitlines()) if row[:1] == ["w0"])
    assert out[5:9] == ["-"] * 4 and out[-1] == "state", "no terms of one that was not asked"


def test_explain_from_a_file_and_from_a_pipe(router, worker, tmp_path):
    r = router([worker("w0"), worker("w1")], keys="allow_pin = on\n")
    path = tmp_path / "body.json"
    path.write_text(json.dumps(CHAT))
    chosen = r.request(body=CHAT).json()["worker"]
    r.wait_idle()  # the guard is dropped after the last byte
    before = r.metrics()
    for told in (as_json(r, "explain", str(path)), as_json(r, "explain", "-", input=json.dumps(CHAT))):
        assert told["chosen"] == chosen and told["reason"] == "prefix_hit" and len(told["candidates"]) == 2
    text = ok(r, "explain", str(path))
    assert chosen in text and "prefix_hit" in text
    other = "w1" if chosen == "w0" else "w0"
    assert as_json(r, "explain", str(path), "--worker", other)["chosen"] == other
    assert as_json(r, "explain", str(path), "--worker", other)["reason"] == "pinned"
    assert as_json(r, "explain", str(path), "--path", "/tokenize")["chosen"] in ("w0", "w1")
    assert as_json(r, "explain", str(path), "--prefix", "128b;")["key"]["blocks"] == 0
    assert as_json(r, "explain", "--file", str(path), "--path", "/v1/chat/completions")["chosen"] == chosen
    assert as_json(r, "explain", "--file", str(path), "--header", "X-Kvsteer-Prefix: 128b;", "--header", f"X-Kvsteer-Worker: {other}")["reason"] == "pinned"
    assert as_json(r, "explain", "--header", "x-kvsteer-prefix:128b;1,2", "--file", "-", input=json.dumps(CHAT))["key"]["blocks"] == 2
    for usage in (["explain"], ["explain", str(path), "--file", str(path)], ["explain", str(path), "--header", "no colon"],
                  ["explain", str(path), "--header", ": empty"], ["explain", str(path), "--header", "A: b\r\nX-Kvsteer-Worker: w0"]):
        assert ctl(r, *usage).returncode == 2, usage
    assert ctl(r, "explain", str(path), "--prefix", "nonsense").returncode == 1
    assert ctl(r, "explain", str(path), "--path", "/nope").returncode == 1
    assert ctl(r, "explain", str(tmp_path / "missing")).returncode == 1
    after = r.metrics()
    assert {s: v for s, v in after.items() if "guards" in s or "decisions" in s} == {s: v for s, v in before.items() if "guards" in s or "decisions" in s}


def test_reload_tells_changes_and_faults(router, worker):
    w0, w1 = worker("w0"), worker("w1")
    r = router([w0], allow_errors=["reload failed"])
    r.write_conf(worker_conf([w0, w1], "cache_threshold = 0.7\n"))
    text = ok(r, "reload")
    assert "cache_threshold" in text and "w1" in text
    assert as_json(r, "reload")["changes"] == []
    r.write_conf(worker_conf([w0], "policy = magic\nprefix_ttl = 7\n"))
    p = ctl(r, "reload")
    assert p.returncode == 1 and p.stdout == "" and len(re.findall(re.escape(r.conf_path) + r":\d+", p.stderr)) == 2
    p = ctl(r, "--json", "reload")
    errors = json.loads(p.stdout or p.stderr)["errors"]
    assert p.returncode == 1 and {e["key"] for e in errors} == {"policy", "prefix_ttl"} and all(e["line"] and e["hint"] for e in errors)


def test_generation_log_level_config_metrics(router, worker):
    r = router([worker("w0")])
    assert ok(r, "generation", "default") == "1\n" and ok(r, "generation", "default", "9") == "9\n"
    assert ctl(r, "generation", "none").returncode == 1 and ctl(r, "generation", "default", "x").returncode in (1, 2)
    assert ctl(r, "log-level", "debug").returncode == 0 and ctl(r, "log-level", "loud").returncode == 1
    conf = ok(r, "config")
    path = os.path.join(r.tmp, "printed.conf")
    with open(path, "w") as f:
        f.write(conf)
    assert subprocess.run([harness.program("kvsteerd"), "-t", "-c", path], capture_output=True).returncode == 0, "what is printed can be read"
    assert "kvsteer_build_info" in ok(r, "metrics")
    told = {(m["name"], tuple(sorted(m["labels"].items()))): m["value"] for m in as_json(r, "metrics")["metrics"]}
    assert told[("kvsteer_worker_state", (("pool", "default"), ("role", "unified"), ("state", "healthy"), ("worker", "w0")))] == 1
    assert len(told) == len([line for line in ok(r, "metrics").splitlines() if line[0] != "#"]), "every sample, once"


def test_options_as_getopt_users_write_them(router, worker):
    """Letters together, values attached, anywhere on the line."""
    r = router([worker("w0")])
    for args in (["-bn1", "top"], ["top", "-b", "-n1"], ["top", "-bn", "1"], ["top", "--count=1", "--batch"]):
        p = subprocess.run([harness.program("kvsteerctl"), f"-s{r.admin_path}", *args], capture_output=True, text=True, timeout=harness.DEADLINE)
        assert p.returncode == 0 and p.stderr == "" and "w0" in p.stdout, (args, p)
    assert json.loads(subprocess.run([harness.program("kvsteerctl"), f"--socket={r.admin_path}", "--json", "--", "status"], capture_output=True, text=True, timeout=harness.DEADLINE).stdout)
    for args in (["-h"], ["status", "--help"], ["-bh"]):
        assert ok(r, *args).startswith("usage: kvsteerctl"), args
    assert ok(r, "-bV") == ok(r, "--version") != ""


def test_exit_codes(router, worker, tmp_path):
    """0 done, 1 the daemon said no, 2 usage, 3 not reached, 4 not permitted."""
    r = router([worker("w0")])
    assert ctl(r, "status").returncode == 0
    assert ctl(r, "workers", "none").returncode == 1
    for args in ([], ["-bx"], ["-bn"], ["--json=1", "status"], ["juggle"], ["drain"], ["drain", "a", "b"], ["add", "x"],
                 ["add", "x", "http://127.0.0.1:1", "nonsense"], ["explain"], ["--no-such"], ["status", "extra"], ["generation"], ["log-level"]):
        p = ctl(r, *args)
        assert p.returncode == 2 and p.stderr.strip() and p.stdout == "", args
    assert "status: too many arguments; usage: kvsteerctl status\n" in ctl(r, "status", "extra").stderr
    assert "drain: too few arguments; usage: kvsteerctl drain NAME" in ctl(r, "drain").stderr
    for args in (["-h"], ["--json", "--help"], ["status", "-h"]):
        p = ctl(r, *args)
        assert p.returncode == 0 and p.stdout.startswith("usage: kvsteerctl") and p.stderr == "", args
    assert re.fullmatch(r"kvsteerctl \S+\n", ok(r, "-V"))
    assert ctl(str(tmp_path / "none.sock"), "status").returncode == 3
    with socket.socket(socket.AF_UNIX) as s:  # nobody listens
        s.bind(str(tmp_path / "dead.sock"))
        p = ctl(str(tmp_path / "dead.sock"), "status")
    assert p.returncode == 3 and "dead.sock" in p.stderr and "systemctl status kvsteer" in p.stderr
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert ctl(r, "status").returncode == 3, "after the end"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", b"\x00garbage\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n[1,2]",
                                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{\"a"])
def test_a_daemon_that_talks_nonsense(tmp_path, answer):
    """Any other program behind the socket: an error and a code, no crash."""
    path = str(tmp_path / "odd.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        asked = False
        while not asked:  # it may look whether anybody is there, before it asks
            s, _ = listener.accept()
            s.settimeout(harness.DEADLINE)
            with s:
                got = b""
                while b"\r\n\r\n" not in got:
                    data = s.recv(4096)
                    if not data:
                        break
                    got += data
                else:
                    asked = True
                    s.sendall(answer)
    t = threading.Thread(target=serve)
    t.start()
    p = ctl(path, "status")
    t.join()
    listener.close()
    assert p.returncode in (1, 3) and p.stderr.strip() and "Sanitizer" not in p.stderr, p


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_exit_code_for_somebody_without_permission(router, worker):
    r = router([worker("w0")], keys="admin_socket_mode = 0600\n")
    for folder in (r.tmp, os.path.dirname(r.tmp), os.path.dirname(os.path.dirname(r.tmp))):
        os.chmod(folder, 0o755)

    p = harness.run_as_nobody("kvsteerctl", "-s", r.admin_path, "status")
    assert p.returncode == 4 and "permission denied; use sudo, or become a member of the group root\n" in p.stderr


def test_drain_of_the_daemon_is_seen(router, worker):
    hold = Hold()
    w = worker("w0", hold)
    r = router([w], keys="drain_timeout = 1h\n")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w.wait_requests(1)
        r.signal(signal.SIGTERM)
        r.wait_log("draining")
        assert as_json(r, "status")["state"] == "draining" and "draining" in ok(r, "status")
        assert ctl(r, "reload").returncode == 1
        r.allow_errors.append("reload failed")
        hold.release()
        assert c.read_response("POST").status == 200
    assert r.proc.wait(harness.DEADLINE) == 0
