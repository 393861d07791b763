"""What end-to-end tests stand on: the real kvsteerd as a process, scripted workers, raw clients.

No sleeps for timing: everything waits for a condition with a deadline (wait_until), an event or a
barrier. Ports are the kernel's.
"""
import ctypes
import http.client
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

DEADLINE = float(os.environ.get("KVSTEER_TEST_DEADLINE", "20"))
threading.stack_size(256 * 1024)

LASTING = "health_failures = 1000\ncb_failure_threshold = 1000000000\n"  # of a pool: what a test does to a worker shall not take it out
# Freed memory goes back soon, so that what is measured is what is held.
LEAN = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"}


def wait_until(condition, what="condition", deadline=DEADLINE):
    """Returns the first true value of condition(); fails loudly at the deadline."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what}")
        time.sleep(0.005)


def builddir():
    return os.environ.get("KVSTEER_BUILDDIR", "")


def program(name):
    path = os.path.join(builddir(), name)
    assert os.path.exists(path), f"{path} is not built"
    return path


def tables(name, kind):
    """The rows of that kind of a program's own tables (src/base/dump.h), each a list of its
    fields."""
    out = subprocess.run([program(name), "--dump-tables"], capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    rows = [line.split("\t")[1:] for line in out.splitlines() if line.startswith(kind + "\t")]
    assert rows, f"{name} has no table of {kind}s"
    return rows


def has_localhost():
    """Whether the name localhost is known here: a bare chroot has no /etc/hosts."""
    try:
        return bool(socket.getaddrinfo("localhost", 80))
    except OSError:
        return False


def run_as_nobody(name, *args):
    """Runs a built program without any right of ours, from a copy: nobody may not reach every build
    folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        copy = shutil.copy(program(name), folder)

        def become_nobody():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return subprocess.run([copy, *args], preexec_fn=become_nobody, cwd="/", capture_output=True, text=True, timeout=DEADLINE)


# ---- ports ----

def bound(host="127.0.0.1", port=0):
    """A socket that has a port and does not listen there: who connects is refused. Others of this
    function may have the port too, one of them to listen."""
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    return s


KEPT = []


def free_port(host="127.0.0.1"):
    """A port where nobody listens, and that the kernel gives nobody else as long as these tests
    run. Who sets SO_REUSEADDR, as daemons do, may."""
    KEPT.append(bound(host))
    return KEPT[-1].getsockname()[1]


# ---- messages ----

class Message:
    """A parsed head and body. fields: list of (name, value) as they came; head: the raw bytes."""

    def __init__(self, start, fields, head):
        self.start, self.fields, self.head = start, fields, head
        self.body = b""
        self.chunks = []  # chunk sizes as framed
        self.ended = True  # False: the framing was broken off
        self.at = time.monotonic()

    def get(self, name, default=None):
        for n, v in self.fields:
            if n.lower() == name.lower():
                return v
        return default

    def all(self, name):
        return [v for n, v in self.fields if n.lower() == name.lower()]

    @property
    def status(self):
        return int(self.start.split()[1])

    @property
    def method(self):
        return self.start.split(" ")[0]

    @property
    def target(self):
        return self.start.split(" ")[1]

    def json(self):
        return json.loads(self.body)


class Closed(Exception):
    """EOF or a reset where more was expected; .partial holds what came."""

    def __init__(self, partial=b"", reset=False):
        super().__init__(f"closed after {len(partial)} bytes" + (" by reset" if reset else ""))
        self.partial, self.reset = partial, reset


