"""Served runs of the corpus: a server recovers, goes on to the end, or says that its run has ended.

Which sites deliver when is up to the clock, so the rows after a restart are not those of any other run.
What a server recovers is certain: the recorded rows, and the tensors that follow from the checkpoint and the
stored updates. Their bits are compared where PyTorch gives those of the processor that recorded them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat.net.server.serve as serving
from offbeat.runs.files import read_tensors
from offbeat.runs.record import read_run
from tests.corpus.archive import (
    contents,
    formats,
    names,
    same_processor,
    skip_without_its_initial_model,
    unpack,
)
from tests.corpus.command_line import offbeat, own_options
from tests.corpus.federation import RECIPE, RUN, SECONDS, federation, kill_at_once
from tests.sampling import mostly_thorough

LEFT = [(n, name) for n in formats() for kind in ("stopped", "killed") for name in names(n, f"served {kind}")]
FINISHED = [(number, name) for number in formats() for name in names(number, "served finished")]
HARD = {
    "served-stopped", "served-compass-killed", "served-guard-killed", "served-log-killed",
    "served-noise-killed", "served-own-killed", "served-rollback-killed", "served-scaffold-killed",
    "served-secure-killed", "served-skips-killed",
}  # fmt: skip
"""Runs that are always recovered."""
HARDEST = {"served-compass-stopped", "served-secure-killed"}
"""Runs that are always served to their end."""
RECOVERED = mostly_thorough(LEFT, [case for case in LEFT if case[1] in HARD])
GOES_ON = mostly_thorough(LEFT, [case for case in LEFT if case[1] in HARDEST])
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.xdist_group("corpus of served runs")]


@pytest.mark.parametrize(("number", "name"), RECOVERED)
def test_a_server_recovers_what_it_recovered_then(number: int, name: str, tmp_path: Path) -> None:
    """The rows stay, and so do the model, the held updates, the parts' memories and the guard's norms."""
    entry, folder = contents(number)["entries"][name], unpack(number, name, tmp_path)
    run, rows = folder / RUN, read_run(folder / RUN).journal
    printed = kill_at_once(folder, entry)
    skip_without_its_initial_model(number, name, printed)
    record = read_run(run)
    checkpoint = record.checkpoint()
    assert record.journal[: len(rows)] == rows
    assert checkpoint is not None
    then = json.loads((folder / "recovered.json").read_text(encoding="utf-8"))
    assert (
        approximately(json.loads(json.dumps(asdict(checkpoint))), exact=same_processor(number, name)) == then
    )
    ours, theirs = read_tensors(run / checkpoint.state), read_tensors(folder / "recovered.safetensors")
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        if same_processor(number, name):
            assert tensor.numpy().tobytes() == theirs[key].numpy().tobytes(), key
        else:
            assert torch.allclose(tensor, theirs[key], rtol=1e-4, atol=1e-5), key
    assert offbeat("verify", run, *own_options(entry))[0] == 0


def approximately(value: Any, *, exact: bool) -> Any:
    """The value, to be compared with another one; unless exact, its fractions nearly so."""
    if isinstance(value, dict):
        return {key: approximately(own, exact=exact) for key, own in value.items()}
    if isinstance(value, list):
        return [approximately(own, exact=exact) for own in value]
    return pytest.approx(value, rel=1e-4) if isinstance(value, float) and not exact else value


@pytest.mark.parametrize(("number", "name"), GOES_ON)
def test_a_served_run_goes_on_to_its_end(number: int, name: str, tmp_path: Path) -> None:
    """With its sites and helpers, which have their state from then."""
    entry, folder = contents(number)["entries"][name], unpack(number, name, tmp_path)
    rows = read_run(folder / RUN).journal
    with federation(folder, entry) as processes:
        skip_without_its_initial_model(number, name, processes.start())
        processes.start_sites()
        assert processes.server is not None
        status = processes.server.wait(SECONDS)
        printed = "".join(processes.server.communicate())
        assert status == 0, printed
        assert "the run has ended: " in printed
    record = read_run(folder / RUN)
    assert record.status == "finished"
    assert record.journal[: len(rows)] == rows
    assert record.length > len(rows)
    code, printed = offbeat("verify", folder, *own_options(entry))
    assert (code, printed[:11]) == (0, "problems 0;"), printed


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server waits for nobody at its end, and leaves log and umask as they were."""
    monkeypatch.setattr(serving, "serve", partial(serving.serve, linger=0.0))
    monkeypatch.setattr("offbeat.cli.serve.setup_logs", lambda *_: None)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("number", "name"), FINISHED)
def test_a_server_of_a_finished_run_says_so(number: int, name: str, tmp_path: Path) -> None:
    entry, folder = contents(number)["entries"][name], unpack(number, name, tmp_path)
    run, options = folder / RUN, [*entry["serve"], *own_options(entry)]
    before = read_run(run)
    rows = before.journal
    code, printed = offbeat("serve", folder / RECIPE, "--state", run, "--listen", "127.0.0.1:0", *options)
    assert code == 0, printed
    assert printed.endswith(f"the run has ended: {before.stop_reason}; see it with: offbeat report {run}\n")
    record = read_run(run)
    assert record.journal == rows
    assert record.summary is not None
    assert record.summary.tasks == len(record.entries("arrived"))
