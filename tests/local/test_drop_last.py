"""`Training.drop_last`: the incomplete batch of each pass is left out, and steps stay countable."""

from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.data import without_clients
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.fast.batched import BatchedTrainer
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.objectives import Plain
from offbeat.net.client.policy import PolicyError, SitePolicy
from offbeat.net.client.site import Site
from offbeat.net.client.task import TrainingContext
from offbeat.net.messages import TaskAssignment
from offbeat.net.run_spec import read_run_spec
from tests.net.support import run_spec

SIZES = [17, 33, 9]  # a batch of one remains of the first two; the third has less than a batch
STEPS = [1, 2, 1]
ALLOWED = (f"{__name__}:normed",)
pytestmark = pytest.mark.usefixtures("one_thread")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def linear() -> nn.Module:
    return nn.Linear(5, 2)


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(SIZES), 5, generator=generator)
    return list(zip(x.split(SIZES), (x[:, 0] > 0).long().split(SIZES), strict=True))


def learner(module: Any = normed, **training: Any) -> ob.TorchLearner:
    options = {"batch_size": 16, "drop_last": True, **training}
    return ob.TorchLearner(module, ob.federate(clients(), clients()[0]), ob.Training(**options))


def simulated(one: Any, epochs: int = 2, **options: Any) -> ob.Run:
    algorithm = ob.fedavg(epochs=epochs)
    return ob.simulate(algorithm, learner=one, until=ob.Until(versions=3), seed=4, **options)


def test_a_batch_of_one_under_batch_norm_names_the_remedy():
    with pytest.raises(
        ob.UsageError, match=r"client 0: Sequential .* training\.drop_last = True leaves it out"
    ):
        simulated(learner(drop_last=False))


def test_an_epoch_has_the_complete_batches_in_the_journal_too():
    one = learner()
    assert [one.steps_per_epoch(client) for client in range(3)] == STEPS
    run = simulated(one, epochs=2)
    joined = [row.data for row in run.rows() if row.name == "joined"]
    assert [data["steps_per_epoch"] for data in joined] == STEPS
    trained = {row.client: row.steps for row in run.rows() if row.name == "train"}
    assert trained == {client: 2 * steps for client, steps in enumerate(STEPS)}


def test_worker_processes_give_the_same_bits():
    one, other = simulated(learner()), simulated(learner(), workers=2)
    assert torch.equal(one.model.values, other.model.values)


def test_tasks_trained_together_see_the_same_batches():
    one = learner(linear)
    base = one.initial(0)
    tasks = [LocalTask(i, i, 0, steps, 3) for i, steps in enumerate((5, 4, 2))]
    for task, found in zip(
        tasks, BatchedTrainer(one, Plain(), 3).train([(t, base) for t in tasks]), strict=True
    ):
        torch.testing.assert_close(found.delta, one.train(base, task, Plain()).delta, rtol=1e-5, atol=1e-6)


def test_a_decay_per_epoch_counts_the_complete_batches():
    slower = learner(linear, decay=ob.local.training.ExponentialDecay(0.5), decay_per="epoch")
    result = slower.train(slower.initial(0), LocalTask(0, 1, 0, 4, 3), Plain())
    assert result.lr == pytest.approx(0.1 * (1 + 1 + 0.5 + 0.5) / 4)


def test_a_loop_of_ones_own_draws_the_same_batches():
    seen: list[list[int]] = []

    def train(task: ob.ClientTask) -> None:
        task.load_into(nn.Linear(5, 2))
        for rows in task.steps(task.batches()):
            seen.append(rows.tolist())
        task.submit()

    own = LoopLearner(train, linear(), SIZES, batch_size=16, drop_last=True)
    assert [own.steps_per_epoch(client) for client in range(3)] == STEPS
    simulated(own)
    assert {len(rows) for rows in seen} == {16, 9}


def test_the_unit_in_which_samples_are_told_gives_the_complete_batches_of_the_told_number():
    privacy = Privacy(clip=5.0, samples_unit=20, secure=Secure())
    run = simulated(learner(linear), privacy=privacy)
    joined = [row.data for row in run.rows() if row.name == "joined"]
    assert [data["samples"] for data in joined] == [20, 40, 20]
    assert [data["steps_per_epoch"] for data in joined] == [1, 2, 1]


def test_a_site_counts_as_the_server_does():
    spec = run_spec(ob.fedavg(epochs=1), learner(), 1)
    read = read_run_spec(spec.document())
    assert read.training.drop_last
    context = TrainingContext.of(read, Site.of(clients()[1], allow=ALLOWED), 0)
    assert context.steps_per_epoch == 2
    brought = ob.TorchLearner(normed, ob.federate([clients()[1]]), ob.Training(batch_size=16, drop_last=True))
    assert Site.of(learner=brought).steps_per_epoch == 2


def test_a_policy_counts_the_samples_that_are_trained_on():
    spec = read_run_spec(run_spec(ob.fedavg(epochs=1), learner(), 1).document())
    policy = SitePolicy(min_samples=17)
    context = TrainingContext.of(spec, Site.of(clients()[0], allow=ALLOWED, policy=policy), 0)
    with pytest.raises(PolicyError, match="an update made of 16 samples"):
        context.local_task(TaskAssignment(0, 0, 3, 1, None))


def test_privacy_of_examples_has_no_passes():
    with pytest.raises(ob.UsageError, match="does not go with drop_last = True"):
        ob.TorchLearner(
            linear, ob.federate(clients()), ob.Training(drop_last=True),
            examples=ExamplesPrivacy(),
        )  # fmt: skip


def volumes() -> nn.Module:
    """Its BatchNorm takes one sample, which has several values a channel."""
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(5, 2))


@pytest.mark.parametrize(
    ("module", "options", "told"),
    [
        (normed, {}, "clients 0, 1: the last batch of a pass has one sample, of which BatchNorm cannot be"),
        (normed, {"batch_size": 9, "accumulate": 8}, "clients 0, 1: the last batch"),
        (normed, {"batch_size": 17, "accumulate": 2}, ""),
        (normed, {"drop_last": True}, ""),
        (normed, {"batch_size": 7}, ""),
        (linear, {}, ""),
        (volumes, {}, ""),
    ],
)
def test_clients_of_whose_last_batch_batch_norm_cannot_be_trained_are_told_before(
    module: Any, options: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    learner = ob.TorchLearner(
        module, ob.federate(clients()[:2]), ob.Training(**{"batch_size": 16, **options})
    )
    before = [learner.initial(0).values.clone() for _ in range(2)]
    assert torch.equal(*before)
    assert len(caplog.messages) == bool(told)
    assert all(message.startswith(told) and "\n" not in message for message in caplog.messages)


def test_a_site_is_told_of_its_last_batch_at_joining(caplog: pytest.LogCaptureFixture) -> None:
    learner = ob.TorchLearner(normed, without_clients(), ob.Training(batch_size=16))
    spec = read_run_spec(run_spec(ob.fedavg(steps=1), learner, 0).document())
    context = TrainingContext.of(spec, Site.of(clients()[1], allow=ALLOWED), 4)
    context.check_data()
    assert [message.split(":")[0] for message in caplog.messages] == ["client 4"]
