"""DP-SGD of a client: clipped gradients by example, Poisson batches, noise, and the accountant."""

import warnings
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.buffers import wrap_buffers
from offbeat.core.errors import UsageError
from offbeat.core.learner import NO_INPUTS, LocalTask, MergePoint, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.data.dataset import Dataset
from offbeat.data.federated import federate
from offbeat.local.examples_accounting import exact_epsilon, renyi_epsilon
from offbeat.local.examples_privacy import (
    ExamplesPrivacy,
    example_batches,
    examples_epsilon,
    gradients_by_example,
    sampling_rate,
    steps_within,
)
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training
from tests.sampling import needs, thorough

needs("opacus")

N, BATCH, STEPS = 24, 8, 4
SECRET = bytes(range(32))
TASK = LocalTask(task=3, client=0, base=0, steps=STEPS, seed=5)
NO_NOISE = ExamplesPrivacy(noise=1e-12, clip=0.2)


def samples() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    return Dataset(torch.randn(N, 1, 4, 4, generator=generator), torch.arange(N) % 3)


def convolution() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def learner(
    options: ExamplesPrivacy | None = NO_NOISE, secret: bytes = SECRET, **training: object
) -> TorchLearner:
    plain = TorchLearner(convolution(), federate([samples()]), Training(lr=0.5, batch_size=BATCH, **training))
    return plain if options is None else plain.with_examples_privacy(options, lambda _: secret)


def trained(own: TorchLearner, objective: object = Plain()) -> Tensor:
    return own.train(own.initial(0), TASK, objective).delta


def by_hand(clip: float, mu: float = 0.0, without: int = -1) -> Tensor:
    """The same steps, one example at a time, without noise."""
    module, data = convolution(), samples()
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    for rows in example_batches(SECRET, N, BATCH / N, STEPS):
        sums = [torch.zeros_like(p) for p in parameters]
        for row in rows[rows != without]:
            loss = functional.cross_entropy(module(data.x[row, None]), data.y[row, None])
            gradients = torch.autograd.grad(loss, parameters)
            norm = sqrt(sum(float(g.double().square().sum()) for g in gradients))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient * min(1.0, clip / norm)
        with torch.no_grad():
            for p, total, anchor in zip(parameters, sums, start, strict=True):
                p -= 0.5 * (total / BATCH + mu * (p - anchor))
    return torch.cat([(p.detach() - s).flatten() for p, s in zip(parameters, start, strict=True)])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_without_noise_it_is_the_loop_by_hand(accumulate: int) -> None:
    found = trained(learner(accumulate=accumulate))
    assert found == pytest.approx(by_hand(0.2), abs=1e-6)
    assert not torch.allclose(found, by_hand(1e9), atol=1e-3)


def test_the_proximal_objective_adds_what_does_not_depend_on_the_data() -> None:
    assert trained(learner(), Proximal(0.3)) == pytest.approx(by_hand(0.2, mu=0.3), abs=1e-6)


@pytest.mark.parametrize("policy", ["local", "recompute"])
def test_what_keeps_a_sites_buffers_is_around_the_objective_and_changes_nothing(policy: str) -> None:
    assert torch.equal(
        trained(learner(), wrap_buffers(Proximal(0.3), policy)), trained(learner(), Proximal(0.3))
    )


def test_the_noise_is_that_of_its_size_whatever_the_batch_has() -> None:
    """lr · noise · clip / (p n) a step: of many coordinates and steps that add up."""
    noisy = trained(learner(ExamplesPrivacy(noise=50.0, clip=1.0)))
    expected = 0.5 * 50.0 / BATCH * sqrt(STEPS)
    assert float(noisy.std()) == pytest.approx(expected, rel=0.3)
    rare = TorchLearner(convolution(), federate([samples()]), Training(lr=0.5, batch_size=1))
    rare = rare.with_examples_privacy(ExamplesPrivacy(noise=1.0), lambda _: bytes(32))
    batches = list(example_batches(bytes(32), N, 1 / N, STEPS))
    assert min(len(rows) for rows in batches) == 0  # a step of noise alone
    assert trained(rare).isfinite().all()


def test_batches_and_noise_follow_from_the_secret_alone() -> None:
    noisy = ExamplesPrivacy(noise=1.0)
    first = trained(learner(noisy))
    assert torch.equal(first, trained(learner(noisy)))
    assert not torch.equal(first, trained(learner(noisy, secret=bytes(32))))
    own = learner(noisy)
    other_seed = LocalTask(task=9, client=0, base=0, steps=STEPS, seed=77)
    assert torch.equal(first, own.train(own.initial(0), other_seed, Plain()).delta)


