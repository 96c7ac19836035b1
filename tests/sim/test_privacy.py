"""Simulated runs with privacy: sums, noise, each client's budget, the guard, resumption and replay."""

import dataclasses
from collections import Counter
from math import sqrt
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import offbeat as ob
from offbeat import experiment
from offbeat.algorithms.privacy.private import sum_only
from offbeat.core.aggregator import UpdateSum
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.core.privacy.accounting import epsilon_of, largest_mu
from offbeat.core.privacy.privacy_options import Budget, Noise, Privacy, Secure
from offbeat.sim.replay import replay
from tests.sampling import thorough
from tests.sim.sim_worlds import CALM, Wrapped, make, mlp, on_disk, outcome

SECURE = Privacy(clip=5.0, secure=Secure())
NOISY = Privacy(clip=0.5, noise=Noise(multiplier=4.0, budget=Budget(epsilon=6.0, delta=1e-3)))
BANDS = Privacy(clip=0.5, noise=Noise(multiplier=6.0, bands=3, budget=Budget(epsilon=9.0, delta=1e-3)))
UNTIL = ob.Until(tasks=60)
RARELY = ob.Every(versions=1000)


def summed(name: str) -> ob.Algorithm:
    """The example of an algorithm; FedAT with one tier, as small ones are never released."""
    return ob.fedat(4, ratio=8.0) if name == "fedat" else make(name)


def run(learner, privacy, name="fedbuff", *, until=UNTIL, world=CALM, **more) -> ob.Run:  # type: ignore[no-untyped-def]
    return ob.simulate(
        summed(name), world, learner, seed=4, until=until, evaluate=RARELY, privacy=privacy, **more
    )


# ---- sums ----


class Recorded(GlobalModel):
    """Makes each version from the sum and, aside, from exact float64 sums with the same weights."""

    errors: ClassVar[list[float]] = []

    def _step(self, updates, command):  # type: ignore[no-untyped-def]
        grid, memory = self.release.plan.grid, {k: t.clone() for k, t in self.memory.items()}
        weights = dict(zip(command.tasks, command.note["weights"], strict=True))
        scaled = [command.note["scale"] * weights[u.task.id] / grid.q for u in updates]
        factors = [self._algorithm.aggregator.factor(u.task) for u in updates]
        total = sum(c * f * u.delta.double() for c, f, u in zip(scaled, factors, updates, strict=True))
        summed = UpdateSum(
            total.float(), scaled, [u.task for u in updates], [u.base for u in updates], command.note
        )
        exact = self._algorithm.aggregator.from_sum(summed, self.model, memory)
        step = super()._step(updates, command)
        self.errors.append(float((step - exact).norm() / exact.norm()))
        return step


@pytest.mark.parametrize(
    ("name", "bits", "most"),
    [("fedbuff", 4, 5e-3), *thorough(("feddyn", 0, 1e-5), ("fednova", 4, 5e-3), ("fedat", 4, 5e-3))],
)
def test_integer_sums_are_real_sums_with_the_same_weights(name, bits, most, learner, monkeypatch):
    monkeypatch.setattr(experiment, "GlobalModel", Recorded)
    monkeypatch.setattr(Recorded, "errors", [])
    run(learner, Privacy(clip=5.0, weight_bits=bits, secure=Secure()), name)
    assert len(Recorded.errors) > 5
    assert max(Recorded.errors) < most


def test_a_release_names_its_weights_and_the_factor_of_its_sum(learner):
    privacy = Privacy(clip=5.0, least=3, secure=Secure())
    for entry in run(learner, privacy).entries("aggregate"):
        tasks, weights = entry["tasks"], entry["weights"]
        assert len(set(entry["clients"])) == len(tasks) >= 3
        assert entry["scale"] == pytest.approx(1 / len(tasks))
        assert all(1 <= weight <= 15 for weight in weights)
        assert "epsilon" not in entry


def test_rounding_follows_from_the_seed_alone(learner):
    assert outcome(run(learner, SECURE)) == outcome(run(learner, SECURE))
    assert outcome(run(learner, NOISY)) == outcome(run(learner, NOISY))


@pytest.mark.parametrize("name", ["fedbuff", *thorough("feddyn", "fednova", "fedat", "fedcompass")])
@pytest.mark.parametrize("noise", [None, *thorough(Noise(multiplier=4.0, bands=3))])
def test_masks_change_no_bit(name, noise, learner):
    pytest.importorskip("cryptography")
    until = ob.Until(tasks=20 if name == "fedbuff" else 60)
    plain, masked = (
        outcome(run(learner, Privacy(clip=5.0, noise=noise, secure=Secure(masks=masks)), name, until=until))
        for masks in (False, True)
    )
    assert masked == plain


