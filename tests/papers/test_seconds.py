"""Each built-in study at the size of seconds: its runs are made, and tables and verdicts come from them."""

from pathlib import Path

import pytest

from offbeat.data.paths import data_root
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.judge import judge_item
from offbeat_papers.load import built_in_studies, load_study
from offbeat_papers.rows import Results
from offbeat_papers.run import run_cells
from offbeat_papers.texts import item_grid, item_markdown
from tests.papers.generated_data import write_dataset

pytestmark = pytest.mark.thorough
SECONDS = 20.0
"""Processor seconds that all runs of a study take at most; a test allows twice as many on a busy machine."""


@pytest.mark.parametrize("name", built_in_studies())
def test_a_study_runs_in_seconds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(name)
    data, model = study.recipe["data"], study.recipe["model"]["name"]
    if study.no_real_data is not None:
        for module in {"bert": ("transformers",), "unet3d": ("nibabel",)}.get(model, ()):
            pytest.importorskip(module)
        write_dataset(data["dataset"], tmp_path / "data")
        monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "data"))
    elif not (data_root() / data["dataset"]).is_dir():
        pytest.skip(f"{data['dataset']} is not in the data directory")
    results, cells = Results(tmp_path / "results"), study_cells(study, "seconds")
    assert run_cells(cells, results, 1, lambda _: None) == 0
    rows = results.rows(study.name)
    assert set(rows) == {cell.digest for cell in cells}
    assert sum(row.processor or 0.0 for row in rows.values()) < 2 * SECONDS
    judged = [judge_item(item_rows(study, item, "seconds", results)) for item in study.items]
    assert {arm for item in judged for arm in item.rows.runs} == {(c.label, c.column) for c in cells}
    for item in judged:
        grid = item_grid(item.rows)
        assert all(len(line) == len(grid[0]) for line in grid)
        assert item_markdown(item)
        assert {claim.verdict for claim in item.claims} <= {Verdict.NOT_RUN, Verdict.NO_REAL_DATA}
