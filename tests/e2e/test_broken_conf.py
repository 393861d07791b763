"""Broken configurations, a table of them: each fault is told with file, line, key, value and what
would do, and kvsteerd -t, a start, a SIGHUP and kvsteerctl reload agree on it word for word; a
daemon that runs changes nothing."""
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

import harness
from harness import wait_until, worker_conf

HEAD = "[router]\nlisten = 127.0.0.1:0\nmetrics_listen = 127.0.0.1:0\nadmin_socket = {dir}/admin.sock\n"
W = "[worker a]\nurl = http://127.0.0.1:1\n"
# Root may read everything: without its capabilities it is a user like any other.
WRAP = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


class Case:
    """conf: kvsteer.conf, behind HEAD unless it begins with a section of its own name (head="").
    The line that is at fault begins with a !, which is taken off. more: further files, or what
    makes them. says: words of message and hint. value None: none is quoted. reload: what a reload
    says instead, where it must differ."""

    def __init__(self, name, conf=W, key=None, value=None, says=(), more=(), head=HEAD, n=1, is_machine=False, reload=None):
        self.name, self.conf, self.key, self.value, self.says = name, conf, key, value, says
        self.more, self.head, self.n, self.is_machine, self.reload = dict(more), head, n, is_machine, reload

    def write(self, folder, taken):
        """Puts the files there; (path, line) of the fault."""
        at = None
        for name, content in {"kvsteer.conf": self.conf if callable(self.conf) else self.fill(self.head, folder, taken) + self.fill(self.conf, folder, taken),
                              **self.more}.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                os.unlink(path)
            if callable(content):
                content(path)
                at = at or (path, 0)
                continue
            content = self.fill(content, folder, taken)
            lines = content.split(b"\n")
            for i, line in enumerate(lines):
                if line.startswith(b"!"):
                    lines[i] = line[1:]
                    at = (path, i + 1)
            with open(path, "wb") as f:
                f.write(b"\n".join(lines))
        assert at, "no line is marked"
        return at

    @staticmethod
    def fill(text, folder, taken):
        text = text.encode() if isinstance(text, str) else text
        return text.replace(b"{dir}", folder.encode()).replace(b"{taken}", str(taken).encode())


def key(name, value, *says, section="router", shown=True, **kw):
    """One line in [router], or in a section behind it."""
    conf = f"!{name} = {value}\n{W}" if section == "router" else f"{W}!{name} = {value}\n" if section == "worker" else f"[{section}]\n!{name} = {value}\n{W}"
    return Case(f"{section}: {name} = {value}"[:60], conf, name, value if shown else None, says, **kw)


def pool(name, value, *says, **kw):
    return key(name, value, *says, section="pool default", **kw)


def worker(name, value, *says, **kw):
    return key(name, value, *says, section="worker", **kw)


def lexed(name, line, *says):
    """A line that is no key and value."""
    line = line if isinstance(line, bytes) else line.encode()
    return Case(name, b"!" + line + b"\n" + W.encode(), says=says)


def section(name, *says, n=1):
    return Case(f"[{name}", f"{W}![{name}\n", says=says, n=n)


