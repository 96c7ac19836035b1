"""Traces in recipes: the file's values replace `world.trace`.

So the world itself is checked, simulated and recorded in a run's directory. A run that is resumed or replayed
does not need the file.
"""

from pathlib import Path
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.runs.recorded_options import flatten
from offbeat.world.trace import trace_section


def resolve_trace_path(document: dict[str, Any], directory: Path) -> None:
    """Resolve the path of a document's trace from a directory."""
    world = document.get("world")
    if isinstance(world, dict) and isinstance(world.get("trace"), str):
        world["trace"] = str(directory / world["trace"])


def inline_trace(document: dict[str, Any]) -> None:
    """Replace `world.trace` by the values of the trace, and fill in `clients` where the document has none.

    Raises `UsageError` where the document has a value that the trace has too.
    """
    world = document.get("world")
    path = world.pop("trace", None) if isinstance(world, dict) else None
    if path is None:
        return
    if not isinstance(path, str):
        raise UsageError(f"world.trace = {path!r} is not allowed: should be the path of a CSV file")
    section = trace_section(path)
    clients = section.pop("clients")
    if document.get("clients") is None:
        document["clients"] = clients
    if str(document["clients"]) != str(clients):
        raise UsageError(
            f"clients = {document['clients']} is not allowed: {path} has {clients}; make it that, or leave "
            "it out"
        )
    _add(document["world"], section, "world", path)


def inline_label_trace(changes: dict[str, Any], directory: Path) -> None:
    """Replace `world.trace` in a label's changes by the values of the trace, a path from a directory."""
    if isinstance(path := changes.get("world.trace"), str):
        section = trace_section(directory / path)
        del changes["world.trace"]
        changes |= {"clients": section.pop("clients"), **flatten({"world": section})}


def _add(into: dict[str, Any], section: dict[str, Any], name: str, path: str) -> None:
    """Add the values of a section to another one, which must not have them; null counts as none."""
    for key, value in section.items():
        own = into.get(key)
        if isinstance(value, dict) and isinstance(own, dict):
            _add(own, value, f"{name}.{key}", path)
        elif own is not None:
            raise UsageError(
                f"{name}.{key} = {own!r:.60} is not allowed beside world.trace: {path} gives it; leave it "
                f"out, or remove it with --set {name}.{key}=null"
            )
        else:
            into[key] = value
