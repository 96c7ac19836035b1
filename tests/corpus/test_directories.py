"""What is done with recorded directories on any machine: read, replay, verify, report."""

import json
from pathlib import Path
from typing import Any

import pytest

from offbeat.runs.record import find_runs, read_run
from tests.corpus.archive import contents, describe, file_digests, formats, names, rows_text, sample, unpack
from tests.corpus.command_line import offbeat, own_options
from tests.sampling import mostly_thorough, thorough

REPORTED = (
    "fedavg", "fedavg-stopped", "fedasmu", "fedcompass-ties", "wireless", "noise", "secure-masked",
    "evaluated-at-clients", "own-step", "guard-skips", "trace",
)  # fmt: skip
SQLITE = ("run.db-wal", "run.db-shm")  # SQLite's own, which a reader may make or take away
ENTRIES = [(number, name) for number in formats() for name in names(number)]
SAMPLE = [(number, name) for number in formats() for name in sample(number)]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("number", "name"), mostly_thorough(ENTRIES, SAMPLE))
def test_a_directory_is_read_replayed_and_verified(number: int, name: str, tmp_path: Path) -> None:
    """The journal's rows are those that were recorded, and to read them changes no file."""
    entry = contents(number)["entries"][name]
    folder = unpack(number, name, tmp_path)
    assert file_digests(folder) == entry["files"]
    assert describe(folder) == entry["runs"]
    for place in entry["runs"]:
        check_commands(folder / place, entry)
    left = {path: d for path, d in file_digests(folder).items() if not path.endswith(SQLITE)}
    assert left == {path: d for path, d in entry["files"].items() if not path.endswith(SQLITE)}


def check_commands(run: Path, entry: dict[str, Any]) -> None:
    """`replay`, `verify` and `status` of a run."""
    record, own = read_run(run), own_options(entry)
    code, printed = offbeat("replay", run, *own)
    assert code == 0, printed
    assert printed.startswith("identical: ")
    code, printed = offbeat("verify", run, *own)
    assert (code, printed[:11]) == (0, "problems 0;"), printed
    assert printed.endswith(f"journal rows replayed {record.length}\n")
    code, printed = offbeat("replay", run, "--print")
    assert code == 0
    assert [json.loads(line) for line in printed.splitlines()] == json.loads(
        json.dumps(record.journal).replace("NaN", "null").replace("Infinity", "null")
    )
    code, printed = offbeat("status", run)
    assert code == 0, printed
    assert f"version {max((row.version or 0 for row in record.rows()), default=0)}," in printed
    assert rows_text(record)


@pytest.mark.parametrize(
    ("number", "kind"),
    [case for number in formats() for case in ((number, "some"), *thorough((number, "all")))],
)
def test_a_page_and_tables(number: int, kind: str, tmp_path: Path) -> None:
    """One report of some runs, or of all that the corpus has."""
    for name in names(number) if kind == "all" else REPORTED:
        unpack(number, name, tmp_path / "corpus")
    page, table, clients = tmp_path / "page.html", tmp_path / "table.csv", tmp_path / "clients.csv"
    options = ("-o", page, "--table", table, "--clients-csv", clients)
    code, printed = offbeat("report", tmp_path / "corpus", *options)
    assert code == 0, printed
    labels = {record.label for record in find_runs(tmp_path / "corpus")}
    text = page.read_text(encoding="utf-8")
    assert labels
    assert [label for label in labels if label not in text] == []
    assert len(table.read_text(encoding="utf-8").splitlines()) > len(labels)
