"""Recipes that gather statistics of features, and recipes that use them."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

import offbeat as ob
from offbeat.cli.console import see_with
from offbeat.core.errors import UsageError
from offbeat.data import Dataset
from offbeat.inference.trained import trained_module
from offbeat.models.specs import StandardizedSpec
from offbeat.recipes.build import make_learner, make_server_learner, resume_run, run_recipe
from offbeat.recipes.load import load_recipe
from offbeat.recipes.standardize import read_statistics
from offbeat.runs.record import read_run


def recipe(name, *sets):
    return load_recipe(name, sets=["data.partition={kind: iid}", *sets])


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    directory = tmp_path_factory.mktemp("statistics") / "run"
    run_recipe(recipe("statistics", "data.samples=200"), out=directory)
    return directory


def test_a_run_gathers_what_its_directory_tells(gathered):
    found = read_statistics(gathered)
    x = make_learner(recipe("statistics", "data.samples=200")).data.train.x.flatten(1).double().numpy()
    assert found.samples == 200
    np.testing.assert_allclose(found.mean, x.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.std, x.std(0), atol=1e-6)


def test_it_is_resumed_as_any_run(gathered):
    assert resume_run(gathered).stop_reason == "reached 3 versions"


def test_the_command_ends_with_a_hint_at_what_shows_it(tmp_path):
    assert see_with(tmp_path) == f"see it with: offbeat report {tmp_path}"


@pytest.mark.parametrize("given", ["federated", "directory"])
def test_a_recipe_standardizes(gathered, given):
    value = "federated" if given == "federated" else str(gathered)
    learner = make_learner(recipe("digits", "data.samples=200", f"data.standardize={value}"))
    spec = learner.module.spec
    assert isinstance(spec, StandardizedSpec)
    np.testing.assert_allclose(spec.mean, read_statistics(gathered).mean, rtol=5e-3, atol=5e-3)


def test_a_server_has_statistics_only_from_a_run(gathered):
    server = make_server_learner(recipe("digits", f"data.standardize={gathered}"))
    assert isinstance(server.module.spec, StandardizedSpec)
    with pytest.raises(UsageError, match="federated is for a simulation"):
        make_server_learner(recipe("digits", "data.standardize=federated"))


def test_sites_far_apart_are_logged(caplog):
    caplog.set_level(logging.WARNING)
    sets = ["data.standardize=federated", "data.samples=200", "data.partition={kind: shards}"]
    make_learner(load_recipe("digits", sets=sets))
    assert "sites lie far apart in features" in caplog.text


def test_what_cannot_be_standardized_is_refused(tmp_path, gathered):
    with pytest.raises(UsageError, match="is for a built-in model"):
        make_learner(recipe("digits", "model=module:function", "data.standardize=federated"))
    with pytest.raises(UsageError, match="nowhere"):
        make_learner(recipe("digits", f"data.standardize={tmp_path / 'nowhere'}"))
    run_recipe(recipe("digits", "until={versions: 1}", "data.samples=100"), out=tmp_path / "trained")
    with pytest.raises(UsageError, match="the run has trained another one"):
        read_statistics(tmp_path / "trained")


def test_the_model_of_a_run_scales_its_inputs_wherever_it_is_used(tmp_path):
    made = run_recipe(
        recipe("digits", "until={versions: 2}", "data.samples=100", "data.standardize=federated"),
        out=tmp_path / "run",
    )
    trained = trained_module(read_run(tmp_path / "run"))
    test = make_learner(recipe("digits", "data.samples=100")).data.test
    right = (trained.module(test.x).argmax(1) == test.y).float().mean()
    assert float(right) == pytest.approx(made.summary.accuracy)
    spec = json.loads(trained.metadata["arguments"])
    assert len(spec["mean"]) == len(spec["std"]) == 64


@ob.expose
def patients(order=(0, 1, 2), seed=0):
    x = np.random.default_rng(seed).normal(size=(60, 3)).astype("float32") * [1, 10, 100] + [0, 50, 500]
    frame = pd.DataFrame(x, columns=["age", "pressure", "dose"]).iloc[:, list(order)]
    return Dataset(frame, (frame["age"].to_numpy() > 0).astype("int64"), 2)


PATIENTS = [f"data.dataset={__name__}:patients", "clients=2"]


def test_statistics_and_samples_are_matched_by_the_names_of_columns(tmp_path):
    own = recipe("statistics", *PATIENTS)
    run_recipe(own, out=tmp_path / "statistics", allow=[__name__])
    found = read_statistics(tmp_path / "statistics")
    assert found.names == ("age", "pressure", "dose")
    sets = [*PATIENTS, "model=logistic", f"data.standardize={tmp_path / 'statistics'}"]
    turned = recipe("digits", *sets, "data.options={order: [2, 0, 1]}")
    learner = make_learner(turned, allow=[__name__])
    np.testing.assert_allclose(learner.data.train.x.mean(0), learner.module.spec.mean, rtol=1e-2, atol=0.1)
    served = recipe("digits", *sets[2:], "data.sample_shape=[3]", "data.classes=2")
    assert make_server_learner(served, "none").columns == {"x": found.names}
    with pytest.raises(UsageError, match="x lacks size and has dose; give age, pressure, size"):
        make_learner(recipe("digits", *sets, "data.columns=[age, pressure, size]"), allow=[__name__])


def test_a_recipe_gives_the_order_of_columns():
    named = recipe("digits", *PATIENTS, "model=logistic", "data.columns=[dose, age, pressure]")
    first = make_learner(named, allow=[__name__]).data.train
    assert first.columns == {"x": ("dose", "age", "pressure")}
    assert float(first.x[:, 0].mean()) > 100
    sets = ["data={columns: [dose, age], sample_shape: [2], classes: 2}", "model=logistic"]
    assert make_server_learner(recipe("digits", *sets), "none").columns == {"x": ("dose", "age")}
