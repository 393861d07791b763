"""Workers as the router knows them: data-parallel ranks, generations, what workers report,
restarts, probes."""
import json
import re
import subprocess
import threading

import pytest

import harness
from engine_proc import Engine
from harness import Hold, make_request, wait_until, worker_conf

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}


def ctl(r, *args):
    return subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, *args], capture_output=True, text=True, timeout=60)


def conf_of(*workers, pool="", lines="", every="1s"):
    """One [worker] section each, with the same lines; probed as often as `every` says."""
    text = f"[pool default]\nhealth_interval = {every}\n{pool}\n"
    for w in workers:
        text += f"[worker {w.name}]\nurl = {w.url}\n{lines}\n"
    return text


def prompt(n):
    return [{"role": "user", "content": f"{n:08} " + harness.text(2, n)}]


def ranks_of(exchanges):
    return [x.get("x-data-parallel-rank") for x in exchanges]


def blocks(r, name):
    return r.admin("GET", "workers/" + name)[1]["blocks"]


def probes_of(w, path):
    return [m for m in list(w.probes) if m.target == path]


# ---- data-parallel ranks ----

def test_ranks_are_workers_of_one_host(router, worker):
    """Each rank has its own load, turn and residency; requests name it; the host is probed once."""
    w = worker("gpu")
    r = router(conf=conf_of(w, lines="dp_size = 4", every="50ms"), keys="expose_worker = on\n", wait=False)
    r.wait_workers("gpu@0", "gpu@1", "gpu@2", "gpu@3")
    answers = [r.chat(prompt(n)) for n in range(8)]
    assert [a.status for a in answers] == [200] * 8
    assert sorted(ranks_of(w.requests)) == sorted("0123" * 2), "cold prompts rotate over the ranks"
    for sent, got in zip(list(w.requests), answers):
        assert got.get("x-kvsteer-worker") == f"gpu@{sent.get('x-data-parallel-rank')}"
    w.clear()
    for n in range(8):
        assert r.chat(prompt(n)).status == 200
    assert ranks_of(w.requests) == [a.get("x-kvsteer-worker")[-1] for a in answers], "each prompt returns to its rank"
    assert all(blocks(r, f"gpu@{k}") > 0 for k in range(4))
    assert r.metric("kvsteer_worker_requests_total", worker="gpu@2") == 4
    # One probe for all ranks: no more of them in a row than an interval has.
    n = len(probes_of(w, "/health"))
    models = len(probes_of(w, "/v1/models"))
    wait_until(lambda: len(probes_of(w, "/health")) >= n + 4, "four more probes")
    assert models == 1, "asked for the list of models once, not once for each rank"
    assert len(re.findall(r"worker gpu starting -> healthy", r.log())) == 1
    assert all(p.get("x-data-parallel-rank") is None for p in w.probes)


def test_a_clients_rank_is_overwritten(router, worker):
    w = worker("gpu")
    r = router(conf=conf_of(w, lines="dp_size = 2"), wait=False).wait_workers("gpu@0", "gpu@1")
    for n in range(4):
        r.chat(prompt(n), headers={"X-Data-Parallel-Rank": "7", "x_data_parallel_rank": "8"})
    for m in w.requests:
        assert m.all("x-data-parallel-rank") in (["0"], ["1"]) and m.all("x_data_parallel_rank") == []
    assert set(ranks_of(w.requests)) == {"0", "1"}


def test_without_ranks_the_clients_rank_is_the_engines(router, worker):
    w = worker("gpu")
    r = router([w], keys="allow_pin = on\n")
    assert r.chat(prompt(1), headers={"X-Data-Parallel-Rank": "7"}).status == 200
    assert ranks_of(w.requests) == ["7"]


def test_b1_a_pinned_rank_bypasses_the_policy(router, worker):
    a, b = worker("a"), worker("b")
    r = router(conf=conf_of(a, b, lines="dp_size = 3"), keys="allow_pin = on\n", wait=False)
    r.wait_workers("a@0", "b@2")
    for n in range(4):
        assert r.chat(prompt(n), headers={"X-Data-Parallel-Rank": "2"}).status == 200
    assert set(ranks_of(a.requests + b.requests)) == {"2"} and a.requests and b.requests
    assert r.chat(prompt(1), headers={"X-Data-Parallel-Rank": "1", "X-Kvsteer-Worker": "b"}).status == 200
    assert ranks_of(b.requests)[-1] == "1"
    assert r.chat(prompt(1), headers={"X-Kvsteer-Worker": "a@0"}).status == 200
    assert ranks_of(a.requests)[-1] == "0"
    for bad in ({"X-Data-Parallel-Rank": "3"}, {"X-Data-Parallel-Rank": "x"}, {"X-Data-Parallel-Rank": "-1"}, {"X-Kvsteer-Worker": "a@3"}):
        assert r.chat(prompt(1), headers=bad).status == 400, bad
    told = r.explain(CHAT, headers={"X-Data-Parallel-Rank": "1"})
    assert told["reason"] == "pinned" and told["chosen"] in ("a@1", "b@1")
    assert [c["worker"] for c in told["candidates"]] == [f"{w}@{k}" for w in "ab" for k in range(3)]


