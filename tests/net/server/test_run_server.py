"""A server entered as a context, in an event loop or a thread: how it begins, is left, goes on and ends."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

import offbeat as ob
import offbeat.net.server.serve as serving
from offbeat.core.errors import RunError
from offbeat.models import LogisticSpec
from offbeat.net import RunServer, ServerCredentials, ServerOptions, in_thread, join, serve, server_learner
from offbeat.runs import journal_archive
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from offbeat.testing.network import MemoryNetwork
from tests.ended import ended_files
from tests.net.support import torch_left_alone

pytestmark = pytest.mark.usefixtures("at_once")
SOURCE = ob.load("digits", samples=60, test_samples=20)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> object:
    """Servers wait for nobody at the end; PyTorch is as it was."""
    monkeypatch.setitem(serve.__kwdefaults__, "linger", 0.1)  # type: ignore[attr-defined]
    with torch_left_alone():
        yield


def experiment(versions: int = 3, **options: object) -> ob.Experiment:
    learner = server_learner(LogisticSpec(), test=SOURCE.test)
    return ob.Experiment(ob.fedasync(steps=2), learner, until=ob.Until(versions=versions), **options)


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    async def run() -> tuple[str | None, str]:
        async with serve(experiment(), tmp_path, "127.0.0.1:0") as server:
            assert server.port > 0
            site = await join(f"127.0.0.1:{server.port}", SOURCE.train, name="north")
            return await server.ended(), site

    assert asyncio.run(run()) == ("reached 3 versions",) * 2
    record = ob.read_run(tmp_path)
    assert (record.status, record.site_names()) == ("finished", {0: "north"})
    assert len(record.evaluations()) == 4  # each version, where nothing else is said
    assert record.entry("sample") == ["float32", [1, 8, 8]]


def test_a_block_that_ends_leaves_the_run_which_goes_on(tmp_path: Path) -> None:
    async def part() -> str | None:
        network = MemoryNetwork()
        async with serve(experiment(1000), tmp_path, network.listen) as server:
            site = asyncio.create_task(join(network.connect("north"), SOURCE.train))
            while server.service.snapshot().version < 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        site.cancel()
        await asyncio.gather(site, return_exceptions=True)
        return await server.ended()

    assert asyncio.run(part()) is None
    first = ob.read_run(tmp_path)
    assert first.status == "interrupted"
    assert first.length > 0

    async def rest() -> str | None:
        async with serve(experiment(1000), tmp_path, MemoryNetwork().listen) as server:
            server.finish("enough")
            return await server.ended()

    assert asyncio.run(rest()) == "enough"
    assert list(ob.read_run(tmp_path).rows())[: first.length] == list(first.rows())

    async def again() -> str | None:
        network = MemoryNetwork()
        async with serve(experiment(1000), tmp_path, network.listen) as server:
            assert await join(network.connect("late"), SOURCE.train) == "enough"
            server.leave()
            return await server.ended()

    assert asyncio.run(again()) == "enough"


def to_its_end(
    versions: int,
    directory: Path,
    state: Path | None = None,
    served: ServerOptions | None = None,
    **options: object,
) -> str | None:
    """Serve a run to one site until the run ends."""
    run = experiment(versions, **options)
    with serve(run, directory, "127.0.0.1:0", options=served, linger=120) as server:
        site = join(f"127.0.0.1:{server.port}", SOURCE.train, name="north", state=state)
        reason = in_thread(site).result(120)
        server.leave()  # the one site knows of the end
        assert server.wait(120) == reason
        return reason


def test_old_rows_are_archived_at_the_start_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_archive, "ROWS", 4)
    caplog.set_level("INFO")
    recipe = {"until": {"versions": 6}}
    for versions, options in ((6, ServerOptions()), (6, ServerOptions(archive=1e-9))):
        assert to_its_end(versions, tmp_path, served=options, recipe=recipe) == "reached 6 versions"
    assert "archived" in caplog.text, "a run that has ended is archived when it is served again"
    rows = list(ob.read_run(tmp_path).rows())
    caplog.clear()
    assert to_its_end(12, tmp_path, served=ServerOptions(archive=1e-9)) == "reached 12 versions"
    assert "archived" in caplog.text
    record = ob.read_run(tmp_path)
    assert list(record.rows())[: len(rows)] == rows
    assert next(record.select("SELECT count(*) FROM journal"))[0] <= 2 * 4
    assert not verify(tmp_path).problems


def test_rows_that_cannot_be_archived_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise RunError("cannot write run.db: disk is full")

    monkeypatch.setattr(serving, "archive", full)
    assert to_its_end(3, tmp_path, served=ServerOptions(archive=1.0)) == "reached 3 versions"
    assert "are not archived: cannot write run.db: disk is full" in caplog.text


def test_a_run_that_has_ended_goes_on_under_other_limits(tmp_path: Path) -> None:
    run, site = tmp_path / "run", tmp_path / "site"
    recipe = {"until": {"versions": 3}}
    assert to_its_end(3, run, site, recipe=recipe) == "reached 3 versions"
    first = ob.read_run(run)
    for versions in (2, 3):  # it has gone further, or as far
        assert to_its_end(versions, run) == "reached 3 versions"
    assert ob.read_run(run).meta == first.meta
    rows = list(first.rows())
    assert to_its_end(6, run, site) == "reached 6 versions"  # the site has its state of before
    second = ob.read_run(run)
    assert (second.summary.versions, second.recipe) == (6, {"until": second.meta["until"]})  # type: ignore[union-attr]
    assert to_its_end(9, run) == "reached 9 versions"  # and one without
    last = ob.read_run(run)
    assert list(last.rows())[: len(rows)] == rows
    assert {metric.version for metric in last.evaluations()} >= {0, 3, 9}
    assert replay(last, ob.fedasync(steps=2)).difference is None
    assert not verify(run).problems
    assert {path.name for path in run.glob("*.safetensors")} == ended_files(run)


def test_one_that_was_stopped_goes_on(tmp_path: Path) -> None:
    async def stopped() -> str | None:
        async with serve(experiment(1000), tmp_path, MemoryNetwork().listen) as server:
            server.finish("enough")
            return await server.ended()

    assert asyncio.run(stopped()) == "enough"
    assert to_its_end(2, tmp_path) == "reached 2 versions"


def test_a_run_that_kept_no_checkpoint_does_not_go_on(tmp_path: Path) -> None:
    to_its_end(3, tmp_path)
    with sqlite3.connect(tmp_path / "run.db") as database:
        database.execute("DELETE FROM checkpoints")
        database.execute("DELETE FROM checksums WHERE part = 'checkpoints'")
    database.close()
    says = r"has ended \(reached 3 versions\) and cannot go on: .*--set initial="
    with pytest.raises(ob.UsageError, match=says):
        asyncio.run(enter(serve(experiment(9), tmp_path, MemoryNetwork().listen)))
    assert to_its_end(3, tmp_path) == "reached 3 versions"


def test_an_error_of_the_block_is_raised_and_the_run_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with serve(experiment(), tmp_path, MemoryNetwork().listen):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(run())
    assert ob.read_run(tmp_path).status == "interrupted"


def test_without_an_event_loop(tmp_path: Path) -> None:
    with serve(experiment(), tmp_path / "run", "127.0.0.1:0") as server:
        site = in_thread(join(f"127.0.0.1:{server.port}", SOURCE.train, name="north"))
        assert site.result(120) == "reached 3 versions"
        assert server.wait(120) == "reached 3 versions"
    with serve(experiment(1000), tmp_path / "left", "127.0.0.1:0") as server:
        assert server.port > 0
    assert server.wait() is None
    with pytest.raises(LookupError), serve(experiment(), tmp_path / "error", "127.0.0.1:0"):
        raise LookupError
    assert ob.read_run(tmp_path / "error").status == "interrupted"


def test_what_cannot_be_served_is_raised_where_it_is_entered(tmp_path: Path) -> None:
    without = ob.Experiment(ob.fedasync(steps=2), until=ob.Until(versions=3))
    with pytest.raises(ob.UsageError, match=r"a server needs a learner .* the experiment has none"):
        asyncio.run(enter(serve(without, tmp_path, MemoryNetwork().listen)))
    with (
        pytest.raises(ob.UsageError, match="a server needs a learner"),
        serve(without, tmp_path, MemoryNetwork().listen),
    ):
        pass
    with serve(experiment(), tmp_path / "run", "127.0.0.1:0") as first:
        taken = serve(experiment(), tmp_path / "other", f"127.0.0.1:{first.port}")
        with pytest.raises(ob.UsageError, match="Address already in use"):
            asyncio.run(enter(taken))
        with pytest.raises(ob.UsageError, match="another process is writing this run"):
            asyncio.run(enter(serve(experiment(), tmp_path / "run", "127.0.0.1:0")))
    asyncio.run(enter(serve(experiment(), tmp_path / "other", "127.0.0.1:0")))  # it was let go


async def enter(server: RunServer) -> None:
    async with server:
        pass


def test_what_is_asked_before_it_is_there(tmp_path: Path) -> None:
    server = serve(experiment(), tmp_path, "127.0.0.1:0", options=ServerOptions(clients=2))
    assert server.port == 0
    server.leave()
    server.finish()
    with pytest.raises(ob.UsageError, match="enter it first, with async with"):
        asyncio.run(server.ended())
    with pytest.raises(ob.UsageError, match=r"await server\.ended\(\)"):
        server.wait()
    with pytest.raises(ob.UsageError, match="credentials and limits are for an address"):
        serve(experiment(), tmp_path, MemoryNetwork().listen, credentials=ServerCredentials())
