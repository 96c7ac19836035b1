"""The study: one set of runs that several tables and figures of a paper share, with the paper's numbers."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from offbeat.core.metric_names import CLIENTS
from offbeat.core.types import Finite
from offbeat.core.validation import did_you_mean
from offbeat.metrics import METRICS
from offbeat.recipes.recipe import Section
from offbeat.verdicts.answers import Quantifier

Size = Literal["paper", "laptop", "seconds"]
SIZES: tuple[Size, ...] = ("paper", "laptop", "seconds")
"""The sizes of a study, the largest first."""

COSTS = ("time", "versions", "tasks", "bytes")
"""Costs up to a target: virtual seconds, versions, updates that arrived, bytes up and down."""

VALUES = ("best", "final", "level", "change", "worst")
"""Values of a metric in a run: best and final value; mean, and mean absolute change from one evaluation to
the next, over the last fifth of the time; final value of the worst client."""

Number = Finite | tuple[Finite, Finite] | None
"""A number of a paper: a value, or a value with its deviation. None means that it was never reached."""


class PaperClaim(Section):
    """A claim of a paper: `better` is better than each of `than`.

    Attributes:
        says: The claim, in the paper's words or near them.
        better: The arm that is better: a label, or "label@column".
        than: The arms with which `better` is compared.
        by: The compared quantity: a cost up to the target ("time", "versions", "tasks", "bytes"), of which
            less is better; a value of the item's metric ("best", "final", "level", "change", "worst"); or the
            name of a metric, which means the metric's level. None means what the item shows.
        columns: Columns in which arms without "@" are compared. None means the item's columns.
        against: The column of `than` for each column of `better`. Empty means the same column.
        over: Base labels of a claim about gains, which compares the advantage of each arm over a base label
            in the arm's column: one base label for both sides, or the one of `better` and the one of `than`.
            Empty means that the arms themselves are compared.
        margin: The least advantage that counts as better: in the metric's unit, or for a cost as a share
            (with 0.5, the other takes 1.5 times as much). A negative margin allows `better` to be worse by at
            most that amount.
        quantifier: The pairs of arms for which the claim is made, as the paper words it: their mean
            ("faster"), every pair ("in all cases"), most pairs ("usually") or some pair ("can sometimes").
        quote: The paper's words.
        cause: Why the claim does not hold, as an experiment has shown.
    """

    says: str
    better: str
    than: Annotated[list[str], Field(min_length=1)]
    by: str | None = None
    columns: list[str] | None = None
    against: dict[str, str] = Field(default_factory=dict)
    over: Annotated[list[str], Field(max_length=2)] = Field(default_factory=list)
    margin: Finite = 0.0
    quantifier: Quantifier = "average"
    quote: str | None = None
    cause: str | None = None


class Item(Section):
    """A table or a figure of a paper.

    Attributes:
        title: The title of the table or figure.
        shows: The quantity in the table: a cost up to the target, or a value of the metric (see
            `PaperClaim.by`).
        metric: The metric. None means the recipe's metric, or the first that is shown if the recipe has none.
        columns: Columns of the item. None means all columns of the study.
        labels: Labels of the item. None means all labels of the recipe.
        target: Value of the metric up to which costs are measured, also by column. None means the recipe's.
        relative: Label whose cost is 1.00x in the table. None means that the table has the costs themselves.
        figure: The form of the figure: "curves" of the metric over time, with a panel for each column; "bars"
            of what the item shows, with a group for each column; "lines" over the columns. None means no
            figure.
        numbers: The paper's numbers by column and label, in the unit of what the item shows: a share is in
            [0, 1], and a cost is a ratio if `relative` is given.
        claims: The paper's claims about the item.
        notes: A text beside the verdict.
        explains: Experiments of the paper, such as "table-2", whose cause the item shows. The item is no part
            of these experiments.
    """

    title: str
    shows: Literal["time", "versions", "tasks", "bytes", "best", "final", "level", "change", "worst"] = "best"
    metric: str | None = None
    columns: list[str] | None = None
    labels: list[str] | None = None
    target: Finite | dict[str, Finite] | None = None
    relative: str | None = None
    figure: Literal["curves", "bars", "lines"] | None = None
    numbers: dict[str, dict[str, Number]] = Field(default_factory=dict)
    claims: list[PaperClaim] = Field(default_factory=list)
    notes: str | None = None
    explains: list[str] = Field(default_factory=list)


class StudySize(Section):
    """How large the runs of a study are.

    Attributes:
        set: Changes of the recipe by dotted key. They apply after the column's changes. "algorithms.*.steps"
            changes the option of every label that has the option.
        columns: Columns that run at this size. None means all.
        labels: Labels that run at this size. None means all.
        targets: Targets by column, in place of the recipe's target, for items without a target.
        not_here: Why this size was not run on the machine of the results.
    """

    set: dict[str, Any] = Field(default_factory=dict)
    columns: list[str] | None = None
    labels: list[str] | None = None
    targets: dict[str, Finite] = Field(default_factory=dict)
    not_here: str | None = None


class Study(Section):
    """One set of runs that several items of a paper share.

    Attributes:
        name: "paper/study", from the file's path.
        title: The title of the study.
        paper: The paper.
        about: How the study differs from the paper's setting, and why.
        recipe: A whole recipe, as `offbeat compare` reads it. `check_study` checks it with all changes.
        columns: The settings: for each column the changes of the recipe, by dotted key.
        sizes: The sizes at which the study can run.
        items: Tables and figures by name, such as "table-1".
        no_real_data: Why the study runs on generated files only. None means that its data are real.
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

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse what cannot be: a cost of 0, a margin of a whole cost, a claim on itself."""
        for name, item in self.items.items():
            if item.metric is not None:
                self._check_measure(f"items.{name}.metric", item.metric)
            for column, numbers in item.numbers.items():
                for label, number in numbers.items():
                    value = number[0] if isinstance(number, tuple) else number
                    if item.shows in COSTS and value is not None and value <= 0:
                        where = f"items.{name}.numbers.{column}.{label}"
                        raise ValueError(f"{where} = {value:g} is not allowed: a cost is above 0")
            for k, claim in enumerate(item.claims):
                where = f"items.{name}.claims.{k}"
                if (claim.by or item.shows) in COSTS and claim.margin <= -1:
                    raise ValueError(
                        f"{where}.margin = {claim.margin:g} is not allowed: of a cost it is a share above -1"
                    )
                if claim.by is not None:
                    self._check_measure(f"{where}.by", claim.by, (*COSTS, *VALUES))
                if claim.better in claim.than and not claim.against and not claim.over:
                    raise ValueError(f"{where}.than has {claim.better!r}, which is what the claim is about")
        return self

    def _check_measure(self, where: str, name: str, others: tuple[str, ...] = ()) -> None:
        """Refuse a metric that no run of the study can have."""
        changes = [*self.columns.values(), *(size.set for size in self.sizes.values())]
        if any("evaluate_batch" in each for each in (self.recipe, *changes)):
            # A function of the user's own names its metrics only when it is called.
            return
        own = [name for each in (self.recipe, *changes) for name in each.get("metrics") or ()]
        known = [*others, "loss", *METRICS, *(str(name).rpartition(":")[2] for name in own)]
        if name.removeprefix(CLIENTS).partition(".")[0] not in known:
            raise ValueError(f"{where} = {name!r} is not allowed{did_you_mean(name, known)}")

    @staticmethod
    def _check(where: str, kind: str, given: list[str] | None, known: list[str]) -> None:
        for name in given or ():
            if name not in known:
                raise ValueError(f"{where}: {name!r} is no {kind} of the study: known: {', '.join(known)}")