def test_each_example_is_taken_with_the_same_probability_by_itself() -> None:
    counts = np.zeros(50)
    sizes = []
    for rows in example_batches(SECRET, 50, 0.3, 4000):
        counts[rows.numpy()] += 1
        sizes.append(len(rows))
    deviation = sqrt(0.3 * 0.7 * 4000)
    assert np.abs(counts - 1200).max() < 5 * deviation
    assert np.var(sizes) == pytest.approx(50 * 0.3 * 0.7, rel=0.15)  # a shuffled pass has 0
    assert sampling_rate(8, 5) == 1.0


@pytest.mark.parametrize("value", [3e38, float("nan")])
def test_an_example_that_overflows_changes_nothing_but_its_own_gradient(value: float) -> None:
    """An error, or zeros in place of the noised update, would tell that this example is there."""
    data = samples()
    spoiled = data.x.clone()
    spoiled[5] = value
    own = TorchLearner(
        convolution(), federate([Dataset(spoiled, data.y)]), Training(lr=0.5, batch_size=BATCH)
    )
    own = own.with_examples_privacy(NO_NOISE, lambda _: SECRET)
    assert sum(int((rows == 5).any()) for rows in example_batches(SECRET, N, BATCH / N, STEPS)) > 0
    assert trained(own) == pytest.approx(by_hand(0.2, without=5), abs=1e-6)


def test_a_task_taken_up_after_some_steps_has_the_noise_of_the_steps_that_are_left() -> None:
    own = learner(ExamplesPrivacy(noise=1.0))
    base = own.initial(0)
    saved = own.train_until(base, TASK, Plain(), NO_INPUTS, 3)
    assert torch.equal(own.train_from(base, TASK, Plain(), NO_INPUTS, 3, saved).delta, trained(own))


@pytest.mark.parametrize("objective", [Plain(), Proximal(0.3)])
def test_a_fresh_model_in_mid_task_changes_nothing_of_these_objectives(objective: Objective) -> None:
    """Batches, clipping and noise are of the examples alone; an empty batch after it is none that fails."""
    own = learner(ExamplesPrivacy(noise=1.0))
    base = own.initial(0)
    fresh = Model(base.layout, base.values + 1, base.integers)
    task = LocalTask(TASK.task, TASK.client, TASK.base, STEPS, TASK.seed, fresh=MergePoint(2, 1, 1))
    merged = own.train(base, task, objective, TaskInputs({}, fresh)).delta
    assert torch.equal(merged, trained(own, objective))


def test_an_objective_that_merges_a_fresh_model_is_refused_in_a_simulation() -> None:
    own = TorchLearner(convolution(), federate([samples()]), Training(batch_size=BATCH), examples=NO_NOISE)
    told = "examples privacy knows the objectives plain and proximal, freshmerge is another"
    with pytest.raises(UsageError, match=told):
        ob.simulate(ob.fedasmu(steps=4), ob.World([1.0]), own, until=ob.Until(tasks=1), evaluate=None)


class TimeFirst(nn.Module):
    """A layer in it takes [T, N, …]: Opacus would clip times in place of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x[:, 0].transpose(0, 1)))
        return self.outer(h.transpose(0, 1).mean(1))


class Centred(TimeFirst):
    """What it takes from each example is the mean over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x[:, 0].mean(1))
        return self.outer(torch.relu(h - h.mean(0)))


class Tied(TimeFirst):
    """Its second use of a weight is in no layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x[:, 0].mean(1)))
        return self.outer(
            torch.relu(functional.linear(functional.linear(h, self.inner.weight.T), self.inner.weight))
        )


class Keeps(TimeFirst):
    """Later steps see the mean of examples that earlier ones took."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0].mean(1)
        found = self.outer(torch.relu(self.inner(x - self.mean)))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return found


def test_a_module_that_keeps_something_of_its_examples_is_refused() -> None:
    own = TorchLearner(Keeps(), federate([samples()]), Training(batch_size=BATCH))
    with pytest.raises(
        UsageError, match=r"^Keeps writes to its buffer mean in training: what it keeps there"
    ):
        own.with_examples_privacy(NO_NOISE, lambda _: SECRET)


@pytest.mark.parametrize("kind", [TimeFirst, Centred, Tied])
def test_a_module_of_ones_own_that_mixes_examples_is_refused(kind: type[nn.Module]) -> None:
    own = TorchLearner(kind(), federate([samples()]), Training(batch_size=BATCH))
    with pytest.raises(
        UsageError, match=f"^{kind.__name__} or its loss mixes examples: an example's gradient"
    ):
        own.with_examples_privacy(NO_NOISE, lambda _: SECRET)
    simulated = TorchLearner(kind(), federate([samples()]), examples=NO_NOISE)
    with pytest.raises(UsageError, match="mixes examples"):
        simulated.initial(0)


