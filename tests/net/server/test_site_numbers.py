"""Every number that a site sends and that enters a computation has a bound."""

from math import isfinite, isnan
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    Register,
    Registered,
    Rejected,
    TaskAssignment,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from tests.net.support import coordinator_from, terms_of

LAYOUT = Layout(
    (
        Entry("w", (3,), "float32", "parameter"),
        Entry("mean", (2,), "float32", "buffer"),
        Entry("count", (), "int64", "integer"),
    ),
    0,
)
ASKING = ob.fedasmu(epochs=2, size=1, period=1.0, threshold=3)
MOST = 2**63 - 1


def coordinator(algorithm: ob.Algorithm | None = None, **options: Any) -> Coordinator:
    model = Model.empty(LAYOUT)
    model.values.zero_()
    model.integers.zero_()
    info = RunInfo("r", {}, classes=2)
    return coordinator_from(
        algorithm or ob.fedasync(steps=6), model, terms_of(**{"guard": None, **options}), info, seed=1
    )


def answer(algorithm: ob.Algorithm | None, norm_bound: float | None, **fields: Any) -> UpdateAck:
    """What a site is told of an update with these fields, which is 0 in all others."""
    server = coordinator(algorithm, norm_bound=norm_bound)
    server.receive(0.0, "a", Register(30, 3))
    (task,) = [m for _, m in server.take().messages if isinstance(m, TaskAssignment)]
    zeros = {"delta": torch.zeros(5), "integers": torch.zeros(1, dtype=torch.int64), "lr": 0.1}
    server.receive(1.0, "a", UpdateSubmission(task.task, task.steps, **{**zeros, **fields}))
    (ack,) = [m for _, m in server.take().messages if isinstance(m, UpdateAck)]
    assert ack.accepted == (not server.rejected)
    return ack


def values(parameters: float = 0.0, buffers: float = 0.0) -> torch.Tensor:
    return torch.tensor([parameters] * 3 + [buffers] * 2)


@pytest.mark.parametrize(
    ("algorithm", "fields", "says"),
    [
        (None, {"delta": values(1e6)}, "the norm of the update's parameters is 1.73205e"),
        (None, {"delta": values(0, 1e6)}, "the norm of the update's buffers is 1.41421e"),
        (ob.scaffold(steps=6), {"shared": torch.full((3,), 1e6)}, "the update's shared vector is 1.73205e"),
    ],
)
def test_the_norm_bound_is_of_every_part(algorithm: Any, fields: dict[str, Any], says: str) -> None:
    assert says in answer(algorithm, 10.0, **fields).reason
    assert answer(algorithm, None, **fields).accepted
    small = {name: vector * 1e-6 for name, vector in fields.items()}
    assert answer(algorithm, 10.0, **small).accepted


@pytest.mark.parametrize(
    ("algorithm", "fields", "says"),
    [
        (None, {"integers": torch.tensor([6001])}, "changed by more than 6000, 1000 for each local step"),
        (None, {"integers": torch.tensor([-6001])}, "changed by more than 6000"),
        (None, {"integers": torch.tensor([MOST])}, "changed by more than 6000"),
        (None, {"integers": torch.tensor([-MOST - 1])}, "changed by more than 6000"),
        (ASKING, {"metrics": {"beta": 1.5}}, "'beta' is 1.5: it must be from 0 to 1"),
        (ASKING, {"metrics": {"beta": -1e300}}, "'beta' is -1e+300: it must be from 0 to 1"),
        (ASKING, {"metrics": {"reward": 1e29}}, "'reward' is 1e+29: it must be from -1e+06 to 1e+06"),
        (None, {"metrics": {"loss": 1.1e30}}, "'loss' is 1.1e+30: it must be from -1e+30 to 1e+30"),
        (None, {"metrics": {"": 1.0}}, "metric '' is not allowed: give it a name"),
        (None, {"metrics": {"a\nb": 1.0}}, r"metric 'a\nb' is not allowed: a metric's name has letters"),
        (None, {"lr": 5e-324}, "the learning rate must be 0, or from 1e-12 to 1e+06"),
        (None, {"lr": 1.1e6}, "the learning rate must be 0, or from 1e-12 to 1e+06"),
    ],
)
def test_integers_metrics_and_rates_are_bounded(algorithm: Any, fields: dict[str, Any], says: str) -> None:
    assert says in answer(algorithm, None, **fields).reason


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        (None, {"integers": torch.tensor([6000])}),
        (None, {"lr": 0.0, "metrics": {"loss": 1e30, "beta": 7.0}}),  # of nobody's use here
        (ASKING, {"metrics": {"beta": 1.0, "reward": -1e6}}),
    ],
)
def test_what_is_within_the_bounds_is_taken(algorithm: Any, fields: dict[str, Any]) -> None:
    assert answer(algorithm, None, **fields).accepted


