"""A robust aggregator of each kind."""

from offbeat.algorithms import robust as r

RULES: dict[str, r.RobustAggregator] = {
    "trimmed_mean": r.TrimmedMean(beta=0.34),
    "median": r.Median(weights="share"),
    "krum": r.MultiKrum(f=0, n=1),
    "geometric_median": r.GeometricMedian(),
    "centered_clip": r.CenteredClip(tau=0.5),
    "buckets": r.Buckets(buckets=3),
    "aflguard": r.AFLGuard(steps=2, every=3, lam=2.0),
    "zeno_plus": r.ZenoPlus(steps=2, every=3),
}
