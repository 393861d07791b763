"""LoRA adapters: a worker that holds a request's adapter ready is preferred to one that must load it, under
every policy that looks at load; never at any price."""
import concurrent.futures
import json

import pytest

import harness
from harness import Hold, answer_ok, wait_until
from routing import OPEN, served_by, user

NAMES = [f"sql-{i}" for i in range(8)]
LIST = [{"id": "base", "object": "model", "parent": None}] + [{"id": n, "object": "model", "parent": "base"} for n in NAMES]
COSTS = ["policy = least_requests\n"] + [f"policy = cache_aware\ncost = {c}\n" for c in ("overload_check", "relative_load", "free_capacity", "prefill_cost")]
COSTS += ["policy = cache_aware\nsignal = none\ncost = relative_load\n"]


def fleet(router, worker, n, pool, handler=answer_ok, says=None, **kw):
    """says: what all say on /metrics, at first."""
    ws = [worker(f"w{i}", handler, models=LIST) for i in range(n)]
    for w in ws:
        w.metrics_text = says
    conf = "[pool default]\nhealth_interval = 50ms\nhealth_timeout = 20s\n" + harness.LASTING + pool + "".join(f"[worker {w.name}]\nurl = {w.url}\n" for w in ws)
    return router(conf=conf, keys=OPEN, wait=False, **kw).wait_workers(*(w.name for w in ws)), ws


def info(running, waiting="", slots=4, at=1.7e9):
    return f'vllm:lora_requests_info{{max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {at}\n'


def ask(model, seed, **fields):
    """Prompts with nothing in common: no prefix decides."""
    return {"model": model, "messages": [user(harness.text(1, seed))], **fields}


@pytest.mark.parametrize("pool", COSTS, ids=lambda p: p.replace("\n", " ").strip())
def test_adapters_stay_where_they_are_loaded(router, worker, pool):
    """Each adapter is loaded once, on a worker with room for it; what needs none goes round as ever."""
    r, _ = fleet(router, worker, 4, pool)
    homes = {}
    for seed in range(64):
        name = NAMES[seed * 5 % 8]
        homes.setdefault(name, set()).add(served_by(r, ask(name, seed)))
    assert all(len(h) == 1 for h in homes.values()), homes
    assert {served_by(r, ask("base", 1000 + i)) for i in range(8)} == {f"w{i}" for i in range(4)}


@pytest.mark.parametrize("spelling", ["lora_path", "behind the model", "in a header"])
def test_adapters_as_sglang_names_them(router, worker, spelling):
    r, _ = fleet(router, worker, 4, "policy = least_requests\n")
    homes = {}
    for seed in range(32):
        name = NAMES[seed * 5 % 8]
        body, headers = ask("base", seed), {}
        if spelling == "lora_path":
            body["lora_path"] = name
        elif spelling == "behind the model":
            body["model"] = f"base:{name}"
        else:
            body["lora_path"] = name
            headers["X-Kvsteer-Prefix"] = "128b; 0123456789abcdef"
        homes.setdefault(name, set()).add(served_by(r, body, headers=headers))
    assert all(len(h) == 1 for h in homes.values()), homes


def test_an_adapter_is_loaded_again_where_its_worker_has_too_much_to_do(router, worker):
    """Two requests more than elsewhere are waited for; then another worker loads it, too."""
    hold = Hold()
    r, ws = fleet(router, worker, 2, "policy = least_requests\n", handler=hold)
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        try:
            for i in range(6):
                clients.submit(r.request, body=ask("sql-0", i))
                wait_until(lambda n=i + 1: sum(len(w.requests) for w in ws) == n, "the request at its worker")
                if i == 1:
                    assert sorted(len(w.requests) for w in ws) == [0, 2]
            assert [len(w.requests) for w in ws] == [3, 3]
        finally:
            hold.release()


def test_what_an_engine_says_of_its_adapters_counts(router, worker):
    """Another router's requests loaded it; of the lines the newest counts; a full engine is the last choice."""
    r, ws = fleet(router, worker, 3, "policy = least_requests\n", says=info(""))
    ws[2].metrics_text = info("sql-7", at=1.6e9) + info("sql-1, sql-2", at=1.8e9) + info("", at=1.5e9)
    ws[0].metrics_text = info("sql-5,sql-6", slots=2)

    def loads(name):
        return {c["worker"]: c["load"] for c in r.explain(ask(name, 1))["candidates"]}
    wait_until(lambda: loads("sql-2") == {"w0": 4, "w1": 2, "w2": 0}, "the lists")
    assert loads("sql-7") == {"w0": 4, "w1": 2, "w2": 2}
    assert loads("sql-5") == {"w0": 0, "w1": 2, "w2": 2}
    assert loads("base") == {"w0": 0, "w1": 0, "w2": 0}
    assert {served_by(r, ask("sql-1", i)) for i in range(5)} == {"w2"}
    ws[2].metrics_text = info("sql-1", "sql-3", slots=1, at=1.9e9)
    wait_until(lambda: loads("sql-3")["w2"] == 3, "one that waits")


def test_a_restarted_engine_has_no_adapters(router, worker):
    started = [1000.0]
    r, ws = fleet(router, worker, 2, "policy = least_requests\n", says=lambda: f"process_start_time_seconds {started[0]}\n")
    home = served_by(r, ask("sql-0", 1))

    def load():
        return {c["worker"]: c["load"] for c in r.explain(ask("sql-0", 2))["candidates"]}[home]
    assert load() == 0
    wait_until(lambda: all(any("/metrics" in p.target for p in w.probes) for w in ws), "a first report")
    started[0] = 2000.0
    wait_until(lambda: load() == 2, "what is held is forgotten")


def test_without_adapters_no_body_is_read_for_them(router, worker):
    """least_requests forwards a body while it comes, unless a worker lists adapters."""
    w = worker("w0")
    r = router([w], pool=harness.LASTING + "policy = least_requests\n")
    body = json.dumps(ask("m", 1, pad="x" * 300000)).encode()
    with r.connect() as c:
        c.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:200000])
        r.wait_metric(1, "kvsteer_worker_load", worker="w0")
        c.send(body[200000:])
        assert c.read_response("POST").status == 200
