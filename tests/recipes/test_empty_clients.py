"""Clients to whom a partition gives no samples: refused with an offer, or left out aloud."""

import logging
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.recipes.build import make_learner, resume_run, run_recipe
from offbeat.recipes.compare import plan
from offbeat.recipes.load import check
from offbeat.runs.record import read_run

pytestmark = pytest.mark.usefixtures("one_thread")


def recipe_of(**data: Any) -> Any:
    return check(
        {
            "clients": 12,
            "data": {
                "dataset": "digits", "samples": 60, "test_samples": 20,
                "partition": {"kind": "label_dirichlet", "alpha": 0.01, "min_size": 0}, **data,
            },
            "model": {"name": "logistic"},
            "algorithm": {"name": "fedavg", "steps": 1},
            "until": {"versions": 3},
        },
        "here",
    )  # fmt: skip


def test_they_are_refused_with_the_offer_to_leave_them_out() -> None:
    with pytest.raises(ob.UsageError, match=r"of 12 has no samples: .*in a recipe data\.drop_empty"):
        make_learner(recipe_of())
    draws = {"kind": "label_dirichlet", "alpha": 0.01, "min_size": 5}
    with pytest.raises(ob.UsageError, match=r"or leave empty clients out, by min_size = 0 and drop_empty"):
        make_learner(recipe_of(partition=draws))


def test_a_run_without_them_is_resumed_and_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    recipe = recipe_of(drop_empty=True)
    with caplog.at_level(logging.WARNING):
        left = make_learner(recipe).clients
    assert left < 12
    assert f"{12 - left} of 12 clients have no samples and are left out" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, out=tmp_path / "run", watch=interrupt)
    resume_run(tmp_path / "run")
    whole = run_recipe(recipe, out=None)
    record = read_run(tmp_path / "run")
    assert record.status == "finished"
    assert whole.summary == record.summary
    assert {row.client for row in record.rows("event") if row.name == "arrived"} == set(range(left))
    assert len(plan(recipe.model_copy(update={"algorithms": {}}), ["fedavg"], 1, tmp_path / "all")) == 1