def test_load_of_each_rank_is_its_own(router, worker):
    hold = Hold()
    w = worker("gpu", hold)
    r = router(conf=conf_of(w, lines="dp_size = 3\nmax_requests = 1", pool="policy = least_requests"), keys="queue_size = 0\n", wait=False)
    r.wait_workers("gpu@0", "gpu@1", "gpu@2")
    conns = [r.connect() for _ in range(3)]
    for n, c in enumerate(conns):
        c.send(make_request(body=dict(CHAT, messages=prompt(n))))
    w.wait_requests(3)
    assert sorted(ranks_of(w.requests)) == ["0", "1", "2"]
    assert [r.metric("kvsteer_worker_load", worker=f"gpu@{k}") for k in range(3)] == [1, 1, 1]
    group = r.admin("GET", "workers/gpu")[1]
    assert group["load"] == 3 and group["dp_size"] == 3 and [x["load"] for x in group["ranks"]] == [1, 1, 1]
    assert r.chat(prompt(9)).status == 429, "max_requests is that of a rank: all are full"
    hold.release()
    assert [c.read_response().status for c in conns] == [200] * 3


def test_a_dead_host_is_tried_once(router, worker):
    """Its ranks are one process: the retry goes to another host at once, whatever the retries
    left."""
    dead, live = worker("dead"), worker("live")
    r = router(conf=conf_of(dead, lines="dp_size = 8\nretry_max_retries = 1", every="1h") + f"[worker live]\nurl = {live.url}\n", wait=False)
    r.wait_workers("dead@7", "live")
    dead.stop()
    for n in range(9):
        assert r.chat(prompt(n)).status == 200
    assert len(live.requests) == 9


def test_state_of_the_host_is_that_of_its_ranks(router, worker):
    w = worker("gpu")
    r = router(conf=conf_of(w, lines="dp_size = 3", every="50ms"), wait=False).wait_workers("gpu@0", "gpu@1", "gpu@2")
    w.healthy = False
    r.wait_workers("gpu@0", "gpu@1", "gpu@2", state="unhealthy")
    r.wait_log("worker gpu suspect -> unhealthy")
    assert len(re.findall(r"worker gpu suspect -> unhealthy", r.log())) == 1, "said once"
    assert r.request("GET", "/readiness").status == 503
    w.healthy = True
    r.wait_workers("gpu@0", "gpu@1", "gpu@2")
    assert r.admin("GET", "workers/gpu@1")[1]["reason"].startswith("200 in")


@pytest.mark.tsan
def test_drain_and_removal_of_ranks(router, worker):
    """One rank by its name, all by the group's; nothing of a removed group is left."""
    w, other = worker("gpu"), worker("other")
    r = router(conf=conf_of(w, pool="upstream_idle = 500ms", lines="dp_size = 3") + f"[worker other]\nurl = {other.url}\n", wait=False)
    r.wait_workers("gpu@0", "gpu@1", "gpu@2", "other")
    fds = r.fds()
    for n in range(12):
        assert r.chat(prompt(n)).status == 200
    assert r.metric("kvsteer_prefix_blocks", worker="gpu@1") > 0
    p = ctl(r, "drain", "gpu@1")
    assert p.returncode == 0 and p.stdout.startswith("gpu@1: draining"), p
    assert [r.worker_state(f"gpu@{k}") for k in range(3)] == ["healthy", "draining", "healthy"]
    assert r.admin("GET", "workers/gpu")[1]["state"] == "mixed"
    w.clear()
    for n in range(100, 112):
        assert r.chat(prompt(n)).status == 200
    assert set(ranks_of(w.requests)) == {"0", "2"}
    assert ctl(r, "drain", "gpu").stdout.startswith("gpu: draining")
    w.clear()
    for n in range(200, 206):
        assert r.chat(prompt(n)).status == 200
    assert w.requests == []
    assert ctl(r, "undrain", "gpu").returncode == 0
    assert [r.worker_state(f"gpu@{k}") for k in range(3)] == ["healthy"] * 3
    table = ctl(r, "workers", "gpu").stdout.splitlines()
    assert [row.split()[0] for row in table[1:]] == ["gpu@0", "gpu@1", "gpu@2"]
    assert ctl(r, "remove", "gpu").returncode == 0
    assert [w["name"] for w in r.admin("GET", "workers")[1]["workers"]] == ["other"]
    held = r.admin("GET", "status")[1]["pools"][0]["index"]["blocks"]
    assert held == blocks(r, "other"), "the tree keeps nothing of the ranks"
    assert not any("gpu@" in series for series in r.metrics())
    wait_until(lambda: r.fds() <= fds, "its connections are closed")
    n = len(w.probes)
    assert ctl(r, "remove", "gpu").returncode == 1
    other_probes = len(other.probes)
    wait_until(lambda: len(other.probes) >= other_probes + 2, "two more turns")
    assert len(w.probes) <= n + 1, "it is probed no more"


def test_a_drained_rank_finishes_before_it_goes(router, worker):
    hold = Hold()
    w, other = worker("gpu", hold), worker("other")
    r = router(conf=conf_of(w, lines="dp_size = 2"), wait=False).wait_workers("gpu@0", "gpu@1")
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        busy = "gpu@" + w.wait_requests(1).request.get("x-data-parallel-rank")
        idle = {"gpu@0": "gpu@1", "gpu@1": "gpu@0"}[busy]
        assert r.admin("POST", "workers", {"name": "other", "url": other.url})[0] == 201
        assert r.admin("DELETE", "workers/gpu?drain=1h")[0] == 202
        wait_until(lambda: r.admin("GET", "workers/" + idle)[0] == 404, "the idle rank goes at once")
        assert r.worker_state(busy) == "draining"
        hold.release()
        assert c.read_response().status == 200
    wait_until(lambda: r.admin("GET", "workers/gpu")[0] == 404, "and the other after its request")


