"""The fault laboratory: simulated engines that are told to misbehave, one router before them, and
clients whose every request is accounted for.

What must hold whatever the faults is in Lab.judge(): each request ended once, whole and right, or
in a way that a fault of its worker at that time explains; the router's access log says the same;
nobody was put out of play who had no fault. Everything waits for what the router or an engine
tells, never for a time.
"""
import collections
import json
import os
import random
import re
import threading
import time

from engine_proc import Engine, expected, render, tokenize

import harness
from harness import Closed, make_request, wait_until

# What a client may see of a fault, when all others are well: "broken", a stream that had begun ends
# early and says so. Never anything else.
BREAKS = {"cut_after", "restart", "death"}
# Those by which a connection dies without a byte: such a request goes to exactly one other worker,
# which may have such a fault, too.
DIES = {"reset", "restart", "cut_after", "death"}
# Those by which a request for one certain worker is refused.
REFUSES = {"answer", "reset", "restart", "hang_connect"}

WELL = {"wedge": False, "slow": 1, "cut_after": None, "answer": None, "hang_connect": False, "health": "ok", "health_delay_ms": 0}

POOL = """policy = {policy}
stall_timeout = 2s
degraded_window = 3s
health_interval = 200ms
health_timeout = 2s
connect_timeout = 500ms
cb_failure_threshold = 5
cb_success_threshold = 2
cb_timeout = 2s
retry_budget = 100%
no_worker_wait = 20s
"""


STALL_S = 2  # stall_timeout of that
# With it, slow=100 is slow as long as the peers have a tenth of their rate: 2 events/s in a slice of half a second, at most, where they have 10 (100, on an idle machine).
DEGRADED_WINDOW = "degraded_window = 5s\n"


class Outcome:
    """One request of a client: how it ended is "whole", "broken" (a stream that had begun),
    "refused" (an error instead of an answer), or a fault of the router."""

    def __init__(self, name, stream, pinned):
        self.id, self.stream, self.pinned = name, stream, pinned
        self.began, self.ended = time.monotonic(), None
        self.how, self.status, self.code, self.worker, self.why = None, None, None, None, ""

    def __repr__(self):
        return f"<{self.id} {'stream' if self.stream else 'whole'} on {self.worker}: {self.how} {self.status} {self.code} {self.why}>"


def error_code(body):
    return json.loads(body)["error"]["code"]


def is_torn(events):
    """Whether the event before the last one, which is an error of the router, is no whole one."""
    if len(events) < 2 or b'"error"' not in events[-1]:
        return False
    try:
        return events[-2] not in (b"", b"data: [DONE]") and json.loads(events[-2][6:]) is None
    except ValueError:
        return True


def read_stream(m, text):
    """(how, code, why) of a streamed answer whose text should be this."""
    events = m.body.split(b"\n\n")
    rest = events.pop()
    if not m.ended and events and is_torn(events):
        del events[-2]  # the worker broke off within it; a client drops what is no whole event before an error
    said, code, is_done = "", None, False
    for e in filter(None, events):  # empty lines mean nothing
        assert e.startswith(b"data: "), e
        if e == b"data: [DONE]":
            is_done = True
            continue
        event = json.loads(e[6:])
        if "error" in event:
            code = event["error"]["code"]
            continue
        assert code is None and not is_done, "an event after the last one"
        choice = event["choices"][0]
        said += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    if m.ended:
        if code is not None and is_done and text.startswith(said):
            return "broken", code, f"after {said!r}"  # its engine said so itself
        ok = is_done and said == text and not rest and code is None
        return ("whole" if ok else "wrong"), code, "" if ok else f"{said!r} instead of {text!r}, then {rest!r}"
    if code is None:
        return "wrong", None, f"it broke off without saying why: {m.body[-200:]!r}"
    return ("broken" if text.startswith(said) and not is_done else "wrong"), code, f"after {said!r}"


