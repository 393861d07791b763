"""What the daemon says about itself: metrics from the first scrape on, the access log as text and
JSON, log reopening; and what it never says: keys, prompts."""
import json
import os
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

import harness
from harness import make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

# kvsteerd(8)'s names: each is there before the first request. (breaker_state comes with what it
# counts.)
COUNTERS = ["guards_taken_total", "guards_dropped_total", "route_decisions_total", "prefix_evictions_total", "upstream_failures_total", "retries_total", "retries_refused_total", "resumes_total",
            "reloads_total"]
HISTOGRAMS = ["request_seconds", "ttft_seconds", "queue_seconds", "route_seconds", "prefix_match_ratio", "worker_ttft_seconds", "worker_response_seconds"]
GAUGES = ["worker_load", "worker_progress_age_seconds", "prefix_blocks", "queue_depth", "body_memory_bytes"]


def kvsteerctl(r, *args):
    return subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, *args], capture_output=True, text=True, check=True, timeout=3 * harness.DEADLINE).stdout


def scrape(r):
    with urllib.request.urlopen(f"http://127.0.0.1:{r.metrics_port}/metrics") as f:
        assert f.headers["Content-Type"].startswith("text/plain")
        return f.read().decode()


# ---- metrics ----

def test_every_metric_is_there_and_zero_at_the_start(router, worker):
    r = router([worker("w0"), worker("w1")])
    text, m = scrape(r), r.metrics()
    for name in COUNTERS + GAUGES:
        series = {s: v for s, v in m.items() if s.split("{")[0] == "kvsteer_" + name}
        assert series, name
        assert not any(series.values()), (name, series)
        assert f"# TYPE kvsteer_{name} {'gauge' if name in GAUGES else 'counter'}" in text
        assert f"# HELP kvsteer_{name} " in text
    for name in HISTOGRAMS:
        assert f"# TYPE kvsteer_{name} histogram" in text
        count = {s: v for s, v in m.items() if s.startswith(f"kvsteer_{name}_count")}
        buckets = {s: v for s, v in m.items() if s.startswith(f"kvsteer_{name}_bucket")}
        assert count and not any(count.values()) and any('le="+Inf"' in s for s in buckets) and not any(buckets.values())
    for w in ("w0", "w1"):
        states = {s: v for s, v in m.items() if s.startswith("kvsteer_worker_state{") and f'worker="{w}"' in s}
        assert sum(states.values()) == 1 and len(states) >= 7
        assert all('pool="default"' in s and 'role="unified"' in s for s in states)
        assert r.metric("kvsteer_worker_state", worker=w, state="healthy") == 1
    assert r.metric("kvsteer_build_info") == 1
    assert r.metric("kvsteer_connections", side="client") == 0
    # reasons too: a first failure is an increase that an alert sees
    for label in ('reason="worker_unreachable"', 'reason="worker_reset"', 'reason="worker_timeout"'):
        assert any(s.startswith("kvsteer_upstream_failures_total{") and label in s for s in m), label
    for label in ('result="ok"', 'result="failed"'):
        assert any(s.startswith("kvsteer_reloads_total{") and label in s for s in m)


def test_requests_are_zero_at_the_start(router, worker):
    r = router([worker("w0")])
    m = {s: v for s, v in r.metrics().items() if s.startswith("kvsteer_requests_total{")}
    assert m and not any(m.values())
    assert any('route="chat' in s and 'code="200",reason="ok"' in s for s in m), m


def test_counters_count_each_outcome_once(router, worker):
    def by_path(x):
        if x.request.get("x-die"):
            x.wire.close()
            raise harness.Closed()
        harness.answer_ok(x)
    r = router([worker("w0", by_path)])
    for _ in range(3):
        assert r.request(body=CHAT).status == 200
    assert r.request("GET", "/nope").status == 404
    assert r.request(body=CHAT, headers={"X-Die": "1"}).status == 502
    r.wait_metric(5, "kvsteer_request_seconds_count")
    assert r.metric("kvsteer_requests_total", code="200", reason="ok") == 3
    assert r.metric("kvsteer_requests_total", code="404", reason="path_not_found") == 1
    assert r.metric("kvsteer_requests_total", code="502", reason="worker_reset") == 1
    assert r.metric("kvsteer_requests_total") == 5
    assert r.metric("kvsteer_upstream_failures_total", worker="w0", reason="worker_reset") >= 1
    m = r.metrics()
    assert m["kvsteer_guards_taken_total"] == m["kvsteer_guards_dropped_total"] >= 4
    text = scrape(r)
    for name in HISTOGRAMS:  # cumulative, in order, +Inf equals the count
        values = [float(v) for v in re.findall(rf"^kvsteer_{name}_bucket{{[^}}]*}} (\S+)$", text, re.M)]
        assert values == sorted(values) and values[-1] == r.metric(f"kvsteer_{name}_count")