@pytest.mark.tsan
def test_reload_with_another_dp_size_touches_only_the_ranks_concerned(router, worker):
    hold = Hold()
    w = worker("gpu")
    r = router(conf=conf_of(w, lines="dp_size = 2", every="1h"), wait=False).wait_workers("gpu@0", "gpu@1")
    for n in range(4):
        assert r.chat(prompt(n)).status == 200
    kept = [blocks(r, f"gpu@{k}") for k in range(2)]
    assert all(kept)
    w.handler = hold
    with r.connect() as c:
        c.send(make_request(body=dict(CHAT, messages=prompt(0))))
        rank = w.wait_requests(5).request.get("x-data-parallel-rank")
        health = len(probes_of(w, "/health"))
        assert r.reload(conf_of(w, lines="dp_size = 4", every="1h"))[0]
        assert [r.worker_state(f"gpu@{k}") for k in range(4)] == ["healthy"] * 4, "the new ones are as healthy as their host"
        assert len(probes_of(w, "/health")) <= health + 1
        assert [blocks(r, f"gpu@{k}") for k in range(2)] == kept
        assert r.metric("kvsteer_worker_load", worker=f"gpu@{rank}") == 1
        hold.release()
        assert c.read_response().status == 200
    w.clear()
    for n in range(100, 108):
        assert r.chat(prompt(n)).status == 200
    assert sorted(ranks_of(w.requests))[-2:] == ["3", "3"] or set(ranks_of(w.requests)) == set("0123")
    assert r.reload(conf_of(w, lines="dp_size = 1", every="1h"))[0]
    assert r.worker_state("gpu") == "healthy", "one worker in place of its ranks: the same process"
    w.clear()
    assert r.chat(prompt(1)).status == 200
    assert ranks_of(w.requests) == [None]
    assert r.admin("GET", "workers/gpu@0")[0] == 404


@pytest.mark.skipif(not harness.has_localhost(), reason="localhost is no name here (no /etc/hosts)")
def test_a_name_is_resolved_for_all_ranks(router, worker):
    w = worker("gpu")

    def conf(n):
        return f"[pool default]\nhealth_interval = 30s\n[worker gpu]\nurl = http://localhost:{w.port}\ndp_size = {n}\n"
    r = router(conf=conf(2), wait=False).wait_workers("gpu@0", "gpu@1")
    assert r.reload(conf(4))[0]
    assert r.worker_state("gpu@3") == "healthy"
    for n in range(8):
        assert r.chat(prompt(n)).status == 200, "also the new ranks have addresses at once"
    assert set(ranks_of(w.requests)) == set("0123")
    assert len(probes_of(w, "/health")) <= 2, "one host: a starting one is asked a second time, and then each 30 s"
    assert all(m.get("host") == f"localhost:{w.port}" for m in w.requests)


def test_ranks_by_the_admin_api(router, worker):
    w = worker("gpu")
    r = router([worker("w0")])
    status, told = r.admin("POST", "workers", {"name": "gpu", "url": w.url, "dp_size": 2})
    assert status == 201 and [x["name"] for x in told["ranks"]] == ["gpu@0", "gpu@1"], told
    assert [x["rank"] for x in told["ranks"]] == [0, 1]
    r.wait_workers("gpu@0", "gpu@1")
    for body in ({"name": "gpu", "url": "http://127.0.0.1:1"}, {"name": "gpu@1", "url": "http://127.0.0.1:1"}, {"name": "x", "url": w.url}):
        assert r.admin("POST", "workers", body)[0] == 409, body
    assert r.admin("DELETE", "workers/gpu")[0] == 202
    assert r.admin("GET", "workers/gpu@1")[0] == 404
    p = ctl(r, "add", "gpu", w.url, "dp_size=3")
    assert p.returncode == 0 and [row.split()[0] for row in p.stdout.splitlines()[1:]] == ["gpu@0", "gpu@1", "gpu@2"], p


def test_names_of_ranks_may_not_clash(tmp_path):
    conf = tmp_path / "k.conf"
    conf.write_text("[worker a]\nurl = http://h:1\ndp_size = 2\n[worker a@1]\nurl = http://h:2\n")
    p = subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and "a@1" in p.stderr and "rank" in p.stderr
    conf.write_text("[worker a]\nurl = http://h:1\ndp_size = 2\n[worker a@2]\nurl = http://h:2\n")
    assert subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], timeout=60).returncode == 0


def test_flags_of_the_vllm_router_make_ranks(router, worker):
    w = worker("gpu")
    r = router([w], args=["--worker-urls", w.url, "--intra-node-data-parallel-size", "2", "--host", "127.0.0.1", "--port", "0",
                          "--prometheus-port", "0", "--admin-socket", "admin.sock"], wait=False)
    r.wait_workers(f"127.0.0.1:{w.port}@0", f"127.0.0.1:{w.port}@1")
    for n in range(4):
        assert r.chat(prompt(n)).status == 200
    assert set(ranks_of(w.requests)) == {"0", "1"}


