"""How worker processes start: as forks of a process that has imported Offbeat and PyTorch.

A process started by `spawn` imports them again, which takes longer than many a run. The fork server imports
them once, trains nothing and has no threads; it ends with this process, however that ends. Where a fork
server cannot be used, `spawn` starts the same processes, only later.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch.multiprocessing

from offbeat.core.errors import UsageError
from offbeat.signals import kept_from_children

UNGUARDED = 79
"""Exit code of a worker whose main module simulates as it is imported."""
NEEDS_GUARD = (
    "a script that simulates with worker processes must do so under `if __name__ == '__main__':`, as each of "
    "them imports it"
)
"""What the process that started such a worker says."""
_WORKER = "offbeat-worker"


def worker_context() -> Any:
    """The context of worker processes; its fork server is running.

    What a worker gets of this process is what `spawn` gives it: the main module imported under another name,
    the search path, the current directory. The environment is an argument of its own: `adopt_environment`.
    """
    refuse_while_main_is_imported()
    nested = multiprocessing.parent_process() is not None
    if nested or "forkserver" not in multiprocessing.get_all_start_methods():
        return spawn_context()
    # Some systems lack this module.
    from multiprocessing import forkserver, resource_tracker

    context = _named("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.partition(".")[0] == "offbeat"])
    try:
        # The tracker's start would unblock SIGINT here again.
        resource_tracker.ensure_running()
        # The fork server imports for seconds, in which a Ctrl-C would print a traceback. What Ctrl-C means
        # to workers, the parent says.
        with _search_path_in_environment(), kept_from_children():
            forkserver.ensure_running()
    except ChildProcessError:
        # This process is a fork itself: the server is a child of its parent.
        return spawn_context()
    return context


def refuse_while_main_is_imported() -> None:
    """End a worker that imports a main module which simulates: it would do again what its parent does.

    Raises:
        UsageError: The process is no worker of ours, so nobody else would say why it ends.
    """
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name == _WORKER:
        os._exit(UNGUARDED)
    raise UsageError(NEEDS_GUARD)


def spawn_context() -> Any:
    """The context in which a worker process starts from nothing."""
    return _named("spawn")


def _named(method: str) -> Any:
    """The context of a start method; its processes know by their name that they are workers of ours."""
    context: Any = copy(torch.multiprocessing.get_context(method))
    context.Process = partial(context.Process, name=_WORKER)
    return context


def adopt_environment(variables: Mapping[str, str]) -> None:
    """Take over the environment of the process that asked for this one; the fork server's may be older."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def _search_path_in_environment() -> Iterator[None]:
    """Let a new interpreter search for modules where this one does: not in the current directory first."""
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    changed = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in changed if name in os.environ}
    os.environ |= changed
    try:
        yield
    finally:
        for name in changed.keys() - before.keys():
            del os.environ[name]
        os.environ |= before
