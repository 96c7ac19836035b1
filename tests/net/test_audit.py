"""The audit: its chain, what of it is named when it was changed, and floods that leave a few rows."""

import asyncio
import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import offbeat as ob
from offbeat import cli
from offbeat.cli import console
from offbeat.models import MLPSpec
from offbeat.net import ServerCredentials, ServerOptions, SiteCredentials, join, serve, server_learner
from offbeat.net.audit import (
    MOST_SOURCES,
    WINDOW,
    Actor,
    AuditLog,
    Head,
    operator,
    parse_head,
    problems,
)
from offbeat.net.audit_record import audit_rows
from offbeat.net.auth.person import person
from offbeat.net.auth.tokens import Tokens, claim, make_token, renew, revoke, use
from offbeat.net.grpc.client import connect
from offbeat.net.server.serve import RunServer
from offbeat.net.transport import ChannelClosedError
from offbeat.runs.record import read_run
from tests.net.support import LIMITS, shares_of_digits
from tests.sampling import thorough

Rows = list[tuple[int, str, str]]


class Late:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def log_of(clock: Late) -> AuditLog:
    log = AuditLog(clock)
    log.open("r1", Head())
    return log


def chain(count: int = 5) -> Rows:
    log = log_of(Late())
    for number in range(count):
        log.record(operator(), {"action": "token.make", "site": f"s{number}"})
    return taken(log)


def taken(log: AuditLog) -> Rows:
    """The rows that have come, made durable."""
    rows = log.take()
    log.written()
    return rows


def events(rows: Rows) -> list[dict[str, Any]]:
    return [json.loads(line)["event"] for _, line, _ in rows]


# The chain


def test_a_row_has_the_names_of_flowers_audit_log() -> None:
    log = log_of(Late())
    log.record(Actor("north", "site", "10.1.2.3"), {"action": "site.connect"})
    ((seq, line, _),) = taken(log)
    assert seq == 1
    assert json.loads(line) == {
        "timestamp": "2027-01-15T08:00:00.000Z",
        "actor": {"id": "north", "description": "site", "ip_address": "10.1.2.3"},
        "event": {"action": "site.connect", "run_id": "r1"},
        "status": "completed",
    }


def test_a_whole_chain_has_no_problem_with_and_without_its_head() -> None:
    rows = chain()
    assert list(problems(rows)) == []
    for seq, _, digest in rows:
        assert list(problems(rows, Head(seq, digest))) == []
    assert list(problems([])) == []
    assert list(problems([], Head())) == []


@pytest.mark.parametrize("at", range(5))
def test_one_changed_row_is_named_and_no_other(at: int) -> None:
    for column in (1, 2):
        rows = chain()
        seq, *texts = rows[at]
        texts[column - 1] = texts[column - 1].replace("a", "b", 1)
        rows[at] = (seq, texts[0], texts[1])
        (found,) = problems(rows)
        assert found.startswith(f"row {at + 1} is not as it was written")


@pytest.mark.parametrize("at", range(4))
def test_a_deleted_row_is_named(at: int) -> None:
    rows = chain()
    del rows[at]
    assert list(problems(rows)) == [f"row {at + 1} is missing"]
    renumbered = [(i + 1, line, digest) for i, (_, line, digest) in enumerate(rows)]
    assert [found[:5] for found in problems(renumbered)] == [f"row {at + 1}"]


def test_rows_that_were_put_in_or_appended_are_named() -> None:
    rows = chain()
    (found,) = problems([*rows, (6, rows[0][1], rows[0][2])])
    assert found.startswith("row 6 is not as it was written")


def test_only_a_head_tells_of_rows_deleted_from_the_end_or_of_a_chain_written_again() -> None:
    rows, head = chain(), Head(5, chain()[-1][2])
    assert list(problems(rows[:3])) == []
    assert list(problems(rows[:3], head)) == ["row 5 of the head is missing: the audit ends with row 3"]
    log = log_of(Late())
    for _ in range(7):
        log.record(operator(), {"action": "site.revoke"})
    (found,) = problems(taken(log), head)
    assert found.startswith("row 5 is not the one of the head 5:")


