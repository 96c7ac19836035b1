"""The examples in docstrings are run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "offbeat",
        "offbeat.algorithms.compose",
        "offbeat.algorithms.describe",
        "offbeat.core.staleness",
        "offbeat.local.objectives",
        "offbeat.parts",
    ],
)
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
