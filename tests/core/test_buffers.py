"""What a policy puts round an objective, and which policies fit: `core.buffers`."""

from dataclasses import replace

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.fedasmu.merging import FreshMerge, Merge
from offbeat.core.buffers import OwnBuffers, finalizer, unchanged
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.objective import FreshModel, LocalRun
from offbeat.local.objectives import Plain, Proximal

UNSENT = pytest.mark.parametrize("policy", ["local", "recompute"])


@UNSENT
def test_an_algorithms_objective_is_what_its_clients_train(policy):
    changed = replace(ob.fedprox(mu=0.5), buffers=policy)
    assert changed.objective == OwnBuffers(Proximal(0.5), stateful=policy == "local")
    assert replace(changed, buffers="recompute").objective == OwnBuffers(Proximal(0.5), stateful=False)
    assert replace(changed, objective=Plain()).objective == OwnBuffers(Plain(), stateful=policy == "local")
    assert replace(changed, buffers="mean").objective == Proximal(0.5)
    assert replace(ob.scaffold(), buffers=policy).objective.shared_vectors == 1


def test_clients_that_keep_buffers_keep_state():
    plain = ob.fedavg()
    assert replace(plain, buffers="local").requires == {Feature.CLIENT_STATE}
    assert replace(plain, buffers="recompute").requires == plain.requires
    asking = replace(ob.fedasmu(), buffers="local")  # whose schedule needs the merge
    assert asking.requires == ob.fedasmu().requires
    assert isinstance(asking.objective, OwnBuffers)


def test_a_policy_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match="buffers = 'none' is not allowed: choose follow, mean, local, rec"):
        replace(ob.fedavg(), buffers="none")


@pytest.mark.parametrize("make", [ob.moon, lambda: ob.compose(ob.fedasmu(), objective=ob.moon())])
def test_a_model_received_without_statistics_cannot_be_compared_with(make):
    replace(make(), buffers="local")
    with pytest.raises(UsageError, match=r"buffers = 'recompute' is not allowed with (Contrastive|FreshMe)"):
        replace(make(), buffers="recompute")


# ---- by name ----


@UNSENT
def test_composed_by_name(policy):
    made = ob.compose(ob.fedbuff(3), objective=ob.fedprox(mu=0.1), buffers=policy)
    assert made == replace(made, buffers=policy)
    assert made.hyperparameters["with"]["buffers"] == policy
    spec = {"name": "fedbuff", **made.hyperparameters}
    assert ob.algorithms.build(ob.ALGORITHMS, spec) == made
    assert ob.algorithms.recorded_name(made) == "fedbuff"
    assert ob.algorithms.recorded_name(replace(ob.fedbuff(3), buffers=policy)) == "fedbuff (changed)"


@UNSENT
def test_composed_once_more(policy):
    first = ob.compose(ob.fedasmu(), buffers=policy)
    again = ob.compose(first, objective=ob.fedprox(mu=0.2))
    assert again.buffers == policy
    assert again.objective == replace(
        first.objective, inner=replace(ob.fedasmu().objective, inner=Proximal(0.2))
    )
    elsewhere = ob.compose(ob.fedavg(), objective=first)  # buffers are no part of an objective
    assert (elsewhere.buffers, elsewhere.objective) == ("follow", Plain())
    requests = ob.compose(ob.fedbuff(), requests=first)
    assert isinstance(requests.objective, FreshMerge)


def test_a_wrong_name_in_a_recipe():
    with pytest.raises(UsageError, match=r"fedavg: with.buffers = 'lokal' is not allowed"):
        ob.algorithms.build(ob.ALGORITHMS, {"name": "fedavg", "with": {"buffers": "lokal"}})


# ---- one task, by hand ----


def run_of(state=None):
    w = torch.tensor([1.0], requires_grad=True)
    buffers, integers = [torch.tensor([0.0]), torch.tensor([1.0, 1.0])], [torch.tensor(4)]
    return LocalRun([w], [torch.tensor([1.0])], buffers, state=state or {}, integers=integers)


def train(own, run):
    """A task that adds one to each of its buffers; returns what they were before and after it."""
    own.begin(run)
    tensors = [*run.buffers, *run.integers]
    before = [t.tolist() for t in tensors]
    for tensor in tensors:
        tensor.add_(1)
    own.end(run)
    return before, [t.tolist() for t in tensors]


AS_THEY_CAME = [[0.0], [1.0, 1.0], 4]


