"""Serving a run, from its start or from where its state directory has it."""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import torch

from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Finalizer, finalizer, unchanged
from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import Metrics
from offbeat.core.model import Model
from offbeat.core.streams import check_seed
from offbeat.data.dataset import Dataset
from offbeat.local.learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.registry import ModelSpec
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.run_spec import RunSpec, evaluating_learner, make_run_spec
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import CHECKPOINT_SECONDS, DurableStore
from offbeat.net.server.evaluator import Evaluate
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.service import Service
from offbeat.net.server.sessions import tell_the_end
from offbeat.net.transport import ChannelClosedError, OnChannel, ServerChannel
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE, SERVED
from offbeat.version import __version__

ListenFactory = Callable[[OnChannel], Awaitable["Listener"]]
"""Opens a server's door: every link that comes in is given to the function it is called with."""


class Listener(Protocol):
    """A door that can be closed."""

    async def close(self) -> None:
        """Take no more links, and end those there are."""


async def serve(
    algorithm: Algorithm,
    model: ModelSpec,
    training: Training,
    state: str | Path,
    listen: ListenFactory,
    *,
    options: ServerOptions | None = None,
    seed: int = 0,
    sample_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    test: Dataset | None = None,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    linger: float = 10.0,
    started: Callable[[Service], None] | None = None,
) -> str | None:
    """Serve a run until it ends, and return why, or until the service is told to leave, and return None.

    `model` and `training` are what sites train, and how. `test` are the data the model is evaluated on;
    without them `sample_shape` (of one sample) and `classes` say what the model takes. `state` is the run's
    directory: where it holds this run already, the run goes on; if it has ended, sites are told so. `listen`
    opens the transport. When the run has ended the server waits at most `linger` seconds for sites that have
    not heard of it. `started` is given the service, to watch it and to end it.

    Raises `UsageError` for what cannot be served as asked, `RunError` for a run that fails.
    """
    options = options or ServerOptions()
    plan = plan_of(algorithm, model, training, seed, options, sample_shape, classes, test)
    reason = ended(Path(state), plan)
    if reason is not None:
        return await _tell(reason, listen, clock or SystemClock(), linger)
    learner = evaluating_learner(plan, test)
    service = open_service(
        algorithm, learner, plan, Path(state),
        options=options, label=label, recipe=recipe, clock=clock, checkpoint_seconds=checkpoint_seconds,
        evaluates=test is not None, linger=linger,
    )  # fmt: skip
    if started is not None:
        started(service)
    return await run_service(service, listen)


def plan_of(
    algorithm: Algorithm,
    model: ModelSpec,
    training: Training,
    seed: int,
    options: ServerOptions,
    sample_shape: tuple[int, ...] | None,
    classes: int | None,
    test: Dataset | None,
) -> RunSpec:
    """The plan of a run, as `serve` is asked for it; raises `UsageError`."""
    check_seed(seed)
    if test is not None:
        sample_shape, classes = test.sample_shape, test.classes
    if sample_shape is None or classes is None:
        raise UsageError("serve needs test data, or sample_shape and classes, to know what the model takes")
    if options.until.accuracy is not None and (test is None or options.evaluate.never):
        raise UsageError(
            f"until.accuracy = {options.until.accuracy} needs evaluations: give test data, and evaluate "
            "seconds or versions"
        )
    return make_run_spec(algorithm, model, training, seed, sample_shape, classes)


def ended(directory: Path, plan: RunSpec) -> str | None:
    """Why the run in a directory has ended, if it has."""
    if not (directory / DATABASE).is_file():
        return None
    record = read_run(directory)
    _check_same(record, plan)
    return (record.stop_reason or "") if record.status == "finished" else None


async def _tell(reason: str, listen: ListenFactory, clock: Clock, linger: float) -> str:
    """Tell those who come that the run is over: a server may die before all have heard of it."""

    async def on_link(link: ServerChannel) -> None:
        with suppress(ChannelClosedError):
            await tell_the_end(link, reason)
        await link.close()

    door = await listen(on_link)
    try:
        await clock.sleep(linger)
    finally:
        await door.close()
    return reason


