"""Directories that are damaged at random: who reads them is told in one line, or gets what was there."""

import io
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import offbeat as ob
from offbeat import cli
from offbeat.cli import console
from offbeat.experiment import Experiment
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.messages import UpdateSubmission
from offbeat.net.secure.helping import HELPER_FILE
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.service import OpenRun
from offbeat.recipes.build import make_algorithm, make_learner, make_server_learner, run_recipe
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest
from offbeat.sim.run_experiment import simulate_experiment
from tests.damages import damage
from tests.net.replay_player import Play, rows_of
from tests.sampling import thorough
from tests.secure.federation import NAMES, Federation

HELD = "algorithm={name: fedbuff, size: 4, steps: 2}"
STATES = "algorithm={name: feddyn, steps: 2, clients_per_round: 2}"
SIMULATED = ("resume", "replay", "replay --print", "status", "export", "report", "verify")
SERVED = ("serve", "replay", "replay --print", "status", "report", "verify")
SAME, REFUSED, WITHOUT = "the same", "refused", "goes on without an update"
CUT = "SQLite has cut its log"
ABSENT = "a file that need not be there"
ANEW = "a helper with a new key, whom no committee has"
REQUESTS: list[UnmaskRequest] = []
"""What the helper is asked: two releases that it has helped with, a new one, one of tasks of those two."""
pytestmark = pytest.mark.usefixtures("one_thread")


class Answer(NamedTuple):
    """What reading a directory gave: an exit code, what was printed, and what the directory then says."""

    code: int
    out: str
    err: str
    found: Any = None


def recipe_of(algorithm: str) -> Recipe:
    small = ["clients=4", "data.samples=60", "data.test_samples=20", "model.hidden=[4]"]
    short = ["training.batch_size=20", "until={tasks: 40}", "evaluate={versions: 1, keep_best: accuracy}"]
    return load_recipe("digits", sets=[*small, *short, algorithm], scales=())


def make_simulated(place: Path, algorithm: str) -> None:
    """A run that has been killed, one that was interrupted, one that has finished."""
    recipe, trained = recipe_of(algorithm), [0]
    train, directory = ob.TorchLearner.train, place / "interrupted"

    def interrupting(*arguments: Any) -> Any:
        trained[0] += 1
        if trained[0] == 25:
            shutil.copytree(directory, place / "killed")
        if trained[0] == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return train(*arguments)

    defaults = {**simulate_experiment.__kwdefaults__, "checkpoint_seconds": 0.0}  # type: ignore[attr-defined]
    with patch.object(simulate_experiment, "__kwdefaults__", defaults):
        with patch.object(ob.TorchLearner, "train", interrupting), pytest.raises(KeyboardInterrupt):
            run_recipe(recipe, out=directory)
        run_recipe(recipe, out=place / "finished")


def serve(directory: Path) -> OpenRun:
    recipe = recipe_of(HELD)
    experiment = Experiment(
        make_algorithm(recipe.algorithm), make_server_learner(recipe), until=recipe.until,
        evaluate=ob.Every(), recipe=document_of(recipe),
    )  # fmt: skip
    opened = open_run(experiment, directory, ServerOptions(clients=4, lease=1e12), 1e9)
    assert isinstance(opened, OpenRun)
    return opened


def make_served(place: Path) -> None:
    """The state directory of a server that has been killed: updates in the database, and in the file."""
    recipe = recipe_of(HELD)
    run = run_recipe(recipe, out=None)
    opened = serve(place / "live")
    play = Play(make_algorithm(recipe.algorithm), make_learner(recipe), opened.coordinator)
    arrived = 0
    for row in (row for row in rows_of(run) if row.kind == "event"):
        outcome = play.event(row)
        arrived += len(outcome.updates)
        with patch("offbeat.net.server.durable_store.SMALL", 0 if arrived % 2 else 2**18):
            opened.store.commit(outcome)
        play.deliver(outcome)
        if outcome.updates and arrived == 14:
            opened.store.checkpoint(opened.coordinator)
        if arrived == 23:
            break
    shutil.copytree(place / "live", place / "served")
    opened.store.close()
    shutil.rmtree(place / "live")


def make_site(place: Path) -> None:
    """A site with state, and an update that is not acknowledged."""
    store = SiteStore(place / "site")
    store.begin("a run")
    for task in (3, 7):
        update = UpdateSubmission(task, 5, torch.randn(300), torch.arange(3), {"loss": 0.5}, 0.1)
        store.save(PendingUpdate(update, {"h": torch.randn(300)}))
        if task == 3:
            store.acknowledge(task, accepted=True)
    store.close()


