"""Tuning of a label's options: a budget of trials on seeds of their own, kept as rows like any study's."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.allowed import NOTHING, Allow
from offbeat.core.errors import UsageError
from offbeat.core.metric_names import NamedMetric, first_shown
from offbeat.recipes.load import change
from offbeat.recipes.run_pool import RunProgress
from offbeat.recipes.sweep import sweep_points
from offbeat.report.labels import label_text, option_text
from offbeat.verdicts.cost import Cost
from offbeat_papers.cells import Cell, study_cells
from offbeat_papers.folder import default_results
from offbeat_papers.load import make_study
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.run import run_cells
from offbeat_papers.study import COSTS, VALUES

TUNING_SEED = 1_000_000
"""The first seed of tuning: studies begin at 0, and no seed is in both."""

Options = Mapping[str, Any]
"""Values by dotted key; "algorithm.steps" is the label's hyper-parameter."""


@dataclass(frozen=True)
class Trial:
    """A setting of the options.

    Attributes:
        options: Values by dotted key; empty for the label as the recipe has it.
        score: The geometric mean of the costs up to the target, or the mean of a value. A run that did not
            reach the target counts as what it spent, and a diverged run as infinite. The score of a value is
            NaN if a run has diverged; such a trial is ranked last.
        reached: Number of seeds that reached the target. None means that the score is no cost.
        seeds: Number of seeds.
        best: Mean over seeds of the metric's best value.
    """

    options: Options
    score: float
    reached: int | None
    seeds: int
    best: float


@dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Attributes:
        trials: The trials, the best first.
        as_given: The trial with no options: the label as the recipe has it.
    """

    trials: tuple[Trial, ...]
    as_given: Trial

    @property
    def best(self) -> Trial:
        """The best trial."""
        return self.trials[0]


def tune(
    name: str,
    recipe: Mapping[str, Any],
    label: str,
    options: Mapping[str, Sequence[Any]] | Sequence[Options],
    *,
    trials: int = 8,
    seeds: int = 3,
    score: str = "time",
    first_seed: int = TUNING_SEED,
    results: Path | None = None,
    processes: int = 1,
    watch: Callable[[RunProgress], None] | None = None,
    allow: Allow = NOTHING,
) -> Tuned:
    """Tune a label of a recipe. A second call continues from the existing rows.

    The label as the recipe has it is always a trial. If a grid has more settings than the budget allows, a
    fixed random stream draws from the grid, so that each call has the same trials.

    Args:
        name: "folder/name" of the rows' file.
        recipe: The recipe as a YAML file has it, or as `offbeat_papers.study_document` returns it.
        label: A label of the recipe's `algorithms`, or an algorithm's name.
        options: The values of each dotted key, which are tried in all combinations; or the settings
            themselves.
        trials: Largest number of settings that are tried, including the recipe's own.
        seeds: Number of seeds of each setting.
        score: The quantity that decides: a cost up to the recipe's target ("time", "versions", "tasks",
            "bytes"); "best", "final" or "level" of the recipe's metric; or the name of another metric, which
            means the metric's level.
        first_seed: The first seed. Use other seeds than those on which the tuned label is compared.
        results: Folder of the rows. None means the folder of `offbeat reproduce`.
        processes: Number of runs at the same time.
        watch: Called with the progress of all runs. None means that nothing is called.
        allow: What the recipe may name: "module", whose exposed functions may be called, or
            "module:function".

    Raises:
        UsageError: An option is not allowed, or the recipe has no target for a cost.
        RunError: A run failed, other than by training that diverges.
    """
    if trials < 1:
        raise UsageError(f"trials = {trials} is not allowed: should be at least 1")
    settings = _within_budget(_settings(options), trials)
    labels = {_trial_label(label, setting): setting for setting in settings}
    specs = {text: _spec(recipe, label, setting) for text, setting in labels.items()}
    document = {
        **recipe,
        "algorithms": specs,
        "seed": first_seed,
        "seeds": seeds,
        "baseline": None,
    }
    study = make_study(
        name,
        {
            "title": f"Tuning of {label}", "paper": "", "recipe": document, "columns": {"tuning": {}},
            "sizes": {"laptop": {}}, "items": {"tuning": {"title": f"Tuning of {label}"}},
        },
    )  # fmt: skip
    cells = study_cells(study, "laptop")
    if score in COSTS and cells[0].recipe.target is None:
        raise UsageError(f"score = {score} needs a target: give the recipe one, or score = 'best'")
    place = default_results() if results is None else Results(results)
    run_cells(cells, place, processes, watch or _unwatched, allow)
    rows = place.rows(study.name)
    made = [
        _trial(setting, [(cell, rows[cell.digest]) for cell in cells if cell.label == text], score)
        for text, setting in labels.items()
    ]
    worse = 1.0 if score in COSTS else -_sign(score, cells[0], rows)
    ranked = sorted(made, key=lambda t: (inf if np.isnan(t.score) else worse * t.score, -t.best))
    return Tuned(tuple(ranked), next(trial for trial in made if not trial.options))


def _unwatched(report: RunProgress) -> None:
    """Do nothing with a report."""


def _settings(options: Mapping[str, Sequence[Any]] | Sequence[Options]) -> list[Options]:
    if isinstance(options, Mapping):
        return [point.values for point in sweep_points(options)]
    return list(options)


def _within_budget(settings: Sequence[Options], trials: int) -> list[Options]:
    """The recipe's own setting, and of the others as many as there may be."""
    others = [setting for setting in settings if setting]
    if len(others) >= trials:
        rng = np.random.Generator(np.random.Philox(key=len(others)))
        chosen = sorted(rng.choice(len(others), trials - 1, replace=False))
        others = [others[place] for place in chosen]
    return [{}, *others]