async def run_service(service: Service, listen: ListenFactory) -> str | None:
    """Open the door, serve, and close the door."""
    try:
        door = await listen(service.on_link)
    except BaseException:
        await service.abandon()
        raise
    try:
        return await service.run()
    finally:
        await door.close()


def open_service(
    algorithm: Algorithm,
    learner: TorchLearner,
    plan: RunSpec,
    directory: Path,
    *,
    options: ServerOptions,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    evaluates: bool = True,
    linger: float = 10.0,
) -> Service:
    """A service on a new state directory, or on the one there is. `learner` makes and evaluates the model.

    The process computes with one thread from here on, as the simulator does: more would change the last bits.
    """
    evaluate, complete = make_evaluator(algorithm, learner, plan, evaluates)
    coordinator, opened, name = open_run(
        algorithm, learner, plan, directory,
        options=options, label=label, recipe=recipe, checkpoint_seconds=checkpoint_seconds, complete=complete,
    )  # fmt: skip
    return Service(coordinator, opened, evaluate=evaluate, clock=clock, label=name, linger=linger)


def make_evaluator(
    algorithm: Algorithm, learner: TorchLearner, plan: RunSpec, evaluates: bool
) -> tuple[Evaluate | None, Finalizer]:
    """How a server measures global models, if it `evaluates` them, and what makes the last one final."""
    initial = learner.initial(plan.seed)
    complete = finalizer(algorithm.buffers, learner if evaluates else None, initial, plan.seed)

    def evaluate(model: Model) -> Metrics:
        return learner.evaluate(complete(model))

    return evaluate if evaluates else None, complete


def open_run(
    algorithm: Algorithm,
    learner: TorchLearner,
    plan: RunSpec,
    directory: Path,
    *,
    options: ServerOptions,
    label: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    complete: Finalizer = unchanged,
) -> tuple[Coordinator, DurableStore, str]:
    """The coordinator of a run and its state directory, new or as they were left, and the run's label."""
    torch.set_num_threads(1)
    initial = learner.initial(plan.seed)
    found = read_run(directory) if (directory / DATABASE).is_file() else None
    if found is not None:
        _check_same(found, plan)
    run = str(found.meta["run"]) if found is not None else token_hex(8)
    coordinator = Coordinator(
        algorithm, initial, options,
        seed=plan.seed, run=run, plan=plan.document(), classes=plan.classes,
        batch_size=plan.training.batch_size,
    )  # fmt: skip
    if found is not None:
        state = DurableStore.reopen(directory, coordinator, checkpoint_seconds, complete)
    else:
        meta = {
            "offbeat": __version__,
            "label": label or algorithm.name,
            "algorithm": plan.algorithm,
            "seed": plan.seed,
            "clients": options.clients,
            "recipe": recipe,
            "run": run,
            "plan": plan.document(),
            "initial": initial.digest(),
        }
        state = DurableStore.create(directory, meta, coordinator, checkpoint_seconds, complete)
    name = str(found.meta["label"]) if found is not None else label or algorithm.name
    return coordinator, state, name


def _check_same(record: RunRecord, plan: RunSpec) -> None:
    """Is this the run that the directory holds, and if it has not ended, can this version go on with it?"""
    if "plan" not in record.meta:
        raise UsageError(f"{record.path} holds a simulated run: choose another state directory")
    if record.status != "finished":
        _check_format(record)  # first: an earlier version may have put the same plan into other words
    now, then = json.loads(json.dumps(plan.document())), record.meta["plan"]
    for key in {**then, **now}:
        if now.get(key) != then.get(key):
            raise RunError(
                f"{record.path} was started with another plan: {key} was {then.get(key)!r}, now it is "
                f"{now.get(key)!r}"
            )


def _check_format(record: RunRecord) -> None:
    """Can this version go on with a run?"""
    begun = record.meta["format"]
    if begun < SERVED:
        raise RunError(
            f"{record.path} is the state directory of a run that an earlier version of Offbeat began "
            f"({record.meta.get('offbeat')}, format {begun}; this version serves format {SERVED}): finish "
            "the run with that version, or choose another directory, in which it begins anew. Nothing was "
            "changed, and offbeat report, replay and journal read it"
        )
