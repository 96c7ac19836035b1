"""The page of findings: its numbers are those of the rows."""

from pathlib import Path

import pytest

from offbeat.verdicts.verdict import Verdict
from offbeat_papers import findings
from offbeat_papers.findings import FIGURES, Findings, render_findings, write_findings
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


def test_claims_count_once_and_have_runs_on_real_data() -> None:
    found = Findings(judged_rows())
    assert len({claim.measured.key for claim in found.claims}) == len(found.claims)
    assert {claim.verdict for claim in found.claims} <= {
        Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED,
    }  # fmt: skip
    assert found.detectable() == sorted(found.detectable())
    assert not any(claim.claim.over for claim in found.costs)


def test_the_figures_are_written_beside_the_page(tmp_path: Path) -> None:
    written = write_findings(Results(tmp_path), tmp_path / "out" / "page.md")
    assert [path.name for path in written] == ["page.md", *FIGURES]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written[1:])


def test_a_claim_is_named_in_full_beside_its_interval() -> None:
    for claim in Findings(judged_rows()).costs:
        assert " ".join(findings._named(claim).split()).endswith(f": {claim.claim.says}")


def test_each_claim_has_a_row_that_leads_to_its_experiment() -> None:
    found = Findings(judged_rows())
    heads, *rows = found.grid()
    assert heads[-1] == "verdict"
    assert len(rows) == len(found.claims)
    for _, link, says, _, _, verdict in rows:
        assert verdict in {"held", "not held", "no difference", "undecided"}
        assert not says.startswith("ours: ")
        page, _, anchor = link.partition("](")[2].removesuffix(")").partition("#")
        assert f'<a id="{anchor}"></a>' in (ROOT / "docs" / page).read_text(encoding="utf-8")
