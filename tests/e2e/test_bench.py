"""kvsteer-bench, the real binary: against kvsteer-engine, where every count must be exact, and
against scripted servers."""
import json
import os
import pty
import random
import re
import signal
import subprocess
import threading

import pytest

import harness
from engine_proc import Engine, tokenize
from harness import DEADLINE, Hold, program
from test_engine import calculated_hits

TIMES = ("latency_ms", "ttft_ms", "inter_token_ms", "per_token_ms", "start_delay_ms")


@pytest.fixture(autouse=True)
def has_bench():
    if not os.path.exists(os.path.join(harness.builddir(), "kvsteer-bench")):
        pytest.skip("kvsteer-bench is not built")


@pytest.fixture
def engine():
    """An engine in which nothing takes time, and whose cache forgets nothing."""
    with Engine("--sim-speed", "0", "--sim-blocks", "100000") as e:
        yield e


def start(*flags, **kw):
    return subprocess.Popen([program("kvsteer-bench"), *map(str, flags)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **kw)


def finish(p, expect=0):
    out, err = p.communicate(timeout=DEADLINE * 3)
    assert p.returncode == expect, f"exit status {p.returncode}\n{out}\n{err}"
    return out, err


def bench(*flags, expect=0, **kw):
    """The report of a run as JSON."""
    out, err = finish(start(*flags, "--json", "-", **kw), expect)
    report = json.loads(out)
    r = report["requests"]
    assert r["sent"] == r["ok"] + r["failed"] + r["unfinished"]
    assert r["failed"] == sum(e["n"] for e in report["errors"])
    assert r["ok"] == sum(w["requests"] for w in report["workers"])
    for row in filter(None, (report[name] for name in TIMES)):
        assert row["min"] <= row["p50"] <= row["p90"] <= row["p99"] <= row["p999"] <= row["max"]
        assert row["min"] <= row["mean"] <= row["max"]
    report["stderr"] = err
    return report


def to(server, *more):
    return ("--url", server.url, "--model", "m", *more)


def errors(report):
    return {e["kind"]: e["n"] for e in report["errors"]}


def chunk(text, **more):
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                                             "prompt_tokens_details": {"cached_tokens": 4}}})


def stream_ok(x, fields=()):
    x.begin(fields=fields)
    for word in " a", " b", " c":
        x.event(chunk(word))
    x.event(USAGE)
    x.event("[DONE]")
    x.end()


# ---- exact counts, by the engine ----

@pytest.mark.parametrize("more", [(), ("--no-stream",), ("--endpoint", "completions"),
                                  ("--endpoint", "completions", "--no-stream"), ("--new-connections",)])
def test_tokens_are_exact(engine, more):
    r = bench("--url", engine.url, "--requests", 30, "--connections", 4, "--prompt-tokens", "20-300",
              "--output-tokens", "2-9", *more)
    m = engine.metrics()
    assert r["requests"]["ok"] == 30 and r["errors"] == []
    assert r["tokens"]["prompt"] == r["tokens"]["prompt_asked"] == m["vllm:prompt_tokens_total"]
    assert 30 * 20 <= r["tokens"]["prompt"] <= 30 * 300
    assert r["tokens"]["new"] == m["vllm:generation_tokens_total"]
    assert r["tokens"]["answers_with_usage"] == 30
    assert r["requests"]["connections_made"] == (30 if "--new-connections" in more else 4)
    assert r["latency_ms"]["n"] == 30
    if "--no-stream" in more:
        assert r["ttft_ms"] is None and r["inter_token_ms"] is None
    else:
        assert r["ttft_ms"]["n"] == r["per_token_ms"]["n"] == 30
        assert r["inter_token_ms"]["n"] == r["tokens"]["new"] - 30
        assert r["ttft_ms"]["max"] <= r["latency_ms"]["max"]
    assert r["start_delay_ms"] is None


