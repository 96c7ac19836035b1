"""A task in the hands of a loop: models in and out in every form, what it must do, what it is refused for."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import offbeat as ob
from offbeat.algorithms.fedasmu.merging import FreshMerge
from offbeat.algorithms.feddyn import Dynamic
from offbeat.algorithms.moon import Contrastive
from offbeat.algorithms.scaffold import ControlVariates
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, MergePoint, TaskInputs
from offbeat.core.objective import Objective
from offbeat.data import Dataset
from offbeat.local.objectives import Plain, Proximal

N, LR, BATCH = 30, 0.5, 8
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype(np.float32), RNG.integers(0, 3, size=N)
PLAIN = Plain()
TASK = LocalTask(task=7, client=0, base=2, steps=6, seed=3)
Loop = Callable[[ob.ClientTask], object]


def linear() -> nn.Linear:
    return nn.Linear(4, 3)


def learner(train: Loop, initial: Any = linear, samples: Any = N) -> ob.LoopLearner:
    return ob.LoopLearner(train, initial, samples, batch_size=BATCH)


def built_in() -> ob.TorchLearner:
    data = Dataset(torch.from_numpy(X), torch.from_numpy(Y), 3)
    return ob.TorchLearner(
        linear, ob.federate(data, None, [np.arange(N)]), ob.Training(lr=LR, batch_size=BATCH)
    )


def trained(
    train: Loop, objective: Objective = PLAIN, inputs: TaskInputs = NO_INPUTS, task: LocalTask = TASK
) -> LocalResult:
    own = learner(train)
    return own.train(own.initial(0).sharing(objective.shared_vectors), task, objective, inputs)


def expected(
    objective: Objective = PLAIN, inputs: TaskInputs = NO_INPUTS, task: LocalTask = TASK
) -> LocalResult:
    own = built_in()
    return own.train(own.initial(0).sharing(objective.shared_vectors), task, objective, inputs)


class Softmax:
    """Logistic regression in NumPy, which knows no PyTorch."""

    def __init__(self) -> None:
        self.weight, self.bias = np.zeros((3, 4), np.float32), np.zeros(3, np.float32)

    def read(self) -> Mapping[str, Any]:
        return {"weight": self.weight, "bias": self.bias}

    def write(self, arrays: Mapping[str, Any]) -> None:
        self.weight, self.bias = arrays["weight"].copy(), arrays["bias"].copy()

    def gradients(self, x: Any, y: Any) -> dict[str, Any]:
        scores = x @ self.weight.T + self.bias
        error = np.exp(scores - scores.max(1, keepdims=True))
        error = (error / error.sum(1, keepdims=True) - np.eye(3, dtype=np.float32)[y]) / len(x)
        return {"weight": error.T @ x, "bias": error.sum(0)}

    def __call__(self, task: ob.ClientTask) -> None:
        task.bind(self.read, self.write)
        for rows in task.steps(task.batches()):
            gradients = task.correct_gradients(self.gradients(X[rows.numpy()], Y[rows.numpy()]))
            self.weight = self.weight - LR * gradients["weight"]
            self.bias = self.bias - LR * gradients["bias"]
        task.submit(samples=N, lr=LR)


@pytest.mark.parametrize("objective", [Plain(), Proximal(0.3), Dynamic(0.1), ControlVariates()])
def test_a_numpy_loop_goes_where_the_built_in_learner_goes(objective: Objective) -> None:
    found, same = trained(Softmax(), objective), expected(objective)
    torch.testing.assert_close(found.delta, same.delta)
    assert set(found.state) == set(same.state)
    for name, tensor in same.state.items():
        torch.testing.assert_close(found.state[name], tensor)
    if same.shared is not None:
        torch.testing.assert_close(found.shared, same.shared)


def test_a_fresh_model_is_merged_through_read_and_write() -> None:
    fresh = replace(built_in().initial(1), values=torch.full((15,), 0.25))
    task = replace(TASK, fresh=MergePoint(after=3, version=4, clock=4))
    start, seen = built_in().initial(0).state_dict(), []

    class Seen(Softmax):
        def write(self, arrays: Mapping[str, Any]) -> None:
            seen.append((None if not seen else self.weight, arrays["weight"]))
            super().write(arrays)

    found = trained(Seen(), FreshMerge(), TaskInputs(fresh=fresh), task)
    (_, first), (before, after) = seen
    beta = found.metrics["beta"]
    np.testing.assert_array_equal(first, start["weight"].numpy())
    np.testing.assert_allclose(after, (1 - beta) * before + beta * 0.25, rtol=1e-5)
    assert 0 < beta < 1
    assert "reward" not in found.metrics
    assert found.state["merge"].tolist() == [1.0, 0.5]  # as they were


def plain(task: ob.ClientTask) -> None:
    """A loop that loads and hands in by name, and does its steps out of the task's sight."""
    module = linear()
    module.load_state_dict(task.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), LR)
    total = torch.zeros(())
    for rows in task.steps(task.batches()):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(torch.from_numpy(X)[rows]), torch.from_numpy(Y)[rows])
        total += loss.detach()
        loss.backward()
        optimizer.step()
    task.submit(module.state_dict(), metrics={"loss": float(total) / task.done, "seen": np.float32(2)})


