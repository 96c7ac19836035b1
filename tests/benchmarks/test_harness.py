"""The command line that a benchmark's function has: options from its signature, tables, rows in a file."""

import csv
import sys
from pathlib import Path

import pytest

from tests.script_modules import load_script

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = """
from typing import Literal
from harness import Rows, in_turns, main, new_process, spread

def double(x: int) -> int:
    return 2 * x

def fruits(
    sizes: tuple[float, ...] = (1.5, 2e4), kind: Literal["apple", "pear"] = "apple", *, ripe: bool = False,
    most_fruits: int | None = None,
) -> Rows:
    \"\"\"Measure each size.

    kind: what grows
    \"\"\"
    def measured(size: float) -> dict[str, float]:
        print("measured", size)
        return {"s": size / 3}

    for size in sizes:
        yield {"kind": kind, "size": size}, lambda size=size: measured(size)
    yield {"ripe": ripe, "most": most_fruits, "turns": spread(in_turns(3, {"one": lambda: 1.0})["one"])}

if __name__ == "__main__":
    main(fruits, lambda rows: f"{len(rows)} rows")
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls the benchmark; returns what it prints."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "fruits_of_a_test.py"
    script.write_text(SCRIPT, encoding="utf-8")
    module = load_script(script)

    def called(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["fruits", *words])
        module.main(module.fruits, lambda rows: f"{len(rows)} rows")
        return capsys.readouterr().out.splitlines()

    called.module = module
    yield called
    del sys.modules["fruits_of_a_test"], sys.modules["harness"]


def test_rows_are_lines_of_a_table_and_other_columns_begin_another(call) -> None:
    assert call("--sizes", "1.5", "--ripe") == [
        "measured 1.5", "| kind | size | s |", "|---|---|---|", "| apple | 1.5 | 0.5 |", "",
        "| ripe | most | turns |", "|---|---|---|", "| True | – | 1 (1 to 1) |", "", "2 rows",
    ]  # fmt: skip


def test_what_the_file_has_is_not_measured_again(call, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    first = call("--sizes", "1.5", "--out", str(out))
    again = call("--out", str(out), "--most-fruits", "7")
    assert "measured 1.5" in first
    assert [line for line in again if line.startswith("measured")] == ["measured 20000.0"]
    assert "| apple | 20,000 | 6,667 |" in again
    assert again[-1] == "4 rows"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["size"] for row in rows] == ["1.5", "", "20000.0", ""]
    assert [row["most"] for row in rows] == ["", "", "", "7"]


def test_options_are_those_of_the_signature(call, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--kind", "plum"], "invalid choice: 'plum'"),
        (["--most-fruits", "x"], "invalid int value: 'x'"),
        (["--sizes"], "expected at least one argument"),
    ):
        with pytest.raises(SystemExit):
            call(*words)
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call("--help")
    assert "what grows" in capsys.readouterr().out


def test_a_function_in_a_process_of_its_own(call) -> None:
    assert call.module.new_process(call.module.double, 21, PYTHONPATH=str(FOLDER)) == 42
