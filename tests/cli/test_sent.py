"""`offbeat audit` of a site's state directory: what has left it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("grpc")

from offbeat.net import SitePolicy
from offbeat.net.client.packed_mapping import packed
from offbeat.net.client.sent_lines import FILE
from offbeat.net.client.sent_log import HEARTBEATS_EVERY, SentLog
from offbeat.net.messages import Heartbeat, Register, UpdateSubmission
from offbeat.runs.files import write_tensors
from tests.cli.answer import Answer

BEGUN = 1_800_000_000.0


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The state of a site that has sent two updates, a minute apart, and heartbeats for an hour."""
    now = [BEGUN]
    log = SentLog(tmp_path, SitePolicy(min_steps=2), lambda: now[0])
    log.sending(Register(10, 1))
    log.registered("run-5", 3, {"algorithm": {"name": "fedbuff"}, "model": {"name": "logistic"}})
    for task in (4, 9):
        delta, none = torch.zeros(1000), torch.zeros(0, dtype=torch.int64)
        log.sending(UpdateSubmission(task, 2, delta, none))
        now[0] += 60
    for _ in range(181):
        log.sending(Heartbeat())
        now[0] += HEARTBEATS_EVERY / 180
    log.close()
    return tmp_path


def test_the_totals_by_run_and_kind(offbeat: Callable[..., Answer], site: Path) -> None:
    answer = offbeat("audit", site)
    assert answer.code == 0
    assert "2027-01-15T08:00:00.000Z: client 3 of run run-5: algorithm fedbuff, model logistic" in answer.out
    assert "min_steps 2" in answer.out
    rows = {row.split()[1]: row.split() for row in answer.out.splitlines() if row.startswith(("run-5", "–"))}
    assert rows["update_submission"][2] == "2"
    assert rows["heartbeat"][2] == "181"
    assert rows["register"][0] == "–"
    assert rows["update_submission"][-1] == "2027-01-15T08:01:00.000Z"
    assert "task" not in answer.out.replace("tasks", "")


def test_the_rows_since_a_time(offbeat: Callable[..., Answer], site: Path) -> None:
    answer = offbeat("audit", site, "--since", "2027-01-15T08:00:30")
    assert "task 9; has steps, delta" in answer.out
    assert "task 4" not in answer.out


def test_json_has_a_line_for_each_of_the_record(offbeat: Callable[..., Answer], site: Path) -> None:
    with (site / FILE).open("ab") as file:
        file.write(b'{"at": "20')
    lines = [json.loads(line) for line in offbeat("audit", site, "--json").out.splitlines()]
    assert [line["kind"] for line in lines] == [
        "register", "run", "update_submission", "update_submission", "heartbeat", "heartbeat", "damaged line",
    ]  # fmt: skip
    assert "damaged line" in offbeat("audit", site).out


def test_a_record_has_no_chain(offbeat: Callable[..., Answer], site: Path) -> None:
    assert "has no chain" in offbeat("audit", site, "--verify").complaint()


def test_a_site_without_a_record_says_so(offbeat: Callable[..., Answer], tmp_path: Path) -> None:
    write_tensors(tmp_path / "client.safetensors", {"about": packed({"run": "run-5"})})
    assert "has no record of what has left" in " ".join(offbeat("audit", tmp_path).out.split())


def test_a_record_that_is_no_file_is_named(offbeat: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert "is no file" in offbeat("audit", tmp_path).complaint(1)


def test_text_that_steers_a_terminal_is_not_printed(offbeat: Callable[..., Answer], site: Path) -> None:
    line = {"at": "2027\x1b[2J", "run": "a\nb", "kind": "x\x1b", "bytes": 1, "fields": ["\x1b"]}
    with (site / FILE).open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
    assert "\x1b" not in offbeat("audit", site).out + offbeat("audit", site, "--since", "2020-01-01").out