def test_a_loop_that_only_takes_and_gives_tensors_has_the_same_bits() -> None:
    found, same = trained(plain), expected()
    assert found.delta.equal(same.delta)
    assert found.metrics == {**same.metrics, "seen": 2.0}


def test_a_data_loader_begins_again_after_an_epoch_and_an_iterator_must_be_long_enough() -> None:
    data = TensorDataset(torch.from_numpy(X))
    lengths: list[int] = []

    def loop(batches: Any) -> Loop:
        def train(task: ob.ClientTask) -> None:
            lengths.extend(len(x) for (x,) in task.steps(batches))
            task.submit(task.state_dict())

        return train

    trained(loop(DataLoader(data, batch_size=BATCH)))
    assert lengths == [8, 8, 8, 6, 8, 8]
    for none in (iter(DataLoader(data, batch_size=10)), []):
        with pytest.raises(ob.UsageError, match=r"batches ended after [03] of 6 steps: give one for each"):
            trained(loop(none))


def test_steps_without_batches_are_numbered_and_may_be_taken_one_by_one() -> None:
    seen: list[int] = []

    def train(task: ob.ClientTask) -> None:
        steps = task.steps()  # as a callback of a trainer does
        while (step := next(steps, None)) is not None:
            seen.append(step)
        task.submit(task.arrays())

    assert trained(train).delta.eq(0).all()
    assert seen == list(range(6))


def test_draws_follow_from_the_task() -> None:
    drawn: list[Any] = []

    def train(task: ob.ClientTask) -> None:
        drawn.append((task.rng.integers(2**40), [rows.tolist() for rows in task.batches(9, 2)]))
        torch.rand(task.number)  # as making a module does
        for _ in task.steps():
            drawn.append(torch.rand(1).item())
        task.submit(task.state_dict())

    trained(train)
    first, drawn = drawn, []
    torch.rand(5)
    trained(train)
    assert drawn == first
    trained(train, task=replace(TASK, task=8))
    assert not {str(a) for a in first} & {str(a) for a in drawn[7:]}


def test_what_a_loop_keeps_comes_back_in_the_clients_next_task() -> None:
    def train(task: ob.ClientTask) -> None:
        for _ in task.steps():
            pass
        task.state["count"] = task.state.get("count", torch.zeros(1)) + 1
        task.submit(task.state_dict(), lr=0.1)

    objective = Dynamic(0.1)

    def with_handles(task: ob.ClientTask) -> None:
        module = task.load_into(linear())
        for _ in task.steps():
            module(torch.from_numpy(X)).sum().backward()
            task.correct_gradients()
        task.state["count"] = task.state.get("count", torch.zeros(1)) + 1
        task.submit(lr=0.1)

    kept = trained(train).state
    assert {name: tensor.item() for name, tensor in kept.items()} == {"loop.count": 1.0}
    kept = trained(with_handles, objective, TaskInputs(kept)).state
    assert kept["loop.count"].item() == 2.0
    assert set(kept) == {"loop.count", "g"}