def make_helper(place: Path) -> None:
    """A helper that was killed in the middle of writing a release, after two others."""
    (place / "live").mkdir()
    federation, rng = Federation(place / "live"), np.random.default_rng(1)
    for _ in range(3):
        federation.fill(4, rng)
    entries = list(federation.entries)
    requests = []
    for number in range(3):
        federation.entries = entries[4 * number : 4 * number + 4]
        requests.append(federation.request(0, release=number))
    federation.entries = entries[2:6]
    REQUESTS[:] = [*requests, federation.request(0, release=3)]
    for request in requests[:2]:
        federation.helpers[0].answer(request)
    database = federation.helpers[0]._file._database
    database.execute("PRAGMA cache_size = 1")  # so that the transaction reaches the file before its end

    def copy(statement: str) -> None:
        if statement == "COMMIT":
            (place / "helper").mkdir()
            for name in ("helper.db", "helper.db-journal"):
                shutil.copyfile(
                    federation.path(0).with_name(name.replace("helper", NAMES[0])), place / "helper" / name
                )

    database.set_trace_callback(copy)
    federation.helpers[0].answer(requests[2])
    for number in range(federation.count):
        federation.close(number)


# ---- what reads a directory ----


def command(name: str, directory: Path) -> Answer:
    """A command of the command line in this process, with what it leaves."""
    words = {
        "export": ["-o", directory.parent / "model.safetensors"],
        "report": ["-o", directory.parent / "r.html"],
    }
    out, err = io.StringIO(), io.StringIO()
    arguments = ["offbeat", *name.split(), str(directory), *map(str, words.get(name, []))]
    said = redirect_stdout(out), redirect_stderr(err)
    with patch.object(sys, "argv", arguments), said[0], said[1], pytest.raises(SystemExit) as end:
        cli.main()
    code = end.value.code
    assert isinstance(code, int)
    found: Any = None
    if code == 0 and name == "resume" and "has finished already" not in out.getvalue():
        found = contents(directory)
    elif code == 0 and name == "report":
        found = (directory.parent / "r.html").read_bytes()
    elif code == 0 and name == "export":
        found = {k: t.tolist() for k, t in load_file(directory.parent / "model.safetensors").items()}
    told = re.sub(r"^(problems \d+);.*", r"\1", out.getvalue(), flags=re.M)  # not how much verify has read
    return Answer(code, told, err.getvalue(), found)


def contents(directory: Path) -> Any:
    """What a finished run's directory says, read without Offbeat."""
    with closing(sqlite3.connect(directory / "run.db")) as database:
        tables = [database.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
                  for name in ("journal", "metrics")]  # fmt: skip
    files = sorted(directory.rglob("*.safetensors"))
    return tables, [(f.name, {k: t.tolist() for k, t in sorted(load_file(f).items())}) for f in files]


def serving(_: str, directory: Path) -> Answer:
    """What `offbeat serve` does with a directory before it listens."""
    try:
        opened = serve(directory)
    except ob.RunError as error:
        return Answer(1, "", f"{error}\n")
    coordinator = opened.coordinator
    opened.store.close()
    found = (coordinator.tensors.model.digest(), coordinator.tensors.version, coordinator.driver.engine.rows,
             sorted(coordinator.server.held), sorted(coordinator.registry.sites))  # fmt: skip
    return Answer(0, "", "x" * coordinator.rejected["damaged"], found)


def joining(_: str, directory: Path) -> Answer:
    """What `offbeat join` does with its directory before it connects."""
    try:
        store = SiteStore(directory)
    except ob.RunError as error:
        return Answer(1, "", f"{error}\n")
    store.close()
    pending = store.pending
    found = (store.run, {k: t.tolist() for k, t in store.state.items()})
    without = (directory / "update.damaged").exists()
    told = (
        ()
        if pending is None
        else (pending.update.task, pending.update.delta.tolist(), pending.update.metrics)
    )
    return Answer(0, str(told), "x" * without, found)


def helping(_: str, directory: Path) -> Answer:
    """What `offbeat helper` does with its file: it opens it, and answers what it is asked."""
    try:
        with HelperFile(directory / HELPER_FILE) as file:
            helper = Helper(NAMES[0], file)
            answers = [helper.answer(request) for request in REQUESTS]
    except ob.RunError as error:
        return Answer(1, "", f"{error}\n")
    found = [
        own.reason if isinstance(own, UnmaskRefused) else (own.manifest, own.instance, own.total.tolist())
        for own in answers
    ]
    return Answer(0, "", "", found)


READERS: dict[str, Callable[[str, Path], Answer]] = {"serve": serving, "join": joining, "help": helping}
DIRECTORIES = {
    "interrupted": SIMULATED, "killed": SIMULATED, "finished": SIMULATED, "served": SERVED,
    "site": ("join", "verify"), "helper": ("help",),
}  # fmt: skip


