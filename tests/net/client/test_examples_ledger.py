"""What a site's examples spend: charged before a task, in all runs, never less than was trained."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.data.federated import federate
from offbeat.local.examples_privacy import ExamplesPrivacy, History, examples_epsilon
from offbeat.local.objectives import Plain
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.client.examples_ledger import FILE, ExamplesLedger
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingContext, TrainingTask
from offbeat.net.messages import (
    FromSite,
    Heartbeat,
    Leave,
    ModelResponse,
    Register,
    TaskAssignment,
    UpdateSubmission,
)
from offbeat.net.transport import ClientChannel
from offbeat.testing.network import MemoryNetwork
from tests.net.support import hurry, serve, shares_of_digits, terms_of, torch_left_alone
from tests.sampling import needs

needs("opacus")

OPTIONS = ExamplesPrivacy(noise=2.0, clip=0.5, epsilon=3.0)
RATE = 0.4
UNLIMITED = ExamplesPrivacy(noise=2.0, clip=0.5)


def test_steps_are_charged_before_they_are_made_and_outlive_the_process(tmp_path: Path) -> None:
    ledger = ExamplesLedger(UNLIMITED, tmp_path)
    ledger.prepare(RATE)
    ledger.begin(7)
    first = ledger.secret
    again = ExamplesLedger(UNLIMITED, tmp_path)  # it died in the task, which is begun again
    assert (again.spent.steps, again.secret) == (7, b"")
    again.prepare(RATE)
    secrets = {first, bytes(32)}
    for _ in range(2):
        again.begin(7)
        secrets.add(again.secret)
    assert again.spent.steps == 21
    assert len(secrets) == 4
    other = ExamplesLedger(ExamplesPrivacy(noise=3.0), tmp_path)  # other options do not forget
    other.prepare(0.2)
    other.begin(5)
    assert ExamplesLedger(UNLIMITED, tmp_path).spent.steps == 26
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_a_task_beyond_the_budget_is_not_begun(tmp_path: Path) -> None:
    ledger = ExamplesLedger(OPTIONS, tmp_path)
    ledger.prepare(RATE)
    tasks = 0
    told = ""
    while not told:
        try:
            ledger.begin(3)
            tasks += 1
        except UsageError as error:
            told = str(error)
    assert told == "its privacy budget is spent: it allows no task of 3 steps"  # neither ε nor δ: it is sent
    assert tasks > 1
    assert ExamplesLedger(OPTIONS, tmp_path).spent.steps == 3 * tasks
    assert examples_epsilon([(2.0, RATE, 3 * tasks)], 1e-5) <= 3.0
    assert examples_epsilon([(2.0, RATE, 3 * (tasks + 1))], 1e-5) > 3.0


def test_a_task_is_not_begun_where_the_charge_cannot_be_written(tmp_path: Path) -> None:
    ledger = ExamplesLedger(UNLIMITED, tmp_path / "gone")
    ledger.prepare(RATE)
    with pytest.raises(RunError, match="cannot write what is spent"):
        ledger.begin(3)
    assert ledger.secret == b""


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"spent")
    with pytest.raises(DamageError, match="what the site's examples have spent"):
        ExamplesLedger(OPTIONS, tmp_path)


def test_a_site_logs_what_is_spent_and_does_not_take_its_time_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0

    def slow(history: History, delta: float) -> float:
        nonlocal now
        now += 3.0
        return float(sum(steps for _, _, steps in history))

    monkeypatch.setattr("offbeat.net.client.examples_ledger.examples_epsilon", slow)
    monkeypatch.setattr("offbeat.net.client.examples_ledger.steps_within", lambda *_: 50)
    monkeypatch.setattr("offbeat.net.client.examples_ledger.monotonic", lambda: now)
    caplog.set_level("INFO", "offbeat.net.client.examples_ledger")
    ledger = ExamplesLedger(OPTIONS, tmp_path)
    ledger.prepare(RATE)
    for _ in range(9):
        ledger.begin(4)
        now += 20.0
        ledger.tell()
    spent = "privacy of examples: ε = {0}.00 of 3 (δ = 1e-05; {0} local steps), {1} more are allowed"
    assert caplog.messages == [spent.format(*numbers) for numbers in ((0, 50), (12, 38), (24, 26), (36, 14))]


def test_what_is_spent_and_cannot_be_told_ends_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(history: History, delta: float) -> float:
        raise FloatingPointError

    monkeypatch.setattr("offbeat.net.client.examples_ledger.examples_epsilon", failing)
    ledger = ExamplesLedger(UNLIMITED, tmp_path)
    ledger.begin(0)
    ledger.tell()
    assert caplog.messages == ["what the examples have spent cannot be told: 0 local steps"]


def test_a_task_that_the_policy_refuses_is_not_charged(tmp_path: Path) -> None:
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    learner = ob.TorchLearner(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), federate([data[0]]))
    ledger = ExamplesLedger(ExamplesPrivacy(), tmp_path)
    ledger.prepare(RATE)
    context = TrainingContext(0, learner, Plain(), None, 1, policy=SitePolicy(max_steps=5), examples=ledger)
    context.begin(6)
    assert (ledger.spent.steps, ledger.secret) == (0, b"")
    context.begin(5)
    assert ledger.spent.steps == 5


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_task_asks_for_a_fresh_model_when_the_server_said_whatever_its_examples(
    value: float, tmp_path: Path
) -> None:
    """A loss that is not finite does not move or leave out the request, nor is anything of it in there."""
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    data[0].x[10:] *= value
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    learner = ob.TorchLearner(module, federate([data[0]]))
    ledger = ExamplesLedger(UNLIMITED, tmp_path)
    learner = learner.with_examples_privacy(UNLIMITED, lambda _: ledger.secret)
    context = TrainingContext(0, learner, Plain(), None, 1, examples=ledger)
    asked: list[tuple[int, int]] = []

    def ask(task: TrainingTask) -> None:
        asked.append((task.task, task.steps))
        task.answer(ModelResponse(task.task, 7, 8, model=learner.initial(2)))

    ledger.prepare(RATE)
    context.begin(5)
    assignment = TaskAssignment(3, 0, 5, 1, learner.initial(1), ask_after=2)
    update = TrainingTask(assignment, context, ask).run({}).update
    assert (asked, update.steps, update.metrics) == ([(3, 2)], 5, {})
    assert isinstance(update.delta, torch.Tensor)
    assert update.delta.any()  # the noise at least


@pytest.mark.thorough
def test_a_run_over_the_network_until_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    data, test = shares_of_digits(1, samples=150, test_samples=50)
    said: list[FromSite] = []
    network = MemoryNetwork()
    options = ExamplesPrivacy(noise=2.0, clip=1.0, epsilon=3.0)

    async def connect() -> ClientChannel:
        channel = await network.connect("private")()
        send = channel.send
        channel.send = lambda message: (said.append(message), send(message))[1]  # type: ignore[method-assign]
        return channel

    async def run() -> None:
        server = asyncio.create_task(
            serve(
                ob.fedbuff(size=1, steps=3), LogisticSpec(), ob.Training(lr=0.5, batch_size=45),
                tmp_path / "run", network.listen, test=test, seed=3, linger=0.2,
                options=terms_of(clients=1, until=ob.Until(tasks=1000), evaluate=ob.Every(versions=10)),
            )
        )  # fmt: skip
        site = join(connect, data[0], validation=0.1, examples_privacy=options, state=tmp_path / "site")
        try:
            await asyncio.wait_for(site, 300)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    with torch_left_alone(), pytest.raises(UsageError, match="its privacy budget is spent"):
        asyncio.run(run())
    assert isinstance(said[-1], Leave)
    assert said[-1].reason == "its privacy budget is spent: it allows no task of 3 steps"
    updates = [message for message in said if isinstance(message, UpdateSubmission)]
    assert {type(message) for message in said} <= {Register, Heartbeat, UpdateSubmission, Leave}
    assert all((u.metrics, u.shared) == ({}, None) for u in updates)
    assert any(isinstance(u.delta, torch.Tensor) and u.delta.any() for u in updates)
    (register,) = [message for message in said if isinstance(message, Register)]
    assert (register.labels, register.held_out) == ((), 0)
    ledger = ExamplesLedger(options, tmp_path / "site")
    assert ledger.spent.steps == 3 * len(updates)
    assert 1.5 < examples_epsilon([(2.0, 45 / 135, ledger.spent.steps)], 1e-5) <= 3.0


def test_what_a_site_cannot_give_privacy_is_refused(tmp_path: Path) -> None:
    data, _ = shares_of_digits(1, samples=20, test_samples=20)
    network = MemoryNetwork()
    with pytest.raises(
        UsageError, match="examples privacy needs state: what is spent must outlive the process"
    ):
        asyncio.run(join(network.connect("a"), data[0], examples_privacy=OPTIONS))


def test_a_learner_whose_examples_are_private_in_a_simulation_only_is_refused() -> None:
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    learner = ob.TorchLearner(module, federate([data[0]]), examples=ExamplesPrivacy())
    with pytest.raises(UsageError, match=r"in a simulation only, .* give examples_privacy .* to join"):
        asyncio.run(join(MemoryNetwork().connect("a"), learner=learner))


def test_what_another_process_charged_until_it_left_the_directory_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes its last charge while this one waits for the directory."""

    class LateStore(SiteStore):
        def __init__(self, directory: Path | None, name: str | None, accepted: Collection[str]) -> None:
            assert directory is not None
            directory.mkdir()
            other = ExamplesLedger(UNLIMITED, directory)
            other.prepare(RATE)
            other.begin(7)
            super().__init__(directory, name, accepted)

    found: list[ExamplesLedger] = []

    def make_context(*options: object) -> None:
        found.extend(option for option in options if isinstance(option, ExamplesLedger))
        raise InterruptedError

    monkeypatch.setattr("offbeat.net.client.join.SiteStore", LateStore)
    monkeypatch.setattr("offbeat.net.client.join.make_context", make_context)
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    site = join(MemoryNetwork().connect("a"), data[0], examples_privacy=UNLIMITED, state=tmp_path / "site")
    with torch_left_alone(), pytest.raises(InterruptedError):
        asyncio.run(site)
    assert [ledger.spent.steps for ledger in found] == [7]


def test_a_damaged_file_leaves_the_directory_unlocked(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"spent")
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    with pytest.raises(DamageError):
        asyncio.run(join(MemoryNetwork().connect("a"), data[0], examples_privacy=UNLIMITED, state=tmp_path))
    SiteStore(tmp_path).close()