CASES = [
    # sections
    section("rooter]", "no such section", "[router]"),
    section("router main]", "no such section"),
    section("pool]", "no such section", "[pool NAME]"),
    section("pool a b]", "no such section", "prefill|decode"),
    section("pool a prefill x]", "no such section"),
    section("worker]", "no such section", "[worker NAME]"),
    section("worker a/b]", "is not a name", "letters"),
    section("]", "without a name"),
    section("worker b", "closing bracket"),
    section("worker b] # the second", "after the section", "lines of their own"),
    Case("role of a mistyped pool", f"[pool default]\n{W}![pool defualt prefill]\n", says=("[pool defualt prefill]: no such pool", "[pool NAME]")),
    Case("role of an unknown pool", f"[pool a]\n{W}pool = a\n![pool b decode]\npolicy = random\n", says=("[pool b decode]: no such pool",)),
    Case("worker without url", f"{W}![worker b]\nrole = unified\n", "url", None, ("worker b has no url", "http://127.0.0.1:8000")),
    Case("duplicate worker", f"{W}![worker a]\nurl = http://127.0.0.1:2\n", says=("duplicate section", "below the first")),
    Case("duplicate pool", f"[pool default]\n{W}![pool default]\n", says=("duplicate section, the first is in line 5",)),
    Case("duplicate router", f"{W}![router]\nthreads = 1\n", says=("duplicate section, the first is in line 1",)),
    Case("key before any section", "!threads = 1\n" + HEAD + W, says=("before any section", "[router]"), head=""),
    # keys
    key("lisen", "127.0.0.1:1", "unknown key in [router]", "did you mean listen?", shown=False),
    key("xyzzy", "1", "unknown key", "kvsteer.conf(5)", shown=False),
    key("policy", "random", "unknown key in [router]", "belongs in [pool NAME]", shown=False),
    key("url", "http://127.0.0.1:1", "belongs in [worker NAME]", shown=False),
    pool("listen", "127.0.0.1:1", "unknown key in [pool NAME]", "belongs in [router]", shown=False),
    pool("cache_treshold", "0.5", "did you mean cache_threshold?", shown=False),
    key("models", "x", "belongs in [pool NAME]", section="pool default decode", shown=False),
    worker("policy", "random", "unknown key", "belongs in [pool NAME]", shown=False),
    Case("duplicate key", f"threads = 1\n\n!threads = 1\n{W}", "threads", "1", ("the first is in line 5", "leave one")),
    worker("url", "http://127.0.0.1:2", "the first is in line 6", "leave one"),
    key("threads", "", "has no value"),
    key("admin_key", "", "has no value", "none", shown=False),
    lexed("no equals sign", "threads", "neither a section nor", "key = value"),
    lexed("no key", "= 1", "no key before the ="),
    lexed("capitals in a key", "Threads = 1", "bad character in the key", "a-z"),
    lexed("unbalanced quotes", 'log_level = "info', "closing quote", "same line"),
    lexed("text behind quotes", 'log_level = "info" x', "after the closing quote"),
    lexed("unknown escape", 'log_level = "in\\fo"', "unknown escape"),
    # bytes
    lexed("not UTF-8", b"log_level = inf\xf6", "invalid UTF-8", "save the file as UTF-8"),
    lexed("UTF-16", "log_level = info".encode("utf-16-le"), "NUL byte", "UTF-8"),
    lexed("NUL byte", b"log_level = in\0fo", "NUL byte"),
    lexed("control character", b"log_level = in\x07fo", "control character"),
    lexed("carriage return inside", b"log_level = in\rfo", "carriage return", "LF or CR LF"),
    lexed("a line above the limit", b"# " + b"x" * (1 << 20), "longer than 1 MiB", "spread lists"),
    Case("a value that is cut where it is shown", "!log_level = " + "y" * 500 + f"\n{W}", "log_level", "y" * 120 + "...", ("not known",)),
    # numbers, times, sizes
    key("threads", "two", "not a whole number", "digits"),
    key("threads", "-1", "not a whole number"),
    key("threads", "1.5", "not a whole number"),
    key("threads", "1025", "out of range", "from 0 to 1024"),
    key("threads", "9" * 30, "out of range"),
    key("admin_socket_mode", "0980", "not a file mode", "0660"),
    key("admin_socket_mode", "1777", "range", "0777"),
    key("head_timeout", "10", "has no unit", "5s"),
    key("head_timeout", "10 s", "not a time", "5s"),
    key("head_timeout", "10sec", "not a time"),
    key("head_timeout", "0", "range", "from 1ms to 24h"),
    key("head_timeout", "9" * 17 + "h", "range", "24h"),
    key("max_body_size", "10mb", "not a size", "16m"),
    key("max_body_size", "2048g", "range", "1024g"),
    key("body_memory", "1s", "not a size"),
    key("drain_timeout", "5k", "not a time"),
    pool("prefix_block", "8", "range", "from 16 to 64k"),
    pool("cache_threshold", "1.01", "range", "from 0 to 1"),
    pool("cache_threshold", "30%", "not a number", "0.3"),
    pool("cache_threshold", "nan", "not a number"),
    pool("balance_rel_threshold", "0.5", "range", "from 1"),
    pool("retry_budget", "101%", "not a percentage", "20%"),
    pool("prefix_ttl", "300", "has no unit"),
    # words
    key("access_log", "maybe", "neither on nor off", "on or off"),
    key("log_level", "trace", "not known", "error, warn"),
    key("half_close", "on", "not known", "auto, abort, allow"),
    pool("policy", "cache-aware", "not known", "cache_aware"),
    pool("policy", "kv_aware", "not built yet", "cache_aware"),
    pool("cost", "prefill-cost", "not known", "prefill_cost"),
    pool("signal", "last_block", "not known", "longest_prefix"),
    pool("load_source", "engine", "not known", "own, reported"),
    worker("role", "encode", "not known", "unified, prefill, decode"),
    # addresses and lists
    Case("listen is a bare port", HEAD.replace("listen = 127.0.0.1:0", "!listen = 30000", 1) + W, "listen", "30000",
         ("port without an address", "127.0.0.1:30000"), head=""),
    key("listen", "127.0.0.1:99999", "out of range", "65535"),
    key("listen", "::1:80", "more than one colon", "brackets"),
    key("listen", "300.0.0.1:80", "no valid IPv4 address"),
    Case("nothing to listen on", HEAD.replace("listen = 127.0.0.1:0", "!listen = none", 1) + W, "listen", "none", ("nothing to listen on", "127.0.0.1:30000"), head=""),
    Case("listen twice", f"!listen = 127.0.0.1:7 127.0.0.1:7\n{W}", "listen", "127.0.0.1:7", ("twice", "leave one")),
    key("trusted_proxies", "10.0.0.1/8", "beyond its prefix", "/32"),
    key("trusted_proxies", "10.0.0.0/33", "no valid prefix length", "/32"),
    key("routing_key_headers", "a,b", "header name", "blanks"),
    key("pass_paths", "v1/x", "not an exact path", "/v1/"),
    key("pass_paths", "/v1/*", "not an exact path", "wildcard"),
    pool("models", "a, b", "not a model pattern", "blanks"),
    lexed("a name behind another key", "models x = y", "bad character in the key"),
    Case("an alias without a model", f"[pool default]\n!alias a =\n{W}", "alias", "a=", ("does not name an alias and its model", "alias NAME = TARGET")),
    Case("an alias of two models", f"[pool default]\n!alias a = b c\n{W}", "alias", "a=b c", ("does not name an alias", "without blanks")),
    pool("alias", "a", "does not name an alias and its model", "alias NAME = TARGET"),
    Case("an alias of a pattern", f"[pool default]\n!alias a = b*\n{W}", "alias", "a=b*", ("no model can have", "without blanks")),
    Case("an alias of itself", f"[pool default]\n!alias a = a\n{W}", "alias", "a=a", ("is an alias of itself in pool default", "leave it out")),
    Case("an alias of an alias", f"[pool default]\nalias b = c\n!alias a = b\n{W}", "alias", "a=b", ("names another alias", "the model itself")),
    Case("an alias twice", f"[pool default]\nalias b = c\n!alias b = d\n{W}", "alias", "b=d", ("pool default has this alias already", "leave one")),
    Case("an alias of two pools", f"[pool default]\nmodels = c\nalias b = c\n[pool x]\n!alias b = c\n{W}", "alias", "b=c",
         ("pool default has this alias already; a name stands for one model of one pool", "leave one")),
    Case("an alias of what the pool does not serve", f"[pool default]\nmodels = b\n!alias a = c\n{W}", "alias", "a=c",
         ("names a model that pool default does not serve", "add it to models")),
    pool("health_path", "health", "not a path", "begin with /"),
    pool("worker_cidrs", "localhost", "not a network", "10."),
    pool("worker_cidrs", "fd00::/129", "no valid prefix length", "/128"),
    Case("name of the admin socket too long", HEAD.replace("admin_socket = {dir}", "!admin_socket = /tmp/" + "x" * 100) + W, "admin_socket",
         "/tmp/" + "x" * 100 + "/admin.sock", ("is too long", "107 characters"), head=""),
    # workers
    Case("url without a scheme", "[worker a]\n!url = 127.0.0.1:1\n", "url", "127.0.0.1:1",
         ("no scheme", "did you mean http://127.0.0.1:1?")),
    Case("url of another scheme", "[worker a]\n!url = ftp://127.0.0.1:1\n", "url", "ftp://127.0.0.1:1", ("neither http nor https",)),
    Case("url with a password", "[worker a]\n!url = http://me:secret@127.0.0.1:1\n", "url", None, ("has a user", "worker_key")),
    Case("url that ends in /v1", "[worker a]\n!url = http://127.0.0.1:1/v1\n", "url", "http://127.0.0.1:1/v1", ("/v1/v1", "remove /v1")),
    Case("url with a query", "[worker a]\n!url = http://127.0.0.1:1/?x\n", "url", "http://127.0.0.1:1/?x", ("has a query", "leave out")),
    Case("url with https", "[worker a]\n!url = https://127.0.0.1:1\n", "url", "https://127.0.0.1:1", ("TLS is not built in yet", "http://")),
    Case("two workers with one url", f"{W}[worker b]\n!url = http://127.0.0.1:1/\n", "url", "http://127.0.0.1:1", ("worker a has this URL", "leave one")),
    Case("worker of an unknown pool", f"[pool y]\n{W}!pool = x\n", "pool", "x", ("no such pool", "the pools are: y")),
    worker("dp_size", "0", "range", "from 1"),
    worker("bootstrap_port", "65536", "range", "65535"),
    worker("worker_key", "a b", "cannot be sent", "ASCII", shown=False),
    worker("worker_key", "(set)", "the placeholder that kvsteerd -T prints", "the secret", shown=False),
    # what there is not yet
    key("tls_cert", "/etc/cert.pem", "TLS is not built in yet", "leave it out"),
    key("client_ca", "/etc/ca.pem", "TLS is not built in yet", "leave it out"),
    # files
    Case("a file of conf.d that contradicts itself", more={"conf.d/10-a.conf": "[pool default]\npolicy = random\n!policy = round_robin\n"},
         key="policy", value="round_robin", says=("duplicate key, the first is in line 2", "leave one")),
    Case("a broken file in conf.d", more={"conf.d/a.conf": "[pool default]\n!policy = magic\n"}, key="policy", value="magic", says=("not known", "cache_aware")),
    Case("a dangling link in conf.d", more={"conf.d/a.conf": lambda path: os.symlink("nowhere", path)}, says=("cannot be read: No such file", "remove the link")),
    Case("a loop of links", conf=lambda path: os.symlink("kvsteer.conf", path), says=("cannot be read: Too many levels of symbolic links", "a link to one")),
    Case("a folder in place of a file", conf=os.mkdir, says=("cannot be read: Is a directory", "name a file")),
    Case("a folder named like a file of conf.d", more={"conf.d/a.conf": os.mkdir}, says=("cannot be read: Is a directory", "ends in .conf")),
    Case("a pipe", conf=os.mkfifo, says=("is not a file", "a reload")),
    Case("conf.d is a file", more={"conf.d": lambda path: open(path, "w").close()}, says=("cannot be read: Not a directory", "make it a folder")),
    Case("no file", conf=lambda path: None, says=("cannot be read: No such file", "-c FILE")),
    Case("a file that may not be read", conf=lambda path: os.close(os.open(path, os.O_CREAT, 0)), says=("cannot be read: Permission denied", "user or group")),
    Case("a conf.d that may not be read", more={"conf.d": lambda path: os.mkdir(path, 0)}, says=("cannot be read: Permission denied", "user or group")),
    Case("a huge file", conf=lambda path: open(path, "wb").write(b"\n" * ((16 << 20) + 1)), says=("the file is too large", "up to 16m")),
    # several at once: all are told
    Case("four faults", f"!threads = x\nlisen = :1\n[foo]\nbar = 1\n{W}role = none\n", "threads", "x", ("not a whole number",), n=4),
    # this machine
    key("listen", "127.0.0.1:{taken}", "cannot listen: Address already in use", "choose another port", is_machine=True),
    key("listen", "192.0.2.1:30000", "cannot listen: Cannot assign requested address", "an address of this machine", is_machine=True),
    Case("a second line of listen is taken", f"listen = 127.0.0.2:0\n!listen = 127.0.0.1:{{taken}}\n{W}", "listen", "127.0.0.1:{taken}",
         ("Address already in use",), is_machine=True),
    Case("an address of two in a line is taken", f"!listen = 127.0.0.2:0 127.0.0.1:{{taken}}\n{W}", "listen", "127.0.0.1:{taken}",
         ("Address already in use",), is_machine=True),
    Case("every address is asked for, one is taken", f"!listen = :{{taken}}\n{W}", "listen", ":{taken}", ("Address already in use",), is_machine=True),
    Case("metrics and clients at one address", "[router]\n!listen = 127.0.0.1:7\nmetrics_listen = 127.0.0.1:7\nadmin_socket = {dir}/admin.sock\n" + W, "listen",
         "127.0.0.1:7", ("metrics_listen uses this address", "another port"), head=""),
    Case("metrics at a taken address", HEAD.replace("metrics_listen = 127.0.0.1:0", "!metrics_listen = 127.0.0.1:{taken}") + W, "metrics_listen", "127.0.0.1:{taken}",
         ("cannot listen: Address already in use",), head="", is_machine=True, reload="cannot change while the daemon runs"),
    Case("no folder for the admin socket", HEAD.replace("admin_socket = {dir}/", "!admin_socket = {dir}/no/such/") + W, "admin_socket", "{dir}/no/such/admin.sock",
         ("cannot be opened: No such file or directory", "choose another path"), head="", is_machine=True, reload="cannot change while the daemon runs"),
    Case("a file in place of the admin socket", HEAD.replace("admin.sock", "kvsteer.conf").replace("admin_", "!admin_") + W, "admin_socket", "{dir}/kvsteer.conf",
         ("cannot be opened: a file that is not a socket has this path",), head="", is_machine=True, reload="cannot change while the daemon runs"),
]