@pytest.mark.parametrize("corpus, cached", [
    (("cold",), (0, 0)),
    (("hot", "--prompts", "1"), (19 * 240, 19 * 256)),
    (("shared-prefix", "--shared-tokens", "128"), (19 * 128, 19 * 144)),
    (("shared-prefix", "--shared-tokens", "128", "--groups", "1000000"), (0, 0)),
])
def test_corpora_are_cached_as_they_should_be(engine, corpus, cached):
    r = bench("--url", engine.url, "--requests", 20, "--connections", 1, "--prompt-tokens", 256,
              "--output-tokens", 1, "--endpoint", "completions", "--corpus", *corpus, "--seed", 7)
    assert r["seed"] == 7
    assert cached[0] <= r["tokens"]["cached"] <= cached[1]
    assert r["tokens"]["cached"] == engine.metrics()["vllm:prefix_cache_hits_total"]
    assert r["tokens"]["cached_share"] == pytest.approx(r["tokens"]["cached"] / r["tokens"]["prompt"])


def test_a_second_run_finds_nothing_of_the_first(engine):
    for _ in range(2):
        r = bench("--url", engine.url, "--requests", 5, "--output-tokens", 1, "--corpus", "cold")
        assert r["tokens"]["cached"] == 0


def test_conversations_go_on_from_the_answers(engine):
    r = bench("--url", engine.url, "--requests", 24, "--connections", 3, "--turns", 4, "--prompt-tokens", 64,
              "--output-tokens", 16, "--corpus", "conversations")
    # Each turn finds what came before, answer included, all but what the last block does not fill.
    earlier = sum(t * (64 + 16) for t in range(4)) * 6
    assert r["requests"]["ok"] == 24
    assert earlier - 18 * 32 <= r["tokens"]["cached"] <= earlier + 18 * 32
    assert r["tokens"]["cached"] == engine.metrics()["vllm:prefix_cache_hits_total"]


def make_trace(rng, n):
    """Prompts that branch off earlier ones at random places; the last block is new each time."""
    rows, fresh = [], iter(range(10**6))
    for i in range(n):
        known = rng.choice(rows)["hash_ids"][:-1] if rows else []
        ids = known[:rng.randrange(len(known) + 1)] + [next(fresh) for _ in range(rng.randrange(1, 4))]
        rows.append({"timestamp": i * 10, "input_length": (len(ids) - 1) * 512 + rng.randrange(1, 513),
                     "output_length": rng.randrange(0, 5), "hash_ids": ids})
    return rows


