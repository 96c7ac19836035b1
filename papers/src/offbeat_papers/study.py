"""The study: one set of runs that several tables and figures of a paper share, with the paper's numbers."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from offbeat.recipes.recipe import Section
from offbeat.verdicts.answers import Quantifier

Size = Literal["paper", "laptop", "seconds"]
SIZES: tuple[Size, ...] = ("paper", "laptop", "seconds")
"""The sizes of a study, the largest first."""

COSTS = ("time", "versions", "tasks", "bytes")
"""Costs up to a target: virtual seconds, versions, updates that arrived, bytes up and down."""

VALUES = ("best", "final", "level", "change", "worst")
"""What is measured of a metric in a whole run: best and final value; mean and mean absolute change from one
evaluation to the next over the last fifth of its time; final value of the worst client."""

Number = float | tuple[float, float] | None
"""A number of a paper: the value, or value and deviation; null means never reached."""


class PaperClaim(Section):
    """A claim of a paper: `better` is better than each of `than`.

    Attributes:
        says: The claim, in the paper's words or near them.
        better: An arm: a label, or "label@column".
        than: The arms it is compared with.
        by: A cost up to the target ("time", "versions", "tasks", "bytes"), of which less is better; or a
            value of the item's metric ("best", "final", "level", "change", "worst"); or the name of a metric,
            whose level it is. None means what the item shows.
        columns: Columns in which it is said of arms without "@". None means the item's.
        against: By column in which `better` is meant the column in which each of `than` is. Empty means that
            all are meant in the same columns.
        over: What is compared is not the arms but the advantage of each over a label in its column, the gain:
            the label of `better` and that of `than`, or one for both. Empty means the arms.
        margin: What it is better by at least: in the metric's own unit, or for a cost as a share (0.5: the
            other takes 1.5 times as much). Below 0 it says "not worse by more than".
        quantifier: Of which of its pairs of arms it speaks, as the paper words it: of their mean ("faster"),
            of every one ("in all cases"), of most ("usually") or of some ("can sometimes").
        quote: The paper's words that say so.
        cause: Why it does not hold, as an experiment has shown.
    """

    says: str
    better: str
    than: Annotated[list[str], Field(min_length=1)]
    by: str | None = None
    columns: list[str] | None = None
    against: dict[str, str] = Field(default_factory=dict)
    over: Annotated[list[str], Field(max_length=2)] = Field(default_factory=list)
    margin: float = 0.0
    quantifier: Quantifier = "average"
    quote: str | None = None
    cause: str | None = None


class Item(Section):
    """A table or a figure of a paper.

    Attributes:
        title: What it is.
        shows: What its table shows: a cost up to the target, or a value of the metric (see `PaperClaim.by`).
        metric: The metric. None means the recipe's, or else the first that is shown.
        columns: Columns of the study it has. None means all.
        labels: Labels it has. None means all of the recipe's.
        target: Value of the metric that costs are measured to, also by column. None means the recipe's.
        relative: Label whose cost is 1.00x in the table. None means that costs are shown as they are.
        figure: How it is drawn: "curves" of the metric over time, a panel for each column; "bars" of what is
            shown, a group for each column; "lines" of what is shown over the columns. None means not at all.
        numbers: The paper's numbers by column and label, in the unit of what is shown: a share is in [0, 1],
            and costs are relative if `relative` is given.
        claims: What the paper says of it.
        notes: What is said beside the verdict.
        explains: Experiments of the paper, such as "table-2", that it is no part of but shows the cause of.
    """

    title: str
    shows: Literal["time", "versions", "tasks", "bytes", "best", "final", "level", "change", "worst"] = "best"
    metric: str | None = None
    columns: list[str] | None = None
    labels: list[str] | None = None
    target: float | dict[str, float] | None = None
    relative: str | None = None
    figure: Literal["curves", "bars", "lines"] | None = None
    numbers: dict[str, dict[str, Number]] = Field(default_factory=dict)
    claims: list[PaperClaim] = Field(default_factory=list)
    notes: str | None = None
    explains: list[str] = Field(default_factory=list)


class StudySize(Section):
    """How large the runs of a study are.

    Attributes:
        set: Changes of the recipe by dotted key. They come after the column's. "algorithms.*.steps" changes
            the option of every label that has it.
        columns: Columns that are run. None means all.
        labels: Labels that are run. None means all.
        targets: Target by column, in place of the recipe's, for items that have none of their own.
        not_here: Why it is not run on the machine of the results.
    """

    set: dict[str, Any] = Field(default_factory=dict)
    columns: list[str] | None = None
    labels: list[str] | None = None
    targets: dict[str, float] = Field(default_factory=dict)
    not_here: str | None = None


class Study(Section):
    """One set of runs that several items of a paper share.

    Attributes:
        name: "paper/study", from the file's path.
        title: What it is.
        paper: The paper.
        about: How it differs from the paper's setting, and why.
        recipe: A whole recipe, as `offbeat compare` reads it; its changes are checked with it.
        columns: Settings: changes of the recipe by dotted key, as of a size.
        sizes: The sizes it can be run at.
        items: Tables and figures by name, such as "table-1".
        no_real_data: Why it runs on generated files only. None means that its data are real.
    """

    name: str
    title: str
    paper: str
    about: str = ""
    recipe: dict[str, Any]
    columns: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    sizes: Annotated[dict[Size, StudySize], Field(min_length=1)]
    items: Annotated[dict[str, Item], Field(min_length=1)]
    no_real_data: str | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of the recipe's algorithms."""
        return [str(label) for label in self.recipe.get("algorithms") or {}]

    def item_columns(self, item: str) -> list[str]:
        """Columns of an item."""
        own = self.items[item].columns
        return list(self.columns) if own is None else own

    def item_labels(self, item: str) -> list[str]:
        """Labels of an item."""
        own = self.items[item].labels
        return self.labels if own is None else own

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse names of columns and labels that are none of the study's."""
        if not self.labels:
            raise ValueError("recipe.algorithms is missing: a study names the labels it runs")
        named: list[tuple[str, list[str] | None, list[str] | None]] = [
            (f"sizes.{name}", size.columns, size.labels) for name, size in self.sizes.items()
        ]
        named += [(f"sizes.{name}.targets", list(size.targets), None) for name, size in self.sizes.items()]
        for name, item in self.items.items():
            where = f"items.{name}"
            named.append((where, item.columns, item.labels))
            named.append((where, None, [item.relative] if item.relative else None))
            if isinstance(item.target, dict):
                named.append((f"{where}.target", list(item.target), None))
            named += [(f"{where}.numbers.{c}", [c], list(rows)) for c, rows in item.numbers.items()]
            for k, claim in enumerate(item.claims):
                arms = [arm.partition("@") for arm in (claim.better, *claim.than)]
                own = [column for _, at, column in arms if at]
                named.append((f"{where}.claims.{k}", own, [label for label, _, _ in arms]))
                named.append((f"{where}.claims.{k}", claim.columns, claim.over))
                named.append((f"{where}.claims.{k}.against", [*claim.against, *claim.against.values()], None))
        for where, columns, labels in named:
            self._check(where, "column", columns, list(self.columns))
            self._check(where, "label", labels, self.labels)
        return self

    @staticmethod
    def _check(where: str, kind: str, given: list[str] | None, known: list[str]) -> None:
        for name in given or ():
            if name not in known:
                raise ValueError(f"{where}: {name!r} is no {kind} of the study: known: {', '.join(known)}")