def test_a_chain_goes_on_where_it_ended() -> None:
    first = chain(2)
    log = AuditLog(Late())
    log.open("r1", Head(first[-1][0], first[-1][2]))
    log.record(operator(), {"action": "run.resume"})
    assert list(problems([*first, *taken(log)])) == []
    assert str(log.head).startswith("3:")


@pytest.mark.parametrize(
    "text", ["", "3", "x:" + "0" * 64, "3:0", "-1:" + "0" * 64, "9" * 30 + ":" + "0" * 64]
)
def test_what_is_no_head_is_refused(text: str) -> None:
    assert parse_head(text) is None
    assert parse_head("3:" + "AB" * 32) == Head(3, "ab" * 32)


# Floods


@pytest.mark.parametrize(
    ("addresses", "seconds"),
    [(100_000, 10.0), *thorough((1, 10.0), (10, 10.0), (1, 3600.0), (10, 3600.0), (100_000, 3600.0))],
)
def test_a_hundred_thousand_refused_logins_leave_at_most_a_hundred_rows(
    addresses: int, seconds: float
) -> None:
    clock = Late()
    log, rows = log_of(clock), Rows()
    for number in range(100_000):
        host = (
            f"10.{number % addresses // 65536}.{number % addresses // 256 % 256}.{number % addresses % 256}"
        )
        event = {"action": "login", "kind": "credential", "reason": "no token"}
        log.record_repeated(Actor(None, "site", host), event, "failed")
        clock.now += seconds / 100_000
        if number % 1000 == 0:
            rows += taken(log)
    log.finish()
    rows += taken(log)
    assert 1 < len(rows) <= 100
    assert sum(event.get("count", 1) for event in events(rows)) == 100_000
    assert list(problems(rows)) == []


def test_what_repeats_itself_is_counted_and_forgotten_after_a_quiet_minute() -> None:
    clock = Late()
    log, north = log_of(clock), Actor("north", "site", "10.0.0.1")
    for _ in range(3):
        log.record_repeated(north, {"action": "site.connect"})
    assert [event.get("count") for event in events(taken(log))] == [None]
    clock.now += WINDOW
    assert log.due(0)
    assert [event.get("count") for event in events(taken(log))] == [2]
    clock.now += 2 * WINDOW
    assert taken(log) == []
    log.record_repeated(north, {"action": "site.connect"})
    assert [event.get("count") for event in events(taken(log))] == [None]


def test_sources_beyond_those_told_apart_count_as_one() -> None:
    log = log_of(Late())
    for number in range(MOST_SOURCES + 10):
        log.record_repeated(Actor(f"s{number}", "site"), {"action": "site.connect"})
    assert len(taken(log)) == MOST_SOURCES + 1
    log.finish()
    assert sum(event["count"] for event in events(taken(log))) == 9


def test_rows_that_nobody_writes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.net.audit._MOST_PENDING", 10)
    log = log_of(Late())
    for _ in range(25):
        log.record(operator(), {"action": "config.reload", "files": "x" * 10_000})
    rows = events(taken(log))
    assert rows[9] == {"action": "config.reload", "files": "x" * 500, "run_id": "r1"}
    assert rows[10:] == [{"action": "audit.dropped", "count": 15, "run_id": "r1"}]
    log.close()
    log.record(operator(), {"action": "config.reload"})
    assert taken(log) == []


# Tokens


