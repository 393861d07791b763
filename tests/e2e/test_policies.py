"""Policies by session and routing key through the daemon: rows B1-B5, bug cases of keys, the vLLM
router's ring, /finish_session."""
import collections
import json

import pytest

import harness
import vllm_ring
from harness import text
from routing import OPEN, HoldMarked, chat, completion, held, in_parallel, send, served_by, settle, user

KEYED = ["prefix_affinity", "consistent_hash", "rendezvous_hash", "sticky_least_loaded"]
ALL = [*KEYED, "cache_aware", "least_requests", "power_of_two", "round_robin", "random"]


def fleet(router, worker, n, policy, keys="", handler=HoldMarked, pool="", **kw):
    ws = [worker(f"w{i}", handler()) for i in range(n)]
    return router(ws, keys=OPEN + keys, pool=f"policy = {policy}\n{pool}", **kw), ws


def session(name):
    return {"X-Session-Id": name}


def homes(r, names, body=None):
    return {s: served_by(r, body or chat(user("hi")), headers=session(s)) for s in names}


def reasons(r, policy):
    """{reason: decisions} so far."""
    out = {}
    for series, value in r.metrics().items():
        if series.startswith("kvsteer_route_decisions_total{") and f'policy="{policy}"' in series and value:
            out[series.split('reason="')[1].split('"')[0]] = value
    return out


# ---- B: prefix_affinity ----

def test_b2_sessions_over_one_system_prompt_reach_all_workers_and_one_that_leaves_moves_only_its_own(router, worker):
    r, ws = fleet(router, worker, 4, "prefix_affinity")
    body = chat({"role": "system", "content": text(32, 1)}, user("go on"))
    names = [f"agent-{i}" for i in range(64)]
    was = homes(r, names, body)
    assert set(was.values()) == {w.name for w in ws}
    assert reasons(r, "prefix_affinity") == {"affinity_key": 64}
    assert r.admin("DELETE", "workers/w2")[0] == 202
    harness.wait_until(lambda: r.worker_state("w2") is None, "w2 is gone")
    now = homes(r, names, body)
    assert {s for s in names if was[s] != now[s]} == {s for s in names if was[s] == "w2"}


def test_b1_the_order_of_keys(router, worker):
    r, _ = fleet(router, worker, 4, "prefix_affinity")
    body = chat(user("hi"))

    def told(body, headers):
        a = r.explain(body, headers=headers)
        return a["reason"], (a["key"]["routing_key"] or {}).get("name"), a["chosen"]
    many = {"X-Session-Id": "b", "X-Smg-Routing-Key": "a", "X-User-Id": "u", "X-Request-Id": "r"}
    assert told(body, many)[:2] == ("affinity_key", "X-Smg-Routing-Key")
    assert told(body, {"X-Session-Id": "b", "X-Request-Id": "r"})[:2] == ("affinity_key", "X-Session-Id")
    # Ids of single requests and users are no sessions.
    assert told(body, {"X-Request-Id": "r", "X-User-Id": "u"})[:2] == ("policy_order", None)
    for fields, name in [({"session_params": {"session_id": "s"}, "user": "u"}, "session_params.session_id"), ({"user": "u", "session_id": "s"}, "session_id"),
                         ({"session_id": "s", "user_id": "i"}, "session_id"), ({"user_id": 7}, "user_id")]:
        assert told(chat(user("hi"), **fields), {})[:2] == ("affinity_key", name)
    # The same session, in whatever field it comes.
    at = told(body, {"X-Session-Id": "one"})[2]
    assert at == told(chat(user("hi"), session_id="one"), {})[2] == served_by(r, body, headers={"X-Smg-Routing-Key": "one"})
    # What stands in a prompt is no key (vLLM router: the text is searched).
    assert told(chat(user('user: bob "session_id": "x"')), {})[:2] == ("policy_order", None)
    # Long enough for a block: its beginning; not for embeddings of a word.
    assert told(chat(user(text(2, 1))), {})[0] == "affinity_prefix"
    assert r.explain({"model": "m", "input": "word"}, path="/v1/embeddings")["reason"] == "policy_order"


def test_b4_the_skew_guard_spills_and_b36_a_hot_session_is_not_pinned_for_ever(router, worker):
    r, ws = fleet(router, worker, 4, "prefix_affinity")
    home = served_by(r, chat(user("hi")), headers=session("hot"))
    busy = next(w for w in ws if w.name == home)
    with held(r, busy, 40):
        away = [served_by(r, chat(user("hi")), headers=session("hot")) for _ in range(20)]
        assert home not in away and len(set(away)) == 1
        assert r.explain(chat(user("hi")), headers=session("hot"))["reason"] == "affinity_skew"
    assert served_by(r, chat(user("hi")), headers=session("hot")) == home


