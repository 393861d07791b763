"""Who the client is (B19): trusted proxies and X-Forwarded-For, spoofed ones included."""
import re
import socket

import pytest

import harness
from harness import make_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
TRUSTED = "trusted_proxies = 127.0.1.0/24 10.0.0.0/8\nthreads = 1\n"
PROXY, STRANGER = "127.0.1.1", "127.0.0.9"  # all of 127/8 is this machine
CLAIMS = [("Forwarded", "for=1.2.3.4"), ("X-Real-IP", "1.2.3.4"), ("X-Forwarded-Host", "a.test"), ("X-Forwarded-Port", "1"),
          ("X-Forwarded-Client-Cert", "Hash=1"), ("X-Original-URL", "/admin"), ("X-Rewrite-URL", "/admin"), ("X-Forwarded-Prefix", "/p")]
LOOKALIKES = [("X_Real_IP", "6.6.6.6"), ("X_Forwarded_Host", "6"), ("X_FORWARDED_FOR", "6.6.6.6"), ("X_Original_URL", "/6"), ("X_Forwarded_Proto", "6")]

# peer, what X-Forwarded-For it sends (a line each), the client in the log, what the worker gets.
ROWS = [
    (STRANGER, [], STRANGER, STRANGER),
    (STRANGER, ["192.0.2.7"], STRANGER, STRANGER),
    (STRANGER, ["127.0.1.1"], STRANGER, STRANGER),
    (STRANGER, ["192.0.2.7, 127.0.1.1", "10.0.0.1"], STRANGER, STRANGER),
    (STRANGER, ["unknown"], STRANGER, STRANGER),
    (STRANGER, [", ".join(["10.0.0.1"] * 33)], STRANGER, STRANGER),
    (PROXY, [], PROXY, PROXY),
    (PROXY, ["192.0.2.7"], "192.0.2.7", f"192.0.2.7, {PROXY}"),
    (PROXY, ["2001:DB8::7"], "2001:db8::7", f"2001:DB8::7, {PROXY}"),
    (PROXY, ["192.0.2.7, 10.0.0.2"], "192.0.2.7", f"192.0.2.7, 10.0.0.2, {PROXY}"),
    (PROXY, ["192.0.2.7", "10.0.0.2"], "192.0.2.7", f"192.0.2.7, 10.0.0.2, {PROXY}"),
    (PROXY, ["192.0.2.7, 10.0.0.2, 127.0.1.77"], "192.0.2.7", f"192.0.2.7, 10.0.0.2, 127.0.1.77, {PROXY}"),
    (PROXY, ["1.1.1.1, 192.0.2.7"], "192.0.2.7", f"1.1.1.1, 192.0.2.7, {PROXY}"),
    (PROXY, ["1.1.1.1", "192.0.2.7"], "192.0.2.7", f"1.1.1.1, 192.0.2.7, {PROXY}"),
    (PROXY, ["10.9.9.9, 192.0.2.7, 10.0.0.2"], "192.0.2.7", f"10.9.9.9, 192.0.2.7, 10.0.0.2, {PROXY}"),
    (PROXY, ["127.0.1.5, 127.0.0.1"], "127.0.0.1", f"127.0.1.5, 127.0.0.1, {PROXY}"),
    (PROXY, ["10.0.0.5, 10.0.0.2"], "10.0.0.5", f"10.0.0.5, 10.0.0.2, {PROXY}"),
    (PROXY, ["192.0.2.7:4711"], "192.0.2.7", f"192.0.2.7:4711, {PROXY}"),
    (PROXY, ["[2001:db8::7]:4711"], "2001:db8::7", f"[2001:db8::7]:4711, {PROXY}"),
    (PROXY, ["[2001:db8::7]"], "2001:db8::7", f"[2001:db8::7], {PROXY}"),
    (PROXY, ["::ffff:192.0.2.7"], "192.0.2.7", f"::ffff:192.0.2.7, {PROXY}"),
    (PROXY, ["192.0.2.7, ::ffff:10.0.0.2"], "192.0.2.7", f"192.0.2.7, ::ffff:10.0.0.2, {PROXY}"),
    (PROXY, ["unknown"], PROXY, f"unknown, {PROXY}"),
    (PROXY, ["192.0.2.7, unknown"], PROXY, f"192.0.2.7, unknown, {PROXY}"),
    (PROXY, ["192.0.2.7, _x, 10.0.0.2"], "10.0.0.2", f"192.0.2.7, _x, 10.0.0.2, {PROXY}"),
    (PROXY, ["192.0.2.7, 10.0.0.2:99999"], PROXY, f"192.0.2.7, 10.0.0.2:99999, {PROXY}"),
    (PROXY, ["192.0.2.7 10.0.0.2"], PROXY, f"192.0.2.7 10.0.0.2, {PROXY}"),
    (PROXY, [",, 192.0.2.7 ,,"], "192.0.2.7", f",, 192.0.2.7 ,,, {PROXY}"),
    (PROXY, ["", "192.0.2.7", ""], "192.0.2.7", f"192.0.2.7, {PROXY}"),
    (PROXY, ["999.1.1.1, 192.0.2.007"], PROXY, f"999.1.1.1, 192.0.2.007, {PROXY}"),
    (PROXY, [", ".join(["1.1.1.1"] * 31 + ["192.0.2.7"])], "192.0.2.7", ", ".join(["1.1.1.1"] * 31 + ["192.0.2.7", PROXY])),
    (PROXY, [", ".join(["1.1.1.1"] * 33)], "400", None),
    (PROXY, ["1.1.1.1"] * 33, "400", None),
]


