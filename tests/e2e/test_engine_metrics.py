"""kvsteer-engine: what routers and operators read from it."""

import json
import re

from engine_proc import render, tokenize
from test_engine import CHAT, client, engine  # noqa: F401 (fixtures)


def test_times(engine, client):
    """Every choice has a first token and an end; every other token came after one."""
    for n in (1, 3):
        client.completions.create(model="sim", prompt="time", max_tokens=5, n=n)
    metrics = engine.metrics()
    assert metrics["vllm:time_to_first_token_seconds_count"] == 4
    assert metrics["vllm:inter_token_latency_seconds_count"] == 16
    assert metrics["vllm:e2e_request_latency_seconds_count"] == 4
    assert metrics["vllm:e2e_request_latency_seconds_sum"] >= metrics["vllm:time_to_first_token_seconds_sum"] > 0
    text = engine.get("/metrics")
    for name, bounds in (("time_to_first_token", 22), ("inter_token_latency", 19), ("e2e_request_latency", 21)):
        assert f"# TYPE vllm:{name}_seconds histogram" in text
        rows = re.findall(rf'^vllm:{name}_seconds_bucket\{{.*le="(.+)"\}} (\d+)$', text, re.M)
        assert [float(le) for le, _ in rows] == sorted(float(le) for le, _ in rows)
        assert len(rows) == bounds + 1 and rows[-1][0] == "+Inf"
        counts = [int(n) for _, n in rows]
        assert counts == sorted(counts) and counts[-1] == metrics[f"vllm:{name}_seconds_count"]


def test_histograms_of_requests(engine, client):
    """Each choice once, each request once, and sums that the answers' usage gives."""
    client.completions.create(model="sim", prompt="sizes " * 30, max_tokens=5, n=3)
    client.completions.create(model="sim", prompt=["one", "two two"], max_tokens=1)
    client.chat.completions.create(model="sim", messages=CHAT)
    again = client.completions.create(model="sim", prompt="sizes " * 30, max_tokens=8)
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached > 0
    n = len(tokenize("sizes " * 30)), len(tokenize("one")), len(tokenize("two two")), len(tokenize(render(CHAT)))
    m = engine.metrics()
    chat_tokens = m["vllm:generation_tokens_total"] - 3 * 5 - 2 - 8

    def both(name):
        return m[f"vllm:{name}_count"], m[f"vllm:{name}_sum"]

    assert both("request_prompt_tokens") == (7, 4 * n[0] + n[1] + n[2] + n[3])
    assert both("request_prefill_kv_computed_tokens") == (5, 2 * n[0] + n[1] + n[2] + n[3] - cached)
    assert both("request_generation_tokens") == (7, m["vllm:generation_tokens_total"])
    assert both("request_max_num_generation_tokens") == (4, 5 + 1 + chat_tokens + 8)
    assert both("request_params_n") == (4, 3 + 1 + 1 + 1)
    assert both("request_params_max_tokens") == (3, 5 + 1 + 8)
    assert both("iteration_tokens_total") == (m["kvsteer_engine_steps_total"], m["kvsteer_engine_computed_tokens_total"])
    for name in ("queue", "prefill", "decode", "inference"):
        assert m[f"vllm:request_{name}_time_seconds_count"] == 7
    assert m["vllm:request_time_per_output_token_seconds_count"] == 5, "one token has no time between"
    times = [m[f"vllm:request_{name}_time_seconds_sum"] for name in ("queue", "prefill", "decode", "inference")]
    assert min(times) >= 0 and abs(times[1] + times[2] - times[3]) < 1e-9
    assert times[0] + times[3] <= m["vllm:e2e_request_latency_seconds_sum"] + 1e-9
    text = engine.get("/metrics")
    sources = dict(re.findall(r'vllm:prompt_tokens_by_source_total\{.*source="(\w+)"\} (\d+)', text))
    assert int(sources["local_cache_hit"]) == m["vllm:prompt_tokens_cached_total"] == cached
    assert sum(map(int, sources.values())) == m["vllm:prompt_tokens_total"]
    for name in re.findall(r"^# TYPE (\S+) histogram", text, re.M):
        rows = re.findall(rf'^{name}_bucket\{{.*le="(.+)"\}} (\d+)$', text, re.M)
        bounds, counts = [float(le) for le, _ in rows], [int(k) for _, k in rows]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), name
        assert counts == sorted(counts) and counts[-1] == m[name + "_count"], name
    bounds = re.findall(r'^vllm:request_prompt_tokens_bucket\{.*le="(.+)"\}', text, re.M)
    assert bounds[-2] == "50000", "none is above max_model_len, 65536"
    steps = re.findall(r'^vllm:iteration_tokens_total_bucket\{.*le="(.+)"\}', text, re.M)
    assert [float(b) for b in steps[:-1]] == [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]


