"""All messages of a whole run with noise: nothing leaves a site that docs/privacy.md does not list."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.schedule import Schedule
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.models.specs import LogisticSpec, ModelMaker
from offbeat.net import SitePolicy, join
from offbeat.net.client.known_runs import KnownRuns
from offbeat.net.client.site import Site
from offbeat.net.client.task import TrainingContext
from offbeat.net.messages import (
    LABELS_NEEDED,
    FromSite,
    Heartbeat,
    Leave,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskAssignment,
    UpdateSubmission,
)
from offbeat.net.server.server_learner import server_learner
from offbeat.net.transport import ClientChannel, ServerChannel
from offbeat.testing.network import Faults, MemoryNetwork
from tests.net.deviating_server import MODEL, Script, meet, plan_of, sent_of_training
from tests.net.support import hurry, recording, run_spec, serve, shares_of_digits, terms_of, torch_left_alone

CLIP = 0.5
UNIT = 25
PRIVACY = ob.Privacy(clip=CLIP, least=2, samples_unit=UNIT, noise=ob.Noise(multiplier=2))
TRAINING = ob.Training(lr=0.1, batch_size=20)


def test_nothing_leaves_a_site_that_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    data, test = shares_of_digits(3, samples=180, test_samples=60)
    said: list[FromSite] = []
    network = MemoryNetwork()

    def connect(name: str):  # type: ignore[no-untyped-def]
        return recording(network.connect(name), said)

    async def run() -> str | None:
        options = terms_of(clients=3, until=ob.Until(tasks=12), evaluate=ob.Every(versions=2))
        server = asyncio.create_task(
            serve(
                ob.fedbuff(size=2, steps=2), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=options, test=test, seed=3, privacy=PRIVACY, linger=0.2,
            )
        )  # fmt: skip
        policy = SitePolicy(noise=2.0, samples_unit=UNIT, labels=False)
        sites = [
            asyncio.create_task(join(connect(f"site-{i}"), d, validation=0.2, policy=policy))
            for i, d in enumerate(data)
        ]
        reason = await server
        await asyncio.wait_for(asyncio.gather(*sites, return_exceptions=True), 300)
        return reason

    with torch_left_alone():
        monkeypatch.setattr("offbeat.local.torch_learner.TorchLearner.train", failing(ob.TorchLearner.train))
        assert asyncio.run(run()) == "reached 12 client tasks"
    assert {type(message) for message in said} <= {Register, Heartbeat, UpdateSubmission, Leave}
    for message in said:
        match message:
            case Register():
                assert not message.labels  # of 48 and 12 samples:
                assert (message.samples, message.held_out, message.steps_per_epoch) == (50, UNIT, 0)
            case UpdateSubmission():
                assert message.metrics == {}
                assert message.lr == 0.0  # whatever has become of the training
                assert message.shared is None
                assert isinstance(message.delta, torch.Tensor)
                assert float(message.delta.double().norm()) <= CLIP * (1 + 1e-6)
                assert not message.integers.any()
            case Leave():
                assert message.reason == "the run has finished"
    updates = [message for message in said if isinstance(message, UpdateSubmission)]
    assert len(updates) >= 12
    assert any(not update.delta.any() for update in updates)  # type: ignore[union-attr]
    assert any(update.delta.any() for update in updates)  # type: ignore[union-attr]
    assert "Ann" not in repr(said)


def test_steps_of_an_epoch_are_those_of_the_number_that_is_told() -> None:
    data, _ = shares_of_digits(1, samples=137, test_samples=10)
    policy = SitePolicy(samples_unit=UNIT, labels=False)
    learner = ob.TorchLearner(
        ModelMaker(LogisticSpec(), (1, 8, 8), 10), ob.federate([data[0]]), ob.Training(batch_size=5)
    )
    for site, steps in ((Site.of(data[0], policy=policy), 0), (Site.of(learner=learner, policy=policy), 30)):
        assert (site.samples, site.told_samples, site.labels) == (137, 150, None)
        assert site.steps_per_epoch == steps
    training = ob.Training(batch_size=5)
    spec = run_spec(ob.port(beta=0.0), server_learner(LogisticSpec(), training, data[0]), 0)
    context = TrainingContext.of(spec, Site.of(data[0], policy=policy), 0)
    assert (context.steps_per_epoch, context.learner.steps_per_epoch(0)) == (30, 28)  # a recall's boundary


@pytest.mark.parametrize("policy", [{"min_batch_size": 10}, {"min_samples": 200}, {"min_batch_size": 160}])
def test_why_a_policy_refuses_does_not_tell_the_number_of_samples(policy: dict[str, int]) -> None:
    """The server is sent the sentence."""
    data, _ = shares_of_digits(1, samples=137, test_samples=10)
    site = Site.of(data[0], policy=SitePolicy(samples_unit=UNIT, labels=False, **policy))
    batch_size = 150 if policy == {"min_batch_size": 160} else 5
    spec = run_spec(
        ob.fedbuff(), server_learner(LogisticSpec(), ob.Training(batch_size=batch_size), data[0]), 0
    )
    with pytest.raises(UsageError, match="refuses") as refused:
        TrainingContext.of(spec, site, 0)
    assert "137" not in str(refused.value)


def test_a_delta_too_large_for_the_examples_is_refused_before_there_is_a_server(tmp_path: Path) -> None:
    """The server would be sent the sentence, which has their number."""
    (data,), _ = shares_of_digits(1, samples=137, test_samples=10)

    async def connect() -> ClientChannel:
        raise AssertionError("it connects")

    with pytest.raises(UsageError, match=r"delta = 0\.01 is not allowed with 137 examples"):
        asyncio.run(
            join(connect, data, state=tmp_path / "site", examples_privacy=ExamplesPrivacy(delta=0.01))
        )


def test_a_site_that_tells_its_labels_cannot_round_its_samples() -> None:
    with pytest.raises(UsageError, match=r"samples_unit = 25 .* numbers of samples by class tell the whole"):
        SitePolicy(samples_unit=UNIT)
    for unit in (0, -3):
        with pytest.raises(
            UsageError, match=rf"samples_unit = {unit} is not allowed: should be greater than or equal to 1"
        ):
            SitePolicy(samples_unit=unit, labels=False)
        with pytest.raises(
            UsageError, match=rf"samples_unit = {unit} is not allowed: should be greater than or equal to 1"
        ):
            ob.Privacy(clip=CLIP, noise=ob.Noise(multiplier=2), samples_unit=unit)


def failing(train):  # type: ignore[no-untyped-def]
    """Every third training raises an error with data in its text; every third gives NaN."""
    calls = 0

    def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ValueError("sample 17 is of patient Ann")
        result = train(*args, **kwargs)
        if calls % 3 == 1:
            result.delta[0] = float("nan")
        return result

    return wrapped


def asking_for_labels(plan: Mapping[str, Any] | None) -> Script:
    """A server that asks for labels: at once (None), or after it has told its plan."""

    async def script(channel: ServerChannel) -> None:
        await channel.receive()
        registered = Registered(0, "heart", plan or {}, 60.0)
        if plan is not None:
            channel.send(registered)
        channel.send(Rejected(LABELS_NEEDED))
        assert isinstance(await channel.receive(), Register)
        channel.send(registered)
        channel.send(TaskAssignment(0, 0, 2, 3, MODEL))
        assert isinstance(await channel.receive(), UpdateSubmission)
        channel.send(RunFinished("done", "heart"))
        await channel.receive()

    return script


def of_an_unknown_algorithm(privacy: ob.Privacy | None) -> dict[str, Any]:
    return {**plan_of(privacy), "algorithm": {"name": "ours"}}


PUBLIC = ob.Privacy(clip=CLIP, least=2, labels="public", noise=ob.Noise(multiplier=2))


@pytest.mark.parametrize(
    ("plan", "policy", "refusal"),
    [
        (None, {}, "class before it has told its plan: they stay here"),
        (plan_of(None), {}, "class and its plan allows none: they stay here"),
        (of_an_unknown_algorithm(replace(PUBLIC, labels=None)), {}, "class and its plan allows none"),
        (
            of_an_unknown_algorithm(None),
            {"labels": False},
            "the server refuses this site: the algorithm needs",
        ),
        (of_an_unknown_algorithm(None), {}, None),
        (of_an_unknown_algorithm(PUBLIC), {}, None),
    ],
)
def test_labels_are_told_where_the_plan_is_known_and_allows_it(
    plan: dict[str, Any] | None, policy: dict[str, Any], refusal: str | None, tmp_path: Path
) -> None:
    for _ in range(2):  # a second connection, which begins anew, too
        with torch_left_alone():
            ended, said = meet(asking_for_labels(plan), None, policy=SitePolicy(**policy))
        hellos = [message for message in said if isinstance(message, Register)]
        assert not hellos[0].labels
        if refusal is not None:
            assert refusal in str(ended)
            assert {message.labels for message in hellos} == {()}
            assert not sent_of_training(said)
        else:
            assert ended == "done"
            assert [bool(message.labels) for message in hellos] == [False, True]
            assert sum(hellos[1].labels or ()) == 60


class _NeedsLabels(Schedule):
    """A schedule that chooses by labels."""

    @property
    def requires(self) -> frozenset[Feature]:
        return frozenset({Feature.LABELS})

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def initial(self) -> Any:
        return self._schedule.initial()

    def on(self, event: Any, state: Any, view: Any) -> Any:
        return self._schedule.on(event, state, view)


def test_labels_reach_a_server_that_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through cut connections; each one begins without them."""
    hurry(monkeypatch)
    data, test = shares_of_digits(2, samples=80, test_samples=60)
    algorithm = replace(ob.fedbuff(size=2, steps=2), name="ours")
    algorithm = replace(algorithm, schedule=_NeedsLabels(algorithm.schedule))
    said: list[list[FromSite]] = []
    network = MemoryNetwork(Faults(cut=0.05, rng=Random(1)))

    def connect(name: str) -> Any:
        async def opened() -> ClientChannel:
            said.append([])
            return await recording(network.connect(name), said[-1])()

        return opened

    async def run() -> list[Any]:
        options = terms_of(clients=2, until=ob.Until(tasks=20))
        server = serve(
            algorithm, LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
            options=options, test=test, seed=3, linger=0.5,
        )  # fmt: skip
        sites = [join(connect(f"site-{i}"), d, state=tmp_path / f"{i}") for i, d in enumerate(data)]
        return await asyncio.wait_for(asyncio.gather(server, *sites), 300)

    with torch_left_alone():
        assert asyncio.run(run()) == ["reached 20 client tasks"] * 3
    assert network.faults.cuts > 3
    joined = ob.read_run(tmp_path / "run").entries("joined")
    assert all(len(row["labels"]) == 10 for row in joined)
    for connection in filter(None, said):
        assert isinstance(connection[0], Register)
        assert not connection[0].labels


