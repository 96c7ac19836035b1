"""What a part of an algorithm needs: of the other parts, or of whoever drives it.

Parts compose freely but for this: a part's `needs` must be covered by what the other parts give and
what the driver can do. So an algorithm that cannot work is refused when it is composed, and a driver
that cannot serve an algorithm (secure aggregation, a federation without pushes) says so at the start.
"""

from enum import StrEnum


class Feature(StrEnum):
    """A name for something one part needs and another gives."""

    # of the driver
    SINGLE_UPDATES = "single updates"
    CLIENT_STATE = "client state"
    SHARED_VECTOR = "shared vector"
    FRESH_MODELS = "fresh models"
    RECALL = "recall"
    REPRESENTATIONS = "representations"
    RADIO = "radio"
    LABELS = "labels"
    NORMS = "norms"
    # of the other parts
    TIERS = "tiers"
    ASKING = "asking"
    MERGE = "merge"
    CORRECTION = "correction"


DRIVERS = frozenset(
    {
        Feature.SINGLE_UPDATES,
        Feature.CLIENT_STATE,
        Feature.SHARED_VECTOR,
        Feature.FRESH_MODELS,
        Feature.RECALL,
        Feature.REPRESENTATIONS,
        Feature.RADIO,
        Feature.LABELS,
        Feature.NORMS,
    }
)
"""What the algorithm leaves to its driver."""

NONE: frozenset[Feature] = frozenset()

_DESCRIPTIONS = {
    Feature.SINGLE_UPDATES: "each update by itself, not only a weighted sum",
    Feature.CLIENT_STATE: "clients that keep state from task to task",
    Feature.SHARED_VECTOR: "a vector that travels with the model both ways",
    Feature.FRESH_MODELS: "clients that can be sent a model in mid-task",
    Feature.RECALL: "clients that can be asked to report early",
    Feature.REPRESENTATIONS: "a model that ends in a linear layer, whose input represents a sample",
    Feature.RADIO: "a world with a channel that can be measured",
    Feature.LABELS: "clients that tell how many samples of each class they have",
    Feature.NORMS: "clients that tell the length of the update they hold",
    Feature.TIERS: "a schedule that aggregates by tiers: Tiers (FedAT)",
    Feature.ASKING: "a schedule whose clients ask for fresh models: Asking (FedASMU)",
    Feature.MERGE: "an objective that merges the fresh model asked for: FreshMerge (FedASMU)",
    Feature.CORRECTION: "the objective Dynamic (FedDyn), whose drift it corrects",
}


def describe(feature: Feature) -> str:
    """What a feature is, to go after "needs"."""
    return _DESCRIPTIONS[feature]
