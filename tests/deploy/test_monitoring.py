"""The files for Prometheus and Grafana: they parse, and what they ask for is what a server tells."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from offbeat.net.monitor.prometheus import exposition
from offbeat.net.monitor.snapshot import MirrorView, SiteView, Snapshot
from offbeat.runs.schema import Metric
from tests.deploy.command_lines import DEPLOY

FOLDER, BOARD = DEPLOY / "prometheus", DEPLOY / "grafana/run.json"
DOCS = Path(__file__).parents[2] / "docs"
NAME, LABEL, STATE = (
    re.compile(r"\boffbeat_\w+"),
    re.compile(r"\bon\(([^)]*)\)"),
    re.compile(r'state=~?"([^"]*)"'),
)


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in read("rules.yaml")["groups"] for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    return list(json.loads(BOARD.read_text())["panels"])


def expressions() -> dict[str, str]:
    asked = {f"panel {p['title']} {t['refId']}": t["expr"] for p in panels() for t in p["targets"]}
    return {**{f"alert {name}": rule["expr"] for name, rule in alerts().items()}, **asked}


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """The names that a server tells once it has evaluated, each with the labels of its series."""
    site = SiteView(0, "north", "training", 120, 7, 3, 20, 2.5, 1, 9, 95.0)
    snapshot = Snapshot(
        run="r", label="a", algorithm="fedcompass", now=100.0, version=12, running=1,
        arrived=30, aggregated=28, dropped=1, lost=2, bytes_up=3, bytes_down=4, rejected={"NaN": 2},
        sites=(replace(site, persistence=0.3, size=1.1),), mirror=MirrorView("/disk2/heart", None),
    )  # fmt: skip
    families = text_string_to_metric_families(
        exposition(snapshot, Metric(3, 90.0, 11, 28, 0, 0, 0.5, 0.75), {"@server": 1.0}).decode()
    )
    return {s.name: set(s.labels) for family in families for s in family.samples}


@pytest.mark.parametrize("where", expressions())
def test_an_expression_asks_for_metrics_and_states_that_there_are(where: str, told: dict[str, set[str]]):
    expression = expressions()[where]
    names = set(NAME.findall(expression))
    assert names or expression.startswith("up{")
    assert names <= told.keys()
    states = {state for found in STATE.findall(expression) for state in found.split("|")}
    assert states <= {"training", "idle", "waiting", "away", "expected", "revoked"}
    for labels in LABEL.findall(expression):  # what is matched across runs is matched within one
        assert labels.split(", ")[0] == "instance"


def test_every_alert_says_what_is_wrong_and_has_a_test_in_which_it_fires():
    fired = {
        test["alertname"]
        for story in read("rules_test.yaml")["tests"]
        for test in story["alert_rule_test"]
        if test.get("exp_alerts")
    }
    assert fired == alerts().keys()
    for rule in alerts().values():
        assert rule["labels"].keys() == {"severity"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


def test_the_configuration_scrapes_the_job_that_the_alert_watches_with_a_token_over_tls():
    (scrape,) = read("prometheus.yaml")["scrape_configs"]
    assert f'job="{scrape["job_name"]}"' in alerts()["ServerDown"]["expr"]
    assert scrape["scheme"] == "https"
    assert scrape["authorization"].keys() == {"credentials_file"}
    assert read("prometheus.yaml")["rule_files"] == ["rules.yaml"]


def test_the_page_shows_the_files_as_they_are():
    page = (DOCS / "operate.md").read_text()
    for name in ("prometheus.yaml", "rules.yaml"):
        assert f'--8<-- "deploy/prometheus/{name}"' in page


def test_the_panels_of_the_board_do_not_overlap():
    taken = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())
