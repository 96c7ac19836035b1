"""A method for data of one distribution on divided data: one line that says so, and the run goes on."""

import logging

import pytest

from offbeat.recipes.build import run_recipe
from offbeat.recipes.load import check


@pytest.mark.parametrize(
    ("algorithm", "partition", "notes"),
    [
        ({"name": "ringmaster"}, {"kind": "label_dirichlet", "alpha": 0.3}, 1),
        ({"name": "rennala", "size": 3}, {"kind": "label_dirichlet", "alpha": 0.3}, 1),
        ({"name": "ringmaster"}, {"kind": "iid"}, 0),
        ({"name": "malenia", "size": 3}, {"kind": "label_dirichlet", "alpha": 0.3}, 0),
        ({"name": "ringleader"}, {"kind": "label_dirichlet", "alpha": 0.3}, 0),
    ],
)
def test_it_is_a_note(algorithm, partition, notes, caplog):
    document = {
        "clients": 3, "data": {"dataset": "digits", "samples": 60, "partition": partition},
        "model": {"name": "logistic"}, "algorithm": {**algorithm, "steps": 1}, "until": {"tasks": 6},
        "training": {"optimizer": "sgd", "lr": 0.1, "batch_size": 5},
    }  # fmt: skip
    with caplog.at_level(logging.WARNING, "offbeat.recipes.build"):
        run = run_recipe(check(document, "test"), out=None)
    assert run.summary.tasks == 6
    told = [r.getMessage() for r in caplog.records if r.name == "offbeat.recipes.build"]
    assert len(told) == notes
    if notes:
        assert told[0].startswith(
            f"{algorithm['name']} is for clients whose data are of one distribution, and"
        )
        assert "with partition label_dirichlet choose ringleader or malenia" in told[0]
