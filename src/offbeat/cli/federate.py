"""The command that runs a whole federation on this machine: a server, its sites, and helpers as processes."""

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from offbeat.cli import common_options
from offbeat.cli.allow import AllowOption, allowed_names, recipe_folder
from offbeat.cli.console import out, repeatable
from offbeat.cli.keys import split_sets
from offbeat.cli.serve import GROUPS, helpers_of_run, make_server_options
from offbeat.cli.simulate import new_directory
from offbeat.cli.state_dir import TOKENS, make_directory
from offbeat.cli.tokens import write_site_kit
from offbeat.core.errors import RunError, UsageError
from offbeat.core.extras import requires_extra

if TYPE_CHECKING:
    from offbeat.recipes.recipe import Recipe

HOST = "localhost"
SERVER = "server"
HELPER = "helpers/"
"""Begins the name of a helper's process: the name of a site has no slash."""
MOST_SITES = 256
"""Most sites of one machine: each is a process with PyTorch, of some hundred MB."""
PATIENCE = "access.give_up_after=600"
"""Seconds after which a site gives up a server that is gone: a busy machine starts a server in minutes."""
# Seconds that sites have to end by themselves, once the run has ended.
_LEAVING = 10.0
# Seconds that a process has to stop, before it is killed.
_STOPPING = 30.0


def federate(
    recipe: common_options.RecipeName,
    sites: Annotated[
        int | None, typer.Option(min=1, max=MOST_SITES, help="how many sites; default: the recipe's clients")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="a site's data, as for join; once for each site. Default: equal shares of "
            "the recipe's dataset, or its natural groups",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change the recipe, or a key server.… of `serve`"),
    ] = None,
    seed: common_options.Seed = None,
    directory: common_options.OutOption = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="have no live page")] = False,
    device: common_options.Device = "cpu",
    allow: AllowOption = None,
) -> None:
    """Run a server and its sites as processes of this machine.

    The processes have TLS, kits and a live page.

    A recipe with secure aggregation gets its helpers too: here they show how a run goes, and protect nothing.
    Called again with the same --out, it goes on with a federation that was interrupted.
    """
    common_options.check_recipe(recipe)
    from offbeat.recipes.load import load_recipe, own_recipe
    from offbeat.recipes.names import check_names

    of_the_recipe, settings = split_sets(sets, GROUPS)
    loaded = load_recipe(recipe, sets=of_the_recipe, seed=seed)
    # The server would refuse a name or a key as well, but only in its log.
    allowed = allowed_names(allow, [recipe_folder(recipe)], of_the_recipe)
    check_names(own_recipe(loaded, loaded.algorithm), allowed)
    with requires_extra("net"):
        options = make_server_options(loaded, sites, settings.get("server", {}))
    helpers = helpers_of_run(options, loaded)
    shares = _data_of_sites(loaded, sites, data)
    if both := sorted({name for name, _ in shares}.intersection(helpers)):
        raise UsageError(f"{both[0]} is a site here, and the recipe's helper: give the helper another name")
    place = directory or new_directory(recipe)
    federation = _Federation(place, _free_port())
    common = [word for name in allow or () for word in ("--allow", name)]
    parts = _parts_of_shares(loaded, data)
    kept = [change for change in sets or () if not (parts and change.startswith("data.partition"))]
    changes = [word for change in (*kept, *parts) for word in ("--set", change)]
    if seed is not None:
        changes += ["--set", f"seed={seed}"]
    shown = ["--dashboard", f"{HOST}:0"] if not no_page else []
    with repeatable(place), federation.running():
        federation.prepare({*helpers, *(name for name, _ in shares)})
        federation.start(
            SERVER, "serve", recipe, "--state", place / SERVER, "--listen", f"{HOST}:{federation.port}",
            "--sites", len(shares), *shown, *changes, *common,
        )  # fmt: skip
        for name in helpers:
            federation.start(
                f"{HELPER}{name}", "helper", federation.kit(name),
                "--state", place / "helpers" / name, "--set", PATIENCE,
            )  # fmt: skip
        for name, own in shares:
            federation.start(
                name, "join", federation.kit(name), "--data", own,
                "--state", place / "sites" / name, "--device", device, "--set", PATIENCE, *common,
            )  # fmt: skip
        out.print(
            f"server{', helpers ' if helpers else ''}{', '.join(helpers)} and sites "
            f"{', '.join(name for name, _ in shares)}; logs in {place / 'logs'}",
            markup=False,
        )
        federation.wait()


