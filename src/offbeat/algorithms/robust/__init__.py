"""Robust aggregation: aggregators that limit the influence of some malicious clients.

Each can replace the aggregator of any algorithm (`offbeat.compose`) whose aggregations are large enough.
Norms and distances are those of the parameters.
"""

from typing import Annotated

from pydantic import Field

from offbeat.algorithms.robust.aflguard import AFLGuard
from offbeat.algorithms.robust.buckets import Buckets
from offbeat.algorithms.robust.centered_clip import CenteredClip
from offbeat.algorithms.robust.clipping import Clipped
from offbeat.algorithms.robust.geometric_median import GeometricMedian
from offbeat.algorithms.robust.krum import MultiKrum
from offbeat.algorithms.robust.median import Median
from offbeat.algorithms.robust.trimmed_mean import TrimmedMean
from offbeat.algorithms.robust.zeno_plus import ZenoPlus
from offbeat.lazy import listing

RobustAggregator = (
    TrimmedMean | Median | MultiKrum | GeometricMedian | CenteredClip | Buckets | AFLGuard | ZenoPlus
)
RobustSpec = Annotated[RobustAggregator, Field(discriminator="kind")]
"""Options of a robust aggregator, as a recipe has them: {kind: multi_krum, f: 2}."""

__all__ = [
    "AFLGuard",
    "Buckets",
    "CenteredClip",
    "Clipped",
    "GeometricMedian",
    "Median",
    "MultiKrum",
    "RobustAggregator",
    "RobustSpec",
    "TrimmedMean",
    "ZenoPlus",
]
__dir__ = listing(__name__)
