"""Each mutant changes one place of the source, and names tests that there are."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_mutant_has_one_place_and_tests() -> None:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    for mutant in module.MUTANTS:
        text = (ROOT / "src" / "offbeat" / mutant.file).read_text(encoding="utf-8")
        assert (text.count(mutant.old), mutant.old != mutant.new) == (1, True), mutant
        assert all((ROOT / tests).exists() for tests in mutant.tests.split()), mutant
