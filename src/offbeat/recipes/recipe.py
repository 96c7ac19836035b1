"""The recipe: one checked document for a whole experiment."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from offbeat.core.limits import NEVER_ENDS, Every, Until, check_target
from offbeat.core.types import Count, Finite
from offbeat.local.training import Training
from offbeat.models.registry import MLPSpec, ModelSpec
from offbeat.report.claims import Claim
from offbeat.world.partitions import DualDirichlet, Partition
from offbeat.world.world import World


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """The data of an experiment.

    Attributes:
        dataset: Name of the dataset.
        samples: Size of a random subsample of the train set. None means all samples.
        test_samples: Size of a random subsample of the test set. None means all samples.
        partition: Partition of the train samples over the clients.
        evaluate_on: "test" evaluates the global model on the test set, "train" on as many random samples of
            the train set, for its training loss.
    """

    dataset: str
    samples: Count | None = None
    test_samples: Count | None = None
    partition: Partition = DualDirichlet()
    evaluate_on: Literal["test", "train"] = "test"


class Recipe(Section):
    """An experiment.

    Attributes:
        title: Title for reports.
        about: Description for readers.
        clients: Number of clients.
        data: Dataset and partition.
        model: Specification of the model.
        training: Options of the local training.
        world: Speeds, links and availability of the clients.
        algorithm: The algorithm of `offbeat run`: a label, or a mapping with `name` and hyper-parameters.
        algorithms: Hyper-parameters of each algorithm by label; a label that is not an algorithm's name has
            the name under `name`.
        until: Limits of a run.
        evaluate: How often the global model is evaluated.
        seed: First seed.
        seeds: Number of seeds of a comparison.
        metric: Metric that runs are compared by. None means the accuracy if it was recorded, else the first
            metric, else the loss.
        target: Value of the metric whose first time a comparison measures.
        baseline: Label whose time is 1.00x.
        claims: Claims of a paper about the labels.
        scales: Named sets of changes, by dotted key.
    """

    title: str = ""
    about: str = ""
    clients: Count
    data: Data
    model: ModelSpec = MLPSpec()
    training: Training = Training()
    world: World = World()
    algorithm: dict[str, Any]
    algorithms: dict[str, dict[str, Any]] = {}
    until: Until
    evaluate: Every = Every(versions=1)
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Count = 3
    metric: str | None = None
    target: Finite | None = None
    baseline: str | None = None
    claims: list[Claim] = []
    scales: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse what concerns several keys, or the names of labels."""
        if self.until.never:
            raise ValueError(NEVER_ENDS)
        check_target(self.metric, self.target)
        for label in self.algorithms:
            if not label or label.startswith(".") or {"/", "\\"} & set(label):
                raise ValueError(
                    f"label {label!r} in algorithms names a directory: leave out / and a leading dot"
                )
        if self.world.clients not in (None, self.clients):
            raise ValueError(
                f"world.clients = {self.world.clients} is not clients = {self.clients}: leave it out"
            )
        return self

    def spec(self, label: str) -> dict[str, Any]:
        """Name and hyper-parameters of a label: its entry in `algorithms`, or else the defaults."""
        return {"name": label, **self.algorithms.get(label, {})}