class Wire:
    """A socket with a buffer; strict reading of HTTP/1.1 messages."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(DEADLINE)
        if sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def send(self, data):
        self.sock.sendall(data.encode("latin-1") if isinstance(data, str) else data)

    def recv_some(self, n=65536):
        """One read: b"" at EOF."""
        if self.buf:
            data, self.buf = self.buf, b""
            return data
        return self.sock.recv(n)

    def _more(self):
        """One read, not into buf; Closed at the end."""
        try:
            data = self.sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            raise Closed(reset=True) from None
        if not data:
            raise Closed()
        return data

    def _gather(self, end):
        """Reads until end(data) says where what is wanted ends; the rest stays in buf, and so does
        all of it when there is no more."""
        data = bytearray(self.buf)
        try:
            while True:
                at = end(data)
                if at is not None:
                    self.buf = bytes(data[at:])
                    return bytes(data[:at])
                data += self._more()
        except (Closed, OSError) as e:
            self.buf = bytes(data)
            if isinstance(e, Closed):
                raise Closed(self.buf, e.reset) from None
            raise

    def read_until(self, mark):
        seen = 0

        def end(data):
            nonlocal seen
            at = data.find(mark, max(0, seen - len(mark)))
            seen = len(data)
            return at + len(mark) if at >= 0 else None
        at = self.buf.find(mark)
        return self.read_exact(at + len(mark)) if at >= 0 else self._gather(end)

    def read_exact(self, n):
        if len(self.buf) < n:
            return self._gather(lambda data: n if len(data) >= n else None)
        data, self.buf = self.buf[:n], self.buf[n:]
        return data

    def read_to_eof(self):
        try:
            return self._gather(lambda data: None)
        except Closed as e:
            self.buf = b""
            if e.reset:
                raise
            return e.partial

    def read_head(self):
        head = self.read_until(b"\r\n\r\n")
        lines = head[:-4].decode("latin-1").split("\r\n")
        fields = []
        for line in lines[1:]:
            name, _, value = line.partition(":")
            assert name == name.strip() and name, f"bad field line {line!r}"
            fields.append((name, value.strip(" \t")))
        return Message(lines[0], fields, head)

    def read_chunk(self):
        """One chunk's data; b"" for the last one (trailers read)."""
        size = int(self.read_until(b"\r\n")[:-2].split(b";")[0], 16)
        data = self.read_exact(size) if size else b""
        if size == 0:
            while self.read_until(b"\r\n") != b"\r\n":
                pass
            return b""
        assert self.read_exact(2) == b"\r\n", "chunk data is not followed by CRLF"
        return data

    def _read_chunks(self, m):
        got = bytearray(m.body)  # some of them may have been read before
        try:
            while True:
                data = self.read_chunk()
                if not data:
                    return
                m.chunks.append(len(data))
                got += data
        finally:
            m.body = bytes(got)

    def read_body(self, m, response_to=None):
        te, cl = m.get("transfer-encoding"), m.get("content-length")
        assert te is None or cl is None, "two framings in one message"
        assert len(m.all("content-length")) <= 1
        is_response = m.start.startswith("HTTP/")
        if response_to == "HEAD" or (is_response and (m.status < 200 or m.status in (204, 304))):
            return m
        try:
            if te is not None:
                assert te == "chunked", te
                self._read_chunks(m)
            elif cl is not None:
                m.body = self.read_exact(int(cl))
            elif is_response:
                m.body = self.read_to_eof()
        except Closed as e:
            m.body += e.partial
            m.ended = False
            self.buf = b""
        return m

    def read_response(self, method="GET"):
        """The final response (interim ones are kept in .interim)."""
        interim = []
        while True:
            m = self.read_head()
            if m.status >= 200:
                break
            interim.append(m)
        self.read_body(m, method)
        m.interim = interim
        return m

    def at_eof(self):
        """Waits for the peer's FIN or reset; True when no byte came before it."""
        try:
            return self.sock.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True

    def close(self):
        try:
            self.sock.close()
        except OSError:
            pass

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.close()


# ---- scripted workers ----

