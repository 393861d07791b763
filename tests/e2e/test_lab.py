"""Faults of workers, each alone and in random mixes, under load: who may notice, how soon the traffic goes elsewhere, and that it comes back by itself."""
import os
import random
import re
import time

import pytest

import harness
from harness import wait_until
from lab import DEGRADED_WINDOW, Lab, degrade, hold_each, mix, mix_under_load, only_whole, tell_outcomes, wait_well, wedge, whole


@pytest.fixture
def lab(router):
    """lab(n, ...) -> a Lab, judged at the end of its with block."""
    return lambda *a, **kw: Lab(router, *a, **kw)


# ---- the laboratory itself ----

def test_what_no_fault_explains_is_found(lab):
    """A stream that breaks, an error, a worker put out: none passes when the laboratory was not told of a fault."""
    with lab(2, pool="health_failures = 1\n") as b:
        e = b.engines[0]
        for fault in ({"cut_after": 1, "cut_left": 1}, {"answer": 500, "answer_left": 1}):
            e.fault(**fault)  # not by the laboratory's own way
            b.ask("lab-unexplained", "x", 4, True, pin="w0")
            with pytest.raises(AssertionError, match="lab-unexplained"):
                b.judge()
            b.outcomes.clear()
            b.log_at = os.path.getsize(b.r.log_path)
        e.fault(health="fail")
        b.r.wait_workers("w0", state="unhealthy")
        with pytest.raises(AssertionError, match="w0"):
            b.judge()
        b.intervals["w0"].append(["health", time.monotonic(), None])
        b.judge()


# ---- each fault alone ----

def test_wedged_with_a_green_health(lab):
    """Nothing new goes to the wedged one once its silence was noticed, within 2 x stall_timeout by the router's own clock; what it has is kept, and is whole."""
    with lab(4) as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b)
        wedge(b, crowd, "w0", 2)
        b.clear("w0")
        b.wait_back()
        whole(streams)
    only_whole(b)


def test_slow_by_a_factor(lab):
    """A degraded one gets nothing new, though all that it does is be slow."""
    with lab(4, pool=DEGRADED_WINDOW) as b, b.crowd(clients=12) as crowd:
        crowd.serve(20)
        held = degrade(b, crowd, "w0")
        b.wait_back()
        whole([held])
    only_whole(b)


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_streams_that_break(lab, how):
    """Only streams on the faulty worker break, and say so; the breaker opens; a trial closes it when the fault is over."""
    with lab(4) as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b)
        b.fault("w0", cut_after=2, cut_how=how)
        b.wait_out("w0", "breaker")
        given, since = b.given("w0"), time.monotonic()
        crowd.serve(40)
        trials = 1 + (time.monotonic() - since) / 2
        assert b.given("w0") - given <= trials, "one at a time, and not before cb_timeout"
        assert all(h.end().how == "broken" for h in streams if h.worker == "w0")
        b.clear("w0")
        b.wait_back()
        whole(streams, "w0")
    broken = [o for o in b.outcomes if o.how != "whole"]
    assert broken and all(o.how == "broken" and o.worker == "w0" and o.code in ("worker_reset", "worker_broke") for o in broken), broken


@pytest.mark.parametrize("status", [500, 502, 503, 504, "reset"])
def test_answers_of_failure(lab, status):
    """No client sees them, another worker answers; but for a 500, which is the request's own as far as anybody knows. The breaker opens and closes."""
    with lab(4) as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b)
        b.fault("w0", answer=status)
        b.wait_out("w0", "breaker")
        given, since = b.given("w0"), time.monotonic()
        crowd.serve(40)
        trials = 1 + (time.monotonic() - since) / 2
        assert b.given("w0") - given <= trials
        b.clear("w0")
        b.wait_back()
        whole(streams)
    if status != 500:
        only_whole(b)
    refused = [o for o in b.outcomes if o.how != "whole"]
    assert all(o.how == "refused" and o.status == 500 and o.worker == "w0" for o in refused), refused


@pytest.mark.parametrize("status", [429, 503])
def test_answers_that_ask_for_rest(lab, status):
    """Retry-After pauses the worker for so long, and opens no breaker when it is a 429."""
    with lab(4, pool="cb_failure_threshold = 1000\n") as b, b.crowd() as crowd:
        crowd.serve(20)
        b.fault("w0", answer=status, retry_after=3)
        b.wait_out("w0", "paused")
        wait_until(lambda: b.r.metric("kvsteer_worker_load", worker="w0") == 0, "what it had has ended")

        def rests():
            if b.out_of_play("w0") != "paused":
                return False
            given = b.given("w0")
            crowd.serve(10)
            return b.out_of_play("w0") == "paused" and b.given("w0") == given
        wait_until(rests, "it is given nothing while it rests")
        b.clear("w0")
        b.wait_back()
    only_whole(b)
    assert b.flagged() == set()


def test_connects_that_hang(lab):
    """They cost connect_timeout at most, then the requests are elsewhere; nobody notices."""
    with lab(4, pool="upstream_idle = 1ms\n") as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = hold_each(b)
        b.fault("w0", hang_connect=True)
        b.wait_out("w0", "unreachable")
        crowd.serve(30)
        b.clear("w0")
        b.wait_back()
        whole(streams)
    only_whole(b)


