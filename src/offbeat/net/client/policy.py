"""A site's policy: limits on the training that a server may ask for.

An update of one step on one sample reveals that sample: in a linear layer it is the gradient of the weight,
divided by the gradient of the bias. So by default a site trains on batches of several samples, and makes an
update of several samples. The site refuses what its policy does not allow before any training. A policy is no
proof of privacy: see docs/site.md.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field, field_validator
from torch import Tensor

from offbeat.allowed import Allowed
from offbeat.core.buffers import unwrap_buffers
from offbeat.core.errors import UsageError
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.objective import Objective
from offbeat.core.privacy.ledger import noise_multiplier
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.types import NUMBER, Count, Positive
from offbeat.core.validation import checked_dataclass


class PolicyError(UsageError):
    """A plan or a task that a site's policy does not allow."""


@checked_dataclass(kw_only=True)
class SitePolicy:
    """Limits on a site's training, evaluations and messages.

    Attributes:
        min_batch_size: Fewest samples of a batch, at least 1. A site with fewer samples may use batches of
            all its samples.
        min_samples: Fewest different samples of an update, at least 1. A task uses batch size · steps
            samples, but no more than the site has.
        min_steps: Fewest local steps of a task, at least 1. A recalled task continues until then.
        max_steps: Most local steps of a task. None means no limit.
        objectives: Names of the objectives with which the site trains, such as "Plain". An objective around
            another one needs both names. None means all objectives.
        metrics: Metrics or functions that a plan may name for evaluations, beside the loss and the default
            metrics. None means all.
        evaluations: Whether the site evaluates models for the server.
        clip: Largest norm of the parameters in an update, and of its floating buffers. A longer vector is
            scaled down before it is sent. None means no limit.
        noise: Smallest multiplier z of a run's noise. A plan with a smaller z, or without noise, is
            refused. None means that a run needs no noise.
        epsilon: Largest ε of a run's budget. A plan with a larger ε, or without noise or a budget, is
            refused. None means any.
        delta: Largest δ of a run's budget. A plan with a larger δ, or without noise, is refused. None means
            any.
        least: Smallest number m of updates of a release. A plan with a smaller m, or without privacy, is
            refused. None means any.
        colluding: Smallest number T of helpers that can collude with the server without seeing an update. A
            plan with a smaller T, or without secure aggregation, is refused. None means any.
        labels: Whether the site tells the server its number of samples of each class, if the algorithm needs
            these numbers.
        statistics: What the site tells in a run that gathers statistics of features: numbers of groups of at
            least `min_samples` samples, "exact" or "rounded" to three significant digits. "refused" means
            that the site refuses such a run.
        samples_unit: Unit of the reported numbers of samples, to train and to evaluate on, at least 1. The
            site rounds these numbers up to a multiple. A unit above 1 needs `labels = False`, because label
            counts reveal the number of samples.
        helpers: Fingerprints of the helpers of secure aggregation that the site allows, by name. A run
            with other helpers, or without secure aggregation, is refused. None means any.
        allow: Names that a run may use, beside those that joining allows: "module", whose exposed functions
            may be called, or "module:function".
    """

    min_batch_size: Count = 4
    min_samples: Count = 4
    min_steps: Count = 1
    max_steps: Count | None = 100_000
    objectives: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    evaluations: bool = True
    clip: Positive | None = None
    noise: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float | None, Field(gt=0, lt=1), NUMBER] = None
    least: Count | None = None
    colluding: Count | None = None
    labels: bool = True
    statistics: Literal["exact", "rounded", "refused"] = "rounded"
    samples_unit: Count = 1
    helpers: dict[str, str] | None = None
    allow: tuple[str, ...] = ()

    @field_validator("allow")
    @classmethod
    def _names(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        return Allowed.of(allow).names

    @field_validator("max_steps")
    @classmethod
    def _in_order(cls, most: int | None, info: Any) -> int | None:
        if most is not None and most < (least := info.data.get("min_steps", 1)):
            raise ValueError(f"it is below min_steps = {least}")
        return most

    @field_validator("samples_unit")
    @classmethod
    def _without_labels(cls, unit: int, info: Any) -> int:
        if unit > 1 and info.data.get("labels", False):
            raise ValueError("numbers of samples by class tell the whole number: give labels: false with it")
        return unit

    def check_plan(
        self, objective: Objective, metrics: tuple[str, ...], privacy: Privacy | None = None
    ) -> None:
        """Check a run's training, evaluation and privacy.

        Args:
            objective: The objective.
            metrics: The metrics that the plan names.
            privacy: The plan's options of privacy. None means none.

        Raises:
            PolicyError: The policy does not allow it.
        """
        self._check_noise(privacy)
        self._check_sums(privacy)
        for name in _layers(objective):
            if self.objectives is not None and name not in self.objectives:
                raise _refused(f"the objective {name}: it allows {_listed(self.objectives)}")
        for name in metrics if self.evaluations else ():
            if self.metrics is not None and name not in self.metrics:
                raise _refused(f"the metric {name}: it allows {_listed(self.metrics)}")
        if self.clip is not None and objective.shared_vectors:
            raise _refused(
                f"{_name(objective)}, whose shared vector cannot be clipped (clip = {self.clip:g}): the site "
                "would keep another one than the server has"
            )

    def _check_noise(self, privacy: Privacy | None) -> None:
        """Raises `PolicyError` for too little noise, or too large a budget."""
        multiplier = 0.0 if privacy is None else noise_multiplier(privacy)
        noise = None if privacy is None else privacy.noise
        if self.noise is not None and multiplier < self.noise:
            offer = f"noise of multiplier {multiplier:g}" if noise else "a run without noise"
            raise _refused(f"{offer}: it needs at least noise = {self.noise:g}")
        for name in ("epsilon", "delta"):
            most = getattr(self, name)
            if most is None:
                continue
            if noise is None:
                raise _refused(f"a run without noise: it allows {name} = {most:g}")
            if (given := getattr(noise.budget, name)) is None or given > most:
                offer = f"a budget without {name}" if given is None else f"{name} = {given:g}"
                raise _refused(f"{offer}: it allows at most {name} = {most:g}")

    def _check_sums(self, privacy: Privacy | None) -> None:
        """Raises `PolicyError` for releases of too few updates, and for helpers that are too few to trust."""
        secure = None if privacy is None else privacy.secure
        if self.least is not None and (privacy is None or privacy.fewest < self.least):
            found = "a run without privacy" if privacy is None else f"releases of least = {privacy.fewest}"
            raise _refused(f"{found}: it needs at least least = {self.least}")
        if self.helpers is not None and secure is None:
            raise _refused(f"a run that is not secure: it allows helpers {', '.join(self.helpers)}")
        if self.colluding is None:
            return
        if secure is None:
            raise _refused(f"a run that is not secure: it needs at least colluding = {self.colluding}")
        if (given := secure.most_colluding) < self.colluding:
            raise _refused(f"colluding = {given}: it needs at least colluding = {self.colluding}")

    def check_statistics(self, privacy: Privacy | None) -> None:
        """Check a run that gathers statistics of features. Raises `PolicyError` where it is not allowed."""
        if self.statistics == "refused":
            raise _refused("to tell statistics of its features (statistics = refused)")
        if self.clip is not None:
            raise _refused(f"statistics of features, which clip = {self.clip:g} would spoil")
        if privacy is not None:
            raise PolicyError(
                "the run clips its updates for privacy, which would spoil statistics of features"
            )

    def check_batch(self, samples: int, batch_size: int) -> None:
        """Check the site's number of samples, and that of a batch.

        The server is told why the site leaves, with no number of samples that `samples_unit` hides.

        Raises:
            PolicyError: There are too few.
        """
        exact = self.samples_unit == 1
        if samples < self.min_samples:
            found = f"{samples} samples" if exact else "the samples here"
            raise _refused(f"to train on {found}: it needs min_samples = {self.min_samples}")
        if (size := min(batch_size, samples)) < self.min_batch_size:
            found = f"{size} (batch_size = {batch_size}, {samples} samples here)"
            found = found if exact else f"batch_size = {batch_size} of the samples here"
            raise _refused(f"batches of {found}: it needs min_batch_size = {self.min_batch_size}")

    def check_task(self, steps: int, samples: int, batch_size: int) -> None:
        """Check a task of `steps` local steps, of a site with `samples`. Raises `PolicyError`."""
        if steps < self.min_steps:
            raise _refused(f"a task of {steps} steps: it needs min_steps = {self.min_steps}")
        if self.max_steps is not None and steps > self.max_steps:
            raise _refused(f"a task of {steps} steps: it allows max_steps = {self.max_steps}")
        if (mixed := min(samples, batch_size * steps)) < self.min_samples:
            raise _refused(
                f"an update made of {mixed} samples (batch_size = {batch_size}, steps = {steps}): it needs "
                f"min_samples = {self.min_samples}"
            )

    def clipped(self, result: LocalResult, layout: Layout) -> LocalResult:
        """An update within `clip`."""
        if self.clip is None:
            return result
        delta = result.delta.clone()
        for part in (delta[: layout.parameters], delta[layout.parameters :]):
            _clip(part, self.clip)
        return replace(result, delta=delta)


DEFAULT_POLICY = SitePolicy()


def _clip(part: Tensor, most: float) -> None:
    norm = float(part.norm())
    if norm > most:
        part.mul_(most / norm)


def _layers(objective: Objective) -> Iterator[str]:
    """The names of an objective and of those inside it, without the wrapper that keeps buffers."""
    inner: Any = unwrap_buffers(objective)
    while isinstance(inner, Objective):
        yield type(inner).__name__
        inner = getattr(inner, "inner", None)


def _name(objective: Objective) -> str:
    return next(_layers(objective))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _refused(what: str) -> PolicyError:
    return PolicyError(f"this site's policy refuses {what}")
