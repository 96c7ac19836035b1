"""Features that a part of an algorithm requires of the other parts or of the driver.

Parts compose freely but for this: what a part requires must be provided by another part or by the driver. So
an algorithm that cannot work is refused when it is composed, and a driver that cannot serve an algorithm
(secure aggregation, a federation without pushes) refuses it at the start.
"""

from enum import StrEnum
from typing import Protocol, Self


class Feature(StrEnum):
    """A name for something that one part requires and another part or the driver provides.

    `description` is a phrase that follows "needs".
    """

    description: str

    # Features of the driver.
    SINGLE_UPDATES = "single updates", "each update by itself, not only a weighted sum"
    CLIENT_STATE = "client state", "clients that keep state from task to task"
    SHARED_VECTOR = "shared vector", "a vector that travels with the model both ways"
    FRESH_MODELS = "fresh models", "clients that can be sent a model in mid-task"
    RECALL = "recall", "clients that can be asked to report early"
    CANCEL = "cancel", "clients that can be told to stop a task at once"
    REPRESENTATIONS = (
        "representations",
        "a model that ends in a linear layer, whose input represents a sample",
    )
    RADIO = "radio", "a world with a channel that can be measured"
    LABELS = "labels", "clients that report their number of samples of each class"
    NORMS = "norms", "clients that report the norm of the update they hold"
    ROOT_DATA = "root data", "a server with trusted data of its own, on which it trains"
    # Features of the other parts of an algorithm.
    TIERS = "tiers", "a schedule that aggregates by tiers"
    ASKING = "asking", "a schedule whose clients request fresh models"
    MERGE = "merge", "an objective that merges the fresh model requested"
    CORRECTION = "correction", "an objective with the drift that the aggregator corrects"
    BOUNDED = "bounded updates", "updates of bounded norm: give clip, such as clip = 0.5"

    def __new__(cls, name: str, description: str) -> Self:
        """The member is its name, and has a description."""
        member = str.__new__(cls, name)
        member._value_, member.description = name, description
        return member


DRIVERS = frozenset(Feature) - {
    Feature.TIERS, Feature.ASKING, Feature.MERGE, Feature.CORRECTION, Feature.BOUNDED
}  # fmt: skip
"""Features that the driver provides."""

NONE: frozenset[Feature] = frozenset()


class AlgorithmPart(Protocol):
    """A part of an algorithm, with the features that it requires and provides; by default none."""

    @property
    def requires(self) -> frozenset[Feature]:
        """Features required of the other parts or the driver."""
        return NONE

    @property
    def provides(self) -> frozenset[Feature]:
        """Features provided to other parts."""
        return NONE
