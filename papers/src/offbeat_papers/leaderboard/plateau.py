"""Tune FedASMU's methods for their accuracy at a plateau, and write the studies that compare them there.

    python -m offbeat_papers.leaderboard.plateau [DATA ...] [--jobs 1]

plans/plateau.yaml says on which settings, and what is tried. Called again it goes on from the rows in
papers/results; without runs to make, it writes the studies again: studies/fedasmu/plateau-DATA.yaml of the
package, that `offbeat reproduce` runs as any other.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import yaml

from offbeat.documents import parse_yaml
from offbeat.recipes.load import change
from offbeat.recipes.run_pool import RunProgress
from offbeat_papers import Trial, load_study, study_document, tune
from offbeat_papers.leaderboard.command import parse_command
from offbeat_papers.leaderboard.tune import LR, PLANS, RESULTS, Document, tuned_spec
from offbeat_papers.tuning import TUNING_SEED

STUDIES = Path(__file__).parents[1] / "studies" / "fedasmu"
_SHOWN = {
    "accuracy": ("level", "more accurate", "accuracy at the plateau"),
    "time": ("time", "faster", "time"),
}


def read_plan(path: Path = PLANS / "plateau.yaml") -> Document:
    """The plan."""
    found: Document = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    return found


def plateau_recipe(plan: Document, data: str, phase: str) -> Document:
    """The recipe of a data set for a phase of the plan, "tuning" or "run", with every method as it is set."""
    own = plan["data"][data]
    recipe = study_document(load_study(own["study"]), "laptop", own["column"])
    recipe["training"] |= {LR.partition(".")[2]: own["learning_rates"][0]}
    recipe["training"]["decay"] = {"kind": "exponential", "gamma": 1.0, "every": 1}
    specs = {label: deepcopy(recipe["algorithms"][label]) for label in plan["labels"]}
    for label, spec in specs.items():
        # The study's limit is of time, by kind of method; here it is of updates, and the same for all.
        spec.pop("set", None)
        if label in plan["every"]:
            spec["set"] = {"training.decay.every": plan["every"][label]}
    recipe |= {"algorithms": specs, "baseline": None, "seeds": 3}
    for key, value in {**own["set"], **plan[phase]}.items():
        change(recipe, key, deepcopy(value), f"{phase}:")
    return recipe


def tune_label(plan: Document, data: str, label: str, jobs: int = 1, results: Path = RESULTS) -> Trial:
    """The best of a method's learning rates."""
    rates = plan["data"][data]["learning_rates"]
    return tune(
        f"fedasmu/plateau-{data}-tuning", plateau_recipe(plan, data, "tuning"), label,
        [{LR: rate} for rate in rates[1:]], trials=len(rates), seeds=1, score="level",
        first_seed=TUNING_SEED, results=results, processes=jobs, watch=_watch,
    ).best  # fmt: skip


def _watch(report: RunProgress) -> None:
    if report.finished:
        print(report.name, flush=True)


def plateau_study(plan: Document, data: str, chosen: Mapping[str, Trial]) -> Document:
    """The study of a data set: every method with the learning rate that was chosen."""
    own, recipe = plan["data"][data], plateau_recipe(plan, data, "run")
    recipe["algorithms"] = {
        label: tuned_spec({"name": label, **spec}, chosen[label], f"{label}:")
        for label, spec in recipe["algorithms"].items()
    }
    rates = {label: trial.options.get(LR, own["learning_rates"][0]) for label, trial in chosen.items()}
    small = load_study(own["study"]).sizes["seconds"].set
    return {
        "title": own["title"], "paper": plan["paper"], "about": _about(plan, own), "recipe": recipe,
        "columns": {own["column"]: {}},
        "sizes": {"laptop": {}, "seconds": {"set": {**small, "target": 0.2}}},
        "items": {f"tuned-plateau-{data}-{what}": _item(plan, own, what, rates) for what in _SHOWN},
    }  # fmt: skip


def _item(plan: Document, own: Document, what: str, rates: Mapping[str, float]) -> Document:
    shows, more, title = _SHOWN[what]
    goal = f" to {own['set']['target']:.0%}" if what == "time" else ""
    return {
        "title": f"Table 4, {own['name']}, every method tuned: {title}{goal}", "explains": ["table-4"],
        "shows": shows, "figure": "curves" if what == "accuracy" else "bars",
        "numbers": {own["column"]: own["numbers"][what]},
        "claims": [{**claim, "says": claim["says"].format(more=more)} for claim in plan["claims"]],
        "notes": "learning rates: " + ", ".join(f"{label} {rate:g}" for label, rate in rates.items()),
    }  # fmt: skip


def _about(plan: Document, own: Document) -> str:
    tasks, tried = plan["run"]["until"]["tasks"], plan["tuning"]["until"]["tasks"]
    return (
        f"The setting of {own['study']}, every method with {tasks:,} updates and its own learning rate, the "
        f"best of {len(own['learning_rates'])} on a seed of its own with {tried:,} updates. The rate decays "
        "with each ten updates, alike for all methods, to a twentieth at the end; the paper does not print "
        "its form. The accuracy is the mean over the last fifth of a run's time. The claims were written "
        "before the runs."
    )


def study_text(study: Document) -> str:
    """The study as its file has it."""
    head = "# Written by offbeat_papers.leaderboard.plateau from plateau.yaml and the rows of the tuning.\n"
    return head + yaml.safe_dump(study, sort_keys=False, width=110, allow_unicode=True)


def main() -> None:
    """Tune and write."""
    plan = read_plan()
    names, jobs = parse_command(__doc__, "data", plan["data"])
    for data in names:
        chosen = {label: tune_label(plan, data, label, jobs) for label in plan["labels"]}
        for label, best in chosen.items():
            print(f"{data} {label}: {dict(best.options)} {best.score:.3f}", flush=True)
        path = STUDIES / f"plateau-{data}.yaml"
        path.write_text(study_text(plateau_study(plan, data, chosen)), encoding="utf-8")
        print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