def test_the_table_has_no_case_twice():
    assert len(CASES) >= 100 and len({c.name for c in CASES}) == len(CASES)


class Place:
    """A daemon that runs with a good file, a folder beside it where nobody does, and a port that
    somebody else has."""

    def __init__(self, tmp):
        self.worker = harness.Worker("w0")
        self.router = harness.Router(tmp / "running", conf=worker_conf([self.worker]), wrap=WRAP, allow_errors=["reload failed"])
        self.router.wait_workers("w0")
        self.beside = str(tmp / "beside")
        self.other = socket.socket()
        self.other.bind(("127.0.0.1", 0))
        self.other.listen(1)
        self.taken = self.other.getsockname()[1]

    def clean(self, folder):
        for name in ("kvsteer.conf", "conf.d"):
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)

    def good_again(self):
        self.clean(self.router.tmp)
        self.router.write_conf(worker_conf([self.worker]))

    def state(self):
        status = self.router.admin("GET", "status")[1]
        return (self.router.admin("GET", "config")[1], status["listen"], status["pid"], [(w["name"], w["url"], w["state"]) for w in status["workers"]])

    def end(self):
        self.other.close()
        self.worker.stop()
        self.router.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    p = Place(tmp_path_factory.mktemp("broken"))
    yield p
    p.end()


