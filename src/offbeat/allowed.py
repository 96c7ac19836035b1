"""What a name in a file or a message may import: nothing but the modules and functions that a person allows.

A recipe, a study, a run's directory and a server name functions, "module:function". To import a module runs
it, so a name is looked up here first, and nothing is imported before it is allowed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import isclass, isroutine, unwrap
from pathlib import Path
from typing import Any, Self, TypeVar

from offbeat.core.errors import UsageError
from offbeat.named import EXPOSED, load_named, open_modules

T = TypeVar("T")

CALLBACKS = frozenset({"csv", "mlflow", "tensorboard", "wandb"})
"""Built-in callbacks: such a name allows what the callback reaches, and no module of the same name."""


class NotAllowedError(UsageError):
    """A name that is not allowed; nothing was imported for it."""


def expose(named: T) -> T:
    """Declare that a recipe, a run's directory or a server may name this function: a decorator.

    Whoever allows the function's module lets them call the function with their arguments: `--allow MODULE`,
        in Python `allow=["MODULE"]`. A class or an object, such as a metric, can be exposed too. A factory
        that `parts.algorithm` decorates is exposed already.

    Args:
        named: The function, class or object.

    Returns:
        The same object, marked.

    Raises:
        UsageError: The object cannot be marked.
    """
    try:
        setattr(named, EXPOSED, True)
    except (AttributeError, TypeError):
        raise UsageError(
            f"a {type(named).__name__} cannot be exposed: expose a function that returns it, or allow it by "
            "name"
        ) from None
    return named


@dataclass(frozen=True)
class Allowed:
    """The modules and functions that names may import.

    Attributes:
        names: Each is "module", whose exposed functions may be named, or "module:function"; or one of
            `CALLBACKS`, which may then leave the run's directory.
        installed: The same, for modules that are neither in the current directory nor in `folders`.
        folders: Folders that come from others: those of a recipe or of a run's record.
        note: The reason why less is allowed than the person may expect; "" means that there is none.
    """

    names: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, allow: "Allow") -> "Allowed":
        """The allowed names of an argument `allow`: a sequence of names, or an `Allowed`, which is returned.

        Raises:
            UsageError: It is one string, or a name is none.
        """
        if isinstance(allow, Allowed):
            return allow
        if isinstance(allow, str) or not all(isinstance(name, str) and is_entry(name) for name in allow):
            raise UsageError(
                f"allow = {allow!r} is not allowed: give a list of modules and functions, such as "
                "['clinic', 'clinic:make_model']"
            )
        return cls(tuple(allow))

    def and_names(self, names: Sequence[str]) -> Self:
        """The same, with further names."""
        return type(self)((*self.names, *names), self.installed, self.folders, self.note)

    def has(self, callback: str) -> bool:
        """Whether a built-in callback may leave the run's directory."""
        return callback in (*self.names, *self.installed)

    def check(self, text: str, option: str) -> None:
        """Check that a name is allowed; nothing is imported.

        Args:
            text: "module:function".
            option: What names it, for messages.

        Raises:
            NotAllowedError: It is not.
        """
        self._grant(text, option)

    def load(self, text: str, option: str) -> Any:
        """Import the object of a name, if it is allowed.

        Args:
            text: "module:function".
            option: What names it, for messages.

        Raises:
            NotAllowedError: It is not allowed.
            UsageError: There is no such module or function, or the module raises while it is imported.
        """
        in_directory, by_name = self._grant(text, option)
        if in_directory:
            open_modules(name.partition(":")[0] for name in self.names if name not in CALLBACKS)
        function = load_named(text, option, in_directory=in_directory)
        module, _, attribute = text.partition(":")
        if not by_name and ("." in attribute or not _is_exposed(function, module)):
            raise NotAllowedError(
                f"{option} {text} is not allowed: {module} is, but it does not expose {attribute}; decorate "
                f"it there with @offbeat.expose, or give --allow {text} (in Python allow=[{text!r}])"
            )
        return function

    def _grant(self, text: str, option: str) -> tuple[bool, bool]:
        """Whether the module may be in the current directory, and whether the function itself is allowed."""
        module, colon, attribute = text.partition(":")
        if not (module and colon and attribute):
            raise UsageError(f"{option} {text}: give module:function")
        entries = (text,) if module in CALLBACKS else (text, module)
        for entry in entries:
            if entry in self.names:
                return True, entry == text
        note = self.note
        for entry in entries:
            if entry in self.installed:
                place = _package_path(module)
                if place is None or not self._comes_along(place):
                    return False, entry == text
                note = f"; it is in your file of allowed names, but {place} lies beside what names it"
        raise NotAllowedError(
            f"{option} {text} is not allowed: a name in a file or from a server imports nothing by itself; "
            f"if you trust it, give --allow {text}, or --allow {module} for all that {module} exposes (in "
            f"Python allow=[{text!r}]){note}"
        )

    def _comes_along(self, place: Path) -> bool:
        """Whether a module's file is in the current directory, or in a folder that comes from others."""
        return place.parent == Path.cwd().resolve() or any(place.is_relative_to(own) for own in self.folders)


Allow = Sequence[str] | Allowed
"""Names that are allowed, each "module" or "module:function"; or an `Allowed`."""
Load = Callable[[str, str], Any]
"""Imports the object of a name, given the name and its option."""
NOTHING = Allowed()
"""Allows no name."""


def is_entry(name: str) -> bool:
    """Whether a text is "module" or "module:function"."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *(attribute.split(".") if colon else ())]
    return all(part.isidentifier() for part in parts)


def _is_exposed(found: Any, module: str) -> bool:
    """Whether an object is exposed, and a function or a class defined by the module itself."""
    inner = unwrap(found) if callable(found) else found
    if not any(getattr(own, "__dict__", {}).get(EXPOSED) is True for own in (found, inner)):
        return False
    return not (isroutine(inner) or isclass(inner)) or inner.__module__ == module


def _package_path(module: str) -> Path | None:
    """The file or the folder of a module's outermost package; None if it is not installed."""
    try:
        # For the outermost package, `find_spec` imports nothing.
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
