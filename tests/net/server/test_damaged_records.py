"""What a server reads at its start that is no text of its own is damage of its file, in one line."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from offbeat.core.errors import DamageError
from offbeat.net.secure.release_seeds import SecretsFile
from offbeat.net.server.durable_store import DurableStore
from tests.net.server.test_recovery_snapshot import Kind, directory_of, make

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["{", "[" * 100_000, '["a"]', "9" * 5000]
ROWS = {
    "labels": "UPDATE sites SET labels = ?",
    "audit": """INSERT INTO audit VALUES (999, ? || '"action":"site.revoke"', 'x')""",
}


def texts(function):
    return pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))(function)


@texts
@pytest.mark.parametrize("row", ROWS)
def test_rows_of_anothers_making_are_damage(row: str, text: str, tmp_path: Path) -> None:
    kind = Kind("fedasync")
    directory_of(kind, tmp_path / "d")
    with closing(sqlite3.connect(tmp_path / "d" / "run.db")) as database, database:
        database.execute("DELETE FROM checksums WHERE part = 'sites'")
        database.execute(ROWS[row], (text,))
    with pytest.raises(DamageError, match=r"run\.db cannot be read"):
        DurableStore(tmp_path / "d", make(kind))


@texts
def test_secrets_of_anothers_making_are_damage(text: str, tmp_path: Path) -> None:
    file = SecretsFile(tmp_path)
    with closing(sqlite3.connect(tmp_path / "secrets.db")) as database, database:
        database.execute("INSERT INTO seeds VALUES (1, ?, ?)", (text, b"0" * 32))
        database.execute("INSERT INTO sums VALUES (1, '[]', x'00')")
    for read in (file.read, file.read_sums):
        with pytest.raises(DamageError, match=r"secrets\.db cannot be read"):
            read()
    file.close()
