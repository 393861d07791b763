"""A kvsteer-engine process for tests, and what it must say: its tokenizer and its next token,
computed anew."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import urllib.request

MASK = (1 << 64) - 1
WORDS = (
    "the and for you was not are all but had her she one our out day "
    "get has him his how man new now old see two way who boy did its "
    "let put say too use big end far few got own run set sun try why "
    "air any arm art bad bed box car cup dog ear eat eye fly sky sea"
).split()


def tokenize(text):
    """The token ids of text (engine-worker/backend/token.h)."""
    data = text.encode() if isinstance(text, str) else text
    ids, at = [], 0
    while at < len(data):
        end = at + 1
        while end < len(data) and end - at < 4 and data[end] not in b" \t\n\r":
            if end - at == 3 and any(b >= 0x80 for b in data[at : end + 1]):
                break
            end += 1
        piece, at = data[at:end], end
        if len(piece) == 4:
            code = 0
            for b in piece:
                code = code << 7 | b
            ids.append(16843008 + code)
        else:
            ids.append((0, 0, 256, 65792)[len(piece)] + int.from_bytes(piece, "big"))
    return ids


def mix(x):
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def expected(ids, n, choice=0):
    """The n tokens of text that the sim backend generates after ids
    (engine-worker/backend/backend_sim.h)."""
    state, text = 0, ""
    for i in ids:
        state = mix(i ^ state)
    for _ in range(n):
        word = " " + WORDS[(state + choice) % 64]
        text += word
        state = mix(tokenize(word)[0] ^ state)
    return text


def render(messages):
    """The prompt of a chat of plain text messages (engine-worker/api/chat.h)."""
    return "".join(f"<|{m['role']}|>\n{m['content']}\n" for m in messages) + "<|assistant|>\n"


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path):
        super().__init__("engine", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Engine:
    """Started with flags; stopped by stop(), which insists on a clean end. With faults=True it can
    be told to misbehave."""

    def __init__(self, *flags, binary=None, faults=False):
        build = os.environ.get("KVSTEER_BUILDDIR", ".")
        self.binary = binary or os.environ.get("KVSTEER_ENGINE") or os.path.join(build, "kvsteer-engine")
        self.flags = [str(f) for f in flags]
        self.process = None
        self.url = None
        self.fault_folder = tempfile.TemporaryDirectory(prefix="kvsteer-faults") if faults else None
        if faults:
            self.fault_path = os.path.join(self.fault_folder.name, "faults")
            self.flags += ["--fault-socket", self.fault_path]

    def start(self):
        self.process = subprocess.Popen(
            [self.binary, "--port", "0", *self.flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        line = self.process.stdout.readline().decode()
        match = re.fullmatch(r"listening on (http://\S+:(\d+))\n", line)
        if not match:
            raise AssertionError(f"{line!r}; {self.process.communicate()[1].decode()}")
        self.url, self.port = match[1], int(match[2])
        return self

    def stop(self, timeout=30):
        """Ends it by SIGTERM; returns what it logged."""
        if self.process is None:
            return ""
        self.process.terminate()
        try:
            log = self.process.communicate(timeout=timeout)[1].decode()
        except subprocess.TimeoutExpired:
            self.process.kill()
            log = self.process.communicate()[1].decode()
            raise AssertionError(f"does not end; {log}") from None
        code, self.process = self.process.returncode, None
        assert code == 0, f"exit status {code}; {log}"
        return log

    def end_killed(self, timeout=30):
        """Waits until it has ended by SIGKILL."""
        self.process.communicate(timeout=timeout)
        code, self.process = self.process.returncode, None
        assert code == -signal.SIGKILL, f"exit status {code}"

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def post(self, path, body):
        """Status and JSON of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def control(self, method, path, body=None):
        """Status and JSON of an answer of the control socket."""
        connection = UnixConnection(self.fault_path)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def told(self, method, path, body=None):
        status, answer = self.control(method, path, body)
        assert status == 200, answer
        return answer

    def fault(self, **changes):
        """Changes faults (engine-worker/lab/fault.h), which are in force when this returns; returns
        all of them."""
        return self.told("POST", "/faults", json.dumps(changes))

    def faults(self):
        return self.told("GET", "/faults")

    def clear_faults(self):
        return self.told("POST", "/faults/clear")

    def restart_empty(self):
        """As a crash and a new start, on the same port."""
        return self.told("POST", "/restart")

    def metrics(self):
        """Name (with finished_reason where there is one) to value."""
        values = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("#"):
                continue
            name, value = line.rsplit(" ", 1)
            reason = re.search(r'finished_reason="(\w+)"', name)
            values[name.split("{")[0] + (":" + reason[1] if reason else "")] = float(value)
        return values
