"""A recipe: everything an experiment needs, in one checked document."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from offbeat.core.limits import Every, Until
from offbeat.local.training import Training
from offbeat.models.registry import MLPSpec, ModelSpec
from offbeat.report.claims import Claim
from offbeat.world.partitions import DualDirichlet, Partition
from offbeat.world.world import World


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """The dataset, a random subsample of it (none: all), and its partition over the clients.

    The global model is evaluated on the test set or, with `evaluate_on: train`, on that many random samples
    of the training set, for its training loss.
    """

    dataset: str
    samples: Annotated[int | None, Field(ge=1)] = None
    test_samples: Annotated[int | None, Field(ge=1)] = None
    partition: Partition = DualDirichlet()
    evaluate_on: Literal["test", "train"] = "test"


class Recipe(Section):
    """An experiment.

    `algorithms` gives the hyper-parameters of each algorithm by label; a label that is not an
    algorithm's name says which it is with `name`. `algorithm` is what `offbeat run` runs: a label, or
    a mapping of its own. `target` is the accuracy whose first time a comparison measures, `baseline`
    the label whose time is 1.00x; `claims` are what a paper says of the labels. `scales` holds named sets
    of changes, as dotted keys.
    """

    title: str = ""
    about: str = ""
    clients: Annotated[int, Field(ge=1)]
    data: Data
    model: ModelSpec = MLPSpec()
    training: Training = Training()
    world: World = World()
    algorithm: dict[str, Any]
    algorithms: dict[str, dict[str, Any]] = {}
    until: Until
    evaluate: Every = Every(versions=1)
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 3
    target: Annotated[float | None, Field(gt=0, le=1)] = None
    baseline: str | None = None
    claims: list[Claim] = []
    scales: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.until.never:
            raise ValueError("the run would never end: give until seconds, versions, tasks or accuracy")
        return self

    @model_validator(mode="after")
    def _labels(self) -> Self:
        for label in self.algorithms:
            if not label or label.startswith(".") or {"/", "\\"} & set(label):
                raise ValueError(
                    f"label {label!r} in algorithms names a directory: leave out / and a leading dot"
                )
        return self

    @model_validator(mode="after")
    def _population(self) -> Self:
        if self.world.clients not in (None, self.clients):
            raise ValueError(
                f"world.clients = {self.world.clients} is not clients = {self.clients}: leave it out"
            )
        return self

    def spec(self, label: str) -> dict[str, Any]:
        """Name and hyper-parameters of a label: its entry in `algorithms`, or else the defaults."""
        return {"name": label, **self.algorithms.get(label, {})}
