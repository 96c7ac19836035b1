"""A live page's token of the test's own choice."""

import json
from hashlib import sha256
from pathlib import Path

from offbeat.net.auth.tokens import DASHBOARD, Tokens


def write_page_token(file: Path, token: str) -> None:
    """Write a token as `offbeat enrol --dashboard` does, but without a salt."""
    hashed = {"salt": "", "sha256": sha256(token.encode()).hexdigest()}
    file.write_text(json.dumps({"sites": {DASHBOARD: [hashed]}}), encoding="utf-8")


def page_token(directory: Path, token: str) -> Tokens:
    """The token, from a file in the directory."""
    file = directory / "dashboard-token"
    write_page_token(file, token)
    return Tokens(file)
