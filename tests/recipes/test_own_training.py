"""Recipes that take data, losses, steps and metrics from a user's module in the current directory."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offbeat.cli.commands import app
from offbeat.core.errors import UsageError
from offbeat.recipes import load_recipe
from offbeat.recipes.build import make_learner, run_recipe
from offbeat.runs.record import read_run
from tests.forks import OFFBEAT, Fork

MODULE = """
import numpy as np
import torch
from torch.nn import functional

import offbeat as ob

from offbeat.data import Dataset, Source, federate


def points(count, seed):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


@ob.expose
def whole(count=60):
    return Dataset(*points(count, 1), classes=2), Dataset(*points(30, 2), classes=2)


@ob.expose
def hospitals(count=60):
    train, test = whole(count)
    return Source("hospitals", train, test, np.arange(count) % 3, ("a", "b", "c"))


@ob.expose
def divided():
    return federate([Dataset(*points(20, i), classes=2) for i in range(3)], whole()[1], validation=0.25)


@ob.expose
def unlabelled():
    return points(60, 1)[0]


@ob.expose
def nothing():
    return None


@ob.expose
def broken():
    return 1 / 0


@ob.expose
def focal(output, target):
    each = functional.cross_entropy(output, target, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


@ob.expose
def step(module, batch):
    x, y = batch
    return functional.cross_entropy(module(x), y, label_smoothing=0.1)


@ob.expose
def scored(module, batch):
    return module(batch[0]), batch[1]


@ob.expose
def sensitivity(scores, target):
    return (scores.argmax(1)[target == 1] == 1).double().mean()
"""

ALLOW = ["clinic_task", "clinic_taks"]
RECIPE = """
clients: 3
data: {dataset: "clinic_task:whole", partition: {kind: iid}}
model: {name: mlp, hidden: [8]}
training: {lr: 0.2, batch_size: 8}
loss: clinic_task:focal
metrics: [balanced_accuracy, "clinic_task:sensitivity"]
algorithms:
  fedbuff: {size: 2, steps: 4}
  fedavg: {steps: 4}
until: {versions: 4}
evaluate: {versions: 2}
seeds: 1
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "clinic_task", raising=False)
    Path("clinic_task.py").write_text(MODULE, encoding="utf-8")
    Path("own.yaml").write_text(RECIPE, encoding="utf-8")
    return "own.yaml"


def learner(recipe: str, *sets: str) -> Any:
    return make_learner(load_recipe(recipe, sets=sets), ALLOW)


def test_a_run_has_the_users_loss_and_metrics(recipe: str, tmp_path: Path) -> None:
    loaded = load_recipe(recipe, sets=["algorithm=fedbuff"])
    run = run_recipe(loaded, out=tmp_path / "run", allow=ALLOW)
    assert {"loss", "balanced_accuracy", "sensitivity"} <= set(run.metrics[-1])
    plain = run_recipe(loaded.model_copy(update={"loss": "cross_entropy"}), out=None, allow=ALLOW)
    assert plain.metrics[0]["loss"] > run.metrics[0]["loss"]  # the focal loss of the same weights is smaller
    assert read_run(tmp_path / "run").recipe["loss"] == "clinic_task:focal"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((), "data.partition = iid divides nothing: data.dataset clinic_task:divided returned data"),
        (("data.partition={kind: dual_dirichlet}",), ""),
    ],
)
def test_a_partition_of_data_that_are_divided_is_told_of(
    sets: tuple[str, ...], said: str, recipe: str, caplog: pytest.LogCaptureFixture
) -> None:
    learner(recipe, "data.dataset=clinic_task:divided", *sets)
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


def test_a_comparison_of_a_users_module_from_the_command_line(recipe: str) -> None:
    result = CliRunner().invoke(
        app, ["compare", recipe, "--out", "runs", "--workers", "1", "--allow", "clinic_task"]
    )
    assert result.exit_code == 0, result.output
    found = [read_run(Path("runs", label, "seed-0")) for label in ("fedbuff", "fedavg")]
    assert [record.status for record in found] == ["finished", "finished"]
    assert all("sensitivity" in record.evaluations()[-1].found for record in found)


