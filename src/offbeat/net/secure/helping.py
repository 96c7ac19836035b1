"""A helper of secure aggregation: connects like a site, and answers the server's requests.

Whatever it answers is in its file before; it says the same again after a crash, and never anything else.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.documents import user_path
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.backoff import GIVE_UP_AFTER, Backoff
from offbeat.net.client.connector import connector
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.reconnecting import Connect, reconnecting
from offbeat.net.client.sent_log import SentLog
from offbeat.net.clock import Clock, SystemClock
from offbeat.net.messages import Heartbeat, Leave, Register, Registered, Rejected, RunFinished
from offbeat.net.run_spec import RunSpec, read_run_spec
from offbeat.net.transport import ChannelClosedError, ClientChannel
from offbeat.runs.durable_files import make_directory
from offbeat.secure.committee import Committee, fingerprint
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from offbeat.secure.messages import UnmaskRequest

log = logging.getLogger(__name__)
HELPER_FILE = "helper.db"


async def help_run(
    server: str | Connect,
    name: str,
    state: str | Path,
    *,
    credentials: SiteCredentials | None = None,
    give_up_after: float | None = GIVE_UP_AFTER,
) -> str:
    """Help a server's run with secure aggregation until it finishes.

    Args:
        server: "HOST:PORT", or a function that opens a connection.
        name: The helper's name, as the run's recipe has it and its credential proves it.
        state: Directory of the helper's durable file, which is never restored from a copy, and of the record
            of what has left the helper.
        credentials: The helper's credentials for an address. None means none but the name.
        give_up_after: Seconds without a server, or in which one message does not get through, after which to
            fail; None for never.

    Returns:
        The reason of the run's end.

    Raises:
        UsageError: The committee is not the plan's, or the helper serves another one already.
        RunError: The server refuses the helper, or cannot be reached; or its file is damaged.
    """
    connect = connector(server, name if isinstance(server, str) else None, credentials)
    directory = user_path(state)
    try:
        make_directory(directory)
    except OSError as error:
        raise UsageError(f"--state {directory} cannot be made: {reason_of(error)}") from None
    with HelperFile(directory / HELPER_FILE) as file:
        clock = SystemClock()
        client = HelperClient(connect, Helper(name, file), clock, SentLog(directory))
        return await client.run(Backoff(give_up_after, Random(), clock.now()))


class HelperClient:
    """The connection of a helper.

    Args:
        connect: Opens a connection to the server.
        helper: The helper.
        clock: Source of time.
        sent_log: Records what leaves the helper. None means that nothing is recorded.
    """

    def __init__(
        self, connect: Connect, helper: Helper, clock: Clock, sent_log: SentLog | None = None
    ) -> None:
        self._sent_log = sent_log or SentLog()
        self._connect, self._helper, self._liveness = connect, helper, Liveness(clock)
        self._spec: RunSpec | None = None
        # Summing masks takes a while, and the event loop must not wait for it.
        self._thread = ThreadPoolExecutor(1, "offbeat-helper")

    async def run(self, backoff: Backoff) -> str:
        """Help until the run has finished; returns the reason."""
        own = fingerprint(self._helper.public_key, self._helper.verify_key)
        told = {"helper": self._helper.name, "fingerprint": own}
        log.info("helper", extra=told)
        try:
            known = self._helper.committee is not None
            return await reconnecting(
                self._connect, self._hello, self._serve, self._liveness, backoff, known=known,
                sent_log=self._sent_log,
            )  # fmt: skip
        finally:
            self._sent_log.close()
            self._thread.shutdown(wait=True)

    def _hello(self) -> Register:
        """The helper's registration."""
        committee = self._helper.committee
        serves = b"" if committee is None else committee.digest
        key, instance = self._helper.public_key, self._helper.instance
        return Register(
            0, 0, public_key=key, instance=instance, committee=serves, verify_key=self._helper.verify_key
        )

    async def _serve(self, channel: ClientChannel) -> str | None:
        """Serve one connection, to its end or that of the run; returns the reason of the run's end."""
        self._liveness.hear(served=False)
        channel.send(self._hello())
        self._liveness.start_heartbeats(channel, Heartbeat)
        try:
            return await self._receive(channel)
        except UsageError as error:
            channel.send(Leave(str(error)))
            raise
        finally:
            await self._liveness.end_heartbeats()
            await channel.close()

    async def _receive(self, channel: ClientChannel) -> str | None:
        registered = False
        while True:
            message = await channel.receive()
            registered = registered or isinstance(message, Registered)
            self._liveness.hear(served=registered)
            match message:
                case RunFinished():
                    channel.send(Leave("the run has finished"))
                    return message.reason
                case Rejected() if message.final:
                    raise RunError(f"the server refuses this helper: {message.reason}")
                case Rejected() if registered:
                    log.warning("the server says: %s", message.reason)
                case Rejected():
                    raise ChannelClosedError(message.reason)
                case Registered():
                    self._sent_log.registered(message.run, None, message.plan)
                    self._liveness.lease, self._spec = message.lease, _secure_spec(message.plan)
                    self._liveness.start_heartbeats(channel, Heartbeat)
                case Committee():
                    self._adopt(message)
                case UnmaskRequest():
                    loop = asyncio.get_running_loop()
                    answer = await loop.run_in_executor(self._thread, self._helper.answer, message)
                    channel.send(answer)

    def _adopt(self, committee: Committee) -> None:
        """Serve the committee, if it is the one that the run's plan has. Raises `UsageError`."""
        if self._spec is None or self._spec.privacy is None:
            raise UsageError("the server tells a committee before its plan")
        if (different := committee.mismatch(self._spec.privacy, self._spec.parameters)) is not None:
            raise UsageError(different)
        self._helper.serve(committee)
        told = {
            "epoch": committee.epoch, "helpers": ", ".join(own.name for own in committee.helpers),
            "releases": f"of {committee.least} to {committee.most} clients, none above "
            f"{100 * committee.dominance:g} % of the weight",
        }  # fmt: skip
        log.info("helping", extra=told)


def _secure_spec(document: Mapping[str, Any]) -> RunSpec:
    """The specification of a run. Raises `UsageError` for one that is not secure."""
    spec = read_run_spec(document)
    if not spec.secure:
        raise UsageError("the run is not secure: it needs no helpers")
    return spec
