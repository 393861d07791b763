"""Prefill and decode in configuration, on the command line and by the admin API: what is taken,
what is said of mistakes, and that the engines may be started in any order."""
import subprocess

import pytest

import harness
from harness import worker_conf

HEAD = "[router]\nlisten = 127.0.0.1:0\nmetrics_listen = none\nadmin_socket = none\n"
P = "[worker p]\nurl = http://127.0.0.1:1\nrole = prefill\n"
D = "[worker d]\nurl = http://127.0.0.1:2\nrole = decode\n"


def kvsteerd(*args):
    return subprocess.run([harness.program("kvsteerd"), *args], capture_output=True, text=True, timeout=harness.DEADLINE)


def check(tmp_path, text):
    path = tmp_path / "pd.conf"
    path.write_text(HEAD + text)
    return path, kvsteerd("-t", "-c", str(path))


@pytest.mark.parametrize("connector", ["nixl", "mooncake", "p2p_nccl", "sglang"])
def test_a_pair_is_taken_without_a_word(tmp_path, connector):
    path, p = check(tmp_path, f"[pool default]\nkv_connector = {connector}\npd_min_prefill = 100\n{P}bootstrap_port = 8998\nkv_group = a\n{D}kv_group = a\n")
    assert p.returncode == 0 and "warning" not in p.stderr, p.stderr
    printed = kvsteerd("-T", "-c", str(path)).stdout
    for line in (f"kv_connector = {connector}", "pd_min_prefill = 100", "role = prefill", "role = decode", "bootstrap_port = 8998", "kv_group = a"):
        assert f"\n{line}\n" in printed, line


@pytest.mark.parametrize("text, line, said", [
    (f"[pool default]\n{P}{D}", 5, "kv_connector: pool default has prefill and decode workers but no kv_connector"),
    (f"[pool default]\nkv_connector = nixl\n{D}", 5, "pool default has decode workers but none for prefill"),
    (f"[pool default]\nkv_connector = nixl\n{P}{D}kv_group = a\n", 7, "kv_group = none: worker p is in a group without decode workers"),
    (f"[pool default]\nkv_connector = nixl\n{P}{D}[worker u]\nurl = http://127.0.0.1:3\n", 13, "role = unified: worker u is unified in a pool with decode workers"),
])
def test_doubtful_pairs_are_warned_of(tmp_path, text, line, said):
    path, p = check(tmp_path, text)
    assert p.returncode == 0, p.stderr
    assert f"{path}:{line}: warning: {said}" in p.stderr, p.stderr


@pytest.mark.parametrize("text, line, said", [
    (f"[pool default]\nkv_connector = nccl\n{P}{D}", 6, "kv_connector = nccl: is not known; available: none, nixl, mooncake, p2p_nccl, sglang, nixl_push"),
    (f"[pool default]\nkv_connector = nixl\n[pool default decode]\nkv_connector = sglang\n{P}{D}", 8,
     "kv_connector = sglang: prefill and decode of pool default have different connectors"),
])
def test_wrong_pairs_are_refused(tmp_path, text, line, said):
    path, p = check(tmp_path, text)
    assert p.returncode == 1, p.stderr
    assert f"{path}:{line}: {said}" in p.stderr, p.stderr


@pytest.mark.parametrize("flag, connector", [("--vllm-pd-disaggregation", "nixl"), ("--pd-disaggregation", "sglang"), (None, "nixl")])
def test_a5_command_lines_of_peers(flag, connector):
    p = kvsteerd("-T", *([flag] if flag else []), "--prefill", "http://127.0.0.1:1", "9001", "--prefill", "http://127.0.0.1:2", "none", "--decode",
                 "http://127.0.0.1:3", "http://127.0.0.1:4", "--prefill-policy", "random", "--pd-uncached-token-threshold", "64")
    assert p.returncode == 0 and "warning" not in p.stderr, p.stderr
    for line in (f"kv_connector = {connector}", "pd_min_prefill = 64", "bootstrap_port = 9001"):
        assert f"\n{line}\n" in p.stdout, line
    assert p.stdout.count("\nrole = prefill\n") == 2 and p.stdout.count("\nrole = decode\n") == 2


def roles(r):
    return {w["name"]: w["role"] for w in r.admin("GET", "workers")[1]["workers"]}


def add(r, w, role, **more):
    return r.admin("POST", "workers", {"name": w.name, "url": w.url, "role": role, **more})[0]


def test_engines_may_come_in_any_order(router, worker):
    """Decode first, by the API, into a pool that has nobody; then prefill; and a reload keeps
    both."""
    p, d = worker("p"), worker("d")
    conf = "[pool default]\nhealth_interval = 1s\nkv_connector = nixl\n"
    r = router(conf=conf)
    assert add(r, d, "decode", kv_group="a") == 201
    r.wait_workers("d")
    assert add(r, p, "prefill", kv_group="a", bootstrap_port=8998) == 201
    r.wait_workers("p")
    assert roles(r) == {"d": "decode", "p": "prefill"}
    assert add(r, p, "encode") == 400
    assert r.reload(conf)[0]
    assert roles(r) == {"d": "decode", "p": "prefill"}


def test_a_reload_parts_a_pool(router, worker):
    a, b = worker("a"), worker("b")
    r = router([a, b])
    r.wait_workers("a", "b")
    conf = worker_conf([a], "kv_connector = nixl").replace(f"url = {a.url}\n", f"url = {a.url}\nrole = prefill\n")
    assert r.reload(conf + f"[worker b]\nurl = {b.url}\nrole = decode\n")[0]
    r.wait_workers("a", "b")
    assert roles(r) == {"a": "prefill", "b": "decode"}
    assert r.reload(worker_conf([a, b]))[0]
    r.wait_workers("a", "b")
    assert roles(r) == {"a": "unified", "b": "unified"}
