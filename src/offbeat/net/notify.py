"""Messages to the service manager: systemd's notification protocol, sd_notify(3).

A unit with `Type=notify` is started once the process says `READY=1`; with `WatchdogSec=` it is restarted
where the process stops saying `WATCHDOG=1`. The event loop says it, so a loop that hangs is noticed.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


@dataclass(frozen=True)
class ServiceManager:
    """The manager that started this process; where there is none, nothing is sent.

    Attributes:
        address: Its datagram socket: a path, or an abstract name that begins with a zero byte. Empty means
            that there is no manager.
        watchdog: Seconds within which it must hear of this process. None means that it does not ask.
    """

    address: str = ""
    watchdog: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "ServiceManager":
        """The manager that the environment names, as systemd sets it."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        asked = environment.get("WATCHDOG_USEC", "")
        for_this = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(asked) / 1e6 if asked.isdecimal() and int(asked) and for_this else None
        return cls("\0" + address[1:] if address.startswith("@") else address, seconds)

    def tell(self, state: str, status: str = "") -> None:
        """Send a state, and a line that `systemctl status` shows. A manager that is gone is no error."""
        if not self.address:
            return
        lines = [state, *([f"STATUS={status}"] if status else [])]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            # A manager that does not read must not hold up the loop.
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), self.address)

    async def keep_alive(self) -> None:
        """Tell the watchdog twice in its time that the event loop turns, until this is cancelled."""
        while self.watchdog is not None:
            self.tell(WATCHDOG)
            await asyncio.sleep(self.watchdog / 2)


@asynccontextmanager
async def at_work(status: str, manager: ServiceManager | None = None) -> AsyncIterator[None]:
    """Tell the service manager that the process is ready, that its loop turns, and that it stops.

    Args:
        status: What `systemctl status` shows.
        manager: The manager. None means that of the environment.
    """
    manager = manager or ServiceManager.of()
    manager.tell(READY, status)
    alive = asyncio.create_task(manager.keep_alive())
    try:
        yield
    finally:
        alive.cancel()
        manager.tell(STOPPING)
