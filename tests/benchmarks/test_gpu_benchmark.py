"""The benchmark for a GPU, tried out on a CPU: every row that it would measure there has a number."""

import subprocess
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


@pytest.mark.thorough
def test_several_runs_are_timed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "table.csv"
    words = ["--device", "cpu", "--runs", "1", "2", "--tasks", "3", "--steps", "2", "--out", str(out)]
    subprocess.run([sys.executable, FOLDER.parent / "gpu_runs.py", *words], check=True)
    _, *rows = [line.split(",") for line in out.read_text().splitlines()]
    assert [row[:2] for row in rows] == [["1", "no"], ["2", "no"]]
    assert all(float(row[2]) > 0 for row in rows)


COLUMNS = (
    "bare loop",
    "ours, 1 at a time",
    "bare loop, CUDA graph",
    "ours, 1 at a time, CUDA graph",
    "ours, 8 at a time",
    "ours, 64 at a time",
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_documentation_has_the_numbers_that_were_measured() -> None:
    measured = {tuple(row[:2]): row for row in map(cells, (FOLDER / "h200.md").read_text().splitlines()[4:])}
    page = (FOLDER.parents[1] / "docs/gpu.md").read_text(encoding="utf-8").splitlines()
    for name in ("CNN", "ResNet-18", "transformer"):
        (told,) = (cells(line)[1:] for line in page if line.startswith(f"| {name}, "))
        assert told == [measured[name, column][3].removesuffix(" steps/s") for column in COLUMNS]
    sizes = {
        "FedBuff of ten updates, 10⁶": "FedBuff of 10, 1e+06",
        "FedBuff of ten updates, 10⁸": "FedBuff of 10, 1e+08",
    }
    for told_name, name in {**sizes, "FedAsync, 10⁹": "FedAsync, 1e+09"}.items():
        (told,) = (cells(line)[1:] for line in page if line.startswith(f"| {told_name} parameters"))
        rows = (measured[f"{name} parameters", whose] for whose in ("by hand", "ours"))
        assert told == [row[2].partition(" ms")[0] for row in rows]
