"""Rules of a recipe that concern several of its keys."""

import pytest

from offbeat.core.errors import UsageError
from offbeat.recipes.load import load_recipe


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["world.clients=7"], "world.clients = 7 is not clients = 10"),
        (["training.optimizer=adam", "training.momentum=0.9"], "momentum = 0.9 is for sgd"),
        (["world.availability.present=0.5"], "present = 0.5 is a share of period"),
        (["algorithms={../mine: {name: fedavg}}"], "label '../mine' is not allowed: it names a directory"),
        (
            ["algorithms={a\\b: {name: fedavg}}"],
            r"label 'a\\b' is not allowed: it names a directory: leave out /, \ ",
        ),
        ([f"algorithms={{{'a' * 300}: {{name: fedavg}}}}"], "and has 300 bytes: at most 255 are allowed"),
        (
            ["algorithm={name: fedavg, label: a/b}"],
            "algorithm.label = 'a/b' is not allowed: it names a directory",
        ),
        (["until={}"], "the run would never end"),
    ],
)
def test_what_would_be_ignored_or_misread_is_refused(sets, message):
    with pytest.raises(UsageError) as caught:
        load_recipe("digits", sets=sets)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_choice_of_the_algorithm_comes_before_its_options():
    recipe = load_recipe("digits", sets=["algorithm.size=7", "algorithm=fedbuff"])
    assert (recipe.algorithm["name"], recipe.algorithm["size"]) == ("fedbuff", 7)
