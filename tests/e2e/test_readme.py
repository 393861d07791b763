"""README.md, followed as a new user would: its first configuration serves two workers, its
commands and flags exist, and what it names is there."""
import glob
import json
import os
import re
import shlex
import subprocess

from engine_proc import Engine

import harness
from harness import free_port

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# Programs that README names and that are not ours.
OTHERS = {"apt", "autoreconf", "cd", "curl", "docker", "dpkg-buildpackage", "make", "mkdir",
          "python", "systemctl", "systemd-sysusers", "vllm", "../../configure"}


def source(*names):
    with open(os.path.join(TOP, *names)) as f:
        return f.read()


def section(title):
    """The text below the heading that begins with title, to the next one of its kind."""
    found = re.search(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", source("README.md"), re.M | re.S)
    assert found, title
    return found[1]


def fences(kind, text):
    return [body for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if name == kind]


def shell_lines(text):
    """The indented command lines, those that a backslash continues as one; no comments."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).replace("\\\n", " ")
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M)  # one that begins with time= is a line of a log
    return [line[4:] for b in blocks if not b.startswith("    time=") for line in b.splitlines()]


def commands(line):
    """The commands of a shell line, each as words, without sudo."""
    words, out = shlex.split(line, comments=True), [[]]
    for word in words:
        if word == "&&":
            out.append([])
        elif word != "sudo":
            out[-1].append(word)
    return out


def run(name, *args):
    return subprocess.run([harness.program(name), *args], capture_output=True, text=True,
                          timeout=harness.DEADLINE)


def test_first_configuration(router, tmp_path):
    """The file as printed, but for ports and the admin socket; then each command that follows it,
    as printed, before two engines."""
    text = section("A first configuration").split("\n### ")[0]
    model = re.search(r"^    vllm serve (\S+)", text, re.M)[1]
    [body] = fences("json", text)
    assert json.loads(body)["model"] == model
    (tmp_path / "req.json").write_text(body)
    with Engine("--model", model, "--sim-speed", "0") as one, Engine("--model", model, "--sim-speed", "0") as two:
        conf = fences("ini", text)[0]
        port, sock = free_port(), tmp_path / "r0" / "admin.sock"
        for was, now in (("http://10.0.0.1:8000", one.url), ("http://10.0.0.2:8000", two.url),
                         ("0.0.0.0:30000", f"127.0.0.1:{port}"),
                         ("[router]\n", f"[router]\nmetrics_listen = 127.0.0.1:0\nadmin_socket = {sock}\n")):
            assert conf.count(was) == 1, was
            conf = conf.replace(was, now)
        path = tmp_path / "kvsteer.conf"
        path.write_text(conf)
        os.mkdir(tmp_path / "r0")
        p = run("kvsteerd", "-t", "-c", str(path))
        assert p.returncode == 0 and "warning" not in p.stderr, p.stderr
        r = router(args=["-c", str(path)])
        r.wait_workers("gpu1", "gpu2")
        shims = (f'sudo() {{ "$@"; }}\nsystemctl() {{ :; }}\nkvsteerctl() {{ command kvsteerctl -s {sock} "$@"; }}\n'
                 f'kvsteerd() {{ command kvsteerd -c {path} "$@"; }}\n')
        env = {**os.environ, "PATH": os.path.abspath(harness.builddir()) + ":" + os.environ["PATH"]}
        ran, said = [], {}
        for line in shell_lines(text):
            if commands(line)[0][0] == "vllm" or "--worker-urls" in line:
                continue  # theirs; and another way to start, which test_commands tests
            p = subprocess.run(["bash", "-c", shims + line.replace("127.0.0.1:30000", f"127.0.0.1:{port}")],
                               cwd=tmp_path, env=env, capture_output=True, text=True, timeout=harness.DEADLINE)
            assert p.returncode == 0, (line, p)
            ran.append(line)
            said[line] = p.stdout
        models, chat = (json.loads(said[line]) for line in ran if line.startswith("curl"))
        assert [m["id"] for m in models["data"]] == [model]
        assert chat["choices"][0]["message"]["content"]
        status = next(said[line] for line in ran if line.endswith("kvsteerctl status"))
        assert re.search(r"^gpu1 +healthy ", status, re.M) and re.search(r"^gpu2 +healthy ", status, re.M)
        explain = next(said[line] for line in ran if "explain" in line)
        [home] = [w for w in ("gpu1", "gpu2") if r.admin("GET", "workers/" + w)[1]["requests"]]
        assert re.search(rf"^chosen +{home}$", explain, re.M) and re.search(r"^reason +prefix_hit$", explain, re.M)
        # the tables that README shows have the columns of the real ones
        for shown, real in zip(fences("", text), (status, explain), strict=True):
            head = shown.splitlines()[0].split()
            assert head in [line.split() for line in real.splitlines()], (head, real)


def test_configurations(tmp_path):
    confs = fences("ini", source("README.md"))
    assert len(confs) >= 3
    for conf in confs:
        path = tmp_path / "example.conf"
        path.write_text(conf.replace("0.0.0.0:30000", f"127.0.0.1:{free_port()}"))
        p = run("kvsteerd", "-t", "-c", str(path))
        assert p.returncode == 0 and "warning" not in p.stderr, (conf, p.stderr)
    shown = {line.strip() for line in source("etc", "nginx", "kvsteer.conf").splitlines()}
    for line in "".join(fences("nginx", source("README.md"))).splitlines():
        assert line.strip() in shown, line


def check_kvsteerd(words):
    """-t of a command line, on ports that are free."""
    words = [w for w in words if w != "30000" and w != "--port"]
    p = run("kvsteerd", "-t", *words, "--port", str(free_port()), "--prometheus-port", str(free_port()))
    assert p.returncode == 0, (words, p.stderr)


def check_kvsteerctl(words, help_text):
    assert re.search(rf"^  {re.escape(words[0])}\b", help_text, re.M), words
    for flag in words[1:]:
        if flag.startswith("-"):
            assert re.search(rf"(^|[ ,\[]){re.escape(flag)}\b", help_text, re.M), (words, flag)


def test_commands():
    """Each command line: a script of the tree and its options, a subcommand and its options, flags
    of kvsteerd, or another's program that is known here."""
    text = source("README.md")
    help_text = run("kvsteerctl", "-h").stdout
    lines = shell_lines(text)
    assert len(lines) > 15
    for command in [c for line in lines for c in commands(line)] + [shlex.split(c) for c in re.findall(r"`(kvsteer(?:d|ctl) [^`]+)`", text)]:
        name, words = command[0], command[1:]
        if name == "kvsteerctl":
            check_kvsteerctl(words, help_text)
        elif name == "kvsteerd":
            if words != ["-t"]:
                check_kvsteerd(words)
        elif name == "docker":
            if words[0] == "build":
                assert os.path.exists(os.path.join(TOP, words[words.index("-f") + 1]))
            else:
                check_kvsteerd(words[words.index("kvsteer") + 1:])
        elif name == "systemctl":
            assert "kvsteer" not in words or os.path.exists(os.path.join(TOP, "etc", "kvsteer.service.in"))
        elif name not in OTHERS:
            script = os.path.join(TOP, name)
            assert os.access(script, os.X_OK), name
            for option in words:
                assert not option.startswith("-") or option in source(name), command


def test_names(router, worker):
    """Metrics, keys, reasons, files and links that README names are there."""
    text = source("README.md")
    r = router([worker("w0")])
    assert r.request(body={"prompt": "x"}, path="/v1/completions").status == 200
    there = {re.sub(r"_(bucket|sum|count)$", "", s.split("{")[0]) for s in r.metrics()}
    for metric in set(re.findall(r"\bkvsteer_\w+", text)):
        assert metric in there, metric
    for path in set(re.findall(r"(?<![\w/])etc/[\w./-]+\w", text)) | set(re.findall(r"\]\(([^)#:]+)\)", text)):
        assert os.path.exists(os.path.join(TOP, path)), path
    keys = {name for _, name, *_ in harness.tables("kvsteerd", "key")}
    words = source("etc", "nginx", "kvsteer.conf") + "".join(
        source(path) for path in glob.glob(os.path.join(TOP, "src", "*", "*.[ch]")))
    for name in set(re.findall(r"`(\w+_\w+)(?: = [^`]*)?`", text)) - there:
        assert name in keys or re.search(rf"\b{name}\b", words), name
