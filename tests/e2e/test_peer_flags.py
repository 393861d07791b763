"""Command lines written for the vLLM router start kvsteerd as they stand, and it serves as they
ask."""
import subprocess

import harness
from harness import text, wait_until
from routing import HoldMarked, chat, in_parallel, settle, user

# A start script of a fleet, word for word but for addresses: what it sets, and flags that have
# nothing behind them here.
SCRIPT = """
 --policy cache_aware --cache-threshold 0.5 --balance-abs-threshold 4 --balance-rel-threshold 1.1
 --host 127.0.0.1 --port 0 --prometheus-host 127.0.0.1 --prometheus-port 0
 --max-payload-size 1048576 --max-concurrent-requests 256 --queue-size 100 --queue-timeout-secs 60
 --request-timeout-secs 1800 --retry-max-retries 3 --retry-initial-backoff-ms 50 --retry-max-backoff-ms 30000
 --retry-backoff-multiplier 1.5 --retry-jitter-factor 0.2
 --cb-failure-threshold 10 --cb-success-threshold 3 --cb-timeout-duration-secs 60 --cb-window-duration-secs 120
 --health-failure-threshold 3 --health-success-threshold 2 --health-check-timeout-secs 5
 --health-check-interval-secs 1 --health-check-endpoint /health
 --worker-startup-timeout-secs 600 --worker-startup-check-interval 30 --eviction-interval 120 --max-tree-size 67108864
 --intra-node-data-parallel-size 1 --log-level info --request-id-headers x-request-id x-trace-id
""".split()


def start(router, ws, args, tmp_path):
    """By flags alone: no file, and of ours only a place for the admin socket, which two tests at
    once cannot share."""
    sock = tmp_path / "admin.sock"
    r = router(args=["--worker-urls", *[w.url for w in ws], *args, "--admin-socket", str(sock)])
    r.admin_path = str(sock)
    return r.wait_workers(*[w.netloc for w in ws])


def by_worker(ws):
    return [len(w.requests) for w in ws]


def test_a_start_script_of_the_vllm_router(router, worker, tmp_path):
    ws = [worker(f"w{i}", HoldMarked()) for i in range(3)]
    r = start(router, ws, SCRIPT, tmp_path)
    log = r.log()
    for flag in ("--worker-startup-timeout-secs", "--eviction-interval", "--max-tree-size", "--retry-jitter-factor", "--request-id-headers"):
        assert f"{flag}: has no effect here" in log
    listed = r.admin("GET", "workers")[1]
    listed = listed if isinstance(listed, list) else listed["workers"]
    assert [(w["name"], w["url"], w["origin"]) for w in listed] == [(w.netloc, w.url, "flag") for w in ws]
    config = r.admin("GET", "config")[1]
    for line in ("cache_threshold = 0.5", "balance_abs_threshold = 4", "balance_rel_threshold = 1.1", "max_concurrent_requests = 256", "retry_max_retries = 2",
                 "total_timeout = 1800s", "health_interval = 1s", "health_timeout = 5s"):
        assert line in str(config), f"{line} is not in {config}"
    # It serves: affinity by the prompt, the payload's limit, health and models.
    told = [r.chat([user(text(2, 1))]).json()["worker"] for _ in range(6)]
    assert len(set(told)) == 1, "one prompt, one worker"
    assert len({r.chat([user(text(2, 10 + i))]).json()["worker"] for i in range(6)}) == 3, "many prompts, all workers"
    assert r.request(body=chat(user("x" * 1_100_000))).status == 413
    assert r.request(body=chat(user("x" * 900_000))).status == 200
    assert r.request("GET", "/health").status == r.request("GET", "/readiness").status == 200
    assert [m["id"] for m in r.request("GET", "/v1/models").json()["data"]] == ["m"]