def read_whole(m, text):
    if m.status != 200:
        return "refused", error_code(m.body), ""
    choice = json.loads(m.body)["choices"][0]
    said = choice["text"] if "text" in choice else choice["message"]["content"]
    return ("whole", None, "") if m.ended and said == text else ("wrong", None, f"{said!r} instead of {text!r}")


class Lab:
    """Engines w0, w1 ... with fault sockets, and the router before them."""

    def __init__(self, router, n=4, policy="least_requests", pool="", keys="", flags=("--sim-decode-rate", "100"), seed=0):
        self.engines, self.outcomes, self.lock = [], [], threading.Condition()
        self.intervals = collections.defaultdict(list)  # worker: [kind, from, to or None], by our clock
        self.seed, self.holds = seed, []
        self.log_at = 0  # what the log says before this was judged
        try:
            for name, more in self.plan(n):
                e = Engine("--served-model-name", "m", *flags, *more, faults=True)
                e.name = name
                self.engines.append(e)
                e.start()
            self.by_name = {e.name: e for e in self.engines}
            self.r = router(conf=self.conf(policy, pool), keys="expose_worker = on\nallow_pin = on\nlog_format = json\n" + keys, wait=False)
            self.r.wait_workers(*self.by_name)
        except BaseException:
            self.stop()
            raise

    def plan(self, n):
        """Name and own flags of each engine."""
        return [(f"w{i}", ()) for i in range(n)]

    def keys_of(self, e):
        """What its section of the configuration has besides."""
        return ""

    def conf(self, policy, pool):
        ours = {line.split(" = ")[0] for line in pool.splitlines()}
        lines = [line for line in POOL.format(policy=policy).splitlines() if line.split(" = ")[0] not in ours]
        text = "[pool default]\n" + "\n".join(lines) + "\n" + pool
        return text + "".join(f"[worker {e.name}]\nurl = {e.url}\n{self.keys_of(e)}" for e in self.engines)

    def stop(self):
        for e in self.engines:
            if e.process is not None:
                e.stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            for e in self.engines:
                e.clear_faults()
            for h in self.holds:
                h.thread.join(3 * harness.DEADLINE)
            if kind is None:
                assert not any(h.thread.is_alive() for h in self.holds)
                self.judge()
                self.r.stop()  # while the engines live: how it ends is about the router alone
        finally:
            self.stop()

    # ---- faults ----

    def fault(self, name, **changes):
        """Sets faults of a worker; they are noted before they can be seen."""
        begins = [k for k, v in changes.items() if k in WELL and v is not WELL[k]]
        self.intervals[name] += [["reset" if changes[k] == "reset" else k, time.monotonic(), None] for k in begins]
        self.by_name[name].fault(**changes)
        for kind in changes.keys() & WELL.keys() - set(begins):
            self.over(name, kind)

    def over(self, name, kind=None):
        for i in self.intervals[name]:
            if i[2] is None and kind in (None, i[0], {"reset": "answer"}.get(i[0])):
                i[2] = time.monotonic()

    def clear(self, name):
        self.by_name[name].clear_faults()
        self.over(name)

    def doom(self, name, ms, how):
        """It dies so long after the next request has come to it; returns when it is dead. "kill": the
        process; "core": what is behind its API, which lives on and says so."""
        e = self.by_name[name]
        self.intervals[name].append(["death", time.monotonic(), None])
        e.fault(die_after_ms=ms, die_how=how)
        if how == "core":
            wait_until(lambda: e.faults()["die_core"], f"the core of {name} is dead", 4 * harness.DEADLINE)
            return
        e.end_killed(4 * harness.DEADLINE)
        self.engines.remove(e)

    def restart(self, name):
        self.intervals[name].append(["restart", time.monotonic(), None])
        self.by_name[name].restart_empty()
        self.over(name, "restart")

    def guilty(self, outcome, kinds):
        """The workers that had such a fault at any time between an outcome's begin and its end."""
        return {name for name, all_ in self.intervals.items() for kind, begin, end in all_
                if kind in kinds and begin <= outcome.ended and (end is None or end >= outcome.began)}

    # ---- what the router says ----

    def log(self):
        """What it logged since the last forget()."""
        return self.r.log(self.log_at)

    def given(self, name):
        """Requests that it was given so far."""
        return self.r.metric("kvsteer_worker_requests_total", worker=name)

    def out_of_play(self, name):
        """Why a request does not go there now; None: it may."""
        said = self.r.explain({"model": "m", "prompt": "who"}, "/v1/completions")
        return {c["worker"]: c["out_of_play"] for c in self.candidates(said)}[name]

    def candidates(self, said):
        return said["candidates"]

    def wait_out(self, name, why):
        wait_until(lambda: self.out_of_play(name) == why, f"{name} out of play ({why}): {self.events()}", 3 * harness.DEADLINE)

    def wait_back(self, *names):
        """All of these (all workers) are candidates, healthy, and have been given more."""
        for name in names or self.by_name:
            before = self.given(name)
            wait_until(lambda n=name, b=before: self.out_of_play(n) is None and self.r.worker_state(n) == "healthy" and self.given(n) >= b + 2,
                       f"{name} is used again: {self.r.admin('GET', 'workers/' + name)}\n{self.events()}", 4 * harness.DEADLINE)

    def events(self):
        """The end of the log without the lines of requests: for messages of tests."""
        return "\n".join([line for line in self.r.log().splitlines() if not line.startswith("{")][-40:])

    # ---- clients ----

    def ask(self, name, prompt, tokens, stream, chat=False, pin=None, on_event=None):
        """One request; its outcome is noted."""
        o = Outcome(name, stream, pin)
        body = {"model": "m", "max_tokens": tokens, "stream": stream, "ignore_eos": True}
        body.update({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt})
        ids = tokenize(render(body["messages"]) if chat else prompt)
        headers = {"X-Request-Id": name, **({"X-Kvsteer-Worker": pin} if pin else {})}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        try:
            with self.r.connect() as c:
                c.sock.settimeout(4 * harness.DEADLINE)
                c.send(make_request(path=path, body=body, headers=headers, close=True))
                m = c.read_head()
                o.status, o.worker = m.status, m.get("x-kvsteer-worker")
                if on_event is not None and m.status == 200:
                    m.body += c.read_chunk()
                    on_event()
                c.read_body(m)
            text = expected(ids, tokens)
            is_events = m.get("content-type", "").startswith("text/event-stream")
            assert is_events == (stream and m.status == 200), m.head
            o.how, o.code, o.why = read_stream(m, text) if is_events else read_whole(m, text)
        except (OSError, Closed, AssertionError, ValueError, KeyError) as e:
            o.how, o.why = "wrong", repr(e)
        o.ended = time.monotonic()
        with self.lock:
            self.outcomes.append(o)
            self.lock.notify_all()
        return o

    def hold(self, name, tokens=300):
        """A stream that runs on this worker when it returns; it goes on by itself."""
        h = Hold(self, name, tokens, len(self.holds))
        self.holds.append(h)
        h.wait_begun()
        return h

    def crowd(self, clients=8, **kw):
        return Crowd(self, clients, **kw)

    # ---- what must hold ----

    def explains(self, o):
        """Whether an outcome is one that faults explain."""
        if o.how == "whole":
            return True
        if o.how == "broken":
            return o.stream and o.worker in self.guilty(o, BREAKS)
        if o.how == "refused" and o.status == 500:  # no other worker is asked after that one (DESIGN 10)
            return o.worker in self.guilty(o, {"answer"}) and o.code == "fault"
        if o.how == "refused" and o.pinned:
            return o.pinned in self.guilty(o, REFUSES)
        return o.how == "refused" and len(self.guilty(o, DIES)) >= 2

    def flagged(self):
        """Workers that were put out of play, by the log; a suspect is not."""
        return set(re.findall(r"worker (\w+)(?: \w+ -> (?:stalled|degraded|unhealthy)|: breaker open)", self.log()))

    def access_lines(self):
        """The access line of each of our requests, by id."""
        lines = collections.defaultdict(list)
        for line in self.log().splitlines():
            if '"id":"lab-' in line:
                line = json.loads(line[line.index("{"):])
                lines[line["id"]].append(line)
        return lines

    def judge(self):
        """When no client asks any more."""
        self.r.wait_idle()
        wait_until(lambda: len(self.access_lines()) >= len(self.outcomes), "an access line for each request")
        lines = self.access_lines()
        for o in self.outcomes:
            assert self.explains(o), f"{o}\nfaults: {dict(self.intervals)}\n{lines[o.id]}\n{self.events()}"
            assert len(lines[o.id]) == 1, f"{o} is told {len(lines[o.id])} times"
            line = lines[o.id][0]
            assert line["status"] == o.status and (line["end"] == "ok") == (o.how == "whole" or o.code == "fault"), f"{o} {line}"
            assert o.worker in (None, line["worker"])
        assert len(lines) == len(self.outcomes)
        guiltless = self.flagged() - {n for n, all_ in self.intervals.items() if all_}
        assert not guiltless, f"{guiltless}\n{self.events()}"
        for e in self.engines:
            wait_until(lambda e=e: e.metrics()["vllm:num_requests_running"] == 0, "nothing runs on an engine")
            assert e.metrics()["vllm:corrupted_requests_total"] == 0

    def forget(self):
        """Judges, and begins anew: for what runs long."""
        self.judge()
        self.log_at = os.path.getsize(self.r.log_path)
        self.outcomes.clear()
        self.holds.clear()
        self.intervals = collections.defaultdict(list, {n: [i for i in all_ if i[2] is None] for n, all_ in self.intervals.items()})


