"""A run as its helpers need it."""

from typing import Protocol

from offbeat.core.commands import Train
from offbeat.core.events import Event
from offbeat.core.global_model import GlobalModel
from offbeat.core.server import Server
from offbeat.net.messages import FromServer
from offbeat.net.server.effects import Effects
from offbeat.net.server.site_registry import Registry, SiteRecord


class ServedRun(Protocol):
    """A run as its helpers need it: its driver.

    Attributes:
        server: The state machine.
        tensors: The tensors.
        registry: The sites and their tasks.
        effects: What is to be made durable and sent.
        ending: Why the run ends; None before.
        stopped: Why the run ended; None before.
    """

    server: Server
    tensors: GlobalModel
    registry: Registry
    effects: Effects
    ending: str | None
    stopped: str | None

    def apply(self, now: float, event: Event) -> None:
        """Apply an event, and send the sites the algorithm's commands."""

    def note(self, now: float, event: Event) -> None:
        """Apply an event that the algorithm does not see and that leads to nothing."""

    def assign(self, command: Train) -> None:
        """Give a task to its site, or give it again."""

    def send(self, name: str, message: FromServer) -> None:
        """Send a message, once the events before it are durable."""

    def close(self, name: str, reason: str) -> None:
        """Close a connection, once the messages to it are sent."""

    def disconnect(self, site: SiteRecord, reason: str) -> None:
        """Close a site's connection, and count the site as disconnected from now on."""
