"""Whether a server can open a run in a state directory, found before anything is written there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from offbeat.core.errors import RunError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.learner import in_order
from offbeat.core.limits import check_evaluated, check_found
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.privacy.refusals import Refusal
from offbeat.experiment import Experiment, PreparedRun, check_entry
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.run_spec import RunSpec, make_run_spec
from offbeat.net.server.server_learner import evaluates
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.wire.limits import Limits
from offbeat.runs.cached_vectors import check_cache_memory
from offbeat.runs.extension import goes_on
from offbeat.runs.record import RunRecord, holds_run, read_run
from offbeat.secure.committee import entry_bytes
from offbeat.secure.refusals import SecureRefusal

_ENTRY_BYTES = 300  # of an update in a request to a helper, beside its box: the site's name and numbers


@dataclass(frozen=True)
class CheckedRun:
    """A run that a server can open.

    Attributes:
        learner: The run's learner.
        record: The run as its directory has it. None means a new run.
        layout: The layout of its model.
        spec: What sites are told of it.
        tested: Whether the server can evaluate.
        bounded: Whether each release is bounded, by privacy.
        prepared: Its initial state. None means that the run has ended.
    """

    learner: TorchLearner | LoopLearner
    record: RunRecord | None
    layout: Layout
    spec: RunSpec
    tested: bool
    bounded: bool
    prepared: PreparedRun | None


def check_run(experiment: Experiment, directory: Path, options: ServerOptions) -> CheckedRun:
    """Check all of a run that a server could refuse; nothing is written.

    The process computes with one thread from here on, as the simulator does: more would change the last bits.

    Args:
        experiment: What the run is; its learner is a server's.
        directory: The state directory.
        options: The server's options.

    Raises:
        UsageError: What is asked cannot be served, or the directory holds another run.
        RunError: The directory holds a run that cannot go on.
    """
    learner, seed = experiment.learner, experiment.seed
    if not isinstance(learner, TorchLearner | LoopLearner):
        given = "none" if learner is None else f"a {type(learner).__name__}"
        raise UsageError(
            f"a server needs a learner that sites can be told of, and the experiment has {given}: give "
            "Experiment(learner=…) a TorchLearner, a LoopLearner or what offbeat.net.server_learner returns"
        )
    tested = evaluates(learner)
    _check_evaluation(options, experiment, tested)
    record = read_run(directory) if holds_run(directory) else None
    if record is not None:
        learner = in_order(learner, record.columns)
        experiment = replace(experiment, learner=learner)
    clients, layout = options.clients, learner.initial(seed).layout
    if (privacy := experiment.privacy) is not None:
        _check_private(privacy, experiment, options)
        clients = _recorded_clients(options, record)
    check_cache_memory(options.cache_memory, experiment.algorithm, layout)
    plan = experiment.release_plan(layout, clients)
    if plan is not None:
        _check_releases(plan, options)
    spec = make_run_spec(replace(experiment, privacy=plan.privacy if plan is not None else None))
    prepared = None
    if record is not None:
        check_same(record, spec)
    if record is None or record.status != "finished" or goes_on(record, experiment.until):
        torch.set_num_threads(1)
        prepared = experiment.prepare(clients, tested=tested)
        _check_start(prepared, record, learner, tested=tested)
    return CheckedRun(learner, record, layout, spec, tested, plan is not None, prepared)


def _check_start(
    prepared: PreparedRun, record: RunRecord | None, learner: TorchLearner | LoopLearner, *, tested: bool
) -> None:
    """Check the initial model, and that it has the metrics that the run asks for."""
    if record is not None:
        with _wrong_usage():
            prepared.check_initial(record)
    until, every = prepared.experiment.until, prepared.experiment.evaluate
    # A metric that is not found is told now, not when all sites are there.
    if tested and (until.metrics or every.keep_best):
        check_found(until, every, learner.evaluate(prepared.complete(prepared.initial)))


def _recorded_clients(options: ServerOptions, found: RunRecord | None) -> int:
    """Number of sites with which a run with privacy began: more, it may be, than it waits for now."""
    if found is not None and "privacy" in found.meta:
        return int(found.meta["privacy"]["clients"])
    return options.clients


def _check_private(privacy: Privacy, experiment: Experiment, options: ServerOptions) -> None:
    """Raises `UsageError` for options that a server with privacy has not."""
    if privacy.secure is not None and not privacy.secure.helpers:
        raise Refusal.NO_HELPERS.error()
    if options.norm_bound is not None:
        raise Refusal.NORM_BOUND.error()
    if options.keep_updates:
        raise Refusal.KEEP_UPDATES.error()
    if (every := experiment.evaluate).at_clients:
        raise Refusal.CLIENT_METRICS.error(option=f"evaluate.at = {every.at!r}")


def _check_releases(plan: ReleasePlan, options: ServerOptions) -> None:
    """Raises `UsageError` for releases that a server cannot make."""
    privacy = plan.privacy
    # The run may wait for more sites than it was planned for.
    noise, most = privacy.noise, max(plan.clients, options.clients)
    if noise is not None and noise.budget.delta * most >= 1:
        raise Refusal.DELTA.error(delta=noise.budget.delta, clients=most)
    if privacy.fewest > plan.clients:
        raise Refusal.TOO_FEW_CLIENTS.error(least=privacy.fewest, clients=plan.clients)
    _check_requests(privacy)


def _check_requests(privacy: Privacy) -> None:
    """Raises `UsageError` where what helpers are asked about the largest release does not fit a message."""
    secure = privacy.secure
    if secure is None:
        return
    assert privacy.most is not None
    helpers, colluding = len(secure.helpers), secure.most_colluding
    boxes = entry_bytes(helpers, colluding)
    allowed = Limits().envelope // (boxes + _ENTRY_BYTES)
    if privacy.most > allowed:
        raise SecureRefusal.MOST.error(
            most=privacy.most, helpers=helpers, colluding=colluding, allowed=allowed
        )


def _check_evaluation(options: ServerOptions, experiment: Experiment, tested: bool) -> None:
    """Raises `UsageError` for evaluations that cannot be made, or do not tell what ends the run."""
    every = experiment.evaluate
    hint = "give test data, and evaluate seconds or versions"
    check_evaluated(experiment.until, every, tested, hint)
    if options.share_model == "best" and every.keep_best is None:
        raise UsageError(
            "share_model = 'best' needs evaluate.keep_best, the metric that it is best by: give it, "
            "or choose final"
        )
    if every.at_server and every.at_clients and not tested:
        raise UsageError("evaluate.at = 'both' needs test data at the server: give them, or choose clients")
    if every.at_clients and experiment.algorithm.buffers == "recompute":
        raise UsageError(
            "buffers = 'recompute' is not allowed with evaluations at sites, which have no estimated "
            "statistics: choose follow, mean or local, or evaluate.at = 'server'"
        )


def check_same(record: RunRecord, spec: RunSpec) -> None:
    """Check that a directory holds this run. Raises `UsageError` for another run, or a simulated one."""
    if not record.served:
        raise UsageError(f"{record.path} holds a simulated run: choose another state directory")
    told, document = record.meta["plan"], spec.document()
    if not told.get("columns"):
        # Sites of a run without names of columns can be told them later.
        document["columns"] = told.get("columns")
    with _wrong_usage():
        check_entry(record, "plan", document)


@contextmanager
def _wrong_usage() -> Iterator[None]:
    """Context that finds another run: no new start mends what was given."""
    try:
        yield
    except RunError as error:
        raise UsageError(
            f"{error}; give the recipe and options that it was begun with, or another directory"
        ) from None