class Hold:
    def __init__(self, lab, name, tokens, n):
        self.worker, self.begun, self.outcome = name, threading.Event(), None

        def run():
            self.outcome = lab.ask(f"lab-hold-{n}", f"hold {n}", tokens, True, pin=name, on_event=self.begun.set)
            self.begun.set()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def wait_begun(self):
        assert self.begun.wait(harness.DEADLINE) and self.outcome is None, self.outcome

    def end(self):
        self.thread.join(4 * harness.DEADLINE)
        assert self.outcome is not None, "it has not ended"
        return self.outcome


class Crowd:
    """Clients that ask one request after the other, streams and not, completions and chats, until
    the block ends."""

    def __init__(self, lab, clients, tokens=(4, 12), streams=0.7, topics=20):
        self.lab, self.tokens, self.streams, self.topics = lab, tokens, streams, topics
        self.is_over = threading.Event()
        self.no = getattr(lab, "crowds", 0)
        lab.crowds = self.no + 1
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(clients)]

    def run(self, i):
        rng, n = random.Random(f"{self.lab.seed} {self.no} {i}"), 0
        while not self.is_over.is_set():
            n += 1
            prompt = f"topic {rng.randrange(self.topics)} " * 20 + f"client {i}, request {n}"
            self.lab.ask(f"lab-{self.no}-{i}-{n}", prompt, rng.randint(*self.tokens), rng.random() < self.streams, chat=rng.random() < 0.5)

    def served(self):
        return sum(o.how == "whole" for o in list(self.lab.outcomes))

    def ended(self):
        return len(self.lab.outcomes)

    def serve(self, n):
        """Waits until n more were answered, whole and right."""
        target = self.served() + n
        wait_until(lambda: self.served() >= target, f"{n} more served: {self.lab.outcomes[-8:]}\n{self.lab.events()}", 4 * harness.DEADLINE)

    def turn(self, n, limit):
        """Waits until n more ended, but no longer than limit seconds: faults may hold everybody."""
        target = self.ended() + n
        with self.lab.lock:
            self.lab.lock.wait_for(lambda: self.ended() >= target, limit)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, kind, *_):
        self.is_over.set()
        if kind is not None:
            for e in self.lab.engines:
                e.clear_faults()
        for t in self.threads:
            t.join(4 * harness.DEADLINE)
            assert not t.is_alive() or kind is not None, "a client waits for ever"


