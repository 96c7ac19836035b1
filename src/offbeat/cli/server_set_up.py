"""The set-up of `offbeat serve`, and what of it is refused: by the command at its start, and by its check.

Nothing here opens or writes anything. Each function raises `UsageError` or `RunError` for what it refuses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from offbeat.allowed import Allow
from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callbacks_by_name import make_callbacks
from offbeat.cli.state_dir import PAGE_TOKEN, is_locked
from offbeat.core.errors import UsageError
from offbeat.data.dataset import Samples
from offbeat.experiment import Experiment
from offbeat.net.address import is_local, split
from offbeat.net.auth.credentials import Authenticator, ServerCredentials
from offbeat.net.auth.tls import page_tls, server_tls
from offbeat.net.auth.tokens import Tokens
from offbeat.net.grpc import server as grpc_server
from offbeat.net.monitor.http import MonitorAddress
from offbeat.net.server.checked_run import check_run
from offbeat.net.server.mirror import check_mirror, mirror_of
from offbeat.net.server.server_options import ServerOptions
from offbeat.recipes.build import make_algorithm, make_experiment, make_server_learner
from offbeat.recipes.metrics import check_metrics
from offbeat.recipes.recipe import Recipe
from offbeat.runs.schema import DATABASE


@dataclass(frozen=True)
class MadeRun:
    """A run that a server can be asked for.

    Attributes:
        experiment: What the run is.
        callbacks: What is called while it goes on.
        test: Its test data. None means that there are none.
    """

    experiment: Experiment
    callbacks: Sequence[Callback]
    test: Samples | None


@dataclass(frozen=True)
class ServerSetUp:
    """What `offbeat serve` is given.

    Attributes:
        recipe: What the run is.
        state: The state directory.
        listen: Address for sites.
        page: Address of the live page. None means no page.
        unencrypted: Whether the page's token may cross the network in readable form.
        credentials: The server's credentials, completed by the directory's own.
        given_tls: Whether the options give the certificate.
        options: The server's options.
        test: The test data, as the option gives them.
        allow: What the recipe may name.
        mirror: The second state directory. None means no mirror.
    """

    recipe: Recipe
    state: Path
    listen: str
    page: str | None
    unencrypted: bool
    credentials: ServerCredentials
    given_tls: bool
    options: ServerOptions
    test: str | None
    allow: Allow
    mirror: Path | None

    @cached_property
    def run(self) -> MadeRun:
        """The run that the recipe means, with its test data."""
        recipe, allow = self.recipe, self.allow
        algorithm = make_algorithm(recipe.algorithm, allow)
        learner = make_server_learner(recipe, self.test, allow)
        evaluates = recipe.evaluate.at_server and learner.data.test is not None
        if recipe.metric is not None and evaluates:
            check_metrics(recipe, learner, recipe.metric)
        called = make_callbacks(recipe.callbacks, allow)
        return MadeRun(make_experiment(recipe, algorithm, learner), called, learner.data.test)


def check_access(set_up: ServerSetUp) -> None:
    """Check the credentials."""
    set_up.credentials.check(set_up.listen)
    server_tls(set_up.credentials)
    Authenticator(set_up.credentials)


def check_address(set_up: ServerSetUp) -> None:
    """Check that the server can listen."""
    _check_free("--listen", set_up.listen, grpc_server.check_free)


def page_address(set_up: ServerSetUp) -> MonitorAddress | None:
    """Where the live page listens, and what protects it; None without a page."""
    if set_up.page is None:
        return None
    # `split` refuses a Unix socket.
    _check_free("--dashboard", set_up.page, split)
    _check_free("--dashboard", set_up.page, grpc_server.check_free)
    credentials, tls = set_up.credentials, None
    # A browser of this machine need not trust the server's own authority.
    encrypted = set_up.given_tls or not is_local(set_up.page)
    if encrypted and credentials.certificate is not None and credentials.key is not None:
        tls = page_tls(credentials.certificate, credentials.key)
    token = Tokens(set_up.state / PAGE_TOKEN)
    return MonitorAddress(*split(set_up.page), token, tls, set_up.unencrypted)


def check_not_served(state: Path) -> None:
    """Check that no other process has the run of a state directory."""
    if (state / DATABASE).is_file() and is_locked(state):
        raise UsageError(
            f"--state {state}: another process is serving this run; end it with offbeat stop {state}, or "
            "choose another directory"
        )


def check_state(set_up: ServerSetUp) -> None:
    """Check that the state directory is free for the run, or holds it, and that the run can begin."""
    check_not_served(set_up.state)
    if set_up.mirror is None:
        mirror_of(None, required=set_up.options.mirror_required)
    else:
        check_mirror(set_up.state, set_up.mirror)
    check_run(set_up.run.experiment, set_up.state, set_up.options)


def _check_free(option: str, address: str, check: Callable[[str], object]) -> None:
    """Check an address of an option."""
    try:
        check(address)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
