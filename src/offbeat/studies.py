"""Where the studies of papers were before they became a distribution of their own."""

raise ImportError(
    "offbeat.studies is the package offbeat_papers now: pip install 'offbeat[papers]', and import from there"
)
