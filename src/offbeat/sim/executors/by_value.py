"""Pickling by value of objects that a worker cannot import: the functions and classes of a notebook."""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle


def main_is_importable() -> bool:
    """Whether a worker process imports this process's main module: a script or module.

    A notebook, and what Python reads from its standard input or a pipe, cannot be read again.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return True
    file = getattr(main, "__file__", None)
    return file is not None and Path(file).resolve().is_file()


@contextmanager
def main_hidden() -> Iterator[None]:
    """Let a process start within it without the main module, where it cannot be imported there."""
    main = sys.modules["__main__"]
    if main_is_importable() or not hasattr(main, "__file__"):
        yield
        return
    file = main.__file__
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


class ByValue:
    """A value that a worker process receives unchanged.

    Its functions and classes of the main module travel by value, all others by name. Tensors travel in shared
    memory, as they do without it.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = BytesIO()
        _Pickler(buffer).dump(self.value)
        return pickle.loads, (buffer.getvalue(),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes as cloudpickle does, tensors and handles as multiprocessing does."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(
        ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    )


class Deferred:
    """A value for a worker process, made there when it is asked for, and not while the process starts.

    So the worker can say why it cannot be made. Functions and classes of a main module that cannot be
    imported travel by value.
    """

    def __init__(self, value: Any = None, data: bytes = b"") -> None:
        self._value, self._data = value, data

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = BytesIO()
        sent = self._value if main_is_importable() else ByValue(self._value)
        ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(sent)
        return Deferred, (None, buffer.getvalue())

    def get(self) -> Any:
        """Make the value, or raise why it cannot be made."""
        return pickle.loads(self._data) if self._data else self._value