def test_tokens_that_came_and_went_have_rows_also_while_no_server_ran(tmp_path: Path) -> None:
    path, log = tmp_path / "tokens.json", log_of(Late())
    tokens = Tokens(path, on_change=log.tokens)
    first = make_token(path, "north", life=90)
    tokens.sites()
    assert claim(path, first, "k" * 43, time.time())
    made = renew(path, first, "k" * 43, time.time())
    assert made is not None
    tokens.sites()
    use(path, made[0])
    tokens.sites()
    make_token(path, "north", keep=True)
    make_token(path, "south")
    tokens.sites()
    rows = taken(log)
    told = [(event["action"], event["site"]) for event in events(rows)]
    assert told == [
        ("site.enrol", "north"), ("token.key", "north"), ("token.renew", "north"), ("token.revoke", "north"),
        ("token.make", "north"), ("site.enrol", "south"),
    ]  # fmt: skip
    assert first not in str(rows)
    ended = json.loads(rows[3][1])
    assert (ended["actor"]["id"], ended["event"]["reason"]) == ("north", "renewed")
    revoke(path, "south")
    later = AuditLog(Late())
    later.open("r1", log.head, [line for _, line, _ in rows])
    Tokens(path, on_change=later.tokens)
    assert [event["action"] for event in events(taken(later))] == ["site.revoke"]
    Tokens(path, on_change=later.tokens)
    assert taken(later) == []


def test_a_file_that_vanishes_and_comes_back_has_no_rows(tmp_path: Path) -> None:
    """Nobody has revoked or enrolled anybody."""
    path, log = tmp_path / "tokens.json", log_of(Late())
    make_token(path, "north")
    known = Tokens(path, on_change=log.tokens)
    assert len(taken(log)) == 1
    path.rename(tmp_path / "away")
    known.sites()
    (tmp_path / "away").rename(path)
    known.sites()
    assert taken(log) == []


