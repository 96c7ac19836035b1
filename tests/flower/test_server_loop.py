"""Whole runs on a grid in memory: every algorithm that can run, nodes that go and come, servers that die."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

import offbeat as ob
from offbeat.codec import ErrorFeedback, TopK
from offbeat.core.error_feedback import RESIDUAL
from offbeat.data.dataset import Dataset
from offbeat.flower import Polling, client_app, serve
from offbeat.flower.context_state import Memory, load_state
from offbeat.flower.replies import register, respond
from offbeat.flower.server_loop import Federation
from offbeat.models.specs import LogisticSpec, ModelMaker, build
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.site import Site
from offbeat.net.messages import Leave, Register, Registered, TaskAssignment, TaskFailed, UpdateSubmission
from offbeat.net.run_spec import RunSpec, read_run_spec
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.server_learner import server_learner
from offbeat.runs.files import read_tensors
from offbeat.sim.replay import replay
from tests.conformance.settings import OPTIONS
from tests.digits import equal_digits
from tests.flower.fake_grid import FakeGrid, FakeNode
from tests.net.replay_player import Play, coordinator_of
from tests.net.support import Shares, Terms, run_spec, shares_of_digits, terms_of
from tests.sampling import mostly_thorough, thorough

TRAINING = ob.Training(lr=0.1, batch_size=20)
SITES = 5
TERMS = terms_of(clients=SITES, lease=60.0, until=ob.Until(tasks=40), evaluate=ob.Every(versions=1))
CAN = sorted(set(ob.ALGORITHMS) - {"wireless"})


def made(name: str) -> ob.Algorithm:
    """The algorithm, which lets tasks run to their ends: nothing reaches a node in mid-task."""
    stopping = {"stop": False} if "stop" in ob.ALGORITHMS[name].signature.parameters else {}
    return ob.ALGORITHMS[name](**{**OPTIONS.get(name, {}), **stopping})


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # what Flower sets in a process of its own
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    torch.set_rng_state(state)


@pytest.fixture(scope="module")
def digits() -> Shares:
    return shares_of_digits(SITES, samples=400, test_samples=200)


def grid_of(data: list[Dataset], first: int = 100) -> FakeGrid:
    app = client_app(lambda context: data[int(context.node_config["partition-id"])])
    speeds = [4.0, 5.0, 6.5, 9.0, 14.0, 5.5]
    return FakeGrid(FakeNode(first + i, app, {"partition-id": i}, speeds[i]) for i in range(len(data)))


def serve_on(
    grid: FakeGrid, algorithm: ob.Algorithm, test: Dataset | None, directory: Path,
    terms: Terms = TERMS,
) -> str:  # fmt: skip
    """`serve`, on the grid's own time."""
    made = Federation.__init__

    def on_time(self: Federation, *args: Any) -> None:
        made(self, *args, now=grid.now, sleep=grid.sleep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "__init__", on_time)
        learner = server_learner(LogisticSpec(), TRAINING, test, (1, 8, 8), 10)
        experiment = terms.experiment(algorithm, learner, 3)
        return serve(grid, experiment, directory, options=terms.server, polling=Polling(poll=0.5))


def check_run(directory: Path, algorithm: ob.Algorithm) -> ob.RunRecord:
    record = ob.read_run(directory)
    assert record.status == "finished"
    assert replay(record, algorithm).difference is None
    rows = list(record.rows())
    ended = [row.task for row in rows if row.name in ("arrived", "lost")]
    assert len(ended) == len(set(ended))
    assert record.meta["summary"]["tasks"] == sum(row.name == "arrived" for row in rows)
    return record


@pytest.mark.parametrize("name", mostly_thorough(CAN, {"fedasmu"}))
def test_every_algorithm_that_needs_no_radio(name: str, digits: Any, tmp_path: Path) -> None:
    data, test = digits
    algorithm = made(name)
    grid = grid_of(data)
    assert serve_on(grid, algorithm, test, tmp_path / "run") == "reached 40 client tasks"
    record = check_run(tmp_path / "run", algorithm)
    first, last = record.evaluations()[0], record.evaluations()[-1]
    assert last.version == record.meta["summary"]["versions"]
    assert first.accuracy is not None
    assert last.accuracy is not None
    assert last.accuracy > first.accuracy + 0.2
    assert record.meta["rejected"] == {}


