"""Curves over seeds, staleness histograms, participation, units, colours."""

import math

import numpy as np
import pytest

from offbeat.algorithms import ALGORITHMS
from offbeat.report import make_curves, participation, read_activity, staleness_histograms
from offbeat.report.activity import Activity
from offbeat.report.labels import shortened
from offbeat.report.palette import (
    ALGORITHM_STYLES,
    GROUP_COLOURS,
    LABEL_STYLES,
    choose_styles,
    group_colour,
    text_on,
)
from offbeat.report.panels import MOST_TICKS, participation_panels, staleness_panels, ticks_of
from offbeat.units import (
    byte_unit,
    decimals,
    duration_text,
    mean_text,
    number_text,
    percent,
    plain_text,
    seed_list,
    time_unit,
)
from tests.report.report_fakes import FakeRun, evaluation, figure_1


def pair() -> list[FakeRun]:
    first = [evaluation(0.0, 0.0), evaluation(10.0, 0.4, 1), evaluation(30.0, 0.8, 2)]
    second = [evaluation(0.0, 0.2), evaluation(20.0, 0.6, 1), evaluation(40.0, 1.0, 2)]
    return [FakeRun("a", 0, evaluations=first), FakeRun("a", 1, evaluations=second)]


def test_seeds_are_step_interpolated_up_to_where_the_first_ends() -> None:
    (curve,) = make_curves(pair(), "time", "accuracy")
    assert curve.x.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert curve.mean == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert curve.std == pytest.approx([0.2 / math.sqrt(2)] * 2 + [0.2 / math.sqrt(2)] * 2)
    assert curve.seeds == 2


def test_other_axes_are_versions_and_bytes_up_plus_down() -> None:
    (versions,) = make_curves(pair(), "versions", "accuracy")
    assert versions.x.tolist() == [0.0, 1.0, 2.0]
    assert versions.mean == pytest.approx([0.1, 0.5, 0.9])
    (traffic,) = make_curves(pair(), "bytes", "accuracy")
    assert traffic.x.tolist() == [0.0, 150.0, 300.0]


def test_one_seed_has_no_deviation_and_long_runs_are_thinned() -> None:
    rows = [evaluation(float(k), k / 1000, k) for k in range(1000)]
    (curve,) = make_curves([FakeRun("a", evaluations=rows)], "time", "accuracy", points=50)
    assert curve.x.size == 50
    assert (curve.x[0], curve.x[-1]) == (0.0, 999.0)
    assert not curve.std.any()


def test_values_that_are_not_finite_are_gaps_and_unmeasured_labels_have_no_curve() -> None:
    rows = [evaluation(0.0, 0.1, loss=2.0), evaluation(1.0, 0.1, loss=math.inf), evaluation(2.0, 0.1)]
    run = FakeRun("a", evaluations=rows)
    (curve,) = make_curves([run, FakeRun("b")], "time", "loss")
    assert curve.label == "a"
    assert np.isnan(curve.mean).tolist() == [False, True, True]


def test_several_evaluations_at_one_place_keep_the_last() -> None:
    rows = [evaluation(0.0, 0.1, 0), evaluation(5.0, 0.3, 0), evaluation(9.0, 0.5, 1)]
    (curve,) = make_curves([FakeRun("a", evaluations=rows)], "versions", "accuracy")
    assert curve.x.tolist() == [0.0, 1.0]
    assert curve.mean.tolist() == [0.3, 0.5]


def activity(staleness: dict[int, int]) -> Activity:
    return Activity({0: sum(staleness.values())}, staleness, 1, 1.0, 1.0, 1, 0)


def test_staleness_is_pooled_over_seeds_on_common_bins() -> None:
    a, b, c = staleness_histograms(
        {"a": [activity({0: 1, 2: 1}), activity({2: 4})], "b": [activity({3: 5})], "c": [activity({})]}
    )
    assert a.width == 1
    assert a.shares == (0.25, 0.0, 0.75, 0.0)
    assert (a.mean, a.updates) == (1.5, 6)  # the mean of 1 and 2, as in the table: each seed counts once
    assert b.shares == (0.0, 0.0, 0.0, 1.0)
    assert (c.shares, c.mean, c.updates) == ((0.0,) * 4, None, 0)


def test_wide_staleness_is_binned() -> None:
    (histogram,) = staleness_histograms({"a": [activity({0: 1, 299: 3})]})
    assert histogram.width == 3
    assert len(histogram.shares) == 100
    assert histogram.shares[-1] == 0.75


def test_the_few_oldest_updates_do_not_widen_the_bins() -> None:
    old, new = staleness_histograms({"old": [activity({0: 500, 4: 495, 400: 5})], "new": [activity({1: 5})]})
    assert (old.width, len(old.shares)) == (1, 5)
    assert old.shares == (0.5, 0.0, 0.0, 0.0, 0.495)
    assert old.beyond == 0.005
    assert (new.shares, new.beyond) == ((0.0, 1.0, 0.0, 0.0, 0.0), 0.0)
    panels = staleness_panels({"old": [activity({0: 500, 4: 495, 400: 5})]})
    assert panels[0].title == "old · mean 3.98 · 0.5 % above 4"


def test_participation_of_figure_1() -> None:
    run = figure_1()
    part = participation(run, read_activity(run))
    assert part.clients == (1, 2, 3, 4, 5)
    assert part.tasks == (3, 3, 3, 2, 2)
    assert part.task_shares[0] == pytest.approx(3 / 13)
    assert part.sample_shares == (0.2,) * 5
    assert part.note == ""


