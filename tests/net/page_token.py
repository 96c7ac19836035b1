"""A live page's token of the test's own choice."""

from pathlib import Path

from offbeat.net.auth.access import PageToken, token_hash


def page_token(directory: Path, token: str) -> PageToken:
    """The token, from a file in the directory as `offbeat dashboard-token` would write it."""
    file = directory / "dashboard-token"
    file.write_text(token_hash(token) + "\n", encoding="utf-8")
    return PageToken(file)
