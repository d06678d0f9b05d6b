"""The alerts and dashboards of `compose/`: they use metrics that exist, and fire when they should."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tocsin.stages import STAGES

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "compose/prometheus/alerts.yml"
DASHBOARDS: Final = ROOT / "compose/grafana/dashboards"
RUNBOOK: Final = (ROOT / "docs/reference/alerts.md").read_text()
METRICS: Final = (ROOT / "docs/reference/metrics.md").read_text()
DOCUMENTED: Final = set(re.findall(r"^\| `(\w+)`", METRICS, re.MULTILINE))
HISTOGRAMS: Final = set(re.findall(r"^\| `(\w+)` \| histogram", METRICS, re.MULTILINE))
SUFFIXES: Final = ("_bucket", "_count", "_sum")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for path in DASHBOARDS.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))


def test_expressions_use_documented_metrics() -> None:
    used = {name for text in expressions() for name in re.findall(r"\b(?:tocsin|hanzo_scheduler)_\w+", text)}
    known = DOCUMENTED | {name + suffix for name in HISTOGRAMS for suffix in SUFFIXES}
    assert used <= known, used - known


def test_dashboards_and_manifest_are_current() -> None:
    """Grafana's library makes the dashboards, so they follow its schema."""
    check = [sys.executable, "compose/monitoring/generate.py", "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_use_the_chosen_source_and_known_variables() -> None:
    for path in DASHBOARDS.glob("*.json"):
        dashboard = json.loads(path.read_text())
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        sources = [each["datasource"]["uid"] for panel in panels for each in (panel, *panel["targets"])]
        assert set(sources) == {"${datasource}"}
        used = {name for panel in panels for each in panel["targets"] for name in re.findall(r"\$(\w+)", each["expr"])}
        assert used | {"datasource"} == variables, path
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids))
        places = [panel["gridPos"] for panel in panels]
        assert all(place["x"] + place["w"] <= 24 for place in places)
        assert len({(place["x"], place["y"]) for place in places}) == len(places)


def test_each_stage_is_scraped() -> None:
    """Also those that compose does not run, because their settings are missing."""
    configuration = yaml.safe_load((ROOT / "compose/prometheus/prometheus.yml").read_text())
    [processes] = [each for each in configuration["scrape_configs"] if each["job_name"] == "tocsin-processes"]
    stages = {stage.name.replace("_", "-") for stage in STAGES}
    assert set(processes["dns_sd_configs"][0]["names"]) == {*stages, "stages", "worker"}


def test_each_alert_has_a_runbook() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in rules()]


def promtool(folder: Path, *arguments: str) -> None:
    """Run promtool; it must succeed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("the program `promtool` is not installed")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_a_test() -> None:
    tests = yaml.safe_load((ROOT / "tests/alerts.test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    for case in (case for test in tests for case in test.get("promql_expr_test", ())):
        expected = re.match(r'count\(count by \(alertname\) \(ALERTS\{alertname=~"(.+?)"', case["expr"])
        if expected is not None:
            names = {rule["alert"] for rule in rules() if re.fullmatch(expected[1], rule["alert"])}
            assert case["exp_samples"][0]["value"] == len(names)  # promtool counts those that fire
            fired |= names
    assert fired == {rule["alert"] for rule in rules()}


def test_dashboards_show_each_metric_of_triggers() -> None:
    used = " ".join(expressions())
    assert {name for name in DOCUMENTED if name.startswith("tocsin_trigger_") and name not in used} == set()


def test_expressions_are_valid(tmp_path: Path) -> None:
    recorded = [{"record": f"expression_{n}", "expr": text} for n, text in enumerate(expressions())]
    written = {"groups": [{"name": "all", "rules": recorded}]}
    (tmp_path / "all.yml").write_text(yaml.safe_dump(written))
    promtool(tmp_path, "check", "rules", "all.yml")


@pytest.mark.parametrize(
    "copies",
    [
        {"a": "5x40 stale", "b": "_x43 9x40"},
        {"a": "5x40 9x40", "b": "5x40 9x40"},
        {"a": "5x40 stale", "b": "5x20 stale _x24 9x40"},
    ],
    ids=["a copy that moves", "two copies", "two copies of which one moves"],
)
def test_panels_of_totals_show_the_growth(tmp_path: Path, copies: dict[str, str]) -> None:
    panels = panels_of_totals()
    totals = {"executions", "retries", "dead_letters", "instants_missed", "executions_recovered", "messages_lost"}
    assert {total for total in totals if any(f"_{total}_total" in text for text in panels)} == totals
    assert_panels_show(4, panels, copies, dict.fromkeys(copies, "-100000x100"), tmp_path)


def test_panels_show_ends_before_the_first_scrape(tmp_path: Path) -> None:
    """A young job had four ends before its counters were read; one was registered long ago, or again with its old totals."""
    panels = {text for text in panels_of_totals() if "tocsin_job_registered" in text}
    assert len(panels) >= 6
    born, registered = {"a": "_x20 4x40", "b": "_x21 4x40"}, "_x20 300x40"
    assert_panels_show(4, panels, born, {"a": registered, "b": registered}, tmp_path)
    assert_panels_show(0, panels, born, {"a": "-100000x100"}, tmp_path)
    assert_panels_show(0, panels, {"a": "4x400"}, {"a": "_x299 4500x100"}, tmp_path, at="75m", of=r"\[1h\]")


def panels_of_totals() -> set[str]:
    """Return the expressions of the panels that show by how much a total grew."""
    panels = {*expressions()} - {rule["expr"] for rule in rules()}
    return {text.replace("$job", "j") for text in panels if re.search(r"\[(15m|1h|24h)\]", text)}


def assert_panels_show(
    growth: int,
    panels: set[str],
    totals: dict[str, str],
    registered: dict[str, str],
    folder: Path,
    *,
    at: str = "15m",
    of: str = "",
) -> None:
    """Assert what panels show at a time, for totals and times of registration by the copy that exports them."""
    panels = {text for text in panels if re.search(of, text)}
    copies = totals
    series = [
        {"series": f'{name}{{job="j", status="{status}", instance="{copy}"}}', "values": values}
        for name in {name for text in panels for name in re.findall(r"\b(?:tocsin|hanzo_scheduler)_\w+_total\b", text)}
        for status in ("completed", "failed", "skipped")
        if status == "failed" or "executions_total" in name
        for copy, values in copies.items()
    ]
    series += [
        {"series": f'tocsin_job_registered_timestamp_seconds{{job="j", instance="{copy}"}}', "values": values}
        for copy, values in registered.items()
    ]
    cases = [
        {"expr": f"sum({text})", "eval_time": at, "exp_samples": [{"labels": "{}", "value": growth}]} for text in panels
    ]
    written = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": cases}]}
    (folder / "panels.yml").write_text(yaml.safe_dump(written))
    promtool(folder, "test", "rules", "panels.yml")


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    for path in (RULES, ROOT / "tests/alerts.test.yml"):
        shutil.copy(path, tmp_path)
    promtool(tmp_path, "test", "rules", "alerts.test.yml")
