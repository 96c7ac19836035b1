"""The findings of all papers together: their numbers and their figures are those of the rows."""

from math import isfinite
from pathlib import Path

import pytest

from offbeat.verdicts.verdict import Verdict
from offbeat_papers import findings_figures
from offbeat_papers.experiments import judge_experiments
from offbeat_papers.findings_figures import FIGURES, draw_findings
from offbeat_papers.findings_numbers import Findings
from offbeat_papers.rows import Results
from tests.papers.test_page import judged_rows

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once


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


def test_the_figures_of_no_rows_are_drawn(tmp_path: Path) -> None:
    written = draw_findings(Findings(judge_experiments(Results(tmp_path))), tmp_path)
    assert [path.name for path in written] == list(FIGURES)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)


def test_a_claim_is_named_in_full_beside_its_interval() -> None:
    found = Findings(judged_rows())
    names = [findings_figures._named(claim) for claim in (*found.costs, *found.accuracies)]
    for claim, name in zip((*found.costs, *found.accuracies), names, strict=True):
        assert f": {claim.claim.says}" in " ".join(name.split())