def test_rows_of_an_operator_have_the_persons_name_and_the_time_of_the_act(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens.json", Late()
    make_token(path, "north", by="anna")
    make_token(path, "east")
    revoke(path, "north", "bert")
    clock.now += 3600
    log = log_of(clock)
    Tokens(path, on_change=log.tokens)
    rows = [json.loads(line) for _, line, _ in taken(log)]
    assert [row["actor"]["id"] for row in rows] == ["operator"] * 3
    assert [row["actor"]["description"] for row in rows] == ["anna", person(), "bert"]
    made = datetime.fromisoformat(rows[0]["timestamp"]).timestamp()
    assert abs(made - time.time()) < 600


# In a run's directory


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left once, with a refused login, and has ended."""
    state = tmp_path_factory.mktemp("audited") / "run"
    tokens = state / "tokens.json"
    state.mkdir(mode=0o700)
    token = make_token(tokens, "north")
    (share,), test = shares_of_digits(1, 60, 20)
    learner = server_learner(MLPSpec(hidden=(4,)), test=test)
    experiment = ob.Experiment(ob.fedbuff(1, steps=1), learner, until=ob.Until(versions=2))

    def server() -> RunServer:
        return serve(
            experiment, state, "127.0.0.1:0", options=ServerOptions(clients=1),
            credentials=ServerCredentials(tokens=tokens),
        )  # fmt: skip

    async def story() -> None:
        async with server() as left:
            for _ in range(3):
                with pytest.raises(ChannelClosedError):
                    await connect(f"127.0.0.1:{left.port}", SiteCredentials(token="north:wrong"), LIMITS)
        async with server() as served:
            await join(f"127.0.0.1:{served.port}", share, credentials=SiteCredentials(token=token))
            await served.ended()

    asyncio.run(story())
    return state


def test_a_run_has_rows_of_all_that_happened(audited: Path) -> None:
    rows = list(audit_rows(read_run(audited)))
    assert list(problems(rows)) == []
    told = [event["action"] for event in events(rows)]
    assert [action for action in told if action != "site.disconnect"] == [  # which may come after the end
        "run.start", "site.enrol", "login", "run.stop", "login", "run.resume", "site.connect", "run.end",
    ]  # fmt: skip
    first, repeated = (event for event in events(rows) if event["action"] == "login")
    assert (first["kind"], repeated["count"]) == ("credential", 2)
    (end,) = (event for event in events(rows) if event["action"] == "run.end")
    assert end["reason"] == "reached 2 versions"
    connected = json.loads(rows[told.index("site.connect")][1])["actor"]
    assert connected == {"id": "north", "description": "site", "ip_address": "127.0.0.1"}
    assert {event["run_id"] for event in events(rows)} == {read_run(audited).entry("run")}


@pytest.fixture
def offbeat(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process: its exit code, stdout and stderr."""
    monkeypatch.setattr(console.out, "width", 200)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offbeat", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capfd.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def copied(audited: Path, folder: Path, change: str) -> Path:
    """A copy of a run, changed by a statement."""
    place = folder / "copy"
    place.mkdir()
    (place / "run.db").write_bytes((audited / "run.db").read_bytes())
    with closing(sqlite3.connect(place / "run.db")) as database, database:
        database.execute(change)
    return place


def test_the_command_shows_rows_as_a_table_and_as_lines(offbeat: Any, audited: Path) -> None:
    code, said, _ = offbeat("audit", audited)
    assert code == 0
    assert "site.connect" in said
    assert "127.0.0.1" in said
    code, said, _ = offbeat("audit", audited, "--json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["hash"] for line in lines] == [digest for _, _, digest in audit_rows(read_run(audited))]
    assert {"timestamp", "actor", "event", "status", "hash"} <= lines[0].keys()
    assert offbeat("audit", audited, "--json", "--since", "2099-01-01")[1] == ""
    assert len(offbeat("audit", audited, "--json", "--since", "1h")[1].splitlines()) == len(lines)


def test_the_command_verifies_and_names_what_was_changed(offbeat: Any, audited: Path, tmp_path: Path) -> None:
    last = len(list(audit_rows(read_run(audited))))
    code, said, _ = offbeat("audit", audited, "--verify")
    assert (code, f"{last} rows are as they were written; head {last}:" in said) == (0, True)
    head = said.partition("head ")[2].split()[0]
    assert offbeat("audit", audited, "--verify", "--head", head)[0] == 0
    for number, (change, why) in enumerate({
        "UPDATE audit SET line = replace(line, 'completed', 'failed') WHERE seq = 2": "row 2 is not as",
        "DELETE FROM audit WHERE seq = 3": "row 3 is missing",
        f"DELETE FROM audit WHERE seq = {last}": f"row {last} of the head is missing",
        f"INSERT INTO audit SELECT {last + 1}, line, hash FROM audit WHERE seq = 1": f"row {last + 1} is not",
    }.items()):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        place = copied(audited, tmp_path / str(number), change)
        code, said, error = offbeat("audit", place, "--verify", "--head", head)
        assert code == 1
        assert why in said
        assert "is not as it was written (1 of its rows)" in error
    code, said, _ = offbeat("verify", copied(audited, tmp_path, "DELETE FROM audit WHERE seq = 3"))
    assert (code, "the audit's row 3 is missing" in said) == (1, True)


def test_a_run_without_an_audit_is_shown_and_verified_as_such(
    offbeat: Any, audited: Path, tmp_path: Path
) -> None:
    place = copied(audited, tmp_path, "DROP TABLE audit")
    code, said, _ = offbeat("audit", place, "--verify")
    assert (code, "has no audit" in said) == (0, True)
    assert offbeat("audit", place, "--json")[:2] == (0, "")


def test_wrong_usage_is_said_in_a_line(offbeat: Any, audited: Path) -> None:
    for options, why in {
        (audited, "--head", "1:00"): "--head 1:00 is for a check: give --verify too",
        (audited, "--verify", "--head", "1:00"): "give SEQ:HASH",
        (audited, "--verify", "--json"): "--verify reads the whole chain",
        (audited, "--since", "yesterday"): "--since yesterday is not allowed",
    }.items():
        code, _, said = offbeat("audit", *options)
        assert (code, why in said, said.count("\n")) == (2, True, 1), said
