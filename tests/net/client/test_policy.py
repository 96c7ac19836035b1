"""A site's policy: what it refuses before it trains, and what both sides hear of that."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import offbeat as ob
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.models.specs import LogisticSpec
from offbeat.net import SitePolicy, join
from offbeat.net.client.join import make_context
from offbeat.net.client.policy import DEFAULT_POLICY, PolicyError
from offbeat.net.client.site import Site
from offbeat.net.client.task import TrainingTask, check_own_metrics
from offbeat.net.messages import TaskAssignment, UpdateSubmission
from offbeat.net.run_spec import RunSpec
from offbeat.net.server.server_learner import server_learner
from offbeat.testing.network import MemoryNetwork
from tests.net.support import run_spec, serve, terms_of

pytestmark = pytest.mark.usefixtures("here")

CLASSES, FEATURES, SEED = 3, 6, 1
SAMPLES = torch.randn(23, FEATURES, generator=torch.Generator().manual_seed(0))
DATA = ob.Dataset(SAMPLES, torch.arange(23) % CLASSES, classes=CLASSES)
ANYTHING = SitePolicy(min_batch_size=1, min_samples=1)


def plan(batch_size: int, algorithm: ob.Algorithm | None = None, lr: float = 1.0) -> tuple[RunSpec, Model]:
    """A run with a linear model, and its initial model."""
    training = ob.Training(lr=lr, batch_size=batch_size)
    learner = server_learner(LogisticSpec(), training, None, (FEATURES,), CLASSES)
    algorithm = algorithm or ob.fedbuff(1, steps=1)
    initial = learner.initial(SEED).sharing(algorithm.objective.shared_vectors)
    return run_spec(algorithm, learner, SEED), initial


def trained(policy: SitePolicy | None, task: int, steps: int, run: tuple[RunSpec, Model]) -> UpdateSubmission:
    """The update of a task of so many steps."""
    spec, initial = run
    context = make_context(Site.of(DATA, policy=policy))(spec.document(), 0)
    return TrainingTask(TaskAssignment(task, 0, steps, SEED, initial), context, lambda _: None).run({}).update


def reconstructed(update: UpdateSubmission) -> Tensor:
    """A sample from an update of a linear layer: a row of the weight's gradient by that of its bias."""
    assert isinstance(update.delta, Tensor)
    weight, bias = update.delta[: CLASSES * FEATURES].view(CLASSES, FEATURES), update.delta[-CLASSES:]
    row = int(bias.abs().argmax())
    return weight[row] / bias[row]


def test_an_update_of_one_sample_is_that_sample_and_refused_by_default() -> None:
    run = plan(batch_size=1)
    found = set()
    for task in range(200):
        distances = (SAMPLES - reconstructed(trained(ANYTHING, task, 1, run))).abs().max(1).values
        assert float(distances.min()) < 1e-5  # exact
        found.add(int(distances.argmin()))
    assert len(found) == 23
    with pytest.raises(PolicyError, match=r"refuses batches of 1 \(batch_size = 1, 23 samples here\)"):
        trained(None, 0, 1, run)
    mixed = reconstructed(trained(None, 0, 1, plan(batch_size=DEFAULT_POLICY.min_batch_size)))
    assert float((SAMPLES - mixed).abs().max(1).values.min()) > 0.01


class Mine(Objective):
    """An objective that no policy knows."""


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        (SitePolicy(min_batch_size=21), "batches of 20 (batch_size = 20, 23 samples here)"),
        (SitePolicy(min_batch_size=24), "batches of 20"),
        (SitePolicy(min_samples=24), "to train on 23 samples: it needs min_samples = 24"),
        (SitePolicy(objectives=("Proximal",)), "the objective Plain: it allows Proximal"),
        (SitePolicy(objectives=()), "the objective Plain: it allows none"),
        (SitePolicy(min_steps=4), "a task of 3 steps: it needs min_steps = 4"),
        (SitePolicy(max_steps=2), "a task of 3 steps: it allows max_steps = 2"),
        (SitePolicy(min_samples=23), None),  # 20 · 3, of 23
        (SitePolicy(min_batch_size=20, min_steps=3, max_steps=3, objectives=("Plain",)), None),
    ],
)
def test_what_a_policy_refuses(policy: SitePolicy, refusal: str | None) -> None:
    run = plan(batch_size=20)
    if refusal is None:
        assert trained(policy, 0, 3, run).steps == 3
        return
    with pytest.raises(PolicyError, match="^this site's policy refuses " + re.escape(refusal)):
        trained(policy, 0, 3, run)


