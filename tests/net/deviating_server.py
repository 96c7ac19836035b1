"""A server that does as a test says, whatever it has promised, and what a site sends to it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import OffbeatError
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.messages import (
    FromSite,
    Registered,
    RunFinished,
    TaskAssignment,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.server_learner import server_learner
from offbeat.net.transport import ChannelClosedError, ServerChannel
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.testing.network import MemoryNetwork
from tests.net.support import recording, run_spec, shares_of_digits

SITES = 4
TRAINING = ob.Training(lr=0.1, batch_size=20)
HELPERS = ("anna", "bert", "cleo")
(DATA,), TEST = shares_of_digits(1, samples=60, test_samples=60)
LEARNER = server_learner(LogisticSpec(), TRAINING, TEST, None, None)
MODEL = LEARNER.initial(3)
Script = Callable[[ServerChannel], Awaitable[None]]


def plan_of(privacy: ob.Privacy | None, algorithm: Algorithm | None = None) -> dict[str, Any]:
    """The plan of a run with these options."""
    algorithm = algorithm or ob.fedbuff(size=2, steps=2)
    complete = None if privacy is None else complete_privacy(privacy, algorithm, SITES)
    return run_spec(algorithm, LEARNER, 3, complete).document()


def committee_of(privacy: ob.Privacy, draw: str = "", epoch: int = 1) -> Committee:
    """The committee of these options, whose keys follow from `draw`."""
    complete = complete_privacy(privacy, ob.fedbuff(size=2, steps=2), SITES)
    secure = complete.secure
    assert secure is not None
    assert complete.clip is not None
    assert complete.most is not None
    keys = [[sha256(f"{h} {draw}{kind}".encode()).digest() for kind in ("", "vote")] for h in secure.helpers]
    members = [CommitteeMember(h, *own) for h, own in zip(secure.helpers, keys, strict=True)]
    return Committee(
        b"r" * 32, epoch, tuple(members), secure.most_colluding, complete.fewest, complete.colluding_clients,
        complete.most, complete.dominance, complete.bits, MODEL.layout.parameters, complete.clip,
    )  # fmt: skip


def task_of(number: int, **changed: Any) -> TaskAssignment:
    """A task; those of higher numbers begin with later versions."""
    return TaskAssignment(
        **{"task": number, "base": number, "steps": 2, "seed": 3, "model": MODEL, **changed}
    )


def serving(
    privacy: ob.Privacy | None,
    tasks: Sequence[TaskAssignment],
    committee: Committee | None = None,
    run: str = "heart",
    *,
    acknowledges: bool = True,
) -> Script:
    """Register the site, give it these tasks one after another, and end the run."""

    async def script(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, run, plan_of(privacy), 60.0, False, "site"))
        if committee is not None:
            channel.send(committee)
        for task in tasks:
            channel.send(task)
            while getattr(update := await channel.receive(), "task", None) != task.task:
                pass
            assert isinstance(update, UpdateSubmission)
            channel.send(UpdateAck(task.task, acknowledges, "" if acknowledges else "say it again"))
        channel.send(RunFinished("done", run))
        await channel.receive()

    return script


def meet(
    script: Script, state: Path | None, *, accept: Collection[str] = (), data: Any = DATA, **options: Any
) -> tuple[str | OffbeatError, list[FromSite]]:
    """Let a site meet a server; how it ended there, and what it has sent."""
    said: list[FromSite] = []
    more = {**options, **({"accept": accept} if accept else {})}

    async def deviate(channel: ServerChannel) -> None:
        with suppress(ChannelClosedError):
            await script(channel)

    async def run() -> str | OffbeatError:
        network = MemoryNetwork()
        await network.listen(deviate)
        joining = join(recording(network.connect("site"), said), data, state=state, **more)
        try:
            return await asyncio.wait_for(joining, 300)
        except OffbeatError as error:
            return error
        finally:
            await network.close()

    return asyncio.run(run()), said


def sent_of_training(said: Sequence[FromSite]) -> list[FromSite]:
    """What a site has sent beside the handshake and its farewell."""
    return [message for message in said if type(message).__name__ not in ("Register", "Heartbeat", "Leave")]


def code_of(error: str | OffbeatError) -> str:
    """The code by which a refusal is accepted by hand."""
    return str(error).rpartition("--accept ")[2]
