"""The routers that compare and replay put side by side: how each is started in front of the same
workers, told when it is ready, and measured.

Each listens on 127.0.0.1 on a port that was free a moment before (kvsteerd: the kernel's), keeps
its connections to the workers, logs no requests unless asked to, and has its defaults otherwise.
vllm-router and smg are found in PATH, e.g. PATH=VENV/bin:$PATH; nobody needs them.
"""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

NAMES = ("nginx", "haproxy", "kvsteerd", "vllm-router", "smg")
os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin"  # where Debian has nginx and haproxy, and users do not look

NGINX = """
worker_processes 1; daemon off; master_process off; pid {tmp}/nginx.pid; error_log {tmp}/error.log crit;
events {{ worker_connections {connections}; }}
http {{
  access_log {log}; keepalive_requests 100000000; client_max_body_size 0; client_body_buffer_size 2m;
  client_body_temp_path {tmp}/b; proxy_temp_path {tmp}/p; fastcgi_temp_path {tmp}/f; uwsgi_temp_path {tmp}/u; scgi_temp_path {tmp}/s;
  upstream workers {{ least_conn; {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
    proxy_buffering off; proxy_read_timeout 600s; }} }}
}}
"""

HAPROXY = """
global
  nbthread 1
  maxconn {connections}
{log}
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 600s
  timeout server 600s
{httplog}
frontend clients
  bind 127.0.0.1:{port}
  default_backend workers
backend workers
  balance leastconn
  http-reuse always
{servers}
"""

KVSTEERD = """
[router]
listen = 127.0.0.1:0
metrics_listen = none
admin_socket = {tmp}/admin.sock
threads = 1
access_log = {access_log}
[pool default]
policy = cache_aware
{pool}
"""


def installed(names, builddir):
    """Those of names that can be started here; says which cannot."""
    out = []
    for name in names:
        path = os.path.join(builddir, name) if name == "kvsteerd" else shutil.which(name)
        if path is None or not os.access(path, os.X_OK):
            print(f"skipped: {name} is not installed", file=sys.stderr)
        else:
            out.append(name)
    return out


def bench_program(name, builddir):
    """A program of this folder, made in builddir."""
    subprocess.run(["make", "-s", "-C", builddir, "tests/bench/" + name], stdout=sys.stderr, check=True)
    return os.path.join(os.path.abspath(builddir), "tests", "bench", name)


