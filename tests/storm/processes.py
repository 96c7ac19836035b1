"""Processes of a benchmark: children that do one piece of work each, and can be killed."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from offbeat.cli import main as offbeat


def fork(work: Callable[[], object], log: Path) -> int:
    """Do something in a process of its own, which writes to `log`; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def leave_when_told() -> None:
    """Let SIGTERM end this process as an exception does, so that it ends its children first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def ended(process: int) -> int | None:
    """A child's exit status, if it has ended."""
    done, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def has_ended(process: int) -> bool:
    """Whether a child has ended; its exit status is kept for `ended`."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process, options) is not None


def kill(process: int) -> None:
    """Kill a child that may be stopped."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


def call_offbeat(words: list[str]) -> None:
    """The command line, in this process."""
    torch.set_num_threads(1)
    sys.argv = ["offbeat", *words]
    offbeat()