def test_a_loss_that_is_no_mean_is_refused() -> None:
    own = TorchLearner(convolution(), federate([samples()]), loss=nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(UsageError, match="the loss must be a mean"):
        own.with_examples_privacy(NO_NOISE, lambda _: SECRET)


def test_layers_that_opacus_does_not_know_are_refused_before_anything_is_spent() -> None:
    module = nn.Sequential(
        nn.Flatten(1, 2), nn.TransformerEncoderLayer(4, 2, 8), nn.Flatten(), nn.Linear(16, 3)
    )
    own = TorchLearner(module, federate([samples()]))
    with pytest.raises(
        UsageError, match=r"gives no gradients by example .*: make it of layers that Opacus knows"
    ):
        own.with_examples_privacy(NO_NOISE, lambda _: SECRET)


def test_the_accountant_is_that_of_opacus_step_by_step() -> None:
    from opacus.accountants import PRVAccountant

    theirs = PRVAccountant()
    for _ in range(30):
        theirs.step(noise_multiplier=1.1, sample_rate=0.05)
    for _ in range(7):
        theirs.step(noise_multiplier=0.9, sample_rate=0.1)
    assert examples_epsilon([(1.1, 0.05, 30), (0.9, 0.1, 7)], 1e-5) == theirs.get_epsilon(1e-5)
    assert examples_epsilon([], 1e-5) == 0.0


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "history",
    [[(0.6, 0.3, 12)], *thorough([(2.0, 1.0, 5)], [(1.3, 1 / 3, 90), (4.0, 0.01, 150), (0.9, 0.05, 40)])],
    ids=["little noise", "all examples", "three kinds"],
)
def test_both_accountants_give_the_figures_of_opacus_bit_for_bit(
    history: list[tuple[float, float, int]],
) -> None:
    from opacus.accountants import PRVAccountant, RDPAccountant

    exact, looser = PRVAccountant(), RDPAccountant()
    exact.history = looser.history = list(history)
    for delta in (1e-5, 1e-3):
        assert renyi_epsilon(history, delta) == looser.get_epsilon(delta)
        assert exact_epsilon(history, delta) == exact.get_epsilon(delta)


def test_the_budget_allows_the_most_steps_within_it() -> None:
    options, before = ExamplesPrivacy(noise=1.0, epsilon=2.0), [(1.2, 0.05, 20)]
    steps = steps_within(options, before, 0.05)
    assert examples_epsilon([*before, (1.0, 0.05, int(steps))], 1e-5) <= 2.0
    assert examples_epsilon([*before, (1.0, 0.05, int(steps) + 1)], 1e-5) > 2.0
    assert steps_within(ExamplesPrivacy(noise=1.0), before, 0.05) == float("inf")
    assert steps_within(ExamplesPrivacy(noise=0.3, epsilon=0.1), [], 0.9) == 0


def test_what_mixes_examples_is_refused() -> None:
    own = learner()
    mixed = TorchLearner(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3)), federate([samples()])
    )
    with pytest.raises(UsageError, match=r"^batch_norm mixes examples: use group_norm$"):
        mixed.with_examples_privacy(NO_NOISE, lambda _: SECRET)
    moon = ob.moon(steps=1).objective
    with pytest.raises(
        UsageError, match=r"^examples privacy knows the objectives plain and proximal, contrastive is another"
    ):
        trained(own, moon)
    with pytest.raises(UsageError, match="does not go with class_weights"):
        learner(class_weights=(1.0, 2.0, 3.0))
    with pytest.raises(
        UsageError, match=r"delta = 0\.1 is not allowed with 24 examples: it must be below 1/24"
    ):
        learner(ExamplesPrivacy(delta=0.1))


def test_losses_whose_sum_is_not_finite_end_nothing() -> None:
    """One example with a large loss would be told by the zeros that stand for a training that fails."""

    def large(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) * 0 + 3e38

    plain = TorchLearner(
        convolution(), federate([samples()]), Training(lr=0.5, batch_size=BATCH), large
    ).with_examples_privacy(ExamplesPrivacy(), lambda _: SECRET)
    delta = trained(plain)
    assert delta.isfinite().all()
    assert delta.any()


def test_the_module_is_left_as_it_was() -> None:
    own = learner()
    trained(own)
    module = own.prepare().bench.module
    assert not any(hasattr(p, "grad_sample") or hasattr(p, "_forward_counter") for p in module.parameters())
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())


def test_warnings_are_left_out_while_another_thread_of_the_process_ends_its_training() -> None:
    """Warnings are errors in these tests; the first to end must not give the other one its filters."""
    first, second = convolution(), convolution()
    batch = samples()
    ending, going_on = gradients_by_example(first), gradients_by_example(second)
    ending.__enter__()
    going_on.__enter__()
    ending.__exit__(None, None, None)
    functional.cross_entropy(second(batch.x), batch.y).backward()
    going_on.__exit__(None, None, None)
    assert examples_epsilon([(50.0, 1e-3, 1)], 1e-3) >= 0  # its best order is the largest one tried
    with pytest.raises(UserWarning, match="another"):
        warnings.warn("another", UserWarning, stacklevel=1)
