"""kvsteerctl top on a real terminal (a pty): what it draws fits any size, keys sort, every end
gives the terminal back; and as plain text."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

import harness
from harness import Hold, make_request, wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def ctl(r, *args, **kw):
    path = r if isinstance(r, str) else r.admin_path
    return subprocess.run([harness.program("kvsteerctl"), "-s", path, *args], capture_output=True, text=True, timeout=3 * harness.DEADLINE, **kw)


class Terminal:
    """kvsteerctl top in a pty, and the screen that a terminal would show of what it writes."""

    def __init__(self, socket, *args, columns=80, lines=24):
        self.columns, self.lines, self.raw, self.taken = columns, lines, b"", 0
        self.screen, self.row, self.col = {}, 0, 0
        self.master, self.slave = pty.openpty()
        self.set_size(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.proc = subprocess.Popen([harness.program("kvsteerctl"), "-s", socket, "top", *args], stdin=self.slave, stdout=self.slave,
                                     stderr=subprocess.PIPE, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def set_size(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """The kernel sends SIGWINCH itself; nothing drawn for the old size counts."""
        self._take()
        self.columns, self.lines, self.screen = columns, lines, {}
        self.set_size(columns, lines)

    def key(self, text):
        os.write(self.master, text.encode())

    def _take(self):
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            self.raw += data

    def _draw(self):
        """What came since, on the screen: the few sequences that top may use; any other fails the
        test."""
        text = self.raw[self.taken:]
        # a sequence that is not whole yet waits for its rest
        cut = re.search(rb"\x1b(\[[?0-9;]*)?$", text)
        text = text[:cut.start()] if cut else text
        self.taken += len(text)
        for m in re.finditer(rb"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|([\x20-\x7e]+)|(.)", text, re.S):
            if m[3]:
                assert self.row < self.lines and self.col + len(m[3]) <= self.columns, (self.row, self.col, m[3])
                line = self.screen.get(self.row, "").ljust(self.col)
                self.screen[self.row] = line[:self.col] + m[3].decode() + line[self.col + len(m[3]):]
                self.col += len(m[3])
            elif m[0] == b"\r":
                self.col = 0
            elif m[0] == b"\n":
                self.row += 1
                assert self.row < self.lines, "it scrolls"
            elif m[2] == b"H":
                assert m[1] == b""
                self.row = self.col = 0
            elif m[2] == b"K":
                self.screen[self.row] = self.screen.get(self.row, "")[:self.col]
            elif m[2] == b"J":
                assert m[1] in (b"", b"2")
                for row in [r for r in self.screen if r > self.row or m[1] == b"2"]:
                    del self.screen[row]
            else:
                assert m[0] in (ENTER, LEAVE, b"\x1b[?25l", b"\x1b[?25h", b"\x1b[7m", b"\x1b[m"), m[0]

    def shown(self):
        self._take()
        self._draw()
        return [self.screen.get(i, "").rstrip() for i in range(self.lines)]

    def names(self):
        """The workers from top to bottom."""
        rows = self.shown()
        title = next((i for i, row in enumerate(rows) if row.startswith("WORKER")), None)
        return [] if title is None else [row.split()[0] for row in rows[title + 1:-1] if row]

    def wait(self, check, what):
        wait_until(lambda: check(self.shown()), f"{what}; {self.screen}")

    def wait_names(self, names):
        wait_until(lambda: self.names() == names, f"{names}; {self.screen}")

    def end(self, expect):
        """Waits for its end; the terminal is as it was."""
        assert self.proc.wait(harness.DEADLINE) == expect, self.proc.stderr.read()
        self._take()
        assert termios.tcgetattr(self.slave) == self.before
        if ENTER in self.raw:
            assert self.raw.rindex(LEAVE) > self.raw.rindex(ENTER) and b"\x1b[?25h" in self.raw[self.raw.rindex(ENTER):]
        said = self.proc.stderr.read().decode()
        assert "Sanitizer" not in said
        return said

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        self.proc.stderr.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def top():
    made = []

    def make(r, *args, **kw):
        made.append(Terminal(r if isinstance(r, str) else r.admin_path, *args, **kw))
        return made[-1]
    yield make
    for t in made:
        t.close()


@pytest.fixture
def fleet(router, worker):
    """Four workers of which w2 has two requests in flight, w10 failed once, w1 is unhealthy, and w3
    answered one prompt twice."""
    holds = [Hold(), Hold()]

    def break_off(x):
        x.begin()
        x.wire.close()

    workers = [worker("w1"), worker("w2", lambda x: holds[1](x)), worker("w3"), worker("w10", break_off)]
    r = router(workers, keys="allow_pin = on\n")
    workers[0].healthy = False
    r.wait_workers("w1", state="unhealthy")
    for _ in range(2):
        assert r.request(body=CHAT, headers={"X-Kvsteer-Worker": "w3"}).status == 200
    with r.connect() as c:
        c.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w10"}))
        assert c.read_response("POST").status == 502
    wires = [r.connect(), r.connect()]
    for wire in wires:
        wire.send(make_request(body=CHAT, headers={"X-Kvsteer-Worker": "w2"}))
    workers[1].wait_requests(2)
    yield r
    holds[1].release()
    for wire in wires:
        assert wire.read_response("POST").status == 200
        wire.close()


def test_what_a_screen_shows(fleet, top):
    t = top(fleet)
    t.wait_names(["w2", "w1", "w3", "w10"])
    t.wait(lambda rows: re.match(r"2 clients \(at most \d+\), \d+ connections to workers$", rows[2]), "those of the requests that have ended are closed")
    t.wait(lambda rows: "by load" in rows[-1] and "q)uit" in rows[-1], "the last line")
    rows = t.shown()
    assert re.match(r"kvsteerd \S+ running, up \S.*, 3 of 4 workers healthy$", rows[0])
    t.wait(lambda rows: re.match(r"\d+\.\d req/s, 0\.0 errors/s, 2 in flight, 0 queued, hit \d+%$", rows[1]), "rates, from the second time on")
    assert re.search(r"^w2 +healthy +2 ", "\n".join(rows), re.M) and re.search(r"^w1 +unhealthy .*5\d\d", "\n".join(rows), re.M)
    assert re.search(r"^w3 +healthy +0 +\S+ +50% +0 ", "\n".join(rows), re.M), "a prompt that it had not, and the same again"
    assert re.search(r"^w10 +healthy +0 +\S+ +0% +1 ", "\n".join(rows), re.M)
    t.key("q")
    t.end(0)


def test_keys_sort(fleet, top):
    t = top(fleet, "-d", "1h")
    t.wait_names(["w2", "w1", "w3", "w10"])
    for key, names in (("n", ["w1", "w2", "w3", "w10"]), ("r", ["w10", "w3", "w2", "w1"]), ("e", ["w3", "w2", "w1", "w10"]),
                       ("r", ["w10", "w1", "w2", "w3"]), ("x", ["w10", "w1", "w2", "w3"]), ("l", ["w2", "w1", "w3", "w10"])):
        t.key(key)
        t.wait_names(names)
    t.key("h")
    t.wait(lambda rows: "by hit" in rows[-1], "by hit")
    assert t.names()[-1] == "w1", "no prompts: last"
    t.key("lq")
    t.end(0)
    assert ctl(fleet, "top", "-b", "-n", "1", "--sort", "name").stdout.split("REASON\n")[1].split()[0] == "w1"


@pytest.mark.parametrize("columns, lines", [(80, 24), (60, 10), (200, 50), (40, 8), (20, 4), (10, 2), (1, 1)])
def test_it_fits(fleet, top, columns, lines):
    """The terminal of this test fails on a line that is too long or too many; it always shows what
    there is room for."""
    t = top(fleet, columns=columns, lines=lines)
    t.wait(lambda rows: rows[0] == rows[0][:columns] and rows[0].startswith("kvsteerd"[:columns]), "the first line")
    if lines >= 10:
        t.wait_names(["w2", "w1", "w3", "w10"])
    elif lines == 8:
        t.wait_names(["w2", "w1"])
        t.key("j")
        t.wait_names(["w1", "w3"])
        t.key("\x1b[6~")
        t.wait_names(["w3", "w10"])
        t.key("j")
        t.key("\x1b[A")
        t.wait_names(["w1", "w3"])
        t.key("\x1b[5~")
        t.wait_names(["w2", "w1"])
    t.key("q")
    t.end(0)


def test_it_follows_the_size(fleet, top):
    t = top(fleet, "-d", "1h")
    t.wait_names(["w2", "w1", "w3", "w10"])
    t.resize(60, 10)
    t.wait_names(["w2", "w1", "w3", "w10"])
    t.wait(lambda rows: rows[9].startswith("by load") and all(len(row) <= 60 for row in rows), "ten lines")
    t.resize(100, 30)
    t.wait(lambda rows: rows[29].startswith("by load") and "REASON" in rows[4], "thirty")
    t.key("q")
    t.end(0)


@pytest.mark.parametrize("signo, expect", [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGQUIT, -signal.SIGQUIT)])
def test_every_end_gives_the_terminal_back(fleet, top, signo, expect):
    t = top(fleet)
    t.wait(lambda rows: rows[0], "a screen")
    t.proc.send_signal(signo)
    t.end(expect)


def test_stop_and_continue(fleet, top):
    """As ^Z does: the terminal is the shell's meanwhile."""
    t = top(fleet, "-d", "1h")
    t.wait_names(["w2", "w1", "w3", "w10"])
    t.proc.send_signal(signal.SIGTSTP)
    wait_until(lambda: os.waitid(os.P_PID, t.proc.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), "it stops")
    t._take()
    assert t.raw.endswith(LEAVE) and termios.tcgetattr(t.slave) == t.before
    t.proc.send_signal(signal.SIGCONT)
    wait_until(lambda: (t._take(), t.raw.count(ENTER))[1] == 2, "it is back")
    t.screen = {}
    t.wait_names(["w2", "w1", "w3", "w10"])
    t.key("q")
    t.end(0)


