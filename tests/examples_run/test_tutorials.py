"""Every tutorial runs, prints what its page says, and makes its picture."""

import re
from pathlib import Path

import pytest

from tests.script_modules import load_script

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
ABOUT = 0.25
"""Relative difference of numbers on other processors: runs differ in the last digits, and then in all."""


tutorials = load_script(DOCS / "tutorials.py", "docs_tutorials")
MEASURED = "<!-- measured: real time -->"
"""Mark of a page whose numbers are those of real processes: only its words are compared."""
# `make test-hf` runs the tutorial on LoRA: the extra hf is in no other environment.
NEEDS = {"lora": ("peft",), "three-machines": ("grpc",), "replay-a-run": ("grpc", "sklearn")}
PROCESSES = {"three-machines", "replay-a-run"}
"""Tutorials that start processes, each of which imports PyTorch."""
LONG = {"privacy-budget", "first-comparison"}
"""Tutorials that train for more than ten seconds."""
PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.thorough] if page.stem in PROCESSES | LONG else [])
    for page in tutorials.pages()
]


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_prints_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in NEEDS.get(page.stem, ("sklearn",)):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    text = page.read_text("utf-8")
    for said, printed in tutorials.outputs(text, page.stem):
        assert NUMBER.sub("N", printed) == NUMBER.sub("N", said)
        if MEASURED in text:
            continue
        numbers = [[float(number) for number in NUMBER.findall(each)] for each in (printed, said)]
        assert numbers[0] == pytest.approx(numbers[1], rel=ABOUT, abs=0.1)
    for name in tutorials.PICTURE.findall(text):
        assert Path(name).is_file()
        assert (DOCS / "images" / f"tutorial_{page.stem}.png").is_file()


@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_a_tutorial_begins_with_its_end_and_ends_with_where_to_go_on(page: Path) -> None:
    text = page.read_text("utf-8")
    assert "After this tutorial you can" in text.split("\n\n")[1]
    assert "The code takes" in " ".join(text.split("\n\n")[1].split())
    assert "\n## Where to go on\n" in text
    assert "<!-- picture: " in text


def test_what_blocks_print_is_put_below_them() -> None:
    text = "```python\nprint(1)\n```\n\n```text\nold\n```\n\n```python\nx = 2\n```\nend\n"
    assert [now for _, now in tutorials.outputs(text, "x")] == ["1\n", ""]
    assert tutorials.with_outputs(text, ["1\n", ""]) == text.replace("old", "1")
