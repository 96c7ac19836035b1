"""An experiment: one value for the simulator, a server, Flower, recipes and replay."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from offbeat.algorithms import recorded_name
from offbeat.algorithms.privacy.private import (
    check_buffers,
    check_client_metrics,
    complete_privacy,
    with_privacy,
    without_privacy,
)
from offbeat.codec.rounded import Rounded
from offbeat.core.algorithm import Algorithm, check_layout
from offbeat.core.buffers import Finalizer, finalizer, unchanged
from offbeat.core.differences import first_difference
from offbeat.core.engine import Engine
from offbeat.core.errors import RunError, UsageError
from offbeat.core.global_model import GlobalModel
from offbeat.core.guard import Guard
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.learner import Learner, NoTraining, check_learner, in_order, metric_directions
from offbeat.core.limits import Every, Until
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan, ledger_of
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.release import Release
from offbeat.core.root import TrainRoot, train_root
from offbeat.core.streams import check_seed
from offbeat.core.validation import check_type
from offbeat.core.wire_types import FLOAT32, Wire
from offbeat.runs.extension import limits_meta
from offbeat.runs.initial import Initial, start_from
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE
from offbeat.version import __version__

ENDS = Until(versions=100)
"""Limits of a run for which none are given."""
EACH_VERSION = Every(versions=1)
"""How often the global model is evaluated where nothing is said of it."""
NEVER = Every()
"""The evaluations of a run without any."""


@dataclass(frozen=True)
class Experiment:
    """A run before it has clients.

    Attributes:
        algorithm: The algorithm.
        learner: Trains and evaluates. None means that nothing is trained.
        seed: The run's seed, in [0, 2**63).
        until: The run's limits.
        evaluate: How often the global model is evaluated, and where.
        guard: Options of the guard against absurd updates. None means no guard.
        privacy: Noise, secure sums and their options. None means that each update is used as it is.
        wire: The types of number in which models and updates travel.
        initial: The weights from which the run starts. None means the learner's own.
        label: Name of the run. None means the algorithm's name.
        recipe: The recipe of the run, which is written to the run's directory.

    Raises:
        UsageError: The algorithm is not an `Algorithm`, the seed is out of its range, or another value is
            of a wrong kind.
    """

    algorithm: Algorithm
    learner: Learner | None = None
    seed: int = 0
    until: Until = ENDS
    evaluate: Every = EACH_VERSION
    guard: Guard | None = Guard()
    privacy: Privacy | None = None
    initial: Initial | None = None
    label: str | None = None
    recipe: Mapping[str, Any] | None = None
    wire: Wire = FLOAT32

    def __post_init__(self) -> None:
        """Check the options that need no clients."""
        if not isinstance(self.algorithm, Algorithm):
            raise UsageError(
                f"a {type(self.algorithm).__name__} is not an Algorithm: call a factory, such as "
                "offbeat.fedavg()"
            )
        check_type("until", self.until, Until, "the run's limits, such as Until(seconds=60)")
        check_type("evaluate", self.evaluate, Every, "Every(versions=…), or None for never")
        check_type("guard", self.guard, Guard | None, "Guard(…), or None for no guard")
        check_type("privacy", self.privacy, Privacy | None, "Privacy(…), or None")
        check_type(
            "initial", self.initial, Initial | None,
            "a .safetensors file, the directory of a finished run, or a model",
        )  # fmt: skip
        check_type("wire", self.wire, Wire, "Wire(down=…, up=…)")
        check_type("recipe", self.recipe, Mapping | None, "the mapping of a recipe")
        check_learner(self.learner)
        if self.wire.up != "float32":
            object.__setattr__(self, "algorithm", self._with_rounding(self.wire.up))
        object.__setattr__(self, "learner", _in_order_of(self.initial, self.learner))
        object.__setattr__(self, "seed", check_seed(self.seed))

    def _with_rounding(self, to: Literal["bfloat16", "float16"]) -> Algorithm:
        """The algorithm with the codec that rounds its updates."""
        codec = Rounded(to=to)
        if self.algorithm.codec not in (None, codec):
            raise UsageError(
                f"wire.up = {to}: {self.algorithm.name} has the codec {self.algorithm.codec.kind} for its "
                "updates; leave one of the two out"
            )
        if self.privacy is not None:
            raise UsageError(
                f"wire.up = {to} does not go with privacy, which sums updates as whole numbers: leave it out"
            )
        return replace(self.algorithm, codec=codec)

    @property
    def name(self) -> str:
        """The run's name in tables and figures."""
        return self.label or self.algorithm.name

    def prepare(self, clients: int, *, tested: bool = True) -> "PreparedRun":
        """Make the initial state of the run.

        Args:
            clients: Number of clients with which it begins.
            tested: Whether the learner can evaluate, or estimate the statistics of a version.

        Raises:
            UsageError: Algorithm, learner, privacy and initial weights do not fit.
        """
        algorithm, learner = self.algorithm, self.learner or NoTraining(clients)
        check_clients(algorithm, clients)
        first = self._initial_model(learner)
        complete = finalizer(algorithm.buffers, learner if tested else None, first, self.seed)
        check_layout(algorithm, first.layout)
        plan = self.release_plan(first.layout, clients)
        if plan is not None:
            algorithm = with_privacy(algorithm, plan.privacy)
        root = train_root(algorithm.name, algorithm.aggregator.root_training, learner, self.seed)
        experiment = replace(self, learner=learner)
        return PreparedRun(experiment, clients, first, algorithm, complete, root, plan)

    def _initial_model(self, learner: Learner) -> Model:
        """The learner's own initial model, or other weights in its layout."""
        if self.initial is None:
            return learner.initial(self.seed)
        # The memory of the learner's model is free while the weights are read.
        return start_from(learner.initial(self.seed).layout, self.initial)

    def release_plan(self, layout: Layout, clients: int) -> ReleasePlan | None:
        """The plan for the releases of the run, fixed from its beginning on; None without privacy.

        Args:
            layout: Layout of the model.
            clients: Number of clients with which the run begins.

        Raises:
            UsageError: Algorithm, model or limits cannot be used with the privacy.
        """
        if self.privacy is None:
            return None
        check_client_metrics(self.privacy, self.until, self.evaluate)
        check_buffers(self.algorithm, layout)
        privacy = complete_privacy(self.privacy, self.algorithm, clients)
        return ReleasePlan(privacy, layout.parameters, clients)


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start.

    Attributes:
        experiment: What it is, with its learner.
        clients: Number of clients with which it begins.
        initial: The initial global model.
        algorithm: The algorithm that is driven: with privacy, its updates are pooled.
        complete: Makes of a version the model that is evaluated.
        train_root: Makes the server's own update of a version. None where the aggregator needs none.
        release_plan: What is fixed for the sums of a run with privacy. None means that there is none.
    """

    experiment: Experiment
    clients: int
    initial: Model
    algorithm: Algorithm
    complete: Finalizer = unchanged
    train_root: TrainRoot | None = None
    release_plan: ReleasePlan | None = None

    @property
    def learner(self) -> Learner:
        """The learner."""
        return self.experiment.learner or NoTraining(self.clients)

    @property
    def guard(self) -> Guard | None:
        """Options of the guard; None means that there is none, as where nothing is trained."""
        return None if type(self.learner) is NoTraining else self.experiment.guard

    def global_model(self, release: Release, device: str = "cpu") -> GlobalModel:
        """The global model of the run before its first event, with its guard.

        Args:
            release: How versions follow from updates.
            device: Where its versions are, and all that is made of them.
        """
        first = self.initial.to(device)
        model = GlobalModel(
            self.algorithm, first, train_root=self.train_root, release=release, down=self.experiment.wire.down
        )
        if self.guard is not None:
            model.set_guard(self.guard, self.clients)
        return model

    def engine(self, record: Callable[[Row], None], tensors: GlobalModel) -> Engine:
        """The engine of the run before its first event.

        Args:
            record: Takes the journal's rows.
            tensors: What `global_model` has made.
        """
        experiment, layout, wire = self.experiment, tensors.model.layout, self.experiment.wire
        return Engine(
            self.algorithm.schedule, experiment.seed, record, tensors, wire.model_bytes(layout),
            layout.nbytes, experiment.until, ledger_of(self.release_plan),
        )  # fmt: skip

    @property
    def higher_is_better(self) -> Mapping[str, bool]:
        """Whether more is better of the learner's metrics, as far as the learner declares it."""
        return metric_directions(self.learner)

    @property
    def metric(self) -> str | None:
        """The metric by which the run is compared, as far as its recipe names one."""
        return (self.experiment.recipe or {}).get("metric")

    @property
    def described(self) -> dict[str, Any]:
        """The algorithm as a run's directory records it."""
        plain = without_privacy(self.algorithm)
        if self.experiment.wire.up != "float32":
            # The codec is that of the entry "wire".
            plain = replace(plain, codec=None)
        return {"name": recorded_name(plain), **plain.hyperparameters}

    @property
    def described_guard(self) -> dict[str, Any]:
        """The guard as a run's directory records it; a factor of None means that there is none."""
        guard = self.experiment.guard
        return {"factor": None} if guard is None else asdict(guard)

    @property
    def privacy(self) -> dict[str, Any]:
        """The entry of a run's record about privacy; empty without any."""
        return {} if self.release_plan is None else self.release_plan.recorded

    def metadata(self) -> dict[str, Any]:
        """The entries of a run's directory."""
        return {
            "offbeat": __version__,
            "label": self.experiment.name,
            "algorithm": self.described,
            "seed": self.experiment.seed,
            "clients": self.clients,
            "recipe": self.experiment.recipe,
            **limits_meta(self.experiment.until, self.experiment.recipe),
            "initial": self.initial.digest(),
            "guard": self.described_guard,
            "wire": asdict(self.experiment.wire),
            "higher_is_better": dict(self.higher_is_better),
            **({"privacy": self.privacy} if self.release_plan is not None else {}),
        }

    def check_same(self, record: RunRecord, driven: Mapping[str, Any] = {}) -> None:
        """Check that a directory holds this run. Limits may differ, and how often it is evaluated.

        Args:
            record: The directory's run.
            driven: What the driver records of the run besides, by its name in the record. What is not known
                of one of the two, as of a learner of one's own, is not compared.

        Raises:
            RunError: It is another run, of which the message says what differs.
        """
        check_entry(record, "algorithm", self.described)
        check_entry(record, "privacy", self.privacy)
        entries = {"guard": self.described_guard, "wire": asdict(self.experiment.wire), **driven}
        # The learner comes last, since names of its functions may differ where nothing else does.
        for what in sorted(entries, key=lambda what: what == "learner"):
            now = entries[what]
            if now is not None and record.meta.get(what) is not None:
                keeps = f"; begin another run from its last version with --set initial={record.path}"
                check_entry(record, what, now, keeps if what == "wire" else "")
        self.check_initial(record)

    def check_initial(self, record: RunRecord) -> None:
        """Raises `RunError` where a directory's run was started with another initial model."""
        if record.entry("initial") != self.initial.digest():
            raise RunError(
                f"{record.path} was started with another initial model: give the same model and initial"
            )


