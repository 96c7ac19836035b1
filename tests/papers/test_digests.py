"""Runs of studies keep their digests, by which stored rows are found."""

import pytest

from tests.papers.digests import DIGESTS, STUDIES, lines

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once
PINNED = [line.split() for line in DIGESTS.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", STUDIES)
def test_the_digests_of_a_study_stay_as_they_were(name: str) -> None:
    """All of its runs at every size; and no stored row that had a run is without one now."""
    pinned = {size: (int(count), text) for study, size, count, text in PINNED if study == name}
    now = {size: (int(count), text) for _, size, count, text in map(str.split, lines(name))}
    rows, before = now.pop("rows"), pinned.pop("rows")
    assert now == pinned, "python -m tests.papers.digests, if the study was changed on purpose"
    assert rows == before or rows[0] > before[0]  # there may be further ones since


def test_the_file_names_every_study_once() -> None:
    assert list(dict.fromkeys(study for study, *_ in PINNED)) == list(STUDIES)
    assert len({(study, size) for study, size, *_ in PINNED}) == len(PINNED)
