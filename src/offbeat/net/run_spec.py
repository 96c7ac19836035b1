"""What a site is told of a run: names and numbers, checked before anything is made of them, never code."""

from collections.abc import Mapping
from dataclasses import replace
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
from offbeat.core.features import Feature
from offbeat.core.model import Layout
from offbeat.core.validation import format_error
from offbeat.data.dataset import Dataset
from offbeat.data.federated import FederatedData, Rows
from offbeat.local.learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.registry import ModelSpec
from offbeat.models.registry import build as build_module
from offbeat.net.wire.limits import Limits

MOST_SITES = 2**20
"""Sites of a run: a site takes 8 bytes of memory for each that has come before it."""


class RunSpec(BaseModel):
    """What is trained, and how.

    Attributes:
        algorithm: The algorithm's name and hyper-parameters, as `offbeat.algorithms.build` takes them.
        model: The model.
        training: How it is trained.
        seed: The run's seed.
        sample_shape: Shape of one sample (without N).
        classes: Number of classes.
        layout: Digest of the layout of the model that follows from all this.
        codec: The codec of the updates; None means that they are not encoded.
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

    def make_module(self) -> nn.Module:
        """The module that is trained."""
        return build_module(self.model, self.sample_shape, self.classes)


def check_algorithm(algorithm: Algorithm) -> None:
    """Raises `UsageError` for an algorithm that no network can run."""
    if Feature.RADIO in algorithm.requires:
        raise UsageError(
            f"{algorithm.name} needs {Feature.RADIO.description}, which a network has not: "
            "simulate it, or choose another algorithm (offbeat algorithms lists what each needs)"
        )


def make_run_spec(
    algorithm: Algorithm,
    model: Any,
    training: Training,
    seed: int,
    sample_shape: tuple[int, ...],
    classes: int,
) -> RunSpec:
    """Specify a run with a model of the registry.

    Args:
        algorithm: The algorithm, one that its name and hyper-parameters describe.
        model: What sites train, a `ModelSpec`.
        training: How they train it.
        seed: The run's seed.
        sample_shape: Shape of one sample (without N).
        classes: Number of classes.

    Raises:
        UsageError: No network can run the algorithm, sites cannot make it, or the model is too large.
    """
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
    """Check a run specification that came from a server, before anything is made of it that takes memory.

    Args:
        document: The specification as plain JSON values.
        data: A site's data; None means that any will do.

    Raises:
        UsageError: This version does not know such a run, the run is not about these data, or its model is
            larger than what may travel.
    """
    try:
        spec = RunSpec.model_validate(dict(document))
        algorithm = spec.make_algorithm()
    except ValidationError as error:
        raise UsageError(
            f"the server's run specification is not understood: {format_error(error)}; "
            "have both the same version of Offbeat?"
        ) from None
    if data is not None and (data.sample_shape, data.classes) != (spec.sample_shape, spec.classes):
        raise UsageError(
            f"the data have samples of shape {data.sample_shape} and {data.classes} classes, the run has "
            f"{spec.sample_shape} and {spec.classes}: give the run's data"
        )
    if layout_digest(algorithm, spec.model, spec.sample_shape, spec.classes) != spec.layout:
        raise UsageError(
            "the model made here has another layout than the server's: use the server's versions of Offbeat "
            "and PyTorch"
        )
    return spec


def layout_digest(algorithm: Algorithm, model: Any, sample_shape: tuple[int, ...], classes: int) -> str:
    """Digest of names, shapes and dtypes of a model's tensors, and of what travels with it.

    No memory is taken for the tensors.

    Raises:
        UsageError: The model has more bytes than may travel.
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


def make_learner(spec: RunSpec, data: Dataset, client: ClientId, device: str = "cpu") -> TorchLearner:
    """What trains at a site: the run's model on the site's own data, which `read_run_spec` has checked.

    Args:
        spec: The run specification.
        data: The site's data.
        client: The site's number in the run, by which its random streams are keyed.
        device: Where to train.

    Raises:
        UsageError: No run comes to such a number.
    """
    if not 0 <= client < MOST_SITES:
        raise UsageError(f"the server gives this site number {client}: it must be below {MOST_SITES}")
    offsets = torch.zeros(client + 2, dtype=torch.int64)
    offsets[-1] = len(data)
    own = FederatedData(data, None, Rows(torch.arange(len(data)), offsets))
    return TorchLearner(spec.make_module, own, replace(spec.training, device=device))


def evaluating_learner(spec: RunSpec, test: Dataset | None) -> TorchLearner:
    """The learner with which a server makes the first model, and evaluates the others.

    Args:
        spec: The run specification.
        test: The test data; None means that it cannot evaluate.
    """
    none = Dataset(torch.zeros(0, *spec.sample_shape), torch.zeros(0, dtype=torch.int64), spec.classes)
    data = FederatedData(none, test, Rows.of([]))
    return TorchLearner(spec.make_module, data, replace(spec.training, device="cpu"))
