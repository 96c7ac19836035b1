"""What a site trains has the bits that the simulator's clients have, whatever it is told on the way."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalResult, LocalTask, TaskInputs
from offbeat.core.learner import MergePoint as Merging
from offbeat.data.dataset import Dataset
from offbeat.models.specs import LogisticSpec, MLPSpec, build
from offbeat.net.client.join import make_context
from offbeat.net.client.site import Site
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.client.task import TaskCancelledError, TrainingContext, TrainingTask
from offbeat.net.messages import ModelResponse, TaskAssignment, UpdateSubmission
from offbeat.net.run_spec import RunSpec, read_run_spec
from offbeat.net.server.server_learner import server_learner
from tests.conformance.settings import OPTIONS
from tests.net.support import run_spec

CLIENT, SEED = 3, 5
TRAINING = ob.Training(lr=0.1, batch_size=20)

NETWORKED = [name for name in ob.ALGORITHMS if name != "wireless"]  # which needs a radio
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def parts() -> tuple[ob.FederatedData, Dataset]:
    source = ob.load("digits", samples=250, test_samples=20)
    split = np.array_split(np.random.default_rng(0).permutation(250), 5)
    return ob.federate(source, None, split), source.train.subset(split[CLIENT])


def plan_of(algorithm: ob.Algorithm) -> RunSpec:
    return run_spec(algorithm, server_learner(LogisticSpec(), TRAINING, None, (1, 8, 8), 10), SEED)


def both(algorithm: ob.Algorithm, parts: Any) -> tuple[ob.TorchLearner, TrainingContext]:
    """The simulator's learner of all clients, and the context of a site that has one client's data."""
    data, own = parts
    context = make_context(Site.of(own))(plan_of(algorithm).document(), CLIENT)
    return ob.TorchLearner(partial(build, LogisticSpec(), (1, 8, 8), 10), data, TRAINING), context


def same(kept: PendingUpdate, result: LocalResult, steps: int) -> None:
    told = kept.update
    assert isinstance(told.delta, torch.Tensor)
    assert torch.equal(told.delta, result.delta)
    assert told.metrics == result.metrics
    assert (told.steps, told.lr) == (steps, result.lr)
    assert kept.state.keys() == result.state.keys()
    for name, tensor in kept.state.items():
        assert torch.equal(tensor, result.state[name])


@pytest.mark.parametrize("name", NETWORKED)
def test_a_recall_at_the_end_of_an_epoch(name: str, parts: Any) -> None:
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    learner, context = both(algorithm, parts)
    base = learner.initial(SEED).sharing(algorithm.objective.shared_vectors)
    job = TrainingTask(TaskAssignment(7, 0, 9, SEED, base), context, lambda _: None)
    job.recall()
    whole = TrainingTask(TaskAssignment(7, 0, 9, SEED, base), context, lambda _: None)
    assert context.learner.steps_per_epoch(CLIENT) == 3
    for told, steps in ((job, 3), (whole, 9)):
        expected = learner.train(base, LocalTask(7, CLIENT, 0, steps, SEED), algorithm.objective)
        same(told.run({}), expected, steps)


def test_a_recall_that_comes_while_the_last_step_waits_for_its_time_is_too_late(parts: Any) -> None:
    algorithm = ob.fedasync()
    learner, context = both(algorithm, parts)
    slow = replace(context, min_step_seconds=0.3)
    base = learner.initial(SEED)
    job = TrainingTask(TaskAssignment(7, 0, 4, SEED, base), slow, lambda _: None)

    def recall() -> None:
        while job.steps < 3:  # an epoch
            sleep(0.01)
        sleep(0.1)
        job.recall()

    thread = Thread(target=recall)
    thread.start()
    same(job.run({}), learner.train(base, LocalTask(7, CLIENT, 0, 4, SEED), algorithm.objective), 4)
    thread.join()


def test_a_model_that_comes_while_it_trains(parts: Any) -> None:
    """Also when the recall comes while it waits: the epoch that has begun is finished."""
    algorithm = ob.fedasmu(epochs=3, size=2)
    learner, context = both(algorithm, parts)
    base = learner.initial(SEED)
    fresh = learner.initial(SEED + 1)
    for steps in (9, 6):

        def ask(job: TrainingTask, steps: int = steps) -> None:
            def answer() -> None:
                if steps < 9:
                    job.recall()
                job.answer(ModelResponse(7, 4, 2, fresh))

            assert (job.steps, job.asking) == (3, True)
            Thread(target=answer).start()

        job = TrainingTask(TaskAssignment(7, 1, 9, SEED, base, ask_after=3), context, ask)
        task = LocalTask(7, CLIENT, 1, steps, SEED, fresh=Merging(3, 4, 2))
        same(job.run({}), learner.train(base, task, algorithm.objective, TaskInputs({}, fresh)), steps)
    plain = learner.train(base, LocalTask(7, CLIENT, 1, 9, SEED), algorithm.objective)
    nothing = TrainingTask(
        TaskAssignment(7, 1, 9, SEED, base, ask_after=3), context,
        lambda job: Thread(target=job.answer, args=(ModelResponse(7),)).start(),
    )  # fmt: skip
    told = nothing.run({}).update.delta
    assert isinstance(told, torch.Tensor)
    assert torch.equal(told, plain.delta)


def test_a_task_that_is_given_up_ends_also_while_it_waits(parts: Any) -> None:
    algorithm = ob.fedasmu(epochs=3, size=2)
    learner, context = both(algorithm, parts)
    asked = Event()
    job = TrainingTask(
        TaskAssignment(7, 1, 9, SEED, learner.initial(SEED), ask_after=3), context, lambda _: asked.set()
    )
    thread = Thread(target=lambda: (asked.wait(30), job.cancel()))
    thread.start()
    with pytest.raises(TaskCancelledError):
        job.run({})
    thread.join()


@pytest.mark.parametrize("name", NETWORKED)
def test_a_plan_says_all_there_is_to_know(name: str) -> None:
    algorithm = ob.ALGORITHMS[name](**OPTIONS.get(name, {}))
    plan = read_run_spec(plan_of(algorithm).document())
    assert plan.make_algorithm() == algorithm
    assert plan == plan_of(algorithm)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": {"name": "os.system"}}, "model.name = 'os.system' is unknown"),
        ({"algorithm": {"name": "fedavgg"}, "plain": False}, "fedavgg.* is unknown"),
        ({"algorithm": {"name": "fedavg", "steps": -1}}, "steps = -1 is not allowed"),
        ({"seed": -1}, "seed = -1 is not allowed"),
        ({"more": 1}, "unknown key more"),
        ({"sample_shape": [1, 8, 9]}, "another layout than the server's"),
        ({"model": MLPSpec()}, "another layout than the server's"),
    ],
)
def test_a_plan_that_is_not_understood_says_why(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ob.UsageError, match=says):
        read_run_spec({**plan_of(ob.fedavg(steps=2)).document(), **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sample_shape": [2**31] * 5}, "the model has more than 64 GiB"),
        ({"classes": 2**31}, "the model has more than 64 GiB"),
        ({"model": MLPSpec(hidden=(10**6, 10**6))}, "the model has more than 64 GiB"),
        ({"model": MLPSpec(hidden=(2**53, 2**53))}, "the model has more than 64 GiB"),
        ({"model": {"name": "mlp", "hidden": [10**30]}}, "model.*hidden.* at most 2.53"),
        ({"model": {"name": "mlp", "hidden": [1] * 1001}}, "model.*hidden"),
    ],
)
def test_no_plan_makes_a_site_take_more_memory_than_its_data_ask_for(
    change: dict[str, Any], says: str, parts: Any
) -> None:
    data = parts[1]
    document = plan_of(ob.fedavg(steps=2)).document()
    with pytest.raises(ob.UsageError, match=says):
        make_context(Site.of(data))({**document, **change}, 0)
    for client in (2**20, 2**40, 2**63 - 1):
        with pytest.raises(ob.UsageError, match=f"this site number {client}: it must be below"):
            make_context(Site.of(data))(document, client)


def test_an_algorithm_that_its_name_does_not_describe_is_not_served() -> None:
    changed = replace(ob.fedprox(mu=0.1, steps=2), server_steps=ob.fedavgm(steps=2).server_steps)
    with pytest.raises(ob.UsageError, match=r"fedprox \(changed\) cannot be served"):
        plan_of(changed)
    plain = replace(ob.fedavg(steps=2), server_steps=changed.server_steps)
    assert plan_of(plain).algorithm["name"] == "fedavg (changed)"  # its objective needs no name
    plan_of(ob.compose(ob.fedavg(steps=2), server_steps=ob.fedavgm(steps=2)))


def kept(task: int, value: float, delta: Any = None) -> PendingUpdate:
    result = UpdateSubmission(
        task,
        4,
        torch.full((3,), value) if delta is None else delta,
        torch.tensor([7]),
        {"loss": 0.1 + 0.2},
        0.3,
    )
    return PendingUpdate(result, {"c": torch.full((2,), value)})


def test_a_state_is_of_one_site(tmp_path: Path) -> None:
    older = SiteStore(tmp_path)
    older.begin("r1")
    older.close()
    store = SiteStore(tmp_path, "north")
    store.save(kept(1, 1.0))
    store.acknowledge(1, accepted=True)
    store.close()
    with pytest.raises(
        ob.UsageError, match=r"is of site north, and this is site south: .* --accept \w+$"
    ) as no:
        SiteStore(tmp_path, "south")
    code = str(no.value).rpartition(" ")[2]
    for site, accepted in ((None, ()), ("north", ()), ("south", (code,)), ("south", ())):
        store = SiteStore(tmp_path, site, accepted)
        assert store.state["c"].tolist() == [1.0, 1.0]
        store.close()
    with pytest.raises(ob.UsageError, match="is of site south, and this is site north"):
        SiteStore(tmp_path, "north", (code,))


@pytest.mark.parametrize("delta", [None, b"", b"coded"])
def test_a_site_that_ends_has_its_update_and_its_state_when_it_is_back(tmp_path: Path, delta: Any) -> None:
    store = SiteStore(tmp_path)
    store.begin("r1")
    store.save(kept(1, 1.0))
    store.acknowledge(1, accepted=True)
    store.save(kept(2, 2.0, delta))
    store.close()
    store = SiteStore(tmp_path)
    assert store.pending is not None
    told = store.pending.update
    assert (store.run, told.task, told.steps, told.lr, told.metrics) == ("r1", 2, 4, 0.3, {"loss": 0.1 + 0.2})
    assert store.state["c"].tolist() == [1.0, 1.0]
    assert store.pending.state["c"].tolist() == [2.0, 2.0]
    if delta is None:
        assert isinstance(told.delta, torch.Tensor)
        assert told.delta.tolist() == [2.0] * 3
    else:
        assert told.delta == delta
    store.acknowledge(3, accepted=True)
    assert store.pending is not None
    store.acknowledge(2, accepted=False)
    assert store.pending is None
    store.close()
    store = SiteStore(tmp_path)
    assert store.state["c"].tolist() == [1.0, 1.0]
    assert store.pending is None
    with pytest.raises(ob.UsageError, match="another process is writing this site's state"):
        SiteStore(tmp_path)
    store.begin("r2")
    assert store.state == {}
    store.close()
    store = SiteStore(tmp_path)
    assert store.run == "r2"
    store.close()


def test_a_state_that_cannot_be_written_leaves_the_update_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SiteStore(tmp_path)
    store.begin("r1")
    store.save(kept(1, 1.0))
    with monkeypatch.context() as full:
        full.setattr("offbeat.net.client.store.write_tensors", no_space)
        with pytest.raises(ob.RunError, match="No space left"):
            store.acknowledge(1, accepted=True)
    assert store.pending is None
    assert store.state["c"].tolist() == [1.0, 1.0]
    store.close()
    store = SiteStore(tmp_path)  # as after its end: the server will say once more that it has the update
    store.acknowledge(1, accepted=True)
    store.close()
    store = SiteStore(tmp_path)
    assert store.state["c"].tolist() == [1.0, 1.0]
    store.close()


def test_a_damaged_update_is_put_aside_and_the_state_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SiteStore(tmp_path)
    store.begin("a run")
    for task in (1, 2):
        update = UpdateSubmission(task, 4, torch.ones(9), torch.zeros(0, dtype=torch.int64), {})
        store.save(PendingUpdate(update, {"c": torch.full((2,), float(task))}))
        if task == 1:
            store.acknowledge(1, accepted=True)
    store.close()
    file = tmp_path / "update.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    store = SiteStore(tmp_path)
    assert (store.run, store.state["c"].tolist(), store.pending) == ("a run", [1.0, 1.0], None)
    assert (tmp_path / "update.damaged").read_bytes() == data
    assert "update.safetensors does not match its checksum; lost: the site's update" in caplog.text
    store.close()


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_state_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ob.UsageError, match="no state can be written there"):
        SiteStore(tmp_path / "file")
    for name in ("client", "update"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / f"{name}.safetensors").write_bytes(b"x" * 40)
        for _ in range(2):  # and the directory is let go
            with pytest.raises(ob.RunError, match=r"client\..* delete client\.safetensors and update"):
                SiteStore(directory)