def test_an_update_of_too_few_samples_is_refused_by_its_steps() -> None:
    run, policy = plan(batch_size=5), SitePolicy(min_samples=12)
    with pytest.raises(PolicyError, match=r"an update made of 10 samples .*it needs min_samples = 12"):
        trained(policy, 0, 2, run)
    assert trained(policy, 0, 3, run).steps == 3


def test_an_objective_around_another_needs_both_names() -> None:
    asks = ob.fedasmu(epochs=2).objective
    SitePolicy(objectives=("FreshMerge", "Plain")).check_plan(asks, ())
    with pytest.raises(PolicyError, match="the objective Plain: it allows FreshMerge"):
        SitePolicy(objectives=("FreshMerge",)).check_plan(asks, ())
    with pytest.raises(PolicyError, match="the objective Mine"):
        SitePolicy(objectives=("Plain",)).check_plan(Mine(), ())
    local = ob.fedavg(steps=1)
    SitePolicy(objectives=("Plain",)).check_plan(local.objective, ())


def test_metrics_are_refused_by_what_they_are_and_not_where_nothing_is_evaluated() -> None:
    policy, objective = SitePolicy(metrics=("accuracy",)), ob.fedavg(steps=1).objective
    policy.check_plan(objective, ("accuracy",))
    with pytest.raises(PolicyError, match="the metric auroc: it allows accuracy"):
        policy.check_plan(objective, ("accuracy", "auroc"))
    SitePolicy(metrics=(), evaluations=False).check_plan(objective, ("auroc",))


NOISY = ob.Privacy(clip=1.0, least=3, noise=ob.Noise(multiplier=4, budget=ob.Budget(8, 1e-5)))
UNLIMITED = replace(NOISY, noise=ob.Noise(multiplier=4))
SECURE = ob.Privacy(clip=1.0, secure=ob.Secure(("a", "b", "c"), 1))


@pytest.mark.parametrize(
    ("policy", "privacy", "refusal"),
    [
        ({"epsilon": 8}, NOISY, None),
        ({"epsilon": 7.9}, NOISY, "epsilon = 8: it allows at most epsilon = 7.9"),
        ({"epsilon": 100}, UNLIMITED, "a budget without epsilon: it allows at most epsilon = 100"),
        ({"epsilon": 100}, SECURE, "a run without noise: it allows epsilon = 100"),
        ({"epsilon": 100}, None, "a run without noise: it allows epsilon = 100"),
        ({"delta": 1e-5}, NOISY, None),
        ({"delta": 1e-6}, NOISY, "delta = 1e-05: it allows at most delta = 1e-06"),
        ({"delta": 1e-6}, None, "a run without noise: it allows delta = 1e-06"),
        ({"least": 3}, NOISY, None),
        ({"least": 3}, SECURE, None),
        ({"least": 4}, NOISY, "releases of least = 3: it needs at least least = 4"),
        ({"least": 1}, None, "a run without privacy: it needs at least least = 1"),
        ({"colluding": 1}, SECURE, None),
        ({"colluding": 2}, SECURE, "colluding = 1: it needs at least colluding = 2"),
        ({"colluding": 1}, NOISY, "a run that is not secure: it needs at least colluding = 1"),
        ({"colluding": 1}, None, "a run that is not secure: it needs at least colluding = 1"),
    ],
)
def test_what_a_policy_demands_of_every_run(
    policy: dict[str, Any], privacy: ob.Privacy | None, refusal: str | None
) -> None:
    objective = ob.fedavg(steps=1).objective
    if refusal is None:
        SitePolicy(**policy).check_plan(objective, (), privacy)
        return
    with pytest.raises(PolicyError, match="^this site's policy refuses " + re.escape(refusal)):
        SitePolicy(**policy).check_plan(objective, (), privacy)


def test_an_update_is_clipped_and_one_with_a_shared_vector_refused() -> None:
    run = plan(batch_size=20)
    whole, clipped = (trained(p, 0, 3, run).delta for p in (None, SitePolicy(clip=0.01)))
    assert isinstance(whole, Tensor)
    assert isinstance(clipped, Tensor)
    assert float(whole.norm()) > 0.1
    torch.testing.assert_close(clipped, whole * (0.01 / whole.norm()))
    with pytest.raises(PolicyError, match="ControlVariates, whose shared vector cannot be clipped"):
        trained(SitePolicy(clip=0.01), 0, 3, plan(20, ob.scaffold(steps=3)))