class Exchange:
    """One request that reached a worker, and the means to answer it."""

    def __init__(self, worker, wire, request, conn_no):
        self.worker, self.wire, self.request, self.conn_no = worker, wire, request, conn_no
        self.gone = threading.Event()  # the router closed the connection (set by wait_gone or a failed write)
        self.gone_at = None

    def answer(self, status=200, body=b"{}", fields=(), content_type="application/json"):
        if isinstance(body, str):
            body = body.encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{n}: {v}\r\n" for n, v in fields) + "\r\n"
        self.send(head.encode("latin-1") + (b"" if self.request.method == "HEAD" else body))

    def begin(self, status=200, fields=(), content_type="text/event-stream", then=()):
        """The head of a chunked answer, and the first chunks in the same write: nothing comes
        between them, however slow this worker is."""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"
        head += "".join(f"{n}: {v}\r\n" for n, v in fields) + "\r\n"
        self.send(head.encode("latin-1") + b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in then))

    def chunk(self, data):
        data = data.encode() if isinstance(data, str) else data
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, text):
        self.chunk(f"data: {text}\n\n")

    def events(self, *texts):
        """A stream's head and its first events, in one write."""
        self.begin(then=[f"data: {t}\n\n".encode() for t in texts])

    def end(self):
        self.send(b"0\r\n\r\n")

    def send(self, data):
        try:
            self.wire.send(data)
        except OSError:
            self._is_gone()
            raise Closed() from None

    def _is_gone(self):
        if not self.gone.is_set():
            self.gone_at = time.monotonic()
            self.gone.set()

    def wait_gone(self, deadline=DEADLINE):
        """Waits until the router closes this connection. False at the deadline."""
        end = time.monotonic() + deadline
        while not self.gone.is_set() and time.monotonic() < end:
            self.wire.sock.settimeout(max(0.01, min(0.25, end - time.monotonic())))
            try:
                if self.wire.sock.recv(65536) == b"":
                    self._is_gone()
            except socket.timeout:
                continue
            except OSError:
                self._is_gone()
        return self.gone.is_set()


def answer_ok(x):
    """The default handler: a small chat completion."""
    x.answer(200, json.dumps({"id": "x", "object": "chat.completion", "worker": x.worker.name,
                              "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}))


class Hold:
    """A handler that keeps each request open until release()."""

    def __init__(self, then=answer_ok):
        self.then, self.open = then, threading.Event()

    def __call__(self, x):
        self.open.wait(DEADLINE * 3)
        self.then(x)

    def release(self):
        self.open.set()


class Steps:
    """A handler that does what step() is given, one by one, until finish() or close(). One request
    has all of them: the next to come waits for its end, so that steps are never shared out between
    two. marked: a field; requests without it are answered at once, beside.
    """

    def __init__(self, marked=None):
        self.marked, self.todo, self.turn = marked, queue.Queue(), threading.Lock()

    def __call__(self, x):
        if self.marked and not x.request.get(self.marked):
            return answer_ok(x)
        with self.turn:
            end = None
            while end is None:
                f, end = self.todo.get(timeout=DEADLINE * 3)
                if f is not None:
                    f(x)
        return end

    def step(self, f):
        self.todo.put((f, None))

    def do(self, f):
        """A step that is done when this returns."""
        done = threading.Event()
        self.step(lambda x: (f(x), done.set()))
        assert done.wait(DEADLINE), "the worker cannot go on"

    def finish(self, f=None):
        """The last step of a request; its connection stays."""
        self.todo.put((f, "stay"))

    def close(self, f=None):
        """The last step of a request and of its connection."""
        self.todo.put((f, "close"))


class Worker:
    """A mock worker on its own port. handler(x) answers one request (in the connection's thread).

    Probes (GET health path, /v1/models, /metrics and the paths of .told, asked without a client)
    are answered by .healthy and .told, and not recorded among the requests.
    """

    def __init__(self, name="w", handler=answer_ok, host="127.0.0.1", models=("m",), base="", port=0):
        self.name, self.handler, self.models, self.base = name, handler, list(models), base
        self.healthy = True  # what probes are told; or a callable(x) that answers them
        self.metrics_text = None  # or a callable that gives it
        self.told = dict.fromkeys(("/server_info", "/get_server_info", "/props", "/v1/loads?include=core", "/get_load", "/load", "/is_sleeping", "/ready"))  # path: JSON, or None: 404; or a callable(x) that answers
        self.exchanges, self.probes = [], []
        self.connections = 0
        self.lock = threading.Condition()
        self.wires = set()
        self.stopped = False
        self.host = host
        self.place = bound(host, port)  # so the port is nobody else's after stop()
        self.port = self.place.getsockname()[1]
        self.listener = bound(host, self.port)
        self.listener.listen(4096)
        self.netloc = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"http://{self.netloc}{base}"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def requests(self):
        """Those of the exchanges so far."""
        return [x.request for x in list(self.exchanges)]

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                if self.stopped:
                    sock.close()
                    return
                self.connections += 1
                no = self.connections
            wire = Wire(sock)
            self.wires.add(wire)
            threading.Thread(target=self._serve, args=(wire, no), daemon=True).start()

    def _is_probe(self, m):
        path = m.target[len(self.base):] if self.base else m.target
        return m.method == "GET" and (path in ("/health", "/v1/models", "/metrics") or path in self.told) and m.get("via") is None

    def _probe(self, x):
        with self.lock:
            self.probes.append(x.request)
            self.lock.notify_all()
        if callable(self.healthy):
            self.healthy(x)
        elif not self.healthy:
            x.answer(503, "{}")
        elif x.request.target.endswith("/v1/models"):
            x.answer(200, json.dumps({"object": "list", "data": [m if isinstance(m, dict) else {"id": m, "object": "model"} for m in self.models]}))
        elif x.request.target.endswith("/metrics"):
            text = self.metrics_text() if callable(self.metrics_text) else self.metrics_text
            x.answer(200 if text else 404, text or "", content_type="text/plain")
        elif x.request.target[len(self.base):] in self.told:
            told = self.told[x.request.target[len(self.base):]]
            if callable(told):
                told(x)
            else:
                x.answer(200 if told is not None else 404, json.dumps(told))
        else:
            x.answer(200, "{}")

    def _serve(self, wire, no):
        try:
            while True:
                wire.sock.settimeout(None)
                m = wire.read_head()
                wire.sock.settimeout(DEADLINE * 3)
                if m.get("expect", "").lower() == "100-continue":
                    wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
                wire.read_body(m)
                x = Exchange(self, wire, m, no)
                if self._is_probe(m):
                    self._probe(x)
                    continue
                with self.lock:
                    self.exchanges.append(x)
                    self.lock.notify_all()
                if self.handler(x) == "close":
                    break
        except (Closed, OSError, ValueError):
            pass
        finally:
            self.wires.discard(wire)
            wire.close()

    def wait_requests(self, n, deadline=DEADLINE):
        """Waits until n requests have arrived in all; returns the n-th exchange."""
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.exchanges) >= n, deadline), \
                f"{self.name}: {len(self.exchanges)} of {n} requests within {deadline} s"
            return self.exchanges[n - 1]

    def clear(self):
        with self.lock:
            self.exchanges.clear()

    def stop(self):
        """Nothing listens any more and every connection is reset."""
        with self.lock:
            self.stopped = True
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        for wire in list(self.wires):
            try:
                wire.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


# ---- processes that are no children of ours ----

def become_subreaper():
    """Orphans below this process become its children: so the end of a process that an upgrade
    started is seen (PR_SET_CHILD_SUBREAPER)."""
    assert ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) == 0


