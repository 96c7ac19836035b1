"""Fixtures of the command line's tests."""

import sys
from collections.abc import Callable

import pytest

from offbeat import cli
from offbeat.cli import console
from tests.cli.answer import Answer


@pytest.fixture
def offbeat(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The command line in this process, on a wide terminal and without a token in the environment."""
    monkeypatch.setattr(console.out, "width", 160)
    monkeypatch.setattr(console.err, "width", 160)
    monkeypatch.delenv("OFFBEAT_TOKEN", raising=False)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["offbeat", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capfd.readouterr()
        code = end.value.code
        return Answer(code if isinstance(code, int) else 0, said.out, said.err)

    return call