def run(*args, **kw):
    return subprocess.run([*WRAP, harness.program(args[0]), *args[1:]], capture_output=True, timeout=60, text=True, errors="replace", **kw)


def faults(text, program):
    """The lines of stderr that name a fault, without what every program or log says before them."""
    found = [re.sub(rf"^({program}: |\S+Z error +|<3>)", "", line) for line in text.splitlines() if re.match(rf"({program}: |\S+Z error |<3>)", line)]
    return [line for line in found if not re.search(r"^(\S+: )?warning: ", line)]


def text_of(error):
    """A fault of the admin API as one line, as the programs print it."""
    where = f"{error['file']}:{error['line']}: " if error.get("line") else f"{error['file']}: " if error.get("file") else ""
    what = "" if not error.get("key") else f"{error['key']} = {error['value']}: " if error.get("value") is not None else f"{error['key']}: "
    return where + what + error["message"] + (f"; {error['hint']}" if error.get("hint") else "")


def check_first(case, text, path, line, folder, taken):
    """file:line: key = value: message; what would do."""
    def fill(s):
        return s.replace("{dir}", folder).replace("{taken}", str(taken))
    begin = f"{path}:{line}: " if line else f"{path}: "
    if case.key:
        begin += f"{case.key} = {fill(case.value)}: " if case.value is not None else f"{case.key}: "
    assert text.startswith(begin), (text, begin)
    for words in case.says:
        assert fill(words) in text[len(begin):], (text, words)
    assert "; " in text[len(begin):], f"nothing says what would do: {text}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_broken(place, case):
    r, running, beside = place.router, place.router.tmp, place.beside
    before = place.state()
    failed = r.admin("GET", "status")[1]["counters"]["reloads_failed"]
    try:
        place.clean(running)
        os.makedirs(beside, exist_ok=True)
        place.clean(beside)
        path, line = case.write(beside, place.taken)
        # -t and a start, where no daemon runs
        tested = run("kvsteerd", "-t", "-c", f"{beside}/kvsteer.conf")
        told = faults(tested.stderr, "kvsteerd")
        assert tested.returncode == 1 and len(told) == case.n, tested.stderr
        assert "is good" not in tested.stderr
        check_first(case, told[0], path, line, beside, place.taken)
        started = run("kvsteerd", "-c", f"{beside}/kvsteer.conf")
        assert started.returncode == (1 if case.is_machine else 2), started.stderr
        assert faults(started.stderr, "kvsteerd") == told
        # the same files below the daemon that runs
        path, line = case.write(running, place.taken)
        here = [t.replace(beside, running) for t in told]
        tested = run("kvsteerd", "-t", "-c", r.conf_path)
        if case.reload is None:
            assert tested.returncode == 1 and faults(tested.stderr, "kvsteerd") == here, tested.stderr
        status, answer = r.admin("POST", "reload")
        assert status == 422 and answer["error"]["code"] == "reload_failed"
        errors = answer["errors"]
        if case.reload is None:
            assert [text_of(e) for e in errors] == here
        else:
            assert case.reload in errors[0]["message"] and errors[0]["hint"]
        if line:
            assert (errors[0]["file"], errors[0]["line"], errors[0]["key"]) == (path, line, case.key), errors
        by_tool = run("kvsteerctl", "-s", r.admin_path, "reload")
        assert by_tool.returncode == 1 and by_tool.stderr.splitlines()[-len(errors):] == [text_of(e) for e in errors], by_tool.stderr
        at = len(r.log())
        r.signal(signal.SIGHUP)
        wait_until(lambda: r.admin("GET", "status")[1]["counters"]["reloads_failed"] == failed + 3, "the reload by SIGHUP fails")
        escaped = text_of(errors[0]).encode().decode("latin-1")
        escaped = "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in escaped)
        said = f" reload failed, nothing changed: {escaped}"
        wait_until(lambda: said in r.log()[at:], f"{said} in {r.log()[at:]}")
    finally:
        place.good_again()
    assert place.state() == before
    assert r.request().status == 200


