"""CSV of texts that others may have chosen."""

from math import nan

import pytest

from offbeat.runs.csv_text import csv_text, text_of

FORMULAS = ["=cmd|'/c calc'!A0", "+1+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text(text: str) -> None:
    assert csv_text([[text, "b"]]).lstrip('"').startswith(f"'{text}")
    assert text_of(f"'{text}") == text_of(text) == text
    assert text_of("'tis") == "'tis"


def test_numbers_and_other_texts_stay() -> None:
    assert csv_text([["a=b", "-0.5", "+3", "-inf"], [-0.5, None, nan, 'c"d']]) == (
        'a=b,-0.5,+3,-inf\n-0.5,,nan,"c""d"\n'
    )
