"""kvsteer-bench --simulate, the real binary: its report, its drawing, what it refuses; and its
figures against a calculation here."""
import json
import os
import random
import subprocess
import xml.etree.ElementTree as ET

import pytest

import harness
from harness import DEADLINE, program

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def has_bench():
    if not os.path.exists(os.path.join(harness.builddir(), "kvsteer-bench")):
        pytest.skip("kvsteer-bench is not built")


def simulate(*flags, expect=0):
    done = subprocess.run([program("kvsteer-bench"), "--simulate", *map(str, flags)], capture_output=True, text=True, timeout=DEADLINE * 3, check=False)
    assert done.returncode == expect, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def report(*flags):
    return json.loads(simulate(*flags, "--json", "-").stdout)


def write_trace(path, requests):
    with open(path, "w") as f:
        for r in requests:
            f.write(json.dumps(r) + "\n")
    return path


def made_up(n=400, seed=3):
    """Conversations that grow by a block or two each turn, under one common first block; none ends
    a block of 16 tokens."""
    rng, talks, next_id, out = random.Random(seed), [], 1, []
    for i in range(n):
        talks = [t for t in talks if len(t) < 14][-40:]
        if not talks or rng.random() < 0.3:
            talks.append([0])
        talk = rng.choice(talks)
        for _ in range(rng.randint(1, 3)):
            talk.append(next_id)
            next_id += 1
        out.append({"timestamp": i * 700 + rng.randint(0, 600), "input_length": 512 * len(talk), "output_length": 1 + rng.randint(0, 50), "hash_ids": list(talk)})
    for r in out:
        r["input_length"] -= 5  # the last block is a short one, and another than the whole one that the next turn has
        r["hash_ids"][-1] += 10**6
    return out


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace.jsonl", made_up())


def ceiling(requests):
    seen, hits, total = set(), 0, 0
    for r in requests:
        ids = r["hash_ids"]
        hits += next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        total += len(ids)
        seen.update(ids)
    return hits / total


