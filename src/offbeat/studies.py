"""Where the studies of papers were before they became a distribution of their own."""

from offbeat.core.installation import install_hint

raise ImportError(
    f"offbeat.studies is the package offbeat_papers now: {install_hint('papers')}; then import from there"
)
