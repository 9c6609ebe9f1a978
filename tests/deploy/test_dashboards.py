"""The Grafana dashboard and the alert rules: whole, importable, and of series that somebody exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.metrics.exporter.counters_csv import SERVED
from shoal.metrics.exporter.fields import BY_NAME

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "shoal.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())] + [
        rule["expr"] for rule in rules
    ]


def test_every_view_is_there(dashboard: dict[str, Any]) -> None:
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Nodes", "Cards", "Pods", "Over-use", "Fragmentation"]


def test_it_can_be_imported_and_asks_nobody_but_its_data_source(dashboard: dict[str, Any]) -> None:
    assert dashboard["id"] is None
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == source, panel["title"]
            assert panel["targets"], panel["title"]
            assert all(target["datasource"] == source for target in panel["targets"]), panel["title"]
    assert next(variable["name"] for variable in dashboard["templating"]["list"]) == "datasource"
    assert not re.search(r"https?://|//[a-z]", DASHBOARD.read_text())


def test_panels_do_not_cover_each_other(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_field_of_dcgm_that_is_asked_for_is_served_without_a_list() -> None:
    asked = {name for text in expressions() for name in re.findall(r"\bDCGM_\w+", text)}
    assert asked
    assert asked <= {counter.field.name for counter in SERVED.counters} <= BY_NAME.keys()


def test_every_series_of_our_own_that_is_asked_for_is_written_somewhere() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "shoal").rglob("*.py"))
    for name in {name for text in expressions() for name in re.findall(r"\bshoal_\w+", text)}:
        assert f'"{name}"' in source, name


def test_every_alert_says_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
            assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]


def test_the_scrape_jobs_find_the_pods_of_deploy() -> None:
    jobs = yaml.safe_load((ALERTS.parent / "scrape.yaml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["shoal-metrics", "shoal-scheduler", "shoal-agent"]
    for job in jobs:
        keep, port, *_ = job["relabel_configs"]
        assert keep["regex"] == job["job_name"]
        folder = ROOT / "deploy" / job["job_name"].removeprefix("shoal-")
        manifests = "\n".join(path.read_text() for path in folder.glob("*.yaml"))
        assert f"app.kubernetes.io/name: {keep['regex']}" in manifests
        assert f"containerPort: {port['replacement'].rpartition(':')[2]}" in manifests
