"""Each mutant changes one place of the source, and names tests that there are."""

from pathlib import Path

from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]


def test_each_mutant_has_one_place_and_tests() -> None:
    module = load_script(ROOT / "scripts" / "mutants.py")
    mutants = module.read_mutants()
    assert mutants
    for mutant in mutants:
        text = (ROOT / "src" / "offbeat" / mutant.file).read_text(encoding="utf-8")
        assert (text.count(mutant.old), mutant.old != mutant.new) == (1, True), mutant
        assert all((ROOT / tests).exists() for tests in mutant.paths), mutant