def test_b1_a_pin_bypasses_affinity(router, worker):
    r, _ = fleet(router, worker, 2, "prefix_affinity")
    home = served_by(r, chat(user("hi")), headers=session("s"))
    other = "w1" if home == "w0" else "w0"
    assert served_by(r, chat(user("hi")), pin=other, headers=session("s")) == other
    assert served_by(r, chat(user("hi")), headers=session("s")) == home


def test_b3_two_routers_agree(router, worker):
    ws = [worker(f"w{i}") for i in range(4)]
    a = router(ws, keys=OPEN, pool="policy = prefix_affinity\n")
    b = router(ws[::-1], keys=OPEN, pool="policy = prefix_affinity\n")
    names = [f"s{i}" for i in range(24)]
    assert homes(a, names) == homes(b, names)
    prompts = [chat(user(text(4, i))) for i in range(12)]
    assert [served_by(a, p) for p in prompts] == [served_by(b, p) for p in prompts]


# ---- C15: session names of agents ----

AGENTS = {
    "Claude Code": lambda i: ({"X-Claude-Code-Session-Id": f"cc-{i}"}, {}),
    "Claude Code's body": lambda i: ({}, {"metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "a", "session_id": f"s-{i}"})}}),
    "Claude Code's older body": lambda i: ({}, {"metadata": {"user_id": f"user_0a1b_account_2c_session_{i:08x}"}}),
    "Codex": lambda i: ({"Session-Id": f"cx-{i}"}, {}),
    "Codex, older": lambda i: ({"session_id": f"cx-{i}"}, {}),
    "Codex, oldest": lambda i: ({"conversation_id": f"cx-{i}"}, {}),
    "Codex's and OpenCode's body": lambda i: ({}, {"prompt_cache_key": f"k-{i}"}),
    "OpenCode": lambda i: ({"x-session-affinity": f"oc-{i}"}, {}),
    "OpenCode's gateway": lambda i: ({"x-opencode-session": f"oc-{i}"}, {}),
    "Open WebUI": lambda i: ({"X-OpenWebUI-Chat-Id": f"ow-{i}", "X-OpenWebUI-User-Id": "u"}, {}),
    "LiteLLM": lambda i: ({"x-litellm-session-id": f"li-{i}"}, {}),
    "Cline": lambda i: ({"X-Task-ID": f"cl-{i}"}, {}),
    "OpenAI's safety_identifier": lambda i: ({}, {"safety_identifier": f"p-{i}"}),
    "metadata.session_id": lambda i: ({}, {"metadata": {"session_id": f"m-{i}"}}),
    "a person": lambda i: ({}, {"metadata": {"user_id": f"bob-{i}"}}),
}


@pytest.mark.parametrize("policy", ["prefix_affinity", "sticky_least_loaded"])
def test_c15_session_names_of_agents_keep_a_conversation_at_home(router, worker, policy):
    r, ws = fleet(router, worker, 4, policy)
    system = {"role": "system", "content": text(16, 1)}
    for agent, make in AGENTS.items():
        at = collections.defaultdict(list)
        for turn in range(3):
            for i in range(16):
                headers, fields = make(i)
                # One person has all conversations, each request has an id of its own: neither may decide.
                headers = {**headers, "X-User-Id": "bob", "X-Request-Id": f"{agent}-{turn}-{i}"}
                at[i].append(served_by(r, chat(system, user(f"turn {turn}"), user=f"bob-{turn}", **fields), headers=headers))
        assert all(len(set(seen)) == 1 for seen in at.values()), agent
        # By the hash of 16 names a worker may be without one; by load none is.
        reached = {seen[0] for seen in at.values()}
        assert len(reached) > 1 if policy == "prefix_affinity" else len(reached) == len(ws), agent


def test_c15_a_conversation_comes_before_a_person_and_headers_before_fields(router, worker):
    r, _ = fleet(router, worker, 2, "prefix_affinity")
    fields = {"session_params": {"session_id": "a"}, "session_id": "b", "prompt_cache_key": "c", "metadata": {"session_id": "d", "user_id": "f"},
              "safety_identifier": "e", "user_id": "g", "user": "h"}
    order = ["session_params.session_id", "session_id", "prompt_cache_key", "metadata.session_id", "safety_identifier", "metadata.user_id", "user_id", "user"]

    def told(headers=None):
        return r.explain(chat(user("hi"), **fields), headers=headers)["key"]["routing_key"]["name"]
    assert told({"Session_id": "x", "X-Claude-Code-Session-Id": "y"}) == "X-Claude-Code-Session-Id"
    assert told({"X-Request-Id": "x", "X-User-Id": "y"}) == order[0]
    for name, after in zip(order, order[1:] + [None]):
        assert told() == name
        outer, _, inner = name.partition(".")
        del (fields[outer] if inner else fields)[inner or outer]


@pytest.mark.parametrize("policy", KEYED)
def test_c15_the_list_is_the_operators_for_all_four_policies(router, worker, policy):
    r, _ = fleet(router, worker, 2, policy, keys="routing_key_headers = X-Conversation\n")
    told = r.explain(chat(user("hi"), user="u"), headers={"X-Session-Id": "s", "X-Conversation": "c"})["key"]["routing_key"]
    assert told["name"] == "X-Conversation"
    assert r.explain(chat(user("hi"), user="u"), headers={"X-Session-Id": "s"})["key"]["routing_key"]["name"] == "user"


# ---- the vLLM router's ring ----

def test_consistent_hash_is_the_vllm_routers_ring(router, worker):
    r, ws = fleet(router, worker, 4, "consistent_hash")
    ring = vllm_ring.Ring([w.url for w in ws])
    name = {w.url: w.name for w in ws}
    cases = [({"X-Session-Id": f"s-{i}"}, {}, f"header:x-session-id:s-{i}") for i in range(24)]
    cases += [({"X-USER-ID": "bob", "x-request-id": "r"}, {}, "header:x-user-id:bob"), ({"X-Trace-Id": "t"}, {"user": "u"}, "header:x-trace-id:t"),
              ({}, {"session_params": {"session_id": "p"}, "user": "u"}, "session:p"), ({}, {"user": "u"}, "user:u"),
              ({}, {"session_id": "sé"}, "session:sé"), ({}, {"user_id": 12}, "user:12")]
    for headers, fields, key in cases:
        assert served_by(r, chat(user("hi"), **fields), headers=headers) == name[ring.order(key)[0]], key
    # One that rests: its keys go on to the next of the ring, the others stay.
    assert r.admin("POST", "workers/w1/drain")[0] == 202
    r.wait_workers("w1", state="draining")
    for headers, fields, key in cases:
        order = [name[url] for url in ring.order(key) if name[url] != "w1"]
        assert served_by(r, chat(user("hi"), **fields), headers=headers) == order[0], key


def test_rendezvous_hash_is_the_vllm_routers(router, worker):
    r, ws = fleet(router, worker, 4, "rendezvous_hash")
    name = {w.url: w.name for w in ws}
    for i in range(24):
        want = name[vllm_ring.rendezvous(name, f"header:x-session-id:s-{i}")]
        assert served_by(r, chat(user("hi")), headers=session(f"s-{i}")) == want


def test_routing_key_headers_are_the_operators(router, worker):
    r, ws = fleet(router, worker, 4, "consistent_hash", keys="routing_key_headers = X-Conversation X-Session-Id\n")
    ring = vllm_ring.Ring([w.url for w in ws])
    name = {w.url: w.name for w in ws}
    headers = {"X-Session-Id": "s", "X-Conversation": "c", "X-Request-Id": "r"}
    assert served_by(r, chat(user("hi")), headers=headers) == name[ring.order("header:x-conversation:c")[0]]
    assert r.explain(chat(user("hi")), headers={"X-Request-Id": "r"})["reason"] == "policy_order"


# ---- sticky_least_loaded ----

def test_a_sticky_session_stays_and_is_finished(router, worker):
    r, _ = fleet(router, worker, 2, "sticky_least_loaded")
    names = [f"s{i}" for i in range(12)]
    was = homes(r, names)
    assert collections.Counter(was.values()) == {"w0": 6, "w1": 6}
    assert homes(r, names[::-1]) == was
    assert reasons(r, "sticky_least_loaded") == {"policy_order": 12, "affinity_key": 12}
    # Through a reload too.
    assert r.reload()[0]
    assert homes(r, names) == was
    status, told = r.admin("POST", "finish_session?session_id=s3")
    assert (status, told) == (200, {"session_id": "s3", "was_known": True})
    assert r.admin("POST", "finish_session?session_id=s3")[1]["was_known"] is False
    assert r.admin("POST", "finish_session")[0] == 400
    # Its worker has one fewer now: the next new session goes there.
    assert served_by(r, chat(user("hi")), headers=session("new")) == was["s3"]


def test_a_sticky_session_whose_worker_is_gone_is_placed_anew(router, worker):
    r, _ = fleet(router, worker, 3, "sticky_least_loaded")
    home = served_by(r, chat(user("hi")), headers=session("s"))
    assert r.admin("DELETE", f"workers/{home}")[0] == 202
    harness.wait_until(lambda: r.worker_state(home) is None, f"{home} is gone")
    now = served_by(r, chat(user("hi")), headers=session("s"))
    assert now != home
    assert {served_by(r, chat(user("hi")), headers=session("s")) for _ in range(5)} == {now}


def test_kvsteerctl_ends_a_session(router, worker):
    import subprocess
    r, _ = fleet(router, worker, 2, "sticky_least_loaded")
    served_by(r, chat(user("hi")), headers=session("a b/c"))

    def ctl():
        return subprocess.run([harness.program("kvsteerctl"), "-s", r.admin_path, "finish-session", "a b/c"],
                              capture_output=True, text=True, timeout=harness.DEADLINE)
    assert (ctl().stdout, ctl().stdout) == ("ended\n", "no such session\n")


# ---- /finish_session on the client side: who may ----

def finish(r, headers=None, query="?session_id=s%20%C3%A9"):
    return r.request("POST", "/finish_session" + query, "", headers)


def test_finish_session_with_the_admin_key(router, worker):
    r, _ = fleet(router, worker, 2, "sticky_least_loaded", keys="admin_key = the-key\n")
    served_by(r, chat(user("hi"), session_id="s é"))
    for headers in (None, {"Authorization": "Bearer the-kex"}, {"Authorization": "Bearer the-key2"}, {"Authorization": "Bearer "}, {"Authorization": "the-key"}):
        m = finish(r, headers)
        assert (m.status, m.json()["error"]["code"]) == (401, "unauthorized"), headers
    before = reasons(r, "sticky_least_loaded")
    m = finish(r, {"Authorization": "bearer the-key"})
    assert (m.status, m.json()) == (200, {"status": "ok", "session_id": "s é"})
    assert finish(r, {"Authorization": "Bearer the-key"}).status == 200, "whether known or not"
    assert finish(r, {"Authorization": "Bearer the-key"}, "").status == 400
    assert r.request("GET", "/finish_session?session_id=s", None, {"Authorization": "Bearer the-key"}).status == 405
    served_by(r, chat(user("hi"), session_id="s é"))
    assert reasons(r, "sticky_least_loaded")["policy_order"] == before["policy_order"] + 1, "a new session now"


def test_finish_session_is_closed_without_a_key(router, worker):
    r, _ = fleet(router, worker, 2, "sticky_least_loaded")
    m = finish(r)
    assert (m.status, m.json()["error"]["code"]) == (403, "forbidden")


def test_finish_session_of_a_daemon_started_by_flags(router, worker, tmp_path):
    w = worker("w0")
    sock = tmp_path / "admin.sock"
    r = router(args=["--worker-urls", w.url, "--policy", "sticky_least_loaded", "--host", "127.0.0.1", "--port", "0", "--prometheus-port", "0",
                     "--health-check-interval-secs", "1", "--admin-socket", str(sock)])
    r.admin_path = str(sock)
    r.wait_workers(w.netloc)
    assert finish(r).status == 200
    for forwarded in ("X-Forwarded-For", "Forwarded", "Via"):
        assert finish(r, {forwarded: "1.1 proxy"}).status == 403


# ---- every policy ----

@pytest.mark.parametrize("policy", ALL)
def test_a_popular_system_prompt_is_no_pile_up(router, worker, policy):
    """32 requests at once that share 8 KiB and name no session: no policy sends them all to one
    worker."""
    class Slow(harness.Hold):
        pass
    # Thresholds of an operator with 32 requests in flight, not thousands.
    r, ws = fleet(router, worker, 4, policy, handler=Slow, pool="balance_abs_threshold = 4\n")
    system = {"role": "system", "content": text(8, 1)}
    wires = []
    for i in range(32):
        c = r.connect()
        c.send(harness.make_request("POST", "/v1/chat/completions", chat(system, user(f"question {i}"))))
        wires.append(c)
    harness.wait_until(lambda: sum(len(w.requests) for w in ws) == 32, "all 32 are with workers")
    count = [len(w.requests) for w in ws]
    for w in ws:
        w.handler.release()
    for c in wires:
        assert c.read_response("POST").status == 200
        c.close()
    settle(r)
    assert max(count) <= 20, count
    assert sum(n > 0 for n in count) >= 3, count


@pytest.mark.parametrize("policy", KEYED)
def test_b36_sessions_stay_apart_and_together(router, worker, policy):
    r, _ = fleet(router, worker, 4, policy)
    names = ["s-1", "s-10", "s-100", "S-1", "a,b", "x" * 6000, *map(str, range(20))]  # the more, since where they go depends on the workers' ports
    was = homes(r, names)
    for i in range(3):
        assert homes(r, names, chat(user(text(1, i)))) == was
    assert len(set(was.values())) >= 2
    # Empty means none: idle workers take turns.
    assert len({served_by(r, chat(user("hi")), headers=session("")) for _ in range(8)}) == 4


@pytest.mark.parametrize("policy", KEYED)
def test_b36_of_a_worker_that_dies_only_its_sessions_move(router, worker, policy):
    r, ws = fleet(router, worker, 4, policy)
    names = [f"s{i}" for i in range(40)]
    was = homes(r, names)
    ws[1].stop()
    now = homes(r, names)
    assert {s for s in names if was[s] != now[s]} == {s for s in names if was[s] == "w1"}
    assert "w1" not in now.values()


@pytest.mark.parametrize("policy", ALL)
def test_explain_is_what_happens(router, worker, policy):
    r, _ = fleet(router, worker, 3, policy)
    for i in range(12):
        body, headers = chat(user(text(1, i % 4))), session(f"s{i % 3}") if i % 2 else {}
        said = r.explain(body, headers=headers)
        assert r.explain(body, headers=headers)["chosen"] == said["chosen"], "asking changes nothing"
        assert served_by(r, body, headers=headers) == said["chosen"], policy


def test_b26_prompts_of_token_ids_have_a_beginning_too(router, worker):
    r, _ = fleet(router, worker, 4, "prefix_affinity")
    ids = list(range(1000, 1400))
    told = {r.explain(completion(ids + [i]), path="/v1/completions")["chosen"] for i in range(6)}
    a = r.explain(completion(ids), path="/v1/completions")
    assert a["reason"] == "affinity_prefix" and a["key"]["unit"] == "t"
    # 400 ids are 12 blocks of 32 and a rest: one more id changes no whole block.
    assert told == {a["chosen"]}
    spelled = [r.explain(completion(" ".join(map(str, ids)) + str(i)), path="/v1/completions") for i in range(6)]
    assert all(s["key"]["unit"] == "b" for s in spelled)


@pytest.mark.parametrize("policy", ["prefix_affinity", "consistent_hash", "rendezvous_hash", "sticky_least_loaded"])
def test_d2_with_a_key_in_the_head_the_body_is_not_read(router, worker, policy):
    """It is routed by the head before a byte of the body came, whatever the body is."""
    r, ws = fleet(router, worker, 4, policy)
    home = served_by(r, chat(user("hi")), headers=session("s"))
    w = next(w for w in ws if w.name == home)
    m = r.request("POST", "/v1/chat/completions", b"\xff{ no JSON", session("s"))
    assert (m.status, m.get("x-kvsteer-worker")) == (200, home)
    seen = w.connections
    with r.connect() as c:
        c.send(harness.make_request("POST", "/v1/chat/completions", None, {**session("s"), "Content-Length": "100000"}))
        harness.wait_until(lambda: w.connections > seen or any("kvsteer_worker_load" in s and v for s, v in r.loads().items()), "the worker has its head")
        c.send(b"x" * 100000)
        assert c.read_response("POST").get("x-kvsteer-worker") == home


def test_keys_are_in_no_log(router, worker):
    r, _ = fleet(router, worker, 2, "consistent_hash", keys="log_level = debug\n")
    served_by(r, chat(user("hi"), user="secret-user"), headers=session("secret-session"))
    served_by(r, chat(user("hi"), user="secret-user"))
    assert "secret-" not in r.log()


def test_a_burst_under_power_of_two_spreads(router, worker):
    """The vLLM router's blind spot: with stock workers all looked idle."""
    r, ws = fleet(router, worker, 4, "power_of_two")
    in_parallel([lambda i=i: send(r, chat(user(f"q{i}"))) for i in range(48)])
    assert all(len(w.requests) >= 3 for w in ws)
