"""Which directories hold a run."""

from pathlib import Path

import pytest

from offbeat.core.errors import DamageError
from offbeat.runs.record import read_run


def test_a_run_that_died_before_its_first_checkpoint_is_missed_if_its_database_is_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.db-wal").write_bytes(b"")
    with pytest.raises(DamageError, match=r"run\.db is missing"):
        read_run(tmp_path)
