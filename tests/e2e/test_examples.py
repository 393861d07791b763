"""What an operator copies works: the nginx snippet before a real daemon and engine, the manifest,
the Dockerfile's words, and the examples of the manual pages."""
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile

import pytest
import yaml
from engine_proc import Engine

import harness
from harness import free_port, wait_until, worker_conf

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 8}


def source(*names):
    with open(os.path.join(TOP, *names)) as f:
        return f.read()


def check_conf(text, tmp_path, *flags):
    """kvsteerd -t of a configuration."""
    path = tmp_path / "example.conf"
    path.write_text(text)
    return subprocess.run([harness.program("kvsteerd"), "-t", "-c", str(path), *flags], capture_output=True, text=True, timeout=harness.DEADLINE)


# ---- nginx ----

def nginx_binary():
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")


@pytest.fixture
def nginx(tmp_path):
    """nginx(upstream port) -> its port, with etc/nginx/kvsteer.conf as it is but for ports; ended
    in the end."""
    if nginx_binary() is None:
        pytest.skip("no nginx")
    procs = []

    def start(upstream):
        folder = tempfile.mkdtemp(prefix="nginx", dir=tmp_path)
        port = free_port()
        snippet = source("etc", "nginx", "kvsteer.conf").replace("127.0.0.1:30000", f"127.0.0.1:{upstream}").replace("listen 80;", f"listen 127.0.0.1:{port};")
        assert snippet.count(str(upstream)) >= 1 and snippet.count(f"127.0.0.1:{port}") == 1
        with open(os.path.join(folder, "kvsteer.conf"), "w") as f:
            f.write(snippet)
        with open(os.path.join(folder, "nginx.conf"), "w") as f:
            f.write(f"daemon off; master_process off; pid {folder}/pid; error_log stderr; events {{}}\n"
                    f"http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;\n"
                    f"uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e; include {folder}/kvsteer.conf; }}\n")
        command = [nginx_binary(), "-c", os.path.join(folder, "nginx.conf"), "-p", folder, "-e", "stderr"]
        p = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=harness.DEADLINE)
        assert p.returncode == 0 and "warn" not in p.stderr, p.stderr
        procs.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

        def is_up():
            assert procs[-1].poll() is None, "nginx ended"
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        wait_until(is_up, "nginx listens")
        return port
    yield start
    for p in procs:
        p.terminate()
        p.wait(harness.DEADLINE)


def wire_to(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=harness.DEADLINE)
    return harness.Wire(s)


def test_a_stream_through_nginx_and_the_router(router, nginx):
    with Engine("--sim-speed", "0") as engine:
        r = router(conf=f"[worker e]\nurl = {engine.url}\n")
        r.wait_workers("e")
        port = nginx(r.port)
        for _ in range(3):
            with wire_to(port) as c:
                c.send(harness.make_request(body=CHAT, host="llm.example.org", headers={"X-Forwarded-For": "192.0.2.7"}))
                answer = c.read_response("POST")
            assert answer.status == 200 and answer.get("content-type").startswith("text/event-stream")
            events = [line for line in answer.body.decode().split("\n\n") if line]
            assert events[-1] == "data: [DONE]" and len(events) >= 8
        assert r.metric("kvsteer_connections_accepted_total") == 1, "nginx keeps its connection"
        r.wait_idle()


def test_nginx_gathers_nothing_and_passes_an_end_on(router, worker, nginx):
    """An event is at the client before the worker sends the next; a client that leaves is gone at
    the worker; addresses are passed on."""
    seen = []

    def answer(x):
        seen.append(x)
        x.begin()
        x.event("one")
        assert x.wait_gone(), "the client's end is known"
    r = router([worker("w0", answer)])
    port = nginx(r.port)
    c = wire_to(port)
    c.send(harness.make_request(body=CHAT, host="llm.example.org"))
    assert b"data: one" in c.read_until(b"data: one\n\n")
    assert seen[0].request.get("x-forwarded-for").startswith("127.0.0.1") and seen[0].request.get("x-forwarded-proto") == "http"
    c.close()
    assert seen[0].wait_gone()
    r.wait_idle()


# ---- Kubernetes ----

