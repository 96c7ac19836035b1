"""Labels that tell runs apart, whatever they were called and wherever they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.report import group_by_label, group_runs, write_figures, write_html
from offbeat.report.labels import in_recipe_order, label_text, option_text, short_keys, unique
from tests.report.report_fakes import FakeRun, fleet


def run(label: str, seed: int = 0, path: str | None = None, **recipe: Any) -> FakeRun:
    more = {} if path is None else {"path": Path(path)}
    return FakeRun(label, seed, recipe={"clients": 2, **recipe}, **more)


def labels(*runs: FakeRun) -> list[str]:
    return list(group_runs(runs))


def test_seeds_of_one_experiment_are_one_group() -> None:
    recipes = [{"training": {"lr": 0.1}, "seed": seed, "title": f"{seed}"} for seed in (2, 0, 1)]
    runs = [FakeRun("a", recipe["seed"], recipe=recipe) for recipe in recipes]
    (group,) = group_by_label(runs)
    assert (group.label.text, group.label.options) == ("a", {})
    assert [one.seed for one in group.runs] == [0, 1, 2]


def test_runs_of_one_label_are_told_apart_by_the_options_in_which_they_differ() -> None:
    low = [run("a", seed, training={"lr": 0.1, "batch_size": 8}) for seed in (0, 1)]
    high = [run("a", seed, training={"lr": 1.0, "batch_size": 16}) for seed in (0, 1)]
    groups = group_by_label([*low, *high, run("b")])
    assert [group.label.text for group in groups] == ["a lr=0.1", "a lr=1", "b"]
    assert groups[0].label.options == {"training.lr": "0.1"}
    assert groups[2].label.options == {}  # it has recorded none
    assert [one.label for one in groups[1].runs] == ["a lr=1", "a lr=1"]
    # one key is not enough
    more = run("a", training={"lr": 0.1, "batch_size": 16})
    assert labels(*low, *high, more) == [
        "a lr=0.1 batch_size=8", "a lr=1 batch_size=16", "a lr=0.1 batch_size=16",
    ]  # fmt: skip


def test_options_count_even_where_no_seed_occurs_twice() -> None:
    assert labels(run("a", 0, clients=4), run("a", 1, clients=8)) == ["a clients=4", "a clients=8"]


def test_hyper_parameters_and_algorithms_of_one_label() -> None:
    runs = [
        FakeRun("mine", meta={"algorithm": {"name": name, "size": size}})
        for name, size in (("fedbuff", 3), ("fedbuff", 5), ("fedfa", 5))
    ]
    assert labels(*runs) == [
        "mine algorithm=fedbuff size=3",
        "mine algorithm=fedbuff size=5",
        "mine algorithm=fedfa size=5",
    ]
    assert labels(*runs[:2]) == ["mine size=3", "mine size=5"]


def test_what_differs_in_nothing_is_told_apart_by_its_directory() -> None:
    flat = [run("a", path="runs/monday"), run("a", path="runs/tuesday")]
    assert labels(*flat) == ["a (monday)", "a (tuesday)"]
    nested = [run("a", seed, path=f"{top}/a/seed-{seed}") for top in ("old", "new/b") for seed in (0, 1)]
    groups = group_runs(nested)
    assert {label: len(runs) for label, runs in groups.items()} == {"a (old)": 2, "a (new/b)": 2}
    inside = [run("a", path="runs/x"), run("a", path="runs/x/y")]
    assert labels(*inside) == ["a (x)", "a (y)"]


def test_a_run_given_twice_counts_once() -> None:
    runs = [run("a", path="runs/x"), run("a", path="runs/../runs/x")]
    assert {label: len(found) for label, found in group_runs(runs).items()} == {"a": 1}


def test_no_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="no run"):
        group_by_label([])


def test_the_values_of_a_sweep_are_its_options() -> None:
    runs = [
        run(f"a lr={lr}", algorithm={"label": "a", "name": "fedavg"}, algorithms={"b": {}, "a": {}},
            sweep={"training.lr": [lr]}, training={"lr": lr})
        for lr in (10, 2, 0.5)
    ]  # fmt: skip
    runs.append(run("b lr=1", algorithm={"label": "b", "name": "fedavg"}, sweep={"training.lr": [1]}))
    ordered = in_recipe_order(runs)
    assert [one.label for one in ordered] == ["b lr=1", "a lr=0.5", "a lr=2", "a lr=10"]
    groups = group_by_label(ordered)
    assert [group.label.name for group in groups] == ["b", "a", "a", "a"]
    assert groups[1].label.options == {"training.lr": "0.5"}


def test_short_keys_and_texts() -> None:
    assert short_keys(["training.lr", "algorithm.steps", "data.partition.kind"]) == {
        "training.lr": "lr", "algorithm.steps": "steps", "data.partition.kind": "partition",
    }  # fmt: skip
    assert short_keys(["a.x", "b.x", "x"]) == {"a.x": "a.x", "b.x": "b.x", "x": "x"}
    assert [option_text(v) for v in (1.0, 1e-5, True, None, "x y", {"kind": "iid"}, [1, 2])] == [
        "1", "1e-05", "true", "none", "x y", "{kind: iid}", "[1, 2]",
    ]  # fmt: skip
    assert len(option_text(list(range(100)))) == 40
    assert label_text("a", {"training.lr": "0.1", "clients": "5"}) == "a lr=0.1 clients=5"
    assert unique(["a", "a", "a #2", "b"]) == ["a", "a #2", "a #2 #2", "b"]


@pytest.mark.thorough
def test_the_page_and_the_figures_of_equal_labels(tmp_path: Path) -> None:
    runs = [replace(fleet("a", 0, clients=2, tasks=3), path=Path(name)) for name in ("x", "y")]
    page = write_html(runs, tmp_path / "page.html").read_text("utf-8")
    assert "<span>a (x)</span>" in page
    names = {path.name for path in write_figures(runs, tmp_path)}
    assert {"timeline_a_x.png", "timeline_a_y.png"} <= names


VALUES = st.sampled_from([None, 1, 1.0, "1", True, [1], list(range(60)), list(range(61)), {"kind": "x"}])
RUNS = st.builds(
    run,
    st.sampled_from(["a", "a lr=1", "a (x)", "a #2"]),
    st.integers(0, 2),
    st.sampled_from([None, "x", "x/y", "x/z/y", "y"]),
    training=st.fixed_dictionaries({"lr": VALUES, "momentum": VALUES}),
    until=VALUES,
)


@given(st.lists(RUNS, min_size=1, max_size=12))
def test_every_run_is_in_one_group_and_every_label_occurs_once(runs: list[FakeRun]) -> None:
    groups = group_by_label(runs)
    texts = [group.label.text for group in groups]
    assert len(set(texts)) == len(texts)
    assert sorted(one.path for group in groups for one in group.runs) == sorted({r.path for r in runs})
    for group in groups:
        assert len({one.seed for one in group.runs}) == len(group.runs)
        assert {one.label for one in group.runs} == {group.label.text}
        assert len({repr(one.recipe["training"]) for one in group.runs if one.recipe}) <= 2  # 1 and 1.0
