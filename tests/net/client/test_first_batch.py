"""A site's data are tried before it takes part: what cannot fit ends it in one line, and nothing is sent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy
from offbeat.core.errors import UsageError
from offbeat.data import without_clients
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.targets import TargetError
from offbeat.models.specs import LogisticSpec
from offbeat.net.client.first_batch import DataError, check_data
from offbeat.net.client.join import make_context
from offbeat.net.client.site import Site
from offbeat.net.client.task import TrainingTask
from offbeat.net.messages import Leave, Register, Registered, RunFinished, TaskAssignment, TaskFailed
from offbeat.net.server.server_learner import server_learner
from offbeat.net.transport import ServerChannel
from tests.net.deviating_server import meet
from tests.net.support import run_spec

pytestmark = pytest.mark.usefixtures("here")

RANDOM = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 8, generator=RANDOM), torch.arange(40) % 2
TRAINING = ob.Training(lr=0.1, batch_size=10)
PRIVACY = ob.Privacy(clip=0.5, least=2, noise=ob.Noise(multiplier=2))
BINARY = functional.binary_cross_entropy_with_logits


def one_score() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))


def three_scores() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))


def plan_of(
    model: Any, privacy: ob.Privacy | None, algorithm: ob.Algorithm, **options: Any
) -> dict[str, Any]:
    learner = ob.TorchLearner(model, without_clients(), TRAINING, **options)
    complete = None if privacy is None else complete_privacy(privacy, algorithm, 4)
    return run_spec(algorithm, learner, 3, complete).document()


def joined(
    model: Any, data: Any, tmp_path: Path, privacy: ob.Privacy | None = None, **options: Any
) -> tuple[Any, list[Any]]:
    """How a site with these data ends, and what it has sent."""
    plan = plan_of(model, privacy, ob.fedbuff(size=2, steps=2), **options)

    async def script(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "heart", plan, 60.0, False, "site"))
        channel.send(RunFinished("done", "heart"))
        await channel.receive()

    return meet(script, tmp_path, data=data, model=model)


def own_loss(output: Tensor, target: Tensor) -> Tensor:
    """What the site cannot know by its name."""
    return 2 * BINARY(output, target.view(-1))


def one_of_four(output: Tensor, target: Tensor) -> Tensor:
    """Takes labels 1 to 4 for its own two classes."""
    return BINARY(output, (target == 2).float()) + functional.cross_entropy(
        output.expand(4, -1).T, target - 1
    )


NOT_FINITE = X.clone()
NOT_FINITE[:, 2] = torch.nan


@pytest.mark.parametrize(
    ("model", "options", "data", "says"),
    [
        (one_score, {"loss": BINARY}, (X[:, :7], Y.float()), r"\[10, 7\].* mat1 and mat2 shapes cannot"),
        (one_score, {"loss": own_loss}, (X, Y), "convert the targets to float32"),
        (one_score, {"loss": BINARY}, (X, Y.float() + 1), r"has the target 2\.0, .* \[0, 1\]"),
        (one_score, {"loss": BINARY}, (X, Y.float() * 2 - 1), r"has the target -1\.0"),
        (one_score, {"loss": nn.BCEWithLogitsLoss()}, (X, Y.float() + 1), r"has the target 2\.0"),
        (one_score, {"loss": nn.SoftMarginLoss()}, (X, Y.float()), r"has the target 0\.0"),
        (one_score, {"loss": BINARY}, list(zip(X, Y.float() + 1, strict=True)), r"has the target 2\.0"),
        (one_score, {"loss": own_loss}, (X, Y.float() + 1), "labels are 1 to 2"),
        (one_score, {"loss": own_loss}, (X, torch.where(torch.arange(40) == 39, 2.0, 1.0)), "labels are 1"),
        (one_score, {"loss": one_of_four}, (X, Y * 4 + 1), r"out of bounds|labels are 0 to 4"),
        (one_score, {"loss": BINARY}, X, r"without a target, which the loss needs: give pairs \(x, y\)"),
        (three_scores, {}, (X.double(), Y), "float32"),
        (three_scores, {}, (X, Y + 2), r"(Target 3 is out of bounds|labels are 2 to 3)"),
        (three_scores, {}, (X, torch.where(torch.arange(40) == 39, 3, 0)), "labels are 0 to 3, .* 3 classes"),
        (three_scores, {}, (X, torch.where(torch.arange(40) == 39, -1, 0)), "labels are -1 to 0, .* 3"),
        (three_scores, {}, (X, torch.full((40,), -100)), "no label of the batch counts"),
        (three_scores, {}, (NOT_FINITE, Y), r"NaN or infinite values in column 2; remove or fill them"),
    ],
)  # fmt: skip
def test_data_that_cannot_fit(
    model: Any, options: dict[str, Any], data: Any, says: str, tmp_path: Path
) -> None:
    privacy = None if model is three_scores else PRIVACY  # which knows no buffers
    if options.get("loss", BINARY) is BINARY:
        error, said = joined(model, data, tmp_path, privacy, **options)
        assert isinstance(error, DataError)
        assert "\n" not in str(error)
        assert [type(message) for message in said] == [Register, Leave]
        assert said[-1] == Leave(DataError.told)  # which has nothing of the data
    else:  # which does not travel by name
        learner = ob.TorchLearner(model, ob.federate([data]), TRAINING, **options)
        with pytest.raises(DataError) as raised:
            check_data(learner, 0, 3, ob.fedavg(steps=1).objective)
        error = raised.value
    assert str(error).startswith("the data of this site do not fit the run: ")
    with pytest.raises(UsageError, match=says):
        raise error


@pytest.mark.parametrize(
    ("model", "options", "data"),
    [
        (one_score, {"loss": BINARY}, (X, Y.float())),
        (one_score, {"loss": BINARY}, (X, Y / 2)),  # soft ones
        (one_score, {"loss": one_of_four}, (X, torch.arange(40) % 4 + 1)),
        (one_score, {"loss": functional.mse_loss}, (X, Y.float() * 100)),
        (three_scores, {}, (X, Y)),
        (three_scores, {}, (X, torch.where(Y == 1, -100, 2))),
    ],
)
def test_data_that_fit(model: Any, options: dict[str, Any], data: Any, tmp_path: Path) -> None:
    check_data(ob.TorchLearner(model, ob.federate([data]), TRAINING, **options), 0, 3, ob.fedavg().objective)
    if options.get("loss") is not one_of_four:
        ended, said = joined(model, data, tmp_path, **options)
        assert ended == "done"
        assert [type(message) for message in said] == [Register, Leave]


def test_a_target_that_comes_later_is_not_told_to_the_server(tmp_path: Path) -> None:
    """A map-style dataset is read as the training goes on; its site's log says which sample it is."""
    samples = [(x, y + 2.0 * (row == 39)) for row, (x, y) in enumerate(zip(X, Y.float(), strict=True))]
    plan = plan_of(one_score, None, ob.fedbuff(size=2, steps=4), loss=BINARY)
    model = ob.TorchLearner(one_score, ob.federate([(X, Y.float())]), TRAINING, loss=BINARY).initial(3)
    failed: list[Any] = []

    async def script(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "heart", plan, 60.0, False, "site"))
        channel.send(TaskAssignment(0, 0, 4, 3, model))
        while not failed:
            message = await channel.receive()
            failed.extend([message] if isinstance(message, TaskFailed) else [])
        channel.send(RunFinished("done", "heart"))
        await channel.receive()

    meet(script, tmp_path, data=samples, model=one_score)
    assert failed == [TaskFailed(0, f"TargetError: {TargetError.told}")]


