"""The interactive page: self-contained, escaped, complete."""

import math
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import UsageError
from offbeat.report import write_html
from tests.report.page import Page
from tests.report.report_fakes import FakeRun, evaluation, figure_1, fleet, reaching

HOSTILE = '<script>alert("x")</script>&<!--'


def write(tmp_path: Path, runs: list[FakeRun], **options: Any) -> Page:
    out = write_html(runs, tmp_path / "deep" / "report.html", **options)
    assert out.stat().st_size < 2_500_000
    return Page(out.read_text(encoding="utf-8"))


def test_the_page_loads_nothing_and_holds_every_figure(tmp_path: Path) -> None:
    runs = [fleet(label, seed, lossy=True) for label in ("a", "b") for seed in range(3)]
    page = write(tmp_path, [*runs, figure_1()], target=0.5, title="Three labels")
    assert page.loads == ["data:,"]
    assert page.tags.count("script") == 3
    data = page.data()
    assert sorted(data["curves"]) == [
        f"{measure}/{axis}" for measure in ("accuracy", "loss") for axis in ("bytes", "time", "versions")
    ]
    assert [(t["label"], len(t["runs"])) for t in data["timelines"]] == [
        ("a", 3),
        ("b", 3),
        ("fedcompass", 1),
    ]
    assert data["staleness"]["data"]
    assert len(data["participation"]["data"]) == 6
    shown = "".join(page.shown)
    assert "Three labels" in shown
    assert "1.00x" in shown
    assert "q_min: 20" in shown


def test_the_page_forbids_loading_from_elsewhere(tmp_path: Path) -> None:
    text = write_html([figure_1()], tmp_path / "r.html").read_text(encoding="utf-8")
    head = text[: text.index("</head>")]
    assert "default-src 'none'" in head
    assert "http://" not in head.replace("http-equiv", "")
    assert "https://" not in head


def test_hostile_strings_are_shown_and_never_run(tmp_path: Path) -> None:
    run = FakeRun(
        HOSTILE,
        written=fleet("a", 0).written,
        evaluations=fleet("a", 0).evaluations,
        duration=100.0,
        algorithm=HOSTILE,
        status=HOSTILE,
        stop_reason=HOSTILE,
        recipe={HOSTILE: [HOSTILE]},
    )
    page = write(tmp_path, [run], target=0.5, title=HOSTILE)
    assert page.tags.count("script") == 3
    assert HOSTILE in "".join(page.shown)
    assert "<" not in page.scripts[0]
    names = [trace.get("name") for trace in page.data()["curves"]["accuracy/time"]["data"]]
    assert names == ['&lt;script&gt;alert("x")&lt;/script&gt;&amp;&lt;!--']


def test_figure_1_bars_carry_groups_and_steps(tmp_path: Path) -> None:
    figure = write(tmp_path, [figure_1()]).data()["timelines"][0]["runs"][0]["figure"]
    bars = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "bar"}
    assert list(bars) == ["no group", "group 1", "group 2", "group 3"]
    assert sorted(bars["group 1"]["text"]) == ["100", "28", "40"]
    assert sorted(zip(bars["group 1"]["base"], bars["group 1"]["x"], strict=True)) == [
        (2, 10),
        (4, 8),
        (5, 7),
    ]
    assert figure["layout"]["yaxis"]["ticktext"][0] == "client 1"


def test_a_card_says_to_what_its_relative_time_is_relative(tmp_path: Path) -> None:
    runs = [reaching("fast", 0, 5.0), reaching("slow", 0, 10.0)]
    shown = write(tmp_path, runs, target=0.6, baseline="slow").shown
    (card,) = (text for text in shown if text.startswith("first to"))
    assert card == "first to 60 %: fast, 0.50x the time of slow"
    shown = write(tmp_path, runs, target=0.6, baseline="fast").shown
    assert "first to 60 %: fast" in shown


def test_runs_with_nothing_recorded_still_make_a_page(tmp_path: Path) -> None:
    data = write(tmp_path, [FakeRun("a", status="running")]).data()
    assert data["curves"] == {}
    assert data["staleness"] is None
    assert data["participation"] is None
    assert data["timelines"][0]["runs"][0]["figure"] is None