def test_a_terminal_that_goes_is_an_end(fleet, top):
    """As when a connection of ssh breaks."""
    t = top(fleet)
    t.wait(lambda rows: rows[0], "a screen")
    os.close(t.slave)
    os.close(t.master)
    assert t.proc.wait(harness.DEADLINE) in (0, -signal.SIGHUP)
    t.master, t.slave = pty.openpty()


def test_a_daemon_that_goes_and_returns(router, worker, top):
    w = worker("w0")
    r = router([w])
    t = top(r, "-d", "100ms")
    t.wait_names(["w0"])
    path, away = r.admin_path, r.admin_path + ".away"
    os.rename(path, away)
    t.wait(lambda rows: re.match(r"no answer for \d+s: .*no such socket", rows[3]), "it says so")
    assert t.names() == ["w0"], "what was known stays"
    os.rename(away, path)
    t.wait(lambda rows: rows[3] == "", "it goes on")
    t.key("q")
    t.end(0)


def test_count_and_the_end_of_counts(fleet, top):
    t = top(fleet, "-n", "2", "-d", "100ms")
    t.end(0)
    assert b"w10" in t.raw


def test_batch(fleet):
    p = ctl(fleet, "top", "-b", "-n", "3", "-d", "100ms")
    assert p.returncode == 0 and p.stderr == ""
    frames = re.split(r"\n\n(?=kvsteerd )", p.stdout.rstrip("\n"))
    assert len(frames) == 3 and "\x1b" not in p.stdout
    for frame in frames:
        assert [row.split()[0] for row in frame.splitlines()[5:]] == ["w2", "w1", "w3", "w10"]
    assert frames[0].splitlines()[1].startswith("- req/s, - errors/s") and re.match(r"\d+\.\d req/s, 0\.0 errors/s", frames[2].splitlines()[1])
    p = ctl(fleet, "--json", "top", "-n", "2", "-d", "100ms")
    assert [len(json.loads(line)["workers"]) for line in p.stdout.splitlines()] == [4, 4]


def test_without_a_terminal(fleet, tmp_path):
    for kw in ({"stdin": subprocess.DEVNULL}, {"input": "q"}):
        p = ctl(fleet, "top", **kw)
        assert p.returncode == 2 and p.stdout == "" and "top -b prints plain text" in p.stderr
    for args in (["-n", "0"], ["-n", "x"], ["-d", "5"], ["-d", "10ms"], ["-d", "2h"], ["--sort", "size"], ["extra"], ["-n"]):
        p = ctl(fleet, "top", "-b", *args)
        assert p.returncode == 2 and p.stderr and p.stdout == "", args
    p = ctl(str(tmp_path / "none"), "top", "-b", "-n", "1")
    assert p.returncode == 3 and "systemctl status kvsteer" in p.stderr
    with open("/dev/full", "w") as full:
        p = subprocess.run([harness.program("kvsteerctl"), "-s", fleet.admin_path, "top", "-b", "-n", "1"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE)
    assert p.returncode == 1 and "No space" in p.stderr


def test_a_daemon_that_is_not_there(tmp_path, top):
    t = top(str(tmp_path / "none"))
    assert "there is no such socket" in t.end(3)
    assert ENTER not in t.raw
