"""Servers that ask sites for statistics in ways that would tell of single samples, were they answered."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.model import Arrays, Model
from offbeat.data.federated import own_data, without_clients
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.local.loop_model import model_of
from offbeat.net import SitePolicy
from offbeat.net.client.told_statistics import MOST
from offbeat.net.messages import (
    LABELS_NEEDED,
    Leave,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskAssignment,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.transport import ServerChannel
from tests.net.deviating_server import code_of, meet, sent_of_training
from tests.net.support import run_spec
from tests.sampling import thorough

AGES = np.clip(np.random.default_rng(0).normal(55, 15, 60).round(), 18, 94)
POLICY = SitePolicy()
pytestmark = pytest.mark.usefixtures("one_thread")


def column(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(values), dtype=torch.float32)[:, None]


def model(classes: int = 1, **arrays: float) -> Model:
    """The model of a task, as a server makes it up; the arrays that it leaves out are 0."""
    first = StatisticsLearner(without_clients(), 1, classes).initial(0).arrays()
    return model_of({name: np.full_like(a, arrays.get(name, 0.0)) for name, a in first.items()})


START = model()


def ask(
    models: Sequence[Model],
    data: Any,
    state: Path | None,
    run: str = "run",
    seed: int = 0,
    *,
    accept: Sequence[str] = (),
    policy: SitePolicy = POLICY,
    answered: type = UpdateSubmission,
) -> tuple[Any, list[Arrays], list[Any]]:
    """Let a server give a site these tasks; how the site has ended, its answers, and all that it has sent."""
    answers: list[Arrays] = []
    classes = models[0].arrays()["labels"].size
    plan = run_spec(ob.fedavg(epochs=1), StatisticsLearner(without_clients(), 1, classes), seed).document()

    async def script(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, run, plan, 60.0, False, "site"))
        for task, base in enumerate(models):
            channel.send(TaskAssignment(task, task, 1, seed, base))
            while not isinstance(update := await channel.receive(), answered):
                pass
            if isinstance(update, UpdateSubmission):
                assert isinstance(update.delta, torch.Tensor)
                answers.append(Model(base.layout, base.values + update.delta, base.integers).arrays())
            channel.send(UpdateAck(task, True))
        channel.send(RunFinished("done", run))
        await channel.receive()

    ended, said = meet(script, state, data=data, accept=accept, policy=policy)
    return ended, answers, said


def windows(ages: Sequence[float]) -> Iterator[Model]:
    """Windows so narrow that all samples below an age are in the first cell, and all others in the last."""
    for age in ages:
        yield model(stage=2, present=1, sums=age - 0.5, squares=1e-6)


def digest(values: Any) -> str:
    learner = StatisticsLearner(own_data(column(values), 0.0), rounded=True, least=POLICY.min_samples)
    return learner.told_digest


def patients_with_another(age: int) -> Any:
    """Patients of another age at this place, of whom a site tells just what it tells of `AGES`."""
    told = digest(AGES)
    for change, back, other in product((1, -1, 2, -2, 3, -3), (0, 1, -1, 2, -2, 3, -3), range(60)):
        patients = AGES.copy()
        patients[age] += change
        patients[other] += back
        if other != age and sorted(patients) != sorted(AGES) and digest(patients) == told:
            return patients
    return None


@pytest.mark.parametrize("every", [6, *thorough(1)])
def test_no_choice_of_windows_tells_an_age(every: int, tmp_path: Path) -> None:
    """Counts below each age told 59 of 60 ages of this site, as their differences.

    Now each answer follows from what the site tells any server. For each of the 60 ages there are other
    patients with another age there, of whom just the same is told.
    """
    ended, answers, _ = ask([*windows(range(18, 96))], column(AGES), tmp_path / "site")
    assert (ended, len(answers)) == ("done", 78)
    alike = [patients_with_another(age) for age in range(0, 60, every)]
    assert sum(others is None for others in alike) == 0
    another = alike[0]
    _, same, _ = ask([*windows(range(18, 96))], column(another), tmp_path / "other")
    assert str(answers) == str(same)


def test_a_task_has_one_answer_in_any_run_and_process(tmp_path: Path) -> None:
    """The site's process ends between two calls; runs differ in name, seed and the order of samples."""
    tasks = [START, model(stage=1, present=1, sums=50), *windows([40])]
    once = ask(tasks, column(AGES), tmp_path / "site")[1]
    for state, run, seed in (("site", "run", 0), ("site", "another", 7), ("elsewhere", "run", 1)):
        ended, answers, _ = ask([*tasks, *tasks], column(AGES[::-1].copy()), tmp_path / state, run, seed)
        assert ended == "done"
        assert str(answers) == str([*once, *once])


def test_a_mean_of_the_servers_choice_tells_no_more_digits(tmp_path: Path) -> None:
    """A server that gives a mean near to the site's would see the next digits in the distance."""
    _, (first,), _ = ask([START], column(AGES), tmp_path)
    mean = float(first["sums"][0])
    _, (near,), _ = ask([model(stage=1, present=1, sums=mean)], column(AGES), tmp_path)
    assert mean != pytest.approx(AGES.mean(), abs=1e-3)
    assert float(near["between"][0]) == pytest.approx(0.0, abs=1e-9)


