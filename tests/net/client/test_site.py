"""What a site brings to a run: models, losses and learners of its own; what does not fit is refused."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.data import own_data, without_clients
from offbeat.local.objectives import Plain
from offbeat.models.specs import MLPSpec, ModelMaker, NamedModel
from offbeat.named import load_named
from offbeat.net.client.first_batch import DataError
from offbeat.net.client.site import Site
from offbeat.net.run_spec import RunSpec, read_run_spec
from offbeat.net.server.server_learner import server_learner
from tests.net.support import run_spec

SEED = 3
X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20.0) % 2
WARD = """
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
import offbeat as ob

@ob.expose
def make_model(hidden=3, backbone=0):
    layers = [nn.Linear(4, hidden), nn.Linear(hidden, 1), nn.Flatten(0)]
    if backbone:
        layers[0].requires_grad_(False)
        layers[0].weight.data.fill_(backbone)
        layers[0].bias.data.zero_()
    return nn.Sequential(*layers)

def other_model(hidden=3):
    return nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 2), nn.Flatten(0))

def failing_model():
    raise ValueError("no weights here")

def no_model():
    return 7

@ob.expose
def loss(logits, target):
    return binary_cross_entropy_with_logits(logits, target)

@ob.expose
def share(logits, target):
    return float((logits > 0).float().mean())

@ob.expose
def schedule(steps=2):
    return ob.fedprox(mu=0.1, steps=steps)
