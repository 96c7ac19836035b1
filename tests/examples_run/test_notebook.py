"""The notebook in `examples/` runs in a kernel, with worker processes, and shows what it says.

The kernel is a fork: a new process imports for seconds, and its workers' fork server again.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.forks import shell_command

NOTEBOOK = Path(__file__).parents[2] / "examples" / "offbeat.ipynb"


def outputs(cells: list[Any], text: str) -> dict[str, str]:
    """What the cell that ends with a text shows, by the kind of the content."""
    (cell,) = (cell for cell in cells if cell.source.endswith(text))
    return {kind: str(shown) for output in cell.outputs for kind, shown in output.get("data", {}).items()}


@pytest.mark.thorough
def test_the_notebook_runs_and_shows_the_run(tmp_path: Path) -> None:
    for package in ("ipykernel", "pandas", "sklearn"):
        pytest.importorskip(package)
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none are stored
    script = tmp_path / "kernel.py"
    script.write_text("from ipykernel.kernelapp import launch_new_instance\nlaunch_new_instance()\n")
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager().kernel_spec.argv = [
        *shlex.split(shell_command(script)), "-f", "{connection_file}"
    ]  # fmt: skip
    cells = client.execute().cells
    assert "<caption>FedBuff, seed 0</caption>" in outputs(cells, "\nrun")["text/html"]
    assert outputs(cells, 'run.plot("f1")')["image/png"].startswith("iVBOR")
    assert "staleness" in outputs(cells, 'loss=("loss", "last"))')["text/html"]
    assert "aggregated" in outputs(cells, "value_counts()")["text/plain"]
    assert "<th>FedAvg</th>" in outputs(cells, "for each in (run, waiting)\n    }\n)")["text/html"]
    assert "accuracy" in outputs(cells, '.metadata["metrics"]')["text/plain"]
    assert (tmp_path / "digits.safetensors").exists()
