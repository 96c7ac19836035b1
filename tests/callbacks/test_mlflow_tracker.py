"""Runs of MLflow, read by its client from a database file."""

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from offbeat.callbacks.mlflow_tracker import MLflowTracker
from offbeat.core.errors import RunError
from tests.callbacks.told import EVALUATIONS, MODEL, RECIPE, evaluation, live_run, tell, tell_all
from tests.sampling import thorough

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),  # MLflow's own
    pytest.mark.xdist_group("mlflow"),  # imported, and its database made, once
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database in a file; MLflow takes a second to create its tables."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def _artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow keeps files in the current directory, if the runs are in a database file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        yield


def tracker_of(database: str, experiment: str) -> MLflowTracker:
    return MLflowTracker(experiment=experiment, tracking_uri=database)


def client_of(database: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=database)


def only_run(database: str, experiment: str) -> Any:
    client = client_of(database)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def history(database: str, run: Any) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of every metric by name, as they were logged."""
    client = client_of(database)
    return {
        name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def test_every_evaluation_and_every_metric_is_logged(tmp_path: Path, database: str):
    tell_all(tracker_of(database, "whole"), live_run(tmp_path))
    run = only_run(database, "whole")
    found = history(database, run)
    assert [isnan(value) for _, value in found.pop("auroc")] == [True, False, False, False]
    assert found.pop("accuracy") == [(0, 0.25), (2, 0.875), (4, 0.5), (6, 0.75)]
    assert found.pop("clients/accuracy.p10") == [(0, 0.0625), (2, 0.21875), (4, 0.125), (6, 0.1875)]
    assert found.pop("run/t") == [(0, 0.0), (2, 1.5), (4, 3.0), (6, 4.5)]
    assert found.pop("best/accuracy") == [(0, 0.875)]
    assert found.keys() == {
        "loss", "clients/accuracy", "run/tasks", "run/bytes_up", "run/bytes_down", "best/loss", "best/auroc",
        "best/clients/accuracy", "best/clients/accuracy.p10",
    }  # fmt: skip
    points = client_of(database).get_metric_history(run.info.run_id, "loss")
    assert [point.timestamp - run.info.start_time for point in points] == [0, 1500, 3000, 4500]


@pytest.mark.thorough
def test_hyper_parameters_recipe_and_the_end_are_there(tmp_path: Path, database: str):
    import yaml

    many = {f"option-{number}": number for number in range(250)}
    tell_all(
        tracker_of(database, "end"), live_run(tmp_path, algorithm={"name": "fedbuff", "odd@": 1, **many})
    )
    run = only_run(database, "end")
    assert run.info.run_name == "fedbuff seed 3"
    assert run.info.status == "FINISHED"
    assert run.data.tags["stop_reason"] == "versions"
    assert run.data.tags["label"] == "fedbuff"
    assert run.data.params["training.lr"] == "0.1"
    assert run.data.params["versions.torch"] == "2.13.0"
    assert run.data.params["algorithm.odd_"] == "1"
    assert run.data.params["algorithm.option-249"] == "249"
    path = client_of(database).download_artifacts(run.info.run_id, "recipe.yaml")
    assert yaml.safe_load(Path(path).read_text()) == RECIPE


@pytest.mark.parametrize(
    ("error", "status"),
    [*thorough((RunError("the disk is full"), "FAILED")), (KeyboardInterrupt(), "KILLED")],
)
def test_a_run_that_fails_has_its_status(tmp_path: Path, database: str, error: BaseException, status: str):
    tracker = tracker_of(database, status)
    tracker.on_exception(tell(tracker, live_run(tmp_path, recipe=None)), error)
    assert only_run(database, status).info.status == status


def test_a_resumed_run_goes_on_with_its_run_and_has_each_evaluation_once(tmp_path: Path, database: str):
    tracker = tracker_of(database, "killed")
    tell(tracker, live_run(tmp_path), EVALUATIONS[:3])
    begun = only_run(database, "killed").info
    run = tell(tracker, live_run(tmp_path, EVALUATIONS[:2]), EVALUATIONS[2:3])
    assert only_run(database, "killed").info.status == "RUNNING"
    tracker.on_evaluation(run, EVALUATIONS[3], MODEL)
    tracker.on_end(run, "versions", MODEL)
    tell_all(tracker_of(database, "uninterrupted"), live_run(None))
    whole = history(database, only_run(database, "uninterrupted"))
    resumed = only_run(database, "killed")
    assert str(history(database, resumed)) == str(whole)
    assert (resumed.info.run_id, resumed.info.start_time) == (begun.run_id, begun.start_time)


@pytest.mark.thorough
def test_what_could_not_be_logged_before_the_kill_is_logged_by_the_resumption(tmp_path: Path, database: str):
    tracker = tracker_of(database, "late")
    tell(tracker, live_run(tmp_path), [evaluation(0)._replace(data=None)])
    tell_all(tracker, live_run(tmp_path, EVALUATIONS[:3]), EVALUATIONS[3:])
    found = history(database, only_run(database, "late"))
    assert [step for step, _ in found["loss"]] == [0, 2, 4, 6]
    assert [step for step, _ in found["clients/accuracy"]] == [0, 2, 4, 6]


def test_a_run_that_is_not_there_any_more_is_named(tmp_path: Path, database: str):
    (tmp_path / "mlflow-run-id").write_text("0123\n")
    with pytest.raises(RunError, match=f"MLflow's run 0123 of {tmp_path} is not at {database}: give its"):
        tracker_of(database, "gone").on_start(live_run(tmp_path))


@pytest.mark.thorough
def test_several_runs_are_runs_of_one_experiment(database: str):
    tracker = tracker_of(database, "several")
    for seed in (0, 1):
        tell_all(tracker, live_run(None, seed=seed), EVALUATIONS[: seed + 1])
    client = client_of(database)
    runs = client.search_runs([client.get_experiment_by_name("several").experiment_id])
    assert {run.info.run_name: len(history(database, run)["loss"]) for run in runs} == {
        "fedbuff seed 0": 1, "fedbuff seed 1": 2
    }  # fmt: skip
