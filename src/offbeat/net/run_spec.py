"""Specification of a run for its sites: names and numbers, checked before use, never code."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from offbeat.algorithms import ALGORITHMS, recorded_name
from offbeat.algorithms.compose import build as build_algorithm
from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.codec import CodecSpec
from offbeat.core.aggregator import SumOnly
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers, unwrap_buffers, wrap_buffers
from offbeat.core.errors import OffbeatError, UsageError
from offbeat.core.features import Feature
from offbeat.core.layout import Entry, Layout
from offbeat.core.learner import columns_of
from offbeat.core.objective import Objective
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.schedule import Task
from offbeat.core.types import NUMBER
from offbeat.core.validation import format_error
from offbeat.data.columns import Columns
from offbeat.experiment import Experiment
from offbeat.local.description import describe_learner, model_of
from offbeat.local.loop_learner import OTHER_FROZEN, LoopLearner
from offbeat.local.objectives import Plain
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.specs import AnyModel, ModelMaker, NamedModel
from offbeat.named import name_of
from offbeat.net.wire.limits import Limits

MOST_SITES = 2**20
"""Sites of a run: a site takes 8 bytes of memory for each that has come before it."""

_LONGEST_NAME = 500


def _printable(name: str) -> str:
    """Refuse a name that would write lines of its own into a site's log and terminal."""
    if not name.isprintable():
        raise ValueError("it must be printable")
    return name


Name = Annotated[str, Field(max_length=_LONGEST_NAME), AfterValidator(_printable)]
Size = Annotated[int, Field(ge=0, le=2**31), NUMBER]


