"""What Prometheus gets: every name with its unit, its help, and the numbers of the snapshot."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from offbeat.net.monitor.prometheus import exposition
from offbeat.net.monitor.snapshot import HelpersView, SiteState, SiteView, Snapshot
from offbeat.runs.schema import Metric
from tests.sampling import examples

SITE = SiteView(0, "north", "training", 120, 7, 3, 20, 2.5, 1, 9, 95.0)
SNAPSHOT = Snapshot(
    run="r1", label="mine", algorithm="fedcompass", now=100.0, version=12, running=1,
    arrived=30, aggregated=28, dropped=1, lost=2, bytes_up=3000, bytes_down=4000,
    rejected={"NaN": 2, "norm": 1},
    sites=(SITE, replace(SITE, client=1, name="south", state="away", task=None, speed=0.0, staleness=-1)),
)  # fmt: skip
EVALUATION = Metric(3, 90.0, 11, 28, 0, 0, 0.5, 0.75)


def samples(snapshot: Snapshot, evaluation: Metric | None = None) -> dict[tuple[str, frozenset[str]], float]:
    text = exposition(snapshot, evaluation).decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_numbers_of_the_run():
    got = samples(SNAPSHOT, EVALUATION)
    none = frozenset[str]()
    assert got["offbeat_run_info", frozenset({"r1", "mine", "fedcompass"})] == 1
    expected = {
        "run_seconds": 100, "version": 12, "running_tasks": 1, "stopped": 0, "arrived_updates_total": 30,
        "aggregated_updates_total": 28, "dropped_updates_total": 1, "lost_tasks_total": 2,
        "received_bytes_total": 3000, "sent_bytes_total": 4000, "accuracy_ratio": 0.75, "loss": 0.5,
        "evaluated_version": 11,
    }  # fmt: skip
    assert {name: got[f"offbeat_{name}", none] for name in expected} == expected
    assert got["offbeat_rejected_messages_total", frozenset({"NaN"})] == 2
    for reason in ("replaced", "duplicate", "key", "without key"):
        assert got["offbeat_rejected_messages_total", frozenset({reason})] == 0, "an alert counts from 0"
    alarmed = samples(replace(SNAPSHOT, guarded=4, skipped=3, rollbacks=2, diverged="so"))
    names = ("guard_refused_updates_total", "skipped_versions_total", "rollbacks_total", "diverged")
    assert [got[f"offbeat_{name}", none] for name in names] == [0, 0, 0, 0]
    assert [alarmed[f"offbeat_{name}", none] for name in names] == [4, 3, 2, 1]
    assert samples(replace(SNAPSHOT, stopped="done"))["offbeat_stopped", none] == 1


def test_what_expires_has_its_seconds_by_owner():
    text = exposition(SNAPSHOT, None, {"north": 3600.0, "@server": -5.0}).decode()
    assert 'offbeat_credential_expires_seconds{owner="north"} 3600.0' in text
    assert 'offbeat_credential_expires_seconds{owner="@server"} -5.0' in text


def test_numbers_of_a_site():
    got, north = samples(SNAPSHOT), frozenset({"north"})
    expected = {
        "samples": 120, "steps_done": 3, "steps": 20, "steps_per_second": 2.5, "staleness_versions": 1,
        "silent_seconds": 5.0, "updates_total": 9,
    }  # fmt: skip
    assert {name: got[f"offbeat_site_{name}", north] for name in expected} == expected
    for site in SNAPSHOT.sites:
        states = {s: got["offbeat_site_state", frozenset({site.name, s})] for s in get_args(SiteState)}
        assert states == {s: float(s == site.state) for s in get_args(SiteState)}


def test_what_is_not_known_is_left_out():
    got = samples(SNAPSHOT)
    south = frozenset({"south"})
    assert ("offbeat_site_steps_per_second", south) not in got
    assert ("offbeat_site_staleness_versions", south) not in got
    assert not any(name.startswith(("offbeat_accuracy", "offbeat_loss")) for name, _ in got)
    without = samples(SNAPSHOT, EVALUATION._replace(accuracy=None))
    assert ("offbeat_accuracy_ratio", frozenset()) not in without
    assert ("offbeat_loss", frozenset()) in without


def test_every_metric_by_name() -> None:
    evaluation = EVALUATION._replace(
        accuracy=None, data={"auroc": 0.9, "own": float("nan"), "b": float("inf")}
    )
    got = samples(SNAPSHOT, evaluation)
    found = {name: got["offbeat_metric", frozenset({name})] for name in ("loss", "auroc", "b")}
    assert found == {"loss": 0.5, "auroc": 0.9, "b": float("inf")}
    assert math.isnan(got["offbeat_metric", frozenset({"own"})])
    assert ("offbeat_metric", frozenset({"accuracy"})) not in got


def test_every_family_has_help_and_a_good_name():
    text = exposition(SNAPSHOT, EVALUATION).decode()
    for family in text_string_to_metric_families(text):
        assert re.fullmatch(r"offbeat_[a-z_]+", family.name)
        assert family.documentation.endswith(".")


def test_every_family_is_documented() -> None:
    private = replace(
        SNAPSHOT, privacy={"epsilon": 1.0, "budget": 2.0, "spent": 0}, helpers=HelpersView("2 of 2", 2)
    )
    page = (Path(__file__).parents[3] / "docs" / "operate.md").read_text(encoding="utf-8")
    text = exposition(private, EVALUATION, {"north": 3.0}).decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {name for name in names if not re.search(rf"`{name}[`{{]", page)} == set()


def test_nothing_is_put_into_the_global_registry():
    before = set(REGISTRY._names_to_collectors)
    exposition(SNAPSHOT)
    assert set(REGISTRY._names_to_collectors) == before


@examples(50)
@given(name=st.text(max_size=20), reason=st.text(max_size=20))
def test_names_and_reasons_are_escaped(name: str, reason: str) -> None:
    shown = replace(SNAPSHOT, rejected={reason: 1}, sites=(replace(SITE, name=name),))
    text = exposition(shown).decode()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert all(line.startswith("offbeat_") for line in lines)
    same = samples(replace(SNAPSHOT, rejected={"r": 1}, sites=(replace(SITE, name="s"),)))
    assert len(lines) == len(same)
