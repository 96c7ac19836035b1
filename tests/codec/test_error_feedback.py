"""Error feedback: what one update leaves out is in the next one, and nothing is lost or counted twice."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.codec import ErrorFeedback, Identity, Int8, Qsgd, Rounded, SparseQuantised, TopK
from offbeat.core.error_feedback import RESIDUAL, with_new_residual, with_old_residual, with_residual
from offbeat.core.errors import UsageError
from offbeat.core.model import Tensors
from offbeat.models.specs import LogisticSpec, ModelMaker
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.messages import UpdateSubmission
from offbeat.runs.record import read_run
from tests.codec.codec_cases import rng
from tests.net.support import shares_of_digits, torch_left_alone
from tests.sampling import examples
from tests.sim.sim_worlds import CALM, WORLDS, digits, make, outcome

TRAINING = ob.Training(lr=0.1, batch_size=20)
FEW = ErrorFeedback(of=TopK(fraction=0.05))


def step(codec: Any, delta: torch.Tensor, state: Tensors) -> tuple[torch.Tensor, Tensors]:
    """What is sent of a change, and the state after it."""
    vector = with_residual(codec, delta, state.get(RESIDUAL))
    sent, _ = codec.apply(vector, None, rng())
    return sent, with_new_residual(codec, state, vector, sent)


def test_golden_numbers() -> None:
    codec, state, sent, left = ErrorFeedback(of=TopK(fraction=0.5)), Tensors(), [], []
    for delta in ((1.0, 0.0), (0.4, 0.3), (0.1, 0.5)):
        out, state = step(codec, torch.tensor(delta), state)
        sent.append(out)
        left.append(state[RESIDUAL])
    assert torch.allclose(torch.stack(sent), torch.tensor([[1.0, 0.0], [0.4, 0.0], [0.0, 0.8]]))
    assert torch.allclose(torch.stack(left), torch.tensor([[0.0, 0.0], [0.0, 0.3], [0.1, 0.0]]), atol=1e-7)


@examples(50)
@given(
    st.sampled_from([TopK(fraction=0.2), Int8(), Rounded(), TopK(levels=4), SparseQuantised(fraction=0.3)]),
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
)
def test_what_was_sent_and_what_is_left_are_all_changes(codec: Any, seeds: list[int]) -> None:
    state, sent, changes = Tensors(), torch.zeros(50), torch.zeros(50)
    for seed in seeds:
        delta = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        out, state = step(ErrorFeedback(of=codec), delta, state)
        sent, changes = sent + out, changes + delta
    assert torch.allclose(sent + state[RESIDUAL], changes, atol=1e-4)


def test_a_codec_that_loses_nothing_has_no_residual() -> None:
    delta = torch.randn(30)
    sent, state = step(ErrorFeedback(of=Identity()), delta, {})
    assert torch.equal(sent, delta)
    assert not state[RESIDUAL].any()
    assert with_residual(TopK(), delta, delta) is delta
    assert with_new_residual(TopK(), {}, delta, delta) == {}


@pytest.mark.parametrize(
    "codec", [SparseQuantised(), TopK(levels=4), TopK(levels=1, fraction=0.05), SparseQuantised(levels=64)],
    ids=repr,
)  # fmt: skip
def test_few_levels_do_not_make_the_residual_grow_without_end(codec: Any) -> None:
    state, generator = Tensors(), torch.Generator().manual_seed(1)
    for _ in range(60):
        _, state = step(ErrorFeedback(of=codec), torch.randn(2000, generator=generator), state)
    assert state[RESIDUAL].norm() < 10 * 2000**0.5


def test_quantised_values_are_divided_by_what_rounding_adds() -> None:
    vector = torch.randn(2000)
    for levels, omega in ((4, 2000**0.5 / 4), (64, 2000 / (4 * 64**2))):
        codec = SparseQuantised(levels=levels)
        sent, bits = ErrorFeedback(of=codec).apply(vector, None, rng())
        plain, charged = codec.apply(vector, None, rng())
        assert torch.allclose(sent * (1 + omega), plain)
        assert bits == charged


class Noted(ob.TorchLearner):
    """Keeps each task's change."""

    def train(self, base: Any, task: Any, *rest: Any) -> Any:
        result = super().train(base, task, *rest)
        self.changes[task.task] = result.delta.clone()
        return result