def version(name, builddir):
    command = {
        "nginx": ["nginx", "-v"], "haproxy": ["haproxy", "-v"], "kvsteerd": [os.path.join(builddir, "kvsteerd"), "-V"],
        "vllm-router": ["vllm-router", "--version"], "smg": ["smg", "launch", "--version"],
    }[name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    m = re.search(r"\d+\.\d+(\.\d+)?", done.stdout) if done.returncode == 0 else None
    return m.group(0) if m else pip_version(name)


def pip_version(name):
    python = os.path.join(os.path.dirname(os.path.realpath(shutil.which(name) or "/")), "python")
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"


def free_port():
    """For programs that cannot tell which port they were given: one that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path):
    """(status, body) of a GET; (0, b"") when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def family(pid):
    """pid and all its descendants: some start through a launcher."""
    out, children = [], {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(entry))
    queue = [pid]
    while queue:
        out.append(queue.pop())
        queue += children.get(out[-1], [])
    return out


class Router:
    """One started router; RuntimeError when it does not start. Ended by stop()."""

    def __init__(self, name, ports, builddir, tmp, *, prefix=(), access_log=False, time_factor=1, connections=8192, pool_keys=()):
        """In front of the workers on ports; prefix: words before the command (taskset);
        time_factor: how many seconds of a trace pass in one; connections: what those are told that
        want to know, clients and workers together; pool_keys: lines for kvsteerd's pool."""
        self.pool_keys = list(pool_keys)
        self.name, self.ports, self.builddir = name, ports, builddir
        self.prefix, self.access_log, self.time_factor, self.connections = list(prefix), access_log, time_factor, connections
        self.dir = tempfile.mkdtemp(dir=tmp, prefix=name + "-")
        self.log = os.path.join(self.dir, "log")
        self.admin_socket = os.path.join(self.dir, "admin.sock")
        self.port = None if name == "kvsteerd" else free_port()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.prefix + self.command(), stdout=log, stderr=log)
        self.wait_ready()

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def command(self):
        return {"nginx": self.nginx, "haproxy": self.haproxy, "kvsteerd": self.kvsteerd, "vllm-router": self.vllm_router, "smg": self.smg}[self.name]()

    def nginx(self):
        servers = " ".join(f"server 127.0.0.1:{p};" for p in self.ports)
        log = os.path.join(self.dir, "access.log") + " combined buffer=64k flush=1s" if self.access_log else "off"
        return ["nginx", "-p", self.dir, "-c", self.write("nginx.conf", NGINX.format(tmp=self.dir, servers=servers, port=self.port, log=log, connections=self.connections))]

    def haproxy(self):
        servers = "".join(f"  server w{i} 127.0.0.1:{p}\n" for i, p in enumerate(self.ports))
        log, httplog = ("  log stdout format raw local0", "  log global\n  option httplog") if self.access_log else ("", "")
        return ["haproxy", "-db", "-f", self.write("haproxy.cfg", HAPROXY.format(servers=servers, port=self.port, log=log, httplog=httplog, connections=self.connections))]

    def kvsteerd(self):
        # What ages in seconds of real use must age as much in a trace that is played faster.
        pool = f"prefix_ttl = {round(3600000 / self.time_factor)}ms" if self.time_factor != 1 else ""
        text = KVSTEERD.format(tmp=self.dir, access_log="on" if self.access_log else "off", pool="\n".join([pool, *self.pool_keys]))
        text += "".join(f"[worker w{i}]\nurl = http://127.0.0.1:{p}\n" for i, p in enumerate(self.ports))
        return [os.path.join(self.builddir, "kvsteerd"), "-c", self.write("kvsteer.conf", text)]

    def python_flags(self):
        flags = ["--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware", "--prometheus-port", str(free_port()), "--log-level"]
        flags += ["info" if self.access_log else "error", "--worker-urls"] + [f"http://127.0.0.1:{p}" for p in self.ports]
        return flags

    def scaled(self, flag, seconds):
        """A flag that is in seconds of real use, as many seconds of the trace; nothing when both
        are the same."""
        return [flag, str(max(1, round(seconds / self.time_factor)))] if self.time_factor != 1 else []

    def vllm_router(self):
        return ["vllm-router"] + self.python_flags() + self.scaled("--eviction-interval-secs", 120)

    def smg(self):
        return ["smg", "launch"] + self.python_flags() + self.scaled("--eviction-interval-secs", 60) + self.scaled("--load-monitor-interval", 10)

    def is_ready(self):
        """All workers are known to be up, for those that look; for the others, one answer came."""
        if self.name == "kvsteerd":
            with open(self.log) as f:
                text = f.read()
            m = re.search(r"listening on http://[^ ]*:(\d+)", text)
            self.port = int(m.group(1)) if m else None
            return m is not None and text.count("-> healthy") == len(self.ports)
        if self.name in ("nginx", "haproxy"):
            return get(self.port, "/health")[0] == 200
        status, body = get(self.port, "/workers")
        try:
            workers = json.loads(body)["workers"] if status == 200 else []
        except (ValueError, KeyError):
            return False
        return sum(1 for w in workers if w.get("is_healthy")) == len(self.ports)

    def wait_ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            if self.is_ready():
                return
            time.sleep(0.05)
        self.stop()
        with open(self.log, errors="replace") as f:
            raise RuntimeError(f"{self.name} did not start:\n{f.read()[-4000:]}")

    def cpu_us(self):
        """User and system time so far, all threads, from the scheduler's nanoseconds."""
        return self.scheduled(0)

    def wait_us(self):
        """For how long its threads could have run and others had the core."""
        return self.scheduled(1)

    def scheduled(self, column):
        total = 0
        for pid in family(self.process.pid):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                    total += int(f.read().split()[column])
        return total / 1000

    def rss_mib(self):
        total = 0
        for pid in family(self.process.pid):
            with open(f"/proc/{pid}/status") as f:
                total += int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
        return total / 1024

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
