"""Tune every method of a paper with the same budget, and write the study that compares them at their best.

    python -m offbeat_papers.leaderboard.papers [PAPER ...] [--jobs 1]

plans/papers.yaml says on which setting, and what is tried. Called again it goes on from the rows in
papers/results; without runs to make, it writes the studies again: studies/PAPER/tuned.yaml of the package,
that `offbeat reproduce` runs as any other.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import yaml

from offbeat.core.errors import RunError
from offbeat.documents import parse_yaml
from offbeat.recipes.load import change
from offbeat_papers import Trial, load_study, study_document
from offbeat_papers.leaderboard.command import parse_command
from offbeat_papers.leaderboard.tune import HERE, PLANS, RESULTS, Document, best_trial, tuned_spec

STUDIES = HERE.parent / "studies"


def read_papers(path: Path = PLANS / "papers.yaml") -> Document:
    """The plan of each paper."""
    found: Document = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    return found


def paper_recipe(plan: Document) -> Document:
    """The recipe of the setting on which the methods are tuned, with those methods."""
    recipe = study_document(load_study(plan["study"]), "laptop", plan["column"])
    for key, value in plan["set"].items():
        change(recipe, key, deepcopy(value), "set:")
    known = {**recipe["algorithms"], **deepcopy(plan.get("add", {}))}
    recipe["algorithms"] = {label: known[label] for label in plan["labels"]}
    return recipe


def tune_method(paper: str, plan: Document, label: str, jobs: int = 1, results: Path = RESULTS) -> Trial:
    """The best of the method's trials."""
    rates, options = plan["learning_rates"], plan["options"][label]
    start, name = plan.get("start", {}).get(label, {}), f"{paper}/tuned-tuning"
    return best_trial(name, paper_recipe(plan), label, rates, options, jobs, results, start)


def paper_study(plan: Document, chosen: Mapping[str, Trial]) -> Document:
    """The study of a paper: each method as it was set, and as it was tuned."""
    source, recipe = load_study(plan["study"]), paper_recipe(plan)
    as_set = recipe["algorithms"]
    recipe["algorithms"] = {
        name: spec
        for label, trial in chosen.items()
        for name, spec in (
            (label, as_set[label]),
            (f"{label}-tuned", tuned_spec({"name": label, **as_set[label]}, trial, f"{label}:")),
        )
    }
    recipe |= {"baseline": None, "seeds": 3}
    small = {key: value for key, value in source.sizes["seconds"].set.items() if not key.startswith("model")}
    item = {
        "title": plan["item_title"], "explains": plan["explains"], "shows": "time", "figure": "bars",
        "claims": plan["claims"],
        "notes": "chosen: " + "; ".join(f"{label} {_options(trial)}" for label, trial in chosen.items()),
    }  # fmt: skip
    return {
        "title": plan["title"], "paper": source.paper, "about": _about(plan), "recipe": recipe,
        "columns": {column: source.columns[column] for column in plan["columns"]},
        "sizes": {"laptop": {}, "seconds": {"set": small, "columns": plan["columns"][:1]}},
        "items": {plan["item"]: item},
    }  # fmt: skip


def _about(plan: Document) -> str:
    return (
        f"The setting of {plan['study']}, with every method as it is set there and tuned. Each had eight "
        f"trials on the column {plan['column']} and two seeds of its own: four learning rates, then four "
        "values of its own options with the best of them; the time to the target decided. What was tried was "
        "moved where the best was at its end. A run ends at the target."
    )


def _options(trial: Trial) -> str:
    """The chosen options, in words."""
    texts = [f"{key.rpartition('.')[2]} {value}" for key, value in trial.options.items()]
    return ", ".join(texts) or "as set"


def study_text(study: Document) -> str:
    """The study as its file has it."""
    head = "# Written by offbeat_papers.leaderboard.papers from papers.yaml and the rows of the tuning.\n"
    return head + yaml.safe_dump(study, sort_keys=False, width=110, allow_unicode=True)


def main() -> None:
    """Tune and write."""
    papers = read_papers()
    names, jobs = parse_command(__doc__, "papers", papers)
    for paper in names:
        plan, chosen = papers[paper], {}
        for label in plan["labels"]:
            try:
                chosen[label] = tune_method(paper, plan, label, jobs)
            except RunError as error:
                print(f"{paper} {label} could not be tuned, and no study is written: {error}", flush=True)
                break
            best = chosen[label]
            print(f"{paper} {label}: {_options(best)}: {best.score:.1f}, {best.best:.3f}", flush=True)
        else:
            path = STUDIES / paper / "tuned.yaml"
            path.write_text(study_text(paper_study(plan, chosen)), encoding="utf-8")
            print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
