"""Learning under attack: what robust aggregators keep of the accuracy, and how the benchmark reports it."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.sampling import thorough
from tests.script_modules import load_script

SCRIPT = Path(__file__).parents[2] / "benchmarks/robust.py"


def _load() -> ModuleType:
    return load_script(SCRIPT, "robust_benchmark")


robust = _load()


@pytest.mark.parametrize(
    ("rule", "attack", "tasks", "least", "most"),
    [
        ("centered clip", "scaled", 400, 0.5, 1.0),  # 0.597 when this was written
        ("mean", "scaled", 400, 0.0, 0.2),  # 0.105
        *thorough(
            ("mean", "norm", 2000, 0.0, 0.3),
            ("clip", "scaled", 2000, 0.8, 1.0),
            ("centered clip", "scaled", 2000, 0.83, 1.0),
            ("centered clip", "norm", 2000, 0.93, 1.0),
            ("centered clip", "ALIE", 2000, 0.93, 1.0),
            ("multi-krum f=2", "norm", 2000, 0.87, 1.0),
            ("geometric median", "norm", 2000, 0.87, 1.0),
            ("aflguard", "norm", 2000, 0.85, 1.0),
            ("zeno++", "norm", 2000, 0.85, 1.0),
        ),
    ],
)
def test_accuracy_with_a_fifth_of_attackers(
    rule: str, attack: str, tasks: int, least: float, most: float
) -> None:
    assert least <= robust.accuracy("digits", "fedbuff", rule, attack, 20, 0, tasks) <= most


@pytest.mark.thorough
def test_rows_are_kept_and_a_second_call_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    command = [
        sys.executable,
        str(SCRIPT),
        "--out",
        str(out),
        "--algorithms",
        "fedfa",
        "--rules",
        "mean",
        "median",
    ]
    command += ["--tasks", "60", "--seeds", "1", "--shares", "0", "20", "--attacks", "none", "sign flip"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| mean |" in first
    assert len(out.read_text().splitlines()) == 3  # the header, no attack, one attack; FedFa takes no median
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(out.read_text().splitlines()) == 3
    assert again.endswith(first[first.index("\ndigits, fedfa, 0 %") :])