def test_usage_adds_up_to_the_metrics(engine, client):
    """What the answers say of cached tokens is what the counters say."""
    prompt_tokens = cached = 0
    for i in range(60):
        answer = client.completions.create(model="sim", prompt=f"{i % 3} again " + "and again " * (i % 20), max_tokens=3)
        prompt_tokens += answer.usage.prompt_tokens
        cached += answer.usage.prompt_tokens_details.cached_tokens
    metrics = engine.metrics()
    assert metrics["vllm:prompt_tokens_total"] == metrics["vllm:prefix_cache_queries_total"] == prompt_tokens
    assert metrics["vllm:prompt_tokens_cached_total"] == metrics["vllm:prefix_cache_hits_total"] == cached > 0


def test_what_routers_read(engine, client):
    model = client.models.list().data[0]
    assert (model.id, model.object, model.max_model_len) == ("sim", "model", 65536)
    assert json.loads(engine.get("/health"))["status"] == "ok"
    assert re.fullmatch(r"\d+\.\d+\.\d+", json.loads(engine.get("/version"))["version"])
    text = engine.get("/metrics")
    assert re.search(r'^vllm:cache_config_info\{.*block_size="16",num_gpu_blocks="4096".*\} 1$', text, re.M)
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ):
        assert re.search(rf'^{name}\{{model_name="sim",engine="0"\}} [0-9.e+-]+$', text, re.M), name
        assert re.search(rf"^# TYPE {name} (gauge|counter)$", text, re.M), name


def test_render(engine):
    """What vllm-router asks of each worker before it routes: the ids that the request would be
    computed from, and the same errors."""
    chat = {"model": "sim", "messages": CHAT, "max_tokens": 7, "stream": True, "n": 2}
    status, one = engine.post("/v1/chat/completions/render", chat)
    assert status == 200 and one["token_ids"] == tokenize(render(CHAT))
    assert one["model"] == "sim" and one["stream"] and one["sampling_params"] == {"n": 2, "max_tokens": 7}
    ids = tokenize("given as ids")
    status, many = engine.post("/v1/completions/render", {"prompt": ["first", "and second"]})
    assert status == 200 and [m["token_ids"] for m in many] == [tokenize("first"), tokenize("and second")]
    status, many = engine.post("/v1/completions/render", {"prompt": ids})
    assert status == 200 and [m["token_ids"] for m in many] == [ids]
    assert many[0]["sampling_params"]["max_tokens"] is None
    for path, body, code in (
        ("/v1/chat/completions/render", {"messages": []}, 400),
        ("/v1/completions/render", {"prompt": ""}, 400),
        ("/v1/completions/render", b"{", 400),
        ("/v1/completions/render", {"prompt": "x", "model": "other"}, 404),
        ("/v1/completions/render", {"prompt": "x", "max_tokens": 10**9}, 400),
    ):
        assert engine.post(path, body)[0] == code
    metrics = engine.metrics()
    assert metrics["vllm:prompt_tokens_total"] == metrics["kvsteer_engine_steps_total"] == 0


def test_server_info(engine):
    info = json.loads(engine.get("/server_info"))
    assert re.fullmatch(r"[0-9a-f]{32}", info.pop("engine_id"))
    assert re.fullmatch(r"[0-9a-f]{16}", info.pop("kv_group"))
    assert info == {
        "version": json.loads(engine.get("/version"))["version"],
        "backend": "sim",
        "role": "unified",
        "kvx_host": None,
        "kvx_port": None,
        "served_model_name": "sim",
        "max_model_len": 65536,
        "block_size": 16,
        "num_blocks": 4096,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 512,
        "max_waiting": 4096,
        "num_running": 0,
        "num_waiting": 0,
        "num_used_blocks": 0,
    }