"""


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the site's own, which the server has too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    (tmp_path / "a_ward_of_ours.py").write_text(WARD, encoding="utf-8")
    yield __import__("a_ward_of_ours")
    sys.modules.pop("a_ward_of_ours", None)


def spec_of(model: Any, algorithm: ob.Algorithm | None = None, **options: Any) -> RunSpec:
    """The run spec as a site reads it."""
    learner = ob.TorchLearner(model, without_clients(), ob.Training(lr=0.1), **options)
    return read_run_spec(run_spec(algorithm or ob.fedavg(steps=2), learner, SEED).document())


def trained(learner: ob.TorchLearner, client: int) -> Tensor:
    """The update of a task."""
    task = LocalTask(0, client, 0, 3, SEED)
    return learner.train(learner.initial(SEED), task, ob.fedavg(steps=3).objective).delta


def test_a_site_trains_the_runs_function_with_its_options_loss_and_metrics(ward: Any) -> None:
    spec = spec_of(
        partial(ward.make_model, hidden=5), loss=ward.loss, metrics={"auroc": "auroc", "s": ward.share}
    )
    assert spec.model == NamedModel("a_ward_of_ours:make_model", {"hidden": 5})
    site = Site.of((X, Y), allow=["a_ward_of_ours"])
    learner = site.make_learner(spec, 2)
    data = ob.federate([(X[:1], Y[:1]), (X[:1], Y[:1]), (X, Y)])
    central = ob.TorchLearner(partial(ward.make_model, 5), data, ob.Training(lr=0.1), ward.loss)
    assert torch.equal(trained(learner, 2), trained(central, 2))
    assert dict(learner.metrics or {}).keys() == {"auroc", "s"}  # type: ignore[call-overload]


@pytest.mark.parametrize("graph", [False, True])
def test_sites_are_told_the_options_of_the_training(ward: Any, graph: bool) -> None:
    learner = ob.TorchLearner(ward.make_model, without_clients(), ob.Training(cuda_graph=graph))
    spec = run_spec(ob.fedavg(steps=2), learner, SEED)
    assert read_run_spec(spec.document()) == spec
    assert spec.document()["training"]["cuda_graph"] is graph


def test_a_site_maps_the_runs_model_to_its_own(ward: Any) -> None:
    spec = spec_of(partial(ward.make_model, hidden=5), loss=functional.binary_cross_entropy_with_logits)
    assert spec.loss == "binary_cross_entropy_with_logits"  # a name that needs no module

    def mine(hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 1), nn.Flatten(0))

    for model in (mine, mine(5), NamedModel("a_ward_of_ours:make_model")):
        assert Site.of((X, Y), model).make_learner(spec, 0).initial(SEED).layout.parameters == 31


def test_a_learner_of_the_sites_own(ward: Any) -> None:
    spec = spec_of(ward.make_model, loss=ward.loss)
    own = ob.TorchLearner(
        ward.make_model, own_data(((X, Y), (X, Y))), ob.Training(lr=0.2, batch_size=5), ward.loss
    )
    site = Site.of(learner=own)
    assert (site.samples, site.steps_per_epoch, site.labels) == (20, 4, None)
    learner = site.make_learner(spec, 3)
    assert learner.training.lr == 0.2
    assert learner.evaluate_client(learner.initial(SEED), 3)[0] == 20


@pytest.mark.parametrize(
    ("model", "loss", "own", "says"),
    [
        (
            "make_model", None, Site.of((X, Y)),
            r"^the run's model a_ward_of_ours:make_model is not allowed: .*--allow a_ward_of_ours for all",
        ),
        (
            "make_model", "loss", Site.of((X, Y), lambda: 1),
            r"the run's loss a_ward_of_ours:loss is not allowed: .*give --allow a_ward_of_ours:loss, ",
        ),
        (
            "make_model", None, Site.of((X, Y), NamedModel("a_ward_of_ours:other_model")),
            r"parameter 1.weight is float32 \[1, 3\] in the run, and parameter float32 \[2, 3\] here",
        ),
        (
            "make_model", None, Site.of((X, Y), lambda: nn.Linear(4, 1)),
            r"parameter 0.weight is float32 \[3, 4\] in the run, and there is none here",
        ),
        (
            "make_model", None,
            Site.of((X, Y), lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1), nn.PReLU())),
            r"parameter 2.weight is not in the run",
        ),
        (
            "make_model", None, Site.of((X, Y), NamedModel("a_ward_of_ours:failing_model")),
            r"^--model a_ward_of_ours:failing_model: .*a_ward_of_ours.py:19: ValueError: no weights here$",
        ),
        (
            "make_model", None, Site.of((X, Y), NamedModel("a_ward_of_ours:no_model")),
            r"^--model a_ward_of_ours:no_model returned a int: it must return a torch.nn.Module",
        ),
        (
            "make_model", None, Site.of((X, Y), NamedModel("a_ward_of_ours:nothing")),
            r"^--model a_ward_of_ours:nothing: the module a_ward_of_ours has no nothing$",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_sentence(
    ward: Any, model: str, loss: str | None, own: Site, says: str
) -> None:
    spec = spec_of(getattr(ward, model), loss=getattr(ward, loss) if loss else None)
    with pytest.raises(ob.UsageError, match=says) as refused:
        own.make_learner(spec, 0)
    assert "\n" not in str(refused.value)


def test_other_frozen_weights_are_refused(ward: Any) -> None:
    spec = spec_of(partial(ward.make_model, backbone=0.5))
    assert [entry[0] for entry in spec.layout] == ["1.weight", "1.bias"]
    for weight, fits in ((0.5, True), (0.25, False)):
        site = Site.of((X, Y), ward.make_model(backbone=weight))
        if fits:
            site.make_learner(spec, 0)
        else:
            with pytest.raises(
                ob.UsageError, match=r"the frozen parameters of the model made here are not those"
            ):
                site.make_learner(spec, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"loss": functional.mse_loss},
            "the loss of the learner made here is not the run's: mse_loss here, and loss in",
        ),
        ({"metrics": ["auroc"]}, "the loss .*: the default here"),
    ],
)
def test_another_loss_is_refused(ward: Any, options: dict[str, Any], says: str) -> None:
    own = ob.TorchLearner(ward.make_model, own_data((X, Y)), **options)
    with pytest.raises(ob.UsageError, match=says):
        Site.of(learner=own).make_learner(spec_of(ward.make_model, loss=ward.loss), 0)


def test_other_metrics_are_refused(ward: Any) -> None:
    own = ob.TorchLearner(ward.make_model, own_data((X, Y)), metrics=["f1"])
    with pytest.raises(ob.UsageError, match=r"the metrics .*: f1 here, and auroc, f1 in the run"):
        Site.of(learner=own).make_learner(spec_of(ward.make_model, metrics=["f1", "auroc"]), 0)


def test_an_algorithm_of_ones_own(ward: Any) -> None:
    plain = replace(ob.fedavg(steps=2), name="mine", hyperparameters={"n": 3})
    spec = spec_of(ModelMaker(MLPSpec(), (4,), 2), plain)
    assert spec.algorithm == {"name": "mine", "n": 3}
    assert spec.objective() == ob.fedavg(steps=2).objective  # the site need not know it
    named = ob.algorithms.build(ob.ALGORITHMS, {"name": "a_ward_of_ours:schedule", "steps": 4}, load_named)
    spec = spec_of(ModelMaker(MLPSpec(), (4,), 2), named)
    assert spec.objective(["a_ward_of_ours"]) == named.objective
    with pytest.raises(
        ob.UsageError, match=r"algorithm a_ward_of_ours:schedule is not allowed: .*give --allow"
    ):
        spec.objective()


def test_what_cannot_be_served_is_refused_at_the_server(ward: Any) -> None:
    optimizer = partial(torch.optim.SGD, momentum=0.9)
    learner = ob.TorchLearner(
        ward.make_model, without_clients(), ob.Training(optimizer=lambda p, lr: optimizer(p, lr=lr))
    )
    with pytest.raises(ob.UsageError, match=r"training.optimizer is a function, which does not travel"):
        run_spec(ob.fedavg(steps=2), learner, SEED)
    with pytest.raises(
        ob.UsageError, match="model 'mlp' is made for the data's sample shape and number of classes"
    ):
        run_spec(ob.fedavg(steps=2), server_learner(MLPSpec()), SEED)
    with pytest.raises(ob.UsageError, match="a learner has its own training options and test data"):
        server_learner(learner, ob.Training())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a site needs data, or a learner"),
        ({"data": [0] * 0}, "no samples"),
        ({"data": 7}, "a int is no map-style dataset"),
    ],
)
def test_a_site_without_data(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ob.UsageError, match=says):
        Site.of(**arguments)


@pytest.mark.parametrize("given", ["at the start", "by the loop"])
def test_other_frozen_weights_of_a_loop_are_refused(given: str, ward: Any) -> None:
    """Of the module it starts from, and of the first module that it loads."""
    spec = spec_of(partial(ward.make_model, backbone=0.5))
    for weight, fits in ((0.5, True), (0.25, False)):
        module = ward.make_model(backbone=weight)

        def loop(task: ob.ClientTask, module: nn.Module = module) -> None:
            task.load_into(module)
            for _ in task.steps():
                pass
            task.submit()

        site = Site.of(learner=ob.LoopLearner(loop, module if given == "at the start" else None, 4))
        with (
            nullcontext()
            if fits
            else pytest.raises(ob.UsageError, match="the frozen parameters of the model")
        ):
            learner = site.make_learner(spec, 0)
            base = ob.TorchLearner(module, without_clients()).initial(0)
            learner.train(base, LocalTask(0, 0, 0, 2, 0), Plain())


def test_metrics_that_are_others_under_one_name_are_refused(ward: Any) -> None:
    def learner(metric: str, data: Any) -> ob.TorchLearner:
        return ob.TorchLearner(ward.make_model, data, metrics={"score": metric})

    spec = run_spec(ob.fedbuff(), learner("f1", without_clients()), 0)
    Site.of(learner=learner("f1", own_data((X, Y)))).make_learner(spec, 0)
    says = "the metrics of the learner made here are not the run's: score = auroc here, and score = f1 in"
    with pytest.raises(ob.UsageError, match=says):
        Site.of(learner=learner("auroc", own_data((X, Y)))).make_learner(spec, 0)


COLUMNS = {"x": ("age", "pressure", "dose", "weight")}
OTHER_ORDER = [2, 0, 3, 1]


def table(order: list[int] | None = None, names: tuple[str, ...] = COLUMNS["x"]) -> ob.Dataset:
    order = order or [0, 1, 2, 3]
    return ob.Dataset(X[:, order], Y.long(), 2, {"x": tuple(names[n] for n in order)})


def columns_spec(columns: tuple[str, ...] | None = COLUMNS["x"]) -> RunSpec:
    learner = server_learner(MLPSpec(), ob.Training(lr=0.1), None, (4,), 2, columns)
    return read_run_spec(run_spec(ob.fedavg(steps=2), learner, SEED).document())


def test_a_site_puts_its_columns_in_the_order_of_the_runs(caplog: pytest.LogCaptureFixture) -> None:
    spec = columns_spec()
    assert spec.columns == COLUMNS
    own = ob.TorchLearner(ModelMaker(MLPSpec(), (4,), 2), own_data(table(OTHER_ORDER)), spec.training)
    for site in (Site.of(table(OTHER_ORDER)), Site.of(learner=own), Site.of(table())):
        made = site.make_learner(spec, 1)
        assert isinstance(made, ob.TorchLearner)
        assert torch.equal(made.data.train.x, X)  # type: ignore[attr-defined]
    assert not caplog.messages
    Site.of(ob.Dataset(X, Y.long(), 2)).make_learner(spec, 1)
    assert caplog.messages == [
        "columns without names are taken by position, as if they were named: the train set"
    ]


@pytest.mark.parametrize(
    ("columns", "data", "says"),
    [
        (COLUMNS["x"], table(names=("age", "pressure", "dose", "size")), "x lacks weight and has size; give"),
        (
            COLUMNS["x"],
            ob.Dataset(X[:, :3], Y.long(), 2),
            r"has samples of shape \[3\] without names; give age",
        ),
        (None, table(), r"the run names none, .* serve with data.columns=\[age,pressure,dose,weight\], or"),
    ],
)
def test_other_columns_are_refused_at_joining(
    columns: tuple[str, ...] | None, data: ob.Dataset, says: str
) -> None:
    with pytest.raises(DataError, match=says) as refused:
        Site.of(data).make_learner(columns_spec(columns), 0)
    assert "\n" not in str(refused.value)
    assert "age" not in refused.value.told


def test_a_run_without_names_of_columns_has_none_to_tell() -> None:
    assert columns_spec(None).document()["columns"] == {}
    Site.of(ob.Dataset(X, Y.long(), 2)).make_learner(columns_spec(None), 0)


def test_a_name_that_no_site_would_take_is_refused_at_the_server() -> None:
    with pytest.raises(ob.UsageError, match=r"column 'a\\nb' cannot be told to sites: a name is printable"):
        columns_spec(("a\nb", "c", "d", "e"))
