"""A world as plain values, for the record of a run."""

import json
from hashlib import sha256
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from offbeat.named import name_of
from offbeat.world.world import World

_WORLD: TypeAdapter[World] = TypeAdapter(World)
# Longer lists are recorded as a digest.
_LONGEST = 100


def describe_world(world: World) -> dict[str, Any]:
    """Describe a world. A function is its name; of a long list there is the digest."""
    told: dict[str, Any] = json.loads(_WORLD.dump_json(world, fallback=_plain, warnings="none"))
    return {key: _short(value) for key, value in told.items()}


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's; of anything else its name."""
    return value.item() if isinstance(value, np.generic) else name_of(value)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list) and len(value) > _LONGEST:
        return f"{len(value)} values, sha256 {sha256(json.dumps(value).encode()).hexdigest()[:16]}"
    return value