def _trial_label(label: str, setting: Options) -> str:
    texts = {key: option_text(value).replace("/", "_").replace("\\", "_") for key, value in setting.items()}
    return label_text(label, texts)


def _spec(recipe: Mapping[str, Any], label: str, setting: Options) -> dict[str, Any]:
    """A label's algorithm with a setting's options."""
    spec = {"name": label, **deepcopy((recipe.get("algorithms") or {}).get(label) or {})}
    for key, value in setting.items():
        section, _, option = key.partition(".")
        if section == "algorithm":
            change(spec, option, value, "options:")
        else:
            spec["set"] = {**spec.get("set", {}), key: value}
    return spec


def _trial(setting: Options, runs: Sequence[tuple[Cell, ResultRow]], score: str) -> Trial:
    cell, metric = runs[0][0], _metric(runs[0])
    best = [value for _, row in runs if (value := row.value("best", metric)) is not None]
    sign = 1.0 if NamedMetric.of(metric).higher_is_better else -1.0
    quality = sign * float(np.mean(best)) if best else -inf
    if score not in COSTS:
        kind, name = (score, metric) if score in VALUES else ("level", score)
        values = [value for _, row in runs if (value := row.value(kind, name)) is not None]
        known = values and not any(row.diverged for _, row in runs)
        return Trial(setting, float(np.mean(values)) if known else float("nan"), None, len(runs), quality)
    target = cell.recipe.target
    assert target is not None
    costs = [cost for _, row in runs if (cost := row.cost(score, metric, target)) is not None]
    reached = sum(cost.reached for cost in costs)
    return Trial(setting, _geometric_mean(costs), reached, len(runs), quality)


def _metric(run: tuple[Cell, ResultRow]) -> str:
    cell, row = run
    return cell.recipe.metric or first_shown(chain(row.final))


def _geometric_mean(costs: Sequence[Cost]) -> float:
    """The mean, infinite where a run diverged."""
    amounts = [max(cost.amount, 1e-9) for cost in costs]
    return exp(sum(map(log, amounts)) / len(amounts)) if amounts else float("nan")


def _sign(score: str, cell: Cell, rows: Mapping[str, ResultRow]) -> float:
    """1 where more of the score is better."""
    if score == "change":
        return -1.0
    name = _metric((cell, rows[cell.digest])) if score in VALUES else score
    return 1.0 if NamedMetric.of(name).higher_is_better else -1.0
