"""Simulated runs of the corpus: those that were stopped go on, the others have finished.

A run that was stopped has a twin in the corpus that was not. It ends with the twin's rows and bytes where
PyTorch gives the bits of the processor that recorded both. On another one the rows before the interruption
are the same, and those after it too but for losses and metrics; where the schedule or the guard goes by
values (`by_values` in the contents), it is only sure that the run ends and replays.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.recipes.build import resume_run
from offbeat.runs.files import read_tensors
from offbeat.runs.record import RunRecord, find_runs, read_run
from tests.corpus.archive import (
    contents,
    formats,
    names,
    same_processor,
    sample,
    skip_without_its_initial_model,
    unpack,
)
from tests.corpus.command_line import ALLOWED, offbeat, own_options
from tests.corpus.from_python import FROM_PYTHON
from tests.forks import OFFBEAT, Fork
from tests.sampling import mostly_thorough

RUN = "run"
STOPPED, FINISHED = (
    mostly_thorough(
        [(number, name) for number in formats() for name in names(number, kind)],
        [(number, name) for number in formats() for name in sample(number, kind)],
    )
    for kind in ("stopped", "simulated")
)
pytestmark = pytest.mark.usefixtures("one_thread")
DECISIONS = ("seq", "kind", "name", "client", "task", "base", "version", "staleness", "steps")


@pytest.mark.parametrize(("number", "name"), STOPPED)
def test_a_stopped_run_goes_on_to_the_end_of_its_twin(number: int, name: str, tmp_path: Path) -> None:
    entry = contents(number)["entries"][name]
    run = unpack(number, name, tmp_path) / RUN
    twin = read_run(unpack(number, entry["ends_as"], tmp_path) / RUN)
    before = read_run(run)
    rows, evaluations = stored_rows(before)
    code, printed = offbeat("resume", run, *entry["options"], *own_options(entry))
    skip_without_its_initial_model(number, name, printed)
    assert code == 0, printed
    record = read_run(run)
    assert record.journal[: len(rows)] == rows
    assert record.metrics[: len(evaluations)] == evaluations
    if same_processor(number, name):
        assert record.journal == twin.journal
        assert record.metrics == twin.metrics
        assert record.client_metrics() == twin.client_metrics()
        assert record.meta["summary"] == twin.meta["summary"]
        assert record.stop_reason == twin.stop_reason
        check_files(run, twin.path, exact=True)
    elif not entry["by_values"]:
        assert decisions(record) == decisions(twin)
        assert str(record.stop_reason).partition(" (")[0] == str(twin.stop_reason).partition(" (")[0]
        check_files(run, twin.path, exact=False)
    assert offbeat("verify", run, *own_options(entry))[0] == 0


def stored_rows(record: RunRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows and evaluations up to the checkpoint."""
    checkpoint = record.checkpoint()
    assert checkpoint is not None
    assert record.status in ("interrupted", "running")
    return record.journal[: checkpoint.journal], record.metrics[: checkpoint.metrics]


def decisions(record: RunRecord) -> list[list[Any]]:
    """What was decided when, without values that follow from tensors."""
    return [[*(row[key] for key in DECISIONS), round(row["t"], 9)] for row in record.journal]


def tensor_files(run: Path) -> dict[str, Path]:
    """The files of tensors by what they are: a client's state has a number in the name of its file."""
    checkpoint = read_run(run).checkpoint()
    clients = {} if checkpoint is None else {file: f"client {c}" for c, file in checkpoint.clients.items()}
    paths = {path.relative_to(run).as_posix(): path for path in run.rglob("*.safetensors")}
    return {clients.get(name, name): path for name, path in paths.items()}


def check_files(run: Path, twin: Path, *, exact: bool) -> None:
    """The tensors, and the tables of trackers, are those of the twin."""
    found, expected = tensor_files(run), tensor_files(twin)
    assert found.keys() == expected.keys()
    for name, path in found.items():
        ours, theirs = read_tensors(path), read_tensors(expected[name])
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            if exact:
                assert tensor.numpy().tobytes() == theirs[key].numpy().tobytes(), (name, key)
            else:
                assert torch.allclose(tensor, theirs[key], rtol=1e-3, atol=1e-4), (name, key)
    for table in twin.glob("*.csv"):
        assert len((run / table.name).read_text().splitlines()) == len(table.read_text().splitlines())
        assert not exact or (run / table.name).read_bytes() == table.read_bytes()