def test_the_black_box_cases_of_the_vllm_router(router, worker, tmp_path):
    """Its load_balancing tests: policies by flag, and the shares that they demand."""
    for policy, check in [("round_robin", lambda n: all(7 <= k <= 13 for k in n)), ("random", lambda n: all(2 <= k for k in n)),
                          ("cache_aware", lambda n: sum(k > 0 for k in n) >= 2)]:
        ws = [worker(f"w{i}") for i in range(3)]
        (tmp_path / policy).mkdir()
        r = start(router, ws, ["--policy", policy, "--port", "0", "--prometheus-port", "0"], tmp_path / policy)
        in_parallel([lambda k=k: r.chat([user(text(1, k))]) for k in range(30)])
        assert sum(by_worker(ws)) == 30 and check(by_worker(ws)), f"{policy}: {by_worker(ws)}"
    # "at least 10 of 12 with one prefix on one worker", with its thresholds
    ws = [worker(f"w{i}") for i in range(2)]
    strict = "--policy cache_aware --cache-threshold 0.99 --balance-abs-threshold 0 --balance-rel-threshold 1.0"
    r = start(router, ws, [*strict.split(), "--port", "0", "--prometheus-port", "0"], tmp_path)
    for _ in range(12):
        settle(r)  # with these thresholds a worker with one request is hot
        assert r.chat([user(text(4, 5))]).status == 200
    assert max(by_worker(ws)) >= 10


def test_the_key_of_the_workers(router, worker, tmp_path):
    """--api-key is what workers are sent; the probes carry it too."""
    def guarded(x):
        if x.request.get("authorization") != "Bearer s3cret":
            return x.answer(401, "{}")
        return harness.answer_ok(x)
    w = worker("w0", guarded)
    r = start(router, [w], ["--api-key", "s3cret", "--port", "0", "--prometheus-port", "0"], tmp_path)
    assert r.chat([user("x")]).status == 200
    assert "s3cret" not in r.log()


def test_start_without_workers_then_add_them(router, worker, tmp_path):
    """Its service-discovery shim: no worker at the start, /health is up, workers come and go."""
    sock = tmp_path / "admin.sock"
    r = router(args=["--worker-urls", "--port", "0", "--prometheus-port", "0", "--no-worker-wait", "0", "--admin-socket", str(sock)])
    r.admin_path = str(sock)
    assert r.request("GET", "/health").status == 200
    assert r.request("GET", "/readiness").status == 503
    assert r.chat([user("x")]).status == 503
    w = worker("w0")
    assert r.admin("POST", "workers", {"name": "w0", "url": w.url})[0] == 201
    r.wait_workers("w0")
    assert r.chat([user("x")]).status == 200
    assert r.admin("DELETE", "workers/w0")[0] == 202
    wait_until(lambda: r.chat([user("x")]).status == 503, "it is gone")


def test_what_cannot_be_done_is_refused_with_a_hint(tmp_path):
    """A flag that would change what is served is never dropped in silence."""
    def run(*args):
        return subprocess.run([harness.program("kvsteerd"), "-t", *args], capture_output=True, text=True, timeout=harness.DEADLINE)
    url = ["--worker-urls", "http://127.0.0.1:1"]
    good = run(*url, *SCRIPT)
    assert good.returncode == 0, good.stderr
    for bad, hint in [(["--service-discovery"], "--worker-urls"), (["--enable-igw"], "[pool NAME]"), (["--wasm-middleware", "f"], "no code"),
                      (["--dp-aware"], "--intra-node"), (["--api-key-validation-urls", "http://a"], "api_keys"), (["--polcy", "random"], "--policy"),
                      (["--policy", "fastest"], "cache_aware"), (["--cache-threshold", "1.5"], "1"), (["--port", "70000"], "65535"),
                      (["--queue-timeout-secs", "x"], "queue-timeout-secs")]:
        told = run(*url, *bad)
        assert told.returncode in (1, 2) and bad[0] in told.stderr and hint in told.stderr, f"{bad}: {told.returncode} {told.stderr}"