def test_only_loss_opens_on_loss(tmp_path: Path) -> None:
    run = FakeRun("a", evaluations=[evaluation(0.0, None, loss=1.0), evaluation(5.0, None, 1, loss=0.5)])
    data = write(tmp_path, [run]).data()
    assert data["first_measure"] == "loss"


def test_every_metric_of_any_run_is_in_the_switch(tmp_path: Path) -> None:
    one = FakeRun("a", evaluations=[evaluation(0.0, None, loss=1.0, auroc=0.5, distance=3.0)])
    other = FakeRun("b", evaluations=[evaluation(0.0, None, loss=1.0, f1=0.5, distance=math.nan)])
    page = write(tmp_path, [one, other])
    assert page.options == ["auroc", "distance", "f1", "loss"]
    data = page.data()
    assert data["first_measure"] == "auroc"
    assert {key.partition("/")[0] for key in data["curves"]} == {"auroc", "distance", "f1", "loss"}
    assert data["curves"]["f1/time"]["layout"]["yaxis"]["title"]["text"] == "f1 (%)"
    assert data["curves"]["distance/time"]["layout"]["yaxis"]["title"]["text"] == "distance"
    chosen = write(tmp_path, [one, other], metric="loss", target=0.9).data()
    assert chosen["first_measure"] == "loss"
    assert "shapes" in chosen["curves"]["loss/time"]["layout"]
    assert "shapes" not in chosen["curves"]["auroc/time"]["layout"]


def test_many_metrics_are_limited_and_the_page_says_so(tmp_path: Path) -> None:
    """A run of another party may have any number of them, and each has figures of its own."""
    names = [f"m{n:03}" for n in range(300)]
    run = FakeRun("a", evaluations=[evaluation(0.0, 0.5, **dict.fromkeys(names, 1.0))])
    page = write(tmp_path, [run], metric="m299")
    assert len(page.options) == 201
    assert {"accuracy", "m198", "m299"} < set(page.options)
    assert " 100 more metrics were left out to keep the page small." in "".join(page.shown)


def test_many_runs_are_limited_and_the_page_says_so(tmp_path: Path) -> None:
    runs = [fleet(label, seed, clients=2, tasks=5) for label in ("a", "b", "c") for seed in range(15)]
    page = write(tmp_path, runs)
    assert sum(len(group["runs"]) for group in page.data()["timelines"]) == 24
    assert "Timelines of 21 more runs were left out" in "".join(page.shown)


def test_wrong_usage_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="target"):
        write_html([figure_1()], tmp_path / "r.html", target=90.0)
    assert list(tmp_path.iterdir()) == []


def test_cards_of_labels_that_tie_name_them_all_and_have_no_colour(tmp_path: Path) -> None:
    runs = [FakeRun(label, evaluations=[evaluation(5.0, value)], duration=9.0)
            for label, value in (("a", 0.9), ("b", 0.9), ("c", 0.4))]  # fmt: skip
    path = write_html(runs, tmp_path / "tie.html", target=0.8, baseline="c")
    text = path.read_text(encoding="utf-8")
    cards = [part.split("</div>")[0] for part in text.split('<div class="card"')[1:]]
    assert [card.split("<span>")[1].split("</span>")[0] for card in cards][:2] == [
        "first to 80 %: a and b",
        "best accuracy: a and b",
    ]
    assert all(card.startswith(">") for card in cards[:2])
    alone = [*runs, FakeRun("d", evaluations=[evaluation(2.0, 0.95)], duration=9.0)]
    text = write_html(alone, tmp_path / "one.html", target=0.8).read_text(encoding="utf-8")
    card = text.split('<div class="card"')[1].split("</div>")[0]
    assert card.startswith(' style="--colour')
    assert "first to 80 %: d, 0.40x the time of a" in card


def test_a_label_that_diverged_has_no_card(tmp_path: Path) -> None:
    lost = FakeRun("lost", evaluations=[evaluation(1.0, 0.99)], duration=9.0, status="diverged")
    kept = FakeRun("kept", evaluations=[evaluation(5.0, 0.9)], duration=9.0)
    page = write(tmp_path, [lost, kept], target=0.8)
    shown = "".join(page.shown)
    assert "best accuracy: kept" in shown
    assert "lost (diverged)" in shown
