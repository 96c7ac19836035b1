"""A run's callbacks, called one after another."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from offbeat.callbacks.callback import Callback, LiveRun
from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.core.model import Model
from offbeat.core.validation import check_type
from offbeat.runs.schema import Metric
from offbeat.version import __version__


def live_run(
    meta: Mapping[str, Any],
    directory: Path | None,
    past: Sequence[Metric],
    request_stop: Callable[[str], object],
) -> LiveRun:
    """The run as callbacks see it.

    Args:
        meta: What its directory records of it.
        directory: The directory, if there is one.
        past: The evaluations that were recorded before now.
        request_stop: Ends the run.
    """
    versions = {
        "offbeat": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    named = {name: meta[name] for name in ("label", "seed", "algorithm", "clients")}
    directions = dict(meta.get("higher_is_better", {}))
    return LiveRun(
        **named, recipe=meta.get("recipe"), directory=directory, versions=versions,
        higher_is_better=directions, past=tuple(past), request_stop=request_stop,
    )  # fmt: skip


class CallbackList:
    """The callbacks of one run.

    Args:
        callbacks: The callbacks, in the order in which they are called.

    Attributes:
        run: What they are told of the run, to be set before the first call.

    Raises:
        UsageError: One is not a `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        check_type("callbacks", callbacks, Sequence, "a list of callbacks")
        for number, callback in enumerate(callbacks):
            if not isinstance(callback, Callback):
                raise UsageError(
                    f"callbacks[{number}] = {callback!r} is not allowed: give an object of a class that is "
                    "derived from offbeat.Callback"
                )
        self._callbacks = tuple(callbacks)
        self.run: LiveRun | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._callbacks)

    @property
    def names(self) -> list[str]:
        """Their classes."""
        return [type(callback).__name__ for callback in self._callbacks]

    def on_start(self) -> None:
        """The run starts. Raises `OffbeatError` where a callback does; so do the methods that follow."""
        self._call("on_start")

    def on_evaluation(self, metrics: Metric, model: Model) -> None:
        """A version has been evaluated."""
        self._call("on_evaluation", metrics, model)

    def on_end(self, reason: str, model: Model) -> None:
        """Tell each callback that the run has finished, also where one before it has failed."""
        for _, failure in list(self.failures("on_end", reason, model)):
            raise failure

    @contextmanager
    def exceptions(self) -> Iterator[None]:
        """While inside, report an error to the callbacks once the run has started, and raise it again.

        What callbacks raise then becomes a note of it.
        """
        try:
            yield
        except BaseException as error:
            for _, failure in self.failures("on_exception", error) if self.run is not None else ():
                error.add_note(str(failure))
            raise

    def failures(self, method: str, *arguments: object) -> Iterator[tuple[str, OffbeatError]]:
        """Call a method of each callback.

        Yields:
            Of each that fails which method of which one it is, and its error in one line: an OffbeatError as
            it is, else a RunError caused by what was raised. The callbacks after it are called once the next
            failure is asked for.
        """
        for number, callback in enumerate(self._callbacks):
            try:
                getattr(callback, method)(self.run, *arguments)
            except OffbeatError as error:
                yield f"{number} {type(callback).__name__}.{method}", error
            except Exception as error:
                name = f"{type(callback).__name__}.{method}"
                failure = RunError(f"the callback {name} has failed: {_one_line(error)}")
                failure.__cause__ = error
                yield f"{number} {name}", failure

    def _call(self, method: str, *arguments: object) -> None:
        for _, failure in self.failures(method, *arguments):
            raise failure


def _one_line(error: Exception) -> str:
    """An error with the line of the callback in which it came up."""
    frames = extract_tb(error.__traceback__)[1:2]
    where = "".join(f" ({frame.filename}:{frame.lineno})" for frame in frames)
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