def connect(r, source):
    return harness.Wire(socket.create_connection(("127.0.0.1", r.port), harness.DEADLINE, source_address=(source, 0)))


def ask(r, source, headers, rid=None):
    with connect(r, source) as c:
        c.send(make_request(body=CHAT, headers=headers + ([("X-Request-Id", rid)] if rid else [])))
        return c.read_response("POST")


def logged_client(r, rid):
    return r.wait_log(rf"id={rid} client=(\S+)").group(1)


@pytest.fixture(scope="module")
def behind_proxies(tmp_path_factory):
    w = harness.Worker("w0")
    r = harness.Router(tmp_path_factory.mktemp("proxies"), conf=harness.worker_conf([w]), router_keys=TRUSTED)
    r.wait_workers("w0")
    yield r, w
    r.stop()
    w.stop()


@pytest.mark.parametrize("n", range(len(ROWS)))
def test_b19_the_client_behind_proxies(behind_proxies, n):
    r, w = behind_proxies
    peer, lines, client, upstream = ROWS[n]
    w.clear()
    m = ask(r, peer, [("X-Forwarded-For", v) for v in lines], f"row-{n}")
    if client == "400":
        assert m.status == 400 and not w.requests and "32 addresses" in m.json()["error"]["message"]
        return
    assert m.status == 200
    assert w.requests[0].all("x-forwarded-for") == [upstream]
    assert logged_client(r, f"row-{n}") == client


def test_b19_what_strangers_claim_ends_here(behind_proxies):
    r, w = behind_proxies
    w.clear()
    sent = CLAIMS + LOOKALIKES + [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "1.2.3.4"), ("X-Forwarding", "stays")]
    assert ask(r, STRANGER, sent).status == 200
    assert ask(r, PROXY, sent).status == 200
    stranger, proxy = w.requests
    for name, value in CLAIMS:
        assert stranger.all(name.lower()) == [] and proxy.all(name.lower()) == [value], name
    for name, _ in LOOKALIKES:
        assert stranger.all(name.lower()) == proxy.all(name.lower()) == [], name
    assert stranger.all("x-forwarded-proto") == ["http"] and proxy.all("x-forwarded-proto") == ["https"]
    assert stranger.all("x-forwarded-for") == [STRANGER] and proxy.all("x-forwarded-for") == [f"1.2.3.4, {PROXY}"]
    assert stranger.get("x-forwarding") == proxy.get("x-forwarding") == "stays"


