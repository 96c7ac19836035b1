"""The recipe: one checked document for a whole experiment."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from offbeat.core.guard import Guard
from offbeat.core.labels import check_label
from offbeat.core.limits import NEVER_ENDS, Every, Until, check_target
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.streams import check_seed
from offbeat.core.types import NUMBER, Count, Finite
from offbeat.core.validation import checked_dataclass
from offbeat.core.wire_types import FLOAT32, Wire
from offbeat.data.datasets_by_name import DATASETS, dataset_options
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.training import Training
from offbeat.models.specs import AnyModel, MLPSpec
from offbeat.runs.recorded_options import BESIDE
from offbeat.world.partitions import DualDirichlet, Partition
from offbeat.world.world import World

MOST_LABELS = 1000
"""Labels of a recipe at most, as many as a comparison has runs: each is checked when the recipe is read."""
# YAML reads an unquoted `off` as False.
OFF = (False, "off")
FunctionName = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$", description="module:function")]
"""A function of a user's, "module:function"."""


class Section(BaseModel):
    """A part of a recipe: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """The data of an experiment.

    Attributes:
        dataset: Name of the dataset; or a function of one's own, "module:function", that returns the clients'
            data by `offbeat.federate`, or what is divided by `partition`: a train and a test set. None means
            that only sites have data, for `offbeat serve`.
        options: Named arguments of one's own function, or options of the built-in dataset.
        label: The column of the targets, where one's own function returns pandas frames or datasets of
            Hugging Face.
        samples: Size of a random subsample of the train set. None means all samples.
        test_samples: Size of a random subsample of the test set. None means all samples.
        partition: Partition of the train samples over the clients.
        drop_empty: Whether clients to whom the partition gives no samples are left out; the run then has
            fewer clients, and the log tells which are missing.
        validation: Share in [0, 1) of each client's samples that it holds out, for evaluations there.
        root: Number of random train samples that the server keeps for itself as trusted data, for aggregators
            that train on some. None means none.
        evaluate_on: "test" evaluates the global model on the test set, "train" on as many random samples of
            the train set, for its training loss.
        standardize: Scales the features for a built-in model by statistics of all clients: "federated"
            gathers them before a simulation; the directory of a run of the recipe "statistics" has them
            already. None means that samples are used as they are.
        sample_shape: Shape of one sample (without N), for a built-in model where there is no dataset.
        classes: Number of classes, for a built-in model where there is no dataset.
        columns: Names of the columns of tables in the order of the model's inputs, to which each table is
            put. None means those of the test set at a server, and of the first client in a simulation.
    """

    dataset: str | None = None
    options: dict[str, Any] = {}
    label: str | None = None
    samples: Count | None = None
    test_samples: Count | None = None
    partition: Partition = DualDirichlet()
    drop_empty: bool = False
    validation: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    root: Count | None = None
    evaluate_on: Literal["test", "train"] = "test"
    standardize: str | None = None
    sample_shape: tuple[Count, ...] | None = None
    classes: Count | None = None
    columns: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _with_a_file(self) -> Self:
        """Refuse to take samples away that a partition's file counts."""
        if self.partition.kind == "file" and (self.samples, self.root) != (None, None):
            raise ValueError(
                "data.samples and data.root take samples out of the train set, whose indices the file of "
                "data.partition has: leave them out, and write a file with fewer indices"
            )
        return self

    @model_validator(mode="after")
    def _for_own_data(self) -> Self:
        """Refuse options that are for built-in datasets only, or only for the user's own."""
        is_function = ":" in (self.dataset or "")
        built_in = (self.samples, self.test_samples, self.root)
        if is_function and (built_in != (None, None, None) or self.evaluate_on != "test"):
            raise ValueError(
                f"data.samples, data.test_samples, data.root and data.evaluate_on are for built-in datasets: "
                f"let {self.dataset} return the samples that are wanted"
            )
        if self.label is not None and not is_function:
            raise ValueError(
                "data.label is for frames that a function of your own returns: leave it out with a built-in "
                "dataset"
            )
        if self.options and not is_function:
            if self.dataset not in DATASETS:
                raise ValueError("data.options are for a dataset: name it under data.dataset")
            dataset_options(self.dataset, self.options)
        return self


@checked_dataclass
class StatisticsSpec:
    """No model: the run gathers statistics of the clients' features."""

    name: Literal["statistics"]


def _named(spec: Any) -> Any:
    return {"name": spec} if isinstance(spec, str) else spec


def _kind(spec: Any) -> str:
    name = spec.get("name") if isinstance(spec, dict) else getattr(spec, "name", spec)
    return "no-model" if name == "statistics" else "any-model"


def _with_defaults(algorithms: Any) -> Any:
    """The labels with their options, of which a label with nothing behind it has none."""
    if not isinstance(algorithms, dict):
        return algorithms
    return {label: {} if own is None else own for label, own in algorithms.items()}


