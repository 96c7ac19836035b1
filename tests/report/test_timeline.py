"""The client timeline of one run."""

from offbeat.report import make_timeline
from tests.report.report_fakes import FakeRun, command, event, figure_1, fleet


def test_figure_1_is_as_the_paper_draws_it() -> None:
    timeline = make_timeline(figure_1())
    assert timeline.clients == (1, 2, 3, 4, 5)
    bars = {
        client: [
            (t.start / 60, t.end / 60, t.steps, t.group) for t in timeline.training if t.client == client
        ]
        for client in timeline.clients
    }
    assert bars[1][:3] == [(0, 2, 20, None), (2, 12, 100, 1), (12, 22, 100, 2)]
    assert bars[2][1:3] == [(4, 12, 40, 1), (12, 22, 50, 2)]
    assert bars[3][1:3] == [(5, 12, 28, 1), (12, 22, 40, 2)]
    assert bars[4][:2] == [(0, 8, 20, None), (8, 22, 35, 2)]
    assert bars[5][:2] == [(0, 10, 20, None), (10, 22, 24, 2)]
    assert [(a.t / 60, a.group) for a in timeline.aggregations] == [
        (2, None),
        (4, None),
        (5, None),
        (8, None),
        (10, None),
        (12, 1),
        (22, 2),
    ]
    assert timeline.waiting == ()
    assert timeline.grouped
    assert timeline.caption == "fedcompass, seed 0: the whole run, all clients."


def test_tasks_of_figure_1_that_go_on_are_cut_at_the_end() -> None:
    running = [task for task in make_timeline(figure_1()).training if task.outcome == "running"]
    assert [(task.client, task.start / 60, task.end / 60) for task in running] == [
        (client, 22, 28) for client in (1, 2, 3, 4, 5)
    ]


def test_a_window_is_cut_and_the_caption_says_so() -> None:
    timeline = make_timeline(figure_1(), until=600.0)
    assert timeline.until == 600.0
    assert max(task.end for task in timeline.training) == 600.0
    assert timeline.cut == "shown: the first 10 min of 28 min."
    assert len(timeline.aggregations) == 5


def test_a_window_beyond_the_end_shows_the_whole_run() -> None:
    timeline = make_timeline(figure_1(), until=1e6)
    assert timeline.until == 28 * 60.0
    assert timeline.cut == ""


def test_the_default_window_ends_after_enough_tasks() -> None:
    timeline = make_timeline(fleet("a", 0, tasks=400), max_tasks=30)
    ended = [task for task in timeline.training if task.outcome != "running"]
    assert len(ended) == 30
    assert timeline.until == max(task.end for task in ended)
    assert timeline.cut.startswith("shown: the first")


def test_at_most_so_many_clients_the_first_to_train() -> None:
    timeline = make_timeline(fleet("a", 0, clients=12), max_clients=5)
    assert timeline.clients == (0, 1, 2, 3, 4)
    assert {task.client for task in timeline.training} == {0, 1, 2, 3, 4}
    assert "5 of 12 clients (the first to train)" in timeline.cut


def test_clients_that_only_wait_are_shown_where_there_is_room() -> None:
    rows = [event(0.0, "joined", client=c) for c in range(3)]
    rows += [command(5.0, "train", client=2, task=0, base=0, steps=1), event(9.0, "left", client=2, task=0)]
    run = FakeRun(written=rows, duration=10.0, clients=3)
    timeline = make_timeline(run)
    assert timeline.clients == (0, 1, 2)
    assert [(w.client, w.start, w.end) for w in timeline.waiting] == [(2, 0, 5), (0, 0, 10), (1, 0, 10)]
    assert [(t.end, t.outcome) for t in timeline.training] == [(9.0, "left")]
    assert make_timeline(run, max_clients=2).clients == (0, 2)


def test_a_run_without_a_journal_has_an_empty_timeline() -> None:
    timeline = make_timeline(FakeRun(clients=0))
    assert timeline.clients == ()
    assert timeline.until == 0.0


def test_too_many_aggregations_are_thinned_and_the_caption_says_so() -> None:
    timeline = make_timeline(fleet("a", 0, clients=4, tasks=500), max_tasks=450)
    assert len(timeline.aggregations) == 150
    assert timeline.cut.endswith("one in 3 aggregations.")
