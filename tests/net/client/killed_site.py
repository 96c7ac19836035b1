"""A site with privacy of examples that notes what it does, and kills itself at one of its notes.

    python tests/net/client/killed_site.py ADDRESS DIRECTORY KILL_AT EPSILON

KILL_AT is the number of a note, or 0 for none; EPSILON the site's budget, or 0 for none. A note is a line of
DIRECTORY/notes, written before what it is about is done: a local step and what the site's file says by then
that is charged, a digest of random bytes, an update that is sent, and both ends of each write of a file.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.privacy.words import WordStream
from offbeat.local.examples_privacy import ExampleGradients, ExamplesPrivacy
from offbeat.net import join
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.client.examples_ledger import ExamplesSpent
from offbeat.net.grpc.client import connect
from offbeat.net.messages import UpdateSubmission
from offbeat.net.transport import ClientChannel
from offbeat.net.wire.limits import Limits

SAMPLES, NOISE, SPENT = 60, 2.0, 3


class Notes:
    """The notes of this process, which outlive its death."""

    def __init__(self, directory: Path, kill_at: int) -> None:
        self._file = os.open(directory / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._count, self._kill_at = 0, kill_at

    def __call__(self, *what: Any) -> None:
        """Write a note down, and die if it is time."""
        os.write(self._file, json.dumps(what).encode() + b"\n")
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        """Note the beginning and the end of each call of a function."""
        function = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            self(name)
            found = function(*args, **options)
            self(name)
            return found

        setattr(owner, name, noted)


def watch(note: Notes, state: Path) -> None:
    """Have everything noted."""
    begin: Callable[..., None] = ExampleGradients.begin
    draw: Callable[..., Any] = WordStream.draw

    def noted_begin(self: ExampleGradients, step: int) -> None:
        spent = ExamplesSpent.read(state)
        note("step", 0 if spent is None else spent.steps)
        begin(self, step)

    def noted_draw(self: WordStream, count: int) -> Any:
        words = draw(self, count)
        note("drawn", sha256(words.tobytes()).hexdigest())
        return words

    ExampleGradients.begin = noted_begin  # type: ignore[method-assign]
    WordStream.draw = noted_draw  # type: ignore[method-assign]
    note.around(os, "fsync")
    note.around(Path, "replace")


def main(address: str, directory: Path, kill_at: int, epsilon: float) -> int:
    """Take part; the exit status is `SPENT` where the budget is spent, with the reason on stderr."""
    note, state = Notes(directory, kill_at), directory / "state"
    watch(note, state)

    async def connected() -> ClientChannel:
        channel = await connect(address, SiteCredentials(name="clinic"), Limits())
        send = channel.send

        def noted_send(message: Any) -> None:
            if isinstance(message, UpdateSubmission):
                note("sent", message.task)
            send(message)

        channel.send = noted_send  # type: ignore[method-assign]
        return channel

    options = ExamplesPrivacy(noise=NOISE, epsilon=epsilon or None)
    data = ob.load("digits", samples=SAMPLES, test_samples=20).train
    try:
        asyncio.run(join(connected, data, state=state, examples_privacy=options))
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return SPENT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
