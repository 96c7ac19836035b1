"""Samples of pairs."""

from offbeat.verdicts.average import PairSample


def sample(block: str, *values: float | None) -> PairSample:
    """A pair's sample with a value for each of the seeds 0, 1, 2, …"""
    return PairSample(block, dict(enumerate(values)))