def test_the_manifest(tmp_path):
    documents = list(yaml.safe_load_all(source("etc", "kubernetes", "kvsteer.yaml")))
    kinds = {d["kind"]: d for d in documents}
    assert set(kinds) == {"ConfigMap", "Deployment", "Service"}
    conf = kinds["ConfigMap"]["data"]["kvsteer.conf"]
    p = check_conf(conf, tmp_path)
    warnings = [line for line in p.stderr.splitlines() if "warning" in line]
    assert p.returncode == 0 and all("its name " in line for line in warnings), p.stderr  # names of the cluster
    pod = kinds["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert f"listen = 0.0.0.0:{ports['http']}\n" in conf and f"metrics_listen = 0.0.0.0:{ports['metrics']}\n" in conf
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports and container[probe]["httpGet"]["path"] in ("/liveness", "/readiness")
    [port] = kinds["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports
    labels = pod["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"] == kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert set(volumes) == set(mounts) and volumes["conf"]["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    assert container["args"] == ["-c", mounts["conf"] + "/kvsteer.conf"]
    drain = int(re.search(r"drain_timeout = (\d+)s", conf)[1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain + 5
    # the container's file system is read-only: the admin socket's folder is the one that is not
    p = subprocess.run([harness.program("kvsteerd"), "-T", "-c", str(tmp_path / "example.conf")], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert f"admin_socket = {mounts['run']}/admin.sock\n" in p.stdout


# ---- Docker ----

def test_the_dockerfile(tmp_path):
    """No image is built here: what it copies exists by the install, its libraries are those that
    the programs need, and its command is a good one."""
    text = source("etc", "docker", "Dockerfile").replace("\\\n", " ")
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["debian:12-slim"] * 2
    for line in re.findall(r"^COPY (.*)", text, re.M):
        if "--from=build" not in line:
            continue
        for path in re.findall(r"/out/(\S+)", line):
            name = os.path.basename(path)
            assert path == "etc/kvsteer" or os.path.exists(os.path.join(harness.builddir(), name)), path
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)", text, re.M)[1])
    command = json.loads(re.search(r"^CMD (.*)", text, re.M)[1])
    assert entry == ["kvsteerd"] and command[-2:] == ["-c", "/etc/kvsteer/kvsteer.conf"]
    p = check_conf(source("etc", "kvsteer.conf"), tmp_path, *command[:-2])
    assert p.returncode == 0, p.stderr
    p = subprocess.run([harness.program("kvsteerd"), "-T", "-c", str(tmp_path / "example.conf"), *command[:-2]], capture_output=True, text=True, timeout=harness.DEADLINE)
    for port in re.search(r"^EXPOSE (.*)", text, re.M)[1].split():
        assert f"0.0.0.0:{port}\n" in p.stdout
    wanted = set(re.search(r"--no-install-recommends(.*?)&&", text, re.S)[1].split())
    if shutil.which("dpkg-query") is None or shutil.which("objdump") is None or "bookworm" not in open("/etc/os-release").read():
        pytest.skip("its packages are checked on Debian 12")
    needed = set()
    for name in ("kvsteerd", "kvsteerctl", "kvsteer-engine", "kvsteer-bench"):
        objects = subprocess.run(["objdump", "-p", harness.program(name)], capture_output=True, text=True, check=True).stdout
        for lib in re.findall(r"NEEDED\s+(\S+)", objects):
            if re.match(r"lib(asan|ubsan|tsan|gcc_s|c|m|pthread)\.", lib):
                continue
            owner = subprocess.run(["dpkg-query", "-S", f"*/{lib}"], capture_output=True, text=True, check=True).stdout
            needed.add(owner.split(":")[0])
    assert needed == wanted


# ---- manual pages ----

def examples(page):
    """(kind, text) of each block below EXAMPLES, and of each block elsewhere with a comment before
    it that says how it is run."""
    out, kind, block, is_below = [], None, None, False
    for line in source("man", page).splitlines():
        if line.startswith(".Sh "):
            assert kind is None, f"no example after the comment in {page}"
            is_below = line == ".Sh EXAMPLES"
        elif line.startswith('.\\" example: '):
            kind = line.split(": ")[1]
        elif kind is None and not is_below:
            continue
        elif line.startswith(".Bd -literal"):
            block = []
        elif line == ".Ed":
            out.append((kind, "\n".join(block) + "\n"))
            kind = block = None
        elif block is not None:
            block.append(line)
        elif line.startswith(".Dl "):
            out.append((kind, line[4:] + "\n"))
            kind = None
    return [(k, t.replace("\\e", "\\").replace("\\-", "-").replace("\\(aq", "'").replace("\\&", "")) for k, t in out]


PAGES = sorted(os.path.basename(p) for p in glob.glob(os.path.join(TOP, "man", "*.[1-8]")))
SHELL = """set -e
kvsteerctl() { command kvsteerctl -s "$SOCKET" "$@"; }
kvsteer-bench() { case "$*" in *--url*|*--simulate*) command kvsteer-bench "$@" ;; *) command kvsteer-bench --url "$ENGINE" "$@" ;; esac; }
"""


def run_shell(text, env, folder):
    """As at a prompt; what a line begins with, $ or #, is the prompt's."""
    lines = re.sub(r"^[$#] ", "", text, flags=re.M)
    p = subprocess.run(["bash", "-c", SHELL + lines], capture_output=True, text=True, timeout=3 * harness.DEADLINE, cwd=folder,
                       env={**os.environ, "PATH": os.path.abspath(harness.builddir()) + ":" + os.environ["PATH"], **env})
    assert p.returncode == 0, (text, p)
    return p.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if p != "kvsteer-prefix.7"])  # that one's: test_prefix_manual.py
def test_examples_of_manual_pages(page, router, worker, tmp_path):
    """Each example stands behind a comment that says what it is: a configuration of kvsteerd or of
    the engine, commands for a shell with a daemon and an engine running, the engine's own command
    line, or what cannot be run and why."""
    blocks = examples(page)
    assert blocks or page == "kvsteer-engine.conf.5"
    faults, trace = str(tmp_path / "faults"), tmp_path / "conversation_trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": 100 * i, "input_length": 40, "output_length": 2, "hash_ids": [i]}) + "\n" for i in range(8)))
    with Engine("--sim-speed", "0", "--fault-socket", faults) as engine:
        r = router(conf=worker_conf([worker("gpu1"), worker("gpu2")], extra=f"[worker engine]\nurl = {engine.url}\n"))
        for name in ("gpu1", "gpu2", "engine"):
            r.wait_workers(name)
        only = router(conf=f"[worker engine]\nurl = {engine.url}\n")
        only.wait_workers("engine")
        for kind, text in blocks:
            assert kind, f"no comment before {text}"
            text = text.replace("127.0.0.1:8000", f"127.0.0.1:{engine.port}").replace("127.0.0.1:30000", f"127.0.0.1:{only.port}")
            text = text.replace("/run/user/1000/faults", faults).replace("--duration 60s", "--duration 300ms")
            if kind == "conf":
                p = check_conf(text.replace(f"127.0.0.1:{only.port}", "127.0.0.1:0"), tmp_path)  # -t asks whether a port is free
                assert p.returncode == 0 and "warning" not in p.stderr, (text, p)
            elif kind == "engine.conf":
                (tmp_path / "e.conf").write_text(text)
                p = subprocess.run([harness.program("kvsteer-engine"), "-t", "-c", str(tmp_path / "e.conf")], capture_output=True, text=True)
                assert p.returncode == 0, (text, p)
            elif kind == "kvsteerd" or kind == "kvsteer-engine":
                words = text.split("#")[0].replace("$ ", "").split()
                assert words[0] == kind
                p = subprocess.run([harness.program(kind), "-t", *words[1:]], capture_output=True, text=True, timeout=harness.DEADLINE)
                assert p.returncode == 0, (text, p)
            elif kind == "shell":
                run_shell(text, {"SOCKET": r.admin_path, "ENGINE": engine.url}, tmp_path)
            else:
                assert kind.startswith("not run, "), kind
        assert engine.post("/flush_cache", {})[0] == 200
        if os.path.exists(faults):
            run_shell(f"curl -fsS -X POST --unix-socket {faults} http://engine/faults/clear", {}, tmp_path)
