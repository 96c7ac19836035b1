"""A site's contribution to a run: its data, and models or functions of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.learner import columns_of, in_order
from offbeat.core.privacy.privacy_options import rounded_up
from offbeat.data.columns import Columns, listed
from offbeat.data.federated import FederatedData, own_data
from offbeat.local.batches import steps_per_epoch
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.losses import LOSSES
from offbeat.local.targets import TargetError
from offbeat.local.torch_learner import TorchLearner
from offbeat.metrics.metrics_by_name import METRICS
from offbeat.models.specs import ModelMaker, NamedModel
from offbeat.named import load_named
from offbeat.net.client.first_batch import DataError, data_error
from offbeat.net.client.policy import DEFAULT_POLICY, SitePolicy
from offbeat.net.client.told_statistics import ToldStatistics
from offbeat.net.run_spec import MOST_SITES, RunSpec

STATISTICS = f":{StatisticsLearner.__name__}"
"""What a run that gathers statistics of features has in place of a model."""
OwnModel = NamedModel | nn.Module | Callable[..., nn.Module]
"""A site's own model: a function by name, a module, or a function that makes one of the run's options."""


@dataclass(frozen=True)
class Site:
    """A site before it takes part in a run.

    Attributes:
        data: Its data, those of one client.
        model: Its own model, in place of the run's. None means the one that the run names.
        allow: Modules and functions that the run may name, with those of its policy.
        learner: Its own learner of one client, with model, data, loss and training options, or with a loop.
            None means that it trains the run's model as the run says.
        device: PyTorch device.
        policy: What it refuses to train, to evaluate and to send.
        told: The data of which it has told statistics. None means that it cannot remember, and tells none.
    """

    data: FederatedData | None
    model: OwnModel | None = None
    allow: Allowed = NOTHING
    learner: TorchLearner | LoopLearner | None = None
    device: str = "cpu"
    policy: SitePolicy = DEFAULT_POLICY
    told: ToldStatistics | None = None

    @classmethod
    def of(
        cls,
        data: Any = None,
        model: OwnModel | None = None,
        learner: TorchLearner | LoopLearner | None = None,
        allow: Allow = NOTHING,
        device: str = "cpu",
        validation: float = 0.0,
        policy: SitePolicy | None = None,
    ) -> "Site":
        """A site with its data and `validation`, which `own_data` takes, or its learner; one of them.

        Without a policy it has the default one.

        Raises:
            UsageError: There is neither, or what does not go together.
        """
        policy = policy or DEFAULT_POLICY
        allowed = Allowed.of(allow).and_names(policy.allow)
        if learner is None:
            if data is None:
                raise UsageError("a site needs data, or a learner that has them")
            return cls(own_data(data, validation), model, allowed, None, device, policy)
        if data is not None or model is not None or validation:
            raise UsageError(
                "a learner has its own data and model: leave data, model and validation (site.validation) out"
            )
        if learner.clients != 1:
            raise UsageError(f"a site is one client: the learner has {learner.clients}")
        if isinstance(learner, LoopLearner):
            return cls(None, None, allowed, learner, policy=policy)
        if learner.examples is not None:
            raise UsageError(
                "the learner's examples are private in a simulation only, where their secrets follow from "
                "the run's seed: leave examples out, and give examples_privacy (--set examples) to join"
            )
        return cls(learner.data, None, allowed, learner, learner.training.device, policy)

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return self._data_owner.samples(0)

    @property
    def told_samples(self) -> int:
        """Number of training samples as it is reported to the server, by the policy's `samples_unit`."""
        return rounded_up(self.samples, self.policy.samples_unit)

    @property
    def labels(self) -> list[int] | None:
        """Number of training samples of each class; None where there are no classes, or it keeps them."""
        return self._data_owner.label_counts(0) if self.policy.labels else None

    @property
    def held_out(self) -> int:
        """Number of samples for evaluations of models, on request, as it is reported to the server."""
        if not self.policy.evaluations:
            return 0
        held = self.data.held_out if self.data is not None else None
        count = 0 if held is None else held.count(0)
        count = count if self.learner is None else self.learner.held_out(0)
        return rounded_up(count, self.policy.samples_unit)

    @property
    def steps_per_epoch(self) -> int:
        """Local steps of an epoch of `told_samples`; 0 means that the run's batch size gives them."""
        if self.learner is None:
            return 0
        return steps_per_epoch(self.told_samples, self.learner.batch_size, self.learner.drop_last)

    @property
    def _data_owner(self) -> FederatedData | TorchLearner | LoopLearner:
        own = self.learner or self.data
        assert own is not None
        return own

    def make_learner(self, spec: RunSpec, client: ClientId) -> TorchLearner | LoopLearner:
        """The learner that trains here, which has the run's layout, loss and metrics.

        Args:
            spec: The run specification, as `read_run_spec` has checked it.
            client: The site's number in the run, by which its random streams are keyed.

        Raises:
            UsageError: A function is not allowed or not there, or what is trained here is not the run's.
            DataError: The run's loss cannot mean a target.
        """
        if not 0 <= client < MOST_SITES:
            raise UsageError(f"the server gives this site number {client}: it must be below {MOST_SITES}")
        site = self._with_columns(spec.columns)
        learner = site.learner
        if isinstance(spec.model, NamedModel) and spec.model.name == STATISTICS:
            learner = site._statistics(spec)
        if not isinstance(learner, LoopLearner):
            learner = (learner or site._run_learner(spec)).numbered(client, self.device)
        try:
            difference = spec.difference(learner)
        except TargetError as error:
            raise data_error(error, client) from error
        if difference is not None:
            raise UsageError(difference)
        return learner.expecting(spec.frozen) if isinstance(learner, LoopLearner) else learner

    def _with_columns(self, columns: Columns) -> "Site":
        """The site with the columns of its tables in the order of the run's, by their names.

        Raises `DataError` where its tables have other columns, or the run names none to compare them with.
        """
        for name, names in columns_of(self._data_owner).items():
            if name not in columns and len(names) > 1:
                remedy = f"data.columns=[{','.join(names)}], or " if name == "x" else ""
                raise DataError(
                    f"the columns of {name} here are {listed(names)}, and the run names none, so their order "
                    f"may be another than at other sites: serve with {remedy}test data whose columns have "
                    "names, or give arrays here (.to_numpy()), whose columns are taken by position"
                )
        try:
            if self.learner is not None:
                return replace(self, learner=in_order(self.learner, columns))
            return replace(self, data=None if self.data is None else self.data.with_columns(columns))
        except UsageError as error:
            raise DataError(f"the data of this site do not fit the run: {error}") from None

    def _statistics(self, spec: RunSpec) -> StatisticsLearner:
        """The learner of a run that gathers statistics of features, as the policy allows."""
        self.policy.check_statistics(spec.privacy)
        if self.data is None:
            raise UsageError(
                "the run gathers statistics of features, and a loop of the site's own has none: give the data"
            )
        policy = self.policy
        classes = next((shape[0] for name, shape, *_ in spec.layout if name == "labels" and shape), None)
        try:
            return StatisticsLearner(
                self.data, classes=classes, rounded=policy.statistics == "rounded", labels=policy.labels,
                least=policy.min_samples,
            )  # fmt: skip
        except UsageError as error:
            raise data_error(error, 0) from error

    def note_statistics(self, learner: StatisticsLearner) -> None:
        """Note what a run of statistics is told. Raises `UsageError` for what it must not tell."""
        if self.told is None:
            raise UsageError(
                "this site has no directory to remember of which data it has told statistics, and two runs "
                "may tell of single samples: join with state (--state DIR)"
            )
        self.told.note(learner.told_digest, self.samples, self.policy.min_samples)

    def _check_data(self, data: FederatedData, spec: RunSpec) -> None:
        """Raises `UsageError` unless the data are those that a built-in model takes."""
        if self.model is not None or isinstance(spec.model, NamedModel):
            return
        own = getattr(data.train, "sample_shape", None), getattr(data.train, "classes", None)
        if own != (spec.sample_shape, spec.classes):
            raise UsageError(
                f"the data have samples of shape {own[0]} and {own[1]} classes, the run has "
                f"{spec.sample_shape} and {spec.classes}: give the run's data"
            )

    def _run_learner(self, spec: RunSpec) -> TorchLearner:
        """The run's model on these data, with the functions that the run names."""
        data = self.data
        assert data is not None
        self._check_data(data, spec)
        options = spec.model.options if isinstance(spec.model, NamedModel) else {}

        def named(name: str, option: str) -> Any:
            return LOSSES.get(name) or self._load(name, option) if name else None

        make: nn.Module | Callable[[], nn.Module]
        match self.model:
            case None:
                if isinstance(spec.model, NamedModel):
                    # A model that is not allowed is refused before the other functions.
                    self._load(spec.model.name, "model")
                make = ModelMaker(spec.model, spec.sample_shape, spec.classes, load=self._load)
            case NamedModel():
                make = ModelMaker(replace(self.model, options=options), option="--model", load=load_named)
            case nn.Module():
                make = self.model
            case _:
                make = partial(self.model, **options)
        loss, step, evaluate = (named(getattr(spec, name), name) for name in ("loss", "step", "evaluate"))
        metrics = spec.metrics
        if metrics is not None:
            metrics = {n: m if m in METRICS else self._load(m, f"metric {n}") for n, m in metrics.items()}
        return TorchLearner(
            make, data, spec.training, loss,
            step=step, evaluate=evaluate, metrics=metrics, personal=spec.personal,
        )  # fmt: skip

    def _load(self, name: str, option: str) -> Any:
        """Import a function that the run names. Raises `UsageError` where that is not allowed."""
        if name.startswith(":"):
            raise UsageError(
                f"the run's {option} is {name[1:]}, which has no name to import it by: bring your own, with "
                "--model or --learner (in Python model or learner)"
            )
        return self.allow.load(name, f"the run's {option}")