# ---- numbers of samples ----


class Counted(Wrapped):
    """A learner whose clients say that they have other numbers of samples."""

    def __init__(self, learner: ob.TorchLearner, counts: list[int]) -> None:
        super().__init__(learner)
        self.counts = counts

    def samples(self, client: int) -> int:
        return self.counts[client]

    def before(self, task: LocalTask) -> None:
        pass

    def steps_per_epoch(self, client: int) -> int:
        return -(-self.counts[client] // self.learner.batch_size)


def test_clients_tell_multiples_of_the_unit_and_these_are_the_weights():
    """The same run, to the last bit, as where they have so many; the samples that are trained on stay."""
    data = ob.load("digits")
    cuts = np.cumsum([130, 260, 333, 77])
    federated = ob.federate(data, None, np.split(np.arange(1000), cuts))  # 200 for the last
    learner = ob.TorchLearner(mlp, federated, ob.Training(lr=0.2, batch_size=20))
    told = [150, 300, 350, 100, 200]
    unit = dataclasses.replace(SECURE, samples_unit=50)
    world = dataclasses.replace(CALM, availability=ob.Availability(join=[0.0, 0.0, 0.0, 0.0, 9.0]))
    for where in (CALM, world):  # all at once; one after the other
        rounded = run(learner, unit, "fedavg", world=where)
        assert [e["samples"] for e in rounded.entries("joined")] == told
        assert [e["steps_per_epoch"] for e in rounded.entries("joined")] == [8, 15, 18, 5, 10]
        there = run(Counted(learner, told), SECURE, "fedavg", world=where)
        assert outcome(rounded) == outcome(there)
        assert outcome(rounded) != outcome(run(learner, SECURE, "fedavg", world=where))


def test_the_directory_of_a_run_has_the_numbers_that_are_told(tmp_path: Path):
    learner = ob.NoTraining(4, parameters=5, samples_per_client=7)
    privacy = Privacy(clip=1.0, samples_unit=4, noise=Noise(multiplier=1.0))
    ob.simulate(ob.feddyn(2), ob.World(clients=4), learner, until=ob.Until(versions=1), evaluate=None,
                privacy=privacy, out=tmp_path / "run")  # fmt: skip
    rows = ob.read_run(tmp_path / "run").select("SELECT client, samples FROM clients")
    assert list(rows) == [(client, 8) for client in range(4)]


# ---- noise ----


class Silent(Wrapped):
    """Every update is zero: what moves the model is the noise."""

    def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
        return LocalResult(torch.zeros_like(base.values), base.integers)


def test_the_noise_of_a_release_has_the_size_that_the_plan_says(learner):
    noise = Noise(multiplier=3.0)
    found = run(Silent(learner), Privacy(clip=0.5, noise=noise), until=ob.Until(versions=1))
    (release,) = found.entries("aggregate")
    step = found.model.values - learner.initial(4).values
    q, scale = 15, release["scale"]
    grid_step = 0.5 * 3 * q / (2**31 - 1 - 3 * q)
    assert float(step.std()) == pytest.approx(release["sigma"] * grid_step * scale / q, rel=0.1)
    assert float(step.std()) == pytest.approx(3.0 * 0.5 * scale, rel=0.1)


def test_releases_have_noise_of_their_own(learner):
    first = run(Silent(learner), NOISY, until=ob.Until(versions=1)).model.values - learner.initial(4).values
    second = run(Silent(learner), NOISY, until=ob.Until(versions=2)).model.values - learner.initial(4).values
    second -= first
    cosine = float(first @ second / first.norm() / second.norm())
    assert abs(cosine) < 0.15  # 922 parameters: 0.033 is one standard deviation


def test_later_bands_take_earlier_noise_back(learner):
    steps = []
    for versions in (1, 2):
        found = run(Silent(learner), BANDS, until=ob.Until(versions=versions))
        steps.append(found.model.values - learner.initial(4).values - sum(steps))
    first, second = steps
    scales = [e["scale"] for e in found.entries("aggregate")]
    first, second = first / scales[0], second / scales[1]
    assert float(first @ second / (first @ first)) == pytest.approx(-0.5, abs=0.15)  # e_1 = z_1 − e_0 / 2


# ---- the budget ----


def test_a_run_ends_when_arithmetic_by_hand_says_so():
    """Equal weights, all clients in every release: P = ⌊z² μ_max²⌋ releases, each at 1/z."""
    privacy = Privacy(clip=1.0, noise=Noise(multiplier=2.0, budget=Budget(epsilon=4.0, delta=1e-5)))
    algorithm, learner = ob.feddyn(2), ob.NoTraining(4, parameters=5)
    found = ob.simulate(algorithm, ob.World(clients=4), learner, until=UNTIL, evaluate=None, privacy=privacy)
    assert found.summary.versions == int(4 * largest_mu(4.0, 1e-5) ** 2) == 3
    assert found.stop_reason == "the privacy budget is spent: 0 clients have any left, 1 are needed"
    releases = found.entries("aggregate")
    expected = [epsilon_of(sqrt(p) / 2, 1e-5) for p in (1, 2, 3)]
    assert [e["epsilon"] for e in releases] == pytest.approx(expected, abs=1e-5)
    assert [e["mu"] for e in releases] == pytest.approx([sqrt(p) / 2 for p in (1, 2, 3)], abs=1e-6)
    assert all(e["epsilon"] < e["epsilon_strict"] < 1.1 * e["epsilon"] for e in releases)
    reasons = {e["reason"] for e in found.entries("left")}
    assert reasons == {"its privacy budget is spent (ε = 4 at δ = 1e-05)"}
    summary = {"mu": 0.866025, "epsilon": releases[-1]["epsilon"], "releases": 3, "spent": 4}
    assert {k: found.summary.privacy[k] for k in summary} == summary


def test_the_noise_follows_from_the_number_of_releases():
    noise = Noise(releases=7, budget=Budget(epsilon=3.0))
    found = ob.simulate(
        ob.feddyn(2), ob.World(clients=4), ob.NoTraining(4, parameters=5), evaluate=None,
        privacy=Privacy(clip=1.0, noise=noise),
    )  # fmt: skip
    assert found.summary.versions == 7
    assert found.summary.privacy["epsilon"] == pytest.approx(3.0, abs=1e-4)


def test_a_client_that_has_spent_its_budget_leaves_and_the_others_go_on(learner):
    privacy = Privacy(clip=0.5, least=2, noise=Noise(multiplier=1.0, budget=Budget(epsilon=9.0, delta=1e-3)))
    found = run(learner, privacy, until=ob.Until(tasks=1000))
    left = {e["client"]: e["t"] for e in found.entries("left")}
    assert 0 < len(left) < 5
    assert found.stop_reason.startswith("the privacy budget is spent: 1 clients have any left, 2 are needed")
    assert all(e["t"] <= left.get(e["client"], 1e9) for e in found.entries("train"))
    in_releases = Counter(c for e in found.entries("aggregate") for c in e["clients"])
    assert found.summary.privacy["releases"] <= max(in_releases.values())
    assert found.summary.privacy["epsilon"] <= 9.0


# ---- what the server must not look at ----


class Broken(Wrapped):
    """One client's training diverges, or is many times as long as it should be."""

    def __init__(self, learner: ob.TorchLearner, times: float) -> None:
        super().__init__(learner)
        self.times = times

    def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
        result = self.learner.train(base, task, *rest)
        return replace(result, delta=result.delta * self.times) if task.client == 0 else result


@pytest.mark.parametrize("times", [float("nan"), 1e30, 0.0])
@pytest.mark.parametrize("privacy", [SECURE, NOISY], ids=["secure", "noise"])
def test_participation_tells_nothing_of_an_update(privacy, times, learner):
    """A diverged, an absurd and a zero update are in the same releases as an honest one."""

    def journal(learner):  # type: ignore[no-untyped-def]
        kept = ("t", "name", "client", "task", "version", "weights", "epsilon")
        found = run(learner, privacy, until=ob.Until(tasks=40))
        assert found.model.values.isfinite().all()
        return [[e.get(key) for key in kept] for e in found.journal if e["name"] != "skipped"]

    assert journal(Broken(learner, times)) == journal(learner)


# ---- resumption and replay ----


class Interrupting(Wrapped):
    """Interrupts the run before it trains these tasks."""

    def __init__(self, learner: ob.TorchLearner, *at: int) -> None:
        super().__init__(learner)
        self.at = set(at)

    def before(self, task: LocalTask) -> None:
        if task.task in self.at:
            self.at.remove(task.task)
            raise KeyboardInterrupt


@pytest.mark.parametrize("privacy", [BANDS, *thorough(NOISY, SECURE)])
def test_a_run_with_privacy_is_resumed_and_replayed_bit_for_bit(privacy, learner, tmp_path: Path):
    whole = run(learner, privacy, out=tmp_path / "whole")
    broken = Interrupting(learner, 20, 37)
    options = {"until": UNTIL, "evaluate": RARELY, "privacy": privacy}
    with pytest.raises(KeyboardInterrupt):
        run(broken, privacy, out=tmp_path / "broken", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        ob.resume(tmp_path / "broken", make("fedbuff"), CALM, broken, checkpoint_seconds=0.0, **options)
    resumed = ob.resume(tmp_path / "broken", make("fedbuff"), CALM, learner, **options)
    assert outcome(resumed) == outcome(whole)
    assert on_disk(tmp_path / "broken") == on_disk(tmp_path / "whole")
    replayed = replay(ob.read_run(tmp_path / "whole"), make("fedbuff"))
    assert replayed.difference is None
    assert replayed.commands > 60


def test_a_run_is_resumed_with_the_same_privacy_only(learner, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        run(Interrupting(learner, 20), NOISY, out=tmp_path / "run")
    for other in (None, BANDS):
        with pytest.raises(ob.RunError, match="was started with another privacy: options"):
            ob.resume(tmp_path / "run", make("fedbuff"), CALM, learner, until=UNTIL, privacy=other)


# ---- learning ----


class Exact(GlobalModel):
    """Makes each version from float64 sums with the rounded weights, without grid, dither and clip."""

    def _step(self, updates, command):  # type: ignore[no-untyped-def]
        aggregator, grid = self._algorithm.aggregator, self.release.plan.grid
        weights = dict(zip(command.tasks, command.note["weights"], strict=True))
        scaled = [command.note["scale"] * weights[u.task.id] / grid.q for u in updates]
        factors = [aggregator.factor(u.task) for u in updates]
        total = sum(c * f * u.delta.double() for c, f, u in zip(scaled, factors, updates, strict=True))
        tasks, bases = [u.task for u in updates], [u.base for u in updates]
        return aggregator.from_sum(
            UpdateSum(total.float(), scaled, tasks, bases, command.note), self.model, self.memory
        )


@pytest.mark.thorough
@pytest.mark.parametrize("name", sum_only())
def test_integer_sums_learn_as_well_as_real_ones_of_the_same_weights(name, monkeypatch):
    """Within 0.3 points, over the last evaluations of two seeds.

    At a learning rate of 0.2 ASO-Fed's runs are chaotic: 1e-6 more or less in each of its steps changes the
    accuracy of one by 3 points (standard deviation of 20 seeds), as integers do. At 0.05 they follow.
    """
    lr = 0.05 if name == "asofed" else 0.2
    algorithm = ob.asofed() if name == "asofed" else summed(name)  # the example's is against copies

    def accuracy() -> float:
        found = []
        for seed in range(2):
            data = ob.load("digits")
            order = np.argsort(data.train.y.numpy() + np.random.default_rng(seed).random(len(data.train)) * 6)
            federated = ob.federate(data, None, np.array_split(order, 5))
            learner = ob.TorchLearner(mlp, federated, ob.Training(lr=lr, batch_size=20))
            every, until = ob.Every(versions=5), ob.Until(tasks=400)
            run = ob.simulate(
                algorithm, CALM, learner, seed=seed, until=until, evaluate=every, privacy=SECURE
            )
            assert len(run.metrics) > 6  # two runs without versions are always alike
            found += [row["accuracy"] for row in run.metrics[-6:]]
        return float(np.mean(found))

    integers = accuracy()
    monkeypatch.setattr(experiment, "GlobalModel", Exact)
    assert integers == pytest.approx(accuracy(), abs=0.003)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [0, 4])
def test_masks_change_no_bit_for_weights_of_any_bits(bits, learner):
    outcomes = [
        outcome(run(learner, Privacy(clip=5.0, weight_bits=bits, secure=Secure(masks=masks)), "feddyn"))
        for masks in (False, True)
    ]
    assert outcomes[0] == outcomes[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "algorithm", [ob.fedbuff(3, 10), ob.fedcompass(4, 20)], ids=["fedbuff", "fedcompass"]
)
def test_integer_sums_learn_as_well_as_plain_ones(algorithm):
    """Within 0.3 points, over the last evaluations of two seeds."""

    def accuracy(privacy: Privacy | None) -> float:
        found = []
        for seed in range(2):
            data = ob.load("digits")
            order = np.argsort(data.train.y.numpy() + np.random.default_rng(seed).random(len(data.train)) * 6)
            federated = ob.federate(data, None, np.array_split(order, 5))
            learner = ob.TorchLearner(mlp, federated, ob.Training(lr=0.2, batch_size=20))
            every, until = ob.Every(versions=10), ob.Until(tasks=600)
            run = ob.simulate(
                algorithm, CALM, learner, seed=seed, until=until, evaluate=every, privacy=privacy
            )
            found += [row["accuracy"] for row in run.metrics[-6:]]
        return float(np.mean(found))

    assert accuracy(SECURE) >= accuracy(None) - 0.003