class RunSpec(BaseModel):
    """Model and training of a run. Functions are named, "module:function"; a site imports those it allows.

    Attributes:
        algorithm: The algorithm's name and hyper-parameters, as `offbeat.algorithms.build` takes them.
        plain: Whether sites train with the plain objective, for which they need not know the algorithm.
        buffers: The algorithm's policy of buffers.
        codec: The codec of the updates; None means that they are not encoded.
        model: The model.
        sample_shape: Shape of one sample (without N); None means that the model does not depend on it.
        classes: Number of classes; None means that the model does not depend on it.
        personal: Patterns of the tensors that stay at the sites.
        loss: Name of the loss; "" means the learner's default.
        step: Name of the function that gives the loss of a module and a batch; "" means none.
        evaluate: Name of the function that evaluates a module on a batch; "" means none.
        metrics: Metrics by name: names of built-in metrics, or of functions. None means the default.
        training: How sites train.
        seed: The run's seed.
        layout: Name, shape, dtype and section of each tensor that travels.
        frozen: Digest of the parameters that are not trained, which each party makes itself; "" means none.
        privacy: Options of privacy, complete. None means that each update is used as it is.
        columns: Names of the columns of tables, "x", "y" or an input, to whose order each site puts its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: dict[str, Any]
    plain: bool = False
    buffers: Buffers = "follow"
    codec: CodecSpec | None = None
    model: AnyModel
    sample_shape: tuple[Annotated[int, Field(ge=1, le=2**31), NUMBER], ...] | None = None
    classes: Annotated[int, Field(ge=1, le=2**31), NUMBER] | None = None
    personal: tuple[Name, ...] = ()
    loss: Name = ""
    step: Name = ""
    evaluate: Name = ""
    metrics: dict[Name, Name] | None = None
    training: Training
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER]
    layout: tuple[tuple[Name, tuple[Size, ...], Name, Name], ...]
    frozen: Name = ""
    privacy: Privacy | None = None
    columns: dict[Name, tuple[Name, ...]] = {}

    def document(self) -> dict[str, Any]:
        """Plain JSON values, as sent."""
        return self.model_dump(mode="json")

    @field_validator("algorithm")
    @classmethod
    def _named(cls, algorithm: dict[str, Any]) -> dict[str, Any]:
        name = algorithm.get("name")
        if not isinstance(name, str) or len(name) > _LONGEST_NAME:
            raise ValueError(f"its name must be a text of at most {_LONGEST_NAME} characters")
        return algorithm

    @property
    def _needs_no_algorithm(self) -> bool:
        """Whether sites train with the plain objective of an algorithm that they do not know."""
        return self.plain and self.algorithm["name"] not in ALGORITHMS

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(prod(shape) for _, shape, _, section in self.layout if section == "parameter")

    @property
    def secure(self) -> bool:
        """Whether updates are masked."""
        return self.privacy is not None and self.privacy.secure is not None

    def clip_factor(self, steps: int, allow: Allow = NOTHING) -> float:
        """Factor of an update before it is clipped, from its number of local steps.

        Args:
            steps: Local steps that were done.
            allow: What the site allows, for an algorithm that is not built in.
        """
        if self._needs_no_algorithm:
            return 1.0
        aggregator = self.make_algorithm(allow).aggregator
        return aggregator.factor(Task(0, 0, 0, steps, 0.0)) if isinstance(aggregator, SumOnly) else 1.0

    def objective(self, allow: Allow = NOTHING) -> Objective:
        """The objective that a site trains with.

        Args:
            allow: What the site allows, for an algorithm that is not built in.

        Raises:
            UsageError: The algorithm is not known here.
        """
        if self._needs_no_algorithm:
            return wrap_buffers(Plain(), self.buffers)
        return self.make_algorithm(allow).objective

    def may_need_labels(self, allow: Allow = NOTHING) -> bool:
        """Whether a server of this run may ask a site for its numbers of samples of each class.

        Args:
            allow: What the site allows. An algorithm that is not known here may need labels.
        """
        if self.privacy is not None and self.privacy.labels is None:
            return False
        if self._needs_no_algorithm:
            return True
        return Feature.LABELS in self.make_algorithm(allow).requires

    def make_algorithm(self, allow: Allow = NOTHING) -> Algorithm:
        """The algorithm; arguments and errors as of `objective`."""
        load = Allowed.of(allow).load
        return replace(build_algorithm(ALGORITHMS, self.algorithm, load), codec=self.codec)

    def difference(self, learner: TorchLearner | LoopLearner) -> str | None:
        """How a site's learner differs from the run's, in one sentence; None means not at all."""
        # A loop has a loss of its own, so only its layout is compared.
        if isinstance(learner, LoopLearner):
            if not learner.starts:
                return None
            site = describe(learner, self.seed)
            other_frozen = site.frozen and self.frozen and site.frozen != self.frozen
            return self._other_layout(site.layout) or (OTHER_FROZEN if other_frozen else None)
        site = describe(learner, self.seed)
        if (text := self._other_layout(site.layout)) is not None:
            return text
        if site.frozen != self.frozen:
            return OTHER_FROZEN
        names = ("loss", "step", "evaluate", "metrics")
        for name, (own, theirs) in ((n, (_bare(getattr(site, n)), _bare(getattr(self, n)))) for n in names):
            if own != theirs:
                text = f"{own or 'the default'} here, and {theirs or 'the default'} in the run"
                is_not = "are not" if name == "metrics" else "is not"
                return f"the {name} of the learner made here {is_not} the run's: {text}"
        return None

    def _other_layout(self, here: "Layouts") -> str | None:
        if (found := _first_difference(here, self.layout)) is None:
            return None
        return f"the model made here is not the run's: {found}; use the run's model, with its options"


class _Described(BaseModel):
    """The part of a run spec about a learner."""

    layout: list[tuple[str, tuple[int, ...], str, str]]
    frozen: str = ""
    loss: str = ""
    step: str = ""
    evaluate: str = ""
    metrics: dict[str, str] | None = None


def describe(learner: TorchLearner | LoopLearner, seed: int) -> _Described:
    """The part of a run spec about a learner under a seed."""
    initial = learner.initial(seed)
    if isinstance(learner, LoopLearner):
        entries = [_entry(entry) for entry in initial.layout.entries]
        return _Described(layout=entries, frozen=learner.frozen_digest(seed))
    told = describe_learner(learner, seed)
    return _Described(
        layout=[_entry(entry) for entry in initial.layout.entries], frozen=told.frozen, loss=told.loss,
        step=told.step, evaluate=told.evaluate, metrics=told.metrics,
    )  # fmt: skip


def check_algorithm(algorithm: Algorithm) -> None:
    """Raises `UsageError` for an algorithm that no network can run."""
    if Feature.RADIO in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} needs {Feature.RADIO.description}, which a network has not: "
            "simulate it, or choose another algorithm (offbeat algorithms lists what each needs)"
        )


def make_run_spec(experiment: Experiment) -> RunSpec:
    """Specify a run.

    Args:
        experiment: The run. Its algorithm is a built-in one, one of a function by name, or any whose
            objective is the plain one; its learner is a server's, with the model that sites train; its
            options of privacy are complete.

    Raises:
        UsageError: No network can run the algorithm, sites cannot make it, or the model is too large.
    """
    algorithm, learner, seed = experiment.algorithm, experiment.learner, experiment.seed
    assert isinstance(learner, TorchLearner | LoopLearner)
    check_algorithm(algorithm)
    plain = unwrap_buffers(algorithm.objective) == Plain()
    name = _told_name(algorithm)
    if name not in ALGORITHMS and ":" not in name and not plain:
        raise UsageError(
            f"{name} cannot be served: sites make its objective from the algorithm's name, which does not "
            "describe it: give the algorithm as module:function, or compose it of built-in ones"
        )
    if isinstance(learner, LoopLearner):
        maker, training = ModelMaker(NamedModel(name_of(learner))), _told_training(learner)
    else:
        maker, training = model_of(learner.module), replace(learner.training, device="cpu")
    if not isinstance(training.optimizer, str):
        raise UsageError(
            "training.optimizer is a function, which does not travel: name an optimizer of torch.optim"
        )
    if isinstance(maker.spec, NamedModel):
        # A model maker of this kind does not depend on the data.
        maker = ModelMaker(maker.spec)
    else:
        _check_size(maker)
    here = describe(learner, seed)
    spec = RunSpec(
        algorithm={"name": name, **algorithm.hyperparameters}, plain=plain, buffers=algorithm.buffers,
        codec=algorithm.codec, model=maker.spec, sample_shape=maker.sample_shape, classes=maker.classes,
        personal=() if isinstance(learner, LoopLearner) else learner.personal, training=training, seed=seed,
        privacy=experiment.privacy, columns=_told_columns(columns_of(learner)), **here.model_dump(),
    )  # fmt: skip
    if len(json.dumps(spec.document())) > (most := Limits().envelope - 4096):
        raise UsageError(
            f"the run's specification has more than {most} bytes, which do not travel: the model has "
            f"{len(spec.layout)} tensors that are trained, and the data "
            f"{sum(map(len, spec.columns.values()))} columns; freeze some tensors, give the test data as an "
            "array, which has no names of columns, or shorten the options"
        )
    return spec


def _told_name(algorithm: Algorithm) -> str:
    """The algorithm's name for sites, to which a codec is told beside it."""
    name = recorded_name(algorithm)
    return name if name in ALGORITHMS else recorded_name(replace(algorithm, codec=None))


