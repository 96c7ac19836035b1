"""What left a site: a durable line for each message, no values, and nothing that leaves without a line."""

import asyncio
import errno
import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc")

import offbeat as ob
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerCredentials, SitePolicy, join
from offbeat.net.client import sent_log
from offbeat.net.client.connector import connector
from offbeat.net.client.sent_lines import DAMAGED, FILE, sent_lines
from offbeat.net.client.sent_log import SentLog, UnrecordedError
from offbeat.net.client.site import STATISTICS
from offbeat.net.client.transfers import Transfers
from offbeat.net.grpc.server import listen
from offbeat.net.messages import FromServer, FromSite, Heartbeat, Leave, Register, Renewal, UpdateSubmission
from offbeat.net.token_renewal import RenewingClientChannel
from offbeat.net.transport import ChannelClosedError, ClientChannel
from offbeat.secure.messages import UnmaskRefused
from tests.net.deviating_server import meet, serving, task_of
from tests.net.support import LIMITS, hurry, recording, serve, shares_of_digits, terms_of, torch_left_alone


class Now:
    """A clock that the test sets."""

    seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


def lines_of(directory: Path) -> list[dict[str, Any]]:
    return list(sent_lines(directory))


def update(task: int = 7) -> UpdateSubmission:
    return UpdateSubmission(
        task, 2, torch.full((5,), 0.123), torch.zeros(0, dtype=torch.int64), {"loss": 0.77}
    )


def test_a_real_site_records_all_that_it_sends_to_a_real_server(tmp_path: Path) -> None:
    (data,), test = shares_of_digits(1, samples=60, test_samples=20)
    said: list[FromSite] = []

    async def run() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def on_loopback(on_channel: Any, *args: Any) -> Any:
            own = await listen("127.0.0.1:0", ServerCredentials(), LIMITS, on_channel)
            ready.set_result(f"127.0.0.1:{own.port}")
            return own

        options = terms_of(clients=1, until=ob.Until(tasks=3))
        server = asyncio.create_task(
            serve(
                ob.fedasync(steps=2), LogisticSpec(), ob.Training(batch_size=20), tmp_path / "run",
                on_loopback, options=options, test=test, linger=0.2,
            )
        )  # fmt: skip
        address = await ready
        way = recording(connector(address, "north"), said)
        await join(way, data, state=tmp_path / "site", policy=SitePolicy(min_steps=2))
        await server

    with torch_left_alone():
        asyncio.run(asyncio.wait_for(run(), 300))
    lines = lines_of(tmp_path / "site")
    (registered,) = [line for line in lines if line["kind"] == "run"]
    assert registered["run"] == ob.read_run(tmp_path / "run").meta["run"]
    assert registered["policy"]["min_steps"] == 2
    assert len(registered["plan"]) == 64
    sent = [line for line in lines if line["kind"] not in ("run", "heartbeat")]
    assert [line["kind"] for line in sent] == [wire_name(m) for m in said if not isinstance(m, Heartbeat)]
    updates = [line for line in sent if line["kind"] == "update_submission"]
    assert [line["task"] for line in updates] == [m.task for m in said if isinstance(m, UpdateSubmission)]
    assert {line["run"] for line in updates} == {registered["run"]}
    assert all(line["bytes"] > 4 * 650 and "delta" in line["fields"] for line in updates)


def wire_name(message: FromSite) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(message).__name__)[1:]


def test_a_line_is_durable_before_its_message_is_handed_on_and_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("durable"), fsync(file)))
    channel = Scripted(on_send=lambda message: events.append(type(message).__name__))
    Transfers(SentLog(tmp_path)).watch(channel).send(update())
    assert events[0] == "durable"
    assert events[-1] == "UpdateSubmission"
    (line,) = lines_of(tmp_path)
    assert (line["kind"], line["task"]) == ("update_submission", 7)
    assert {"steps", "metrics", "delta"} <= set(line["fields"])
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert "0.123" not in text
    assert "0.77" not in text


def test_heartbeats_are_counted_by_the_hour(tmp_path: Path) -> None:
    now = Now()
    log = SentLog(tmp_path, clock=now)
    for _ in range(2 * 180 + 5):
        log.sending(Heartbeat(3, 2))
        now.seconds += 20
    assert [line["count"] for line in lines_of(tmp_path)] == [180, 180]
    log.close()
    assert [line["count"] for line in lines_of(tmp_path)] == [180, 180, 5]
    assert all(line["kind"] == "heartbeat" and line["bytes"] > 0 for line in lines_of(tmp_path))