REFUSED = "may differ from the present ones in fewer than min_samples = 4 samples"
RNG = np.random.default_rng(1)
PATIENTS = RNG.normal(55, 15, 80).round()
WOMEN, MEN = PATIENTS[:30], PATIENTS[30:50]


@pytest.mark.parametrize(
    ("before", "data", "refused"),
    [
        ([PATIENTS[:37]], PATIENTS[:38], True),  # another patient
        ([PATIENTS[:37]], PATIENTS[:36], True),
        ([PATIENTS[:37]], PATIENTS[1:38], True),  # one patient in place of another
        ([PATIENTS[:37]], [*PATIENTS[:36], np.nan], True),  # a value that is missing now
        ([PATIENTS[:37]], PATIENTS[:41], False),
        ([PATIENTS[:37], PATIENTS[:41]], PATIENTS[:38], True),
        ([WOMEN, MEN], PATIENTS[:51], True),  # one of neither
        ([PATIENTS[:51], WOMEN], MEN, True),
        ([WOMEN, PATIENTS[:51]], MEN, True),
        ([WOMEN, MEN], PATIENTS[:70], False),
    ],
)
def test_two_runs_do_not_tell_of_the_patients_in_which_their_data_differ(
    before: list[Any], data: Any, refused: bool, tmp_path: Path
) -> None:
    for n, own in enumerate(before):
        assert ask([START], column(own), tmp_path, f"run {n}")[0] == "done"
    ended, answers, said = ask([START], column(data), tmp_path, "the last")
    if not refused:
        assert ended == "done"
        return
    assert REFUSED in str(ended)
    assert not answers
    assert not sent_of_training(said)
    (leave,) = [message for message in said if isinstance(message, Leave)]
    assert REFUSED in leave.reason
    assert "--accept" not in leave.reason  # the code follows from the data
    assert ask([START], column(data), tmp_path, "the last", accept=[code_of(ended)])[0] == "done"
    assert ask([START], column(data), tmp_path, "once more")[0] == "done"


def test_other_columns_of_the_same_patients_are_other_data(tmp_path: Path) -> None:
    """A site cannot know a new column from an old one in which a patient was exchanged."""
    assert ask([START], column(AGES), tmp_path)[0] == "done"
    ended, *_ = ask([START], column(RNG.normal(size=60)), tmp_path, "another")
    assert REFUSED in str(ended)


def test_a_site_tells_of_some_data_only(tmp_path: Path) -> None:
    sizes = [10 * 3**n for n in range(MOST)]
    x = column(RNG.normal(size=2 * sizes[-1] + 100))
    for n, size in enumerate(sizes):
        assert ask([START], x[:size], tmp_path, str(n))[0] == "done"
    ended, *_ = ask([START], x[: 2 * sizes[-1]], tmp_path, "more")
    assert f"statistics of {MOST} different data, and tells no more" in str(ended)
    assert ask([START], x[: sizes[0]], tmp_path, "again")[0] == "done"


def test_a_site_that_cannot_remember_tells_nothing() -> None:
    ended, answers, said = ask([START], column(AGES), None)
    assert isinstance(ended, UsageError)
    assert "no directory to remember of which data it has told statistics" in str(ended)
    assert not answers
    assert not sent_of_training(said)


def test_numbers_of_rare_classes_are_told_neither_in_a_task_nor_at_the_registration(tmp_path: Path) -> None:
    """Two of 60 are of class 2, whose number the others' would give, also to a server of fewer classes."""
    data = ob.Dataset(column(AGES), torch.tensor([0] * 40 + [1] * 18 + [2] * 2), 3)
    for classes, told in ((3, [0.7, 0.3, 0.0]), (2, [0.7, 0.3]), (5, [0.7, 0.3, 0.0, 0.0, 0.0])):
        _, (answer,), _ = ask([model(classes)], data, tmp_path, str(classes))
        np.testing.assert_allclose(answer["labels"], told, atol=1e-6)
    plan = run_spec(ob.fedavg(epochs=1), StatisticsLearner(without_clients(), 1, 3), 0).document()

    async def asking(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "run", {**plan, "algorithm": {"name": "ours"}}, 60.0))
        channel.send(Rejected(LABELS_NEEDED))
        await channel.receive()

    ended, said = meet(asking, tmp_path, data=data)
    assert "its plan allows none" in str(ended)
    assert {message.labels for message in said if isinstance(message, Register)} == {()}


def test_a_model_that_is_none_tells_nothing(tmp_path: Path) -> None:
    """Its failure would tell, were it another one for other samples."""
    for wrong in (model(stage=float("nan")), model(stage=2, present=1, sums=float("inf"), squares=1)):
        failures = [
            ask([wrong], column(values), tmp_path / f"{n}", answered=TaskFailed)[2]
            for n, values in enumerate((AGES, AGES + 30))
        ]
        (first,), (second,) = map(sent_of_training, failures)
        assert first == second
