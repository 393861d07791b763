"""Reloads and upgrades under load: nobody notices. A short run by default; KVSTEER_FULL_SOAK=1
takes 500 SIGHUPs, 50 upgrades and 100,000 requests."""
import json
import os
import re
import signal
import subprocess
import threading

import pytest

import harness
from engine_proc import Engine
from harness import make_request, wait_until

harness.become_subreaper()

FULL = os.environ.get("KVSTEER_FULL_SOAK", "") not in ("", "0")
SIGHUPS, UPGRADES, REQUESTS = (500, 50, 100000) if FULL else (20, 4, 3000)
TOKENS = 24
A_RUN = REQUESTS // 10
LONG_EVENTS = 200
STREAM = {"model": "m-long", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Bench:
    """kvsteer-bench in a loop: each run counts every token of every stream, so that none is cut
    unseen."""

    def __init__(self, port, *flags):
        self.port, self.flags, self.ok, self.faults = port, flags, 0, []
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            self.ask()
        except BaseException as e:
            self.faults.append(repr(e))

    def ask(self):
        while not self.faults and not self.enough.is_set():
            p = subprocess.run([harness.program("kvsteer-bench"), "--url", f"http://127.0.0.1:{self.port}", "--model", "sim", "--requests", str(A_RUN),
                                "--prompt-tokens", "20-400", "--corpus", "conversations", "--output-tokens", str(TOKENS), "--json", "-", *self.flags],
                               capture_output=True, text=True)
            if p.returncode != 0:
                self.faults.append((p.stderr[-2000:], p.stdout[-2000:]))
                return
            report = json.loads(p.stdout)
            r = report["requests"]
            tokens = report["tokens"]["new"]
            if r["ok"] != A_RUN or r["failed"] or r["unfinished"] or tokens != A_RUN * TOKENS:
                self.faults.append((r, report["errors"], tokens))
            self.ok += r["ok"]


class LongStreams:
    """Clients whose streams outlive several reloads and upgrades: every event must come, in
    order."""

    def __init__(self, r, n):
        self.r, self.enough, self.faults, self.streams = r, threading.Event(), [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run) for _ in range(n)]
        for t in self.threads:
            t.start()

    def one(self, c):
        c.send(make_request(body=STREAM))
        m = c.read_response("POST")
        if m.status != 200 or not m.ended or m.body != b"".join(b"data: %d\n\n" % i for i in range(LONG_EVENTS)):
            return f"{m.start} {m.ended} {m.body[-100:]}"
        return m.get("connection") == "close" and "close"

    def run(self):
        c = self.r.connect()
        while not self.enough.is_set():
            try:
                what = self.one(c)
            except (harness.Closed, OSError) as e:
                what = repr(e)
            with self.lock:
                self.streams += 1
                if what and what != "close":
                    self.faults.append(what)
                    return
            if what == "close":
                c.close()
                c = self.r.connect()
        c.close()

    def stop(self):
        self.enough.set()
        for t in self.threads:
            t.join()


def long_stream(x):
    x.begin()
    for i in range(LONG_EVENTS):
        x.event(str(i))
        threading.Event().wait(0.01)  # the pace of an engine: the stream must last
    x.end()


def conf_of(engines, long_worker, i):
    """Workers, policies, timeouts and a listener that come and go; one engine always stays."""
    there = [e for k, e in enumerate(engines) if k == 0 or (i >> (k - 1)) & 1]
    policy = ("cache_aware", "least_requests", "cache_aware", "round_robin")[i % 4]
    text = f"[pool long]\nmodels = m-long\nhealth_interval = 1s\n[pool default]\nhealth_interval = 1s\npolicy = {policy}\nbalance_abs_threshold = {i % 50}\n"
    for e in there:
        text += f"[worker e{engines.index(e)}]\nurl = {e.url}\nmax_requests = {0 if i % 3 else 1000}\n"
    return text + f"[worker long]\npool = long\nurl = {long_worker.url}\n"


def wait_count(r, pattern, n):
    wait_until(lambda: len(re.findall(pattern, r.log())) >= n, f"{n} x {pattern}: {r.log()[-2000:]}", 3 * harness.DEADLINE)


def upgrade(r, n):
    r.signal(signal.SIGUSR2)
    found = []
    wait_until(lambda: found.extend(re.findall(r"upgrade: process (\d+) takes over", r.log())[n - 1:n]) or found, f"upgrade {n}: {r.log()[-2000:]}",
               3 * harness.DEADLINE)
    r.follow(int(found[0]))


@pytest.mark.slow
@pytest.mark.tsan
def test_reloads_and_upgrades_under_load(router, worker):
    long_worker = worker("long", long_stream, models=("m-long",))
    engines = [Engine("--sim-speed", "0", "--sim-blocks", "20000") for _ in range(4)]
    for e in engines:
        e.__enter__()
    try:
        soak(router, engines, long_worker)
    finally:
        for e in engines:
            e.__exit__(None, None, None)


def change(r, engines, long_worker, benches, streams):
    """All reloads and upgrades, spread over all of the load."""
    every = SIGHUPS // UPGRADES
    upgrades = 0

    def faults():
        return [f for b in benches for f in b.faults] + streams.faults

    def requests():
        return sum(b.ok for b in benches)
    for i in range(SIGHUPS):
        r.write_conf(conf_of(engines, long_worker, i))
        r.signal(signal.SIGHUP)
        wait_count(r, "notice reloaded: ", i + 1)
        if i % every == every - 1:
            upgrades += 1
            upgrade(r, upgrades)
        wait_until(lambda: requests() >= REQUESTS * (i - every) // SIGHUPS or faults(), "the load keeps pace", 60 * harness.DEADLINE)
        assert not faults(), faults()
    assert upgrades == UPGRADES
    wait_until(lambda: requests() >= REQUESTS or faults(), "requests", 60 * harness.DEADLINE)
    assert not faults(), faults()


def soak(router, engines, long_worker):
    r = router(conf=conf_of(engines, long_worker, 7), keys="threads = 2\naccess_log = off\n")
    r.wait_workers("e0", "e1", "e2", "e3", "long")
    streams = LongStreams(r, 4)
    benches = [Bench(r.port, "--connections", "12"), Bench(r.port, "--connections", "4", "--new-connections")]
    try:
        change(r, engines, long_worker, benches, streams)
    finally:
        for b in benches:
            b.enough.set()
        streams.stop()
        for b in benches:
            b.thread.join()
    total = sum(b.ok for b in benches)
    assert not any(b.faults for b in benches) and not streams.faults, ([b.faults for b in benches], streams.faults)
    assert total >= REQUESTS and streams.streams >= 4
    r.stop()
    balances = re.findall(r"guards taken=(\d+) dropped=(\d+)", r.log())
    assert len(balances) == UPGRADES + 1, "every process told its balance"
    assert all(taken == dropped for taken, dropped in balances)
    assert sum(int(taken) for taken, _ in balances) >= total + streams.streams
    print(f"soak: {SIGHUPS} SIGHUPs, {UPGRADES} upgrades, {total} requests and {streams.streams} long streams, 0 failed, "
          f"{len(balances)} processes balanced")
