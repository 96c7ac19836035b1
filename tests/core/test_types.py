"""Whole numbers of options: none is so large that PyTorch or NumPy cannot take it."""

import pytest

import offbeat as ob
from offbeat.core.types import LARGEST_WHOLE

HUGE = (LARGEST_WHOLE + 1, 2**63, 10**30)
WHOLE_NUMBERS = [
    (name, option.name)
    for name, factory in ob.ALGORITHMS.items()
    for option in factory.hyperparameters
    if option.allowed.partition(",")[0] == "int" and "." not in option.name
]


@pytest.mark.parametrize(("algorithm", "option"), WHOLE_NUMBERS)
def test_each_whole_number_of_an_algorithm_has_a_limit(algorithm: str, option: str) -> None:
    needed = {"wireless": {"scheduled": 2}}.get(algorithm, {})
    for number in HUGE:
        with pytest.raises(ob.UsageError, match=f"{option} = {number} is not allowed"):
            ob.ALGORITHMS[algorithm](**{**needed, option: number})


def test_a_number_that_a_float_has_exactly_is_allowed() -> None:
    assert ob.Training(batch_size=LARGEST_WHOLE).batch_size == 2**53
