"""The dataset: its columns are those of the rows, and what is read back from Parquet are the rows."""

import csv
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.installation import papers_install_command
from offbeat_papers import dataset, parquet, schema
from offbeat_papers.claims import ClaimRow, write_claims
from offbeat_papers.rows import ResultRow, Results, RunCurve
from tests.papers.study_files import row
from tests.papers.test_page import RESULTS, judged_rows


def test_every_column_is_described() -> None:
    assert [field.name for field in schema.ROW_FIELDS] == [field.name for field in fields(ResultRow)]
    assert [field.name for field in schema.CURVE_FIELDS] == [field.name for field in fields(RunCurve)]
    kinds = {field.name: getattr(field.type, "__name__", str(field.type)) for field in fields(ResultRow)}
    named = {"str": "string", "int": "integer", "float": "number", "float | None": "number"}
    assert [field.name for field in schema.CLAIM_FIELDS] == [field.name for field in fields(ClaimRow)]
    for field in schema.ROW_FIELDS:
        assert field.type == named.get(kinds[field.name], "object"), field.name


def test_what_describes_the_rows_of_the_repository_is_up_to_date() -> None:
    for path, text in dataset.describe(RESULTS, RESULTS.folder).items():
        assert path.read_text(encoding="utf-8") == text, "offbeat reproduce --dataset papers/results"


def some_results(folder: Path) -> Results:
    """Rows with all that a row may have: nothing, no number, a target that was not reached."""
    results = Results(folder)
    worst = {"accuracy": 0.5, "clients.accuracy.worst": 0.25}
    results.append(row("a", study="p/s", best=worst, change={"loss": 1e-9}), [])
    results.append(
        row("b", study="p/s", processor=None, commit="c-dirty", spent={}, best={}, final={}, reached={}),
        [RunCurve("b", "accuracy", (0.0, 1.5), (0.1, 0.25)), RunCurve("b", "loss", (), ())],
    )
    results.append(row("c", study="p/t-tuning", machine="AMD EPYC, 2 cores, PyTorch 2"), [])
    return results


def test_rows_and_curves_are_read_back_from_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    results = some_results(tmp_path / "results")
    studies = results.studies()
    assert studies == ["p/s", "p/t-tuning"]
    table = parquet.results_table(results, studies)
    path = parquet.write_table(table, tmp_path / "results.parquet")
    assert parquet.read_rows(path) == [r for study in studies for r in results.rows(study).values()]
    assert table["commit_state"].to_pylist() == ["clean", "dirty", "clean"]
    assert table["processor_name"].to_pylist() == ["m", "m", "AMD EPYC"]
    assert table.schema.field("seconds").metadata[b"unit"] == b"s"
    curves = parquet.write_table(parquet.curves_table(results, studies), tmp_path / "curves.parquet")
    assert parquet.read_curves(curves) == [c for study in studies for c in results.curves(study).values()]


def test_the_rows_of_the_repository_are_read_back_from_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    studies = [study for study in RESULTS.studies() if study.startswith("wireless/")]
    path = parquet.write_table(parquet.results_table(RESULTS, studies), tmp_path / "results.parquet")
    assert parquet.read_rows(path) == [r for study in studies for r in RESULTS.rows(study).values()]


def test_a_dataset_has_the_rows_as_they_are_and_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = some_results(tmp_path / "results")
    monkeypatch.setattr(dataset, "write_table", lambda _, path: path)
    monkeypatch.setattr(dataset, "results_table", lambda *_: None)
    monkeypatch.setattr(dataset, "curves_table", lambda *_: None)
    monkeypatch.setattr(dataset, "write_figures", lambda _, folder: iter([folder / "f.png"]))
    written = [path.name for path in dataset.write_dataset(results, tmp_path / "out")]
    assert written == [
        "datapackage.json", "CITATION.cff", "p-s.csv", "p-t-tuning.csv", "p-s-curves.csv",
        "claims.csv", "results.parquet", "curves.parquet", "f.png",
    ]  # fmt: skip
    assert Results(tmp_path / "out").rows("p/s") == results.rows("p/s")
    within = [path.name for path in dataset.write_dataset(results, results.folder)]
    assert within == [name for name in written if not name.startswith("p-")]


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=re.escape(f"pyarrow: {papers_install_command('parquet')}")):
        parquet.results_table(some_results(tmp_path), ["p/s"])


def test_the_table_of_claims_has_the_effects_of_the_page(tmp_path: Path) -> None:
    with write_claims(judged_rows(), tmp_path / "claims.csv").open(encoding="utf-8") as file:
        claims = list(csv.DictReader(file))
    by = {(each["paper"], each["item"], each["number"]): each for each in claims}
    assert len(by) == len(claims)
    for each in claims:
        if each["effect"]:
            assert float(each["low"]) <= float(each["effect"]) <= float(each["high"])
        assert (each["least_p_at"] != "") == (each["verdict"] in {"held", "not held"})
        assert int(each["least_p_at"] or 0) <= int(each["seeds"])
    held = by["fedcompass", "table-1-cifar10-dirichlet", "2"]
    assert (held["verdict"], held["question"], held["explains"]) == ("held", "average", "False")
    assert float(held["low"]) > 1
    assert held["reached"].startswith("fedcompass ")
