"""TensorBoard's event files, read as TensorBoard reads them."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from offbeat.callbacks.tensorboard_tracker import FOLDER, TensorBoardTracker
from offbeat.core.errors import RunError, UsageError
from offbeat.core.metric_names import finite
from tests.callbacks.told import EVALUATIONS, MODEL, live_run, tell, tell_all


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(events: EventAccumulator) -> dict[str, list[tuple[int, float | None]]]:
    """Steps and values by tag; None is NaN."""
    return {
        tag: [(event.step, finite(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def text(events: EventAccumulator, tag: str) -> str:
    return events.Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


def session(events: EventAccumulator, tag: str) -> bytes:
    return events.SummaryMetadata(tag).plugin_data.content


def test_every_evaluation_and_every_metric_is_a_scalar_while_the_run_goes_on(tmp_path: Path):
    tracker, run = TensorBoardTracker(), live_run(tmp_path)
    tell(tracker, run, EVALUATIONS)
    events = read(tmp_path / "tensorboard")
    assert scalars(events) == {
        "auroc": [(0, None), (2, 0.71875), (4, 0.625), (6, 0.6875)],
        "accuracy": [(0, 0.25), (2, 0.875), (4, 0.5), (6, 0.75)],
        "loss": [(0, 0.75), (2, 0.125), (4, 0.5), (6, 0.25)],
        "clients/accuracy": [(0, 0.125), (2, 0.4375), (4, 0.25), (6, 0.375)],
        "clients/accuracy.p10": [(0, 0.0625), (2, 0.21875), (4, 0.125), (6, 0.1875)],
        "run/t": [(0, 0.0), (2, 1.5), (4, 3.0), (6, 4.5)],
        "run/tasks": [(0, 0), (2, 3), (4, 6), (6, 9)],
        "run/bytes_up": [(0, 0), (2, 100), (4, 200), (6, 300)],
        "run/bytes_down": [(0, 0), (2, 200), (4, 400), (6, 600)],
    }
    clock = [event.wall_time for event in events.Scalars("loss")]
    assert [time - clock[0] for time in clock] == pytest.approx([0.0, 1.5, 3.0, 4.5], abs=1e-5)
    tracker.on_end(run, "versions", MODEL)


def test_hyper_parameters_recipe_versions_and_the_end_are_there(tmp_path: Path):
    tell_all(TensorBoardTracker(), live_run(tmp_path))
    events = read(tmp_path / "tensorboard")
    start = metadata.parse_session_start_info_plugin_data(session(events, metadata.SESSION_START_INFO_TAG))
    assert start.hparams["training.lr"].number_value == 0.1
    assert start.hparams["seed"].number_value == 3
    assert start.hparams["algorithm.name"].string_value == "fedbuff"
    assert "    training:\n      lr: 0.1\n" in text(events, "recipe")
    assert "torch 2.13.0" in text(events, "versions")
    assert text(events, "stop_reason") == "finished: versions"
    assert scalars(events)["best/accuracy"] == [(6, 0.875)]
    end = metadata.parse_session_end_info_plugin_data(session(events, metadata.SESSION_END_INFO_TAG))
    assert end.status == api_pb2.STATUS_SUCCESS


def test_a_run_that_fails_is_shown_as_failed(tmp_path: Path):
    tracker = TensorBoardTracker()
    tracker.on_exception(tell(tracker, live_run(tmp_path, recipe=None)), RunError("the disk is full"))
    events = read(tmp_path / "tensorboard")
    end = metadata.parse_session_end_info_plugin_data(session(events, metadata.SESSION_END_INFO_TAG))
    assert end.status == api_pb2.STATUS_FAILURE
    assert text(events, "stop_reason") == "failed: RunError: the disk is full"


def test_a_resumed_run_has_each_evaluation_once_also_in_a_tensorboard_that_runs(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tell_all(TensorBoardTracker(), live_run(whole))
    tell(TensorBoardTracker(), live_run(killed), EVALUATIONS[:3])
    running = read(killed / "tensorboard")
    assert len(scalars(running)["loss"]) == 3
    tell_all(TensorBoardTracker(), live_run(killed, EVALUATIONS[:2]), EVALUATIONS[2:])
    expected = scalars(read(whole / "tensorboard"))
    assert scalars(read(killed / "tensorboard")) == expected
    assert scalars(running.Reload()) == expected


def test_runs_have_folders_of_their_own(tmp_path: Path):
    tracker = TensorBoardTracker(directory=tmp_path)
    for seed in (0, 1):
        tell_all(tracker, live_run(None, seed=seed), EVALUATIONS[: seed + 1])
    found = [scalars(read(tmp_path / "fedbuff" / f"seed-{seed}")) for seed in (0, 1)]
    assert [len(run["loss"]) for run in found] == [1, 2]


def test_no_file_is_emptied_through_a_link(tmp_path: Path):
    precious, folder = tmp_path / "precious", tmp_path / "run" / FOLDER
    precious.write_text("precious")
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1").symlink_to(precious)
    with pytest.raises(OSError, match="is a link"):
        TensorBoardTracker().open(live_run(tmp_path / "run"))
    assert precious.read_text() == "precious"


def test_a_run_without_a_directory_needs_one():
    with pytest.raises(UsageError, match="the run has no directory for directory: give directory, or"):
        TensorBoardTracker().on_start(live_run(None))