def _told_columns(columns: Columns) -> dict[str, tuple[str, ...]]:
    """Names of columns for sites. Raises `UsageError` for one that no site would take."""
    for name in (name for names in columns.values() for name in names):
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise UsageError(
                f"column {name[:60]!r} cannot be told to sites: a name is printable, and has at most "
                f"{_LONGEST_NAME} characters; rename it"
            )
    return dict(columns)


def _told_training(learner: LoopLearner) -> Training:
    """The options of a user's loop on which the steps of an epoch depend."""
    return Training(batch_size=learner.batch_size, drop_last=learner.drop_last)


def read_run_spec(document: Mapping[str, Any]) -> RunSpec:
    """Check a run specification that came from a server, before anything is made of it that takes memory.

    Args:
        document: The specification as plain JSON values.

    Raises:
        UsageError: This version does not know such a run, or its model is larger than what may travel.
    """
    with in_one_line("the server's run specification cannot be carried out"):
        return _checked(document)


@contextmanager
def in_one_line(what: str, kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Turn an unexpected error into one line: what a server sends may cause any.

    Args:
        what: What has failed, as the line begins.
        kind: The error that is raised.
    """
    try:
        yield
    except (OffbeatError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {' '.join(str(error).split()):.500}") from error


def _checked(document: Mapping[str, Any]) -> RunSpec:
    try:
        spec = RunSpec.model_validate(dict(document))
    except ValidationError as error:
        raise UsageError(
            f"the server's run specification is not understood: {format_error(error)}; "
            "have both the same version of Offbeat?"
        ) from None
    name = spec.algorithm["name"]
    if name in ALGORITHMS or not (spec.plain or ":" in name):
        spec.make_algorithm()
    if isinstance(spec.model, NamedModel):
        return spec
    layout = _check_size(ModelMaker(spec.model, spec.sample_shape, spec.classes))
    if (found := _first_difference([_entry(e) for e in layout.entries], spec.layout)) is not None:
        raise UsageError(
            f"the model made here has another layout than the server's ({found}): use the server's versions "
            "of Offbeat and PyTorch"
        )
    return spec


Layouts = Sequence[tuple[str, tuple[int, ...], str, str]]


def _entry(entry: Entry) -> tuple[str, tuple[int, ...], str, str]:
    return entry.name, entry.shape, entry.dtype, entry.section


def _first_difference(site_layouts: Layouts, run_layouts: Layouts) -> str | None:
    """The first tensor in which two layouts differ, in a few words; None means none."""
    site, run = ({name: entry for name, *entry in entries} for entries in (site_layouts, run_layouts))
    for name, (shape, dtype, section) in run.items():
        run_text = f"{section} {name} is {dtype} {list(shape)} in the run"
        if name not in site:
            return f"{run_text}, and there is none here"
        if site[name] != run[name]:
            shape, dtype, section = site[name]
            return f"{run_text}, and {section} {dtype} {list(shape)} here"
    extra = next((name for name in site if name not in run), None)
    if extra is not None:
        return f"{site[extra][2]} {extra} is not in the run"
    changed = next((a[0] for a, b in zip(site_layouts, run_layouts, strict=True) if a[0] != b[0]), None)
    return f"{changed} has another place here" if changed else None


def _check_size(maker: ModelMaker) -> Layout:
    """The layout of a built-in model, for whose tensors no memory is taken.

    Raises `UsageError` for a model of more bytes than may travel.
    """
    try:
        with torch.device("meta"):
            layout = Layout.of(maker())
    except (RuntimeError, TypeError, OverflowError):
        # PyTorch cannot allocate tensors of such sizes.
        layout = Layout.flat(2**63)
    if layout.nbytes > (most := Limits().body):
        raise UsageError(
            f"the model has more than {most >> 30} GiB, which do not travel: choose a smaller one, or data "
            "with smaller samples or fewer classes"
        )
    return layout


def _bare(name: str | Mapping[str, str] | None) -> str:
    """A function's name without its module; names of metrics, each with its function where that differs."""
    if name is None or isinstance(name, str):
        return (name or "").rpartition(":")[2]
    bare = {own: _bare(metric) for own, metric in sorted(name.items())}
    return ", ".join(own if own == metric else f"{own} = {metric}" for own, metric in bare.items())