def _data_of_sites(recipe: "Recipe", sites: int | None, data: Sequence[str] | None) -> list[tuple[str, str]]:
    """The name of each site, and its data as the option `--data` of `join` takes them."""
    from offbeat.data import DATASETS, load

    if data:
        if sites is not None and sites != len(data):
            raise UsageError(f"--sites {sites} with {len(data)} times --data: give --data once for each site")
        return [(f"site-{number}", option) for number, option in enumerate(data, 1)]
    dataset = recipe.data.dataset
    if dataset not in DATASETS:
        raise UsageError(
            f"the recipe's data are {dataset or 'not named'}: give each site's data with --data "
            "module:function"
        )
    if recipe.data.partition.kind == "natural":
        groups = load(dataset).group_names
        if sites is not None and sites > len(groups):
            raise UsageError(
                f"--sites {sites}: {dataset} has {len(groups)} natural groups, {', '.join(groups)}"
            )
        return [(_site_name(group), f"{dataset}:{group}") for group in groups[:sites]]
    count = sites or recipe.clients
    return [(f"site-{number}", f"{dataset}:{number}/{count}") for number in range(1, count + 1)]


def _parts_of_shares(recipe: "Recipe", data: Sequence[str] | None) -> list[str]:
    """The change of the recipe that records how its data are divided, whatever its own partition is.

    So `simulate-like` gives its clients parts of the same sizes and mixtures.
    """
    return [] if data or recipe.data.partition.kind == "natural" else ["data.partition={kind: iid}"]


def _site_name(group: str) -> str:
    """A name that a site can have, of a natural group's."""
    return "".join(letter if letter.isalnum() else "-" for letter in group.lower())


def _helps(process: str) -> bool:
    return process.startswith(HELPER)


def _called(process: str) -> str:
    """How messages name a site's or a helper's process."""
    return f"helper {process.removeprefix(HELPER)}" if _helps(process) else f"site {process}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class _Federation:
    """The processes of a federation, and their directory.

    Attributes:
        directory: Has `server`, `sites/NAME`, `helpers/NAME`, `kits` and `logs`.
        port: The server's port.
        command: What runs a command of the command line; `-P`, since a file of the current directory could
            have the name of a module.
    """

    directory: Path
    port: int
    command: Sequence[str] = (sys.executable, "-P", "-m", "offbeat.cli")
    _processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _followers: list[threading.Thread] = field(default_factory=list)
    _ended: "queue.Queue[str]" = field(default_factory=queue.Queue)

    def kit(self, name: str) -> Path:
        """A site's kit."""
        return self.directory / "kits" / f"{name}.kit"

    def log(self, name: str) -> Path:
        """The file with what a process says."""
        return self.directory / "logs" / f"{name}.log"

    def prepare(self, names: Iterable[str]) -> None:
        """Make the server's certificate and the kits of sites and helpers; older kits get the new address."""
        with requires_extra("net"):
            from offbeat.net.auth.ca import OwnAuthority
            from offbeat.net.auth.tokens import make_token

        for folder in (SERVER, "sites", "kits", "logs"):
            make_directory(self.directory / folder, private=True)
        state = self.directory / SERVER
        authority = OwnAuthority(state)
        if not authority.exists:
            authority.issue([HOST, "127.0.0.1"])
        for name in names:
            self.kit(name).unlink(missing_ok=True)
            token = make_token(state / TOKENS, name)
            write_site_kit(self.kit(name), token, 0, state, f"{HOST}:{self.port}")

    def start(self, name: str, *words: object) -> None:
        """Start a process of the command line; what the server prints is shown, all else goes to its log."""
        command = [*self.command, *map(str, words)]
        make_directory(self.log(name).parent, private=True)
        with self.log(name).open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        follower = threading.Thread(target=self._follow, args=(name, process), daemon=True)
        follower.start()
        self._followers.append(follower)

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        """Pass on what a process prints, and say when it has ended."""
        assert process.stdout is not None
        with process.stdout as lines, self.log(name).open("a", encoding="utf-8") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if name == SERVER:
                    out.print(f"{SERVER}: {line.rstrip()}", markup=False, soft_wrap=True)
        process.wait()
        self._ended.put(name)

    def wait(self) -> None:
        """Wait until the server has ended, and shortly for its sites, which have heard of it.

        Raises:
            RunError: The server or a site has failed, or no site is left.
        """
        others = set(self._processes) - {SERVER}
        while (name := self._ended.get()) != SERVER:
            others.discard(name)
            if (code := self._processes[name].returncode) > 0:
                self._fail(f"{_called(name)} has failed (exit code {code})", name)
            if code < 0:
                ending = signal.Signals(-code).name
                out.print(f"{_called(name)} was ended by {ending}; the others go on", markup=False)
                if all(map(_helps, others)):
                    self._fail("no site is left", name)
        if code := self._processes[SERVER].returncode:
            self._fail(f"the server has failed (exit code {code})", SERVER)
        with suppress(queue.Empty):
            for _ in others:
                self._ended.get(timeout=_LEAVING)

    def _fail(self, what: str, name: str) -> NoReturn:
        """Raises `RunError` with the last line of a process's log."""
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        raise RunError(f"{what}{last}; see {self.log(name)}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """End all processes with the context."""
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        """Stop what still runs, the server first: it writes its checkpoint and tells its sites."""
        for name in sorted(self._processes, key=lambda name: name != SERVER):
            process = self._processes[name]
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOPPING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for follower in self._followers:
            follower.join()
