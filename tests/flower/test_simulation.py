"""A run on Flower's simulation engine, in a process of its own: Ray leaves much behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

import offbeat as ob

APP = Path(__file__).parents[2] / "examples/flower"
SCRIPT = """
import sys
from flwr.simulation import run_simulation
from hospital.client import app
import offbeat as ob
from offbeat.flower import server_app
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerOptions, server_learner

def experiment():
    test = ob.load("digits", samples=400, test_samples=200).test
    return ob.Experiment(
        ob.fedasmu(epochs=2, size=2, period=5.0, threshold=3),
        server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=20), test),
        seed=3, until=ob.Until(tasks=6),
    )

server = server_app(experiment, sys.argv[1], options=ServerOptions(clients=3))
resources = {"num_cpus": 1, "num_gpus": 0.0}
run_simulation(server, app, num_supernodes=3, backend_config={"client_resources": resources})
"""


def test_a_run_on_the_simulation_engine(tmp_path: Path) -> None:
    """Three nodes, FedASMU with its fresh models in two phases."""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(tmp_path / "flower")}
    environment["PYTHONPATH"] = os.pathsep.join([str(APP), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = ob.read_run(tmp_path / "run")
    assert record.status == "finished"
    assert record.stop_reason == "reached 6 client tasks"
    names = [row.name for row in record.rows()]
    assert names.count("joined") == 3
    assert names.count("arrived") == 6
    assert names.count("wants_model") >= 6
    assert record.meta["rejected"] == {}
