"""The example in the package's docstring is run."""

import doctest

from offbeat import metrics


def test_the_example():
    failed, tried = doctest.testmod(metrics)
    assert tried > 0
    assert failed == 0