def test_a_recalled_task_goes_on_until_its_least_steps() -> None:
    spec, initial = plan(batch_size=20)  # an epoch has two steps
    for least, steps in ((1, 2), (2, 2), (3, 4), (20, 20)):
        context = make_context(Site.of(DATA, policy=SitePolicy(min_steps=least)))(spec.document(), 0)
        task = TrainingTask(TaskAssignment(0, 0, 20, SEED, initial), context, lambda _: None)
        task.recall()
        assert task.run({}).update.steps == steps


def test_a_site_that_evaluates_nothing_and_keeps_its_labels() -> None:
    site = Site.of((DATA, DATA), policy=SitePolicy(evaluations=False, labels=False))
    assert (site.held_out, site.labels) == (0, None)
    assert Site.of((DATA, DATA)).held_out == 23
    context = make_context(site)(plan(20)[0].document(), 0)
    assert context.evaluate(plan(20)[1], {}) == (0, {})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"noise": 0}, "noise = 0 is not allowed"),
        ({"min_steps": 5, "max_steps": 4}, "max_steps = 4 is not allowed: it is below min_steps = 5"),
        ({"min_batch_size": 0}, "min_batch_size = 0 is not allowed"),
        ({"clip": 0.0}, "clip = 0.0 is not allowed"),
        ({"min_batches": 3}, "unknown key min_batches"),
    ],
)
def test_a_policy_that_is_none(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ob.UsageError, match=why):
        SitePolicy(**options)


def test_metrics_that_no_server_takes_are_refused_here() -> None:
    check_own_metrics({"x" * 64: 1.0})
    for metrics in ({"x" * 65: 1.0}, {str(i): 1.0 for i in range(33)}):
        with pytest.raises(ob.UsageError, match="at most 32 metrics of 64 characters each can be sent"):
            check_own_metrics(metrics)


def both_sides(
    policy: SitePolicy, directory: Path, until: ob.Until, caplog: pytest.LogCaptureFixture
) -> tuple[BaseException | str, list[Any]]:
    """A run of a site with this policy, and one with the default: how the first ended, the journal's rows.

    The first joins last: refused before the other is there, it would leave a server that waits for two.
    A round waits for both, so the run cannot end before the first site's refusal is known.
    """

    async def join_last(network: MemoryNetwork) -> str:
        while not any(record.getMessage() == "joined" for record in caplog.records):
            await asyncio.sleep(0.01)
        return await join(network.connect("strict"), DATA, policy=policy)

    async def story() -> BaseException | str:
        network = MemoryNetwork()
        algorithm = ob.fedavg(steps=3)
        site = asyncio.create_task(join_last(network))
        other = asyncio.create_task(join(network.connect("other"), DATA))
        await serve(
            algorithm, LogisticSpec(), ob.Training(batch_size=5), directory, network.listen, linger=1.0,
            options=terms_of(clients=2, until=until), sample_shape=(FEATURES,), classes=CLASSES,
        )  # fmt: skip
        (ended,) = await asyncio.wait_for(asyncio.gather(site, return_exceptions=True), 60)
        await asyncio.wait_for(other, 60)
        return ended

    return asyncio.run(story()), list(ob.read_run(directory).rows())


def test_a_plan_outside_the_policy_is_refused_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sentence = "this site's policy refuses batches of 5 (batch_size = 5, 23 samples here): it needs"
    ended, rows = both_sides(SitePolicy(min_batch_size=10), tmp_path / "run", ob.Until(versions=2), caplog)
    assert isinstance(ended, PolicyError)
    assert str(ended).startswith(sentence)
    (left,) = [row for row in rows if row.name == "left"]
    assert str(left.flat()["reason"]).startswith(sentence)
    logged = [record for record in caplog.records if record.getMessage() == "left"]
    assert sentence in str([vars(record) for record in logged])


def test_a_task_outside_the_policy_is_lost_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sentence = "this site's policy refuses a task of 3 steps: it allows max_steps = 2"
    _, rows = both_sides(SitePolicy(max_steps=2), tmp_path / "run", ob.Until(versions=2), caplog)
    lost = [row for row in rows if row.name == "lost"]
    assert lost
    assert all(sentence in str(row.flat()["reason"]) for row in lost)
    assert not [row for row in rows if row.name == "arrived" and row.client == lost[0].client]
    at_site = [record.getMessage() for record in caplog.records if "client.worker" in record.name]
    assert any(sentence in told for told in at_site)
    at_server = [vars(record) for record in caplog.records if record.getMessage() == "lost"]
    assert sentence in str(at_server)
