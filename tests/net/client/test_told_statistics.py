"""A site remembers of which data it has told statistics."""

from pathlib import Path

import pytest

from offbeat.core.errors import DamageError, RunError
from offbeat.net.client.told_statistics import FILE, RepeatedError, ToldStatistics


def test_what_is_told_outlives_the_process_and_is_told_again(tmp_path: Path) -> None:
    ToldStatistics(tmp_path).note("a", 37, 4)
    again = ToldStatistics(tmp_path)
    again.note("a", 37, 4)
    again.note("b", 41, 4)
    for samples in (36, 38, 39, 43, 78):  # 78 may be 37 and 41
        with pytest.raises(RepeatedError, match="in fewer than min_samples = 4 samples"):
            again.note("c", samples, 4)
    again.note("c", 60, 4)


def test_least_is_that_of_the_present_policy(tmp_path: Path) -> None:
    told = ToldStatistics(tmp_path)
    told.note("a", 37, 4)
    with pytest.raises(RepeatedError, match="min_samples = 10"):
        told.note("b", 46, 10)
    told.note("b", 46, 4)


def test_the_operator_accepts_one_answer(tmp_path: Path) -> None:
    told = ToldStatistics(tmp_path)
    told.note("a", 37, 4)
    with pytest.raises(RepeatedError) as refused:
        told.note("b", 38, 4)
    code = str(refused.value).rpartition("--accept ")[2]
    assert code not in refused.value.told
    accepting = ToldStatistics(tmp_path, [code])
    with pytest.raises(RepeatedError):
        accepting.note("c", 38, 4)
    accepting.note("b", 38, 4)
    ToldStatistics(tmp_path).note("b", 38, 4)


def test_nothing_is_told_that_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    told = ToldStatistics(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("offbeat.net.client.told_statistics.write_tensors", full)
        for _ in range(2):
            with pytest.raises(RunError, match="cannot write what is told"):
                told.note("a", 37, 4)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"none")
    with pytest.raises(DamageError, match="of which data the site has told statistics"):
        ToldStatistics(tmp_path)
