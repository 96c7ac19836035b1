"""Each tutorial is a notebook too: valid, with the page's code and outputs, and it runs.

The kernel is a fork: a new process imports for seconds.
"""

import json
import shlex
from pathlib import Path

import pytest

from tests.examples_run.test_tutorials import MEASURED, NEEDS, NUMBER, tutorials
from tests.forks import shell_command
from tests.script_modules import load_script

DOCS = Path(__file__).parents[2] / "docs"


notebooks = load_script(DOCS / "notebooks.py", "docs_notebooks")
PAGES = pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)


@PAGES
def test_a_notebook_is_valid_and_has_the_code_and_the_outputs_of_its_page(page: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebooks.write_notebook(page, tmp_path / "made" / "page.ipynb")
    made = json.loads((tmp_path / "made" / "page.ipynb").read_text("utf-8"))
    nbformat.validate(made)
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    blocks = tutorials.BLOCK.findall(page.read_text("utf-8"))
    shows = [cell for cell in code if "".join(cell["source"]).startswith("from IPython.display import Image")]
    assert len(shows) == 1
    assert list(shows[0]["outputs"][0]["data"]) == ["image/png"]
    rest = [cell for cell in code if cell not in shows]
    assert ["".join(cell["source"]) + "\n" for cell in rest] == [block for block, _ in blocks]
    assert ["".join("".join(each["text"]) for each in cell["outputs"]) for cell in rest] == [
        said for _, said in blocks
    ]
    text = "\n".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert "](" not in text, "a relative link leads nowhere"
    assert "<!--" not in text


@pytest.mark.thorough
@PAGES
def test_a_notebook_runs(page: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for module in NEEDS.get(page.stem, ("sklearn",)):
        pytest.importorskip(module)
    text = page.read_text("utf-8")
    made = nbformat.reads(json.dumps(notebooks.notebook(text)), as_version=4)
    said = ["".join(each.text for each in cell.outputs) for cell in made.cells if "outputs" in cell]
    script = tmp_path / "kernel.py"
    script.write_text("from ipykernel.kernelapp import launch_new_instance\nlaunch_new_instance()\n")
    client = nbclient.NotebookClient(made, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager().kernel_spec.argv = [
        *shlex.split(shell_command(script)), "-f", "{connection_file}"
    ]  # fmt: skip
    client.execute()
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    printed = ["".join(each.text for each in cell.outputs if "text" in each) for cell in code]
    assert any("image/png" in each.get("data", {}) for cell in code for each in cell.outputs)
    if MEASURED not in text:
        assert [NUMBER.sub("N", each) for each in printed] == [NUMBER.sub("N", each) for each in said]
