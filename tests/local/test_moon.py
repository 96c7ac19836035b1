"""MOON's contrastive term against autograd of the printed formula, and what its frozen models leave alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import offbeat as ob
from offbeat.algorithms.moon import Contrastive
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.data import Dataset, federate
from offbeat.local.objectives import Plain

LR = 0.5


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Tanh(), nn.Linear(5, 3))


def learner(make=mlp) -> ob.TorchLearner:
    """One client, whose every batch is all it has."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(9, 4)).astype(np.float32))
    data = Dataset(x, torch.from_numpy(rng.integers(0, 3, size=9)), 3)
    return ob.TorchLearner(make(), federate(data, data, [np.arange(9)]), ob.Training(lr=LR, batch_size=9))


def elsewhere(model: Model, seed: int) -> torch.Tensor:
    """Another model's values, with positive variances."""
    noise = torch.randn(model.values.shape, generator=torch.Generator().manual_seed(seed))
    return model.values + 0.3 * noise.abs()


def train(
    of: ob.TorchLearner, objective: Objective, steps: int = 1, previous: torch.Tensor | None = None
) -> LocalResult:
    state = {} if previous is None else {"model": previous}
    return of.train(of.initial(0), LocalTask(0, 0, 0, steps, seed=3), objective, TaskInputs(state))


@pytest.mark.parametrize("mu", [0.1, 5.0])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_two_steps_are_those_of_the_printed_formula(mu, temperature):
    of = learner()
    x, y = of.data.train.x, of.data.train.y
    start = of.initial(0)
    previous = Model(start.layout, elsewhere(start, 1), start.integers)
    module = mlp()

    def z(model: dict[str, torch.Tensor]) -> torch.Tensor:
        first = {name: model[name] for name in ("0.weight", "0.bias")}
        return functional_call(module[:2], first, (x,))

    weights = start.state_dict()
    for _ in range(2):
        weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        near, far = (
            torch.exp(functional.cosine_similarity(z(weights), z(other.state_dict())) / temperature)
            for other in (start, previous)
        )
        contrastive = -torch.log(near / (near + far)).mean()
        loss = functional.cross_entropy(functional_call(module, weights, (x,)), y) + mu * contrastive
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {n: w - LR * g for (n, w), g in zip(weights.items(), gradients, strict=True)}
    expected = torch.cat([w.detach().flatten() for w in weights.values()]) - start.values
    found = train(of, Contrastive(mu, temperature), 2, previous.values).delta
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, train(of, Plain(), 2).delta, atol=1e-3)


def test_a_clients_first_task_is_plain():
    of = learner()
    assert torch.equal(train(of, Contrastive(5.0), 4).delta, train(of, Plain(), 4).delta)


def test_an_earlier_model_like_the_received_one_has_no_gradient():
    """What the paper's first round has, and a client without an earlier model leaves out."""
    of = learner()
    same = of.initial(0).values
    found, plain = train(of, Contrastive(5.0), 4, previous=same), train(of, Plain(), 4)
    assert torch.allclose(found.delta, plain.delta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, normed])
def test_the_client_keeps_its_model_with_its_buffers(make):
    of = learner(make)
    start = of.initial(0)
    first = train(of, Contrastive(1.0), 3)
    assert list(first.state) == ["model"]
    assert torch.allclose(first.state["model"], start.values + first.delta, atol=1e-6)
    kept = first.state["model"].clone()
    second = train(of, Contrastive(1.0), 3, previous=first.state["model"])
    assert torch.equal(first.state["model"], kept)
    assert not torch.equal(second.state["model"], kept)


def test_the_frozen_models_leave_buffers_and_random_draws_alone():
    of = learner(normed)
    d, previous = of.initial(0).layout.parameters, elsewhere(of.initial(0), 2)
    plain, contrastive = train(of, Plain()), train(of, Contrastive(5.0), previous=previous)
    assert torch.equal(contrastive.delta[d:], plain.delta[d:])  # one forward's statistics
    assert not torch.allclose(contrastive.delta[:d], plain.delta[:d], atol=1e-3)
    assert train(of, Contrastive(5.0), 4, previous).integers.tolist() == [4]
    one, other = train(of, Contrastive(0.0), 4, previous), train(of, Plain(), 4)
    assert torch.equal(one.delta, other.delta)  # the same dropout at each step


def test_the_received_models_buffers_are_those_it_came_with():
    """By the second step the module's own have moved."""
    of = learner(normed)
    found, plain = train(of, Contrastive(5.0), 4, previous=of.initial(0).values), train(of, Plain(), 4)
    assert torch.allclose(found.delta, plain.delta, rtol=0, atol=1e-6)


def test_the_loss_reported_is_the_loss_alone():
    of = learner()
    previous = elsewhere(of.initial(0), 1)
    assert train(of, Contrastive(5.0), previous=previous).metrics == train(of, Plain()).metrics


def test_a_module_without_a_linear_layer_is_refused():
    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    with pytest.raises(UsageError, match="Line has no linear layer"):
        train(learner(Line), Contrastive(1.0))
