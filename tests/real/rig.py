"""Real engines beside kvsteerd: environments of Python packages, server processes, tables of results.

An engine's packages come from PyPI into a folder of their own (`--env DIR`, default _real/ENGINE in
the source tree; made once, used again). Servers listen on loopback, on ports that the kernel gave,
and are ended by their process group. Nothing here is part of `make check`.
"""

import argparse
import datetime
import glob
import os
import platform
import re
import signal
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TOP, "tests", "e2e"))


class Missing(Exception):
    """What a run needs and this machine has not; the text says what."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, timeout=5):
    """(status, body) of a GET; (0, "") where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode(errors="replace")
    except OSError:
        return 0, ""


def metrics(url):
    """{name with labels: value} of a Prometheus page."""
    found = {}
    for line in get(url + "/metrics")[1].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def metric(url, name):
    """The sum of a metric over its labels."""
    return sum(v for k, v in metrics(url).items() if k.split("{")[0] == name)


def wait_for(what, condition, seconds):
    """Polls a real process, which has no event to wait for."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.1)


class Environment:
    """A virtual environment with an engine's packages."""

    def __init__(self, folder, python="python3"):
        self.folder = folder
        self.python = os.path.join(folder, "bin", "python")
        self.base = shutil.which(python) or sys.executable

    def made(self, name, make):
        """Runs make() once: a mark in the folder says that it was done."""
        mark = os.path.join(self.folder, f".made-{name}")
        if not os.path.exists(mark):
            make()
            with open(mark, "w") as f:
                f.write(datetime.date.today().isoformat() + "\n")

    def create(self):
        self.made("venv", lambda: subprocess.run([self.base, "-m", "venv", self.folder], check=True))

    def pip(self, *arguments):
        done = subprocess.run([self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Missing(f"pip install {' '.join(arguments)}: {done.stdout.strip().splitlines()[-1:]}")

    def version(self, package):
        done = subprocess.run([self.python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
                              capture_output=True, text=True)
        return done.stdout.strip()


def patch(path, *changes):
    """Replaces (old, new) pairs of text in a file of an engine: places that only a GPU can pass."""
    with open(path) as f:
        text = f.read()
    for old, new in changes:
        if old not in text:
            raise Missing(f"{path}: {old!r} is not there: another version?")
        text = text.replace(old, new)
    with open(path, "w") as f:
        f.write(text)


def packages(env):
    """Its site-packages."""
    (found,) = glob.glob(os.path.join(env.folder, "lib", "python*", "site-packages"))
    return found


class Server:
    """One engine's process group. health: the path that is 200 when it serves."""

    def __init__(self, name, command, folder, port, env=None, health="/health", start_s=300):
        self.name, self.command, self.folder, self.port = name, command, folder, port
        self.env, self.health, self.start_s = env or {}, health, start_s
        self.url = f"http://127.0.0.1:{port}"
        self.log = os.path.join(folder, f"{name}.log")
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, **self.env}, start_new_session=True, cwd=self.folder)
        return self

    def wait(self):
        def is_up():
            if self.process.poll() is not None:
                with open(self.log, errors="replace") as f:
                    raise Missing(f"{self.name} ended with {self.process.returncode}:\n" + "".join(f.readlines()[-15:]))
            return get(self.url + self.health)[0] == 200
        wait_for(f"{self.name} serves", is_up, self.start_s)
        return self

    def signal(self, signo, children_named=None):
        """To the whole group, or to those of its processes whose command line holds children_named."""
        if children_named is None:
            os.killpg(self.process.pid, signo)
            return 1
        hit = 0
        for pid in self.group():
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if children_named in f.read().replace(b"\0", b" ").decode(errors="replace"):
                    os.kill(pid, signo)
                    hit += 1
        return hit

    def group(self):
        """The processes of its session, as /proc shows them now."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat") as f:
                        fields = f.read().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                if int(fields[3]) == self.process.pid:
                    found.append(int(entry))
        return found

    def stop(self):
        if self.process is None:
            return
        for signo, seconds in ((signal.SIGCONT, 0), (signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(self.process.pid, signo)
            except ProcessLookupError:
                break
            if seconds:
                try:
                    self.process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue
        for pid in self.group():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


class Table:
    """What was tried and what came of it. A row that failed makes the run fail."""

    def __init__(self, title):
        self.title, self.rows, self.failed = title, [], 0

    def row(self, what, result, is_right):
        self.rows.append((what, result, "yes" if is_right else "NO"))
        self.failed += not is_right
        print(f"  {'ok  ' if is_right else 'FAIL'}  {what}: {result}", flush=True)

    def run(self, what, check, *arguments):
        """check(...) -> (result, is_right); what it raises is a failure with its text."""
        try:
            result, is_right = check(*arguments)
        except Exception as e:  # a check that breaks is a row, not the end of the run
            result, is_right = f"{type(e).__name__}: {e}".replace("\n", " ")[:200], False
        self.row(what, result, is_right)

    def markdown(self):
        lines = [f"### {self.title}", "", "| what | result | as it should be |", "| --- | --- | --- |"]
        lines += [f"| {w} | {r} | {ok} |".replace("\n", " ") for w, r, ok in self.rows]
        return "\n".join(lines) + "\n"


def write_results(section, tables, facts):
    """Into the section of RESULTS.md that begins with `## section`: each table in place of the one with
    its title, or behind the others."""
    path = os.path.join(HERE, "RESULTS.md")
    with open(path) as f:
        text = f.read()
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    head = f"## {section}\n\n{facts}; kvsteer {commit or 'of a tarball'}, {datetime.date.today()}, {os.cpu_count()} cores ({platform.machine()}).\n\n"
    pattern = re.compile(rf"^## {re.escape(section)}\n\n.*?\n\n(.*?)(?=^## |\Z)", re.M | re.S)
    found = pattern.search(text)
    body = found[1] if found else ""
    for table in tables:
        one = re.compile(rf"^### {re.escape(table.title)}\n.*?(?=^### |\Z)", re.M | re.S)
        new = table.markdown().rstrip() + "\n\n"
        body = one.sub(lambda m: new, body) if one.search(body) else body.rstrip() + "\n\n" + new
    text = text[:found.start()] + head + body.lstrip() + text[found.end():] if found else text.rstrip() + "\n\n" + head + body.lstrip()
    with open(path, "w") as f:
        f.write(text.rstrip() + "\n")


class Kvsteer:
    """kvsteerd in front of servers, as tests/e2e drives it."""

    def __init__(self, folder, conf, router_keys=""):
        import harness
        import pathlib
        self.router = harness.Router(pathlib.Path(folder), conf=conf, router_keys=router_keys, allow_errors=[".*"])
        self.url = f"http://127.0.0.1:{self.router.port}"

    def workers(self):
        return {w["name"]: w for w in self.router.admin("GET", "workers")[1]["workers"]}

    def wait(self, *names, state="healthy", seconds=60):
        wait_for(f"{names} {state}", lambda: all(self.workers()[n]["state"] == state for n in names), seconds)

    def log(self):
        return self.router.log()

    def access_line(self, request_id):
        """The fields of a request's access line, once it is there."""
        def look():
            for line in self.log().splitlines():
                if f"id={request_id} " in line and " ttft_ms=" in line:
                    return dict(field.split("=", 1) for field in line.split() if "=" in field)
            return None
        return wait_for(f"the access line of {request_id}", look, 20)

    def balance_row(self):
        """(result, is_right) for a table: what was taken was given back."""
        wait_for("no request is in flight", lambda: len(set(self.balance())) == 1, 30)
        return "taken {}, dropped {}".format(*self.balance()), True

    def balance(self):
        status = self.router.admin("GET", "status")[1]
        return status["guards"]["taken"], status["guards"]["dropped"]

    def stop(self):
        self.router.stop(check=False)


def run_inside(a, env):
    """Goes on in the environment's Python, which has the clients, with a folder for logs."""
    if os.path.realpath(sys.prefix) != os.path.realpath(env.folder):
        os.execv(env.python, [env.python, *sys.argv])
    a.folder = tempfile.mkdtemp(prefix="kvsteer-real-")


def arguments(engine, **more):
    p = argparse.ArgumentParser(description=f"kvsteer in front of a real {engine}. Needs a build of kvsteer; installs {engine} from PyPI.")
    p.add_argument("builddir", help="a folder with a built kvsteerd, as check.sh's _build/release")
    p.add_argument("--env", default=os.path.join(TOP, "_real", engine), help="folder of the engine's packages (made once)")
    p.add_argument("--python", default="python3", help="the Python that makes it")
    p.add_argument("--only", nargs="*", help="run only these parts")
    p.add_argument("--write", action="store_true", help="write the tables into tests/real/RESULTS.md")
    for name, settings in more.items():
        p.add_argument("--" + name, **settings)
    a = p.parse_args()
    os.environ["KVSTEER_BUILDDIR"] = os.path.abspath(a.builddir)
    if not os.path.exists(os.path.join(a.builddir, "kvsteerd")):
        p.error(f"{a.builddir}: no kvsteerd is built there")
    return a


def finish(tables, a, section, facts):
    if a.write:
        write_results(section, tables, facts)
    failed = sum(t.failed for t in tables)
    done = sum(len(t.rows) for t in tables)
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0
