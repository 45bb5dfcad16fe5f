"""The alert rules: every metric that they name is there, and they fire when they are to."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import RunningServer, running_server

__all__ = ["running_server"]
DEPLOY = Path(__file__).parents[2] / "deploy"


def rules() -> list[dict[str, Any]]:
    """Return the rules of all groups."""
    data = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in data["groups"] for rule in group["rules"]]


def test_every_metric_of_the_alerts_is_exported_with_the_labels_that_are_asked_for(
    running_server: RunningServer,
) -> None:
    running_server.store.create_study("mine", {}, "hash")
    httpx.get(f"{running_server.url}/readyz", timeout=300.0)
    headers = {"authorization": f"Bearer {running_server.token}"}
    answer = httpx.get(f"{running_server.url}/metrics", headers=headers, timeout=300.0)
    labels: dict[str, set[str]] = {}
    values: dict[tuple[str, str], set[str]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
            for label, value in sample.labels.items():
                values.setdefault((sample.name, label), set()).add(value)
    metrics = set()
    for rule in rules():
        for name, matchers in re.findall(r"\b(tempopt_\w+)(?:\{([^}]*)\})?", rule["expr"]):
            metrics.add(name)
            for label, sign, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers):
                assert label in labels[name], (rule["alert"], name, label)
                if sign == "=" and label in ("state", "route"):
                    assert value in values[name, label], (rule["alert"], name, value)
        for label in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            (metric,) = re.findall(rf"by \({re.escape(label)}\) \((tempopt_\w+)\)", rule["expr"])
            assert {name.strip() for name in label.split(",")} <= labels[metric]
    assert len(metrics) == 3 and metrics <= set(labels)


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} <= set(rule["annotations"])
    cases = yaml.safe_load((DEPLOY / "alerts.test.yaml").read_text(encoding="utf-8"))["tests"]
    fired_alerts = {e["alertname"] for case in cases for e in case["alert_rule_test"] if e["exp_alerts"]}
    assert fired_alerts == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts.test.yaml")])
def test_prometheus_accepts_the_rules_and_they_fire_when_they_are_to(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("This needs promtool (Debian: apt install prometheus).")
    process = subprocess.run([promtool, *words], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "SUCCESS" in process.stdout