def test_frozen_tensors_of_a_module_stay_at_the_loop() -> None:
    def frozen() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        module[0].requires_grad_(False)
        return module

    def train(task: ob.ClientTask) -> None:
        module = frozen()
        nn.init.ones_(module[0].weight)
        task.load_into(module)
        assert module[0].weight.eq(1).all()
        for _ in task.steps():
            pass
        task.submit(module.state_dict())

    own = learner(train, frozen)
    model = own.initial(0)
    assert [e.name for e in model.layout.entries] == ["1.weight", "1.bias"]
    assert own.train(model, TASK, Plain()).delta.eq(0).all()


# ---- refusals ----


def steps_of(task: ob.ClientTask) -> None:
    for _ in task.steps():
        pass


def broken(task: ob.ClientTask) -> None:
    for step in task.steps():
        if step == 2:
            break
    task.submit(task.state_dict())


def late(task: ob.ClientTask) -> None:
    steps_of(task)
    task.load_into(linear())


def twice(task: ob.ClientTask) -> None:
    steps_of(task)
    task.submit(task.state_dict())
    task.submit(task.state_dict())


def submitting(*values: Any, **named: Any) -> Loop:
    def train(task: ob.ClientTask) -> None:
        steps_of(task)
        task.submit(*values, **named)

    return train


ZEROS = {"weight": np.zeros((3, 4)), "bias": np.zeros(3)}


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        (broken, "task 7 has 6 steps, and the loop did 2: do each step that task.steps gives"),
        (late, "a task's model is bound before its first step: call task.load_into earlier"),
        (twice, "task 7 is submitted already: submit once"),
        (submitting(), "task 7 has no model bound: give submit the tensors that the loop trained"),
        (submitting(ZEROS, samples=5), "is of a client with 30 samples, .* and the loop submits 5"),
        (submitting({"weight": np.zeros((3, 4))}), r"the model has a tensor bias \(3,\), which the loop"),
        (submitting({**ZEROS, "bias": np.zeros(2)}), r"bias has shape \(3,\), and the loop gives \(2,\)"),
        (submitting([np.zeros(3)]), "the model has 2 tensors, and the loop gives 1"),
        (submitting(ZEROS, metrics={"auc": "high"}), "metric 'auc' is a str: submit numbers"),
        (submitting(ZEROS, metrics={"$(id)": 1.0}), "is not allowed: a metric's name has letters"),
        (lambda task: task.penalized(torch.zeros(())), r"task\.penalized needs the weights: call"),
        (lambda task: task.load_into(nn.Linear(3, 3)), r"Linear is not the run's model: weight is a"),
        (lambda task: task.load_into(linear().requires_grad_(False)), "a frozen one, here"),
    ],
)
def test_a_loop_that_does_not_do_its_task_is_refused_in_one_line(train: Loop, complaint: str) -> None:
    with pytest.raises(ob.UsageError, match=complaint) as error:
        trained(train)
    assert "\n" not in str(error.value)


def test_a_loop_without_an_update_fails_its_task() -> None:
    with pytest.raises(ob.RunError, match="the loop ended task 7 of client 0 without an update: call"):
        trained(steps_of)


def test_an_update_that_is_not_finite_fails_its_task() -> None:
    def diverged(task: ob.ClientTask) -> None:
        for _ in task.steps():
            pass
        task.submit({name: array * np.nan for name, array in task.arrays().items()})

    with pytest.raises(ob.RunError, match="task 7 of client 0 has values that are not finite"):
        trained(diverged)


def test_a_factor_of_the_learning_rate_must_be_read() -> None:
    task = replace(TASK, lr_factor=2.5)
    with pytest.raises(ob.UsageError, match=r"has lr_factor = 2.5, which the loop did not read: multiply"):
        trained(plain, task=task)
    assert trained(lambda task: (task.lr_factor, plain(task)), task=task).delta.any()