def test_a_site_leaves_when_the_server_goes_back(tmp_path: Path) -> None:
    runs = KnownRuns(tmp_path)
    runs.check_plan("run", PRIVACY)
    for task, base in ((0, 0), (3, 17), (9, 41), (9, 41)):
        runs.check_task("run", task, base, f"order {task}")
    again = KnownRuns(tmp_path)
    told = "the server has gone back from version 41 to 17: what was spent since is not counted"
    with pytest.raises(UsageError, match=told):
        again.check_task("run", 4, 17, "order 4")
    again.check_task("run", 12, 41, "order 12")
    for task, base in ((11, 44), (12, 44)):  # it has gone on meanwhile; its numbers of tasks tell
        told = f"has gone back from task 12 of version 41 to task {task} of version 44"
        with pytest.raises(UsageError, match=told):
            again.check_task("run", task, base, f"order {task}")


def test_an_update_is_not_sent_for_a_task_of_the_same_number_of_a_server_that_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update may have been released before."""
    hurry(monkeypatch)
    (data,), test = shares_of_digits(1, samples=60, test_samples=60)
    algorithm = ob.fedbuff(size=2, steps=2)
    learner = server_learner(LogisticSpec(), TRAINING, test, None, None)
    privacy = complete_privacy(PRIVACY, algorithm, 2)
    plan, model = run_spec(algorithm, learner, 3, privacy).document(), learner.initial(3)
    bases, said, network = [5, 4], list[FromSite](), MemoryNetwork()

    async def server(channel: ServerChannel) -> None:
        """Assign task 7 in each connection, from an earlier version in the second; answer no update."""
        assert isinstance(await channel.receive(), Register)
        if not bases:
            channel.send(Rejected("it did not leave"))
            return
        channel.send(Registered(0, "run", plan, 60.0))
        channel.send(TaskAssignment(7, bases.pop(0), 2, 3, model))
        said.append(await channel.receive())
        if len(said) > 1:
            said.append(await channel.receive())  # after the pending update, which is sent at once
        await channel.close()

    async def run() -> None:
        await network.listen(server)
        told = "the server has gone back from version 5 to 4: what was spent since is not counted"
        with pytest.raises(UsageError, match=told):
            await asyncio.wait_for(join(network.connect("site"), data), 300)
        await network.close()

    with torch_left_alone():
        asyncio.run(run())
    assert [type(message) for message in said] == [UpdateSubmission, UpdateSubmission, Leave]


def test_a_policy_that_insists_on_noise() -> None:
    policy = SitePolicy(noise=4.0)
    for privacy, told in ((None, "a run without noise"), (PRIVACY, "noise of multiplier 2")):
        with pytest.raises(UsageError, match=f"refuses {told}: it needs at least noise = 4"):
            policy.check_plan(ob.fedbuff().objective, (), privacy)
    policy.check_plan(ob.fedbuff().objective, (), ob.Privacy(clip=CLIP, noise=ob.Noise(multiplier=4)))