@pytest.mark.parametrize("health", ["fail", "silent"])
def test_health_alone(lab, health):
    """While it answers requests it is used; without any it is put out, and comes back with its health."""
    with lab(3, pool="health_timeout = 1s\n") as b:
        with b.crowd() as crowd:
            crowd.serve(20)
            streams = hold_each(b, 1)
            b.fault("w0", health=health)
            given = b.given("w0")
            crowd.serve(60)
            assert b.given("w0") >= given + 5, "bytes are life"
            assert b.r.worker_state("w0") in ("healthy", "suspect")
            whole(streams)
        b.r.wait_workers("w0", state="unhealthy")
        given = b.given("w0")
        with b.crowd() as crowd:
            crowd.serve(20)
            assert b.given("w0") == given
            b.clear("w0")
            b.wait_back()
    only_whole(b)


def test_slow_health_is_health(lab):
    """Probes that take long, but less than health_timeout, say that all is well (SGLang's take a second and more)."""
    with lab(2, pool="health_timeout = 5s\nhealth_interval = 100ms\nhealth_failures = 1\n") as b, b.crowd() as crowd:
        b.fault("w0", health_delay_ms=1000)
        crowd.serve(20)
        begun = b.r.admin("GET", "status")[1]["uptime_ms"]
        wait_until(lambda: b.r.admin("GET", "status")[1]["uptime_ms"] > begun + 2500, "two such probes at least")
        assert b.r.worker_state("w0") == "healthy" and b.flagged() == set()
        given = b.given("w0")
        crowd.serve(20)
        assert b.given("w0") > given
    only_whole(b)


def test_restart_empty(lab):
    """Streams on it break; what had no byte yet is done elsewhere; what it held in its cache is forgotten here too, and it goes on."""
    with lab(3, policy="cache_aware", pool="cb_failure_threshold = 1000\n") as b, b.crowd(clients=6) as crowd:
        crowd.serve(40)
        streams = hold_each(b, 1)
        blocks = {e.name: b.r.metric("kvsteer_prefix_blocks", worker=e.name) for e in b.engines}
        assert blocks["w0"] > 0, blocks
        b.restart("w0")
        b.r.wait_log(r"worker w0 was restarted")
        assert streams[0].end().how == "broken", streams[0].outcome
        b.wait_back()
        whole(streams, "w0")
    bad = [o for o in b.outcomes if o.how != "whole"]
    assert all(o.how == "broken" and o.worker == "w0" for o in bad), bad


# ---- random mixes ----

SEEDS = range(int(os.environ.get("KVSTEER_LAB_SEEDS", "10")))


@pytest.mark.parametrize("how", ["kill", "core"])
@pytest.mark.parametrize("times_ms", [(1, 10), (100, 1000)], ids=str)
def test_f2_a_worker_that_dies_under_load_costs_nobody_who_has_no_token(lab, times_ms, how):
    """Two of four engines die, each so long after a request came to it. With two others well, each
    client has its whole answer, or had its first token when its stream broke."""
    with lab(4, flags=("--sim-decode-rate", "100", "--sim-prefill-rate", "4000")) as b, b.crowd(clients=8) as crowd:
        crowd.serve(10)
        for victim, ms in zip(("w0", "w1"), times_ms):
            b.doom(victim, ms, how)
            crowd.serve(20)
        b.wait_back("w2", "w3")
    assert [o for o in b.outcomes if o.how != "whole" and not (o.how == "broken" and re.fullmatch("after '.+'", o.why, re.S))] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_under_load(lab, seed):
    rng = random.Random(seed)
    policy = ("least_requests", "cache_aware", "power_of_two", "prefix_affinity", "round_robin")[seed % 5]
    with lab(4, policy=policy, seed=seed) as b, b.crowd() as crowd:
        mix_under_load(b, crowd, rng)
    tell_outcomes(b, f"seed {seed}, {policy}")


# ---- the same for long ----

def is_sanitized(r):
    """Sanitizers keep freed memory for a while: how much is no measure then."""
    with open(f"/proc/{r.proc.pid}/maps") as f:
        return bool(re.search(r"lib(asan|tsan|ubsan)", f.read()))


@pytest.mark.slow
def test_soak(lab):
    """A minute of rounds of random faults, or KVSTEER_SOAK seconds: each round judged, memory and files as after the first quarter."""
    seconds, seed = float(os.environ.get("KVSTEER_SOAK", "60")), int(os.environ.get("KVSTEER_SOAK_SEED", str(os.getpid())))
    print(f"KVSTEER_SOAK_SEED={seed}")
    rng, begun, rss, fds, served = random.Random(seed), time.monotonic(), [], [], 0
    with lab(5, policy="cache_aware", pool="prefix_ttl = 3s\n", seed=seed) as b:
        while time.monotonic() < begun + seconds or len(rss) < 5:
            with b.crowd() as crowd:
                crowd.serve(10)
                mix(b, crowd, rng, min(10, seconds / 8), 100)
                crowd.serve(20)
                wait_well(b)
            served += sum(o.how == "whole" for o in b.outcomes)
            b.forget()
            wait_until(lambda: b.r.metric("kvsteer_connections", side="client") == 0 and b.r.metric("kvsteer_connections", side="worker") == 0, "connections are gone")
            rss.append(b.r.rss_kib())
            fds.append(b.r.fds())
        warm = len(rss) // 4 + 1
        if not is_sanitized(b.r):
            assert rss[-1] <= max(rss[:warm]) * 1.2 + 4096, f"KiB by round: {rss}"
        assert fds[-1] <= max(fds[:warm]) + 2 * len(b.engines), f"files by round: {fds}"
    assert served > 50 * len(rss)
    print(f"{served} served in {len(rss)} rounds; KiB {rss}; files {fds}")