# ---- what -t asks of the machine ----

def test_the_running_daemons_own_addresses_are_fine(tmp_path, router, worker):
    """-t before a reload: the ports are in use, by the very daemon that is to take the file."""
    port, metrics = harness.free_port(), harness.free_port()
    r = router([worker("w0")], listen=f"127.0.0.1:{port}")
    good = open(r.conf_path).read()
    tested = run("kvsteerd", "-t", "-c", r.conf_path)
    assert tested.returncode == 0 and "the configuration is good" in tested.stderr, tested.stderr
    # every address of a port that it has is fine, too: it replaces its own
    with open(r.conf_path, "w") as f:
        f.write(good.replace(f"listen = 127.0.0.1:{port}", f"listen = :{port}"))
    assert run("kvsteerd", "-t", "-c", r.conf_path).returncode == 0
    # its metrics are asked for as well; another address of its port is not its own
    with open(r.conf_path, "w") as f:
        f.write(good.replace("metrics_listen = 127.0.0.1:0", f"metrics_listen = 127.0.0.1:{metrics}"))
    assert run("kvsteerd", "-t", "-c", r.conf_path).returncode == 0
    # who cannot ask the daemon is told so, and nothing more is held against the file
    with open(r.conf_path, "w") as f:
        f.write(re.sub("admin_socket = .*", "admin_socket = none", good))
    tested = run("kvsteerd", "-t", "-c", r.conf_path)
    assert tested.returncode == 0 and re.search(r"warning: addresses are in use, .*there is no admin socket; run this as root", tested.stderr), tested.stderr
    # a file that names another daemon's admin socket, or none that answers, knows nothing of this
    # one
    with open(r.conf_path, "w") as f:
        f.write(re.sub("admin_socket = .*", f"admin_socket = {tmp_path}/other.sock", good))
    tested = run("kvsteerd", "-t", "-c", r.conf_path)
    assert tested.returncode == 1 and f"listen = 127.0.0.1:{port}: cannot listen: Address already in use" in tested.stderr
    assert r.request().status == 200


