"""The page of findings: its numbers are those of the rows."""

import re
from math import isfinite
from pathlib import Path

import pytest

from offbeat.verdicts.verdict import Verdict
from offbeat_papers import findings, findings_figures
from offbeat_papers.claims import claim_grid, render_claims
from offbeat_papers.findings import CLAIMS, render_findings, write_findings
from offbeat_papers.findings_figures import FIGURES
from offbeat_papers.findings_numbers import Findings
from offbeat_papers.rows import Results
from tests.papers.test_page import RESULTS, ROOT, judged_rows

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once


@pytest.fixture(autouse=True)
def judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = list(judged_rows())
    monkeypatch.setattr(findings, "judge_experiments", lambda _: judged)


def test_the_page_in_the_documentation_is_what_the_rows_give() -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert render_findings(RESULTS) == page, "offbeat reproduce --findings docs/findings.md"
    claims = (ROOT / "docs" / CLAIMS).read_text(encoding="utf-8")
    assert render_claims(judged_rows()) == claims, "offbeat reproduce --findings docs/findings.md"


def test_claims_count_once_and_have_runs_on_real_data() -> None:
    found = Findings(judged_rows())
    assert len({claim.measured.asked for claim in found.claims}) == len(found.claims)
    assert {claim.verdict for claim in found.claims} <= {
        Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED,
    }  # fmt: skip
    assert found.detectable() == sorted(found.detectable())
    assert not any(claim.claim.over for claim in (*found.costs, *found.accuracies))
    assert len(found.detectable()) <= len(found.looked_at)


def test_each_paper_has_its_pairs_of_methods() -> None:
    found = Findings(judged_rows())
    for claims in (found.costs, found.accuracies):
        pairs = found.pairs(claims)
        known = [p for claim in claims for p in claim.pairs if p.paper is not None and isfinite(p.paper)]
        assert 0 < sum(map(len, pairs.values())) <= len(known)
        assert set(pairs) <= {"fedcompass", "fedfa", "fedasmu", "wireless"}


def test_the_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    written = write_findings(Results(tmp_path), tmp_path / "out" / "page.md")
    assert [path.name for path in written] == ["page.md", CLAIMS, *FIGURES]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written[2:])


def test_a_claim_is_named_in_full_beside_its_interval() -> None:
    found = Findings(judged_rows())
    names = [findings_figures._named(claim) for claim in (*found.costs, *found.accuracies)]
    for claim, name in zip((*found.costs, *found.accuracies), names, strict=True):
        assert f": {claim.claim.says}" in " ".join(name.split())


def test_each_claim_has_a_row_that_leads_to_its_experiment() -> None:
    found = Findings(judged_rows())
    heads, *rows = claim_grid(judged_rows())
    assert heads[-1] == "verdict"
    assert len(rows) == len(found.claims)
    for _, link, says, _, _, asked, seeds, early, verdict in rows:
        before, of, runs = early.split()
        assert of == "of"
        assert 0 <= int(before) <= int(runs)
        assert verdict.removesuffix(" †") in {"held", "not held", "no difference", "undecided"}
        assert re.match(
            "(on average|every pair|most pairs|some pair)(, by more than .*|, at most .* behind)?$", asked
        )
        assert re.match(r"\d+(; p least at \d+)?$", seeds)
        assert not says.startswith("ours: ")
        page, _, anchor = link.partition("](")[2].removesuffix(")").partition("#")
        assert f'<a id="{anchor}"></a>' in (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert len({tuple(row[1:3]) for row in rows}) == len(
        rows
    )  # no two claims of an experiment are named alike