# ---- latency of each worker ----

def stream(x, wait=0.0):
    x.begin(then=[b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'])
    threading.Event().wait(wait)
    for data in ('{"choices":[{"index":0,"delta":{"content":"a"}}]}', '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', "[DONE]"):
        x.event(data)
    x.end()


def latency(r, name):
    """(ttft, response time) of the worker, each as n or None."""
    w = r.admin("GET", "workers/" + name)[1]
    for kind in ("ttft", "response_time"):
        if w[kind] is not None:
            assert set(w[kind]) == {"n", "p50_ms", "p99_ms"} and 0 <= w[kind]["p50_ms"] <= w[kind]["p99_ms"], w[kind]
    return tuple(w[kind] and w[kind]["n"] for kind in ("ttft", "response_time"))


def test_latency_of_each_worker(router, worker):
    """Streams count in both figures, whole responses in one of them; errors, other calls and
    streams that break off in none."""
    how = {"next": stream}
    r = router([worker("w0", lambda x: how["next"](x)), worker("w1")], keys="allow_pin = on\n")

    def ask(handler, status, path="/v1/chat/completions", body=CHAT):
        how["next"] = handler
        assert r.request(path=path, body=body, headers={"X-Kvsteer-Worker": "w0"}).status == status
    assert latency(r, "w0") == (None, None) and "ttft p50/p99     -\n" in kvsteerctl(r, "workers", "w0")
    ask(harness.answer_ok, 200)
    assert latency(r, "w0") == (None, 1)
    ask(lambda x: x.answer(400, b"{}"), 400)
    ask(lambda x: x.answer(503, b"{}"), 503)
    ask(harness.answer_ok, 200, "/tokenize", {"prompt": "x"})
    assert latency(r, "w0") == (None, 1)
    ask(lambda x: stream(x, 0.3), 200)
    ask(harness.answer_ok, 200, "/v1/embeddings", {"input": "x"})
    assert latency(r, "w0") == (1, 3) and latency(r, "w1") == (None, None)
    ttft = r.admin("GET", "workers/w0")[1]["ttft"]
    assert ttft["p50_ms"] >= 250, "what says who speaks is no content"
    assert r.metric("kvsteer_worker_ttft_seconds_count", worker="w0") == 1 and r.metric("kvsteer_worker_ttft_seconds_sum", worker="w0") >= 0.29
    assert r.metric("kvsteer_worker_ttft_seconds_bucket", worker="w0", le="0.25") == 0 and r.metric("kvsteer_worker_ttft_seconds_bucket", worker="w0", le="250") == 1
    assert r.metric("kvsteer_worker_response_seconds_count", worker="w0") == 3 and r.metric("kvsteer_worker_response_seconds_count", worker="w1") == 0
    figures = re.search(r"^ttft p50/p99 +(\d+ms|[\d.]+s)/(\d+ms|[\d.]+s)$", kvsteerctl(r, "workers", "w0"), re.M)
    assert figures, kvsteerctl(r, "workers", "w0")
    for command in ("status", "workers"):
        text = kvsteerctl(r, command)
        assert "TTFT P50/P99  TIME P50/P99" in text and f"{figures[1]}/{figures[2]}" in text, text
    top = kvsteerctl(r, "top", "-b", "-n", "1", "--sort", "ttft").splitlines()
    assert " TTFT50 TTFT99 TIME50 TIME99 " in top[4] and top[5].startswith("w0 ") and figures[2] in top[5].split(), top


def test_latency_counts_from_the_choice_of_the_worker(router, worker):
    """A retry's time is its own, and a worker that broke the stream off has none."""
    def slow_death(x):
        threading.Event().wait(0.4)
        x.wire.close()
        raise harness.Closed()
    r = router([worker("w0", slow_death), worker("w1", stream)], pool="policy = round_robin\n", allow_errors=["w0"])
    for _ in range(2):
        assert r.request(body=CHAT).status == 200
    assert latency(r, "w0") == (None, None) and latency(r, "w1") == (2, 2)
    assert r.metric("kvsteer_worker_ttft_seconds_sum", worker="w1") < r.metric("kvsteer_ttft_seconds_sum") - 0.3


# ---- access log ----

def lines_of(r, n):
    """The first n access lines."""
    def look():
        found = [line for line in r.log().splitlines() if "total_ms" in line]
        return found if len(found) >= n else None
    return wait_until(look, f"{n} access lines in {r.log()[-2000:]}")


def ask_for_all_outcomes(r):
    """Requests that end in as many ways as lines can tell; returns their number."""
    assert r.request(body=CHAT, headers={"X-Request-Id": "req-1"}).status == 200
    assert r.request("GET", "/nope?key=canary-query").status == 404
    assert r.request("DELETE", "/v1/chat/completions").status == 405
    assert r.request(body={"model": "a \"b\"\n\\ <ü>", "messages": []}).status == 200
    with r.connect() as c:
        c.send(b"GET /v1/\xffx\x7f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        c.read_response("GET")
    with r.connect() as c:
        c.send(b"NONSENSE\r\n\r\n")
        assert c.read_response("GET").status == 400
    return 6


def test_access_log_as_text(router, worker):
    w = worker("w0")
    r = router([w], keys="threads = 1\n")
    n = ask_for_all_outcomes(r)
    lines = lines_of(r, n)
    assert len(lines) == n
    first = dict(part.split("=", 1) for part in lines[0].split(" "))
    for name, value in [("id", "req-1"), ("client", "127.0.0.1"), ("method", "POST"), ("path", "/v1/chat/completions"), ("model", "m"), ("worker", "w0"),
                        ("policy", "only_candidate"), ("status", "200"), ("end", "ok"), ("retries", "0")]:
        assert first[name] == value, (name, lines[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert int(first["in"]) == len(w.requests[0].body) and int(first["out"]) > 50
    for name in ("queue_ms", "ttft_ms", "total_ms"):
        assert re.fullmatch(r"\d+\.\d{3}", first[name])
    for line in lines:  # each line splits in the same names, whatever the client sent
        assert [p.split("=", 1)[0] for p in line.split(" ")] == list(first), line
        assert line.isascii() and line.isprintable()
    assert "end=path_not_found" in lines[1] and "worker=-" in lines[1] and "canary" not in lines[1]


def test_access_log_as_json(router, worker):
    r = router([worker("w0")], keys="log_format = json\nthreads = 1\n")
    n = ask_for_all_outcomes(r)
    lines = [json.loads(line) for line in lines_of(r, n)]
    assert len(lines) == n
    assert lines[0]["id"] == "req-1" and lines[0]["status"] == 200 and lines[0]["end"] == "ok" and lines[0]["worker"] == "w0"
    assert lines[1]["end"] == "path_not_found" and lines[1]["status"] == 404 and lines[1]["path"] == "/nope"
    assert lines[2]["end"] == "method_not_allowed"
    assert lines[3]["model"].startswith('a "b"\n\\ <') and isinstance(lines[3]["total_ms"], float)
    assert all(set(line) == set(lines[0]) for line in lines)


def test_access_log_off(router, worker):
    r = router([worker("w0")], keys="access_log = off\n")
    assert r.request(body=CHAT).status == 200
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    assert "total_ms" not in r.log()


def test_usr1_moves_both_logs_to_the_new_file(router, worker):
    """Rotation under load loses no line: all access lines are in the old or the new file."""
    r = router([worker("w0")])
    for i in range(20):
        assert r.request(body=CHAT, headers={"X-Request-Id": f"line-{i}"}).status == 200
        if i % 10 == 5:
            n = i // 10
            os.rename(r.log_path, f"{r.log_path}.{n}")
            r.signal(signal.SIGUSR1)
            wait_until(lambda: os.path.exists(r.log_path) and "log file opened again" in r.log(), "a new log file")
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    every = r.log() + open(r.log_path + ".0").read() + open(r.log_path + ".1").read()
    for i in range(20):
        assert len(re.findall(rf"id=line-{i} ", every)) == 1, i
    assert "Sanitizer" not in every


# ---- what is never said ----

CANARIES = ["canary-client-key", "canary-worker-key", "canary-prompt", "canary-answer", "canary-upstream-error", "canary-secret", "canary-cookie", "canary-query",
            "canary-tool", "canary-admin-key", "canary-user"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_keys_and_prompts_are_in_no_log_metric_or_admin_answer(router, worker, log_format):
    """At log level debug, over successes, refusals, worker errors, deaths, explain, add and
    reload."""
    mode = {"how": "ok"}

    def handler(x):
        if mode["how"] == "die":
            x.wire.close()
            raise harness.Closed()
        if mode["how"] == "break":
            x.begin()
            x.event("canary-answer")
            x.wire.close()
            raise harness.Closed()
        if mode["how"] == "garbage":
            x.send(b"HTTP/1.1 200 canary-upstream-error\r\ncanary-upstream-error canary-answer\r\n\r\n")
            return "close"
        if mode["how"] == "error":
            x.answer(500, '{"error":"canary-upstream-error"}')
        else:
            x.answer(200, '{"text":"canary-answer"}')
        return None
    w = worker("w0", handler)
    keys = f"log_level = debug\nlog_format = {log_format}\nhash_secret = canary-secret\nadmin_key = canary-admin-key\nallow_pin = on\n"
    conf = worker_conf([w], "health_failures = 1000\n").replace(f"url = {w.url}\n", f"url = {w.url}\nworker_key = canary-worker-key\n")
    r = router(conf=conf, keys=keys, wait=False, allow_errors=["reload failed", "."]).wait_workers("w0")
    body = {"model": "m", "user": "canary-user", "messages": [{"role": "user", "content": "canary-prompt " * 100}],
            "tools": [{"type": "function", "function": {"name": "canary-tool"}}]}
    headers = {"Authorization": "Bearer canary-client-key", "X-Api-Key": "canary-client-key", "Cookie": "c=canary-cookie"}
    for how in ("ok", "error", "die", "break", "garbage"):
        mode["how"] = how
        try:
            r.request(body=body, headers=headers, path="/v1/chat/completions?q=canary-query")
        except harness.Closed:
            pass
    mode["how"] = "ok"
    assert r.request("GET", "/canary-refused?k=canary-query", headers=headers).status == 404
    with r.connect() as c:  # a body that is no JSON, and one that breaks off
        c.send(make_request(body=b"canary-prompt{", headers=headers))
        c.read_response("POST")
        c.send(make_request(body=body, headers=headers)[:-10])
    with r.connect() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer canary-client-key\r\n bad fold canary-prompt\r\n\r\n")
        c.read_response("POST")
    told = [json.dumps(r.explain(body, headers=headers))]
    told += [json.dumps(r.admin("GET", what)[1]) for what in ("status", "workers", "workers/w0", "config", "metrics")]
    told.append(json.dumps(r.admin("POST", "workers", {"name": "w1", "url": w.url + "/b", "worker_key": "canary-worker-key"})[1]))
    told.append(json.dumps(r.admin("GET", "workers/w1")[1]))
    r.write_conf(conf + "[worker w9]\nworker_key = canary-worker-key\nurl = bad\n")
    told.append(json.dumps(r.reload()[1]))
    told.append(scrape(r))
    for what in ("-T", "-t"):
        p = subprocess.run([harness.program("kvsteerd"), what, "-c", r.conf_path], capture_output=True, text=True)
        told.append(p.stdout + p.stderr)
    r.write_conf(conf)
    p = subprocess.run([harness.program("kvsteerd"), "-T", "-c", r.conf_path], capture_output=True, text=True)
    assert p.returncode == 0
    told.append(p.stdout + p.stderr)
    assert w.requests[0].get("authorization") == "Bearer canary-client-key" and b"canary-prompt" in w.requests[0].body, "the canaries did go through"
    r.signal(signal.SIGTERM)
    assert r.proc.wait(harness.DEADLINE) == 0
    told.append(r.log())
    for canary in CANARIES:
        for text in told:
            assert canary not in text, (canary, text[max(0, text.find(canary) - 300):][:600])
