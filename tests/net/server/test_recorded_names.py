"""State directories of an earlier version, which kept wrappers' prefixes in the names of tensors."""

from pathlib import Path

import pytest
from torch import nn

import offbeat as ob
from offbeat.data import without_clients
from offbeat.experiment import Experiment
from offbeat.net import ServerOptions
from offbeat.net.run_spec import RunSpec, make_run_spec
from offbeat.net.server.open_run import open_run
from offbeat.net.server.service import OpenRun

pytestmark = pytest.mark.usefixtures("one_thread")


def serve_once(directory: Path) -> None:
    """Open the run of a wrapped module and close it again."""
    learner = ob.TorchLearner(lambda: nn.DataParallel(nn.Linear(2, 2)), without_clients(None))
    experiment = Experiment(ob.fedavg(steps=2), learner, evaluate=ob.Every())
    opened = open_run(experiment, directory, ServerOptions(clients=2))
    assert isinstance(opened, OpenRun)
    opened.store.close()


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.", "other."])
def test_a_server_goes_on_with_a_run_whose_names_have_the_prefixes(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_earlier(experiment: Experiment) -> RunSpec:
        spec = make_run_spec(experiment)
        layout = tuple((prefix + name, *entry) for name, *entry in spec.layout)
        return spec.model_copy(update={"layout": layout})

    with monkeypatch.context() as earlier:
        earlier.setattr("offbeat.net.server.open_run.make_run_spec", as_earlier)
        serve_once(tmp_path / "run")
    if prefix != "other.":
        serve_once(tmp_path / "run")
        return
    with pytest.raises(ob.RunError, match="was started with another plan: layout was"):
        serve_once(tmp_path / "run")
