"""The check that quotes are in the papers."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "check_quotes.py"))
main, occurs, plain = (SCRIPT[name] for name in ("main", "occurs", "plain"))

TEXT = plain(
    "The design outper-\nforms  the “baseline” with γ=1𝛾1\\gamma=1 in both i.i.d. and non-i.i.d. scenarios."
)


@pytest.mark.parametrize(
    "quote",
    [
        "design outperforms the baseline",
        "The  DESIGN outperforms",
        "outperforms the baseline with γ=1 in both i.i.d. and",
        "the design ... non-i.i.d. scenarios",
    ],
)
def test_a_quote_is_found_whatever_its_marks_and_formulas(quote: str) -> None:
    assert occurs(quote, TEXT)


@pytest.mark.parametrize(
    "quote",
    [
        "design outperforms a baseline",
        "the baseline outperforms",
        "the baseline with γ=1 in neither i.i.d.",
        "non-i.i.d. scenarios ... the design",
        "forms the baseline",
    ],
)
def test_other_words_are_not_in_it(quote: str) -> None:
    assert not occurs(quote, TEXT)


def test_a_quote_is_searched_for_in_its_own_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.txt").write_text("A Good Paper\nFast in all cases.")
    (tmp_path / "2.txt").write_text("Another Paper\nSometimes faster.")
    found = [
        ("a/x", "A. Author, A Good Paper, 2024", quote) for quote in ("in all cases", "sometimes faster")
    ]
    monkeypatch.setitem(main.__globals__, "quotes", lambda: iter(found))
    assert main(tmp_path) == 1
    assert capsys.readouterr().out == (
        "a/x: not in the paper: sometimes faster\n1 of 2 quotes are in the papers\n"
    )


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    assert main(tmp_path) == 2