def test_ranks_of_our_own_engine(router):
    """Each rank of kvsteer-engine has a cache of its own: the second turn finds it where the router
    sends it."""
    with Engine("--backend", "sim", "--sim-speed", "0") as e:
        r = router(conf=f"[pool default]\nhealth_interval = 1s\n[worker e]\nurl = {e.url}\ndp_size = 3\n", keys="expose_worker = on\n", wait=False)
        r.wait_workers("e@0", "e@1", "e@2")
        seen = set()
        for n in range(6):
            first = r.request(body={"model": "sim", "messages": prompt(n), "max_tokens": 1})
            again = r.request(body={"model": "sim", "messages": prompt(n), "max_tokens": 1})
            assert first.status == again.status == 200, first.body
            assert first.get("x-kvsteer-worker") == again.get("x-kvsteer-worker")
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 256
            seen.add(first.get("x-kvsteer-worker"))
        assert seen == {"e@0", "e@1", "e@2"}


# ---- generations ----

DROPS = ["/flush_cache", "/reset_prefix_cache", "/update_weights", "/update_weights_from_disk", "/update_weights_from_tensor",
         "/collective_rpc", "/finish_weight_update", "/sleep", "/release_memory_occupation", "/pause", "/release_kv_cache_memory"]


def test_d3_passed_calls_that_drop_caches_bump_the_generation(router, worker):
    w = worker("w0")
    r = router([w], keys="pass_paths = " + " ".join(DROPS) + " /resume /update_weight\n")
    for i, path in enumerate(DROPS):
        assert r.chat(CHAT["messages"]).status == 200
        assert r.explain(CHAT)["reason"] == "only_candidate" and r.explain(CHAT)["candidates"][0]["depth"] > 0
        assert r.request("POST", path + "?x=1", body={}).status == 200
        assert r.metric("kvsteer_pool_generation", pool="default") == i + 1
        assert r.explain(CHAT)["candidates"][0]["depth"] == 0, path
        r.wait_log(f"pool default: generation {i + 1}, after a call of {path}")
    for method, path in (("POST", "/resume"), ("POST", "/update_weight"), ("GET", "/pause"), ("OPTIONS", "/flush_cache")):
        assert r.request(method, path, body={} if method == "POST" else None).status == 200
    assert r.metric("kvsteer_pool_generation", pool="default") == len(DROPS)
    assert r.admin("GET", "status")[1]["pools"][0]["generation"] == len(DROPS)


def test_d3_a_call_that_failed_bumps_nothing(router, worker):
    w = worker("w0")
    r = router([w], keys="pass_paths = *\nallow_pin = on\n")
    assert r.chat(CHAT["messages"]).status == 200
    w.handler = lambda x: x.answer(400, "{}")
    assert r.request("POST", "/flush_cache", body={}).status == 400
    w.handler = lambda x: x.wire.reset()
    assert r.request("POST", "/flush_cache", body={}).status == 502
    assert r.metric("kvsteer_pool_generation", pool="default") == 0
    assert r.explain(CHAT)["candidates"][0]["depth"] > 0
    # Without pass_paths nothing of the kind reaches a worker at all.
    w.handler = harness.answer_ok
    w.clear()
    assert r.reload(worker_conf([w]))[0]


def test_d3_only_the_pool_that_was_called(router, worker):
    a, b = worker("a"), worker("b")
    r = router(conf=f"[pool one]\nmodels = m1\nhealth_interval = 1s\n[pool two]\nhealth_interval = 1s\n"
                    f"[worker a]\nurl = {a.url}\npool = one\n[worker b]\nurl = {b.url}\npool = two\n", keys="pass_paths = /flush_cache\n", wait=False)
    r.wait_workers("a", "b")
    for model in ("m1", "m2"):
        assert r.request(body=dict(CHAT, model=model)).status == 200
    assert r.request("POST", "/flush_cache", body={}).status == 200
    assert len(b.requests) == 2, "a call without a model is for the pool that takes all"
    assert r.metric("kvsteer_pool_generation", pool="two") == 1 and r.metric("kvsteer_pool_generation", pool="one") == 0
    assert r.explain(dict(CHAT, model="m1"))["candidates"][0]["depth"] > 0
    assert r.explain(dict(CHAT, model="m2"))["candidates"][0]["depth"] == 0


@pytest.mark.tsan
def test_d3_a_request_under_way_at_the_bump_leaves_nothing(router, worker):
    """Its prompt was keyed and inserted for weights that are gone when its answer comes."""
    hold = Hold()
    w = worker("w0", hold)
    r = router([w])
    with r.connect() as c:
        c.send(make_request(body=CHAT))
        w.wait_requests(1)
        assert r.admin("POST", "pools/default/generation")[1]["generation"] == 1
        hold.release()
        assert c.read_response().status == 200
    assert r.explain(CHAT)["candidates"][0]["depth"] == 0
    w.handler = harness.answer_ok
    assert r.chat(CHAT["messages"]).status == 200
    assert r.explain(CHAT)["candidates"][0]["depth"] > 0