class Adopted:
    """What subprocess.Popen is for a child, for a process that become_subreaper() made one."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self.lock = threading.Lock()

    def poll(self):
        with self.lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # not ours yet: its middle parent has not ended
                    assert os.path.exists(f"/proc/{self.pid}"), f"process {self.pid} went unseen"
                    return None
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout=None):
        end = time.monotonic() + (DEADLINE if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, signo):
        if self.poll() is None:
            os.kill(self.pid, signo)

    def kill(self):
        self.send_signal(signal.SIGKILL)


# ---- the router ----

class Router:
    """kvsteerd as a process. conf: text of a configuration without listeners and sockets, which are
    added; or args: a command line."""

    def __init__(self, tmp, conf=None, args=None, env=None, preexec=None, router_keys="", expect_ready=True, allow_errors=(), wrap=(), pass_fds=(),
                 binary=None, listen="127.0.0.1:0"):
        self.listen = listen
        self.tmp = str(tmp)
        os.makedirs(self.tmp, exist_ok=True)
        self.conf_path = os.path.join(self.tmp, "kvsteer.conf")
        self.admin_path = os.path.join(self.tmp, "admin.sock")
        self.log_path = os.path.join(self.tmp, "kvsteerd.log")
        self.allow_errors = list(allow_errors)
        self.router_keys = router_keys
        command = [*wrap, binary or program("kvsteerd")]
        if conf is not None:
            self.write_conf(conf)
            command += ["-c", self.conf_path]
        command += list(args or [])
        if conf is None and not {"-c", "--drain-grace"} & set(command):
            command += ["--drain-grace", "0"]  # as write_conf() does
        self.command = command
        self.log_file = open(self.log_path, "wb")
        self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file,
                                     env={**os.environ, **(env or {})}, preexec_fn=preexec, pass_fds=pass_fds, cwd=self.tmp)
        self.former = []  # processes that an upgrade replaced, and that may still finish something
        self.port = self.metrics_port = None
        self.is_stopped = False
        if expect_ready:
            self.port = self.wait_port(r"listening on http://[^ ]*:(\d+)")
            self.metrics_port = self.wait_port(r"metrics on http://[^ ]*:(\d+)")

    def write_conf(self, conf):
        grace = "" if "drain_grace" in self.router_keys else "drain_grace = 0\n"  # an idle one ends at once
        head = (f"[router]\nlisten = {self.listen}\nmetrics_listen = 127.0.0.1:0\n{grace}"
                f"admin_socket = {self.admin_path}\n{self.router_keys}\n")
        with open(self.conf_path + ".new", "w") as f:
            f.write(head + conf)
        os.replace(self.conf_path + ".new", self.conf_path)  # a reload never finds half a file

    def log(self, begin=0):
        """What it logged from that offset on: whole lines. A reader may find the last one half written."""
        with open(self.log_path, "rb") as f:
            f.seek(begin)
            lines = f.read()
        return lines[:lines.rfind(b"\n") + 1].decode("utf-8", "replace")

    def wait_log(self, pattern, deadline=DEADLINE, count=1):
        """Waits for a log line; returns the match."""
        def look():
            found = list(re.finditer(pattern, self.log()))
            if len(found) >= count:
                return found[count - 1]
            if self.proc.poll() is not None and len(list(re.finditer(pattern, self.log()))) < count:
                raise AssertionError(f"kvsteerd ended ({self.proc.returncode}) before {pattern!r}:\n{self.log()[-4000:]}")
            return None
        return wait_until(look, f"log line {pattern!r} in:\n{self.log()[-2000:]}", deadline)

    def wait_port(self, pattern):
        return int(self.wait_log(pattern).group(1))

    # talking to it
    def connect(self):
        return Wire(socket.create_connection(("127.0.0.1", self.port), DEADLINE))

    def request(self, method="POST", path="/v1/chat/completions", body=None, headers=None):
        """One request on its own connection: a Message."""
        with self.connect() as c:
            c.send(make_request(method, path, body, headers, close=True))
            return c.read_response(method)

    def chat(self, messages, **fields):
        headers = fields.pop("headers", None)
        body = {"model": "m", "messages": messages, **fields}
        return self.request(body=body, headers=headers)

    def admin(self, method, path, body=None, headers=None):
        """(status, JSON) from the admin socket."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(DEADLINE)
        s.connect(self.admin_path)
        conn = http.client.HTTPConnection("localhost")
        conn.sock = s
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            conn.request(method, "/admin/v1/" + path, data, headers or {})
            r = conn.getresponse()
            text = r.read()
            return r.status, (json.loads(text) if text.strip()[:1] in (b"{", b"[") else text.decode())
        finally:
            conn.close()

    def explain(self, body, path="/v1/chat/completions", headers=None):
        status, answer = self.admin("POST", "explain?path=" + path, body, headers)
        assert status == 200, answer
        return answer

    def worker_state(self, name):
        status, answer = self.admin("GET", "workers/" + name)
        return answer.get("state") if status == 200 else None

    def wait_workers(self, *names, state="healthy"):
        for name in names:
            wait_until(lambda n=name: self.worker_state(n) == state, f"{name} {state}: {self.log()[-2000:]}")
        return self

    def metrics(self):
        """{series as printed: value}"""
        conn = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=DEADLINE)
        conn.request("GET", "/metrics")
        text = conn.getresponse().read().decode()
        conn.close()
        out = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                out[series] = float(value)
        return out

    def metric(self, prefix, **labels):
        """Sum of the series of that name whose labels agree."""
        total = 0
        for series, value in self.metrics().items():
            if series.split("{")[0] == prefix and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += value
        return total

    def wait_metric(self, value, prefix, **labels):
        """For what is counted after its client has the answer: requests and their times, memory,
        connections."""
        wait_until(lambda: self.metric(prefix, **labels) == value, f"{prefix} {labels}: {value}, not {self.metric(prefix, **labels)}")

    def wait_in_flight(self, n):
        """Waits until the router has begun to read n requests that have not ended."""
        wait_until(lambda: self.admin("GET", "status")[1]["counters"]["requests_in_flight"] == n, f"{n} requests in flight")

    def loads(self):
        return {s: v for s, v in self.metrics().items() if s.startswith("kvsteer_worker_load{")}

    def wait_idle(self):
        """No request in flight anywhere, guards balanced, no prefill counted as waiting, nobody in
        the queue."""
        counts = ("kvsteer_queue_depth", "kvsteer_worker_load{", "kvsteer_worker_streams{", "kvsteer_worker_queued_blocks{")

        def idle():
            m = self.metrics()
            return (m["kvsteer_guards_taken_total"] == m["kvsteer_guards_dropped_total"]
                    and not any(v for s, v in m.items() if s.startswith(counts)))
        wait_until(idle, "guards taken == dropped and loads 0")

    def fds(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    def rss_kib(self):
        with open(f"/proc/{self.proc.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    # ending it
    def signal(self, signo):
        self.proc.send_signal(signo)

    def reload(self, conf=None):
        """SIGHUP; waits for its outcome in the log: True if it was taken."""
        if conf is not None:
            self.write_conf(conf)
        status, answer = self.admin("POST", "reload")
        return status == 200, answer

    def follow(self, pid):
        """The process that an upgrade made the main one is the router from now on."""
        self.former.append(self.proc)
        self.proc = Adopted(pid)

    def upgrade(self):
        """POST upgrade; its answer. Where it was taken, the new process is followed."""
        status, answer = self.admin("POST", "upgrade")
        if status == 200:
            assert answer["old_pid"] == self.proc.pid
            self.follow(answer["pid"])
        return status, answer

    def wait_former(self, deadline=DEADLINE):
        """Waits until the processes before this one have ended, well."""
        for p in self.former:
            assert p.wait(deadline) == 0, self.log()[-4000:]

    def stop(self, check=True, expect_exit=0):
        """Drains and ends it, and asserts what every test must leave behind: balance, no leak, no
        surprise in the log."""
        if self.is_stopped:
            return
        self.is_stopped = True
        if self.proc.poll() is None:
            if check and self.metrics_port is not None:
                self.wait_idle()
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                raise AssertionError("kvsteerd did not end on SIGTERM:\n" + self.log()[-4000:]) from None
        try:
            self.wait_former()
        finally:
            self.kill_former()
        self.log_file.close()
        if check:
            log = self.log()
            assert "Sanitizer" not in log and "runtime error" not in log, log[-8000:]
            assert self.proc.returncode == expect_exit, f"exit {self.proc.returncode}:\n{log[-4000:]}"
            for line in log.splitlines():
                if re.search(r"(^<3>| error[: ])", line) and not any(re.search(p, line) for p in self.allow_errors):
                    raise AssertionError(f"unexpected error in the log: {line}")

    def kill_former(self):
        for p in self.former:
            if p.poll() is None:
                p.kill()
                p.wait()

    def kill(self):
        self.is_stopped = True
        self.kill_former()
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        self.log_file.close()


def make_request(method="POST", path="/v1/chat/completions", body=None, headers=None, close=False, host="r.test"):
    """The raw bytes of a plain request."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    for n, v in (headers.items() if isinstance(headers, dict) else headers or []):
        lines.append(f"{n}: {v}")
    if body is not None:
        if not any(line.lower().startswith("content-type:") for line in lines):
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


def worker_conf(workers, pool="", extra=""):
    """[pool] and [worker] sections for a list of Worker objects (named by their .name)."""
    text = f"[pool default]\nhealth_interval = 1s\n{pool}\n"
    for w in workers:
        text += f"[worker {w.name}]\nurl = {w.url}\n"
    return text + extra


def text(kib, seed):
    """kib KiB of printable text; different seeds share no 16-byte prefix."""
    import random
    r = random.Random(seed)
    words = ["".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 9))) for _ in range(200)]
    out, n = [f"{seed:08x}"], 0
    while n < kib * 1024:
        w = r.choice(words)
        out.append(w)
        n += len(w) + 1
    return " ".join(out)[:kib * 1024]
