"""Plausible mistakes in a recipe: the line that answers each names the right key."""

from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat.recipes.build import make_algorithm
from offbeat.recipes.hints import keys_allowed
from offbeat.recipes.load import document_of, load_recipe
from offbeat.recipes.other_names import OTHER_NAMES
from offbeat.world.partitions import LabelDirichlet

PLACES = [
    ("lr=0.1", 'unknown key lr; did you mean "training.lr"?'),
    ("learning_rate=0.1", 'unknown key learning_rate; did you mean "training.lr"?'),
    ("training.learning_rate=0.1", 'unknown key training.learning_rate; did you mean "training.lr"?'),
    ("training={epochs: 2}", 'unknown key training.epochs; did you mean "algorithm.epochs"?'),
    ("until={rounds: 3}", 'unknown key until.rounds; did you mean "until.versions"?'),
    ("evaluate={rounds: 3}", 'unknown key evaluate.rounds; did you mean "evaluate.versions"?'),
    ("rounds=3", 'unknown key rounds; did you mean "until.versions"?'),
    ("steps=3", 'unknown key steps; did you mean "algorithm.steps"?'),
    ("dataset=mnist", 'unknown key dataset; did you mean "data.dataset"?'),
    ("device=cuda", 'unknown key device; did you mean "training.device"?'),
    ("data.batch-size=3", 'unknown key data.batch-size; did you mean "training.batch_size"?'),
    # Of a key that this table does not have, any place with the same name.
    ("alpha=0.3", 'unknown key alpha; did you mean "data.partition.alpha"?'),
    ("clip_norm=1", 'unknown key clip_norm; did you mean "training.clip_norm"?'),
    ("data.latency=1", 'unknown key data.latency; did you mean "world.network.latency"?'),
]
FORMS = [
    ("algorithm={fedbuff}", "algorithm = {'fedbuff': None} has no name: write {name: fedbuff}"),
    ("algorithm={fedfa: {size: 3}}", "has no name: write {name: fedfa}, with its options beside the name"),
    ("algorithm={name: fedavg, with: {aggregator: {fedfa}}}", "has no name: write {name: fedfa}"),
    ("algorithm=[fedbuff]", "algorithm = ['fedbuff'] is not allowed: write a name, such as fedbuff"),
    ("model.hidden=64", "model.hidden = 64 is not allowed: should be a list, such as [64]"),
    ("personal=head.*", "personal = 'head.*' is not allowed: should be a list, such as ['head.*']"),
    ("sweep={training.lr: 0.1}", "sweep.training.lr = 0.1 is not allowed: should be a list, such as [0.1]"),
    ("metrics=5", "metrics = 5 is not allowed: should be a list, such as [5]"),
    ("seed=010", "--set seed=010 is not valid YAML at line 1: it reads 010 as 8: write the number"),
    ("seed=-0_7", "it reads -0_7 as -7"),
    ("clients=1:30", "it reads 1:30 as 90"),
    ("training.lr=1:30.5", "it reads 1:30.5 as 90.5"),
    # A path has keys as they are written, without the kinds of sections.
    ("data.partition={kind: label_dirichlet, alpha: x}", "data.partition.alpha = 'x' is not allowed"),
    ("algorithm={name: fedbuff, staleness: {kind: constant, a: 1}}", "unknown key staleness.a; known"),
    ("algorithm={name: fedbuff, with: {codec: {kind: top_k, bytes: 1}}}", "with.unknown key codec.bytes"),
]


@pytest.mark.parametrize(("change", "line"), [*PLACES, *FORMS])
def test_a_mistake_is_answered_in_a_line_with_the_right_key(change: str, line: str) -> None:
    with pytest.raises(ob.UsageError) as caught:
        make_algorithm(load_recipe("digits", sets=[change]).algorithm)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_has_each_key_that_another_name_means() -> None:
    options = {option.name for factory in ob.ALGORITHMS.values() for option in factory.hyperparameters}
    for place in OTHER_NAMES.values():
        *path, last = place.split(".")
        known = options if path == ["algorithm"] else keys_allowed((*path, ""))
        assert last in known, place


def test_a_label_with_nothing_behind_it_has_the_defaults(tmp_path: Any) -> None:
    document = document_of(load_recipe("digits")) | {"algorithms": {"fedavg": None, "fedbuff": None}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(document))
    assert load_recipe(str(path)).algorithms == {"fedavg": {}, "fedbuff": {}}


def test_dirichlet_is_label_dirichlet_and_recorded_so() -> None:
    short, full = (
        load_recipe("digits", sets=[f"data.partition={{kind: {kind}, alpha: 0.3}}"])
        for kind in ("dirichlet", "label_dirichlet")
    )
    assert short == full
    assert short.data.partition == LabelDirichlet(alpha=0.3)
    assert document_of(short)["data"]["partition"]["kind"] == "label_dirichlet"
    with pytest.raises(ob.UsageError, match=r'unknown key data\.partition\.alpha2; did you mean "alpha"\?'):
        load_recipe("digits", sets=["data.partition={kind: dirichlet, alpha2: 0.3}"])