def test_sockets_that_the_service_manager_keeps_are_fine(tmp_path):
    """ExecStartPre= of a restart: the ports are in use by the descriptor store."""
    conf = tmp_path / "kvsteer.conf"
    with socket.socket() as kept, socket.socket() as foreign:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for s in (kept, foreign):
            s.bind(("127.0.0.1", 0))
            s.listen(1)
        for s, env, code in ((kept, "x", 0), (kept, None, 1), (foreign, "x", 1)):
            conf.write_text(f"[router]\nlisten = 127.0.0.1:{s.getsockname()[1]}\nmetrics_listen = none\nadmin_socket = {tmp_path}/admin.sock\n{W}")
            tested = run("kvsteerd", "-t", "-c", str(conf), env={**{k: v for k, v in os.environ.items() if k != "INVOCATION_ID"},
                                                                **({"INVOCATION_ID": env} if env else {})})
            assert tested.returncode == code, tested.stderr
        kept.settimeout(0)
        with pytest.raises(BlockingIOError):  # nothing was sent there, and nothing taken away
            kept.accept()


def test_somebody_else_at_the_admin_socket(tmp_path):
    """What answers there is no kvsteerd: a start fails, and -t says so."""
    conf, path = tmp_path / "kvsteer.conf", str(tmp_path / "admin.sock")
    conf.write_text(f"[router]\nlisten = 127.0.0.1:0\nmetrics_listen = none\nadmin_socket = {path}\n{W}")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        s.listen(8)
        thread = harness.threading.Thread(target=lambda: [s.accept()[0].close() for _ in range(3)])
        thread.start()
        tested = run("kvsteerd", "-t", "-c", str(conf))
        started = run("kvsteerd", "-c", str(conf))
        for _ in range(3):  # whoever is still waiting to accept may end
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(path)
        thread.join()
    assert (tested.returncode, started.returncode) == (1, 1)
    told = faults(tested.stderr, "kvsteerd")
    assert told == faults(started.stderr, "kvsteerd") and "cannot be opened: another daemon uses it" in told[0], (tested.stderr, started.stderr)
    # a socket that nobody listens on is in nobody's way
    assert run("kvsteerd", "-t", "-c", str(conf)).returncode == 0


def test_a_name_that_nobody_knows_is_a_warning(tmp_path):
    path = tmp_path / "kvsteer.conf"
    path.write_text("[router]\nlisten = 127.0.0.1:0\nmetrics_listen = none\nadmin_socket = none\n"
                    "[worker here]\nurl = http://localhost:1\n[worker gone]\nurl = http://no-such-host.invalid:1\n")
    tested = run("kvsteerd", "-tc", str(path))
    assert tested.returncode == 0 and "the configuration is good" in tested.stderr
    warnings = [line for line in tested.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "worker gone: its name cannot be resolved" in warnings[0] and "http://no-such-host.invalid" in warnings[0]
