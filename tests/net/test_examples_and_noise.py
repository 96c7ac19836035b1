"""Privacy of examples together with a run's own privacy: both count, nothing else leaves a site."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.torch_learner import TorchLearner
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.client.examples_ledger import ExamplesSpent
from offbeat.net.messages import FromSite, Heartbeat, Leave, Register, UpdateSubmission
from offbeat.net.secure.helping import help_run
from offbeat.sim.replay import replay
from offbeat.testing.network import MemoryNetwork
from tests.digits import equal_digits
from tests.net.support import hurry, recording, serve, shares_of_digits, terms_of, torch_left_alone
from tests.net.test_secure_run import HELPERS
from tests.net.test_what_leaves_a_site import failing
from tests.sampling import needs, thorough

needs("opacus")

SITES, STEPS, TASKS, CLIP = 4, 2, 16, 0.5
EXAMPLES = ExamplesPrivacy(noise=2.0, clip=1.0)
NOISE = ob.Noise(multiplier=2.0, budget=ob.Budget(epsilon=50.0, delta=1e-3))
NOISY = ob.Privacy(clip=CLIP, least=2, noise=NOISE)
MASKED = ob.Privacy(clip=CLIP, least=3, noise=NOISE, secure=ob.Secure(helpers=HELPERS))
TRAINING = ob.Training(lr=0.1, batch_size=20)


def federation(
    directory: Path, privacy: ob.Privacy | None, said: list[FromSite], algorithm: Any = None
) -> list[str | BaseException]:
    """A run over links in memory; returns how the server and its sites ended."""
    data, test = shares_of_digits(SITES, samples=60 * SITES, test_samples=60)
    network, helpers = MemoryNetwork(), HELPERS if privacy is not None and privacy.secure else ()

    def connect(name: str) -> Any:
        return recording(network.connect(name), said)

    async def run() -> list[str | BaseException]:
        options = terms_of(clients=SITES, until=ob.Until(tasks=TASKS))
        server = asyncio.create_task(
            serve(
                algorithm or ob.fedbuff(size=2, steps=STEPS), LogisticSpec(), TRAINING, directory / "run",
                network.listen, options=options, test=test, seed=3, privacy=privacy, linger=0.2,
            )
        )  # fmt: skip
        helping = [
            asyncio.create_task(help_run(network.connect(name), name, directory / name)) for name in helpers
        ]
        sites = [
            join(
                connect(f"site-{i}"), own, validation=0.1, state=directory / f"site-{i}",
                examples_privacy=EXAMPLES,
            )
            for i, own in enumerate(data)
        ]  # fmt: skip
        ended = await asyncio.wait_for(asyncio.gather(*sites, return_exceptions=True), 300)
        if not any(isinstance(end, BaseException) for end in ended):
            await asyncio.wait_for(server, 300)
        for task in (server, *helping):
            task.cancel()
        await asyncio.gather(server, *helping, return_exceptions=True)
        return list(ended)

    with torch_left_alone():
        return asyncio.run(run())


@pytest.mark.parametrize(
    "privacy", [NOISY, *thorough(MASKED)], ids=lambda p: "masked" if p.secure else "noisy"
)
def test_both_count_over_a_network_and_nothing_else_leaves(
    privacy: ob.Privacy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some trainings fail with data in the error's text."""
    if privacy.secure:
        pytest.importorskip("cryptography")
    hurry(monkeypatch)
    said: list[FromSite] = []
    monkeypatch.setattr(TorchLearner, "train", failing(TorchLearner.train))
    assert federation(tmp_path, privacy, said) == [f"reached {TASKS} client tasks"] * SITES
    assert {type(message) for message in said} <= {Register, Heartbeat, UpdateSubmission, Leave}
    updates = [message for message in said if isinstance(message, UpdateSubmission)]
    assert all((u.metrics, u.shared) == ({}, None) and not u.integers.any() for u in updates)
    registers = [message for message in said if isinstance(message, Register)]
    assert {(r.labels, r.held_out) for r in registers} == {((), 0)}
    assert "Ann" not in repr(said)
    record = ob.read_run(tmp_path / "run")
    assert replay(record, ob.fedbuff(size=2, steps=STEPS)).difference is None
    rows = list(record.rows())
    begun = Counter(row.client for row in rows if row.name == "train")
    names = {name: client for client, name in record.site_names().items()}
    arrived = Counter(row.client for row in rows if row.name == "arrived")
    assert arrived.total() >= TASKS
    for i in range(SITES):  # on a busy machine one of them may have had no task, or not its last
        client = names[f"site-{i}"]
        spent = ExamplesSpent.read(tmp_path / f"site-{i}") or ExamplesSpent()
        assert {(noise, rate) for noise, rate, _ in spent.history} <= {(EXAMPLES.noise, 20 / 54)}
        assert STEPS * arrived[client] <= spent.steps <= STEPS * begun[client]
    releases = [row.data or {} for row in rows if row.name == "aggregate"]
    in_releases = Counter(client for data in releases for client in data["clients"])
    assert releases[-1]["epsilon"] > releases[0]["epsilon"] > 0
    assert record.meta["summary"]["privacy"]["releases"] <= max(in_releases.values())


def test_both_count_in_a_simulation() -> None:
    """The run's accounting is that of the same run without privacy of examples, which counts steps alone."""

    def run(examples: ExamplesPrivacy | None) -> ob.Run:
        data = equal_digits(4, samples=240, test_samples=60)
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        learner = ob.TorchLearner(module, data, TRAINING, examples=examples)
        algorithm, until = ob.fedbuff(size=2, steps=STEPS), ob.Until(tasks=TASKS)
        return ob.simulate(algorithm, ob.World(clients=4), learner, seed=1, until=until, privacy=NOISY)

    with torch_left_alone():
        plain, private = run(None), run(EXAMPLES)
    for found in (plain, private):
        assert found.stop_reason == f"reached {TASKS} client tasks"
    kept = ("t", "name", "client", "task", "steps", "version", "weights", "epsilon", "mu", "spent")
    journals = [[[e.get(key) for key in kept] for e in found.journal] for found in (plain, private)]
    assert journals[0] == journals[1]
    assert private.summary.privacy == plain.summary.privacy
    assert not torch.equal(private.model.values, plain.model.values)


@pytest.mark.parametrize(
    ("algorithm", "objective"),
    [
        (ob.fedasmu(steps=4, ask={"kind": "fixed"}), "freshmerge"),
        *thorough(
            (ob.fedasmu(steps=4), "freshmerge"),
            (ob.fedssmu(steps=4), "freshmerge"),
            (ob.scaffold(steps=2), "controlvariates"),
            (ob.asofed(steps=2), "online"),
        ),
    ],
)
def test_an_algorithm_that_takes_more_than_gradients_is_refused_before_anything_is_charged(
    algorithm: Any, objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedASMU's too, whose clients ask in mid-task, learn a weight from losses, and report a reward."""
    hurry(monkeypatch)
    said: list[FromSite] = []
    ended = federation(tmp_path, None, said, algorithm)
    told = f"examples privacy knows the objectives plain and proximal, {objective} is another"
    assert all(isinstance(error, UsageError) and str(error).startswith(told) for error in ended), ended
    assert {type(message) for message in said} <= {Register, Heartbeat, Leave}
    assert not list(tmp_path.glob("site-*/examples.safetensors"))