def test_workers_train_with_a_users_functions(recipe: str) -> None:
    """In a process of its own, as a user starts it: workers import the module of its current directory."""
    allow = ("--allow", "clinic_task")
    for workers in ("1", "0"):
        begun = Fork(OFFBEAT, "run", recipe, "--workers", workers, "--out", f"with-{workers}", *allow)
        assert begun.wait(300) == 0, begun.communicate()
        begun.communicate()
    there, here = (read_run(Path(f"with-{workers}")) for workers in (1, 0))
    assert there.evaluations() == here.evaluations()


@pytest.mark.parametrize(
    ("sets", "samples"),
    [
        (["data.options.count=90"], [30, 30, 30]),
        (["data.partition={kind: label_dirichlet, min_size: 1, alpha: 100}"], None),
        (["data.dataset=clinic_task:hospitals", "data.partition={kind: natural}"], [20, 20, 20]),
        (["data.dataset=clinic_task:divided"], [15, 15, 15]),
        (["personal=[layers.0.*]"], [20, 20, 20]),
    ],
)
def test_data_of_ones_own(recipe: str, sets: list[str], samples: list[int] | None) -> None:
    found = learner(recipe, *sets)
    sizes = [found.samples(client) for client in range(found.clients)]
    assert sizes == samples or (samples is None and sum(sizes) == 60)
    assert found.evaluate(found.initial(0))["sensitivity"] >= 0


def test_a_step_of_ones_own(recipe: str) -> None:
    found = learner(
        recipe, "loss=null", "step=clinic_task:step", "evaluate_batch=clinic_task:scored", "metrics=[auroc]"
    )
    assert set(found.evaluate(found.initial(0))) == {"loss", "auroc"}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["loss=cross_entopy"], 'did you mean "cross_entropy"'),
        (["loss=clinic_task:fokal"], "loss clinic_task:fokal: the module clinic_task has no fokal"),
        (["loss=clinic_taks:focal"], "loss clinic_taks:focal: there is no module clinic_taks"),
        (["step=step"], "step = 'step' is not allowed"),
        (["metrics=[clinic_task:hit]"], "metrics.hit clinic_task:hit: the module clinic_task has no hit"),
        (["metrics=[f1, clinic_task:f1]"], "has a name twice"),
        (["metrics=[acuracy]"], '"acuracy" is unknown; did you mean "accuracy"'),
        (["step=clinic_task:step"], "loss and step: give one of them"),
        (["personal=[layer.*]"], "'layer.*' matches no tensor"),
        (["data.dataset=clinic_task:nothing"], "data.dataset clinic_task:nothing returned a NoneType"),
        (["data.dataset=clinic_task:broken"], "clinic_task.py:44: ZeroDivisionError: division by zero"),
        (
            ["data.dataset=clinic_task:divided", "clients=4"],
            "clients = 4, and data.dataset clinic_task:div",
        ),
        (
            ["data.dataset=clinic_task:unlabelled", "data.partition={kind: shards}"],
            "data.partition 'shards' divides by class, which data.dataset clinic_task:unlabelled has not",
        ),
        (
            ["data.dataset=clinic_task:divided", "data.validation=0.2"],
            "data.validation = 0.2 is not allowed: data.dataset clinic_task:divided returned data that are",
        ),
        (
            ["data.dataset=clinic_task:unlabelled", "data.partition={kind: natural}"],
            "divides by groups, and data.dataset clinic_task:unlabelled returned none: return ",
        ),
        (["data.samples=10"], "are for built-in datasets: let clinic_task:whole return"),
        (
            ["data.dataset=digits", "data.options.count=3"],
            "dataset 'digits' has no options, so count is not allowed",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(recipe: str, sets: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        learner(recipe, *sets).initial(0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clients_hold_out_a_share_of_data_of_ones_own(recipe: str) -> None:
    own = learner(recipe, "data.validation=0.25")
    assert [(own.samples(client), own.held_out(client)) for client in range(3)] == [(15, 5)] * 3
