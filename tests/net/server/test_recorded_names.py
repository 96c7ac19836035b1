"""Names that a state directory records: those of an algorithm and of columns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.algorithm import Algorithm
from offbeat.data import without_clients
from offbeat.experiment import Experiment
from offbeat.net import ServerOptions
from offbeat.net.server.checked_run import check_run
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.service import OpenRun
from offbeat.recipes.build import make_algorithm, recorded_algorithm

pytestmark = pytest.mark.usefixtures("one_thread")


CODEC = {"name": "fedbuff", "size": 2, "steps": 2, "with": {"codec": {"kind": "qsgd", "levels": 4}}}


def serve_once(directory: Path, algorithm: Algorithm | None = None) -> None:
    """Open the run of a wrapped module and close it again."""
    learner = ob.TorchLearner(lambda: nn.DataParallel(nn.Linear(2, 2)), without_clients(None))
    experiment = Experiment(algorithm or ob.fedavg(steps=2), learner, evaluate=ob.Every())
    opened = open_run(experiment, directory, ServerOptions(clients=2))
    assert isinstance(opened, OpenRun)
    opened.store.close()


def test_a_composition_with_a_codec_has_its_name(tmp_path: Path) -> None:
    composed = make_algorithm(CODEC)
    serve_once(tmp_path / "run", composed)
    assert recorded_algorithm(ob.read_run(tmp_path / "run")) == composed
    serve_once(tmp_path / "run", composed)
    with pytest.raises(ob.UsageError, match="another plan: algorithm"):
        serve_once(tmp_path / "run", make_algorithm(CODEC | {"steps": 3}))


def test_a_codec_that_is_given_alone_does_not_change_the_algorithm(tmp_path: Path) -> None:
    serve_once(tmp_path / "run", replace(ob.fedbuff(2, steps=2), codec=make_algorithm(CODEC).codec))
    assert ob.read_run(tmp_path / "run").algorithm == "fedbuff"


def open_tested(directory: Path, columns: tuple[str, ...] | None) -> ob.TorchLearner:
    """Open the run of a server whose test set has these columns; its learner, as it is used."""
    named = {} if columns is None else {"x": columns}
    x = torch.zeros(4, 2) if columns is None else torch.tensor([[float(len(name)) for name in columns]] * 4)
    learner = server_learner(lambda: nn.Linear(2, 2), test=ob.Dataset(x, torch.arange(4) % 2, 2, named))
    experiment = Experiment(ob.fedavg(steps=2), learner, evaluate=ob.Every())
    checked = check_run(experiment, directory, ServerOptions(clients=2))
    opened = open_run(experiment, directory, ServerOptions(clients=2))
    assert isinstance(opened, OpenRun)
    opened.store.close()
    assert isinstance(checked.learner, ob.TorchLearner)
    return checked.learner


def test_a_server_goes_on_with_the_columns_of_its_test_set_in_another_order(tmp_path: Path) -> None:
    open_tested(tmp_path / "run", ("age", "weight"))
    assert ob.read_run(tmp_path / "run").columns == {"x": ("age", "weight")}
    test = open_tested(tmp_path / "run", ("weight", "age")).data.test
    assert isinstance(test, ob.Dataset)
    assert test.x[0].tolist() == [3.0, 6.0]
    assert open_tested(tmp_path / "run", None).columns == {"x": ("age", "weight")}
    with pytest.raises(ob.UsageError, match="the test set has other columns than the run's: x lacks weight"):
        open_tested(tmp_path / "run", ("age", "dose"))


def test_a_server_whose_run_has_no_names_of_columns_goes_on_with_any(tmp_path: Path) -> None:
    open_tested(tmp_path / "run", None)
    assert open_tested(tmp_path / "run", ("age", "weight")).columns == {"x": ("age", "weight")}