def test_kept_buffers_go_on_where_they_were_and_leave_no_change():
    own = OwnBuffers(Plain(), stateful=True)
    first, second = run_of(), None
    assert train(own, first) == (AS_THEY_CAME, AS_THEY_CAME)
    kept = {name: tensor.clone() for name, tensor in first.state.items()}
    assert {name: t.tolist() for name, t in kept.items()} == {
        "buffers.floating": [1.0, 2.0, 2.0],
        "buffers.integer": [5],
    }
    second = run_of(first.state)
    assert train(own, second) == ([[1.0], [2.0, 2.0], 5], AS_THEY_CAME)
    assert second.state["buffers.floating"].tolist() == [2.0, 3.0, 3.0]
    assert second.state["buffers.integer"].tolist() == [6]
    assert all(torch.equal(first.state[name], tensor) for name, tensor in kept.items())


def test_buffers_that_nobody_keeps_begin_anew_each_time():
    own = OwnBuffers(Plain(), stateful=False)
    first = run_of()
    assert train(own, first) == (AS_THEY_CAME, AS_THEY_CAME)
    assert first.state == {}


def test_an_objective_inside_keeps_its_own_state_and_sees_the_clients_buffers():
    """MOON compares with the model received, under the client's statistics, and keeps its own."""
    state = {"buffers.floating": torch.tensor([5.0, 6.0, 7.0]), "buffers.integer": torch.tensor([8])}
    run = run_of(state)
    own = OwnBuffers(ob.moon(mu=1.0).objective, stateful=True)
    own.begin(run)
    assert [t.tolist() for t in run.scratch["received"]] == [[1.0], [5.0], [6.0, 7.0]]
    run.buffers[0].add_(10)
    own.end(run)
    assert run.state["model"].tolist() == [1.0, 15.0, 6.0, 7.0]
    assert run.state["buffers.floating"].tolist() == [15.0, 6.0, 7.0]


def test_a_model_without_buffers_leaves_nothing_behind():
    w = torch.tensor([1.0])
    run = LocalRun([w], [w])
    own = OwnBuffers(Plain(), stateful=True)
    own.begin(run)
    assert own.end(run) == {}
    assert run.state == {}


@pytest.mark.parametrize("mu", [1.0, 40.0])
@pytest.mark.parametrize("kept", [True, False])
def test_a_model_that_comes_in_mid_task_mixes_no_buffers(mu, kept):
    """β = 3/11 as in FedASMU's own numbers, and above one half: rounding has two ways there."""
    run = run_of()
    own = OwnBuffers(FreshMerge(options=Merge(mu=mu)), stateful=kept)
    own.begin(run)

    def loss():
        for buffer in run.buffers:
            buffer.copy_(torch.full_like(buffer, 0.1) * 3)  # as BatchNorm does when it is called
        return torch.tensor(9.0)

    fresh = FreshModel([torch.tensor([12.0]), torch.tensor([11.0]), torch.tensor([7.0, 7.0])], 4, 3)
    own.merge(run, fresh, loss)
    beta = 3 * mu / (8 + 3 * mu)
    assert run.parameters[0].tolist() == pytest.approx([1 + beta * 11])
    assert [b.tolist() for b in run.buffers] == [(torch.full_like(b, 0.1) * 3).tolist() for b in run.buffers]
    metrics = own.end(run)
    assert metrics["beta"] == pytest.approx(beta)
    assert ("buffers.floating" in run.state) == kept
    assert "merge" in run.state


# ---- who completes a model ----


def test_who_has_nothing_to_complete_completes_nothing():
    plain, normed = Model.empty(Layout.flat(3)), Model.of(torch.nn.BatchNorm1d(2))
    for policy in ("follow", "mean"):
        assert finalizer(policy, None, normed, 0) is unchanged
    for policy in ("local", "recompute"):
        assert finalizer(policy, None, plain, 0) is unchanged
    assert finalizer("local", None, normed, 0) is unchanged
    with pytest.raises(UsageError, match=r"buffers = 'recompute' needs samples .* give it test data"):
        finalizer("recompute", None, normed, 0)


@UNSENT
def test_a_learner_that_cannot_estimate_is_refused(policy):
    normed = Model.of(torch.nn.BatchNorm1d(2))
    with pytest.raises(
        UsageError, match=rf"buffers = '{policy}' needs a learner .* give NoTraining a method"
    ):
        finalizer(policy, ob.NoTraining(3), normed, 0)
