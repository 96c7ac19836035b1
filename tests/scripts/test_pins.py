"""Each pin of constraints.txt admits each Python that pyproject.toml promises."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.script_modules import load_script

pytest.importorskip("packaging")
ROOT = Path(__file__).parents[2]
script = load_script(ROOT / "scripts" / "pins.py", "pins_script")
TEXT = script.CONSTRAINTS.read_text("utf-8")


def test_each_pin_admits_each_python_that_is_promised() -> None:
    assert script.refused(TEXT, script.promised()) == []


def test_each_line_is_a_pin() -> None:
    assert len(script.pins(TEXT)) == len([line for line in TEXT.splitlines() if not line.startswith("#")])


def test_what_is_written_beside_a_pin_is_what_the_installed_distribution_says() -> None:
    # Once something imported the package importlib_metadata, its finder answers too, and it raises for a key
    # that is not there.
    told = {
        f"{each.metadata['Name']}=={each.version}": each.metadata.get("Requires-Python")
        for each in distributions()
    }
    both = {pin: pythons for pin, pythons in script.pins(TEXT).items() if pin in told}
    assert len(both) > 50
    assert {pin: told[pin] or "any" for pin in both} == both


def test_every_patch_level_of_the_promised_pythons_is_asked() -> None:
    promised = script.promised()
    assert promised[0] == "3.11.0"
    assert {"3.11.2", "3.12.0", "3.14.0", "3.14.2"} <= {*promised}
    assert "3.14.1" not in promised


def test_both_distributions_promise_the_same_pythons() -> None:
    package, papers = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in (".", "papers")
    )
    assert package["requires-python"] == papers["requires-python"]
    assert [each for each in package["classifiers"] if "Python :: 3" in each] == [
        each for each in papers["classifiers"] if "Python :: 3" in each
    ]


def test_a_pin_that_refuses_a_patch_level_is_named() -> None:
    text = "a==1  # Python >=3.11.5\nb==2  # Python any\nc==3\nd==4  # Python <3.14,>=3\n"
    assert script.refused(text, ["3.11.2", "3.11.5", "3.14.0"]) == [
        "a==1 admits Python >=3.11.5, and not 3.11.2",
        "c==3 says no Pythons: run python scripts/pins.py",
        "d==4 admits Python <3.14,>=3, and not 3.14.0",
    ]


def test_what_the_index_says_is_written_beside_the_pins() -> None:
    text = "# A comment.\nA_b.c==1  # Python >=3.9\nd==2\n"
    made = script.with_pythons(text, {"a-b-c": ">=3.11, !=3.12.*", "d": None})
    assert made == "# A comment.\nA_b.c==1  # Python >=3.11, !=3.12.*\nd==2  # Python any\n"
    assert script.with_pythons(made, {"a-b-c": ">=3.11, !=3.12.*", "d": None}) == made


def test_no_dependency_of_the_package_keeps_pytorch_from_its_newest_version() -> None:
    for folder in (".", "papers"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        (torch,) = [each for each in project["dependencies"] if re.match(r"torch\b", each)]
        assert torch == "torch>=2.6"