def test_a_registration_is_recorded_once_for_a_run_and_a_plan(tmp_path: Path) -> None:
    log = SentLog(tmp_path, SitePolicy(clip=1.5))
    for run, plan in (("a", {"x": 1}), ("a", {"x": 1}), ("a", {"x": 2}), ("b", {"x": 2})):
        log.registered(run, 0, plan)
    lines = lines_of(tmp_path)
    assert [line["run"] for line in lines] == ["a", "a", "b"]
    assert len({line["plan"] for line in lines}) == 2
    assert lines[0]["policy"]["clip"] == 1.5


@pytest.mark.parametrize("left", ['{"at": "2026', "\0\0\0", '{"kind": 3}', "[1]", "�"])
def test_half_a_line_spoils_neither_the_file_nor_the_next_line(tmp_path: Path, left: str) -> None:
    SentLog(tmp_path).sending(update(1))
    with (tmp_path / FILE).open("a", encoding="utf-8") as file:
        file.write(left)
    SentLog(tmp_path).sending(update(2))
    assert [line.get("task", line["kind"]) for line in lines_of(tmp_path)] == [1, DAMAGED, 2]


def test_a_record_that_is_moved_away_begins_anew(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    log.sending(update(1))
    (tmp_path / FILE).rename(tmp_path / "older.jsonl")
    log.sending(update(2))
    assert [line["task"] for line in lines_of(tmp_path)] == [2]


def test_what_cannot_be_recorded_does_not_leave_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full from the first update on, for three attempts; it arrives in the fourth."""
    hurry(monkeypatch)
    write, left = sent_log.write_pieces, [3]

    def full(file: int, pieces: list[bytes]) -> None:
        if b"update_submission" in pieces[0] and left[0]:
            left[0] -= 1
            os.write(file, pieces[0][:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, pieces)

    monkeypatch.setattr(sent_log, "write_pieces", full)
    with torch_left_alone():
        ended, said = meet(script_of_one_update(), tmp_path)
    assert ended == "done"
    sent = sum(isinstance(message, UpdateSubmission) for message in said)
    assert sent > 0
    assert "No space left on device): nothing is sent until it can" in caplog.text
    kinds = Counter(line["kind"] for line in lines_of(tmp_path))
    assert (kinds["update_submission"], kinds[DAMAGED]) == (sent, 3)


def script_of_one_update() -> Any:
    done = serving(None, [task_of(0)])

    async def script(channel: Any) -> None:
        with suppress(ChannelClosedError):
            await done(channel)

    return script


def test_a_site_that_can_never_record_sends_nothing_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)

    def full(file: int, pieces: list[bytes]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sent_log, "write_pieces", full)
    ended, said = meet(script_of_one_update(), tmp_path, give_up_after=0.2)
    assert "cannot be recorded" in str(ended)
    assert said == []


class Scripted:
    """A connection that says what a test gives it."""

    def __init__(self, come: list[FromServer] | None = None, on_send: Any = lambda message: None) -> None:
        self.come, self.send = come or [], on_send

    async def receive(self) -> FromServer:
        if not self.come:
            raise ChannelClosedError("over")
        return self.come.pop(0)

    async def close(self, reason: str = "") -> None:
        pass


def test_the_answer_to_a_renewed_token_is_recorded_too(tmp_path: Path) -> None:
    said: list[FromSite] = []
    renewing = RenewingClientChannel(Scripted([Renewal("secret", 5)], said.append), lambda *stored: None)
    watched: ClientChannel = Transfers(SentLog(tmp_path)).watch(renewing)
    with pytest.raises(ChannelClosedError):
        asyncio.run(watched.receive())
    assert [type(message).__name__ for message in said] == ["Renewed"]
    assert [line["kind"] for line in lines_of(tmp_path)] == ["renewed"]


def test_a_helper_records_the_releases_that_it_answers(tmp_path: Path) -> None:
    log = SentLog(tmp_path)
    log.registered("r", None, {})
    log.sending(UnmaskRefused(4, "it is not mine"))
    registered, refused = lines_of(tmp_path)
    assert (registered["client"], registered["policy"]) == (None, None)
    assert (refused["kind"], refused["release"]) == ("unmask_refused", 4)
    assert "not mine" not in json.dumps(refused)


def test_statistics_that_leave_are_recorded_with_what_the_run_gathers(tmp_path: Path) -> None:
    assert f":{StatisticsLearner.__name__}" == STATISTICS
    log = SentLog(tmp_path)
    log.registered("r", 0, {"model": {"name": STATISTICS}, "algorithm": {"name": "fedavg"}})
    log.sending(update(0))
    registered, sent = lines_of(tmp_path)
    assert (registered["model"], registered["algorithm"]) == (STATISTICS, "fedavg")
    assert sent["run"] == "r"


def test_without_a_directory_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = SentLog()
    for message in (Register(10, 1), Leave("done"), Heartbeat()):
        log.sending(message)
    log.close()
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_an_error_of_the_connection(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(UnrecordedError, match=r"sent\.jsonl"):
        SentLog(tmp_path).sending(update())