def test_d3_flush_of_all_workers_of_a_pool(router, worker):
    """Each host once, by SGLang's call or else vLLM's; the generation moves once, when all have
    answered."""
    def vllm_flush(x):
        x.answer(404 if x.request.target == "/base/flush_cache" else 200, "{}")
    a, b = worker("a"), worker("b", vllm_flush, base="/base")
    other = worker("other")
    conf = (f"[pool default]\nhealth_interval = 1s\n[pool two]\nmodels = z\n[worker a]\nurl = {a.url}\ndp_size = 3\nworker_key = sesame\n"
            f"[worker b]\nurl = {b.url}\n[worker other]\nurl = {other.url}\npool = two\n")
    r = router(conf=conf, wait=False).wait_workers("a@0", "a@2", "b", "other")
    p = ctl(r, "flush", "default")
    assert p.returncode == 0 and p.stdout == "1\n", p
    assert [(m.method, m.target, m.get("authorization")) for m in a.requests] == [("POST", "/flush_cache", "Bearer sesame")]
    assert [m.target for m in b.requests] == ["/base/flush_cache", "/base/reset_prefix_cache"]
    assert other.requests == []
    assert r.admin("POST", "pools/default/flush")[1]["flushed"] == ["a", "b"]
    assert r.metric("kvsteer_pool_generation", pool="default") == 2 and r.metric("kvsteer_pool_generation", pool="two") == 0
    b.stop()
    p = ctl(r, "flush", "default")
    assert p.returncode == 1 and "b (connection refused)" in p.stderr, p
    status, told = r.admin("POST", "pools/default/flush")
    assert status == 502 and told["flushed"] == ["a"] and told["failed"][0]["worker"] == "b"
    assert r.metric("kvsteer_pool_generation", pool="default") == 2, "it does not hold for all: who did it is forgotten alone"
    assert ctl(r, "flush", "none").returncode == 1 and r.admin("POST", "pools/default/other")[0] == 404


def test_flush_where_nobody_flushes(router, worker):
    w = worker("w0", lambda x: x.answer(404, "{}"))
    r = router([w])
    assert r.admin("POST", "pools/default/flush")[0] == 502
    assert [m.target for m in w.requests] == ["/flush_cache", "/reset_prefix_cache"]
    assert r.metric("kvsteer_pool_generation", pool="default") == 0
    assert r.admin("DELETE", "workers/w0")[0] == 202
    assert r.admin("POST", "pools/default/flush") == (200, {"pool": "default", "generation": 0, "flushed": [], "failed": []})


