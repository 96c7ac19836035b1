"""The server's own training on trusted data: it follows from version and seed, and is there after a break."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat import robust as r
from offbeat.core.learner import LocalTask
from offbeat.local.objectives import Plain
from offbeat.recipes.build import make_learner, make_server_learner
from offbeat.recipes.recipe import Recipe
from tests.sim.sim_worlds import CALM, mlp
from tests.sim.test_interruption import UNTIL, Interrupting, begin


def learner(root: int = 40) -> ob.TorchLearner:
    source = ob.load("digits", samples=300, test_samples=100, seed=0)
    parts = np.array_split(np.arange(root, 300), 5)
    data = ob.federate(source, None, parts, root=source.train.subset(np.arange(root)) if root else None)
    return ob.TorchLearner(mlp, data, ob.Training(lr=0.2, batch_size=20))


def test_an_update_follows_from_version_seed_and_steps():
    first, second = learner(), learner()
    model = first.initial(3)
    found = first.train_root(model, 7, 3, 4)
    assert found.dtype is torch.float32
    assert float(found.norm()) > 0.01
    first.train(model, LocalTask(0, 0, 0, 2, 3), Plain())  # what clients do changes nothing
    for same in (first, second):
        assert torch.equal(same.train_root(model, 7, 3, 4), found)
    for other in ((8, 3, 4), (7, 4, 4), (7, 3, 5)):
        assert not torch.equal(first.train_root(model, *other), found)


def test_it_is_what_a_client_with_these_data_would_train():
    """But for the batches: of a single full batch there is one."""
    own = learner()
    full = ob.TorchLearner(mlp, own.data, ob.Training(lr=0.2, batch_size=300))
    alone = ob.TorchLearner(mlp, ob.federate([own.data.root]), ob.Training(lr=0.2, batch_size=300))
    model = full.initial(0)
    expected = alone.train(model, LocalTask(0, 0, 0, 3, 0), Plain()).delta
    assert torch.allclose(full.train_root(model, 0, 0, 3), expected, atol=1e-5)


def test_it_is_renewed_every_so_many_versions():
    asked: list[int] = []

    class Asked(ob.TorchLearner):
        def train_root(self, model: Any, version: int, seed: int, steps: int) -> torch.Tensor:
            asked.append(version)
            return super().train_root(model, version, seed, steps)

    own = learner()
    algorithm = ob.compose(ob.fedbuff(2, steps=3), aggregator=r.AFLGuard(steps=3, every=4))
    ob.simulate(
        algorithm, CALM, Asked(mlp, own.data, own.training), until=ob.Until(versions=10), evaluate=None
    )
    assert asked == [0, 4, 8]


@pytest.mark.parametrize(
    "rule", [r.AFLGuard(steps=3, every=4), r.ZenoPlus(steps=3, every=4)], ids=["aflguard", "zeno"]
)
def test_a_run_that_is_interrupted_ends_as_if_it_never_had_been(rule: Any, tmp_path: Path) -> None:
    algorithm, own = ob.compose(ob.fedasync(steps=3), aggregator=rule), learner()
    whole = ob.simulate(algorithm, CALM, own, seed=4, until=UNTIL)
    begin(tmp_path / "run", algorithm, Rooted(own, [30]))
    again = ob.resume(tmp_path / "run", algorithm, CALM, learner(), until=UNTIL)
    assert torch.equal(again.model.values, whole.model.values)
    assert not torch.equal(whole.model.values, own.initial(4).values)


class Rooted(Interrupting):
    """A learner that interrupts the run, and has root data."""

    @property
    def root_samples(self) -> int:
        return self.learner.root_samples

    def train_root(self, *args: Any) -> torch.Tensor:
        return self.learner.train_root(*args)


def test_without_root_data_it_is_refused_in_one_line(tmp_path: Path) -> None:
    algorithm = ob.compose(ob.fedbuff(2), aggregator=r.AFLGuard(steps=3))
    message = (
        r"^fedbuff needs a server with trusted data of its own, and this one has none: give root = samples "
        r"in data \(a recipe\) or to federate\(…\), or choose an aggregator without, such as centered_clip$"
    )
    with pytest.raises(ob.UsageError, match=message):
        ob.simulate(algorithm, CALM, learner(root=0), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_keeps_samples_for_the_server():
    document: dict[str, Any] = {
        "clients": 4, "algorithm": {"name": "fedbuff"}, "until": {"versions": 3},
        "data": {"dataset": "digits", "samples": 200, "partition": {"kind": "iid"}},
    }  # fmt: skip
    whole = make_learner(Recipe.model_validate(document).with_seed(3))
    document["data"]["root"] = 30
    recipe = Recipe.model_validate(document)
    recipe = recipe.with_seed(3)
    own, server = make_learner(recipe), make_server_learner(recipe)
    assert (own.root_samples, server.root_samples, whole.root_samples) == (30, 30, 0)
    assert sum(own.samples(c) for c in range(4)) == 170
    assert torch.equal(own.data.root.x, server.data.root.x)
    clients = {tuple(x.flatten().tolist()) for x in own.data.train.x}
    assert not clients & {tuple(x.flatten().tolist()) for x in own.data.root.x}
    model = own.initial(3)
    assert torch.equal(own.train_root(model, 2, 3, 4), server.train_root(server.initial(3), 2, 3, 4))
    document["data"]["root"] = 200
    with pytest.raises(
        ob.UsageError, match=r"^data.root = 200 is not allowed: the train set has 200 samples$"
    ):
        make_learner(Recipe.model_validate(document).with_seed(3))
