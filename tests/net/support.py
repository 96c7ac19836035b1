"""What several tests of the network use: data, a server that records, links that say hello, raw calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grpc import aio

import offbeat as ob
from offbeat.algorithms.privacy.private import without_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.learner import Learner, NoTraining
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.root import TrainRoot
from offbeat.data.dataset import Dataset
from offbeat.experiment import Experiment, PreparedRun
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import GrpcListener, listen
from offbeat.net.messages import FromSite, Heartbeat, Register, UpdateAck, UpdateSubmission
from offbeat.net.run_spec import RunSpec, make_run_spec
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.serve import serve as serve_run
from offbeat.net.server.server_learner import Trained, server_learner
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.transport import ChannelClosedError, ClientChannel, ServerChannel
from offbeat.net.wire.limits import Limits
from offbeat.testing import FakeClock

LIMITS = Limits(drain=1.0)
ENDLESS, NEVER, GUARD = ob.Until(), ob.Every(), ob.Guard()
CONNECT = "/offbeat.v1.Federation/Connect"
Shares = tuple[list[Dataset], Dataset]
"""The data of each site, and those for tests."""


def shares_of_digits(sites: int, samples: int, test_samples: int) -> Shares:
    """Equal parts of the digits."""
    source = ob.load("digits", samples=samples, test_samples=test_samples)
    return [source.train.subset(p) for p in np.array_split(np.arange(samples), sites)], source.test


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites pause shortly between two attempts."""
    monkeypatch.setattr("offbeat.net.backoff.FIRST_DELAY", 0.01)
    monkeypatch.setattr("offbeat.net.backoff.LONGEST_DELAY", 0.05)


@contextmanager
def torch_left_alone() -> Iterator[None]:
    """Begin with two threads of PyTorch; restore their number and the random generator at the end."""
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    torch.set_rng_state(state)


@dataclass(frozen=True)
class Directed(NoTraining):
    """A learner that says whether more is better of its metrics."""

    higher_is_better: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Terms:
    """What tests say of a run on a network: its limits, evaluations and guard, and the server's options."""

    until: ob.Until
    evaluate: ob.Every
    guard: ob.Guard | None
    server: ServerOptions

    def experiment(
        self, algorithm: Algorithm, learner: Learner | None, seed: int = 0, **options: Any
    ) -> Experiment:
        """An experiment on these terms."""
        return Experiment(
            algorithm, learner, seed, until=self.until, evaluate=self.evaluate, guard=self.guard, **options
        )


def terms_of(
    *,
    until: ob.Until = ENDLESS,
    evaluate: ob.Every = NEVER,
    guard: ob.Guard | None = GUARD,
    **server: Any,
) -> Terms:
    """Terms with these options of a server. The run has no limits, and no evaluations, but those given."""
    return Terms(until, evaluate, guard, ServerOptions(**server))


async def serve(
    algorithm: Algorithm,
    model: Trained,
    training: ob.Training | None,
    state: Path,
    listen: Any,
    *,
    options: Terms | None = None,
    seed: int = 0,
    sample_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    test: Any = None,
    initial: Any = None,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    privacy: ob.Privacy | None = None,
    started: Callable[[Any], object] | None = None,
    **given: Any,
) -> str | None:
    """Serve a run to its end; returns why it ended. `started` is called with its service."""
    terms = options or terms_of()
    experiment = terms.experiment(
        algorithm, server_learner(model, training, test, sample_shape, classes), seed,
        initial=initial, label=label, recipe=recipe, privacy=privacy,
    )  # fmt: skip
    async with serve_run(experiment, state, listen, options=terms.server, **given) as server:
        if started is not None:
            started(server.service)
        return await server.ended()


def run_spec(
    algorithm: Algorithm, learner: Learner, seed: int = 0, privacy: ob.Privacy | None = None
) -> RunSpec:
    """The specification of a run with complete options of privacy."""
    return make_run_spec(Experiment(algorithm, learner, seed, privacy=privacy))


