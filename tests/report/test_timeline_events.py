"""What the timelines show of a task in its middle: requests, recalls, and updates dropped after all."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.image import imread

import offbeat as ob
from offbeat.algorithms.schedules import Buffered
from offbeat.core.commands import Command, Recall
from offbeat.core.events import Arrived, Event
from offbeat.core.programme import Programme
from offbeat.core.schedule import Schedule, View
from offbeat.report import make_timeline, read_activity, write_figures, write_html
from offbeat.report.interactive import timeline_figure
from offbeat.report.palette import Style
from offbeat.report.static_timeline import draw_timeline
from offbeat.report.timeline_events import NAMES, Mark
from tests.report.page import Page
from tests.report.report_fakes import FakeRun, command, event

LOOK = Style("#0072B2", "solid")


def by_hand() -> FakeRun:
    """Client 0 asks at 4 and gets version 2; client 1 asks at 5 in vain, is recalled at 6 and dropped at 9.

    Client 1's task was to have 30 steps and ends with 12, at 8.
    """
    return FakeRun(
        written=[
            event(0.0, "joined", client=0),
            event(0.0, "joined", client=1),
            command(0.0, "train", client=0, task=0, base=0, steps=20, ask_after=10),
            command(0.0, "train", client=1, task=1, base=0, steps=30, ask_after=6),
            event(4.0, "wants_model", client=0, task=0, base=0, version=2, staleness=2, steps=10),
            command(4.0, "send", client=0, task=0, version=2, clock=0),
            event(5.0, "wants_model", client=1, task=1, base=0, version=0, staleness=0, steps=6),
            command(6.0, "recall", client=1, task=1, version=2),
            event(8.0, "arrived", client=1, task=1, base=0, version=2, staleness=2, steps=12),
            event(8.5, "arrived", client=0, task=0, base=0, version=2, staleness=2, steps=20),
            command(8.5, "aggregate", version=3, tasks=[0], clients=[0]),
            command(9.0, "drop", client=1, task=1, version=3, reason="<too> stale"),
        ],
        duration=10.0,
    )


def test_marks_of_a_run_by_hand() -> None:
    assert make_timeline(by_hand()).marks == (
        Mark("fresh", 0, 4.0, 0, "after 10 steps asks for a model and gets version 2"),
        Mark("nothing", 1, 5.0, 1, "after 6 steps asks for a model; there is none newer"),
        Mark("recall", 1, 6.0, 1, "is to report at the end of its epoch"),
        Mark("dropped", 1, 8.0, 1, "update dropped: <too> stale"),
    )


def test_a_task_that_ends_early_has_the_steps_it_did() -> None:
    timeline = make_timeline(by_hand())
    ends = {t.client: (t.end, t.steps, t.planned, t.outcome) for t in timeline.training}
    assert ends == {0: (8.5, 20, 20, "arrived"), 1: (8.0, 12, 30, "arrived")}
    assert [(w.client, w.start, w.end) for w in timeline.waiting] == [(0, 8.5, 10.0), (1, 8.0, 10.0)]
    activity = read_activity(by_hand())
    assert (activity.busy, activity.tasks) == (16.5, {0: 1, 1: 1})


def test_only_the_marks_of_the_window_and_of_the_clients_shown() -> None:
    assert [m.kind for m in make_timeline(by_hand(), until=5.5).marks] == ["fresh", "nothing"]
    assert {m.client for m in make_timeline(by_hand(), max_clients=1).marks} == {0}


def test_a_model_sent_to_another_task_answers_no_request() -> None:
    run = by_hand()
    run.written[5] = command(4.0, "send", client=1, task=1, version=2)
    assert [m.kind for m in make_timeline(run).marks][:2] == ["nothing", "nothing"]


def test_the_page_says_what_the_marks_are(tmp_path: Path) -> None:
    figure = timeline_figure(make_timeline(by_hand()), LOOK)
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert set(NAMES.values()) - {NAMES[k] for k in ("upload", "lost", "stopped")} <= set(traces)
    fresh, dropped = traces["asks, gets a fresh model"], traces["update dropped"]
    assert (fresh["x"], fresh["y"]) == ([4], [-0.38])
    assert fresh["customdata"] == [
        "<b>client 0</b>, task 0<br>4 s: after 10 steps asks for a model and gets version 2"
    ]
    assert (dropped["x"], dropped["y"]) == ([8], [1])
    assert "update dropped: &lt;too&gt; stale" in dropped["customdata"][0]
    assert "steps 12 of 30" in json.dumps(traces["training"]["customdata"])
    page = write_html([by_hand()], tmp_path / "page.html").read_text("utf-8")
    assert "asks, nothing new" in json.dumps(Page(page).data())
    assert "<too>" not in page + json.dumps(Page(page).data())


def test_a_legend_has_only_what_there_is() -> None:
    def legend(run: FakeRun) -> list[str]:
        (drawn,) = draw_timeline(make_timeline(run), LOOK).legends
        return [text.get_text() for text in drawn.get_texts()]

    marks = [name for kind, name in NAMES.items() if kind not in ("upload", "lost", "stopped")]
    assert legend(by_hand())[2:] == [*marks, "aggregation"]
    run = by_hand()
    assert not set(NAMES.values()) & set(legend(FakeRun(written=run.written[:4], duration=3.0)))


class Urgent(Schedule):
    """Buffered, one by one; who has missed more than two versions is recalled."""

    inner = Buffered(Programme(steps=40), 1)
    concurrency = None

    def initial(self) -> list[int]:
        return []

    def on(self, event: Event, state: list[int], view: View) -> Iterator[Command]:
        yield from self.inner.on(event, state, view)
        if isinstance(event, Arrived):
            for client, task in view.tasks.items():
                if view.version - task.base > 2 and not task.recalled:
                    yield Recall(client)


@pytest.mark.parametrize("kind", ["recall", "fresh"])
def test_simulated_runs(kind: str, tmp_path: Path) -> None:
    if kind == "recall":
        made = ob.fedasync()
        algorithm = ob.Algorithm(Urgent(), made.aggregator, made.objective, name="urgent")
    else:
        algorithm = ob.ALGORITHMS["fedasmu"](steps=40, size=4, period=10, ask_every=10, tau_max=3)
    world = ob.World([0.5, 0.6, 0.7, 4.0], network=ob.Network(latency=0.5))
    learner = ob.NoTraining(4, parameters=3, batches=5)
    ob.simulate(algorithm, world, learner, until=ob.Until(seconds=600), out=tmp_path / "run")
    record = ob.read_run(tmp_path / "run")
    timeline = make_timeline(record)
    rows = record.journal
    counts = {
        name: sum(row["name"] == name for row in rows) for name in ("send", "wants_model", "recall", "drop")
    }
    found = {k: sum(mark.kind == k for mark in timeline.marks) for k in NAMES}
    assert found["recall"] == counts["recall"]
    assert (found["fresh"], found["fresh"] + found["nothing"]) == (counts["send"], counts["wants_model"])
    assert found["dropped"] == counts["drop"]
    assert found[kind] > 2
    early = [task for task in timeline.training if task.outcome == "arrived" and task.steps != task.planned]
    assert bool(early) == (kind == "recall")
    assert all(0 < task.steps < task.planned for task in early if task.steps and task.planned)
    paths = write_figures([record], tmp_path / "figures")
    assert imread(next(p for p in paths if p.name.startswith("timeline_")))[..., :3].std() > 0.02


def test_held_updates_are_marked_where_they_are_sent_or_discarded() -> None:
    run = FakeRun(
        written=[
            event(0.0, "joined", client=0),
            event(0.0, "joined", client=1),
            command(0.0, "train", client=0, task=0, base=0, steps=5),
            command(0.0, "train", client=1, task=1, base=0, steps=5),
            event(2.0, "ready", client=0, task=0, steps=5),
            event(3.0, "ready", client=1, task=1, steps=5),
            command(4.0, "upload", client=0, task=0, bits=9),
            command(4.0, "discard", client=1, task=1, reason="not scheduled"),
            event(4.0, "arrived", client=0, task=0, base=0, version=0, staleness=0, steps=5),
            command(4.0, "aggregate", version=1, tasks=[0], clients=[0]),
        ],
        duration=5.0,
    )
    timeline = make_timeline(run)
    assert timeline.marks == (
        Mark("dropped", 1, 4.0, 1, "update dropped: not scheduled"),
        Mark("upload", 0, 4.0, 0, "its update is sent"),
    )
    assert [(s.client, s.start, s.end, s.outcome) for s in timeline.training] == [
        (0, 0.0, 2.0, "ready"), (1, 0.0, 3.0, "ready"),
    ]  # fmt: skip