@pytest.mark.parametrize(
    ("objective", "train", "complaint"),
    [
        (Contrastive(1.0), Softmax(), "Contrastive adds to the loss of each step, which takes a PyTorch"),
        (FreshMerge(), plain, r"the algorithm merges fresh models in mid-task: call task\.load_into"),
        (Proximal(0.1), plain, r"Proximal changes the gradients .* without task\.correct_gradients"),
        (FreshMerge(Proximal(0.1)), plain, "the algorithm merges"),
    ],
)
def test_what_cannot_be_done_without_the_weights_is_refused(
    objective: Objective, train: Loop, complaint: str
) -> None:
    with pytest.raises(ob.UsageError, match=complaint):
        trained(train, objective)


def test_an_algorithm_that_divides_by_the_learning_rate_is_told_it() -> None:
    def train(task: ob.ClientTask) -> None:
        module = task.load_into(linear())
        for _ in task.steps():
            module(torch.from_numpy(X)).sum().backward()
            task.correct_gradients()
        task.submit()

    with pytest.raises(
        ob.UsageError, match="is of ControlVariates, which needs the learning rate: give submit lr"
    ):
        trained(train, ControlVariates())


# ---- the learner ----


def test_initial_models_are_modules_arrays_or_functions_of_the_seed() -> None:
    given = {"coef": np.ones((2, 3)), "steps": np.array([4]), "bias": np.zeros(2, np.float16)}
    model = learner(plain, given).initial(0)
    assert {e.name: e.section for e in model.layout.entries} == {
        "coef": "parameter", "bias": "parameter", "steps": "integer",
    }  # fmt: skip
    arrays = model.arrays()
    assert {name: array.tolist() for name, array in arrays.items()} == {
        n: a.tolist() for n, a in given.items()
    }
    assert learner(plain, [np.ones(2)]).initial(0).state_dict().keys() == {"array_0"}
    assert learner(plain).initial(4).digest() == built_in().initial(4).digest()
    assert learner(plain).initial(4).digest() != learner(plain).initial(5).digest()
    module = linear()
    assert learner(plain, module).initial(4).state_dict()["bias"].equal(module.bias)
    with pytest.raises(ob.UsageError, match=r"initial: a has dtype .*: give arrays of real numbers"):
        learner(plain, {"a": np.array(["x"])}).initial(0)
    with pytest.raises(ob.UsageError, match="initial = None is for sites"):
        learner(plain, None).initial(0)
    with pytest.raises(ob.UsageError, match="batch_size = 0 is not allowed"):
        ob.LoopLearner(plain, linear, 3, batch_size=0)


def test_evaluation_and_labels_are_the_users() -> None:
    own = ob.LoopLearner(
        plain, linear, [4, 9], batch_size=4, labels=[[1, 3], [9, 0]],
        evaluate=lambda model: {"auroc": float(model.values.sum())},
        held_out=[0, 3], evaluate_client=lambda model, client: {"auroc": 0.5 * client},
    )  # fmt: skip
    model = own.initial(0)
    assert own.evaluate(model) == {"auroc": float(model.values.sum())}
    assert own.evaluate_client(model, 1) == (own.held_out(1), {"auroc": 0.5}) == (3, {"auroc": 0.5})
    assert own.evaluate_client(model, 0) == (0, {})
    assert (own.clients, own.samples(1), own.steps_per_epoch(1), own.label_counts(0)) == (2, 9, 3, [1, 3])
    with pytest.raises(ob.UsageError, match="held_out and evaluate_client belong together"):
        ob.LoopLearner(plain, linear, 3, held_out=1)
    bare = learner(plain)
    assert (bare.evaluate(model), bare.evaluate_client(model, 0), bare.label_counts(0)) == ({}, (0, {}), None)


# ---- tasks that end early, as in a deployment ----


class Watch:
    """Ends a task after some steps, or cancels it."""

    def __init__(self, stop: int | None = None, cancel: int | None = None) -> None:
        self.stop, self.cancel = stop, cancel

    def stops(self, steps: int) -> bool:
        if steps == self.cancel:
            raise InterruptedError("cancelled")
        return steps == self.stop

    def fresh(self, steps: int) -> None:
        return None


