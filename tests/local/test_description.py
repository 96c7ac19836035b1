"""What is recorded of a learner: names where there are some, and numbers."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.local.description import describe_learner
from offbeat.local.losses import LOSSES
from offbeat.models.specs import MLPSpec, ModelMaker

DATA = ob.federate(ob.Dataset(torch.zeros(4, 3), torch.zeros(4)), None, [range(4)])


def make_module(width: int = 2, **_: Any) -> nn.Module:
    return nn.Linear(3, width)


def half(module: nn.Module, batch: Any) -> torch.Tensor:
    return module(batch[0]).mean() / 2  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        (make_module, f"{__name__}:make_module", {}),
        (partial(make_module, width=4), f"{__name__}:make_module", {"width": 4}),
        (partial(make_module, width=torch.tensor(4)), ":partial", {}),
        (lambda: make_module(), ":<lambda>", {}),
        (make_module(), ":Linear", {}),
    ],
)
def test_the_name_of_a_model(module: Any, name: str, options: dict[str, Any]) -> None:
    told = describe_learner(ob.TorchLearner(module, DATA), 0)
    assert told.model == {"name": name, "options": options}
    assert (told.sample, told.sample_shape, told.classes) == (("float32", (3,)), None, None)
    assert (told.loss, told.step, told.evaluate, told.metrics, told.frozen) == ("", "", "", None, "")


def test_a_built_in_model_and_what_is_trained() -> None:
    maker = ModelMaker(MLPSpec(hidden=(5,)), (3,), 2)
    told = describe_learner(ob.TorchLearner(maker, DATA, metrics={"acc": "accuracy", "own": half}), 0)
    assert told.model == {"name": "mlp", "hidden": [5]}
    assert (told.sample_shape, told.classes) == ((3,), 2)
    assert told.metrics == {"acc": "accuracy", "own": f"{__name__}:half"}
    named, loss = next(iter(LOSSES.items()))
    assert describe_learner(ob.TorchLearner(maker, DATA, loss=loss), 0).loss == named
    assert describe_learner(ob.TorchLearner(maker, DATA, step=half), 0).step == f"{__name__}:half"


def test_samples_that_are_no_single_tensor() -> None:
    x = {"a": torch.zeros(4, 3), "b": torch.zeros(4, 3)}
    learner = ob.TorchLearner(make_module, ob.federate(ob.Dataset(x), None, [range(4)]))
    assert describe_learner(learner, 0).sample is None
