"""The frozen design of the second study: its seeds, its labels of ours, and the claims that it words anew."""

from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from offbeat.documents import parse_yaml
from offbeat.recipes.recipe import Section
from offbeat_papers.arm_rows import Arm, bases_of, claim_arms
from offbeat_papers.cells import Cell, study_cells
from offbeat_papers.load import load_study, size_columns, size_labels
from offbeat_papers.study import Item, PaperClaim, Size, Study

SIZE: Size = "laptop"
"""The size of all runs."""
FEDAVG, FIRST_OF = "fedavg", "first-of"
"""The label that waits for all of its clients, and the label of ours beside it."""


class StudySeeds(Section):
    """The seeds of a study.

    Attributes:
        seeds: Number of seeds.
    """

    seeds: Annotated[int, Field(ge=3)]


class Reworded(Section):
    """A claim that is worded anew.

    Attributes:
        says: What it says now.
        quote: The sentence of the paper that it judges.
        reaches: The label that reaches the item's target in every setting.
        number: Number of the claim in each item, from 1.
        items: The items.
    """

    says: str
    quote: str
    reaches: str
    number: Annotated[int, Field(ge=1)]
    items: list[str]


class Design(Section):
    """The design.

    Attributes:
        first_seed: The first seed of all studies.
        studies: Their seeds by name, in the order in which the runs are made.
        first_of: The algorithm of `FIRST_OF`, without the options that it takes over from `FEDAVG`.
        reworded: The claims that are worded anew.
    """

    first_seed: Annotated[int, Field(ge=0)]
    studies: dict[str, StudySeeds]
    first_of: dict[str, Any]
    reworded: list[Reworded]

    def reworded_claim(self, item: str, number: int) -> Reworded | None:
        """How a claim is worded anew; None where it is as the study has it."""
        found = (each for each in self.reworded if item in each.items and number == each.number)
        return next(found, None)


@cache
def load_design() -> Design:
    """Load the design."""
    path = files("offbeat_papers") / "replication" / "design.yaml"
    return Design.model_validate(parse_yaml(path.read_text(encoding="utf-8"), "the second study's design"))


@cache
def fresh_study(name: str) -> Study:
    """A built-in study with the seeds of the design, and with `FIRST_OF` beside `FEDAVG`.

    The digest of a run has the seed, and of the algorithms only the run's own. So a run of another label has
    the digest that the built-in study gives it.
    """
    study, design = load_study(name), load_design()
    recipe = study.recipe | {"seed": design.first_seed, "seeds": design.studies[name].seeds}
    document = study.model_dump() | {"recipe": recipe}
    fedavg = study.recipe["algorithms"].get(FEDAVG)
    # The wireless paper's FedAvg has that label, and is another algorithm.
    if fedavg is not None and "name" not in fedavg:
        own = {FEDAVG: fedavg, FIRST_OF: fedavg | design.first_of}
        recipe["algorithms"] = study.recipe["algorithms"] | own
        document["columns"] = {column: _with_first_of(own) for column, own in study.columns.items()}
        for size in document["sizes"].values():
            size["set"] = _with_first_of(size["set"])
            if size["labels"] is not None and FEDAVG in size["labels"]:
                size["labels"] = [*size["labels"], FIRST_OF]
    return Study.model_validate(document)


def _with_first_of(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes of a recipe, with those of `FEDAVG` made to `FIRST_OF` too."""
    start = f"algorithms.{FEDAVG}."
    taken = {key.removeprefix(start): value for key, value in changes.items() if key.startswith(start)}
    return changes | {f"algorithms.{FIRST_OF}.{key}": value for key, value in taken.items()}


def fresh_claims(item: Item) -> list[PaperClaim]:
    """The claims of an item that are of its paper; none where the item explains others."""
    return [] if item.explains else item.claims


def fresh_cells(name: str) -> list[Cell]:
    """The runs of a study, seed by seed: the arms of its claims, and `FIRST_OF` beside each `FEDAVG`."""
    study, arms = fresh_study(name), set[Arm]()
    for item, own in study.items.items():
        for claim in fresh_claims(own):
            for pair in claim_arms(study, item, claim):
                arms.update((*pair, *bases_of(claim, *pair)))
    if FIRST_OF in study.labels:
        arms |= {(FIRST_OF, column) for label, column in arms if label == FEDAVG}
    labels = [label for label in size_labels(study, SIZE) if any(label == own for own, _ in arms)]
    columns = [column for column in size_columns(study, SIZE) if any(column == own for _, own in arms)]
    cells = study_cells(study, SIZE, labels=labels, columns=columns)
    return [cell for cell in cells if (cell.label, cell.column) in arms]
