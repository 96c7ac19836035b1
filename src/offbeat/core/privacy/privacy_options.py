"""Options of privacy: sums of clipped, rounded updates, noise and its budget.

A run without them goes its usual way. With them every version follows from one sum of integers, of at least
`least` clients' updates: docs/privacy.md says who is protected from whom. No cryptographer has reviewed it.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from offbeat.core.privacy.refusals import Refusal
from offbeat.core.types import Count, Positive, PositiveShare
from offbeat.core.validation import checked_dataclass

MOST = 4096  # updates of a release
MOST_HELPERS = 9

WeightBits = Literal[0, 2, 3, 4, 5, 6]


@checked_dataclass
class Budget:
    """Limit on what the published models reveal of a client: (ε, δ)-differential privacy.

    Attributes:
        epsilon: ε, above 0. None means that what is spent is counted, and not limited.
        delta: δ, in (0, 1); below 1 / number of clients.
    """

    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


@checked_dataclass
class Noise:
    """Noise of the server in each release.

    Attributes:
        multiplier: z, the noise's standard deviation divided by the largest part of one client, in (0, 1000].
            None means that it follows from `releases` and the budget.
        releases: Releases that a client can be in within its budget. None means that `multiplier` is given.
        bands: b, releases over which later noise takes earlier noise back; 1 means independent noise.
        budget: The budget of each client.
        accounting: "gdp" limits by Gaussian differential privacy, "zcdp" by the stricter formula.
    """

    multiplier: Annotated[float, Field(gt=0, le=1000)] | None = None
    releases: Count | None = None
    bands: Annotated[int, Field(ge=1, le=64)] = 1
    budget: Budget = Budget()
    accounting: Literal["gdp", "zcdp"] = "gdp"

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.multiplier is None) == (self.releases is None):
            raise ValueError("noise needs multiplier or releases: give one of them")
        if self.releases is not None and self.budget.epsilon is None:
            raise ValueError("releases needs a budget: give budget.epsilon, or multiplier instead")
        return self


@checked_dataclass
class Secure:
    """Secure aggregation: the server learns sums only. In a simulation the sums are those of a secure run.

    What H helpers of which T may collude with the server protect, and from whom:

    - H = T + 1, the default. The server and T helpers do not open an update, also where they ask different
      helpers for different updates: every release needs every helper, and so one that is honest, which
      releases an update once. Any helper that is away or refuses stops releases, and the log names it.
    - H > T + 1. The same holds, as ⌊(H + T)/2⌋ + 1 helpers sign which updates a release has before any of
      them gives a sum of masks. ⌈(H − T)/2⌉ − 1 helpers may be away, refuse or lie: none with H = T + 2, one
      with H = 4 and T = 1.

    The server together with more than T helpers opens every update. Sites have to know the helpers' keys
    from somebody else than the server, and a server that invents clients learns the sum of the others.

    Attributes:
        helpers: Names of the helpers, 2 to 9.
        colluding: T, most helpers that may collude with the server. None means all but one: H = T + 1.
        masks: Whether a simulation masks updates and asks helpers, all in its process, for the same bits; a
            deployed run does in any case.
    """

    helpers: tuple[str, ...] = ()
    colluding: Count | None = None
    masks: bool = False

    @property
    def most_colluding(self) -> int:
        """T: `colluding`, or its default."""
        return max(1, len(self.helpers) - 1) if self.colluding is None else self.colluding

    @model_validator(mode="after")
    def _committee(self) -> Self:
        twice = next((name for name in self.helpers if self.helpers.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is named twice in helpers")
        count, colluding = len(self.helpers), self.most_colluding
        if count == 1 or count > MOST_HELPERS:
            raise ValueError(f"helpers = {count}: 2 to {MOST_HELPERS} helpers make a committee")
        if (count or MOST_HELPERS) <= colluding:
            raise ValueError(
                f"helpers = {count or MOST_HELPERS} with colluding = {colluding}: "
                f"at most {(count or MOST_HELPERS) - 1} of {count or MOST_HELPERS} may collude"
            )
        return self


@checked_dataclass(kw_only=True)
class Privacy:
    """Options of privacy.

    Attributes:
        clip: C, the L2 norm to which each update is clipped; it has no default, since it depends on the task.
        weight_bits: w, bits of an update's weight: 0 (all weights are 1) or 2 to 6. None means 0 where the
            algorithm weighs all updates equally, else 4.
        least: m, fewest updates of a release, each of another client. None means 3 with `secure`, else 1.
        most: M, most updates of a release, up to 4096. None means as many as the algorithm aggregates
            together, at most as there are clients.
        dominance: ρ, most of a release's weight that one update has, with `secure`.
        colluding_clients: t, clients that may collude with the server, with `secure`.
        full_weight: n̂, samples of a client of full weight. None means those of the largest at the beginning.
        full_share: p̂, share of the samples of a client of full weight. None means that of the largest.
        labels: "public" lets clients report their exact number of samples of each class, where an algorithm
            needs it. None means that they do not.
        samples_unit: Clients tell their numbers of samples as multiples of it, rounded up; at least 1. These
            numbers are the algorithm's weights, and the steps of an epoch follow from them.
        noise: Noise in each release. None means no noise.
        secure: Secure aggregation. None means that the server sees each update.
    """

    clip: Positive | None = None
    weight_bits: WeightBits | None = None
    least: Annotated[int, Field(ge=1, le=MOST)] | None = None
    most: Annotated[int, Field(ge=1, le=MOST)] | None = None
    dominance: Annotated[float, Field(gt=0, lt=1)] = 0.5
    colluding_clients: Count = 1
    full_weight: Count | None = None
    full_share: PositiveShare | None = None
    labels: Literal["public"] | None = None
    samples_unit: Count = 1
    noise: Noise | None = None
    secure: Secure | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clip is None:
            raise ValueError(Refusal.NO_CLIP)
        if self.noise is None and self.secure is None:
            raise ValueError("privacy needs noise or secure: give one of them, or both")
        if self.samples_unit > 1 and self.labels is not None:
            raise ValueError(Refusal.LABELS_TELL_SAMPLES.format(unit=self.samples_unit))
        needed = self.colluding_clients + 2
        if self.secure is not None and self.least is not None and self.least < needed:
            given = {"least": self.least, "colluding": self.colluding_clients, "needed": needed}
            raise ValueError(Refusal.LEAST.format(**given))
        if self.least is not None and self.most is not None and self.most < self.least:
            raise ValueError(f"most = {self.most} is below least = {self.least}")
        if self.secure is not None and self.dominance * self.fewest <= 1:
            raise ValueError(
                f"dominance = {self.dominance} is not allowed with least = {self.fewest}: "
                f"it must be above 1/{self.fewest}"
            )
        return self

    @property
    def fewest(self) -> int:
        """m: `least`, or its default."""
        default = self.colluding_clients + 2 if self.secure is not None else 1
        return default if self.least is None else self.least

    @property
    def bits(self) -> int:
        """w of complete options."""
        assert self.weight_bits is not None
        return self.weight_bits


def rounded_up(samples: int, unit: int) -> int:
    """A number of samples as it is reported: the next multiple of `samples_unit`."""
    return -(-samples // unit) * unit


def privacy_text(found: Mapping[str, float]) -> str:
    """The result of `PrivacyLedger.summary` in words."""
    limit = f" of {found['budget']:g}" if "budget" in found else ""
    times = f"the busiest client was in {found['releases']:.0f} releases"
    return f"ε = {found['epsilon']:.2f}{limit} (δ = {found['delta']:g}; {times})"
