"""The simulation of the rule of verdicts: it finds what is there, and its page has its tables."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("verdict_rates")


def test_a_large_effect_is_found_and_none_seldom(rates: ModuleType) -> None:
    case = rates.Case("two deviations", "average", ("held",), rates.equal_effects(2.0))
    assert rates.rates(30, "normal", (3, 3), case)[-1] == 1.0
    wrong = rates.rates(60, "normal", (3, 3), rates.WRONG[0])
    assert wrong == sorted(wrong)  # what one look decides no later one takes back
    assert wrong[-1] <= 0.15  # 5 % and four deviations of 60 draws


def test_the_documentation_has_the_rates_of_all_cases(rates: ModuleType) -> None:
    stored = (ROOT / "benchmarks" / "tables" / "verdict_rates.md").read_text(encoding="utf-8")
    for case in rates.WRONG:
        for law in rates.LAWS:
            assert f"| {case.name} | {law} |" in stored
    for case in rates.POWER:
        assert f"| {case.name} | normal |" in stored
