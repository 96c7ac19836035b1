"""Comparing algorithms: every label under every seed, several runs at a time, each in its own directory.

A comparison can be called again on the same directory: finished runs are kept, interrupted ones go on
from their last checkpoint.
"""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.recipes.build import make_algorithm, make_learner, resume_run, run_recipe
from offbeat.recipes.load import document_of
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay, import_ray
from offbeat.sim.executors.start_method import adopt_environment, worker_context
from offbeat.sim.progress import Progress
from offbeat.sim.signals import terminated_as_interrupted


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison; its clients keep at most `client_memory` bytes in memory (none: all).

    Without an `executor` it trains in its own process.
    """

    recipe: Recipe
    spec: Mapping[str, Any]
    seed: int
    directory: Path
    client_memory: int | None = None
    executor: Batched | OnRay | None = None

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.spec['label']} seed {self.seed}"


@dataclass(frozen=True)
class RunProgress:
    """News of one job: its progress, or that it is over (`error` says how it failed)."""

    job: str
    progress: Progress | None = None
    over: bool = False
    error: str | None = None


def plan(
    recipe: Recipe,
    labels: Sequence[str],
    seeds: int,
    out: Path,
    client_memory: int | None = None,
    executor: Batched | OnRay | None = None,
) -> list[PlannedRun]:
    """The jobs of a comparison, checked: algorithms, data and directories are as they must be."""
    jobs = []
    for seed in range(recipe.seed, recipe.seed + seeds):
        for label in labels:
            spec = {"label": label, **recipe.spec(label)}
            make_algorithm(spec)
            place = out / label / f"seed-{seed}"
            jobs.append(PlannedRun(recipe, spec, seed, place, client_memory, executor))
    learner = make_learner(recipe, recipe.seed)
    for job in jobs[: len(labels)]:
        _check_concurrency(make_algorithm(job.spec).schedule.concurrency, learner.clients, job)
    for job in jobs:
        _check_same(job)
    return jobs


def compare(
    jobs: Sequence[PlannedRun], processes: int, watch: Callable[[RunProgress], None]
) -> list[RunRecord]:
    """Run the jobs, so many at a time; `watch` hears of each. Raises `RunError` if one failed.

    The other jobs are finished first, and what they computed is kept. SIGTERM ends it as Ctrl-C does: the
    runs at work are left at a checkpoint.
    """
    if any(isinstance(job.executor, OnRay) for job in jobs):
        import_ray()  # if it is not there, once for all and at once
    failed: list[str] = []
    with terminated_as_interrupted():
        for report in _reports(jobs, min(processes, len(jobs))):
            watch(report)
            if report.error is not None:
                failed.append(f"{report.job}: {report.error}")
    if failed:
        raise RunError("; ".join(failed))
    return [read_run(job.directory) for job in jobs]


def _reports(jobs: Sequence[PlannedRun], processes: int) -> Iterator[RunProgress]:
    context = worker_context()
    news: Any = context.Queue()
    with ProcessPoolExecutor(processes, context, _prepare, (dict(os.environ), news)) as pool:
        running: list[Future[None]] = [pool.submit(_run, job) for job in jobs]
        over = 0
        try:
            while over < len(jobs):
                try:
                    report = news.get(timeout=0.5)
                except queue.Empty:
                    for future in running:
                        if future.done() and (error := future.exception()):  # the process itself died
                            raise RunError(f"a run's process ended: {error}") from None
                    continue
                over += report.over
                yield report
        except BaseException:
            workers = list((pool._processes or {}).values())  # a pool that is shut down forgets them
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers:
                process.terminate()  # its run is left at a checkpoint
            raise


_news: Any = None
_interrupted = False


def _prepare(environment: Mapping[str, str], news: Any) -> None:
    global _news
    adopt_environment(environment)
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates them
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's process does not outlive a parent that was killed: its run stays at its checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(job: PlannedRun) -> None:
    """In a process of the pool: run, resume or keep what is there."""
    global _interrupted
    if _interrupted:  # it was handed out before the parent called everything off
        return

    def watch(progress: Progress) -> None:
        _news.put(RunProgress(job.name, progress))

    try:
        if (job.directory / DATABASE).exists():
            resume_run(job.directory, executor=job.executor, watch=watch, client_memory=job.client_memory)
        else:
            run_recipe(
                job.recipe, job.spec, seed=job.seed, out=job.directory, executor=job.executor,
                watch=watch, client_memory=job.client_memory,
            )  # fmt: skip
    except OffbeatError as error:
        _news.put(RunProgress(job.name, over=True, error=str(error)))
    except KeyboardInterrupt:
        _interrupted = True
    except Exception as error:
        _news.put(RunProgress(job.name, over=True, error=f"{type(error).__name__}: {error}"))
    else:
        _news.put(RunProgress(job.name, over=True))


def _check_concurrency(concurrency: int | None, clients: int, job: PlannedRun) -> None:
    if concurrency is not None and concurrency > clients:
        raise UsageError(
            f"{job.spec['label']}: {concurrency} clients cannot train at the same time, there are {clients}"
        )


def _check_same(job: PlannedRun) -> None:
    """What is already in the job's directory must be the same experiment."""
    if not (job.directory / DATABASE).exists():
        return
    record = read_run(job.directory)
    algorithm = make_algorithm(job.spec)
    wanted = {"name": algorithm.name, **algorithm.hyperparameters}
    same = _essence(record.recipe) == _essence(document_of(job.recipe)) and record.meta["algorithm"] == wanted
    if not same:
        raise UsageError(f"{job.directory} holds another experiment's run: choose another --out")


def _essence(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parts of a recipe that a single run depends on."""
    beside = {
        "title", "about", "algorithm", "algorithms", "seed", "seeds", "target", "baseline", "claims",
        "scales",
    }  # fmt: skip
    return {k: v for k, v in (document or {}).items() if k not in beside}
