"""Options of privacy: sums of clipped, rounded updates, noise and its budget.

A run without these options does not change. With them, every version of the global model follows from one sum
of integers: the clipped and rounded updates of at least `least` clients. docs/privacy.md says who is
protected from whom. No cryptographer has reviewed the design.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from offbeat.core.privacy.refusals import Refusal
from offbeat.core.types import NUMBER, Count, Positive, PositiveShare
from offbeat.core.validation import checked_dataclass

MOST = 4096  # updates of a release
MOST_HELPERS = 9

WeightBits = Literal[0, 2, 3, 4, 5, 6]


@checked_dataclass
class Budget:
    """Limit on what the published models reveal about a client: (ε, δ)-differential privacy.

    Attributes:
        epsilon: ε, above 0. None means that the run counts what each client spends, and limits nothing.
        delta: δ, in (0, 1); it must be below 1 / number of clients.
    """

    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1), NUMBER] = 1e-5


@checked_dataclass
class Noise:
    """Noise that the server adds to each release. Give either `multiplier` or `releases`.

    Attributes:
        multiplier: z, the noise's standard deviation divided by the largest contribution of one client, in
            (0, 1000]. None means that z follows from `releases` and the budget.
        releases: Number of releases in which a client can take part within its budget. None means that
            `multiplier` is given.
        bands: b, number of releases over which later noise cancels part of earlier noise, 1 to 64; 1 means
            independent noise.
        budget: The budget of each client.
        accounting: Formula of the ε that the budget limits: "gdp" means Gaussian differential privacy, "zcdp"
            zero-concentrated differential privacy, which is stricter.
    """

    multiplier: Annotated[float, Field(gt=0, le=1000), NUMBER] | None = None
    releases: Count | None = None
    bands: Annotated[int, Field(ge=1, le=64), NUMBER] = 1
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

    There are H helpers, of which at most T may collude with the server:

    - H = T + 1, the default. The server and T helpers cannot open an update, even if they ask different
      helpers for different updates. Every release needs every helper. So at least one of them is honest, and
      an honest helper releases an update only once. A helper that is away or refuses stops all releases, and
      the log names this helper.
    - H > T + 1. The server and T helpers cannot open an update either: ⌊(H + T)/2⌋ + 1 helpers sign which
      updates a release has, before any of them gives a sum of masks. ⌈(H − T)/2⌉ − 1 helpers may be away,
      refuse or lie. This number is 0 with H = T + 2, and 1 with H = 4 and T = 1.

    The server together with more than T helpers can open every update. A server that replaces the helpers'
    keys can do so too, so a site has to know the keys from somebody other than the server. A server that
    invents clients learns the sum of the real ones.

    Attributes:
        helpers: Names of the helpers, 2 to 9.
        colluding: T, most helpers that may collude with the server. None means all but one: H = T + 1.
        masks: Whether a simulation masks updates and asks helpers, all in its own process. The result has the
            same bits. A deployed run always masks updates.
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
        clip: C, the L2 norm to which each update is clipped. It has no default, because it depends on the
            task.
        weight_bits: w, bits of an update's integer weight: 0 (all weights are 1) or 2 to 6. None means 0 if
            the algorithm weighs all updates equally, else 4.
        least: m, fewest updates of a release, each of another client. None means `colluding_clients` + 2 with
            `secure`, else 1.
        most: M, most updates of a release, up to 4096. None means the number of updates that the algorithm
            aggregates together, or the number of clients if the algorithm sets no such number.
        dominance: ρ, largest share of a release's weight that one update may have, in (0, 1); for `secure`.
        colluding_clients: t, number of clients that may collude with the server; for `secure`.
        full_weight: n̂, number of samples of a client with the largest weight. None means that of the largest
            client at the beginning.
        full_share: p̂, share of all samples of a client with the largest weight. None means that of the
            largest client at the beginning.
        labels: "public" means that clients report their exact number of samples of each class if the
            algorithm needs these numbers. None means that clients do not report them.
        samples_unit: Unit of the reported numbers of samples, at least 1: clients round these numbers up to a
            multiple. The reported numbers are the algorithm's weights, and give the steps of an epoch.
        noise: Noise in each release. None means no noise.
        secure: Secure aggregation. None means that the server sees each update.
    """

    clip: Positive | None = None
    weight_bits: WeightBits | None = None
    least: Annotated[int, Field(ge=1, le=MOST), NUMBER] | None = None
    most: Annotated[int, Field(ge=1, le=MOST), NUMBER] | None = None
    dominance: Annotated[float, Field(gt=0, lt=1), NUMBER] = 0.5
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
    """A number of samples as a client reports it: rounded up to a multiple of `samples_unit`."""
    return -(-samples // unit) * unit


def privacy_text(found: Mapping[str, float]) -> str:
    """What the busiest client has spent, in words; `found` is the result of `PrivacyLedger.summary`."""
    limit = f" of {found['budget']:g}" if "budget" in found else ""
    times = f"the busiest client was in {found['releases']:.0f} releases"
    return f"ε = {found['epsilon']:.2f}{limit} (δ = {found['delta']:g}; {times})"
