"""The alert rules for Prometheus ask for nothing that a server does not tell."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import httpx
import yaml  # type: ignore[import-untyped]
from servers import REPOSITORY, Server

from belljar import Client

RULES = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "alerts.yml").read_text())
#: Made by Prometheus itself, about every target.
OF_PROMETHEUS = {"up"}
FUNCTIONS = {"increase", "rate", "histogram_quantile", "sum", "by"}


def test_rules_are_whole() -> None:
    (group,) = RULES["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 5
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+m|None", str(rule.get("for")))
        for text in (rule["expr"], *rule["annotations"].values()):
            assert all(text.count(left) == text.count(right) for left, right in ("()", "[]", "{}")), text


def test_every_metric_and_label_is_told() -> None:
    """A server that has been full, out of memory, killed and refused tells all that the rules ask for."""
    directory = Path(tempfile.mkdtemp(prefix="s-"))
    limits = {"BELLJAR_MAX_SESSIONS": "2", "BELLJAR_MAX_MEMORY": "2G", "BELLJAR_MAX_NETWORK": "example.org"}
    server = Server(directory, tcp=True, **limits).start()
    try:
        with Client(server.url, patience=0) as client:
            session = client.session(network={"allow": ["example.org"]})
            session.run_code("import os; os._exit(1)")
            session.run_code("import urllib.request\nurllib.request.urlopen('http://nowhere.example')")
            client.session("another")
            refused = httpx.post(f"{server.url}/v1/sessions")
            assert refused.status_code == 429, refused.text
            reply = httpx.get(f"{server.url}/metrics").text
            server.kill()
            server.start()
        reply += httpx.get(f"{server.url}/metrics").text
        with Client(server.url) as client:
            for left in client.sessions():
                left.stop()
    finally:
        server.stop()
    samples = re.findall(r"^(\w+)(?:\{(.*)\})? ", reply, re.MULTILINE)
    known: dict[str, set[str]] = {}
    for name, labels in samples:
        known.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
        known[name].update(re.findall(r'\w+="[^"]*"', labels))
    for rule in RULES["groups"][0]["rules"]:
        selectors = re.findall(r"([a-z_]+)(?:\{([^}]*)\})?(?![a-z_(])", re.sub(r"by \(.*?\)|\[\w+\]", "", rule["expr"]))
        names = [(name, labels) for name, labels in selectors if name not in FUNCTIONS | OF_PROMETHEUS]
        assert names or rule["alert"] == "BelljarDown"
        for name, labels in names:
            assert name in known, f"{rule['alert']}: no {name}"
            for label, _ in re.findall(r'(\w+)="([^"]*)"', labels):
                assert label in known[name], f"{rule['alert']}: {name} has no {label}"
    # What is likeliest to happen is told with these very values.
    for sample in ('belljar_creates_total{how="refused"}', 'belljar_execs_total{status="crashed"}'):
        assert f"{sample} 1" in reply, reply
    assert 'belljar_granted{what="sessions"} 2' in reply
    assert 'belljar_limit{what="sessions"} 2' in reply
