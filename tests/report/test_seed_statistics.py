"""Means and paired differences over seeds, against numbers by hand and a printed table of Student's t."""

from math import sqrt

import pytest

from offbeat.report import Difference, Stat, paired_difference
from offbeat.report.render import difference_text
from offbeat.report.seed_statistics import stat, student_t

PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}


def test_student_t_is_the_printed_one() -> None:
    assert {n: round(student_t(n), 3) for n in PRINTED} == PRINTED


def test_an_interval_of_three_seeds() -> None:
    # differences 1, 2, 3: mean 2, s = 1, half = 4.302653 / √3
    found = paired_difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert found is not None
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half == pytest.approx(4.302653 / sqrt(3), rel=1e-6)
    assert found.interval == pytest.approx((-0.484138, 4.484138), rel=1e-5)
    assert difference_text(found) == "+2.0 [-0.5, +4.5]"
    assert difference_text(found, 100.0) == "+200 [-50, +450]"
    assert difference_text(Difference(8.0, 8.3, 3)) == "+8 [-0, +16]"  # its sign says that it holds 0


def test_pairs_are_the_seeds_in_which_both_have_a_value() -> None:
    ours, theirs = {0: 1.0, 1: None, 2: 5.0, 3: 9.0}, {0: 0.5, 1: 7.0, 2: None, 4: 1.0}
    assert paired_difference(ours, theirs) == Difference(0.5, None, 1)
    assert difference_text(Difference(0.5, None, 1)) == "+0.5 (one seed)"
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    assert difference_text(None) == "-"


def test_pairing_takes_out_what_the_seeds_have_in_common() -> None:
    ours = {seed: 10.0 * seed + 1.0 for seed in range(5)}
    found = paired_difference(ours, {seed: 10.0 * seed for seed in range(5)})
    assert found == Difference(1.0, 0.0, 5)
    assert difference_text(found) == "+1 [+1, +1]"


def test_a_single_seed_has_no_deviation() -> None:
    assert stat([None, 2.0]) == Stat(2.0, 0.0, 1)
    assert Stat(2.0, 0.0, 1).spread is None
    assert stat([1.0, 3.0]) == Stat(2.0, sqrt(2.0), 2)
    assert stat([None]) is None