def test_a_caller_that_leaves_a_flush(router, worker):
    """It goes on, and the daemon ends well even while one is under way."""
    hold = Hold()
    w = worker("w0", hold)
    r = router([w])
    p = subprocess.Popen([harness.program("kvsteerctl"), "-s", r.admin_path, "flush", "default"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    w.wait_requests(1)
    p.kill()
    p.wait()
    hold.release()
    r.wait_log("/flush_cache on 1 of 1 workers, generation 1")
    w.handler = Hold()
    p = subprocess.Popen([harness.program("kvsteerctl"), "-s", r.admin_path, "flush", "default"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    w.wait_requests(2)
    r.stop()
    p.wait(60)


# ---- what workers say ----

VLLM = ('vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'
        'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
        "process_start_time_seconds {start}\n")


def vllm(running=0, waiting=0, blocks=100, start=1000.5):
    return VLLM.format(running=running, waiting=waiting, blocks=blocks, start=start)


def reported(r, name):
    return r.admin("GET", "workers/" + name)[1]["reported"]


def test_reported_load_is_shown(router, worker):
    w = worker("w0")
    w.metrics_text = vllm(running=5, waiting=2)
    r = router(conf=conf_of(w), wait=False).wait_workers("w0")
    said = wait_until(lambda: reported(r, "w0"), "a report")
    assert (said["running"], said["waiting"], said["of_others"], said["is_fresh"]) == (5, 2, 7, True)
    assert r.metric("kvsteer_worker_reported_requests", worker="w0", state="running") == 5
    assert r.metric("kvsteer_worker_reported_requests", worker="w0", state="waiting") == 2
    assert r.metric("kvsteer_worker_capacity_tokens", worker="w0") == 1600
    assert r.metric("kvsteer_worker_load", worker="w0") == 0, "a guard's load is this router's own"
    assert "5+2" in ctl(r, "workers").stdout and "5+2" in ctl(r, "workers", "w0").stdout
    w.metrics_text = vllm(running=1)
    wait_until(lambda: reported(r, "w0")["running"] == 1, "the next report")


@pytest.mark.tsan
def test_others_load_counts_with_load_source_reported(router, worker):
    a, b = worker("a"), worker("b")
    a.metrics_text, b.metrics_text = vllm(running=9), vllm()
    r = router(conf=conf_of(a, b, pool="policy = least_requests\nload_source = reported"), wait=False).wait_workers("a", "b")
    wait_until(lambda: reported(r, "a") and reported(r, "b"), "reports")
    for n in range(6):
        assert r.chat(prompt(n)).status == 200
    assert len(b.requests) == 6 and a.requests == []
    assert [c["load"] for c in r.explain(CHAT)["candidates"]] == [9, 0]
    # Own again: others' requests count no more.
    assert r.reload(conf_of(a, b, pool="policy = least_requests"))[0]
    assert [c["load"] for c in r.explain(CHAT)["candidates"]] == [0, 0]
    for n in range(6):
        assert r.chat(prompt(n)).status == 200
    assert len(a.requests) == 3


def test_own_requests_are_not_counted_twice(router, worker):
    hold = Hold()
    w = worker("w0", hold)
    w.metrics_text = vllm()
    r = router(conf=conf_of(w, pool="load_source = reported"), wait=False).wait_workers("w0")
    conns = [r.connect() for _ in range(3)]
    for n, c in enumerate(conns):
        c.send(make_request(body=dict(CHAT, messages=prompt(n))))
    w.wait_requests(3)
    w.metrics_text = vllm(running=3, waiting=1)
    wait_until(lambda: (reported(r, "w0") or {}).get("running") == 3, "a report that has them")
    assert reported(r, "w0")["of_others"] == 1
    assert r.explain(CHAT)["candidates"][0]["load"] == 4
    hold.release()
    assert [c.read_response().status for c in conns] == [200] * 3


def test_stale_reports_count_nothing(router, worker):
    w = worker("w0")
    w.metrics_text = vllm(running=9)
    r = router(conf=conf_of(w, pool="load_source = reported", every="50ms"), wait=False).wait_workers("w0")
    wait_until(lambda: r.explain(CHAT)["candidates"][0]["load"] == 9, "the report counts")
    w.metrics_text = None  # 404 from now on
    wait_until(lambda: r.explain(CHAT)["candidates"][0]["load"] == 0, "three intervals later it does not")
    assert reported(r, "w0")["is_fresh"] is False and reported(r, "w0")["running"] == 9
    assert "(9+0)" in ctl(r, "workers").stdout
    assert not any(s.startswith("kvsteer_worker_reported_requests{") for s in r.metrics())


def test_b33_polled_load_does_not_herd(router, worker):
    """B33 (d): eight prompts inside one poll interval; one worker says 0, the other 1."""
    hold = Hold()
    a, b = worker("a", hold), worker("b", hold)
    a.metrics_text, b.metrics_text = vllm(running=0), vllm(running=1)
    r = router(conf=conf_of(a, b, pool="load_source = reported", every="30s"), wait=False).wait_workers("a", "b")
    wait_until(lambda: reported(r, "a") and reported(r, "b"), "reports")
    conns = [r.connect() for _ in range(8)]
    for n, c in enumerate(conns):
        c.send(make_request(body=dict(CHAT, messages=prompt(n))))
    wait_until(lambda: len(a.requests) + len(b.requests) == 8, "all eight")
    assert 3 <= len(a.requests) <= 5
    hold.release()
    assert [c.read_response().status for c in conns] == [200] * 8


def test_reports_of_ranks(router, worker):
    w = worker("gpu")
    w.metrics_text = ('vllm:num_requests_running{engine="0"} 4\nvllm:num_requests_running{engine="1"} 0\n'
                      'vllm:num_requests_waiting{engine="1"} 1\n'
                      'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1\n'
                      'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20"} 1\n')
    r = router(conf=conf_of(w, lines="dp_size = 2", pool="load_source = reported"), wait=False).wait_workers("gpu@0", "gpu@1")
    wait_until(lambda: reported(r, "gpu@0") and reported(r, "gpu@1"), "reports")
    assert [c["load"] for c in r.explain(CHAT)["candidates"]] == [4, 1]
    assert [r.metric("kvsteer_worker_capacity_tokens", worker=f"gpu@{k}") for k in (0, 1)] == [160, 320]


@pytest.mark.parametrize("path,told,loads", [
    ("/v1/loads?include=core", {"loads": [{"dp_rank": 1, "num_running_reqs": 3, "num_waiting_reqs": 1}, {"dp_rank": 0, "num_running_reqs": 2}]}, [2, 4]),
    ("/get_load", [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2}, {"dp_rank": 1, "num_reqs": 0, "num_waiting_reqs": 0}], [5, 0]),
])
def test_sglang_without_metrics(router, worker, path, told, loads):
    """Capacity from server_info, load from loads; each asked for as long as it is of use, and 404
    paths left alone."""
    w = worker("gpu")
    w.told["/server_info"] = {"max_total_num_tokens": 4096, "dp_size": 2, "instance_id": "one"}
    w.told[path] = told
    r = router(conf=conf_of(w, lines="dp_size = 2", pool="load_source = reported", every="500ms"), wait=False).wait_workers("gpu@0", "gpu@1")
    wait_until(lambda: reported(r, "gpu@1"), "a report")
    assert [c["load"] for c in r.explain(CHAT)["candidates"]] == loads
    assert r.metric("kvsteer_worker_capacity_tokens", worker="gpu@1") == 4096
    n = len(probes_of(w, path))
    wait_until(lambda: len(probes_of(w, path)) >= n + 3, "load is asked for again and again")
    assert len(probes_of(w, "/metrics")) == 1 and len(probes_of(w, "/server_info")) == 1 and len(probes_of(w, "/get_server_info")) == 0


def test_configured_capacity_wins_and_learned_one_follows_the_worker(router, worker):
    a, b = worker("a"), worker("b")
    a.metrics_text = b.metrics_text = vllm(blocks=4)
    r = router(conf=conf_of(a, b, every="50ms") + "capacity = 128\n", wait=False).wait_workers("a", "b")
    wait_until(lambda: r.metric("kvsteer_worker_capacity_tokens", worker="a") == 64, "learned")
    assert r.admin("GET", "workers/a")[1]["capacity_from"] == "learned"
    told = r.admin("GET", "workers/b")[1]
    assert (told["capacity_tokens"], told["capacity_from"]) == (128, "configured")
    for n in range(4):
        assert r.chat(prompt(n)).status == 200
    assert blocks(r, "a") == 2 and blocks(r, "b") == 4, "tokens x 4 / 128 blocks"
    # The engine comes back with another cache: what is believed shrinks and grows with it.
    a.metrics_text = vllm(blocks=8, start=2000.5)
    wait_until(lambda: r.metric("kvsteer_worker_capacity_tokens", worker="a") == 128, "learned anew")
    assert blocks(r, "a") == 0
    for n in range(4):
        assert r.chat(prompt(n)).status == 200
    assert blocks(r, "a") == 4


# ---- restarts ----

def test_a_quick_restart_is_seen_though_no_probe_failed(router, worker):
    w = worker("w0")
    w.metrics_text = vllm(start=1000.5)
    r = router(conf=conf_of(w, every="50ms"), wait=False).wait_workers("w0")
    assert r.chat(CHAT["messages"]).status == 200
    n = len(probes_of(w, "/metrics"))
    wait_until(lambda: len(probes_of(w, "/metrics")) >= n + 3, "three more reports")
    assert blocks(r, "w0") > 0
    w.metrics_text = vllm(start=1007.25)
    r.wait_log("worker w0 was restarted: its cache counts as empty")
    assert blocks(r, "w0") == 0 and r.worker_state("w0") == "healthy"
    n = len(probes_of(w, "/metrics"))
    wait_until(lambda: len(probes_of(w, "/metrics")) >= n + 3, "three more reports")
    assert r.log().count("was restarted") == 1, "logged once"


def test_restart_by_engine_id(router, worker):
    w = worker("w0")
    w.told["/server_info"] = {"engine_id": "first"}
    r = router(conf=conf_of(w, every="50ms"), wait=False).wait_workers("w0")
    assert r.chat(CHAT["messages"]).status == 200
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    w.healthy = True
    r.wait_workers("w0")
    assert blocks(r, "w0") > 0, "the same engine keeps what it had"
    w.healthy = False
    r.wait_workers("w0", state="unhealthy")
    w.told["/server_info"] = {"engine_id": "second"}
    w.healthy = True
    r.wait_workers("w0")
    assert blocks(r, "w0") == 0
    r.wait_log("was restarted")
    assert r.log().count("was restarted") == 1


def test_restart_by_counters_that_began_anew(router, worker):
    """Several API processes of one vLLM give no start time: their token counters tell."""
    w = worker("w0")
    w.metrics_text = "vllm:prompt_tokens_total 5000\nvllm:generation_tokens_total 100\n"
    r = router(conf=conf_of(w, every="50ms"), wait=False).wait_workers("w0")
    assert r.chat(CHAT["messages"]).status == 200
    w.metrics_text = "vllm:prompt_tokens_total 5200\nvllm:generation_tokens_total 101\n"
    n = len(probes_of(w, "/metrics"))
    wait_until(lambda: len(probes_of(w, "/metrics")) >= n + 3, "three more reports")
    assert blocks(r, "w0") > 0
    w.metrics_text = "vllm:prompt_tokens_total 10\nvllm:generation_tokens_total 1\n"
    r.wait_log("worker w0 was restarted")
    assert blocks(r, "w0") == 0


def test_restart_clears_every_rank(router, worker):
    w = worker("gpu")
    w.metrics_text = vllm(start=1000.5)
    r = router(conf=conf_of(w, lines="dp_size = 2", every="50ms"), wait=False).wait_workers("gpu@0", "gpu@1")
    for n in range(4):
        assert r.chat(prompt(n)).status == 200
    assert blocks(r, "gpu@0") and blocks(r, "gpu@1")
    w.metrics_text = vllm(start=2000.5)
    r.wait_log("worker gpu was restarted")
    assert blocks(r, "gpu@0") == blocks(r, "gpu@1") == 0
    r.wait_log("was restarted")
    assert r.log().count("was restarted") == 1


def test_restart_of_a_real_engine(router):
    """Same port, new process: what it held is forgotten; the next prompt is no match, and then it
    is one again."""
    with Engine("--backend", "sim", "--sim-speed", "0") as first:
        port = first.port
        r = router(conf=f"[pool default]\nhealth_interval = 50ms\n[worker e]\nurl = {first.url}\n", wait=False).wait_workers("e")
        assert r.request(body=dict(CHAT, model="sim", max_tokens=1)).status == 200
        assert blocks(r, "e") > 0
        told = wait_until(lambda: r.admin("GET", "workers/e")[1]["capacity_tokens"], "its capacity is learned")
        assert told > 0 and reported(r, "e") is not None
    second = Engine("--backend", "sim", "--sim-speed", "0", "--sim-blocks", "100")
    second.flags += ["--port", str(port)]
    with second:
        r.wait_log("worker e was restarted")
        r.wait_workers("e")
        assert blocks(r, "e") == 0
        wait_until(lambda: r.admin("GET", "workers/e")[1]["capacity_tokens"] == 100 * 16, "and its new capacity")
        assert r.request(body=dict(CHAT, model="sim", max_tokens=1)).status == 200
        assert blocks(r, "e") > 0


@pytest.mark.tsan
def test_restart_empty_of_a_real_engine_amid_a_stream(router):
    """The process starts anew in no time: no probe fails, and yet nothing of what it held is
    believed any more."""
    with Engine("--backend", "sim", "--sim-speed", "1", "--sim-decode-rate", "20", faults=True) as e:
        r = router(conf=f"[pool default]\nhealth_interval = 50ms\n[worker e]\nurl = {e.url}\n", wait=False).wait_workers("e")
        with r.connect() as c:
            c.send(make_request(body=dict(CHAT, model="sim", max_tokens=1000, stream=True)))
            head = c.read_head()
            assert head.status == 200 and c.read_chunk()
            assert blocks(r, "e") > 0
            e.restart_empty()
            r.wait_log("worker e was restarted: its cache counts as empty")
            assert r.explain(dict(CHAT, model="sim"))["candidates"][0]["depth"] == 0
            with pytest.raises(harness.Closed):
                while c.read_chunk():
                    pass
        r.wait_workers("e")
        assert r.request(body=dict(CHAT, model="sim", max_tokens=1)).status == 200
        assert r.explain(dict(CHAT, model="sim"))["candidates"][0]["depth"] > 0


def test_flush_of_a_real_engine_through_the_router(router):
    with Engine("--backend", "sim", "--sim-speed", "0") as e:
        r = router(conf=f"[pool default]\nhealth_interval = 1s\n[worker e]\nurl = {e.url}\n", keys="pass_paths = /flush_cache\n", wait=False).wait_workers("e")

        def cached():
            a = r.request(body=dict(CHAT, model="sim", max_tokens=1))
            return a.json()["usage"]["prompt_tokens_details"]["cached_tokens"], r.explain(dict(CHAT, model="sim"))["candidates"][0]["depth"]
        assert cached()[0] == 0
        assert all(cached())
        assert r.request("POST", "/flush_cache", body={}).status == 200
        assert r.explain(dict(CHAT, model="sim"))["candidates"][0]["depth"] == 0
        assert cached()[0] == 0, "the engine forgot it too"


# ---- probes ----

def test_slow_probes_are_good_probes(router, worker):
    """SGLang generates a token for each probe and takes a second and more."""
    w = worker("w0")
    pause = threading.Event()

    def slow(x):
        if x.request.target == "/health":
            pause.wait(1.2)
        x.answer(200, "{}")
    w.healthy = slow
    r = router(conf=conf_of(w, every="100ms", pool="health_failures = 1"), wait=False).wait_workers("w0")
    n = len(probes_of(w, "/health"))
    wait_until(lambda: len(probes_of(w, "/health")) >= n + 3, "three more probes")
    assert r.worker_state("w0") == "healthy" and "unhealthy" not in r.log()
    assert int(re.search(r"200 in (\d+) ms", r.admin("GET", "workers/w0")[1]["reason"]).group(1)) >= 1000


def test_probe_path_key_and_status_of_each_worker(router, worker):
    """Its own path and key; every 2xx is good, nothing else is."""
    a, b, c = worker("a"), worker("b"), worker("c")
    seen = {}

    def probed(status, key):
        def answer(x):
            seen.setdefault(x.worker.name, []).append((x.request.target, x.request.get("authorization")))
            x.answer(status if x.request.get("authorization") == key else 401, "{}")
        return answer
    a.handler, b.handler, c.healthy = probed(204, "Bearer ka"), probed(299, None), probed(304, None)
    r = router(conf=f"[pool default]\nhealth_interval = 50ms\n"
                    f"[worker a]\nurl = {a.url}\nhealth_path = /ping?x=1\nworker_key = ka\n"
                    f"[worker b]\nurl = {b.url}/base\nhealth_path = /alive\n"
                    f"[worker c]\nurl = {c.url}\n", wait=False)
    r.wait_workers("a", "b")
    wait_until(lambda: len(seen.get("c", [])) >= 3, "three probes of c")
    assert r.worker_state("c") == "starting" and "304" in r.admin("GET", "workers/c")[1]["reason"]
    assert ("/ping?x=1", "Bearer ka") in seen["a"] and ("/base/alive", None) in seen["b"]
    assert {key for _, key in seen["a"]} == {"Bearer ka"} and {key for _, key in seen["b"]} == {None}


def test_reports_carry_the_workers_key(router, worker):
    w = worker("w0")
    w.metrics_text = vllm()
    r = router(conf=f"[pool default]\nhealth_interval = 50ms\n[worker w0]\nurl = {w.url}\nworker_key = sesame\n", wait=False).wait_workers("w0")
    wait_until(lambda: reported(r, "w0"), "a report")
    assert {m.get("authorization") for m in w.probes} == {"Bearer sesame"} and json.dumps(r.log()).find("sesame") < 0


NONSENSE = [b"\xff\xfe\x00vllm:num_requests_running 5", b"vllm:num_requests_running{" * 1000, b"{" * 100000, b"[" * 100000,
            b'{"loads":[[[]]],"load":1e400}', b"vllm:num_requests_running 1e999\nprocess_start_time_seconds -inf\n"]


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
def test_reports_that_are_nonsense(router, worker, body):
    w = worker("w0")

    def answer(x):
        x.answer(200, body)
    w.healthy = answer
    r = router(conf=conf_of(w, pool="load_source = reported", every="50ms"), wait=False).wait_workers("w0")
    n = len(probes_of(w, "/health"))
    wait_until(lambda: len(probes_of(w, "/health")) >= n + 3, "three more probes")
    assert r.chat(CHAT["messages"]).status == 200 and r.worker_state("w0") == "healthy"
    assert r.explain(CHAT)["candidates"][0]["load"] == 0