class PdLab(Lab):
    """Prefill engines p0, p1 ... and decode engines d0, d1 ...; each request goes over both, and
    nothing that a prefill engine keeps stays."""

    def __init__(self, router, n=2, pool="", **kw):
        super().__init__(router, n, pool="kv_connector = nixl\npd_min_prefill = 0\n" + pool, **kw)

    def plan(self, n):
        patience = ("--kvx-connect-timeout", "30s", "--kvx-stall-timeout", "30s")  # a slow machine is no failure
        return [(f"{role[0]}{i}", ("--role", role, *patience)) for role in ("prefill", "decode") for i in range(n)]

    def keys_of(self, e):
        return "role = prefill\n" if e.name[0] == "p" else "role = decode\n"

    def candidates(self, said):
        return said["candidates"] + said["prefill"]["candidates"]

    def split(self):
        """Requests that went over both."""
        return self.r.metric("kvsteer_pd_requests_total", way="split")

    def judge(self):
        super().judge()
        for e in self.engines:
            wait_until(lambda e=e: e.metrics()["kvsteer_engine_kv_leases"] == 0, f"{e.name} keeps nothing", 4 * harness.DEADLINE)
            assert e.metrics()["vllm:kv_cache_usage_perc"] == 0


# ---- what tests of both kinds of fleet do ----