def _in_order_of(initial: Initial | None, learner: Learner | None) -> Learner | None:
    """The learner with the columns of its data in the order of those that initial weights were trained on.

    Raises `UsageError` where these were other columns.
    """
    if not isinstance(initial, str | Path) or not (Path(initial) / DATABASE).is_file():
        return learner
    try:
        return in_order(learner, read_run(initial).columns)
    except UsageError as error:
        raise UsageError(f"initial = {initial} is a run on other columns: {error}") from None


def check_entry(record: RunRecord, what: str, now: Mapping[str, Any] | None, remedy: str = "") -> None:
    """Raises `RunError`, with a remedy, where an entry of a run's record differs from the present value."""
    if (found := first_difference(record.meta.get(what) or {}, now or {})) is not None:
        raise RunError(f"{record.path} was started with another {what}: {found}{remedy}")


def check_clients(algorithm: Algorithm, clients: int, label: str | None = None) -> None:
    """Raises `UsageError` where the algorithm's schedule needs more clients than there are.

    Args:
        algorithm: The algorithm.
        clients: Number of clients.
        label: What the message calls the algorithm. None means its name.
    """
    try:
        algorithm.schedule.check_clients(clients)
    except UsageError as error:
        raise UsageError(f"{label or algorithm.name}: {error}") from None
