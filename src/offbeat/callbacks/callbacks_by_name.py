"""Callbacks by name, as recipes have them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from offbeat.allowed import NOTHING, Allow, Allowed, NotAllowedError
from offbeat.callbacks.callback import Callback
from offbeat.callbacks.csv_tracker import CSVTracker
from offbeat.callbacks.mlflow_tracker import MLflowTracker
from offbeat.callbacks.tensorboard_tracker import TensorBoardTracker
from offbeat.callbacks.tracker import RunTracker
from offbeat.callbacks.wandb_tracker import WandbTracker
from offbeat.core.errors import UsageError
from offbeat.core.validation import OptionError, did_you_mean, format_error
from offbeat.named import named_errors

CALLBACKS: dict[str, Callable[..., Callback]] = {
    "csv": CSVTracker,
    "mlflow": MLflowTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}
"""Built-in callbacks by name."""

_PLACES = ("directory", "path", "tracking_uri")
"""Options of built-in callbacks that say where they write."""

Entry = str | Mapping[str, Any]
"""A name, or a mapping with a name and options."""


def make_callbacks(entries: Sequence[Entry], allow: Allow = NOTHING) -> list[Callback]:
    """Make the callbacks that a recipe lists under `callbacks`.

    Args:
        entries: Each is the name of a built-in callback, "module:function" with the user's function or class
            that returns a `Callback`, or a mapping with such a `name` and options.
        allow: The modules and functions that may be named in this way, and the built-in callbacks that may
            leave the run's directory.

    Raises:
        NotAllowedError: A callback leaves the run's directory, or is a function, and is not allowed.
        UsageError: A name or an option is unknown, a value is not allowed, a library is not installed, or
            the function raises or returns something else.
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise UsageError(f"callbacks = {entries!r} is not allowed: give a list, such as [csv]")
    allowed = Allowed.of(allow)
    check_reach(entries, allowed)
    return [_make(entry, allowed) for entry in entries]


def check_reach(entries: Sequence[Entry], allow: Allow = NOTHING) -> None:
    """Check that built-in callbacks leave the run's directory only where a person allows it.

    Recipes and runs' directories come from others, and a place in them can be any file of the user's. Any
    place that is named counts as outside, wherever it leads: a link or a later start from another directory
    could lead it out.

    Args:
        entries: The callbacks, as of `make_callbacks`.
        allow: What a person allows; the name of a built-in callback allows all that it reaches.

    Raises:
        NotAllowedError: One leaves the run's directory, and its name is not allowed.
    """
    allowed = Allowed.of(allow)
    for entry in entries:
        options = entry if isinstance(entry, Mapping) else {"name": entry}
        name = options.get("name")
        # A name that is no built-in callback's is refused when the callback is made.
        if not isinstance(name, str) or name not in CALLBACKS or allowed.has(name):
            continue
        if (reached := _reached(name, options)) is not None:
            raise NotAllowedError(
                f"callbacks {name}: {reached} is outside of the run's directory; if you trust what asks for "
                f"it, give --allow {name} (in Python allow=[{name!r}]), or name callbacks anew"
            )


def _reached(name: str, options: Mapping[str, Any]) -> str | None:
    """What a built-in callback writes or contacts outside of its run's directory; None if it does not."""
    for option in _PLACES:
        if options.get(option) is not None:
            shown = repr(str(options[option]))
            return f"{option} = {shown if len(shown) <= 60 else f'{shown[:57]}...'}"
    if name == "mlflow":
        return "the database or the server of MLflow"
    if name == "wandb" and options.get("mode") != "offline":
        return "the server of W&B, without mode: offline,"
    return None


def _make(entry: Entry, allowed: Allowed) -> Callback:
    options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(
            f"callbacks has {entry!r}: give a name, or a mapping with name and options, such as {{name: csv}}"
        )
    if ":" in name:
        factory = allowed.load(name, "callbacks")
        if not callable(factory):
            raise UsageError(f"callbacks {name} is a {type(factory).__name__}: give a function or a class")
    elif name in CALLBACKS:
        factory = CALLBACKS[name]
    else:
        raise UsageError(
            f"callbacks {name} is unknown{did_you_mean(name, CALLBACKS)}; or give module:function"
        )
    try:
        with named_errors(name, "callbacks", passing=ValidationError):
            _check(name, factory, options)
            made = factory(**options)
            if isinstance(made, RunTracker):
                made.require_library()
    except (ValidationError, OptionError) as caught:
        error = caught if isinstance(caught, ValidationError) else caught.__context__
        assert isinstance(error, ValidationError)
        raise UsageError(f"callbacks {name}: {format_error(error)}") from None
    if not isinstance(made, Callback):
        raise UsageError(
            f"callbacks {name} returned a {type(made).__name__}: return a Callback of offbeat.callbacks"
        )
    return made


def _check(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises `UsageError` for an option that a factory does not take."""
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            raise UsageError(f"callbacks {name}: unknown key {option}{did_you_mean(str(option), parameters)}")
