"""Sparse gradients train as dense ones do, wherever dense ones are needed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.objectives import Plain
from offbeat.runs.packing import pack_tensors, unpack_tensors

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # of an optimizer of PyTorch's
]
TOKENS = torch.randint(0, 20, (48, 5), generator=torch.Generator().manual_seed(0))
DATA = ob.federate((TOKENS, TOKENS[:, 0] % 2), None, np.array_split(np.arange(48), 3))


class Words(nn.Module):
    def __init__(self, sparse: bool, bag: bool) -> None:
        super().__init__()
        self.embedding = (nn.EmbeddingBag if bag else nn.Embedding)(20, 8, sparse=sparse)
        self.output = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embedding(tokens)
        return self.output(found if found.ndim == 2 else found.mean(1))


def learners(training: ob.Training, bag: bool = False, **options: Any) -> list[ob.TorchLearner]:
    return [
        ob.TorchLearner(lambda sparse=sparse: Words(sparse, bag), DATA, training, **options)
        for sparse in (True, False)
    ]


def sgd(**options: Any) -> ob.Training:
    return ob.Training(lr=0.05, batch_size=8, **options)


@pytest.mark.parametrize("bag", [True, False])
@pytest.mark.parametrize(
    "training",
    [
        sgd(), sgd(clip_norm=0.1), sgd(momentum=0.9), sgd(weight_decay=0.1), sgd(accumulate=2),
        sgd(momentum=0.9, weight_decay=0.1, clip_norm=0.1, optimizer_options={"nesterov": True}),
        sgd(optimizer="adam", clip_norm=1.0), sgd(optimizer="adamw", weight_decay=0.1),
        sgd(optimizer="rmsprop"), sgd(optimizer="adagrad"), sgd(optimizer="adagrad", weight_decay=0.1),
        sgd(optimizer=lambda parameters, lr: torch.optim.Adam(parameters, lr)),
        sgd(precision="float16", clip_norm=0.5),
    ],
)  # fmt: skip
def test_sparse_gradients_train_like_dense_ones(training: ob.Training, bag: bool) -> None:
    runs = [
        ob.simulate(ob.fedavg(steps=4), learner=learner, until=ob.Until(versions=2), evaluate=None)
        for learner in learners(training, bag)
    ]
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)


OPTIONS: dict[str, dict[str, Any]] = {
    "fedcompass": {"q_min": 2, "q_max": 6}, "fedasmu": {"size": 2, "period": 2.0}, "fedat": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "moon", "asofed", "fedat", "fedcompass"])
def test_objectives_read_dense_gradients(name: str) -> None:
    runs = [
        ob.simulate(
            ALGORITHMS[name](**OPTIONS.get(name, {"steps": 2})), ob.World([1.0, 1.5, 4.0]), learner,
            until=ob.Until(tasks=8), evaluate=None,
        )
        for learner in learners(sgd(clip_norm=1.0))
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)


def test_clients_trained_together() -> None:
    runs = [
        ob.simulate(
            ob.fedprox(steps=3), learner=learners(sgd(momentum=0.9))[0], until=ob.Until(versions=2),
            evaluate=None, executor=executor,
        )
        for executor in (ob.Batched(3), None)
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)


def test_private_examples() -> None:
    pytest.importorskip("opacus")
    found = [
        learner.train(learner.initial(0), LocalTask(0, 0, 0, 3, 0), Plain()).delta
        for learner in learners(sgd(weight_decay=0.1), examples=ExamplesPrivacy(delta=1e-3))
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("options", [{}, {"optimizer_options": {"nesterov": True}}])
def test_a_training_goes_on_from_a_sparse_momentum(options: dict[str, Any]) -> None:
    """With the bits of one that was not interrupted."""
    learner = learners(sgd(momentum=0.9, **options))[0]
    model, task = learner.initial(0), LocalTask(0, 0, 0, 6, 0)
    saved = unpack_tensors(pack_tensors(learner.train_until(model, task, Plain(), NO_INPUTS, 3)))
    found = learner.train_from(model, task, Plain(), NO_INPUTS, 3, saved).delta
    assert torch.equal(found, learner.train(model, task, Plain()).delta)


def test_an_optimizer_for_sparse_gradients_alone_names_what_it_refuses() -> None:
    with pytest.raises(ob.UsageError, match="SparseAdam does not support dense gradients"):
        ob.simulate(ob.fedavg(steps=1), learner=learners(sgd(optimizer="sparseadam"))[0], evaluate=None)


def test_a_users_loop_corrects_sparse_gradients() -> None:
    def loop(sparse: bool) -> Callable[[ob.ClientTask], None]:
        def train(task: ob.ClientTask) -> None:
            module = task.load_into(Words(sparse, bag=False))
            optimizer = torch.optim.SGD(module.parameters(), 0.1)
            for rows in task.steps(task.batches()):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(TOKENS[rows]), TOKENS[rows, 0] % 2)
                loss.backward()
                task.correct_gradients()
                optimizer.step()
            task.submit(lr=0.1)

        return train

    initial = Words(sparse=False, bag=False)
    runs = [
        ob.simulate(
            ob.fedprox(steps=3), learner=ob.LoopLearner(loop(sparse), initial, [16, 16]),
            until=ob.Until(versions=2), evaluate=None,
        )
        for sparse in (True, False)
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)