class Worlds:
    """Directories by name, and what reading each of them gives when it is whole."""

    def __init__(self, place: Path) -> None:
        self._place, self._known = place, dict[tuple[str, str], Answer]()
        for name, algorithm in (("held", HELD), ("states", STATES)):
            make_simulated(place / name, algorithm)
        make_served(place / "held")
        make_site(place / "held")
        make_helper(place / "held")

    def fresh(self, name: str) -> Path:
        """A copy of a directory, always in the same place."""
        directory = self._place / "work" / "run"
        shutil.rmtree(directory.parent, ignore_errors=True)
        directory.parent.mkdir()
        shutil.copytree(self._place / name, directory)
        return directory

    def read(self, reader: str, directory: Path) -> Answer:
        return READERS.get(reader, command)(reader, directory)

    def whole(self, name: str, reader: str) -> Answer:
        """What a reader gives of the whole directory."""
        if (name, reader) not in self._known:
            self._known[name, reader] = self.read(reader, self.fresh(name))
        return self._known[name, reader]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("worlds"))


def left(directory: Path, but: str) -> Any:
    """All files but one, and what is in the database: SQLite may put its log away."""
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != but and not path.name.startswith(("run.db", "lock", HELPER_FILE))
    }
    if but.startswith("run.db") or not (directory / "run.db").is_file():
        return files
    with closing(sqlite3.connect(f"file:{directory / 'run.db'}?mode=ro", uri=True)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        kept = [name for name in names if name not in ("sessions", "checksums", "meta")]  # has the status
        return files, {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in kept}


def outcome(answer: Answer, whole: Answer, target: str, how: str) -> str:
    """What reading a damaged directory has come to; raises where it must not come to that."""
    if answer.code == 0 and answer.err and whole.err != answer.err and set(answer.err) == {"x"}:
        return WITHOUT
    if answer.code == whole.code and answer.found == whole.found and answer.out == whole.out:
        return SAME
    if target in ("run.db-wal", "run.db-shm") and answer.code == 0:
        return CUT
    if target in ("best.safetensors", "update.safetensors") and how == "deleted" and answer.code == 0:
        return ABSENT
    if target == HELPER_FILE and answer.code == 0 and (how in ("deleted", "cut at 0") or "empty" in how):
        assert all("another committee" in own for own in answer.found)
        return ANEW
    assert answer.code in (1, 2), "another result, without a word"
    lines = answer.err.splitlines() or answer.out.splitlines()  # verify prints what it has found
    assert answer.err.count("\n") <= 1, answer.err
    assert "lost: " in lines[0] or "cannot be" in lines[0] or "is not a run" in lines[0], lines[0]
    return REFUSED


def come_to(worlds: Worlds, name: str, reader: str, rng: random.Random) -> tuple[str, str]:
    """What reading a directory comes to once it is damaged, and a line that tells of it."""
    whole, directory = worlds.whole(name, reader), worlds.fresh(name)
    target, how = damage(directory, rng)
    told = f"{reader} of {name}, {target} {how}"
    try:
        before = left(directory, target)
        answer = worlds.read(reader, directory)
        came = outcome(answer, whole, target, how)
        if came == REFUSED and not (reader == "resume" and target.startswith("client-")):  # read when needed
            assert left(directory, target) == before, "something else has changed"
    except BaseException as error:
        raise AssertionError(f"{told}: {type(error).__name__}: {error}") from error
    return came, f"{told}: {answer.err or answer.out}" if came == REFUSED else told


@pytest.mark.parametrize(("seed", "count"), [(0, 40), *thorough(*((seed, 100) for seed in range(1, 7)))])
def test_damage_is_told_and_nothing_else_is_lost(
    seed: int, count: int, worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each damage is read by one reader, or, if thorough, by all; what passes `verify` is as it was."""
    monkeypatch.setattr(console.out, "width", 160)
    rng, counts = random.Random(seed), Counter[str]()
    for _ in range(count):
        kind = rng.choice(list(DIRECTORIES))
        name = (
            f"held/{kind}"
            if kind in ("served", "site", "helper")
            else f"{rng.choice(('held', 'states'))}/{kind}"
        )
        own, readers = rng.getrandbits(64), DIRECTORIES[kind]
        came = {}
        for reader in readers if seed else [rng.choice(readers)]:
            came[reader], told = come_to(worlds, name, reader, random.Random(own))
            print(f"{came[reader]}: {told}")  # noqa: T201
            counts[f"{kind}: {came[reader]}"] += 1
        if came.get("verify") == SAME:
            assert set(came.values()) <= {SAME, CUT, ABSENT}, told
    print(f"{count} damages:", dict(sorted(counts.items())))  # noqa: T201
