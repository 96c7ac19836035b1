"""The benchmark for a GPU, tried out on a CPU: every row that it would measure there has a number."""

import sys
from pathlib import Path

import pytest

from tests.script_modules import load_script

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"


@pytest.mark.thorough
def test_the_table_has_a_number_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("clock", "nets", "training", "versions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    out = tmp_path / "table.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--out", str(out)])
    script = load_script(FOLDER / "__main__.py", "gpu_benchmark")
    monkeypatch.setattr(script, "REPEATS", 1)
    script.main()
    rows = [line.split(" | ") for line in out.read_text().splitlines()[4:]]
    assert len(rows) == 8
    assert all(" ms (" in row[2] and "/s" in row[3] for row in rows)