def trained(context: Any, model: Any) -> Tensor:
    task = TrainingTask(TaskAssignment(0, 0, 5, 3, model), context, lambda _: None)
    delta = task.run({}).update.delta
    assert isinstance(delta, Tensor)
    return delta


@pytest.mark.parametrize("algorithm", [ob.fedavg(steps=5), ob.moon(steps=5), ob.scaffold(steps=5)])
def test_the_training_that_follows_has_the_same_bits(
    algorithm: ob.Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BatchNorm's statistics, dropout's numbers and objectives' vectors are as they would have been."""
    plan = plan_of(three_scores, None, algorithm)
    found = []
    for tries in (True, False):
        if not tries:
            monkeypatch.setattr("offbeat.net.client.task.check_data", lambda *_: None)
        context = make_context(Site.of((X, Y), three_scores))(plan, 0)
        model = context.learner.initial(3).sharing(context.objective.shared_vectors)
        found.append(trained(context, model))
    assert torch.equal(*found)
    assert bool(found[0].any())


def test_examples_with_privacy_spend_nothing_by_it(tmp_path: Path) -> None:
    from offbeat.net.client.examples_ledger import ExamplesLedger, ExamplesSpent

    pytest.importorskip("opacus")
    ledger = ExamplesLedger(ExamplesPrivacy(noise=2.0), tmp_path)
    spec = run_spec(ob.fedavg(steps=5), server_learner(LogisticSpec(), TRAINING, None, (8,), 2), 3)
    make_context(Site.of(ob.Dataset(X, Y, classes=2)), examples=ledger)(spec.document(), 0)
    assert ExamplesSpent.read(tmp_path) is None
    wrong = ob.Dataset(torch.where(X > 0, torch.nan, X), Y, classes=2)
    with pytest.raises(DataError, match="NaN"):
        make_context(Site.of(wrong), examples=ledger)(spec.document(), 0)


def test_a_loop_of_ones_own_is_not_tried() -> None:
    """What it does with its data is not known."""
    called = []
    learner = ob.LoopLearner(lambda task: called.append(task), one_score, 40, batch_size=10)
    plan = plan_of(one_score, None, ob.fedavg(steps=2), loss=BINARY)
    make_context(Site.of(learner=learner))(plan, 0)
    assert not called


def test_it_is_one_step() -> None:
    learner = ob.TorchLearner(three_scores, ob.federate([(X, Y)]), replace(TRAINING, accumulate=2))
    steps = []
    learner.criterion = replace(
        learner.criterion, loss=lambda out, y: (steps.append(len(y)), functional.cross_entropy(out, y))[1]
    )
    check_data(learner, 0, 3, ob.fedavg(steps=7).objective)
    assert steps == [5, 5]
