"""Write the names of published algorithms, such as `offbeat.fedbuff`, that Python and type checkers read.

    python scripts/write_factories.py

The modules of `offbeat.algorithms` are searched for factories, which takes importing them. So that
`import offbeat` need not, the stub `src/offbeat/algorithms/_factories.pyi` says in which module each one is;
a test compares it with what is found.
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
