"""The frozen design of the second study."""

import pytest

from offbeat_papers.cells import study_cells
from offbeat_papers.load import built_in_studies, load_study
from offbeat_papers.replication.design import (
    FEDAVG,
    FIRST_OF,
    SIZE,
    fresh_cells,
    fresh_study,
    load_design,
)

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once


def test_every_study_of_the_design_is_built_in_and_has_real_data() -> None:
    design = load_design()
    assert set(design.studies) <= set(built_in_studies())
    for name in design.studies:
        study = load_study(name)
        assert study.no_real_data is None
        assert SIZE in study.sizes


def test_no_seed_of_the_design_has_a_row_of_the_first_study() -> None:
    design = load_design()
    for name in design.studies:
        cells = fresh_cells(name)
        seeds = {cell.seed for cell in cells}
        assert seeds == {design.first_seed + k for k in range(design.studies[name].seeds)}
    assert design.first_seed == 100


@pytest.mark.parametrize("name", ["fedasmu/imdb", "wireless/figure-6"])
def test_a_label_of_a_paper_is_the_run_that_its_study_makes_with_that_seed(name: str) -> None:
    study = load_study(name)
    own = study.model_copy(update={"recipe": study.recipe | {"seed": 100, "seeds": 2}})
    known = {(c.label, c.column, c.seed): c.digest for c in study_cells(own, SIZE)}
    fresh = {(c.label, c.column, c.seed): c.digest for c in fresh_cells(name) if c.label != FIRST_OF}
    shared = known.keys() & fresh.keys()
    assert {seed for _, _, seed in shared} == {100, 101}
    assert all(known[key] == fresh[key] for key in shared)


def test_first_of_stands_beside_fedavg_with_its_options_and_limits() -> None:
    cells = {(c.label, c.column, c.seed): c for c in fresh_cells("fedasmu/imdb")}
    beside = [key for key in cells if key[0] == FIRST_OF]
    assert beside
    for _, column, seed in beside:
        first, fedavg = cells[FIRST_OF, column, seed].recipe, cells[FEDAVG, column, seed].recipe
        options = fedavg.spec(FEDAVG)
        assert first.spec(FIRST_OF) == {**options, "name": "first_of", "share": 0.8, "label": FIRST_OF}
        assert (first.until, first.evaluate, first.data) == (fedavg.until, fedavg.evaluate, fedavg.data)


def test_changes_of_fedavg_in_a_column_or_size_are_made_to_first_of() -> None:
    laptop = fresh_study("fedasmu/imdb").sizes[SIZE].set
    changed = {key for key in laptop if key.startswith(f"algorithms.{FEDAVG}.")}
    assert changed
    assert all(laptop[key] == laptop[key.replace(FEDAVG, FIRST_OF, 1)] for key in changed)


@pytest.mark.parametrize("name", ["fedcompass/ratio", "wireless/figure-5"])
def test_a_study_without_the_algorithm_fedavg_has_no_label_of_ours(name: str) -> None:
    assert FIRST_OF not in fresh_study(name).labels
    assert FIRST_OF not in {cell.label for cell in fresh_cells(name)}


def test_reworded_claims_are_those_about_all_cases() -> None:
    design, found = load_design(), []
    for name in design.studies:
        for item, own in load_study(name).items.items():
            for number, claim in enumerate(own.claims, 1):
                reworded = design.reworded_claim(item, number)
                if reworded is not None:
                    assert claim.quote == reworded.quote
                    assert claim.quantifier == "every"
                    assert claim.better == reworded.reaches
                    found.append(item)
                else:
                    assert claim.quote != "FedCompass can quickly converge in all cases"
    assert sorted(found) == sorted(item for each in design.reworded for item in each.items)