@pytest.mark.parametrize(("number", "name"), FINISHED)
def test_a_finished_run_says_so_and_gives_its_model(number: int, name: str, tmp_path: Path) -> None:
    entry = contents(number)["entries"][name]
    run, own = unpack(number, name, tmp_path) / RUN, own_options(entry)
    record = read_run(run)
    assert record.status == "finished"
    code, printed = offbeat("resume", run, *own)
    assert code == 0, printed
    assert printed == f"{run} has finished already: {record.stop_reason}\n"
    code, printed = offbeat("export", run, "-o", tmp_path / "model.safetensors", *own)
    assert code == 0, printed
    exported, model = read_tensors(tmp_path / "model.safetensors"), read_tensors(run / "model.safetensors")
    assert set(exported) <= set(model)
    for key, tensor in exported.items():
        assert torch.equal(tensor, model[key])
    assert record.summary is not None
    assert record.summary.tasks == len(record.entries("arrived"))
    assert record.summary.versions == max(row.version or 0 for row in record.rows())
    again = resume_run(run, allow=ALLOWED)
    assert again.journal == record.journal
    assert again.model.state_dict().keys() == model.keys()
    assert all(torch.equal(tensor, model[key]) for key, tensor in again.model.state_dict().items())


@pytest.mark.parametrize(("number", "name"), [(number, "fedbuff") for number in formats()])
def test_the_world_of_a_run_can_be_fitted(number: int, name: str, tmp_path: Path) -> None:
    run = unpack(number, name, tmp_path) / RUN
    code, printed = offbeat("simulate-like", run, "-o", tmp_path / "world.yaml")
    assert code == 0, printed
    assert "s/step" in printed


@pytest.mark.parametrize("number", formats())
def test_a_run_that_was_stopped_is_not_resumed_with_something_else(number: int, tmp_path: Path) -> None:
    run = unpack(number, "fedbuff-stopped", tmp_path) / RUN
    shutil.copytree(run, tmp_path / "other")
    with pytest.raises(ob.RunError, match="was started with another algorithm: size was 3, now it is 2"):
        ob.resume(tmp_path / "other", ob.fedbuff(2, steps=2, concurrency=3), learner=ob.NoTraining(4))
    assert json.loads(json.dumps(read_run(run).meta)) == read_run(tmp_path / "other").meta


@pytest.mark.parametrize("name", FROM_PYTHON)
@pytest.mark.parametrize("number", formats())
def test_a_run_from_python_goes_on_with_the_same_arguments(number: int, name: str, tmp_path: Path) -> None:
    arguments, name = FROM_PYTHON[name], f"{name}-stopped"
    run = unpack(number, name, tmp_path) / RUN
    twin = read_run(unpack(number, contents(number)["entries"][name]["ends_as"], tmp_path) / RUN)
    rows, _ = stored_rows(read_run(run))
    try:
        again = ob.resume(run, **arguments())
    except ob.UsageError as error:
        skip_without_its_initial_model(number, name, str(error))
        raise
    assert again.journal[: len(rows)] == rows
    assert decisions(read_run(run)) == decisions(twin)
    check_files(run, twin.path, exact=same_processor(number, name))
    assert ob.resume(twin.path, **arguments()).journal == twin.journal
    code, printed = offbeat("resume", run)  # it has finished: no recipe is needed to say so
    assert (code, printed) == (0, f"{run} has finished already: {again.stop_reason}\n")


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number in formats() for name in names(number, "comparison")]
)
def test_a_comparison_is_repeated(number: int, name: str, tmp_path: Path) -> None:
    """What has finished stays as it is, what is missing is run."""
    entry, folder = contents(number)["entries"][name], unpack(number, name, tmp_path)
    before = {record.path: record.journal for record in find_runs(folder)}
    words = ("compare", folder / "recipe.yaml", "--out", folder / "runs", *entry["options"])
    process = Fork(OFFBEAT, *words)
    assert process.wait(300) == 0, "".join(process.communicate())
    printed, _ = process.communicate()
    assert "fedbuff lr=0.05" in printed
    after = {record.path: record.journal for record in find_runs(folder)}
    assert {path: after[path] for path in before} == before
    assert {path.relative_to(folder).as_posix() for path in set(after) - set(before)} == set(entry["missing"])
    if entry["missing"] and same_processor(number, name):
        twin = unpack(number, entry["ends_as"], tmp_path)
        for path in entry["missing"]:
            assert after[folder / path] == read_run(twin / path).journal
