"""The settings under which all drivers are compared."""

from typing import Any

import offbeat as ob
from tests.options import options_of

SPEEDS = [1.0, 1.5, 2.0, 3.25, 7.0]
SEED = 11
# The driver of `test_same_everywhere.py` cannot recall a client, and cannot tell the length of an update.
_OTHER: dict[str, dict[str, Any]] = {
    "port": {"urgent": False},
    "wireless": {"policy": {"kind": "data_importance"}},
}
OPTIONS = {name: {**options_of(name), **_OTHER.get(name, {})} for name in ob.ALGORITHMS}