def cached_of(rows):
    """Tokens that one worker with blocks of 16 and no bound finds cached, when asked one after
    another."""
    seen, hits = set(), 0
    for row in rows:
        leads = True
        for at in range(row["input_length"] // 16):
            block = (*row["hash_ids"][:at // 32 + 1], at % 32)
            leads = leads and block in seen
            hits += 16 if leads else 0
            seen.add(block)
    return hits


def write_trace(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_is_cached_as_calculated(engine, tmp_path):
    rows = make_trace(random.Random(3), 60)
    trace = write_trace(tmp_path / "t.jsonl", rows)
    r = bench("--url", engine.url, "--trace", trace, "--speed", 1000, "--connections", 1, "--endpoint", "completions")
    assert r["requests"]["ok"] == 60
    assert r["tokens"]["prompt"] == sum(row["input_length"] for row in rows)
    assert r["tokens"]["new"] == sum(max(row["output_length"], 1) for row in rows)
    assert r["tokens"]["cached"] == cached_of(rows) > 0
    assert r["start_delay_ms"]["n"] == 60


@pytest.mark.parametrize("blocks", [100000, 300])
def test_the_cached_share_of_a_replay_is_the_calculated_one(tmp_path, blocks):
    """By the bench, by the engine's metrics, and by a plain LRU that knows neither; unbounded, and
    where old blocks have to go."""
    rows = [{**row, "output_length": 1} for row in make_trace(random.Random(6), 120)]
    trace = [(row["input_length"], row["hash_ids"]) for row in rows]
    hits = sum(calculated_hits(trace, blocks if blocks == 300 else 0))
    with Engine("--sim-speed", "0", "--sim-blocks", blocks) as e:
        r = bench("--url", e.url, "--trace", write_trace(tmp_path / "t.jsonl", rows), "--speed", 1000, "--connections", 1,
                  "--endpoint", "completions")
        metrics = e.metrics()
    assert r["requests"]["ok"] == 120
    assert r["tokens"]["cached"] == metrics["vllm:prompt_tokens_cached_total"] == hits > 0
    assert r["tokens"]["prompt"] == metrics["vllm:prompt_tokens_total"] == sum(n for n, _ in trace)
    assert (hits < sum(calculated_hits(trace, 0))) == (blocks == 300)


def test_a_trace_of_chats_has_exact_lengths(engine, tmp_path):
    rows = [row for row in make_trace(random.Random(4), 40) if row["input_length"] > 8]
    r = bench("--url", engine.url, "--trace", write_trace(tmp_path / "t.jsonl", rows), "--speed", 1000)
    assert r["tokens"]["prompt"] == sum(row["input_length"] for row in rows)


def test_requests_bound_a_trace(engine, tmp_path):
    trace = write_trace(tmp_path / "t.jsonl", make_trace(random.Random(5), 20))
    assert bench("--url", engine.url, "--trace", trace, "--speed", 1000, "--requests", 7)["requests"]["sent"] == 7


# ---- loops ----

def test_closed_loop_keeps_as_many_in_flight(worker):
    """Every answer waits until four requests are there; a fifth would come too early."""
    lock, now, most = threading.Lock(), [0], [0]
    gate = threading.Barrier(4)

    def handler(x):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait(DEADLINE)
        with lock:
            now[0] -= 1
        gate.wait(DEADLINE)
        stream_ok(x)
    w = worker("w0", handler)
    r = bench(*to(w, "--requests", 20, "--connections", 4))
    assert r["requests"]["ok"] == 20 and most[0] == 4
    assert w.connections == r["requests"]["connections_made"] == 4


@pytest.mark.parametrize("how", [("--rate", 2000), ("--rate", 2000, "--arrival", "constant"), "trace"])
def test_open_loop_does_not_wait_for_answers(worker, tmp_path, how):
    gate = threading.Barrier(12)

    def handler(x):
        gate.wait(DEADLINE)
        stream_ok(x)
    if how == "trace":
        how = ("--trace", write_trace(tmp_path / "t", make_trace(random.Random(1), 12)))
    r = bench(*to(worker("w0", handler), "--requests", 12, *how))
    assert r["requests"]["ok"] == r["start_delay_ms"]["n"] == 12


def test_open_loop_within_a_bound_counts_the_wait(worker):
    """More than two connections can carry: a request's time counts from when it was due."""
    w = worker("w0", stream_ok)
    r = bench(*to(w, "--requests", 200, "--rate", 100000, "--connections", 2))
    assert r["requests"]["ok"] == 200 and w.connections == 2
    assert r["start_delay_ms"]["max"] <= r["latency_ms"]["max"]
    assert r["start_delay_ms"]["mean"] <= r["ttft_ms"]["mean"] <= r["latency_ms"]["mean"]


def test_duration_ends_it(worker):
    r = bench(*to(worker("w0", stream_ok), "--duration", "50ms", "--connections", 2))
    assert r["requests"]["ok"] > 0 and r["requests"]["unfinished"] == 0


def test_duration_before_the_first_arrival(worker):
    r = bench(*to(worker("w0", stream_ok), "--duration", "1ms", "--rate", 0.001), expect=1)
    assert r["requests"]["sent"] == 0 and "no request succeeded" in r["stderr"]


# ---- what is sent ----

def test_body_and_head(worker, tmp_path):
    w = worker("w0", stream_ok, base="/team-a")
    (tmp_path / "key").write_text("sk-from-file\n")
    out, err = finish(start("--url", w.url + "/v1/", "--model", "a \"b\"", "--requests", 1, "--prompt-tokens", 40,
                            "--output-tokens", 7, "--api-key", f"file:{tmp_path}/key"))
    m = w.requests[0]
    assert (m.method, m.target) == ("POST", "/team-a/v1/chat/completions")
    assert m.get("host") == w.netloc and m.get("authorization") == "Bearer sk-from-file"
    body = m.json()
    content = body["messages"][0].pop("content")
    assert len(tokenize(content)) == 32
    assert body == {"model": "a \"b\"", "messages": [{"role": "user"}], "max_tokens": 7, "stream": True,
                    "stream_options": {"include_usage": True}, "ignore_eos": True}
    assert "sk-from-file" not in out + err


def test_key_from_the_environment_and_plain_bodies(worker):
    w = worker("w0", harness.answer_ok)
    bench(*to(w, "--requests", 1, "--endpoint", "completions", "--no-stream", "--no-ignore-eos", "--api-key", "env:A_KEY"),
          env={**os.environ, "A_KEY": "sk-env"})
    m = w.requests[0]
    assert m.target == "/v1/completions" and m.get("authorization") == "Bearer sk-env"
    assert sorted(m.json()) == ["max_tokens", "model", "prompt"]


def test_conversation_bodies(worker):
    w = worker("w0", stream_ok)
    bench(*to(w, "--requests", 3, "--connections", 1, "--turns", 3, "--corpus", "conversations", "--prompt-tokens", 20,
              "--shared-tokens", 16))
    last = w.requests[2].json()["messages"]
    assert [m["role"] for m in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert last[2]["content"] == last[4]["content"] == " a b c"
    assert w.requests[1].json()["messages"] == last[:4]


def test_a_seed_repeats_a_run(worker):
    w = worker("w0", stream_ok)
    for seed in 5, 5, 6:
        bench(*to(w, "--requests", 3, "--connections", 1, "--seed", seed))
    bodies = [m.body for m in w.requests]
    assert bodies[:3] == bodies[3:6] and not set(bodies[:3]) & set(bodies[6:])


def test_new_connections(worker):
    w = worker("w0", stream_ok)
    bench(*to(w, "--requests", 5, "--new-connections"))
    assert w.connections == 5 and w.requests[0].get("connection") == "close"


def test_large_bodies_to_a_slow_reader(worker):
    """A megabyte and more, in whatever pieces the kernel takes."""
    w = worker("w0", stream_ok)
    r = bench(*to(w, "--requests", 4, "--connections", 2, "--prompt-tokens", 400000))
    assert r["requests"]["ok"] == 4
    assert all(len(m.json()["messages"][0]["content"]) == 4 * (400000 - 8) for m in w.requests)


def test_model_is_asked_for(worker):
    w = worker("w0", stream_ok, models=("first", "second"))
    assert bench("--url", w.url, "--requests", 1)["model"] == "first"
    assert w.requests[0].json()["model"] == "first"


def test_no_model_to_be_found(worker):
    w = worker("w0", stream_ok, models=())
    _, err = finish(start("--url", w.url, "--requests", 1), expect=1)
    assert "set one with --model" in err


# ---- answers ----

def test_answers_in_any_pieces(worker):
    """Byte by byte, with interim heads, comments and CR LF."""
    def handler(x):
        text = f"data: {chunk(' a')}\r\n\r\n: ping\r\n\r\ndata: {chunk(' b')}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n".encode()
        x.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        for byte in head + b"".join(b"1\r\n%c\r\n" % c for c in text) + b"0\r\n\r\n":
            x.send(bytes([byte]))
    r = bench(*to(worker("w0", handler), "--requests", 3, "--connections", 1))
    assert r["requests"]["ok"] == 3 and r["requests"]["connections_made"] == 1
    assert r["tokens"]["new"] == 9 and r["inter_token_ms"]["n"] == 3


def test_answers_until_close(worker):
    def handler(x):
        x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + f"data: {chunk('a')}\n\ndata: [DONE]\n\n".encode())
        return "close"
    r = bench(*to(worker("w0", handler), "--requests", 3))
    assert r["requests"]["ok"] == r["requests"]["connections_made"] == 3
    assert r["tokens"]["answers_with_usage"] == 0 and r["tokens"]["cached"] is None


@pytest.mark.parametrize("framed", [b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"])
def test_bytes_beyond_an_answer_end_the_connection(worker, framed):
    def handler(x):
        x.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + framed + b"HTTP/1.1 200 OK\r\n")
        return x.wait_gone() and "close"
    r = bench(*to(worker("w0", handler), "--no-stream", "--requests", 3, "--connections", 1))
    assert r["requests"]["ok"] == r["requests"]["connections_made"] == 3


def test_the_server_may_end_connections(worker):
    w = worker("w0", lambda x: x.answer(200, "{}", [("Connection", "close")]))
    r = bench(*to(w, "--no-stream", "--requests", 3, "--connections", 1))
    assert r["requests"]["ok"] == w.connections == 3 and r["requests"]["sent_again"] == 0


def error_text(x):
    x.answer(503, '{"error":{"message":"too busy, sorry"}}')


def half_head(x):
    x.send(b"HTTP/1.1 200 OK\r\nContent-")
    return "close"


def half_stream(x):
    x.begin()
    x.event(chunk(" a"))
    return "close"


def streams(*events):
    def handler(x):
        x.begin()
        for e in events:
            x.event(e)
        x.end()
    return handler


ERRORS = {
    "http_503": (error_text, "too busy, sorry"),
    "http_404": (lambda x: x.answer(404, "no such page", content_type="text/plain"), "no such page"),
    "reset": (lambda x: "close", ""),
    "broken": (half_stream, ""),
    "protocol": (lambda x: x.send(b"SSH-2.0-x\r\n\r\n"), ""),
    "bad_event": (streams("{not json"), ""),
    "stream_error": (streams(chunk(" a"), '{"error":{"message":"gone wrong"}}', "[DONE]"), "gone wrong"),
    "truncated": (streams(chunk(" a")), ""),
    "no_stream": (harness.answer_ok, ""),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_by_kind(worker, kind):
    handler, says = ERRORS[kind]
    r = bench(*to(worker("w0", handler), "--requests", 6, "--connections", 2), expect=1)
    assert errors(r) == {kind: 6}
    assert r["errors"][0]["first_said"] == says
    assert r["latency_ms"] is None and r["ttft_ms"] is None


def test_half_a_head_is_broken(worker):
    assert errors(bench(*to(worker("w0", half_head), "--requests", 2), expect=1)) == {"broken": 2}


def test_bad_chunks(worker):
    def handler(x):
        x.begin()
        x.event(chunk(" a"))
        x.send(b"zz\r\n")
    assert errors(bench(*to(worker("w0", handler), "--requests", 2), expect=1)) == {"protocol": 2}


def test_plain_answers_that_are_none(worker):
    r = bench(*to(worker("w0", lambda x: x.answer(200, "0" * 300)), "--requests", 2, "--no-stream"), expect=1)
    assert errors(r) == {"bad_json": 2}
    r = bench(*to(worker("w1", lambda x: x.answer(200, '{"error":"no"}')), "--requests", 2, "--no-stream"), expect=1)
    assert errors(r) == {"error": 2}


def test_timeouts(worker):
    w = worker("w0", Hold(then=stream_ok))
    r = bench(*to(w, "--requests", 3, "--connections", 3, "--timeout", "50ms"), expect=1)
    assert errors(r) == {"timeout": 3}
    w.handler.release()


def test_some_errors_among_answers(worker):
    """Connections live on through errors that are whole answers; what is answered well counts."""
    w = worker("w0", lambda x: error_text(x) if len(x.worker.requests) % 2 else stream_ok(x))
    r = bench(*to(w, "--requests", 10, "--connections", 1))
    assert errors(r) == {"http_503": 5} and r["requests"]["ok"] == 5 and w.connections == 1
    assert r["latency_ms"]["n"] == 5


def test_a_kept_connection_that_ends_is_no_error(worker):
    """The server closes it as the second request comes: that one is sent again, once."""
    def handler(x):
        if len(x.worker.requests) == 2:
            return "close"
        stream_ok(x)
    w = worker("w0", handler)
    r = bench(*to(w, "--requests", 3, "--connections", 1))
    assert r["requests"]["ok"] == 3 and r["requests"]["sent_again"] == 1 and w.connections == 2
    assert w.requests[1].body == w.requests[2].body


def test_nothing_listens(worker):
    w = worker("w0", stream_ok)
    w.stop()
    out, err = finish(start(*to(w, "--requests", 1000)), expect=1)
    assert "cannot connect: refused" in err and out == ""
    r = bench(*to(w, "--requests", 1000, "--connections", 5), expect=1)
    assert errors(r) == {"refused": 5}


def test_workers_and_spread(worker):
    def handler(x):
        n = len(x.worker.requests)
        stream_ok(x, [("X-Kvsteer-Worker", "w0" if n % 4 == 0 else "w1")])
    r = bench(*to(worker("w", handler), "--requests", 8, "--connections", 1))
    assert {w["name"]: w["requests"] for w in r["workers"]} == {"w0": 2, "w1": 6}
    assert r["workers"][0]["cached_tokens"] == 8 and r["spread"] == 1.5


def test_workers_by_fingerprint(worker):
    w = worker("w", streams(chunk(" a", system_fingerprint="fp_7"), "[DONE]"))
    r = bench(*to(w, "--requests", 2))
    assert r["workers"][0]["name"] == "fp_7" and r["spread"] is None


def test_workers_behind_kvsteerd(worker, router):
    """The same prompt stays with one worker; different ones are spread over both, and the report
    counts them as they did."""
    ws = [worker(name, stream_ok) for name in ("w0", "w1")]
    r = router(ws, keys="expose_worker = on")
    url = ("--url", f"http://127.0.0.1:{r.port}", "--model", "m", "--requests", 12)
    hot = bench(*url, "--connections", 1, "--corpus", "hot", "--prompts", 1)
    assert [w["requests"] for w in hot["workers"]] == [12]
    bench(*url, "--connections", 4)
    cold = bench(*url, "--connections", 4, "--seed", 3)
    assert {w["name"] for w in cold["workers"]} == {"w0", "w1"}
    assert sum(len(w.requests) for w in ws) == 36


@pytest.mark.parametrize("listens, host", [("127.0.0.1", "localhost"), ("::1", "[::1]")])
def test_names_and_addresses(worker, listens, host):
    """A name may have addresses where nobody listens: the next one is tried, and remembered."""
    if host == "localhost" and not harness.has_localhost():
        pytest.skip("localhost is no name here (no /etc/hosts)")
    w = worker("w0", stream_ok, host=listens)
    r = bench("--url", f"http://{host}:{w.port}", "--model", "m", "--requests", 4, "--new-connections")
    assert r["requests"]["ok"] == w.connections == 4


def test_a_name_that_is_none():
    _, err = finish(start("--url", "http://no-such-host.invalid", "--model", "m"), expect=1)
    assert "no-such-host.invalid: name cannot be resolved" in err


# ---- ends, and the report ----

@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_there_is(worker, tmp_path, signo):
    """Three are answered, then all that come are held."""
    hold = Hold(then=stream_ok)
    w = worker("w0", lambda x: stream_ok(x) if len(x.worker.requests) <= 3 and x.conn_no == 1 else hold(x))
    p = start(*to(w, "--connections", 1, "--duration", "1h", "--json", tmp_path / "r.json"))
    w.wait_requests(4)
    p.send_signal(signo)
    out, err = finish(p)
    r = json.loads((tmp_path / "r.json").read_text())
    assert r["interrupted"] and r["requests"]["ok"] == 3 and r["requests"]["unfinished"] == 1
    assert "3 answered, 0 failed, 1 unfinished" in out and "(interrupted)" in out and err == ""
    hold.release()


def test_a_signal_before_any_answer(worker):
    w = worker("w0", Hold(then=stream_ok))
    p = start(*to(w, "--rate", 1000))
    w.wait_requests(1)
    p.send_signal(signal.SIGINT)
    _, err = finish(p, expect=1)
    assert "no request succeeded" in err
    w.handler.release()


def test_the_table(worker):
    out, err = finish(start(*to(worker("w0", stream_ok), "--requests", 5)))
    assert err == ""  # no progress where it is no terminal
    assert re.search(r"^requests +5 answered, 0 failed, 0 unfinished; [\d.]+/s$", out, re.M)
    assert re.search(r"^tokens +45 in prompts .*, 15 new ", out, re.M)
    assert re.search(r"^cached +0\.4444 of prompt tokens$", out, re.M)
    for row in "latency", "first token", "inter-token", "per token":
        assert re.search(rf"^{row}( +[\d.]+){{6}} +\d+$", out, re.M), row
    assert re.search(r"^bench +used \d+ % of one core, and waited for a core \d+ % of the time$", out, re.M)
    assert "start delay" not in out and "\nerrors" not in out


def test_json_to_a_file_beside_the_table(worker, tmp_path):
    out, _ = finish(start(*to(worker("w0", stream_ok), "--requests", 2, "--json", tmp_path / "r.json")))
    assert "2 answered" in out
    assert json.loads((tmp_path / "r.json").read_text())["requests"]["ok"] == 2


def test_a_report_that_cannot_be_written(worker):
    _, err = finish(start(*to(worker("w0", stream_ok), "--requests", 1, "--json", "/dev/full")), expect=1)
    assert "/dev/full: No space left" in err


def test_progress_on_a_terminal(worker):
    hold = Hold(then=stream_ok)
    w = worker("w0", hold)
    ours, theirs = pty.openpty()
    p = subprocess.Popen([program("kvsteer-bench"), *map(str, to(w, "--requests", 2, "--connections", 2))],
                         stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    seen = b""
    while b"2 in flight" not in seen:
        seen += os.read(ours, 4096)
    hold.release()
    out, _ = p.communicate(timeout=DEADLINE)
    os.close(ours)
    assert p.returncode == 0 and "2 answered" in out


def test_it_tells_of_its_own_share(worker):
    """As many requests as it can send, for long enough: whatever the machine, its share is said,
    and the warning agrees."""
    r = bench(*to(worker("w0", harness.answer_ok), "--no-stream", "--duration", "600ms", "--connections", 4))
    assert r["bench_cpu_share"] > 0
    assert ("itself used" in r["stderr"]) == (r["bench_cpu_share"] + r["bench_wait_share"] > 0.8)


# ---- the command line ----

@pytest.mark.parametrize("flags, says", [
    (["--bogus"], "--help lists the flags"),
    (["word"], "no such argument"),
    (["--connections"], "requires an argument"),
    (["--connections", "x"], "a whole number from 1"),
    (["--connections", "-1"], "a whole number from 1"),
    (["--requests", "0"], "from 1"),
    (["--duration", "5"], "a unit"),
    (["--duration", "0"], "above 0"),
    (["--rate", "0"], "a number from"),
    (["--rate", "nan"], "a number from"),
    (["--corpus", "warm"], "hot|cold|shared-prefix|conversations is expected"),
    (["--endpoint", "chats"], "chat|completions is expected"),
    (["--prompt-tokens", "20-10"], "a range such as"),
    (["--prompt-tokens", "20-"], "a range such as"),
    (["--prompt-tokens", "8"], "--chat-overhead"),
    (["--corpus", "shared-prefix", "--shared-tokens", "5000"], "at most 504"),
    (["--turns", "3"], "needs --corpus conversations"),
    (["--prompts", "3"], "needs --corpus hot"),
    (["--speed", "2"], "needs --trace"),
    (["--arrival", "constant"], "needs --rate"),
    (["--trace", "x", "--rate", "5"], "does not go with --rate"),
    (["--trace", "x", "--corpus", "hot"], "does not go with --corpus"),
    (["--trace", "/nonexistent"], "No such file"),
    (["--json", "/nonexistent/x", "--model", "m"], "No such file"),
    (["--url", "https://a.test"], "TLS"),
    (["--url", "a.test:80"], "is expected, such as"),
    (["--api-key", "env:KVSTEER_TEST_NOT_SET"], "not set"),
    (["--api-key", "file:/nonexistent"], "No such file"),
    (["--api-key", "file:/dev/null"], "is empty"),
])
def test_usage_errors(flags, says):
    out, err = finish(start(*flags), expect=2)
    assert says in err and out == ""


def test_a_key_on_the_command_line_is_not_said_back():
    _, err = finish(start("--api-key", "sk-canary"), expect=2)
    assert "file:PATH or env:NAME" in err and "canary" not in err


def test_a_broken_trace_is_said_where(tmp_path):
    (tmp_path / "t").write_text('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}\n{"timestamp":1}\n')
    _, err = finish(start("--trace", tmp_path / "t"), expect=2)
    assert f"{tmp_path}/t:2: 'input_length'" in err


def test_help_and_version():
    out, err = finish(start("--help"))
    assert "--tokens-per-word R" in out and err == ""
    out, _ = finish(start("-V"))
    assert re.fullmatch(r"kvsteer-bench \S+\n", out)


def listed(*flags):
    out, _ = finish(start(*flags, "-h"))
    return set(re.findall(r"--([a-z-]+)", "".join(line[:40].split("  ")[1] + "\n" for line in out.splitlines() if line.startswith("  -"))))


def test_help_and_manual_name_the_same_flags():
    source = os.path.join(os.path.dirname(__file__), "..", "..", "man", "kvsteer-bench.1")
    with open(source) as f:
        manual = set(re.findall(r"^\.It Fl Fl ([a-z-]+)", f.read(), re.M))
    manual |= {"version", "help", "simulate"}
    assert manual == listed() | listed("--simulate")


@pytest.mark.parametrize("flag", ["--connections", "--requests"])
def test_operators_14_none_of_something_is_refused(flag):
    done = subprocess.run([harness.program("kvsteer-bench"), flag, "0"], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert done.returncode == 2 and flag in done.stderr
