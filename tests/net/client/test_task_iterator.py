"""Sites whose training loop is the user's, in the thread that iterates over tasks, on real connections."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread, Timer
from threading import enumerate as threads
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.model import Tensors
from offbeat.net import join
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.client.join import make_context
from offbeat.net.client.site import Site
from offbeat.net.client.task import TaskCancelledError, TrainingContext, TrainingTask
from offbeat.net.grpc.server import listen
from offbeat.net.messages import TaskAssignment
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.service import Service
from offbeat.net.transport import OnChannel
from offbeat.runs.files import read_tensors
from offbeat.sim.replay import replay
from offbeat.testing.journal import check_journal
from offbeat.testing.network import MemoryNetwork
from tests.conformance.settings import OPTIONS
from tests.net.support import (
    LIMITS,
    Shares,
    run_spec,
    serve,
    shares_of_digits,
    terms_of,
)
from tests.sampling import thorough

SITES, BATCH, LR = 3, 20, 0.2
Loop = Callable[[Iterator[ob.ClientTask], int], None]


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(autouse=True)
def no_thread_left(here: None) -> Iterator[None]:
    """The thread of the network has ended with its test."""
    yield
    assert not [thread for thread in threads() if thread.name == "offbeat-network"]


@pytest.fixture(scope="module")
def digits() -> Shares:
    return shares_of_digits(SITES, samples=300, test_samples=100)


@contextmanager
def served(
    algorithm: ob.Algorithm,
    directory: Path,
    model: Any,
    *,
    test: Any = None,
    sites: int = SITES,
    tasks: int = 24,
    **given: Any,
) -> Iterator[str]:
    """A server in a thread of its own, at an address of this machine; at the end its run has ended.

    `given` are further options of the server.
    """
    address: SimpleQueue[str] = SimpleQueue()
    ended: SimpleQueue[Any] = SimpleQueue()
    services: list[Service] = []

    async def open_port(on_channel: OnChannel) -> Any:
        listener = await listen("127.0.0.1:0", ServerCredentials(), LIMITS, on_channel)
        address.put(f"127.0.0.1:{listener.port}")
        return listener

    options = terms_of(
        clients=sites, lease=20.0, until=ob.Until(tasks=tasks),
        **{"evaluate": ob.Every(versions=1), **given},
    )  # fmt: skip

    def run() -> None:
        training = None if isinstance(model, ob.LoopLearner) else ob.Training(batch_size=BATCH)
        ended.put(
            asyncio.run(
                serve(
                    algorithm, model, training, directory, open_port,
                    options=options, seed=3, test=test, started=services.append, linger=0.2,
                )
            )
        )  # fmt: skip

    thread = Thread(target=run)
    thread.start()
    try:
        yield address.get(timeout=300)
    except BaseException:
        services[0].detach()
        raise
    finally:
        thread.join(300)
    assert ended.get(timeout=1) == f"reached {tasks} client tasks"


def train(task: ob.ClientTask, data: ob.Dataset) -> None:
    """One task, in plain PyTorch."""
    module = task.load_into(net())
    optimizer = torch.optim.SGD(module.parameters(), LR)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(data.x[rows]), data.y[rows])

    for rows in task.steps(task.batches(), loss=loss):
        optimizer.zero_grad()
        task.penalized(loss(rows)).backward()
        task.correct_gradients()
        optimizer.step()
    task.submit(module.state_dict(), samples=len(data), lr=LR * task.lr_factor)


def take_part(loops: list[Callable[[], None]]) -> None:
    """Each loop in a thread; their errors are raised here."""
    failed: SimpleQueue[BaseException] = SimpleQueue()

    def run(loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            failed.put(error)

    running = [Thread(target=run, args=(loop,)) for loop in loops]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(300)
    if not failed.empty():
        raise failed.get()


@pytest.mark.parametrize(
    "algorithm",
    [
        ob.fedcompass(q_min=2, q_max=8),
        ob.scaffold(steps=3),
        *thorough(
            ob.fedasmu(epochs=2, size=2, period=0.05, threshold=3), ob.port(epochs=3, size=2, tau_max=1)
        ),
    ],
    ids=lambda a: a.name,
)
def test_a_federation_of_own_loops_learns_and_its_journal_replays(
    algorithm: ob.Algorithm, digits: Shares, tmp_path: Path
) -> None:
    shares, test = digits
    steps: dict[int, int] = {}

    def loop(site: int) -> None:
        for task in ob.client(address, len(shares[site]), name=f"site-{site}", batch_size=BATCH):
            train(task, shares[site])
            steps[task.number] = task.done

    with served(algorithm, tmp_path / "run", net, test=test) as address:
        take_part([lambda site=site: loop(site) for site in range(SITES)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert replay(record, algorithm).difference is None
    rows = [row for row in record.rows() if row.name == "arrived"]
    assert {row.task: row.steps for row in rows} == {row.task: steps[row.task] for row in rows}
    first, last = record.evaluations()[0], record.evaluations()[-1]
    assert first.accuracy is not None
    assert last.accuracy is not None
    assert last.accuracy > first.accuracy + 0.2


def test_a_fresh_model_is_merged_by_a_loop_that_trains(digits: Shares, tmp_path: Path) -> None:
    """The first site does its steps once another has been given a newer model than its own."""
    shares, _ = digits
    newer = Event()
    algorithm = ob.fedasmu(epochs=2, size=2, period=0.05)

    def loop(site: int) -> None:
        for task in ob.client(address, len(shares[site]), name=f"site-{site}", batch_size=BATCH):
            if site == 0 and task.version == 0:
                assert newer.wait(300)
            elif task.version > 0:
                newer.set()
            train(task, shares[site])

    with served(algorithm, tmp_path / "run", net, sites=2, tasks=6) as address:
        take_part([lambda site=site: loop(site) for site in range(2)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert replay(record, algorithm).difference is None
    (site,) = (client for client, name in record.site_names().items() if name == "site-0")
    first = next(row for row in record.rows() if row.name == "arrived" and row.client == site)
    assert first.data.keys() >= {"beta", "reward"}


def test_a_loop_evaluates_what_its_site_holds_out(digits: Shares, tmp_path: Path) -> None:
    shares, _ = digits

    def loop(site: int) -> None:
        data = shares[site]

        def evaluate(state: Tensors) -> dict[str, float]:
            module = net()
            module.load_state_dict(state)
            return {"hits": float((module(data.x[:10]).argmax(1) == data.y[:10]).float().mean())}

        held_out = 5 * site
        for task in ob.client(
            address, len(data), name=f"site-{site}", batch_size=BATCH,
            held_out=held_out, evaluate=evaluate if held_out else None,
        ):  # fmt: skip
            train(task, data)

    given = {"evaluate": ob.Every(versions=2, at="clients")}
    with served(ob.fedavg(steps=5), tmp_path / "run", net, tasks=12, **given) as address:
        take_part([lambda site=site: loop(site) for site in range(SITES)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert [row["version"] for row in record.metrics] == [0, 2, 4]
    names = record.site_names()
    told = {(names[row["client"]], row["samples"]) for row in record.client_metrics()}
    assert told == {("site-1", 5), ("site-2", 10)}
    assert record.metrics[-1]["clients.hits"] > record.metrics[0]["clients.hits"]
    with pytest.raises(ob.UsageError, match="held_out and evaluate belong together"):
        next(ob.client(address, 10, name="site", held_out=3))


def test_a_recalled_loop_reports_at_the_end_of_its_epoch(
    digits: Shares, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first site stays in its first step until the server has recalled it."""
    shares, _ = digits
    recalled, recall = Event(), TrainingTask.recall

    def heard(task: TrainingTask) -> None:
        recall(task)
        recalled.set()

    monkeypatch.setattr(TrainingTask, "recall", heard)
    algorithm = ob.port(epochs=3, size=1, tau_max=1, urgent=True)
    ended: dict[int, tuple[int, int, bool]] = {}

    def loop(site: int) -> None:
        for task in ob.client(address, len(shares[site]), name=f"site-{site}", batch_size=BATCH):
            module = task.load_into(net())
            for _ in task.steps():
                if site == 0 and task.version == 0:
                    assert recalled.wait(300)
            task.submit(module.state_dict())
            ended[task.number] = task.assigned, task.done, task.recalled

    with served(algorithm, tmp_path / "run", net, sites=2, tasks=6) as address:
        take_part([lambda site=site: loop(site) for site in range(2)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert replay(record, algorithm).difference is None
    task = next(row.task for row in record.rows() if row.name == "recall")
    epoch = -(-len(shares[0]) // BATCH)
    assert ended[task] == (3 * epoch, epoch, True)
    assert [row.steps for row in record.rows() if row.name == "arrived" and row.task == task] == [epoch]


def test_a_site_is_free_within_one_step_of_a_stopped_task(
    digits: Shares, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first site stays in the first step of its task until the server has stopped that."""
    shares, _ = digits
    stopped, cancel = Event(), TrainingTask.cancel

    def heard(task: TrainingTask) -> None:
        cancel(task)
        stopped.set()

    monkeypatch.setattr(TrainingTask, "cancel", heard)
    algorithm = ob.ringmaster(threshold=1, steps=50)
    ended: list[tuple[int, int, bool]] = []

    def loop(site: int) -> None:
        for task in ob.client(address, len(shares[site]), name=f"site-{site}", batch_size=BATCH):
            module = task.load_into(net())
            for _ in task.steps():
                if site == 0 and task.version == 0:
                    assert stopped.wait(300)
            task.submit(module.state_dict())
            if site == 0:
                ended.append((task.number, task.done, task.cancelled))

    with served(algorithm, tmp_path / "run", net, sites=2, tasks=6) as address:
        take_part([lambda site=site: loop(site) for site in range(2)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert replay(record, algorithm).difference is None
    check_journal(list(record.rows()))
    rows = [row for row in record.rows() if row.name == "discard"]
    assert rows
    number, done, cancelled = ended[0]
    assert (number, cancelled) == (rows[0].task, True)
    assert done <= 1
    assert record.meta["summary"]["bytes_down"] > record.meta["summary"]["bytes_up"]


def context_of(algorithm: ob.Algorithm, learner: Any) -> TrainingContext:
    spec = run_spec(algorithm, server_learner(net, ob.Training(batch_size=BATCH)), 3)
    return make_context(Site.of(learner=learner))(spec.document(), 0)


@pytest.mark.parametrize("name", [name for name in ob.ALGORITHMS if name != "wireless"])
def test_a_recalled_task_has_the_bits_of_the_built_in_learner(name: str, digits: Shares) -> None:
    (data, *_), _ = digits
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    training = ob.Training(lr=LR, batch_size=BATCH)
    built_in = ob.TorchLearner(net, ob.federate(data, None, [np.arange(len(data))]), training)
    own = ob.LoopLearner(partial(train, data=data), net, len(data), batch_size=BATCH)
    base = built_in.initial(3).sharing(algorithm.objective.shared_vectors)
    updates = []
    for learner in (built_in, own):
        task = TrainingTask(TaskAssignment(7, 0, 12, 3, base), context_of(algorithm, learner), lambda _: None)
        task.recall()
        updates.append(task.run({}))
    expected, found = updates
    assert expected.update.steps == found.update.steps == 5  # the end of the epoch
    assert torch.equal(expected.update.delta, found.update.delta)  # type: ignore[arg-type]
    assert (expected.update.metrics, expected.update.lr) == (found.update.metrics, found.update.lr)
    assert expected.state.keys() == found.state.keys()
    assert all(torch.equal(tensor, found.state[name]) for name, tensor in expected.state.items())


def test_a_task_that_the_server_cancels_ends_its_steps(digits: Shares) -> None:
    seen: list[tuple[int, bool]] = []

    def loop(handle: ob.ClientTask) -> None:
        for step in handle.steps():
            if step == 3:
                task.cancel()
        seen.append((handle.done, handle.cancelled))
        handle.submit()  # nobody wants it

    learner = ob.LoopLearner(loop, net, 100, batch_size=BATCH)
    assignment = TaskAssignment(7, 0, 12, 3, learner.initial(3))
    task = TrainingTask(assignment, context_of(ob.fedbuff(steps=12), learner), lambda _: None)
    with pytest.raises(TaskCancelledError):
        task.run({})
    assert seen == [(4, True)]


def test_numpy_arrays_are_served_and_trained_without_a_module(digits: Shares, tmp_path: Path) -> None:
    shares, test = digits
    initial = {"coef": np.zeros((64, 10)), "bias": np.zeros(10)}

    def evaluate(model: ob.Model) -> dict[str, float]:
        arrays = model.arrays()
        scores = test.x.numpy().reshape(-1, 64) @ arrays["coef"] + arrays["bias"]
        return {"accuracy": float((scores.argmax(1) == test.y.numpy()).mean())}

    def loop(site: int) -> None:
        x, y = shares[site].x.numpy().reshape(-1, 64), np.eye(10)[shares[site].y.numpy()]
        for task in ob.client(address, len(x), name=f"site-{site}", batch_size=BATCH, initial=initial):
            arrays = task.arrays()
            for rows in task.steps(task.batches()):
                scores = np.exp(x[rows.numpy()] @ arrays["coef"] + arrays["bias"])
                error = scores / scores.sum(1, keepdims=True) - y[rows.numpy()]
                arrays["coef"] = arrays["coef"] - LR * x[rows.numpy()].T @ error / len(error)
                arrays["bias"] = arrays["bias"] - LR * error.mean(0)
            task.submit(arrays, samples=len(x))

    server = ob.LoopLearner(lambda task: None, initial, 1, batch_size=BATCH, evaluate=evaluate)
    algorithm = ob.fedbuff(steps=5, size=2)
    with served(algorithm, tmp_path / "run", server) as address:
        take_part([lambda site=site: loop(site) for site in range(SITES)])  # type: ignore[misc]
    record = ob.read_run(tmp_path / "run")
    assert replay(record, algorithm).difference is None
    assert (record.evaluations()[-1].accuracy or 0) > 0.5


def test_a_task_without_an_update_has_failed_and_the_next_comes(
    digits: Shares, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the site; at the end the loop is given the final model."""
    caplog.set_level(logging.INFO)
    (data, *_), test = digits
    algorithm, seen = ob.fedasync(steps=2), []
    kept: list[dict[str, torch.Tensor]] = []
    with served(
        algorithm, tmp_path / "run", net, test=test, sites=1, tasks=4, share_model="final"
    ) as address:
        site = ob.client(address, len(data), name="site", batch_size=BATCH, keep_model=kept.append)
        for task in site:
            seen.append(task.number)
            if len(seen) != 2:
                train(task, data)
    rows = list(ob.read_run(tmp_path / "run").rows())
    assert [row.task for row in rows if row.name == "lost"] == [seen[1]]
    assert len([row for row in rows if row.name == "arrived"]) == 4
    said = [record for record in caplog.records if "without an update" in record.message]
    assert [record.exc_info for record in said] == [False]
    assert "\n" not in said[0].message
    lines = [record.__dict__ for record in caplog.records if record.name.endswith(".service")]
    told = {(line["message"], line.get("site")) for line in lines}
    assert told == {("joined", "site"), ("begin", None), ("lost", "site")}
    (model,), written = kept, read_tensors(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], tensor) for name, tensor in written.items())


def test_an_error_of_a_loop_given_as_a_function_fails_its_task(digits: Shares, tmp_path: Path) -> None:
    """`join` with a learner, over links in memory."""
    (data, *_), test = digits
    seen: list[int] = []

    def own(task: ob.ClientTask) -> None:
        seen.append(task.number)
        if len(seen) == 1:
            raise ValueError("the disk\nis full")
        train(task, data)

    async def both() -> set[str | None]:
        network = MemoryNetwork()
        learner = ob.LoopLearner(own, net, len(data), batch_size=BATCH)
        options = terms_of(clients=1, lease=20.0, until=ob.Until(tasks=3))
        server = serve(
            ob.fedasync(steps=2), net, ob.Training(batch_size=BATCH), tmp_path, network.listen,
            options=options, test=test, linger=0.2,
        )  # fmt: skip
        return set(await asyncio.gather(server, join(network.connect("site"), learner=learner)))

    assert asyncio.run(both()) == {"reached 3 client tasks"}
    lost = [row for row in ob.read_run(tmp_path).rows() if row.name == "lost"]
    assert [(row.task, row.data["reason"]) for row in lost] == [(seen[0], "ValueError: the disk is full")]


@pytest.mark.parametrize("how", ["break", "error", "interrupt"])
def test_a_loop_that_is_left_leaves_the_run(how: str, digits: Shares, tmp_path: Path) -> None:
    """The site's connection has ended when the loop has; another process goes on in its place."""
    (data, *_), _ = digits

    def tasks() -> Iterator[ob.ClientTask]:
        state = tmp_path / "site"
        return ob.client(address, len(data), name="site", batch_size=BATCH, state=state)

    def leave() -> None:
        for task in tasks():
            train(task, data)
            if how == "error":
                raise KeyError("mine")
            if how == "interrupt":
                signal.raise_signal(signal.SIGINT)
            break

    with served(ob.fedasync(steps=2), tmp_path / "run", net, sites=1, tasks=4) as address:
        if how == "break":
            leave()
        else:
            with pytest.raises(KeyError if how == "error" else KeyboardInterrupt):
                leave()
        for task in tasks():
            train(task, data)
    assert replay(ob.read_run(tmp_path / "run"), ob.fedasync(steps=2)).difference is None


@pytest.mark.thorough
def test_ctrl_c_ends_a_loop_that_waits_for_a_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    timer = Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))

    def wait() -> None:
        with served(ob.fedasync(), tmp_path / "run", net, sites=2) as address:
            timer.start()
            list(ob.client(address, 10, name="site"))  # the run waits for a second site

    with pytest.raises(KeyboardInterrupt):
        wait()
    timer.join()


@pytest.mark.parametrize(
    ("initial", "complaint"),
    [
        (None, r"Linear is not the run's model: 1\.weight is a parameter \(10, 64\)"),  # where it is loaded
        ({"coef": np.zeros(3)}, r"the model made here is not the run's: parameter 1\.weight is float32"),
    ],
)
def test_a_model_that_is_not_the_runs_is_refused(initial: Any, complaint: str, tmp_path: Path) -> None:
    def take_part() -> None:
        with served(ob.fedasync(steps=1), tmp_path / "run", net, sites=1) as address:
            for task in ob.client(address, 10, name="site", initial=initial):
                task.load_into(nn.Linear(3, 3))

    with pytest.raises(ob.UsageError, match=complaint):
        take_part()


def test_a_server_that_cannot_be_reached_ends_the_loop() -> None:
    async def nobody() -> Any:
        raise OSError("no route to host")

    with pytest.raises(ob.RunError, match="no route to host"):
        list(ob.client(nobody, 10, give_up_after=0.0))
