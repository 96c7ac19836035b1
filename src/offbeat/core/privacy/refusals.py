"""Refusals of privacy, each in one sentence; docs/privacy-refusals.md lists them, and a test compares."""

from enum import StrEnum
from typing import Any

from offbeat.core.errors import UsageError


class Refusal(StrEnum):
    """A sentence of refusal; names in braces stand for the given values."""

    SINGLE_UPDATES = (
        "{name} needs each update by itself, not only a weighted sum: with privacy there are only sums; "
        "choose one of {others}"
    )
    CACHED = (
        "{name} keeps each client's last update at the server, and with privacy there are only sums: "
        "choose one of {others}"
    )
    WINDOWS = "{name} publishes windows whose differences are single updates: choose fedbuff"
    SECOND_VECTOR = (
        "{name} sends a second vector of the same data, which gives single updates away: "
        "choose fedavg, fedprox or feddyn"
    )
    CODEC = "codec = {codec!r} cannot be used with privacy: masks and noise fill every coordinate"
    BUFFERS = (
        "buffers = {buffers!r} cannot be used with privacy: "
        "choose local or recompute, or a model without buffers"
    )
    NORMS = (
        "{name} needs clients that tell the length of the update they hold, "
        "which stays at the site with privacy"
    )
    GROWING_WEIGHT = (
        "staleness age with gamma = {gamma} has no largest weight: with privacy it needs gamma ≤ 1"
    )
    UNEQUAL_WEIGHTS = (
        "weight_bits = 0 needs equal weights: staleness constant and weights equal, or choose weight_bits = 4"
    )
    NO_CLIP = (
        "clip is missing: with privacy it is needed; start from the median norm of updates on public data"
    )
    OTHER_CLIP = "with.clip cannot be used with privacy: clip bounds the norm"
    MOST = "most = {most} is below size = {size} of {name}"
    LEAST = "least = {least} is not allowed with colluding_clients = {colluding}: at least {needed}"
    TOO_FEW_CLIENTS = "least = {least} needs {least} clients, the run begins with {clients}"
    FLOWER = "offbeat flower: privacy is not available there"
    NO_HELPERS = "secure needs helpers in a deployed run: name 2 to 9 of them (privacy.secure.helpers)"
    NORM_BOUND = "norm_bound cannot be used with privacy: clip bounds the norm"
    KEEP_UPDATES = (
        "keep_updates cannot be used with privacy: without one of its updates a release would tell of it"
    )
    COARSE_GRID = (
        "clip = {clip:g} is {steps:.0f} grid steps a coordinate with most = {most}, weight_bits = {bits}; "
        "at least {needed} are needed: lower most or weight_bits"
    )
    LITTLE_NOISE = (
        "σ = {sigma} grid steps is too little for exact noise: raise multiplier or lower most, "
        "at least 10000 are needed"
    )
    DELTA = "delta = {delta:g} is not allowed with {clients} clients: it must be below 1/{clients}"
    SMALL_BUDGET = (
        "epsilon = {epsilon:g} allows no release with multiplier = {multiplier:g}: raise one of them"
    )
    LABELS = "this policy needs exact label counts: add labels: public, or choose another"
    LABELS_TELL_SAMPLES = (
        "samples_unit = {unit} cannot be used with labels: public: label counts tell the number of samples; "
        "leave one of them out"
    )
    SAMPLES_UNIT = (
        "{option} = {given} is not a multiple of samples_unit = {unit} of this run: "
        "set samples_unit: {unit} in the site's policy"
    )
    LEARNED_SELECTOR = "a learned selector tells losses: use a fixed one"
    CLIENT_METRICS = (
        "{option}: what clients find on their own data is not counted by the budget: "
        "choose a metric of the server's test data"
    )
    ROBUST = "{name} has no noise calibrated for it: leave it out, or leave noise out"

    def error(self, **given: Any) -> UsageError:
        """The error, with the given values in place of the names."""
        return UsageError(self.value.format(**given))