@pytest.mark.parametrize("of", [TopK(), SparseQuantised()], ids=repr)
def test_each_client_of_a_radio_has_its_own_residual(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of updates that fit their bits; those that are not asked for leave it."""
    applied, apply = list[tuple[torch.Tensor, torch.Tensor]](), ErrorFeedback.apply

    def noted(codec: ErrorFeedback, vector: torch.Tensor, *given: Any) -> Any:
        sent, bits = apply(codec, vector, *given)
        applied.append((vector, sent))
        return sent, bits

    monkeypatch.setattr(ErrorFeedback, "apply", noted)
    plain = digits()
    learner = Noted(plain.module, plain.data, plain.training)
    learner.changes = {}
    algorithm = replace(make("wireless"), codec=ErrorFeedback(of=of))
    run = ob.simulate(algorithm, CALM, learner, seed=4, until=ob.Until(tasks=40))
    assert run.entries("discard")
    left, partly = dict[int, torch.Tensor](), 0
    for row, (vector, sent) in zip(run.entries("arrived"), applied, strict=True):
        change, residual = learner.changes[row["task"]], left.get(row["client"], torch.zeros(len(vector)))
        assert torch.equal(vector, change + residual)
        left[row["client"]], partly = vector - sent, partly + bool(residual.any())
    assert partly > 20


@pytest.mark.parametrize("name", ["fedbuff", "wireless"])
def test_tasks_that_are_trained_together_leave_the_same_bits(name: str) -> None:
    algorithm, learner = replace(make(name), codec=ErrorFeedback(of=TopK(fraction=0.2))), digits()
    world, until = WORLDS["hard"], ob.Until(tasks=40)
    one, three, all_of_them = (
        outcome(ob.simulate(algorithm, world, learner, seed=4, until=until, executor=ob.Batched(together)))
        for together in (1, 3, 64)
    )
    assert one == three == all_of_them


@pytest.mark.parametrize(
    "by", [{"noise": ob.Noise(multiplier=4)}, {"secure": ob.Secure(helpers=("anna", "bert", "cleo"))}],
    ids=["noise", "masks"],
)  # fmt: skip
def test_private_sums_refuse_it(by: dict[str, Any]) -> None:
    algorithm = replace(ob.fedbuff(size=3, steps=2), codec=FEW)
    privacy = ob.Privacy(clip=0.5, least=3, **by)
    with pytest.raises(UsageError, match="codec = 'error_feedback' cannot be used with privacy"):
        ob.simulate(algorithm, CALM, digits(), until=ob.Until(tasks=4), privacy=privacy)


def test_an_update_that_is_not_sent_leaves_the_residual() -> None:
    before = {RESIDUAL: torch.ones(3), "other": torch.zeros(1)}
    after = with_old_residual({"other": torch.ones(1)}, before)
    assert after[RESIDUAL] is before[RESIDUAL]
    assert after["other"].item() == 1.0


@pytest.mark.parametrize("codec", [Qsgd(), SparseQuantised(unbiased=True)], ids=repr)
def test_unbiased_codecs_are_refused(codec: Any) -> None:
    with pytest.raises(UsageError, match="which is unbiased, is not allowed"):
        ErrorFeedback(of=codec)


def test_int8_golden() -> None:
    values = torch.tensor([127.0, -127.0, 63.4, 0.5, 1.5, 0.0])
    got, bits = Int8().apply(values, None, rng())
    # The scale is 1: rounded to the nearest, ties to even.
    assert got.tolist() == [127.0, -127.0, 63.0, 0.0, 2.0, 0.0]
    assert bits == 6 * 8 + 32
    longer = torch.cat([torch.full((4096,), 1e-3), torch.tensor([1000.0])])
    apart, bits = Int8().apply(longer, None, rng())
    assert torch.allclose(apart, longer)
    assert bits == 8 * 4097 + 2 * 32
    payload = Int8().encode(longer, None, rng())
    assert len(payload) * 8 == bits
    assert torch.equal(Int8().decode(payload, 4097), apart)


def test_training_with_few_values_works_with_error_feedback_and_not_without() -> None:
    source = ob.load("digits", samples=600, test_samples=300)
    parts = [source.train.subset(p) for p in np.array_split(np.arange(600), 3)]
    data = ob.federate(parts, source.test)

    def accuracy(codec: Any) -> float:
        algorithm = replace(ob.fedavg(steps=5), codec=codec)
        learner = ob.TorchLearner(ModelMaker(LogisticSpec(), (64,), 10), data, TRAINING)
        run = ob.simulate(algorithm, ob.World(), learner, seed=3, until=ob.Until(versions=60))
        return float(run.metrics[-1]["accuracy"])

    whole, fed, few = accuracy(None), accuracy(FEW), accuracy(FEW.of)
    assert fed > few + 0.02
    assert fed > whole - 0.05


@pytest.mark.parametrize("codec", [FEW, ErrorFeedback(of=Int8())], ids=["top_k", "int8"])
def test_a_deployed_run_is_that_of_the_simulator(codec: Any, tmp_path: Path) -> None:
    (share,), test = shares_of_digits(1, samples=60, test_samples=40)
    algorithm, until = replace(ob.fedasync(steps=3), codec=codec), ob.Until(versions=5)
    learner = server_learner(LogisticSpec(), TRAINING, test)
    experiment = ob.Experiment(algorithm, learner, seed=3, until=until)

    async def story() -> None:
        async with serve(
            experiment, tmp_path / "run", "127.0.0.1:0", options=ServerOptions(clients=1)
        ) as run:
            await join(f"127.0.0.1:{run.port}", share, name="north", state=tmp_path / "site")
            await run.ended()

    with torch_left_alone():
        asyncio.run(story())
    data = ob.federate([share], test)
    simulated = ob.simulate(
        algorithm, ob.World(), ob.TorchLearner(ModelMaker(LogisticSpec(), (64,), 10), data, TRAINING),
        seed=3, until=until,
    )  # fmt: skip
    deployed = read_run(tmp_path / "run")
    # A server that is busy leaves evaluations out.
    expected = {row["version"]: row["loss"] for row in simulated.metrics}
    assert {row["version"]: row["loss"] for row in deployed.metrics}.items() <= expected.items()
    assert deployed.metrics[-1]["version"] == simulated.metrics[-1]["version"]
    if codec is not FEW:
        # A payload of chosen values is not exactly as long as charged.
        assert deployed.summary.bytes_up == simulated.summary.bytes_up


@pytest.mark.parametrize(("sent", "left"), [(True, 2.0), (False, 1.0)])
def test_a_held_update_keeps_both_residuals_until_it_is_decided(
    sent: bool, left: float, tmp_path: Path
) -> None:
    store = SiteStore(tmp_path, "north")
    store.begin("run")
    update = UpdateSubmission(7, 3, torch.ones(4), torch.zeros(0, dtype=torch.int64))
    pending = PendingUpdate(update, {RESIDUAL: torch.full((4,), 1.0)}, held=True)
    store.save(replace(pending, residual=torch.full((4,), 2.0)))
    store.close()
    again = SiteStore(tmp_path, "north")
    again.acknowledge(7, accepted=True, sent=sent)
    again.close()
    assert SiteStore(tmp_path, "north").state[RESIDUAL].tolist() == [left] * 4
