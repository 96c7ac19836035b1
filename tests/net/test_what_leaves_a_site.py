"""All messages of a whole run with noise: nothing leaves a site that docs/privacy.md does not list."""

import asyncio
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.models.registry import LogisticSpec
from offbeat.net import ServerOptions, SitePolicy, join, serve
from offbeat.net.client.store import SiteStore
from offbeat.net.messages import FromSite, Heartbeat, Leave, Register, UpdateSubmission
from offbeat.net.transport import ClientChannel
from offbeat.testing.network import MemoryNetwork
from tests.net.support import hurry, shares_of_digits, torch_left_alone

CLIP = 0.5
PRIVACY = ob.Privacy(clip=CLIP, least=2, noise=ob.Noise(multiplier=2))
TRAINING = ob.Training(lr=0.1, batch_size=20)


def test_nothing_leaves_a_site_that_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    data, test = shares_of_digits(3, samples=180, test_samples=60)
    said: list[FromSite] = []
    network = MemoryNetwork()

    def connect(name: str):  # type: ignore[no-untyped-def]
        async def opened() -> ClientChannel:
            channel = await network.connect(name)()
            send = channel.send
            channel.send = lambda message: (said.append(message), send(message))[1]  # type: ignore[method-assign]
            return channel

        return opened

    async def run() -> str | None:
        options = ServerOptions(clients=3, until=ob.Until(tasks=12), evaluate=ob.Every(versions=2))
        server = asyncio.create_task(
            serve(
                ob.fedbuff(size=2, steps=2), LogisticSpec(), TRAINING, tmp_path / "run", network.listen,
                options=options, test=test, seed=3, privacy=PRIVACY, linger=0.2,
            )
        )  # fmt: skip
        policy = SitePolicy(noise=2.0)
        sites = [
            asyncio.create_task(join(connect(f"site-{i}"), d, validation=0.2, policy=policy))
            for i, d in enumerate(data)
        ]
        reason = await server
        await asyncio.wait_for(asyncio.gather(*sites, return_exceptions=True), 300)
        return reason

    with torch_left_alone():
        monkeypatch.setattr("offbeat.local.learner.TorchLearner.train", failing(ob.TorchLearner.train))
        assert asyncio.run(run()) == "reached 12 client tasks"
    assert {type(message) for message in said} <= {Register, Heartbeat, UpdateSubmission, Leave}
    for message in said:
        match message:
            case Register():
                assert message.labels is None
            case UpdateSubmission():
                assert message.metrics == {}
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


def test_a_site_leaves_when_the_server_goes_back(tmp_path: Path) -> None:
    store = SiteStore(tmp_path / "site")
    store.begin("run")
    for task, base in ((0, 0), (3, 17), (9, 41), (9, 41)):
        store.check_version(task, base)
    store.close()
    again = SiteStore(tmp_path / "site")
    told = "the server has gone back from version 41 to 17: what was spent since is not counted"
    with pytest.raises(UsageError, match=told):
        again.check_version(4, 17)
    again.check_version(12, 41)
    again.begin("another run")
    again.check_version(0, 0)
    again.close()


def test_a_policy_that_insists_on_noise() -> None:
    policy = SitePolicy(noise=4.0)
    for noise, told in ((0.0, "a run without noise"), (2.0, "noise of multiplier 2")):
        with pytest.raises(UsageError, match=f"refuses {told}: it needs at least noise = 4"):
            policy.check_plan(ob.fedbuff().objective, (), noise)
    policy.check_plan(ob.fedbuff().objective, (), 4.0)
