"""What clients have found: the tables by hand, the figures."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from offbeat.metrics import aggregate_clients
from offbeat.report import client_table, client_values, clients_csv, each_client, write_figures, write_html
from tests.report.report_fakes import FakeRun, evaluation
from tests.sampling import thorough

ACCURACIES: dict[int, float | None] = {0: 0.9, 1: 0.5, 2: None, 3: 0.7}
LOSSES = {0: 0.2, 1: 0.4, 2: 0.1, 3: 0.9}


def run(label: str = "fedavg", seed: int = 0, **more: Any) -> FakeRun:
    """Two evaluations, the first all zero."""
    made = FakeRun(label, seed, clients=4, **more)
    for seq, factor in enumerate((0.0, 1.0)):
        found = {
            client: (10 * (client + 1), {
                "loss": factor * LOSSES[client],
                "accuracy": float("nan") if value is None else factor * value,
            })
            for client, value in ACCURACIES.items()
        }  # fmt: skip
        made.evaluations.append(evaluation(float(seq), None, seq, **aggregate_clients(found)))
        made.client_rows.extend(
            {"evaluation": seq, "t": float(seq), "version": seq, "client": client, "samples": samples,
             "loss": metrics["loss"],
             "accuracy": None if ACCURACIES[client] is None else metrics["accuracy"]}
            for client, (samples, metrics) in found.items()
        )  # fmt: skip
    return made


def test_the_table_has_mean_worst_and_quantiles_of_the_last_evaluation() -> None:
    table = client_table(client_values({"fedavg": [run()]}))
    heads = dict(zip(table.heads, table.rows[0], strict=True))
    mean = 100 * (10 * 0.9 + 20 * 0.5 + 40 * 0.7) / 70
    assert heads == {
        "label": "fedavg", "metric": "accuracy (%)", "clients": "3", "mean": f"{mean:.4g}", "worst": "50",
        "worst client": "client 1", "p10": "54", "median": "70", "p90": "86", "undefined": "1",
    }  # fmt: skip
    assert table.rows[1][1:6] == ("loss", "4", "0.49", "0.9", "client 3")


def test_sites_have_their_names() -> None:
    table = each_client(run(sites={1: "Basel", 3: "Long Beach"}))
    assert table.heads == ("client", "samples", "accuracy (%)", "loss")
    assert table.rows == (
        ("client 0", "10", "90", "0.2"),
        ("Basel", "20", "50", "0.4"),
        ("client 2", "30", "-", "0.1"),
        ("Long Beach", "40", "70", "0.9"),
    )


def test_the_csv_has_every_evaluation_of_every_run_unrounded() -> None:
    text = clients_csv([run("b", 1), run("a", 0), FakeRun("c")])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 * 2 * 4
    assert rows[7] == {
        "label": "b", "seed": "1", "evaluation": "1", "t": "1.0", "version": "1", "client": "3",
        "samples": "40", "name": "", "accuracy": "0.7", "loss": "0.9",
    }  # fmt: skip
    assert rows[6]["accuracy"] == ""


def test_runs_without_evaluations_at_clients_have_no_figure_and_no_section(tmp_path: Path) -> None:
    assert client_values({"a": [FakeRun("a")]}) == {}
    assert not [path for path in write_figures([FakeRun("a")], str(tmp_path)) if "clients" in path.name]
    assert "h-clients" not in write_html([FakeRun("a")], str(tmp_path / "page.html")).read_text(
        encoding="utf-8"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("undefined", [True, *thorough(False)])
def test_figures_and_page_show_each_metric(tmp_path: Path, undefined: bool) -> None:
    runs = [run("fedavg"), run("<b>x</b>")]
    if undefined:  # at every client
        for row in runs[0].client_rows:
            row["accuracy"] = None
        for numbers in runs[0].evaluations:
            for name in [name for name in numbers if name.startswith("clients.accuracy")]:
                del numbers[name]
    paths = {path.name: path for path in write_figures(runs, tmp_path)}
    for name in ("clients_accuracy.png", "clients_loss.png"):
        assert imread(paths[name])[..., :3].std() > 0.02
    page = write_html(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Evaluation at clients" in page
    assert "worst client" in page
    assert "<b>x</b>" not in page
