"""The examples for Prometheus and Grafana ask only for what a daemon has: metrics, their labels,
and values of labels, by a scrape of a live one."""
import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

import harness

ETC = os.path.join(os.path.dirname(__file__), "..", "..", "etc")
RULES, DASHBOARD = os.path.join(ETC, "prometheus", "kvsteer.rules.yml"), os.path.join(ETC, "grafana", "kvsteer.json")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}]}
# What Prometheus adds to each series.
ADDED = {"instance", "job"}
# Labels that are printed with all their values from the start (requests_total's reasons and codes
# come as they happen).
COMPLETE = {"kvsteer_worker_state": "state", "kvsteer_reloads_total": "result", "kvsteer_connections": "side", "kvsteer_upstream_failures_total": "reason",
            "kvsteer_prefix_evictions_total": "reason"}
FUNCTIONS = {"sum", "count", "rate", "increase", "histogram_quantile", "label_values"}
WORDS = {"by", "on", "and", "group_left"}


def series_of(r):
    """{metric: {label: {values}}} of a scrape."""
    out = {}
    for series in r.metrics():
        m = re.fullmatch(r"(\w+)(?:\{(.*)\})?", series)
        labels = out.setdefault(m[1], {})
        for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m[2] or ""):
            labels.setdefault(name, set()).add(value)
    return out


def fail_codes():
    return {code for code, _ in harness.tables("kvsteerd", "failure")} | {"ok"}


def faults(expr, series, legend=""):
    """What is wrong with one expression."""
    out, text = [], re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)
    open_ones = []
    for c in text:
        if c in "([{":
            open_ones.append(c)
        elif c in ")]}" and (not open_ones or open_ones.pop() + c not in ("()", "[]", "{}")):
            out.append("brackets do not match")
    if open_ones:
        out.append("a bracket is open")
    known = set(ADDED)
    for name, matchers in re.findall(r"\b(kvsteer_\w+|up)\b(?:\{([^}]*)\})?", expr):
        if name == "up":
            continue
        if name not in series:
            out.append(f"no metric {name}")
            continue
        known |= set(series[name])
        for label, op, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', matchers):
            if label not in series[name] and label not in ADDED:
                out.append(f"{name} has no label {label}")
            values = series[name].get(label, set()) if COMPLETE.get(name) == label else fail_codes() if label == "reason" else None
            if values is None or "$" in value:
                continue
            if any(not any(re.fullmatch(part, v) for v in values) for part in (value.split("|") if "~" in op else [re.escape(value)])):
                out.append(f"{name}: {label} is never {value}")
    for group in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", expr):
        out += [f"no label {label} to group by" for label in re.findall(r"\w+", group) if label not in known]
    out += [f"no label {label} for the legend" for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", legend) if label not in known]
    for word in re.findall(r"(?<![\w$])([a-z_]+)\s*\(", re.sub(r"\b(?:by|on|group_left)\s*\([^)]*\)", " ", text)):
        if word not in FUNCTIONS | WORDS:
            out.append(f"no function {word}")
    return out


def alerts():
    with open(RULES) as f:
        return [rule for group in yaml.safe_load(f)["groups"] for rule in group["rules"]]


def dashboard():
    with open(DASHBOARD) as f:
        return json.load(f)


def targets(d):
    return [(p["title"], t["expr"], t.get("legendFormat", "")) for p in d["panels"] for t in p.get("targets", [])]


@pytest.fixture
def series(router, worker):
    r = router([worker("w0")])
    assert r.request(body=CHAT).status == 200
    r.wait_idle()
    return series_of(r)


def test_alert_rules(series):
    rules = alerts()
    assert len(rules) >= 12 and len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        notes = rule["annotations"]["summary"] + rule["annotations"]["action"]
        assert faults(rule["expr"], series) == [], rule
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["action"], rule
        assert re.fullmatch(r"\d+m", rule.get("for", "1m")), rule
        named = set(re.findall(r"\$labels\.(\w+)", notes))
        by = [set(re.findall(r"\w+", g)) for g in re.findall(r"\bby\s*\(([^)]*)\)", rule["expr"])]
        kept = set.intersection(*by) if by else ADDED | set().union(*(series[m] for m in re.findall(r"\bkvsteer_\w+", rule["expr"])))
        assert named <= kept, (rule["alert"], named - kept)
        for metric in re.findall(r"kvsteer_\w+", rule["annotations"]["action"]):
            assert metric in series, rule
    asked = " ".join(rule["expr"] for rule in rules)
    for metric in ("worker_state", "ttft_seconds", "matched_blocks", "queue_depth", "guards_taken", "requests_total", "reloads_total"):
        assert metric in asked, metric


def test_dashboard(series):
    d = dashboard()
    asked = targets(d)
    assert len(asked) > 25
    for title, expr, legend in asked + [("", a["expr"], a["titleFormat"]) for a in d["annotations"]["list"]]:
        assert faults(expr, series, legend) == [], (title, expr)
        assert 'instance=~"$instance"' in expr, title
    for variable in d["templating"]["list"]:
        if variable["type"] == "query":
            assert faults(variable["definition"], series) == [] and variable["query"]["query"] == variable["definition"]
    ids = [p["id"] for p in d["panels"]]
    assert len(set(ids)) == len(ids) and d["uid"] and d["schemaVersion"] >= 36
    cells = set()
    for p in d["panels"]:
        g = p["gridPos"]
        here = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert g["x"] + g["w"] <= 24 and not here & cells, f"{p['title']} lies over another one"
        cells |= here
        assert p["type"] == "row" or p["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("expr, legend, says", [
    ("kvsteer_nothing", "", "no metric kvsteer_nothing"),
    ("kvsteer_worker_load_total", "", "no metric"),
    ('kvsteer_worker_load{model="m"}', "", "has no label model"),
    ('kvsteer_worker_state{state="dead"}', "", "state is never dead"),
    ('kvsteer_worker_state{state=~"stalled|dead"}', "", "is never stalled|dead"),
    ('kvsteer_requests_total{reason="nonsense"}', "", "reason is never nonsense"),
    ("sum by (model) (kvsteer_worker_load)", "", "no label model"),
    ("kvsteer_worker_load", "{{model}}", "no label model"),
    ("sum(kvsteer_worker_load", "", "a bracket is open"),
    ("sum(rate(kvsteer_worker_load[5m)])", "", "do not match"),
    ("sums(kvsteer_worker_load)", "", "no function sums"),
])
def test_the_check_finds_faults(series, expr, legend, says):
    assert any(says in fault for fault in faults(expr, series, legend)), faults(expr, series, legend)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian's prometheus)")
def test_rules_by_promtool():
    p = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=harness.DEADLINE)
    assert p.returncode == 0, p
