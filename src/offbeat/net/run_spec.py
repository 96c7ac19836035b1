"""What a site is told of a run: names and numbers, checked before anything is made of them, never code."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from offbeat.algorithms import ALGORITHMS, recorded_name
from offbeat.algorithms.compose import build as build_algorithm
from offbeat.codec import CodecSpec
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.model import Layout
from offbeat.core.validation import format_error
from offbeat.data.dataset import Dataset, FederatedData
from offbeat.local.learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.registry import ModelSpec
from offbeat.models.registry import build as build_module
from offbeat.net.server.coordinator import check_algorithm
from offbeat.net.wire.limits import Limits

MOST_SITES = 2**20
"""Sites of a run: a site takes 8 bytes of memory for each that has come before it."""


class RunSpec(BaseModel):
    """What is trained, and how.

    `algorithm` is a name with hyper-parameters, as `offbeat.algorithms.build` takes it, and `codec` what its
    updates go through. `sample_shape` is that of one sample (without N), `layout` the digest of the model's
    layout that follows from all this.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: dict[str, Any]
    model: ModelSpec
    training: Training
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    sample_shape: tuple[Annotated[int, Field(ge=1, le=2**31)], ...]
    classes: Annotated[int, Field(ge=1, le=2**31)]
    layout: str
    codec: CodecSpec | None = None

    def document(self) -> dict[str, Any]:
        """As plain JSON values, the way it travels."""
        return self.model_dump(mode="json")

    def make_algorithm(self) -> Algorithm:
        """The algorithm; a site uses its objective and its codec."""
        return replace(build_algorithm(ALGORITHMS, self.algorithm), codec=self.codec)


def make_run_spec(
    algorithm: Algorithm,
    model: Any,
    training: Training,
    seed: int,
    sample_shape: tuple[int, ...],
    classes: int,
) -> RunSpec:
    """The plan of a run with a model of the registry; refuses an algorithm its name does not describe."""
    check_algorithm(algorithm)
    name = recorded_name(replace(algorithm, codec=None))
    if name not in ALGORITHMS:
        raise UsageError(
            f"{name} cannot be served: sites make the algorithm from its name and hyper-parameters, so use "
            f"one of {', '.join(sorted(ALGORITHMS))}, or compose them"
        )
    layout = layout_digest(algorithm, model, sample_shape, classes)
    spec = {"name": algorithm.name, **algorithm.hyperparameters}
    return RunSpec(
        algorithm=spec, model=model, training=training, seed=seed, sample_shape=sample_shape, classes=classes,
        layout=layout, codec=algorithm.codec,
    )  # fmt: skip


def read_run_spec(document: Mapping[str, Any], data: Dataset | None = None) -> RunSpec:
    """Check a plan that came from a server, before anything is made of it that takes memory.

    Raises `UsageError` where it is none that this version knows, is not about a site's `data`, or asks for a
    model that is larger than what may travel.
    """
    try:
        plan = RunSpec.model_validate(dict(document))
        algorithm = plan.make_algorithm()
    except ValidationError as error:
        raise UsageError(
            f"the server's plan is not understood: {format_error(error)}; "
            "have both the same version of Offbeat?"
        ) from None
    if data is not None:
        check_data(plan, data)
    if layout_digest(algorithm, plan.model, plan.sample_shape, plan.classes) != plan.layout:
        raise UsageError(
            "the model made here has another layout than the server's: use the server's versions of Offbeat "
            "and PyTorch"
        )
    return plan


def layout_digest(algorithm: Algorithm, model: Any, sample_shape: tuple[int, ...], classes: int) -> str:
    """A digest of names, shapes and dtypes of a model's tensors, and of what travels with it.

    Raises `UsageError` for a model of more bytes than may travel. No memory is taken for its tensors.
    """
    try:
        with torch.device("meta"):
            layout = Layout.of(build_module(model, sample_shape, classes))
    except (RuntimeError, TypeError, OverflowError):  # PyTorch cannot allocate such numbers
        layout = Layout.flat(2**63)
    if layout.nbytes > (most := Limits().body):
        raise UsageError(
            f"the model has more than {most >> 30} GiB, which do not travel: choose a smaller one, or data "
            "with smaller samples or fewer classes"
        )
    entries = [(e.name, e.shape, e.dtype, e.section) for e in layout.entries]
    return sha256(repr((entries, algorithm.objective.shared_vectors)).encode()).hexdigest()


def check_data(plan: RunSpec, data: Dataset) -> None:
    """Raises `UsageError` where a site's data are not what the run is about."""
    if data.sample_shape != plan.sample_shape or data.classes != plan.classes:
        raise UsageError(
            f"the data have samples of shape {data.sample_shape} and {data.classes} classes, the run has "
            f"{plan.sample_shape} and {plan.classes}: give the run's data"
        )


def own_data(data: Dataset, client: ClientId) -> FederatedData:
    """One site's data under its number in the run, by which its random streams are keyed.

    Raises `UsageError` for a number that no run comes to.
    """
    if not 0 <= client < MOST_SITES:
        raise UsageError(f"the server gives this site number {client}: it must be below {MOST_SITES}")
    offsets = torch.zeros(client + 2, dtype=torch.int64)
    offsets[-1] = len(data)
    return FederatedData(data, data.subset([]), torch.arange(len(data)), offsets)


def make_learner(plan: RunSpec, data: Dataset, client: ClientId, device: str = "cpu") -> TorchLearner:
    """What trains at a site: the plan's model on the site's own data."""
    check_data(plan, data)
    return TorchLearner(_maker(plan), own_data(data, client), replace(plan.training, device=device))


def evaluating_learner(plan: RunSpec, test: Dataset | None) -> TorchLearner:
    """What a server makes the first model with, and evaluates the others, if it has test data."""
    none = Dataset(torch.zeros(0, *plan.sample_shape), torch.zeros(0, dtype=torch.int64), plan.classes)
    data = FederatedData(
        none, none if test is None else test, torch.arange(0), torch.zeros(1, dtype=torch.int64)
    )
    return TorchLearner(_maker(plan), data, replace(plan.training, device="cpu"))


def _maker(plan: RunSpec) -> partial[nn.Module]:
    return partial(build_module, plan.model, plan.sample_shape, plan.classes)
