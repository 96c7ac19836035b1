"""The tables of answers in the documentation are what the committed rows say."""

import re
from math import exp
from pathlib import Path

import pytest

from offbeat_papers.replication.judge import AnsweredClaim, answer_papers
from offbeat_papers.replication.rule import Answer, mean_effect
from offbeat_papers.rows import Results
from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"[-+]?\d+\.\d+")
answers = load_script(ROOT / "papers" / "families" / "answers.py", "families_answers")


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading, without its two first lines."""
    below = (ROOT / "docs" / page).read_text("utf-8").partition(f"{heading}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()[2:]]


def numbers(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text.replace("−", "-"))]


@pytest.mark.parametrize(
    ("heading", "study"), [("A study of caches", "cached"), ("A study of delays", "delay")]
)
def test_a_familys_table_is_what_its_rows_say(
    heading: str, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "papers" / "families"
    # The digest of a run covers the study's own module.
    monkeypatch.syspath_prepend(str(folder))
    found = list(answers.claims(folder / f"{study}.yaml", folder / "results"))
    given = answers.answer_family([claim for _, _, claim in found])
    shown = []
    for _, is_cost, claim in found:
        effect = mean_effect(claim.pairs)
        of = [effect.mean, *effect.interval(0.95)]
        shown.append(([exp(x) if is_cost else 100 * x for x in of], str(given[claim.key])))
    rows = table("algorithms/index.md", f"## {heading}")
    assert [row[-1] for row in rows] == [answer for _, answer in shown]
    for row, (values, _) in zip(rows, shown, strict=True):
        assert numbers(" ".join(row[1:3])) == pytest.approx(
            values, abs=0.051 if "x" not in row[1] else 0.0051
        )


def test_the_second_studys_table_is_what_its_rows_say() -> None:
    papers = answer_papers(Results(ROOT / "papers" / "replication"))
    claims = [claim for found in papers.values() for claim in found if claim.answer is not Answer.NOT_RUN]
    rows = table("studies.md", "### Answers so far")
    assert len(rows) == len(claims)
    for row, claim in zip(rows, claims, strict=True):
        assert row[:5] == expected(claim)
        assert claim.effect is not None
        effect = [claim.effect.mean, *claim.effect.interval(0.95)]
        assert numbers(row[5]) == pytest.approx(effect, abs=0.000051)


def expected(claim: AnsweredClaim) -> list[str]:
    ahead, of = claim.ahead
    answer = f"{claim.answer}, {ahead} of {of}" if claim.answer is Answer.NOT_REFUTED else str(claim.answer)
    asked = claim.claim
    return [claim.item.name.rpartition("-")[2], claim.says, asked.better, ", ".join(asked.than), answer]
