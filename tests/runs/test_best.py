"""The best version is that of the recorded evaluations, whenever a run is interrupted."""

from errno import EIO
from pathlib import Path

import pytest
import torch

from offbeat.core.errors import RunError
from offbeat.core.layout import Layout
from offbeat.core.metric_names import NamedMetric
from offbeat.core.model import Model
from offbeat.runs.best import BestModel, read_best
from offbeat.runs.schema import Metric

LAYOUT = Layout.flat(2)
ACCURACY = NamedMetric("accuracy", higher_is_better=True)


def model(value: float) -> Model:
    return Model(LAYOUT, torch.full((2,), value), torch.zeros(0, dtype=torch.int64))


def evaluation(version: int, accuracy: float) -> Metric:
    return Metric(version, version / 3, version, 0, 0, 0, None, accuracy)


def kept(directory: Path) -> float:
    found = read_best(directory, LAYOUT)
    assert found is not None
    return float(found.values[0])


@pytest.mark.parametrize("durable", [True, False])
def test_a_run_dies_between_the_new_best_version_and_its_evaluation(durable: bool, tmp_path: Path) -> None:
    best = BestModel(ACCURACY, tmp_path)
    best.keep(evaluation(1, 0.5), model(1.0))
    best.write()
    best.publish()
    best.keep(evaluation(4, 0.6), model(4.0))
    best.write()  # and here it dies
    assert kept(tmp_path) == 1.0
    recorded = [(1, 1 / 3), (4, 4 / 3)] if durable else [(1, 1 / 3)]
    again = BestModel(ACCURACY, tmp_path, recorded)
    assert kept(tmp_path) == (4.0 if durable else 1.0)
    assert again.improves(evaluation(5, 0.55)) is not durable
    assert [path.name for path in tmp_path.iterdir()] == ["best.safetensors"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_disk_that_fails_at_a_restart_is_told_in_a_sentence(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = BestModel(ACCURACY, tmp_path)
    best.keep(evaluation(1, 0.5), model(1.0))
    best.write()

    def fail(*_: object) -> None:
        raise OSError(EIO, "input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace" if durable else "unlink", fail)
        with pytest.raises(RunError, match="cannot write the best model to .*: input/output error"):
            BestModel(ACCURACY, tmp_path, [(1, 1 / 3)] if durable else [])
    assert (tmp_path / "best.new.safetensors").exists()
