"""What a run shows of itself: a figure of what was recorded, and HTML in which nothing of it is code."""

import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure, SubFigure
from torch import nn

import offbeat as ob

LABEL = "<script>alert(1)<br> & $x$"  # no label has a slash
WORLD = ob.World([1.0, 2.0, 3.0])


def make_module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ob.Run:
    source = ob.load("digits", samples=60, test_samples=20, seed=0)
    parts = [range(20), range(20, 40), range(40, 60)]
    learner = ob.TorchLearner(make_module, ob.federate(source, None, parts))
    return ob.simulate(
        ob.fedbuff(size=2, steps=5), WORLD, learner, until=ob.Until(versions=6), label=LABEL,
        out=tmp_path_factory.mktemp("shown") / "run",
    )  # fmt: skip


@pytest.fixture(scope="module")
def untrained() -> ob.Run:
    return ob.simulate(ob.fedbuff(size=2, steps=5), WORLD, until=ob.Until(versions=6), label=LABEL)


def drawn(figure: Figure | SubFigure) -> list[str]:
    """Titles of the y axes, first on top; one without is of a timeline."""
    return [ax.get_ylabel() for ax in figure.axes]


def test_a_metric_is_drawn_above_the_timeline(run: ob.Run) -> None:
    assert drawn(run.plot()) == ["accuracy (%)", ""]
    figure = run.plot("loss")
    assert drawn(figure) == ["loss", ""]
    top, bottom = figure.axes
    (line,) = top.lines
    times, values = (list(axis) for axis in line.get_data())
    assert (times, values) == ([row["t"] for row in run.metrics], [row["loss"] for row in run.metrics])
    assert [tick.get_text() for tick in bottom.get_yticklabels()] == ["client 0", "client 1", "client 2"]


def test_a_recorded_run_shows_the_same(run: ob.Run) -> None:
    record = ob.read_run(run.path)  # type: ignore[arg-type]
    assert record._repr_html_() == run._repr_html_()
    assert record.plot()._repr_png_() == run.plot()._repr_png_()  # type: ignore[attr-defined]


def test_a_run_without_training_shows_its_clients(untrained: ob.Run) -> None:
    assert drawn(untrained.plot()) == [""]
    with pytest.raises(ob.UsageError, match="metric 'loss' was not recorded: the run has no evaluations"):
        untrained.plot("loss")


def test_a_metric_that_was_not_evaluated(run: ob.Run) -> None:
    with pytest.raises(ob.UsageError, match="metric 'auroc' was not recorded: the run has accuracy, loss"):
        run.plot("auroc")


class Parsed(HTMLParser):
    """Tags, cells and images of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.images += [value or "" for name, value in attrs if (tag, name) == ("img", "src")]

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_html_has_the_numbers_and_a_picture_and_nothing_that_runs(run: ob.Run, untrained: ob.Run) -> None:
    for shown in (run, untrained):
        text = shown._repr_html_()
        found = Parsed(text)
        assert found.tags == {"div", "table", "caption", "tr", "th", "td", "img"}
        assert f"{LABEL}, seed 0" in found.cells
        assert found.cells[found.cells.index("versions") + 1] == "6"
        assert found.cells[found.cells.index("ended") + 1] == shown.stop_reason
        (image,) = found.images
        picture = b64decode(re.sub("^data:image/png;base64,", "", image), validate=True)
        assert picture.startswith(b"\x89PNG")
        assert len(text) < 60_000
    assert found.cells.count("accuracy") == 0
    accuracy = run.summary.accuracy
    assert accuracy is not None
    assert any(cell.startswith(f"{100 * accuracy:.4g} %") for cell in Parsed(run._repr_html_()).cells)


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            ob.fedbuff(size=2, steps=5),
            WORLD,
            until=ob.Until(versions=6),
            out=tmp_path / "run",
            watch=interrupt,
        )
    cells = Parsed(ob.read_run(tmp_path / "run")._repr_html_()).cells
    assert cells[cells.index("ended") + 1] == "not yet"
