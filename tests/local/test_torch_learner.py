"""The PyTorch learner against a training loop written out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from offbeat.core.streams import Purpose, stream
from offbeat.data import Dataset, FederatedData, federate
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.training import ExponentialDecay, Training

SIZES = [7, 12, 5]


def toy(shape: tuple[int, ...] = (4,)) -> FederatedData:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(sum(SIZES) + 6, *shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, size=len(x)))
    train, test = Dataset(x[:-6], y[:-6], 3), Dataset(x[-6:], y[-6:], 3)
    return federate(train, test, np.split(rng.permutation(sum(SIZES)), np.cumsum(SIZES)[:-1]))


def mlp() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def normed() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def with_dropout() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))


def by_hand(
    module: nn.Module, data: FederatedData, task: LocalTask, training: Training, lr: float, mu: float = 0.0
) -> tuple[torch.Tensor, float]:
    """Δ over the parameters, and the mean loss: plain loops and textbook updates, no torch.optim."""
    weights = [p.detach().clone() for p in module.parameters()]
    start = [w.clone() for w in weights]
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    own = data.client_indices(task.client).tolist()
    generator = stream(task.seed, Purpose.TRAIN, task.client, task.task)
    order: list[int] = []
    losses = []
    for step in range(1, task.steps + 1):
        if not order:
            order = generator.permutation(len(own)).tolist()
        batch, order = order[: training.batch_size], order[training.batch_size :]
        x, y = data.train.x[[own[i] for i in batch]], data.train.y[[own[i] for i in batch]]
        weights = [w.detach().requires_grad_() for w in weights]
        named = dict(zip([n for n, _ in module.named_parameters()], weights, strict=True))
        loss = functional.cross_entropy(torch.func.functional_call(module, named, (x,)), y)
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, weights)
        updated = []
        for i, (w, gradient, w_o) in enumerate(zip(weights, gradients, start, strict=True)):
            w, g = w.detach(), gradient + mu * (w.detach() - w_o)
            decay = training.weight_decay
            if training.optimizer == "sgd":
                g = g + decay * w
                first[i] = training.momentum * first[i] + g
                updated.append(w - lr * first[i])
                continue
            if training.optimizer == "adam":
                g = g + decay * w
            else:
                w = w * (1 - lr * decay)
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g * g
            m, v = first[i] / (1 - 0.9**step), second[i] / (1 - 0.999**step)
            updated.append(w - lr * m / (v.sqrt() + 1e-8))
        weights = updated
    delta = torch.cat([(w - s).reshape(-1) for w, s in zip(weights, start, strict=True)])
    return delta, sum(losses) / len(losses)


OPTIMIZERS = [
    Training("sgd", 0.3, batch_size=4),
    Training("sgd", 0.1, batch_size=4, momentum=0.9),
    Training("sgd", 0.1, batch_size=4, momentum=0.5, weight_decay=0.1),
    Training("adam", 0.01, batch_size=4),
    Training("adam", 0.01, batch_size=100, weight_decay=0.1),
    Training("adamw", 0.01, batch_size=5, weight_decay=0.3),
]


@pytest.mark.parametrize("training", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_training_is_the_textbook_loop(training, mu):
    data, module = toy(), mlp()
    learner = ob.TorchLearner(module, data, training)
    task = LocalTask(task=5, client=1, base=3, steps=8, seed=11)
    result = learner.train(learner.initial(0), task, Proximal(mu) if mu else Plain())
    delta, loss = by_hand(mlp(), data, task, training, training.lr, mu)
    assert torch.allclose(result.delta, delta, rtol=1e-4, atol=2e-6)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert result.delta.abs().max() > 1e-3


def test_the_learning_rate_decays_with_the_base_version():
    data, training = toy(), Training("sgd", 0.4, batch_size=4, decay=ExponentialDecay(0.5))
    learner = ob.TorchLearner(mlp(), data, training)
    task = LocalTask(0, 0, base=2, steps=3, seed=0)
    delta, _ = by_hand(mlp(), data, task, training, lr=0.1)
    assert torch.allclose(learner.train(learner.initial(0), task, Plain()).delta, delta, atol=1e-6)


def train(learner: ob.TorchLearner, **changes: int) -> torch.Tensor:
    task = LocalTask(**{"task": 4, "client": 1, "base": 0, "steps": 6, "seed": 3, **changes})
    return learner.train(learner.initial(0), task, Plain()).delta


@pytest.mark.parametrize("make", [mlp, with_dropout, normed])
def test_a_result_depends_on_nothing_but_its_arguments(make):
    data = toy((1, 4, 4) if make is normed else (4,))
    fresh = ob.TorchLearner(make(), data, Training("adam", 0.05, batch_size=4))
    expected = train(fresh)
    used = ob.TorchLearner(make(), data, Training("adam", 0.05, batch_size=4))
    start = used.initial(0)
    for client in (0, 1, 2):
        result = used.train(start, LocalTask(client, client, 0, 9, 8), Proximal(1.0))
        used.evaluate(Model(start.layout, start.values + result.delta, result.integers))
    torch.rand(3)
    assert torch.equal(train(used), expected)
    assert torch.equal(train(used), expected)


@pytest.mark.parametrize("change", [{"task": 5}, {"client": 2}, {"seed": 4}])
@pytest.mark.parametrize("make", [mlp, with_dropout])
def test_another_task_client_or_seed_trains_differently(make, change):
    learner = ob.TorchLearner(make(), toy(), Training(batch_size=4))
    assert not torch.equal(train(learner), train(learner, **change))


def test_dropout_draws_from_the_task_alone():
    """With one sample in every batch only dropout can differ."""
    whole = toy()
    data = federate(whole.train, whole.test, [np.array([c]) for c in range(3)])
    learner = ob.TorchLearner(with_dropout(), data, Training(batch_size=1))
    one = train(learner)
    assert torch.equal(one, train(learner))
    for change in ({"task": 5}, {"seed": 4}):
        assert not torch.allclose(one, train(learner, **change), atol=1e-5)
    plain = ob.TorchLearner(mlp(), data, Training(batch_size=1))
    assert torch.equal(train(plain), train(plain, task=5))


def test_the_callers_module_is_never_changed():
    module = normed()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    learner = ob.TorchLearner(module, toy((1, 4, 4)), Training(batch_size=4))
    model = learner.initial(0)
    values = model.values.clone()
    result = learner.train(model, LocalTask(0, 0, 0, 5, 0), Plain())
    learner.evaluate(model)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert module.training
    assert torch.equal(model.values, values)
    assert model.integers.tolist() == [0]
    assert result.integers.tolist() == [5]


def test_what_the_caller_does_to_the_module_afterwards_has_no_effect():
    module = mlp()
    learner = ob.TorchLearner(module, toy(), Training(batch_size=4))
    expected = learner.initial(0).values.clone()
    with torch.no_grad():
        module[0].weight.fill_(7.0)
    assert torch.equal(learner.initial(0).values, expected)


def test_batch_norm_statistics_are_part_of_the_update():
    data, module = toy((1, 4, 4)), normed()
    learner = ob.TorchLearner(module, data, Training("sgd", 0.1, batch_size=100, channels_last=False))
    model = learner.initial(0)
    result = learner.train(model, LocalTask(0, 2, 0, 1, 0), Plain())
    x = data.train.x[data.client_indices(2)]
    with torch.no_grad():
        z = module[0](x)
    mean = 0.1 * z.mean((0, 2, 3))  # from 0, with BatchNorm's momentum 0.1
    var = 0.1 * (z.var((0, 2, 3)) - 1)  # from 1
    d = model.layout.parameters
    assert torch.allclose(result.delta[d:], torch.cat([mean, var]), atol=1e-5)


def test_channels_last_changes_the_layout_only():
    results = [
        train(ob.TorchLearner(normed(), toy((1, 4, 4)), Training("sgd", 0.1, 4, channels_last=last)))
        for last in (True, False)
    ]
    assert torch.allclose(*results, rtol=1e-3, atol=1e-5)
    assert results[0].abs().max() > 1e-2


def test_evaluate():
    data = toy()
    module = mlp()
    learner = ob.TorchLearner(module, data)
    found = learner.evaluate(learner.initial(0))
    with torch.no_grad():
        output = module(data.test.x)
    log = output - output.exp().sum(1, keepdim=True).log()
    right = [int(row.argmax()) == int(y) for row, y in zip(output, data.test.y, strict=True)]
    loss = -sum(float(row[y]) for row, y in zip(log, data.test.y.tolist(), strict=True)) / 6
    assert found == {"loss": pytest.approx(loss, rel=1e-5), "accuracy": sum(right) / 6}


def test_evaluate_over_several_batches():
    module = mlp()
    learners = [ob.TorchLearner(module, toy(), ob.Training(evaluation_batch_size=size)) for size in (1000, 4)]
    whole, cut = (learner.evaluate(learner.initial(0)) for learner in learners)  # one of 6; of 4 and 2
    assert cut == {"loss": pytest.approx(whole["loss"], rel=1e-5), "accuracy": whole["accuracy"]}


def test_evaluate_turns_dropout_off():
    learner = ob.TorchLearner(with_dropout(), toy())
    train(learner)
    model = learner.initial(0)
    assert learner.evaluate(model) == learner.evaluate(model)


def test_a_loss_of_ones_own_has_no_accuracy():
    def squares(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((output.squeeze(-1) - y) ** 2).mean()

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    data = toy()
    learner = ob.TorchLearner(Line(), data, loss=squares)
    mean = float((data.test.y.float() ** 2).mean())
    assert learner.evaluate(learner.initial(0)) == {"loss": pytest.approx(mean)}


def test_a_maker_draws_the_first_model_from_the_runs_seed():
    learner = ob.TorchLearner(lambda: nn.Linear(4, 3), toy())
    assert torch.equal(learner.initial(1).values, learner.initial(1).values)
    assert not torch.equal(learner.initial(1).values, learner.initial(2).values)
    fixed = ob.TorchLearner(mlp(), toy())
    assert torch.equal(fixed.initial(1).values, fixed.initial(2).values)


def test_numbers_of_clients_samples_and_steps():
    learner = ob.TorchLearner(mlp(), toy(), Training(batch_size=5))
    assert learner.clients == 3
    assert [learner.samples(c) for c in range(3)] == SIZES
    assert [learner.steps_per_epoch(c) for c in range(3)] == [2, 3, 1]


@pytest.mark.parametrize("make", [with_dropout, lambda: with_dropout], ids=["module", "maker"])
def test_a_simulation_leaves_global_random_state_and_threads_alone(make):
    torch.manual_seed(5)
    state, numpy_state, threads = (
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),
        torch.get_num_threads(),
    )
    learner = ob.TorchLearner(make(), toy(), Training(batch_size=4))
    run = ob.simulate(
        ob.fedasync(2),
        world=ob.World(1.0),
        learner=learner,
        until=ob.Until(versions=5),
        evaluate=ob.Every(versions=1),
    )
    assert len(run.metrics) == 6
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.get_num_threads() == threads


def test_a_simulation_is_a_function_of_its_seed_whatever_the_global_state():
    def play(seed: int) -> Any:
        learner = ob.TorchLearner(with_dropout, toy(), Training(batch_size=4))
        return ob.simulate(
            ob.fedbuff(2, 3), world=ob.World(ob.laws.Normal(1.0)), learner=learner, seed=seed,
            until=ob.Until(versions=6),
        )  # fmt: skip

    one = play(1)
    torch.manual_seed(99)
    other = play(1)
    assert torch.equal(one.model.values, other.model.values)
    assert (one.journal, one.metrics) == (other.journal, other.metrics)
    assert not torch.equal(one.model.values, play(2).model.values)


@pytest.mark.parametrize(("device", "message"), [("tpu", "choose cpu"), ("cuda:0", "not on this machine")])
def test_a_device_that_is_not_there_is_refused(device, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=f"device = '{device}'.*{message}"):
        ob.TorchLearner(mlp(), toy(), Training(device=device))