def hold_each(b, n=2, names=None):
    """n streams on each of these workers (all), begun, in their order."""
    return [b.hold(name) for name in names or b.by_name for _ in range(n)]


def whole(streams, *but):
    """All of these but those of some workers end whole."""
    for h in streams:
        assert h.worker in but or h.end().how == "whole", h.outcome


def only_whole(b):
    assert [o for o in b.outcomes if o.how != "whole"] == []


def wedge(b, crowd, name, least):
    """It stands still behind a green health: within 2 x stall_timeout, by the router's own clock, it gets nothing new; what it has, least requests, it keeps."""
    b.fault(name, wedge=True)
    found = b.r.wait_log(rf"worker {name} healthy -> stalled \(no byte for ([\d.]+) s with (\d+) in flight", 3 * harness.DEADLINE)
    assert float(found.group(1)) < 2 * STALL_S
    given, held = b.given(name), b.r.metric("kvsteer_worker_load", worker=name)
    assert held >= int(found.group(2)) >= least, "one may have come between the look and the verdict"
    crowd.serve(40)
    assert b.given(name) == given and b.r.metric("kvsteer_worker_load", worker=name) == held
    assert json.loads(b.by_name[name].get("/health"))["status"] == "ok"
    assert b.flagged() == {name}


def degrade(b, crowd, name):
    """A hundredth of the peers' rate, for a while: it gets nothing new while it has work. Returns the stream that it had. In a fleet with DEGRADED_WINDOW."""
    held = b.hold(name, 400)
    b.fault(name, slow=100)
    b.wait_out(name, "state")
    b.r.wait_log(rf"worker {name} healthy -> degraded")
    given = b.given(name)
    crowd.serve(40)
    assert b.given(name) == given, "it still has work: nothing is tried"
    b.clear(name)
    return held


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


def mix_under_load(b, crowd, rng, **kw):
    crowd.serve(10)
    mix(b, crowd, rng, 8, 40, **kw)
    crowd.serve(20)
    wait_well(b)


def tell_outcomes(b, what):
    told = collections.Counter((o.how, o.status, o.code) for o in b.outcomes)
    print(f"{what}: {dict(told)}")
    assert sum(n for (how, *_), n in told.items() if how == "whole") > 40
