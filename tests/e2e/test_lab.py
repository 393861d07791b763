"""Faults of workers, each alone and in random mixes, under load: who may notice, how soon the traffic goes elsewhere, and that it comes back by itself."""
import collections
import os
import random
import re
import time

import pytest

import harness
from harness import wait_until
from lab import Lab

STALL_S = 2


@pytest.fixture
def lab(router):
    """lab(n, ...) -> a Lab, judged at the end of its with block."""
    return lambda *a, **kw: Lab(router, *a, **kw)


def held_streams(lab, n=2):
    """n streams on each worker, begun."""
    return {e.name: [lab.hold(e.name) for _ in range(n)] for e in lab.engines}


def whole(streams, *but):
    """All of these but those of some workers ended whole."""
    for name, all_ in streams.items():
        for h in all_ if name not in but else []:
            assert h.end().how == "whole", h.outcome


def only_whole(lab):
    assert [o for o in lab.outcomes if o.how != "whole"] == []


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
        streams = held_streams(b)
        b.fault("w0", wedge=True)
        found = b.r.wait_log(r"worker w0 healthy -> stalled \(no byte for ([\d.]+) s with (\d+) in flight", 3 * harness.DEADLINE)
        assert float(found.group(1)) < 2 * STALL_S
        given, held = b.given("w0"), b.r.metric("kvsteer_worker_load", worker="w0")
        assert held >= int(found.group(2)) >= 2, "one may have come between the look and the verdict"
        crowd.serve(40)
        assert b.given("w0") == given and b.r.metric("kvsteer_worker_load", worker="w0") == held
        assert '"ok"' in b.engines[0].get("/health")
        b.clear("w0")
        b.wait_back()
        whole(streams)
    only_whole(b)


def test_slow_by_a_factor(lab):
    """A degraded one gets nothing new, though all that it does is be slow."""
    # 2 events/s in a slice of half a second, at most: slow, as long as the peers have 10 (100, on an idle machine).
    with lab(4, pool="degraded_window = 5s\n") as b, b.crowd(clients=12) as crowd:
        crowd.serve(20)
        held = b.hold("w0", 1000)
        b.fault("w0", slow=100)
        b.wait_out("w0", "state")
        assert re.search(r"worker w0 healthy -> degraded", b.r.log()), b.events()
        given = b.given("w0")
        crowd.serve(40)
        assert b.given("w0") == given, "it still has work: nothing is tried"
        b.clear("w0")
        b.wait_back()
        assert held.end().how == "whole", held.outcome
    only_whole(b)


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_streams_that_break(lab, how):
    """Only streams on the faulty worker break, and say so; the breaker opens; a trial closes it when the fault is over."""
    with lab(4) as b, b.crowd() as crowd:
        crowd.serve(20)
        streams = held_streams(b)
        b.fault("w0", cut_after=2, cut_how=how)
        b.wait_out("w0", "breaker")
        given, since = b.given("w0"), time.monotonic()
        crowd.serve(40)
        trials = 1 + (time.monotonic() - since) / 2
        assert b.given("w0") - given <= trials, "one at a time, and not before cb_timeout"
        assert all(h.end().how == "broken" for h in streams["w0"])
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
        streams = held_streams(b)
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
        streams = held_streams(b)
        b.fault("w0", hang_connect=True)
        b.wait_out("w0", "breaker")
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
            streams = held_streams(b, 1)
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
        streams = held_streams(b, 1)
        blocks = {e.name: b.r.metric("kvsteer_prefix_blocks", worker=e.name) for e in b.engines}
        assert blocks["w0"] > 0, blocks
        b.restart("w0")
        b.r.wait_log(r"worker w0 was restarted")
        assert streams["w0"][0].end().how == "broken", streams["w0"][0].outcome
        b.wait_back()
        whole(streams, "w0")
    bad = [o for o in b.outcomes if o.how != "whole"]
    assert all(o.how == "broken" and o.worker == "w0" for o in bad), bad


# ---- random mixes ----

def change(rng):
    """What is done to one worker: changes of its faults, or "clear" or "restart"."""
    return rng.choice([
        {"wedge": True},
        {"slow": rng.choice([3, 30])},
        {"cut_after": rng.randrange(8), "cut_how": rng.choice(["rst", "fin"]), "cut_left": rng.choice([None, 1, 3])},
        {"answer": rng.choice([500, 503, "reset"]), "answer_left": rng.choice([None, 1, 4])},
        {"answer": rng.choice([429, 503]), "retry_after": 1},
        {"hang_connect": True},
        {"health": rng.choice(["fail", "silent"])},
        {"health_delay_ms": 300},
        "restart",
    ])


def mix(b, crowd, rng, seconds, turns, most=None):
    """Random faults for so long, of so many workers at once; without a number two workers have none at any time."""
    end = time.monotonic() + seconds
    names = [e.name for e in b.engines]
    ill, most = [], len(names) - 2 if most is None else most
    for _ in range(turns):
        if time.monotonic() > end:
            break
        if ill and (len(ill) >= most or rng.random() < 0.4):
            b.clear(ill.pop(rng.randrange(len(ill))))
        else:
            name = rng.choice(names if len(ill) < most else ill)
            what = change(rng)
            if what == "restart":
                b.restart(name)
            else:
                b.fault(name, **what)
                if name not in ill:
                    ill.append(name)
        crowd.turn(rng.choice([8, 8, 40, 200]), 3)  # most faults are short, some last until they are found out
    for name in ill:
        b.clear(name)


def wait_well(b):
    """All workers are in play again, by themselves; the crowd still asks, since that is how one is tried."""
    for e in b.engines:
        wait_until(lambda n=e.name: b.out_of_play(n) is None and b.r.worker_state(n) == "healthy", f"{e.name} is well again: {b.events()}", 4 * harness.DEADLINE)


SEEDS = range(int(os.environ.get("KVSTEER_LAB_SEEDS", "10")))


def mix_under_load(b, crowd, rng, **kw):
    crowd.serve(10)
    mix(b, crowd, rng, 8, 40, **kw)
    crowd.serve(20)
    wait_well(b)


def tell_outcomes(b, what):
    told = collections.Counter((o.how, o.status, o.code) for o in b.outcomes)
    print(f"{what}: {dict(told)}")
    assert sum(n for (how, *_), n in told.items() if how == "whole") > 40


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
