"""Write what type checkers and editors see of `offbeat.fedbuff` and the other published algorithms.

    python scripts/write_factories.py

At run time the modules of `offbeat.algorithms` are searched for factories. A type checker does not run code,
so the stub `src/offbeat/algorithms/_factories.pyi` names them; a test compares it with what is found.
"""

from pathlib import Path

from offbeat.algorithms import ALGORITHMS

STUB = Path(__file__).parents[1] / "src/offbeat/algorithms/_factories.pyi"


def stub() -> str:
    """The stub: one import for each factory."""
    lines = sorted(f"from {f.make.__module__} import {name} as {name}" for name, f in ALGORITHMS.items())
    return "\n".join(["# Written by scripts/write_factories.py.", *lines, ""])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
