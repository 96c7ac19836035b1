"""Pickling by value of what a worker process cannot import: the functions and classes of a notebook."""

import pickle
import sys
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle


def main_is_importable() -> bool:
    """Whether a worker process imports this process's main module: a script or module, not a notebook."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None


class ByValue:
    """A value for a worker process, which finds there what it was.

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