def test_b19_without_trusted_proxies_nobody_is_believed(pair):
    r, w = pair
    assert ask(r, PROXY, CLAIMS + [("X-Forwarded-For", "192.0.2.7")], "none-1").status == 200
    q = w.requests[0]
    assert q.all("x-forwarded-for") == [PROXY] and not any(q.all(n.lower()) for n, _ in CLAIMS)
    assert logged_client(r, "none-1") == PROXY


PAIR = {}


def test_b19_a_reload_changes_who_is_trusted(router, worker):
    w = worker("w0")
    r = router([w], keys="threads = 1\n")
    with connect(r, PROXY) as c:
        for rid, client in (("before-1", PROXY), ("after-1", "192.0.2.7")):
            c.send(make_request(body=CHAT, headers=[("X-Forwarded-For", "192.0.2.7"), ("X-Request-Id", rid)]))
            assert c.read_response("POST").status == 200
            assert logged_client(r, rid) == client
            if rid == "before-1":
                r.router_keys = TRUSTED
                r.reload(harness.worker_conf([w]))


# allow, deny, the client, whether it is served
ADMITTED = [
    ("none", "none", "192.0.2.7", True),
    ("192.0.2.0/24", "none", "192.0.2.7", True),
    ("192.0.2.0/24", "none", "192.0.3.7", False),
    ("192.0.2.0/24", "none", None, False),
    ("192.0.2.0/24 127.0.1.0/24", "none", None, True),
    ("192.0.2.0/24", "192.0.2.7", "192.0.2.7", False),
    ("192.0.2.0/24", "192.0.2.7", "192.0.2.8", True),
    ("none", "192.0.2.0/24", "192.0.2.7", False),
    ("none", "192.0.2.0/24", "192.0.3.7", True),
    ("2001:db8::/32", "none", "2001:db8::7", True),
    ("2001:db8::/32", "none", "2001:db9::7", False),
    ("::/0", "none", "192.0.2.7", False),
    ("none", "::/0", "192.0.2.7", True),
    ("none", "192.0.2.0/24", "::ffff:192.0.2.7", False),
    ("unix:", "none", "192.0.2.7", False),
]


@pytest.mark.parametrize("n", range(len(ADMITTED)))
def test_allow_and_deny(behind_proxies, n):
    """By the client behind the proxy; health is for everybody."""
    r, w = behind_proxies
    allow, deny, client, is_served = ADMITTED[n]
    r.router_keys = TRUSTED + f"allow = {allow}\ndeny = {deny}\n"
    assert r.reload(harness.worker_conf([w]))[0]
    headers = [("X-Forwarded-For", client)] if client else []
    w.clear()

    def get(path, method="GET"):
        with connect(r, PROXY) as c:
            c.send(make_request(method, path, headers=headers))
            return c.read_response(method).status
    m = ask(r, PROXY, headers)
    assert m.status == (200 if is_served else 403)
    assert get("/v1/models") == (200 if is_served else 403)
    assert get("/health") == get("/readiness") == 200
    if not is_served:
        assert not w.requests and m.json()["error"]["code"] == "forbidden" and "address" in m.json()["error"]["message"]
        assert get("/v1/chat/completions", "OPTIONS") == get("/no/such/path") == 403
    r.router_keys = TRUSTED
    assert r.reload(harness.worker_conf([w]))[0]


def test_b19_the_key_has_its_effect_said(tmp_path):
    """-t warned that trusted_proxies has no effect."""
    import subprocess
    conf = tmp_path / "c"
    conf.write_text("[router]\nadmin_socket = none\ntrusted_proxies = 10.0.0.0/8 unix: ::1\n[worker w]\nurl = http://127.0.0.1:1\n")
    p = subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert p.returncode == 0 and not re.search("no effect", p.stdout + p.stderr)
    conf.write_text(conf.read_text().replace("unix:", "unix:/run/a.sock"))
    p = subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert p.returncode == 1 and "trusted_proxies" in p.stderr