def test_the_same_replies_give_the_bits_of_one_process(digits: Any, tmp_path: Path) -> None:
    """What a simulation of the journal's world would train: a task's update depends on nothing else."""
    data, test = digits
    algorithm = ob.fedasmu(epochs=2, size=2, period=10.0, threshold=3)
    for name in "ab":
        serve_on(grid_of(data), algorithm, test, tmp_path / name)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    rows = list(ob.read_run(tmp_path / "a").rows())
    assert sum(row.name == "send" for row in rows) >= 3


def test_error_feedback_has_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """The residual lies in the node's memory from one message to the next."""
    (share,), test = shares_of_digits(1, samples=60, test_samples=40)
    algorithm = replace(ob.fedasync(steps=3), codec=ErrorFeedback(of=TopK(fraction=0.05)))
    until, grid = ob.Until(versions=5), grid_of([share])
    serve_on(grid, algorithm, test, tmp_path / "run", terms_of(clients=1, lease=60.0, until=until))
    model = ModelMaker(LogisticSpec(), (1, 8, 8), 10)
    simulated = ob.simulate(
        algorithm, ob.World(), ob.TorchLearner(model, ob.federate([share], test), TRAINING),
        seed=3, until=until,
    )  # fmt: skip
    served = read_tensors(tmp_path / "run/model.safetensors")
    assert all(torch.equal(served[name], tensor) for name, tensor in simulated.model.state_dict().items())
    (node,) = grid.nodes.values()
    assert load_state(node.context.state).state[RESIDUAL].any()


@pytest.mark.parametrize("name", ["scaffold", *thorough("feddyn", "moon", "fedasmu")])
def test_a_run_has_the_bits_that_its_journal_has_elsewhere(name: str, digits: Any, tmp_path: Path) -> None:
    """The same events, played to a coordinator with sites that keep everything in one process."""
    data, test = digits
    algorithm = made(name)
    serve_on(grid_of(data), algorithm, test, tmp_path / "run")
    plan = read_run_spec(ob.read_run(tmp_path / "run").meta["plan"])
    maker = partial(build, plan.model, plan.sample_shape, plan.classes)
    coordinator, _ = played(algorithm, tmp_path / "run", maker)
    model = coordinator.tensors.model
    for entry, view in model.layout.views(model.values, model.integers):
        assert torch.equal(read_tensors(tmp_path / "run/model.safetensors")[entry.name], view)


def judge_of(plan: RunSpec, test: Any = None) -> ob.TorchLearner:
    """The learner of a run's server."""
    return server_learner(plan.model, plan.training, test, plan.sample_shape, plan.classes)