def lru(requests, kv_tokens):
    """Tokens found by one worker, one request after another: blocks of 16 tokens; what was used
    longest ago goes, of one prompt its end first."""
    cached, room, held = 0, kv_tokens // 16, {}  # held: in order of age
    for r in requests:
        full = [(block, i) for block in r["hash_ids"] for i in range(32)][: r["input_length"] // 16]
        need = -(-r["input_length"] // 16)
        found = next((i for i, b in enumerate(full) if b not in held), len(full))
        found = min(found, (r["input_length"] - 1) // 16)
        in_use = full[:found]
        for b in in_use:
            del held[b]
        while len(held) + need > room:
            del held[next(iter(held))]
        for b in reversed(full):
            held[b] = True
        cached += 16 * found
    return cached


def test_report_is_whole_and_repeatable(trace):
    flags = ("--trace", trace, "--policy", "all", "--workers", 4, "--prefill-rate", 4000, "--kv-tokens", 20000, "--seed", 7)
    one, two = report(*flags), report(*flags)
    for p in one["policies"] + two["policies"]:
        del p["real_s"]
    assert one == two
    names = [p["policy"] for p in one["policies"]]
    assert names[0] == "round_robin" and len(set(names)) == len(names)
    assert any(n.startswith("cache_aware:longest_prefix:overload_check") for n in names)
    assert one["ceiling"]["hit_rate"] == pytest.approx(ceiling(made_up()))
    for p in one["policies"]:
        t = p["ttft_s"]
        assert p["requests"] == 400 == sum(p["reasons"].values())
        assert t["p50"] <= t["p99"] <= t["max"] and t["mean"] <= t["max"]
        assert p["cached_tokens"] + p["computed_tokens"] >= p["prompt_tokens"]
        assert 0 < p["hit_rate"] <= one["ceiling"]["hit_rate"] + 1e-9
        assert p["recomputed_tokens"] == p["computed_tokens"] - one["ceiling"]["computed_tokens"] >= 0
        assert p["requests_spread"] >= 1 and p["work_spread"] >= 1


def test_prefixes_are_followed(trace):
    """Enough workers and room: cache_aware finds nearly all there is, and is far ahead of round
    robin."""
    r = report("--trace", trace, "--policy", "cache_aware,prefix_ttl=0", "--workers", 8)
    robin, aware = r["policies"]
    assert aware["hit_rate"] > 0.9 * r["ceiling"]["hit_rate"] > 1.5 * robin["hit_rate"]


@pytest.mark.parametrize("kv_tokens", (0, 16384, 60000))
def test_one_worker_is_an_lru_cache(tmp_path, kv_tokens):
    requests = made_up(300)
    for r in requests:
        r["output_length"] = 1  # what is generated takes no room
    path = write_trace(tmp_path / "trace.jsonl", requests)
    r = report("--trace", path, "--policy", "round_robin", "--workers", 1, "--kv-tokens", kv_tokens, "--speed-free")
    (one,) = r["policies"]
    assert one["cached_tokens"] == lru(requests, kv_tokens or 10**9)
    assert one["ttft_s"]["max"] == 0
    assert one["cached_tokens"] == r["ceiling"]["cached_tokens"] if kv_tokens == 0 else one["cached_tokens"] < r["ceiling"]["cached_tokens"]


def test_conversation_trace_reaches_what_is_known_of_it(shared):
    path = os.path.join(shared, "traces", "conversation_trace.jsonl")
    if not os.path.exists(path):
        pytest.skip("no traces (KVSTEER_SHARED names the folder of the shared material)")
    r = report("--trace", path, "--policy", "cache_aware,prefix_ttl=0", "--workers", 16, "--prefill-rate", 5300)
    robin, aware = r["policies"]
    assert round(r["ceiling"]["hit_rate"], 3) == 0.366 and round(robin["hit_rate"], 3) == 0.099
    assert aware["hit_rate"] >= 0.36 and aware["requests_spread"] <= 1.25


def test_table(trace):
    out = simulate("--trace", trace, "--policy", "least_requests", "--requests", 100).stdout
    lines = out.splitlines()
    assert "100 requests" in lines[0]
    rows = [line.split()[0] for line in lines if line.split()[:1] in (["ceiling"], ["round_robin"], ["least_requests"])]
    assert rows == ["ceiling", "round_robin", "least_requests"]


def test_plot_is_a_drawing(trace, tmp_path):
    path = tmp_path / "a.svg"
    spec = "cache_aware,cache_threshold=0.25"
    simulate("--trace", trace, "--policy", spec, "--policy", "random", "--plot", path)
    root = ET.parse(path).getroot()
    assert root.tag == SVG + "svg"
    width, height = float(root.get("width")), float(root.get("height"))
    bars = [b for b in root.iter(SVG + "rect") if b.get("fill") != "#fff"]
    texts = ["".join(t.itertext()) for t in root.iter(SVG + "text")]
    lines = list(root.iter(SVG + "line"))
    assert len(bars) == 4 * 3  # panels, policies
    for b in bars:
        x, y, w, h = (float(b.get(k)) for k in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height and w >= 0
    for t in root.iter(SVG + "text"):
        assert 0 <= float(t.get("x")) <= width and 0 <= float(t.get("y")) <= height
    for label in ("round_robin", spec, "random", "block hit rate", "TTFT, mean (s)", "TTFT, 99th percentile (s)"):
        assert label in texts
    assert sum(line.get("class") == "ceiling" for line in lines) == 3 + 1  # panels, legend
    assert sum(line.get("class") == "robin" for line in lines) == 4 + 1


def test_plot_escapes_names(tmp_path):
    path = tmp_path / "a & <b> \"c\" é.jsonl"
    write_trace(path, made_up(5))
    simulate("--trace", path, "--policy", "random", "--plot", tmp_path / "a.svg")
    title = "".join(next(ET.parse(tmp_path / "a.svg").getroot().iter(SVG + "text")).itertext())
    assert title.startswith('a & <b> "c" ?')


@pytest.mark.parametrize("flags, says", (
    ((), "--simulate needs --trace"),
    (("--trace", "/nonexistent/x"), "--trace /nonexistent/x: No such file"),
    (("--trace", "TRACE", "--policy", "none_such"), "none_such"),
    (("--trace", "TRACE", "--policy", "cache_aware,cache_threshold=2"), "cache_aware,cache_threshold=2"),
    (("--trace", "TRACE", "--workers", "0"), "--workers 0"),
    (("--trace", "TRACE", "--kv-tokens", "5"), "--kv-tokens"),
    (("--trace", "TRACE", "--prefill-rate", "0"), "--prefill-rate 0"),
    (("--trace", "TRACE", "--plot", "/nonexistent/x.svg"), "--plot /nonexistent/x.svg"),
    (("--trace", "TRACE", "--json", "/nonexistent/x"), "--json /nonexistent/x"),
    (("--trace", "TRACE", "stray"), "stray"),
))
def test_what_is_refused(trace, flags, says):
    done = simulate(*(str(trace) if f == "TRACE" else f for f in flags), expect=2)
    assert says in done.stderr and done.stdout == ""


def test_broken_trace(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9}\n')
    assert f"{path}:1:" in simulate("--trace", path, expect=2).stderr


def test_help_lists_the_flags():
    text = simulate("--help").stdout
    for flag in ("--policy", "--kv-tokens", "--plot", "--speed-free"):
        assert flag in text
    plain = subprocess.run([program("kvsteer-bench"), "--help"], capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    assert "--simulate" in plain
