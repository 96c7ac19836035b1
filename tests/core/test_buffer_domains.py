"""Domains of buffers: variances stay at least 0, counters never fall, whatever clients send."""

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.buffer_domains import AnyBuffers, BufferDomains, domains_of
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from tests.sim.sim_worlds import CALM, digits, make, normed

NORMED = Model.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None)))
LAYOUT = NORMED.layout


def result(name: str = "1.running_var", change: float = 0.0, counts: int = 4) -> LocalResult:
    """An update whose change of one buffer is given."""
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    state = {key: torch.zeros_like(value) for key, value in module.state_dict().items()}
    state[name][1] = change
    module.load_state_dict(state)
    return LocalResult(Model.of(module).values, torch.full((2,), counts))


@pytest.mark.parametrize("name", ["1.running_var", "2.running_var"])
@pytest.mark.parametrize(
    ("change", "taken"), [(-0.9, True), (-1.0, True), (-1.1, False), (-2.2, False), (50.0, True)]
)
def test_a_variance_ends_at_0_or_above(name: str, change: float, taken: bool) -> None:
    reason = BufferDomains(LAYOUT).check(NORMED, 4, result(name, change))
    assert (reason is None) == taken
    assert (
        taken
        or reason == f"a running variance of its buffers ends at {1 + change:.3g}: it must be at least 0"
    )


def test_nan_is_no_variance() -> None:
    assert BufferDomains(LAYOUT).check(NORMED, 4, result(change=float("nan"))) is not None


@pytest.mark.parametrize(
    ("counts", "taken"), [(0, True), (4, True), (4000, True), (4001, False), (-1, False), (2**62, False)]
)
def test_a_counter_grows_with_the_steps(counts: int, taken: bool) -> None:
    assert (BufferDomains(LAYOUT).check(NORMED, 4, result(counts=counts)) is None) == taken


def test_a_mean_may_fall_below_0() -> None:
    assert BufferDomains(LAYOUT).check(NORMED, 4, result("1.running_mean", -3.0)) is None


def test_what_a_codec_has_rounded_is_taken() -> None:
    assert BufferDomains(LAYOUT, rounded=True).check(NORMED, 4, result(change=-1.1)) is None
    assert BufferDomains(LAYOUT, rounded=True).check(NORMED, 4, result(counts=-1)) is not None


def test_a_sum_below_0_keeps_the_value_before() -> None:
    """Two updates of one version, each honest: 1 − 0.9 − 0.9 < 0."""
    values = NORMED.values + 2 * result(change=-0.9).delta
    BufferDomains(LAYOUT).repair(values, NORMED.values)
    assert torch.equal(values, NORMED.values)


def test_a_model_without_buffers_has_no_domains() -> None:
    plain = Model.of(nn.Linear(2, 3))
    none = LocalResult(torch.full((plain.layout.values,), -9.0), torch.zeros(0, dtype=torch.int64))
    assert BufferDomains(plain.layout).check(plain, 1, none) is None
    assert isinstance(domains_of(plain.layout, False, "cpu"), AnyBuffers)
    assert isinstance(domains_of(LAYOUT, True, "cpu"), BufferDomains)


@pytest.mark.parametrize("name", ["fedavg", "fedasync", "fedbuff", "fedcompass", "fedasmu", "fedfa"])
def test_no_algorithm_takes_it(name: str) -> None:
    """A client whose change of a variance is −2.2 times its value is refused, and the others go on."""

    class Attacked(ob.TorchLearner):
        def train(self, base, task, *rest):  # type: ignore[no-untyped-def]
            trained = super().train(base, task, *rest)
            if task.client == 0:
                start = base.layout.parameters
                trained.delta[start:] = -2.2 * base.values[start:]
            return trained

    plain = digits(normed)
    learner = Attacked(plain.module, plain.data, plain.training)
    run = ob.simulate(make(name), CALM, learner, until=ob.Until(tasks=60))
    refused = [row for row in run.entries("lost") if "running variance" in str(row["reason"])]
    assert {row["client"] for row in refused} == {0}
    state = run.model.state_dict()
    assert all(bool((tensor >= 0).all()) for key, tensor in state.items() if key.endswith("running_var"))
    assert run.summary.loss is not None
