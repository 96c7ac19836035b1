import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.net.notify import READY, STOPPING, WATCHDOG, ServiceManager, at_work


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket, bound to a short path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(str(tmp_path / "notify"))
        own.settimeout(30)
        yield own


def received(manager: socket.socket) -> list[str]:
    """What has come so far."""
    manager.setblocking(False)
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_a_process_says_that_it_is_ready_alive_and_stops(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"}

    async def work() -> None:
        async with at_work("listening on 127.0.0.1:1", ServiceManager.of(environment)):
            while len(messages) < 4:
                await asyncio.sleep(0.01)
                messages.extend(received(manager))

    messages: list[str] = []
    asyncio.run(work())
    messages += received(manager)
    assert messages[0] == f"{READY}\nSTATUS=listening on 127.0.0.1:1"
    assert set(messages[1:-1]) == {WATCHDOG}
    assert messages[-1] == STOPPING


def test_a_failure_is_an_end_too(manager: socket.socket) -> None:
    async def work() -> None:
        async with at_work("", ServiceManager(manager.getsockname())):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(work())
    assert received(manager) == [READY, STOPPING]


def test_an_abstract_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(f"\0offbeat-test-{os.getpid()}")
        ServiceManager.of({"NOTIFY_SOCKET": f"@offbeat-test-{os.getpid()}"}).tell(READY)
        assert received(own) == [READY]


@pytest.mark.parametrize(
    ("environment", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),  # it is for another process
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_time(environment: dict[str, str], watchdog: float | None) -> None:
    assert ServiceManager.of({"NOTIFY_SOCKET": "/run/notify", **environment}).watchdog == watchdog


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_without_a_manager_nothing_is_sent(address: str) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    assert manager == ServiceManager()
    manager.tell(READY)


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "nothing")).tell(READY)


def test_a_manager_that_does_not_read_does_not_hold_up_the_loop(manager: socket.socket) -> None:
    for _ in range(1000):  # more than the socket holds
        ServiceManager(manager.getsockname()).tell(READY)
    assert 0 < len(received(manager)) < 1000