def coordinator_from(
    algorithm: Algorithm,
    initial: Model,
    terms: Terms,
    info: RunInfo,
    higher_is_better: Mapping[str, bool] = {},
    *,
    seed: int = 0,
    train_root: TrainRoot | None = None,
    release_plan: ReleasePlan | None = None,
    seeds: FreshSeeds | None = None,
) -> Coordinator:
    """A coordinator of a run that starts from a model; limits and evaluations are those of the terms."""
    options = terms.server
    learner = Directed(options.clients, higher_is_better=higher_is_better)
    experiment = terms.experiment(without_privacy(algorithm), learner, seed)
    run = PreparedRun(
        experiment, options.clients, initial, algorithm, train_root=train_root, release_plan=release_plan
    )
    return Coordinator(run, options, info, seeds)


@dataclass
class Heard:
    """What a server heard of each site, whose links there were, and how they ended."""

    said: dict[str, list[FromSite]] = field(default_factory=dict)
    ended: list[tuple[str, str]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    async def on_channel(self, link: ServerChannel) -> None:
        """Record, answer heartbeats, give receipts."""
        self.links.append(link.site)
        try:
            while True:
                message = await link.receive()
                self.said.setdefault(link.site, []).append(message)
                if isinstance(message, Heartbeat):
                    link.send(message)
                elif isinstance(message, UpdateSubmission):
                    link.send(UpdateAck(message.task, True))
        except ChannelClosedError as error:
            self.ended.append((link.site, str(error)))


@dataclass
class Open:
    """A listening server."""

    listener: GrpcListener
    heard: Heard
    address: str


@asynccontextmanager
async def server(
    credentials: ServerCredentials | None = None,
    limits: Limits = LIMITS,
    on_channel: Callable[[ServerChannel], Awaitable[None]] | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Open]:
    """A server on a free port."""
    heard = Heard()
    listener = await listen(
        f"{host}:0", credentials or ServerCredentials(), limits, on_channel or heard.on_channel
    )
    try:
        yield Open(listener, heard, f"{host}:{listener.port}")
    finally:
        await listener.close()


@asynccontextmanager
async def site(
    address: str, credentials: SiteCredentials | str, limits: Limits = LIMITS
) -> AsyncIterator[ClientChannel]:
    """A link that has said hello."""
    if isinstance(credentials, str):
        credentials = SiteCredentials(name=credentials)
    link = await connect(address, credentials, limits)
    try:
        link.send(Register(10, 1))
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def raw(address: str, metadata: Sequence[tuple[str, str | bytes]] = ()) -> AsyncIterator[Any]:
    """A call that says what it likes."""
    channel = aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    call = channel.stream_stream(CONNECT)(metadata=tuple(metadata))
    try:
        yield call
    finally:
        call.cancel()
        await channel.close()


async def status(call: Any) -> tuple[str, str]:
    """How a call ended; what it was told before is read over."""
    async with asyncio.timeout(300):
        with suppress(aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
            while isinstance(await call.read(), bytes):
                pass
        return (await call.code()).name, await call.details()


async def write(call: Any, *frames: bytes) -> None:
    """Send frames to a server that may have hung up."""
    with suppress(aio.AioRpcError, asyncio.InvalidStateError, aio.UsageError):
        for frame in frames:
            await call.write(frame)


def recording(
    connect: Callable[[], Awaitable[ClientChannel]], said: list[FromSite]
) -> Callable[[], Awaitable[ClientChannel]]:
    """Opens connections, and writes down all that is sent to the server."""

    async def opened() -> ClientChannel:
        channel = await connect()
        send = channel.send
        channel.send = lambda message: (said.append(message), send(message))[1]  # type: ignore[method-assign]
        return channel

    return opened


async def until(ready: Callable[[], bool]) -> None:
    """Wait for something that is about to be true."""
    async with asyncio.timeout(300):
        while not ready():
            await asyncio.sleep(0.01)


class Patient(FakeClock):
    """Time passes as fast as it is asked for."""

    async def sleep(self, seconds: float) -> None:
        await self.advance(seconds)
        await super().sleep(0)
