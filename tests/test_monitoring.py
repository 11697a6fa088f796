"""
What stands in ``docs/monitoring``: every metric and label that it names exists, and Prometheus understands it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from sqlalchemy_brooq.gauges import Kind, Sample
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.vocabulary import Label
from tests.servers import ROOT
from tests.test_docs import script

MONITORING = ROOT / "docs/monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
GUIDE = (ROOT / "docs/how-to/monitoring.md").read_text()

#: Labels that Prometheus adds.
TARGET = {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for number, block in enumerate(re.findall(r"```promql\n(.*?)```", GUIDE, re.DOTALL)):
        found[f"guide {number}"] = block
    return found


def labels_of_samples() -> dict[str, set[str]]:
    """
    Return the labels of every series that a worker exposes.
    """
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.serve(["t"])
    metrics.count_enqueued(lambda _: lambda: None)
    metrics._families.enqueued.labels("t", "true")
    metrics.deleted("t", 1)
    metrics.requested("/healthz", "200")
    metrics.event_dropped("JobDone")
    metrics.watch.show(Kind.ACTIVE_COUNTS, Sample("db", {("t", "pending"): 1}))
    metrics.watch.show(Kind.READY_AGES, Sample("db", {("t",): 1}))
    return {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}


@pytest.mark.parametrize("expression", expressions().values(), ids=expressions())
def test_every_metric_and_label_that_an_expression_names_exists(expression: str) -> None:
    known = labels_of_samples()

    named = set(re.findall(r"\bbrooq_\w+", expression))
    assert named
    assert named <= known.keys()
    for metric, matchers in re.findall(r"(brooq_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)) <= known[metric] | TARGET
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}
    assert grouped <= set().union(*(known[metric] for metric in named)) | TARGET


def test_every_value_that_an_expression_matches_exists() -> None:
    states = {"pending", "processing", "failed", "done", "dead", "canceled"}
    values = {"outcome": {*Label}, "state": states, "reason": {"lease_expired"}, "created": {"true", "false"}}

    for expression in expressions().values():
        for label, value in re.findall(r'(\w+)(?:=~|!=|=)"([^"$]*)"', expression):
            if label in values:
                assert set(value.split("|")) <= values[label], expression


def test_every_metric_is_on_the_dashboard_or_behind_an_alert() -> None:
    named = " ".join(expressions().values())
    families = {re.sub(r"_(sum|count|created)$", "", name) for name in labels_of_samples()}

    assert {name for name in families if name not in named and not name.endswith("_created")} == set()


def test_every_alert_says_what_to_do_about_it() -> None:
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert f"`{rule['alert']}`" in GUIDE


def test_the_dashboard_is_one_that_grafana_lays_out() -> None:
    panels = DASHBOARD["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_the_picture_is_of_this_dashboard() -> None:
    assert (MONITORING / "dashboard.svg").read_text() == script("dashboard.py").drawn(DASHBOARD)


def test_prometheus_understands_the_rules_and_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: the rules were parsed as YAML only")
    recorded = [
        {"record": f"dashboard:{number}", "expr": expression.replace("$topic", ".*")}
        for number, expression in enumerate(expressions().values())
    ]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": [{"name": "d", "rules": recorded}]}))

    for file in (MONITORING / "alerts.yaml", tmp_path / "dashboard.yaml"):
        done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