def test_participation_of_a_large_fleet_says_what_it_shows() -> None:
    run = FakeRun(samples=dict.fromkeys(range(1000), 1))
    part = participation(run, read_activity(run), max_clients=10)
    assert part.clients == tuple(range(0, 1000, 100))
    assert part.note == "10 of 1000 clients, evenly spaced by number"


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (51.2487, 0.2012, "51.25 ± 0.20"),  # two digits from 100 to 354
        (13.0, 1.4142, "13.0 ± 1.4"),
        (78.47, 3.54, "78.5 ± 3.5"),
        (78.47, 3.55, "78 ± 4"),
        (12345.0, 230.0, "12340 ± 230"),
        (12345.0, 830.0, "12300 ± 800"),
        (0.1234567, 0.00054, "0.1235 ± 0.0005"),
        (9.99, 0.96, "10.0 ± 1.0"),
        (-0.01, 0.5, "0.0 ± 0.5"),
        (0.7, 1e-17, "0.7 ± 0"),  # equal numbers, but for rounding
        (36.0, 0.0, "36 ± 0"),
        (66.004, None, "66"),
        (1.69231, None, "1.692"),
        (0.00012345, None, "0.0001234"),
        (123456.7, None, "123457"),
        (0.0, None, "0"),
    ],
)
def test_a_mean_has_no_digits_beyond_its_deviation(value: float, spread: float | None, text: str) -> None:
    assert mean_text(value, spread) == text
    assert number_text(value, spread) == text.partition(" ")[0]


def test_a_difference_has_its_sign() -> None:
    assert [number_text(x, 0.5, sign=True) for x in (1.26, -1.26, -0.01)] == ["+1.3", "-1.3", "-0.0"]
    assert [decimals(x) for x in (0.2, 0.4, 0.0199, 2e-7, 0.99, 10.0, 5e5)] == [2, 1, 3, 8, 1, 0, -5]


def test_units() -> None:
    assert [time_unit(t).name for t in (0, 179, 180, 10800, 300000)] == ["s", "s", "min", "h", "days"]
    assert [byte_unit(b).name for b in (0, 5e3, 5e6, 5e9, 5e12)] == ["B", "kB", "MB", "GB", "TB"]
    assert [duration_text(t) for t in (0.25, 120, 7260, 200000)] == [
        "0.25 s",
        "2 min",
        "2 h 01 min",
        "2 d 08 h",
    ]
    assert [percent(0.9), percent(0.625)] == ["90 %", "62.5 %"]
    assert [seed_list([3]), seed_list([2, 0, 1]), seed_list([0, 2])] == ["seed 3", "seeds 0-2", "seeds 0, 2"]


def test_labels_of_ones_own_get_colours_in_order_and_a_dash_when_eight_are_used() -> None:
    style = choose_styles(["a", "b", "a", *(str(k) for k in range(40))])
    assert [style["a"], style["b"], style["0"]] == list(LABEL_STYLES[:3])
    assert [style["5"].dash, style["6"].dash, style["14"].dash, style["22"].dash] == [
        "solid", "dash", "dot", "dashdot"
    ]  # fmt: skip
    assert style["31"] == style["a"]


def test_groups_repeat_their_colours_and_texts_can_be_read() -> None:
    assert group_colour(1) == group_colour(1 + len(GROUP_COLOURS)) != group_colour(None)
    assert text_on("#000000") != text_on("#ffffff")


def test_every_algorithm_has_a_style_of_its_own_whatever_is_beside_it() -> None:
    assert set(ALGORITHM_STYLES) == set(ALGORITHMS)
    assert len({style.colour for style in LABEL_STYLES}) == len(LABEL_STYLES)
    alone = choose_styles(["fedbuff"])
    beside = choose_styles(["mine", "fedasync", "fedavg", "fedbuff", "fedavg with more steps"])
    assert alone["fedbuff"] == beside["fedbuff"] == ALGORITHM_STYLES["fedbuff"]
    assert len(set(beside.values())) == 5
    both = choose_styles(["FedBuff", "fedbuff"])
    assert both["FedBuff"] == ALGORITHM_STYLES["fedbuff"] != both["fedbuff"]
    assert beside["mine"] == next(style for style in LABEL_STYLES if style not in map(beside.get, ALGORITHMS))


def test_a_client_is_called_by_its_name_where_it_has_one() -> None:
    run = FakeRun(samples={0: 3, 1: 1, 2: 4}, sites={0: "north", 2: "a hospital with a very long name"})
    activities = {"fedavg": [read_activity(run)]}
    (panel,) = participation_panels({"fedavg": [run]}, activities)
    assert panel.names == ("north, 0 tasks", "client 1, 0 tasks", "a hospital with a very long name, 0 tasks")
    assert ticks_of([panel]) == {0: "north", 1: "1", 2: shortened("a hospital with a very long name", 14)}


def test_an_axis_of_many_clients_has_numbers() -> None:
    run = FakeRun(samples=dict.fromkeys(range(MOST_TICKS + 1), 1))
    panels = participation_panels({"fedavg": [run]}, {"fedavg": [read_activity(run)]})
    assert ticks_of(panels) is None


@pytest.mark.parametrize(
    ("value", "significant", "text"),
    [(123.4, 2, "120"), (2.04, 2, "2"), (0.1234, 3, "0.123"), (1234.5, 3, "1230")],
)
def test_a_number_of_few_digits_has_no_exponent(value: float, significant: int, text: str) -> None:
    assert plain_text(value, significant) == text
