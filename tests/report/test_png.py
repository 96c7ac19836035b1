"""The static figures."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from offbeat.core.errors import UsageError
from offbeat.report import palette, static, write_figures
from offbeat.report.figures import file_name, plain
from tests.report.report_fakes import FakeRun, figure_1, fleet, reaching
from tests.sampling import thorough

COMMON = ["accuracy_time", "loss_time", "accuracy_versions", "accuracy_bytes", "staleness", "participation"]


def test_every_figure_is_written_and_shows_something(tmp_path: Path) -> None:
    runs = [figure_1(), *(fleet("fedasync", seed, lossy=True) for seed in (1, 0))]
    paths = write_figures(runs, tmp_path / "figures", target=0.5, baseline=None)
    expected = [*COMMON, "timeline_fedcompass", "timeline_fedasync"]
    assert [path.name for path in paths] == [f"{name}.png" for name in expected]
    for path in paths:
        image = imread(path)
        assert min(image.shape[:2]) > 200
        assert image[..., :3].std() > 0.02


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), *thorough(("pdf", b"%PDF"))])
def test_other_formats_are_the_same_files_at_any_time(form: Any, begins: bytes, tmp_path: Path) -> None:
    first, again = (write_figures([figure_1()], tmp_path / name, form=form) for name in "ab")
    assert [path.name for path in first] == [
        *(f"{name}.{form}" for name in COMMON),
        f"timeline_fedcompass.{form}",
    ]
    assert all(path.read_bytes().startswith(begins) for path in first)
    if form == "svg":  # whose identifiers are random
        assert not any(b"<dc:date>" in path.read_bytes() for path in first)
    else:
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


@pytest.mark.thorough
def test_labels_are_taken_literally_however_many_and_never_leave_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More labels than colours."""
    labels = ["../../$\\frac{", "_hidden", "<script>", "A b", "a/b", "..."]
    monkeypatch.setattr(palette, "LABEL_STYLES", palette.LABEL_STYLES[: len(labels) - 1])
    paths = write_figures([fleet(label, 0, clients=2, tasks=3) for label in labels], tmp_path)
    assert all(path.parent == tmp_path and path.exists() for path in paths)
    assert len({path.name.lower() for path in paths}) == len(COMMON) + len(labels)


def test_runs_with_nothing_recorded_have_no_curves(tmp_path: Path) -> None:
    paths = write_figures([FakeRun("a")], tmp_path)
    assert [path.name for path in paths] == ["staleness.png", "participation.png", "timeline_a.png"]


def test_file_names_and_plain_texts() -> None:
    taken: set[str] = set()
    assert [file_name(label, taken) for label in ("fedcompass+M", "a/b", "A b", "///")] == [
        "fedcompass+M",
        "a_b",
        "A_b_2",
        "run",
    ]
    assert plain("_a\n$b$") == r" _a \$b\$"


def test_wrong_usage_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="baseline"):
        write_figures([figure_1()], tmp_path / "figures", baseline="nobody")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("t", "name"), [(10.0, "fast · 1.00x"), (None, "fast")])
def test_a_legend_has_a_relative_time_only_where_there_is_one(
    t: float | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(static, "wrapped", lambda text: names.append(text) or text)
    write_figures([reaching("fast", 0, t)], tmp_path, target=0.9, baseline="fast")
    assert names[0] == name  # of the accuracy against time


@pytest.mark.parametrize("labels", [2, 12])
def test_neither_the_legend_nor_the_target_lies_on_the_curves(
    labels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(static, "save", lambda figure, path: figures.append(figure) or path)
    records = [reaching(f"method {k}", 0, 10.0 + k) for k in range(labels)]
    write_figures(records, tmp_path, target=0.9, baseline="method 0")
    figure = figures[0]  # accuracy against time
    figure.draw_without_rendering()
    (ax,), (legend,) = figure.axes, figure.legends
    (note,) = ax.texts
    boxes = [ax.bbox, legend.get_window_extent(), note.get_window_extent()]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert note.get_text() == "target\n90 %"
    assert legend.get_title().get_text() == "x: time to target,\nrelative to method 0"