def test_a_recalled_task_ends_early_and_is_submitted() -> None:
    own, tasks = learner(plain), []

    def train(task: ob.ClientTask) -> None:
        tasks.append(task)
        plain(task)

    found = learner(train).train(own.initial(0), TASK, Plain(), watch=Watch(stop=4))
    assert found.delta.equal(trained(plain, task=replace(TASK, steps=4)).delta)
    assert (tasks[0].done, tasks[0].recalled, tasks[0].cancelled) == (4, True, False)


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_task_ends_its_steps_and_submits_nothing(fails: bool) -> None:
    seen: list[tuple[int, bool]] = []

    def train(task: ob.ClientTask) -> None:
        plain(task)
        seen.append((task.done, task.cancelled))
        if fails:
            raise ValueError("of no interest any more")

    own = learner(train)
    with pytest.raises(InterruptedError, match="cancelled"):
        own.train(own.initial(0), TASK, Plain(), watch=Watch(cancel=3))
    assert seen == [(3, True)]


# ---- Flower's clients ----


class FlowerClient:
    """As an existing `NumPyClient`: lists of arrays, a config, its own samples."""

    def __init__(self, told: str = "steps") -> None:
        self.told = told

    def fit(self, parameters: list[Any], config: Mapping[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        model = Softmax()
        model.weight, model.bias = parameters
        for _ in range(config["steps"]):
            gradients = model.gradients(X, Y)
            model.weight = model.weight - LR * config["lr_factor"] * gradients["weight"]
            model.bias = model.bias - LR * config["lr_factor"] * gradients["bias"]
        return [model.weight, model.bias], N, {self.told: config["steps"], "lr": LR, "loss": 1.5}


def flower(client: int) -> FlowerClient:
    return FlowerClient()


def test_an_existing_numpy_client_runs_in_a_simulation_also_in_worker_processes() -> None:
    own = learner(ob.NumPyClientLoop(flower), linear, [N] * 3)
    runs = [
        ob.simulate(
            ob.fedcompass(q_min=2, q_max=9), ob.World([1, 2, 5]), own, until=ob.Until(tasks=12), workers=w
        )
        for w in (0, 1)
    ]
    arrived = [row for row in runs[0].journal if row["name"] == "arrived"]
    assert {row["steps"] for row in arrived} > {2, 9}
    assert {row["loss"] for row in arrived} == {1.5}
    assert runs[0].model.digest() == runs[1].model.digest() != own.initial(0).digest()


def test_a_numpy_client_that_reports_no_steps_must_be_trusted() -> None:
    def silent(client: int) -> FlowerClient:
        return FlowerClient("epochs")

    with pytest.raises(
        ob.UsageError, match=re.escape("fit returned no metric 'steps' for a task of 6 steps: do")
    ):
        trained(ob.NumPyClientLoop(silent))
    assert trained(ob.NumPyClientLoop(silent, trust_steps=True)).metrics == {"epochs": 6.0, "loss": 1.5}


def test_what_gives_no_numpy_client_gets_a_line() -> None:
    for make in (FlowerClient, FlowerClient("epochs")):
        with pytest.raises(ob.UsageError, match=re.escape("give a function make(client)")):
            ob.NumPyClientLoop(make)  # type: ignore[arg-type]
    for returned in (FlowerClient, None):
        with pytest.raises(
            ob.UsageError, match=r"make\(\d\) returned .*: return an object with the method fit"
        ):
            trained(ob.NumPyClientLoop(lambda client, returned=returned: returned))  # type: ignore[misc]


@pytest.mark.parametrize("objective", [Proximal(0.1), FreshMerge(), Contrastive(1.0)])
def test_a_numpy_client_cannot_do_what_happens_between_steps(objective: Objective) -> None:
    with pytest.raises(ob.UsageError, match=r"Proximal changes|merges fresh models|Contrastive adds"):
        trained(ob.NumPyClientLoop(flower), objective)