def test_a_counter_that_has_come_far_goes_on() -> None:
    server = coordinator()
    server.receive(0.0, "a", Register(30, 3))
    for round_ in range(1, 6):
        (task,) = [m for _, m in server.take().messages if isinstance(m, TaskAssignment)]
        integers = task.model.integers + 6000
        server.receive(float(round_), "a", UpdateSubmission(task.task, 6, values(), integers, lr=0.1))
    assert int(server.tensors.model.integers) == 5 * 6000


def evaluated(found: list[dict[str, float]], until: ob.Until) -> tuple[dict[str, float], Coordinator]:
    """What an evaluation at sites comes to that have found these metrics, with very many samples each."""
    every = ob.Every(versions=1, at="clients")
    server = coordinator(clients=len(found), until=until, evaluate=every)
    for k in range(len(found)):
        server.receive(0.0, f"{k}", Register(30, 3, held_out=2**40))
    messages = server.take().messages
    name, task = next((n, m) for n, m in messages if isinstance(m, TaskAssignment))
    update = UpdateSubmission(task.task, 6, values(0.1), torch.zeros(1, dtype=torch.int64), lr=0.1)
    server.receive(1.0, name, update)
    for moment in (2.0, 3.0, 4.0):
        messages += server.take().messages
        for site, message in messages:
            if isinstance(message, EvaluationRequest):
                result = EvaluationResult(message.version, 2**40, found[int(site)])
                server.receive(moment, site, result)
        messages = []
        server.tick(moment)
    return dict(server.evaluations.last_metrics), server


def test_evaluations_of_opposite_extremes_do_not_end_the_server() -> None:
    metrics, _ = evaluated([{"loss": 1e308}, {"loss": -1e308}], ob.Until(tasks=9))
    assert isnan(metrics["clients.loss"])
    assert metrics["clients.loss.undefined"] == 2
    metrics, _ = evaluated([{"loss": 1e30}, {"loss": -1e30}, {"loss": 1e30}], ob.Until(tasks=9))
    assert isfinite(metrics["clients.loss"])


def test_one_sites_impossible_accuracy_does_not_end_the_run() -> None:
    until = ob.Until(tasks=9, metric="clients.accuracy", reaches=0.9)
    metrics, server = evaluated([{"accuracy": 0.1}, {"accuracy": 1e9}], until)
    assert metrics["clients.accuracy"] == 0.1
    assert server.driver.ending is None
    assert server.rejected == {"metrics": 2}  # of two versions


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (Register(1001, 10), "samples = 1001 is not allowed: this server takes max_samples = 1000"),
        (Register(2**40, 10), "max_samples = 1000"),
        (
            Register(10, 1, held_out=1001),
            "held_out = 1001 is not allowed: this server takes max_samples",
        ),
        (Register(1000, 10, held_out=1000), None),
    ],
)
def test_an_operators_cap_on_samples(register: Register, says: str | None) -> None:
    server = coordinator(max_samples=1000)
    server.receive(0.0, "a", register)
    first = server.take().messages[0][1]
    if says is None:
        assert isinstance(first, Registered)
        return
    assert isinstance(first, Rejected)
    assert says in first.reason
    assert server.rejected == {"data": 1}