class Recipe(Section):
    """An experiment.

    Attributes:
        title: Title for reports.
        about: Description for readers.
        clients: Number of clients.
        data: Dataset and partition.
        model: Specification of the model: a built-in one, or a function "module:function" and its options;
            "statistics" gathers statistics of the features and trains nothing.
        initial: Initial weights: a .safetensors file, or the directory of a run. None means those
            of the model, drawn from the seed.
        training: Options of the local training.
        loss: loss(output, target), the name of a loss of PyTorch or "module:function". None means the cross
            entropy.
        step: step(module, batch) that returns the loss, "module:function", in place of `loss`.
        evaluate_batch: evaluate(module, batch) of `TorchLearner`, "module:function".
        metrics: Metrics beside the loss: built-in ones or "module:function"; a mapping gives them names.
        personal: Patterns such as "head.*" of tensors that stay at their client.
        examples: Privacy of each client's examples, by DP-SGD in its local steps. None means no such
            privacy.
        world: Speeds, links and availability of the clients.
        algorithm: The algorithm of `offbeat run`: a label, or a mapping with `name` and hyper-parameters.
        algorithms: Hyper-parameters of each algorithm by label. A label that is not an algorithm's name has
            the name under `name`. Its other changes of the recipe, by dotted key, are under `set`.
        guard: Options of the guard, which refuses updates of absurd size; "off" means no guard.
        privacy: Noise, secure sums and their options. None means that each update is used as it is.
        wire: The types of number in which models (`down`) and updates (`up`) travel, such as bf16.
        until: Limits of a run.
        evaluate: How often the global model is evaluated.
        callbacks: Objects that are called during a run: names, the user's "module:function", or mappings
            with such a `name` and options.
        seed: First seed.
        seeds: Number of seeds of a comparison.
        metric: Metric by which runs are compared. None means the accuracy if it was recorded, else the first
            metric, else the loss.
        target: Value of the metric; a comparison measures the time at which a run first reaches it.
        baseline: Label whose time counts as 1.00x.
        scales: Named sets of changes, by dotted key.
        sweep: Values that a comparison tries in all combinations, by dotted key; "algorithm.steps" is a
            hyper-parameter of every label's algorithm.
    """

    title: str = ""
    about: str = ""
    clients: Count
    data: Data = Data()
    model: Annotated[
        Annotated[StatisticsSpec, BeforeValidator(_named), Tag("no-model")]
        | Annotated[AnyModel, Tag("any-model")],
        Discriminator(_kind),
    ] = MLPSpec()
    initial: str | None = None
    training: Training = Training()
    loss: str | None = None
    step: FunctionName | None = None
    evaluate_batch: FunctionName | None = None
    metrics: tuple[str, ...] | dict[str, str] | None = None
    personal: tuple[str, ...] = ()
    examples: ExamplesPrivacy | None = None
    world: World = World()
    algorithm: dict[str, Any]
    algorithms: Annotated[dict[str, dict[str, Any]], BeforeValidator(_with_defaults)] = {}
    guard: Annotated[Guard | None, BeforeValidator(lambda given: None if given in OFF else given)] = Guard()
    privacy: Privacy | None = None
    wire: Wire = FLOAT32
    until: Until
    evaluate: Every = Every(versions=1)
    callbacks: tuple[str | dict[str, Any], ...] = ()
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER] = 0
    seeds: Count = 3
    metric: str | None = None
    target: Finite | None = None
    baseline: str | None = None
    scales: dict[str, dict[str, Any]] = {}
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    @property
    def gathers_statistics(self) -> bool:
        """Whether its run gathers statistics of features, and trains nothing."""
        return isinstance(self.model, StatisticsSpec)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Check options that concern several keys, and the names of labels."""
        if self.until.never:
            raise ValueError(NEVER_ENDS)
        check_target(self.metric, self.target)
        if (count := len(self.algorithms)) > MOST_LABELS:
            raise ValueError(
                f"algorithms has {count} labels, at most {MOST_LABELS} are allowed: leave out some"
            )
        for label in self.algorithms:
            check_label(label, "in algorithms, label")
        for label, own in self.algorithms.items():
            if not isinstance(changes := own.get("set", {}), dict):
                raise ValueError(
                    f"algorithms.{label}.set = {changes!r} is not allowed: write dotted keys and values, "
                    "such as {training.lr: 0.01}"
                )
            _check_changes(f"algorithms.{label}.set", changes)
        _check_changes("sweep", [key for key in self.sweep if not _HYPERPARAMETER.fullmatch(key)])
        if self.world.clients not in (None, self.clients):
            raise ValueError(
                f"world.clients = {self.world.clients} is not clients = {self.clients}: leave it out"
            )
        return self

    def with_seed(self, seed: int) -> Self:
        """The recipe under another seed, in [0, 2**63)."""
        return self.model_copy(update={"seed": check_seed(seed)})

    def spec(self, label: str) -> dict[str, Any]:
        """Name, hyper-parameters and `set` of a label: its entry in `algorithms`, or else the defaults."""
        return {"label": label, "name": label, **self.algorithms.get(label, {})}


_HYPERPARAMETER = re.compile(r"algorithm\.(?!(name|label|set)$).+")


def _check_changes(option: str, keys: Iterable[Any]) -> None:
    """Refuse keys of the comparison as such: all its labels have the same."""
    for key in map(str, keys):
        if key.split(".")[0] in BESIDE or key == "world.trace":
            raise ValueError(
                f"{option} has {key!r}, which is not allowed: give keys that a run depends on, such as "
                "training.lr, clients or until.seconds"
            )
