"""The digests of the runs of every study, one line a study and size: python -m tests.papers.digests

A stored row is found by its run's digest. Who changes what a digest is made of, such as a default that goes
into a recipe, loses stored rows; who changes a study on purpose writes the file again.
"""

import hashlib
from functools import cache
from pathlib import Path

from offbeat_papers.cells import study_cells
from offbeat_papers.load import built_in_studies, leaderboard_studies, load_study
from offbeat_papers.rows import Results

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).with_name("digests.txt")
RESULTS = ROOT / "papers" / "results"
STUDIES = {**built_in_studies(), **leaderboard_studies()}


@cache
def cell_digests(name: str) -> dict[str, tuple[str, ...]]:
    """The sorted digests of a study's runs by size."""
    study = load_study(STUDIES[name])
    return {size: tuple(sorted(c.digest for c in study_cells(study, size))) for size in sorted(study.sizes)}


def lines(name: str) -> list[str]:
    """What the file says of a study: name, size, number of runs, digest of their digests; and of its rows.

    Rows are those that some run of the study has now; others are of earlier settings, or of further seeds.
    """
    found = [f"{name} {size} {len(own)} {_digest(own)}" for size, own in cell_digests(name).items()]
    return [*found, f"{name} rows {len(stored_rows(name))} {_digest(stored_rows(name))}"]


@cache
def stored_rows(name: str) -> tuple[str, ...]:
    """The digests of the stored rows that are of a run of the study as it is, sorted."""
    cells = {digest for own in cell_digests(name).values() for digest in own}
    return tuple(sorted(cells & set(Results(RESULTS).rows(name))))


def _digest(digests: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


if __name__ == "__main__":
    text = "\n".join(line for name in STUDIES for line in lines(name))
    DIGESTS.write_text(f"{text}\n", encoding="utf-8")
