"""The helpers of a run as its server's driver, coordinator and message handler know them.

In a run with secure aggregation they are `SecureAggregation`: sites are not heard while a release waits for
its sum. In any other run they are `NoHelpers`, which lets everything go on. So the path of a message does not
ask which kind of run it is in.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from offbeat.core.commands import Train
from offbeat.core.events import ClientId, Event, Version
from offbeat.core.global_model import GlobalModel
from offbeat.core.server import Server
from offbeat.net.messages import FromServer, FromSite, Register, Registered, Rejected
from offbeat.net.monitor.snapshot import HelpersView
from offbeat.net.secure.release_seeds import ReleaseSum
from offbeat.net.server.effects import Effects, Measurements
from offbeat.net.server.site_registry import Registry, SiteRecord
from offbeat.net.server.validation import InvalidUpdateError, UpdateCheck
from offbeat.secure.refusals import SecureRefusal

T = TypeVar("T")


def _nothing() -> None:
    """Do nothing."""


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


class Helpers(Protocol):
    """The helpers of a run.

    Attributes:
        names: Their names.
        connected: Names of those that are there.
        view: How they are shown; None where there are none.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the helpers."""

    @property
    def connected(self) -> Collection[str]:
        """Names of those that are there."""

    @property
    def view(self) -> HelpersView | None:
        """How they are shown; None where there are none."""

    # ---- the journal ----

    def enter_event(self, event: Event) -> None:
        """Follow the journal, also while it is repeated."""

    def remember(self, sums: Mapping[Version, ReleaseSum]) -> None:
        """Have the sums that an earlier process made durable, and no others."""

    def recall(self, event: Event) -> None:
        """Have ready the sum that a recorded event needs, before it is repeated. Raises `RunError`."""

    def recovered(self) -> None:
        """The journal has been repeated: events are new from now on."""

    def check_snapshots(self) -> None:
        """Raises `TypeError` where a run has no snapshots: the journal alone tells of its helpers."""

    # ---- what a release holds up ----

    def settle(self, now: float, event: Event, settled: Callable[[], object]) -> None:
        """Call `settled` if an event has been carried out; else begin with the release that it waits for."""

    def unless_waiting(self, action: Callable[[], object], instead: Callable[[], object] = _nothing) -> None:
        """Do something, but not while a release waits for its sum: then do something else."""

    def when_ready(self, action: Callable[[], object]) -> None:
        """Do something, but not before the committee is there."""

    def while_heard(self, steps: Iterable[object]) -> None:
        """Take steps as long as sites are heard, one after the other."""

    def postpones(self, name: str) -> bool:
        """Whether messages of this peer are to be passed later."""

    def measured(self, measurements: Measurements) -> Measurements:
        """The evaluations to record now, of these and those before them; the others are kept for later."""

    # ---- time ----

    def tick(self, now: float) -> None:
        """Let time pass."""

    def next_due(self, sites: Callable[[], float]) -> float:
        """When something is due, in seconds of the run's clock.

        Args:
            sites: Says when something of the sites is due.
        """

    def fail(self, now: float, reason: str) -> None:
        """Give up the releases that wait."""

    def if_it_may_go_on(self, last: T) -> T | None:
        """The state from which an ended run can go on under other limits; None where it cannot go on."""

    # ---- messages ----

    def choose(self, name: str, *, helper: T, site: T) -> T:
        """The value for a helper or the value for a site: whichever of them has this name."""

    def disconnected(self, now: float, name: str) -> None:
        """A helper's connection has ended."""

    def receive(self, now: float, name: str, message: FromSite, registered: Registered) -> None:
        """Process a message of a helper.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The helper's name.
            message: The message.
            registered: What a helper is told that registers.
        """

    # ---- sites ----

    def check_site(self, name: str, register: Register) -> None:
        """Raises `InvalidUpdateError` for a helper of no run, and for a site that knows no run like this."""

    def update_check(self, check: UpdateCheck) -> UpdateCheck:
        """The check of the updates of the run.

        Args:
            check: The check of updates that are not masked.
        """

    def site_refusal(self, client: ClientId) -> Rejected | None:
        """Why a site may not register, for now or for good; None if it may."""

    def registered(self, name: str, message: Registered) -> Registered:
        """The complete answer to a registration."""

    def greet(self, site: SiteRecord) -> None:
        """Tell a registered site about the helpers."""


class NoHelpers:
    """The helpers of a run without secure aggregation: there are none, and nothing ever waits for them."""

    names: tuple[str, ...] = ()
    connected: Collection[str] = ()
    view: HelpersView | None = None

    def enter_event(self, event: Event) -> None:
        """No event is about helpers."""

    def remember(self, sums: Mapping[Version, ReleaseSum]) -> None:
        """No sum is recorded."""

    def recall(self, event: Event) -> None:
        """No event needs a sum."""

    def recovered(self) -> None:
        """No committee has to be formed."""

    def check_snapshots(self) -> None:
        """Nothing is known of helpers: a run may have snapshots."""

    def settle(self, now: float, event: Event, settled: Callable[[], object]) -> None:
        """Every event has been carried out."""
        settled()

    def unless_waiting(self, action: Callable[[], object], instead: Callable[[], object] = _nothing) -> None:
        """No release waits."""
        action()

    def when_ready(self, action: Callable[[], object]) -> None:
        """No committee is needed."""
        action()

    def while_heard(self, steps: Iterable[object]) -> None:
        """Sites are always heard."""
        for _ in steps:
            pass

    def postpones(self, name: str) -> bool:
        """No message has to wait."""
        return False

    def measured(self, measurements: Measurements) -> Measurements:
        """All evaluations are recorded at once."""
        return measurements

    def tick(self, now: float) -> None:
        """No helper is waited for."""

    def next_due(self, sites: Callable[[], float]) -> float:
        """When something of the sites is due."""
        return sites()

    def fail(self, now: float, reason: str) -> None:
        """No release waits."""

    def if_it_may_go_on(self, last: T) -> T | None:
        """Any run may."""
        return last

    def choose(self, name: str, *, helper: T, site: T) -> T:
        """The value for a site: every peer is one."""
        return site

    def disconnected(self, now: float, name: str) -> None:
        """No peer is a helper."""

    def receive(self, now: float, name: str, message: FromSite, registered: Registered) -> None:
        """No peer is a helper."""

    def check_site(self, name: str, register: Register) -> None:
        """Raises `InvalidUpdateError` for a peer that registers as a helper."""
        if register.public_key:
            raise InvalidUpdateError(SecureRefusal.NOT_A_HELPER.format(name=name, helpers="none"), "helper")

    def update_check(self, check: UpdateCheck) -> UpdateCheck:
        """The check of updates that are not masked: none is."""
        return check

    def site_refusal(self, client: ClientId) -> Rejected | None:
        """No site is kept away."""
        return None

    def registered(self, name: str, message: Registered) -> Registered:
        """The answer to a site's registration, unchanged."""
        return message

    def greet(self, site: SiteRecord) -> None:
        """A site need not know of any helper."""