def normed(*_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


@pytest.mark.parametrize("name", ["fedbuff", *thorough("fedasmu")])
def test_nodes_keep_their_running_statistics(
    name: str, digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the two halves of a task that asks for a model, each of which may find a new process."""
    monkeypatch.setattr("offbeat.models.specs.build", normed)  # no built-in model has any
    data, test = digits
    algorithm = ob.compose(made(name), buffers="local")
    serve_on(grid_of(data), algorithm, test, tmp_path / "run")
    rows = list(ob.read_run(tmp_path / "run").rows())
    assert name != "fedasmu" or sum(row.name == "send" for row in rows) >= 3
    coordinator, play = played(algorithm, tmp_path / "run", normed)
    judge = judge_of(read_run_spec(ob.read_run(tmp_path / "run").meta["plan"]), test)
    written = read_tensors(tmp_path / "run/model.safetensors")
    for tensor_name, tensor in judge.estimated(coordinator.tensors.model, 3).state_dict().items():
        assert torch.equal(written[tensor_name], tensor)
    assert all(int(site.state["buffers.integer"]) > 2 for site in play.sites.values())


def played(algorithm: ob.Algorithm, directory: Path, maker: Any) -> tuple[Coordinator, Play]:
    """A run's events, played to a coordinator with sites that keep everything in one process."""
    record = ob.read_run(directory)
    learner = ob.TorchLearner(maker, equal_digits(SITES, samples=400, test_samples=200), TRAINING)
    coordinator = coordinator_of(algorithm, learner.initial(3), SITES, 3, until=ob.Until(tasks=40))
    play = Play(algorithm, learner, coordinator)
    for row in record.rows():
        if row.kind == "event":
            play.deliver(play.event(row))
    assert play.rows == list(record.rows())
    return coordinator, play


def test_a_server_that_dies_goes_on_in_another_run(digits: Any, tmp_path: Path) -> None:
    """Another run of Flower's finds nodes that remember nothing of the first."""
    data, test = digits
    algorithm = ob.scaffold(steps=3)

    class DiedError(Exception):
        pass

    counted = []
    for life in range(4):
        grid = grid_of(data)

        def die(grid: FakeGrid = grid) -> None:
            if grid.time > 32:
                raise DiedError

        if life < 3:
            grid.each_sleep = die
            with pytest.raises(DiedError):
                serve_on(grid, algorithm, test, tmp_path / "run")
            record = ob.read_run(tmp_path / "run")
            assert record.status == "failed"
            counted.append(sum(row.name == "arrived" for row in record.rows()))
        else:
            assert serve_on(grid, algorithm, test, tmp_path / "run") == "reached 40 client tasks"
    assert 0 < counted[0] < counted[1] < counted[2] < 40
    record = check_run(tmp_path / "run", algorithm)
    assert not [row for row in record.rows() if row.name in ("left", "lost")]
    assert [row.client for row in record.rows() if row.name == "joined"] == list(range(SITES))
    assert serve_on(grid_of(data), algorithm, test, tmp_path / "run") == "reached 40 client tasks"


def test_a_server_that_dies_goes_on_with_other_nodes(digits: Any, tmp_path: Path) -> None:
    """As on the simulation engine: those of before leave when their lease is over."""
    data, test = digits
    algorithm, grid = ob.fedasync(steps=3, concurrency=2), grid_of(data)

    def die() -> None:
        if grid.time > 32:
            raise ZeroDivisionError

    grid.each_sleep = die
    with pytest.raises(ZeroDivisionError):
        serve_on(grid, algorithm, test, tmp_path / "run")
    serve_on(grid_of(data, first=200), algorithm, test, tmp_path / "run")
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    assert sorted(row.client for row in rows if row.name == "joined" and row.client is not None) == [
        *range(10)
    ]
    assert sorted(row.client for row in rows if row.name == "left" and row.client is not None) == [*range(5)]
    assert [row for row in rows if row.name == "arrived" and (row.client or 0) >= 5]


def test_a_node_that_is_gone_for_longer_than_its_lease_has_left(digits: Any, tmp_path: Path) -> None:
    data, test = digits
    algorithm, grid = ob.fedbuff(steps=3, size=2, concurrency=3), grid_of(data)
    node = grid.nodes[101]

    def weather() -> None:
        node.online = not 20 < grid.time < 150

    grid.each_sleep = weather
    terms = terms_of(clients=SITES, lease=60.0, until=ob.Until(tasks=60))
    assert serve_on(grid, algorithm, test, tmp_path / "run", terms) == "reached 60 client tasks"
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    [left] = [row for row in rows if row.name == "left"]
    assert 80 <= left.t <= 83
    client = left.client
    assert [row.t for row in rows if row.name == "joined" and row.client == client][1] >= 150
    assert [row for row in rows if row.name == "arrived" and row.client == client and row.t > 150]


@pytest.mark.parametrize("reboots", [True, *thorough(False)], ids=["rebooted", "cut off"])
def test_a_node_that_comes_back_in_time_goes_on(reboots: bool, digits: Any, tmp_path: Path) -> None:
    """Rebooted it is given its task again, cut off it delivers what it has trained."""
    data, test = digits
    algorithm, grid = ob.fedasync(steps=3), grid_of(data)
    node, done = grid.nodes[102], []

    def weather() -> None:
        node.online = not 20 < grid.time < 40
        if reboots and not done and grid.time > 30:
            node.reboot()
            grid.replies = {i: r for i, r in grid.replies.items() if r[1].metadata.src_node_id != node.id}
            done.append(grid.time)

    grid.each_sleep = weather
    serve_on(grid, algorithm, test, tmp_path / "run")
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    assert not [row for row in rows if row.name in ("left", "lost")]
    sent = [
        m for m in grid.pushed if m.metadata.dst_node_id == 102 and m.metadata.message_type == "train.offbeat"
    ]
    trained = [row for row in rows if row.name == "train" and row.client == 2]
    assert len(sent) == len(trained) + reboots


def test_a_node_that_restarts_unnoticed_is_asked_again(digits: Any, tmp_path: Path) -> None:
    """It was never missed, but Flower tells that it has been activated anew."""
    data, test = digits
    algorithm, grid = ob.fedavg(steps=3), grid_of(data)
    node, done = grid.nodes[104], []

    def weather() -> None:
        if not done and grid.time > 20:
            done.append(grid.time)
            node.reboot()
            grid.replies = {i: r for i, r in grid.replies.items() if r[1].metadata.src_node_id != node.id}

    grid.each_sleep = weather
    serve_on(grid, algorithm, test, tmp_path / "run")
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    assert not [row for row in rows if row.name in ("left", "lost")]


@pytest.mark.parametrize("code", [2, *thorough(3, 8)])
def test_an_error_of_flowers_loses_the_task_and_no_more(code: int, digits: Any, tmp_path: Path) -> None:
    data, test = digits
    algorithm, grid = ob.fedasync(steps=3), grid_of(data)
    failing = iter(range(3))

    def before(node: FakeNode, message: Message) -> Message | None:
        if (
            node.id == 100
            and message.metadata.message_type == "train.offbeat"
            and next(failing, None) is not None
        ):
            return Message(Error(code, "Traceback\nOSError: no disk"), reply_to=message)
        return None

    grid.before = before
    serve_on(grid, algorithm, test, tmp_path / "run")
    record = check_run(tmp_path / "run", algorithm)
    lost = [row for row in record.rows() if row.name == "lost"]
    assert {row.data["reason"] for row in lost if row.data} == {f"Flower's error {code}: OSError: no disk"}
    assert len(lost) == 3
    assert record.meta["rejected"] == {"flower": 3}
    waits = np.diff([m.metadata.created_at for m in grid.pushed if m.metadata.dst_node_id == 100])
    assert len(waits) > 3


def test_a_node_that_flower_gives_up_is_greeted_again(digits: Any, tmp_path: Path) -> None:
    data, test = digits
    algorithm, grid = ob.fedasync(steps=3), grid_of(data)
    given_up: list[str] = []

    def before(node: FakeNode, message: Message) -> Message | None:
        if node.id == 103 and not given_up and message.metadata.message_type == "train.offbeat":
            given_up.append(message.metadata.message_id)
            return Message(Error(5, "Node unavailable"), reply_to=message)
        return None

    grid.before = before
    serve_on(grid, algorithm, test, tmp_path / "run")
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    assert not [row for row in rows if row.name in ("left", "lost")]
    assert sum(m.metadata.message_type == "query.offbeat" for m in grid.pushed) == SITES + 1


def test_a_node_that_was_sent_away_is_not_asked(digits: Any, tmp_path: Path) -> None:
    """Until its time is over, which is longer each time; an error of its own would be forgotten sooner."""
    data, test = digits
    algorithm, grid = ob.fedasync(steps=3), grid_of(data)
    asked: list[float] = []

    def before(node: FakeNode, message: Message) -> Message | None:
        if node.id != 101:
            return None
        if message.metadata.message_type == "query.offbeat":
            asked.append(grid.time)
            return None
        return Message(Error(2, "no more memory"), reply_to=message)

    grid.before = before
    serve_on(
        grid,
        algorithm,
        test,
        tmp_path / "run",
        terms_of(clients=SITES, max_consecutive_failures=1, until=ob.Until(tasks=100)),
    )
    rows = list(check_run(tmp_path / "run", algorithm).rows())
    left = [row.t for row in rows if row.name == "left"]
    absences = [again - t for t, again in zip(left, asked[1:], strict=False)]
    assert [30.0 * (absence // 30.0) for absence in absences[:2]] == [30.0, 60.0]
    assert len(asked) == len(absences) + 1


def test_a_node_with_other_data_is_left_out(digits: Any, tmp_path: Path, caplog: Any) -> None:
    data, test = digits
    other = Dataset(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64), 10)
    algorithm = ob.fedavg(steps=2)
    terms = terms_of(clients=SITES, until=ob.Until(tasks=15))
    grid = grid_of([other, *data])
    grid.nodes[100].seconds = 3.0
    assert serve_on(grid, algorithm, test, tmp_path / "run", terms) == "reached 15 client tasks"
    assert "node-100 cannot take part: the data have samples of shape (3,)" in caplog.text
    assert sum(m.metadata.dst_node_id == 100 for m in grid.pushed) == 1


def test_what_a_broken_node_says_is_counted_and_refused(digits: Any, tmp_path: Path) -> None:
    """One that sends no message of this protocol, and one whose training fails."""
    data, test = digits
    data = [Dataset(data[0].x.clone(), data[0].y, data[0].classes), *data[1:]]
    algorithm, grid = ob.fedasync(steps=3), grid_of(data)

    def before(node: FakeNode, message: Message) -> Message | None:
        if message.metadata.message_type == "train.offbeat":
            data[0].x.fill_(float("nan"))  # which was good when the node was asked
        if node.id == 101 and message.metadata.message_type == "train.offbeat":
            return Message(message.content, reply_to=message)  # the server's own message back
        return None

    grid.before = before
    serve_on(grid, algorithm, test, tmp_path / "run")
    record = check_run(tmp_path / "run", algorithm)
    assert record.meta["rejected"].keys() == {"message"}
    reasons = {row.data["reason"] for row in record.rows() if row.name == "lost" and row.data}
    assert any("has NaN or infinite values" in reason for reason in reasons)
    arrived = {row.client for row in record.rows() if row.name == "arrived"}
    assert arrived == {2, 3, 4}


def test_what_cannot_run_on_flower_is_refused(tmp_path: Path) -> None:
    grid = grid_of([])
    with pytest.raises(ob.UsageError, match="nothing reaches a Flower node in mid-task"):
        serve_on(grid, ob.port(epochs=3, size=2, tau_max=2, urgent=True), None, tmp_path / "run")
    for algorithm in (ob.ringmaster(steps=2), ob.first_of(steps=2, late="stop")):
        with pytest.raises(ob.UsageError, match=f"{algorithm.name} as it is set stops tasks before they are"):
            serve_on(grid, algorithm, None, tmp_path / "run")
    terms = terms_of(evaluate=ob.Every(versions=1, at="clients"))
    with pytest.raises(ob.UsageError, match=r"evaluate.at = 'clients' is not allowed on Flower"):
        serve_on(grid, ob.fedavg(steps=2), None, tmp_path / "run", terms)
    assert not (tmp_path / "run").exists()


def test_a_loop_of_ones_own_trains_unless_its_tasks_would_have_to_be_stored() -> None:
    def loop(task: ob.ClientTask) -> None:
        module = task.load_into(build(LogisticSpec(), (1, 8, 8), 10))
        for _ in task.steps():
            pass
        task.submit(module.state_dict())

    site = Site.of(learner=ob.LoopLearner(loop, None, 40, batch_size=20))
    server = server_learner(LogisticSpec(), TRAINING, None, (1, 8, 8), 10)

    def registered(algorithm: ob.Algorithm) -> Registered:
        return Registered(0, "run", run_spec(algorithm, server, 3).document(), 60.0)

    plain = registered(ob.fedbuff(steps=3))
    assert register(plain, site, tell_labels=True) == Register(40, 2)
    (update,) = respond(plain, [TaskAssignment(0, 0, 3, 3, server.initial(3))], Memory(), site)
    assert isinstance(update, UpdateSubmission)
    assert update.steps == 3
    refused = register(registered(ob.fedasmu(epochs=2)), site, tell_labels=True)
    assert isinstance(refused, Leave)
    assert refused.reason.startswith("Flower stores a task that asks for a fresh model")


def test_a_node_has_a_policy_too() -> None:
    data = Dataset(torch.zeros(40, 1, 8, 8), torch.arange(40) % 10, classes=10)
    server = server_learner(LogisticSpec(), TRAINING, None, (1, 8, 8), 10)
    document = run_spec(ob.fedbuff(steps=3), server, 3).document()
    told = Registered(0, "run", document, 60.0)
    refused = register(told, Site.of(data, policy=SitePolicy(min_batch_size=30)), tell_labels=True)
    assert isinstance(refused, Leave)
    assert refused.reason.startswith("this site's policy refuses batches of 20")
    site = Site.of(data, policy=SitePolicy(max_steps=2, clip=1e-6, labels=False))
    assert register(told, site, tell_labels=True) == Register(40, 0)
    orders = [TaskAssignment(task, 0, steps, 3, server.initial(3)) for task, steps in ((0, 3), (1, 2))]
    failed, update = respond(told, orders, Memory(), site)
    assert isinstance(failed, TaskFailed)
    assert "this site's policy refuses a task of 3 steps" in failed.reason
    assert isinstance(update, UpdateSubmission)
    assert isinstance(update.delta, torch.Tensor)
    assert float(update.delta.norm()) == pytest.approx(1e-6, rel=1e-3)
