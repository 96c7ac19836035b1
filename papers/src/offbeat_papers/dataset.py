"""The rows of results as a dataset: Parquet files, the meaning of each column, a citation, all figures."""

import json
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offbeat_papers.claims import write_claims
from offbeat_papers.experiments import judge_experiments
from offbeat_papers.parquet import curves_table, results_table, write_table
from offbeat_papers.rows import Results
from offbeat_papers.schema import CLAIM_FIELDS, CURVE_FIELDS, DERIVED_FIELDS, ROW_FIELDS, Field

LICENSE = "Apache-2.0"
DESCRIPTION = "datapackage.json"
CITATION = "CITATION.cff"
CLAIMS = "claims.csv"
TITLE = "Runs of asynchronous federated learning: four papers repeated, and a leaderboard"
_LICENSES = [{"name": LICENSE, "path": "https://www.apache.org/licenses/LICENSE-2.0"}]


def write_dataset(results: Results, folder: Path) -> Iterator[Path]:
    """Write the dataset into a folder: its description, the CSV files, Parquet files, and every figure.

    Args:
        results: Where the rows are.
        folder: The folder; CSV files are not copied into the one that they are in.

    Yields:
        Each file as it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in describe(results, folder).items():
        path.write_text(text, encoding="utf-8")
        yield path
    for name in (name for each in csv_files(results).values() for name in each):
        if not (folder / name).exists() or not (folder / name).samefile(results.folder / name):
            yield Path(shutil.copyfile(results.folder / name, folder / name))
    yield write_claims(judge_experiments(results), folder / CLAIMS)
    studies = results.studies()
    yield write_table(results_table(results, studies), folder / "results.parquet")
    yield write_table(curves_table(results, studies), folder / "curves.parquet")
    yield from write_figures(results, folder / "figures")


def describe(results: Results, folder: Path) -> dict[Path, str]:
    """The files that describe a dataset: columns, licence and version, and how it is cited."""
    texts = {DESCRIPTION: json.dumps(description(results), indent=1, ensure_ascii=False) + "\n"}
    texts[CITATION] = citation()
    return {folder / name: text for name, text in texts.items()}


def csv_files(results: Results) -> dict[str, list[str]]:
    """Names of the files of rows, and of the curves."""
    paths = [results.path(study) for study in results.studies()]
    curves = [path.with_name(f"{path.stem}-curves.csv") for path in paths]
    return {
        "results": [path.name for path in paths],
        "curves": [path.name for path in curves if path.is_file()],
    }


def description(results: Results) -> dict[str, Any]:
    """The dataset as a Data Package: its files, and of each column the name, type, unit and meaning."""
    files = csv_files(results)
    fields = {"results": ROW_FIELDS, "curves": CURVE_FIELDS}
    resources: list[dict[str, Any]] = [
        {
            "name": name, "path": files[name], "format": "csv", "encoding": "utf-8",
            "schema": _schema(fields[name]),
        }
        for name in files
    ]  # fmt: skip
    resources.append(
        {
            "name": "claims", "path": CLAIMS, "format": "csv", "encoding": "utf-8",
            "schema": _schema(CLAIM_FIELDS),
        }
    )  # fmt: skip
    resources.append(
        {
            "name": "results-parquet", "path": "results.parquet", "format": "parquet",
            "schema": _schema((*ROW_FIELDS, *DERIVED_FIELDS)),
        }
    )  # fmt: skip
    resources.append(
        {
            "name": "curves-parquet", "path": "curves.parquet", "format": "parquet",
            "schema": _schema(CURVE_FIELDS),
        }
    )  # fmt: skip
    return {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": "offbeat-results",
        "title": TITLE,
        "version": version("offbeat-papers"),
        "licenses": _LICENSES,
        "description": (
            "A row for each finished run: which run, what made it, what it cost, and its metrics. Written by "
            "`offbeat reproduce --dataset DIR`, which makes the Parquet files, the claims and the figures."
        ),
        "resources": resources,
    }


def _schema(fields: tuple[Field, ...]) -> Mapping[str, Any]:
    """The fields. Rows have no key: a run that was made again has several, of which the last one counts."""
    described = {"fields": [field.described() for field in fields]}
    return {**described, "primaryKey": ["paper", "item", "number"]} if fields == CLAIM_FIELDS else described


def citation() -> str:
    """How the dataset is cited."""
    return f"""cff-version: 1.2.0
message: If you use these results, please cite the dataset, and the papers that its studies repeat.
type: dataset
title: "{TITLE}"
abstract: >-
  A row for each finished run of the studies that repeat four papers on asynchronous federated learning, and
  of a leaderboard of algorithms: model, data and world by study and column, algorithm by label, and seed;
  time, versions, updates and bytes to targets; metrics; commit and processor. {DESCRIPTION} describes each
  column.
version: {version("offbeat-papers")}
license: {LICENSE}
keywords:
  - federated learning
  - asynchronous
  - reproduction
  - benchmark
authors:
  - name: The Offbeat developers
"""


def write_figures(results: Results, folder: Path) -> Iterator[Path]:
    """Draw every figure of the rows: of each item, of the findings, and of the leaderboard."""
    from offbeat_papers.figure import write_figure
    from offbeat_papers.findings_figures import draw_findings
    from offbeat_papers.findings_numbers import Findings
    from offbeat_papers.leaderboard.tables import draw, everywhere
    from offbeat_papers.leaderboard.tune import read_board, read_boards
    from offbeat_papers.paper_page import figure_name

    folder.mkdir(parents=True, exist_ok=True)
    judged = judge_experiments(results)
    items = {item.rows.full_name: item.rows for each in judged for item in (*each.items, *each.causes)}
    for rows in items.values():
        written = write_figure(rows, results, folder / figure_name(rows))
        if written is not None:
            yield written
    yield from draw_findings(Findings(judged), folder)
    boards = everywhere(read_boards(read_board()["data"], results.folder))
    if draw(boards, folder / "leaderboard.png"):
        yield folder / "leaderboard.png"
