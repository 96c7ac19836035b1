"""Make the runs of the second study, and show what their rows say.

    python -m offbeat_papers.replication run [STUDY ...] [--jobs 1] [--results DIR]
    python -m offbeat_papers.replication show [--results DIR]

The rows are in `papers/replication` of the checkout unless --results names another folder. A call continues
where an earlier one stopped.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from math import exp
from pathlib import Path

from offbeat.cli.console import CompareWatcher, live_progress
from offbeat.core.errors import UsageError
from offbeat.verdicts.average import Average
from offbeat_papers.folder import default_results
from offbeat_papers.measure import checkout, commit
from offbeat_papers.replication.design import load_design
from offbeat_papers.replication.judge import AnsweredClaim, answer_papers, first_of_effects
from offbeat_papers.replication.rule import Answer, seeds_to_decide
from offbeat_papers.replication.runs import all_cells, make_runs, open_cells
from offbeat_papers.rows import Results
from offbeat_papers.run import estimate
from offbeat_papers.study import COSTS


def main(words: Sequence[str] | None = None) -> int:
    """Carry out a command; returns the exit code.

    Args:
        words: The command's arguments. None means those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m offbeat_papers.replication", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=("run", "show"))
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", help="default: all of the design, in its order"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (default 1)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="folder of the rows")
    given = parser.parse_args(words)
    known = load_design().studies
    for name in given.studies:
        if name not in known:
            parser.error(f"STUDY {name} is not of the design: known are {', '.join(known)}")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs} is not allowed: should be at least 1")
    root = checkout()
    if given.results is None and root is None:
        parser.error("--results is missing: outside of a checkout there is no folder of the rows")
    results = Results(given.results or (root or Path()) / "papers" / "replication")
    try:
        return _run(given.studies, results, given.jobs) if given.command == "run" else _show(results)
    except UsageError as error:
        parser.error(str(error))


def _run(studies: Sequence[str], results: Results, jobs: int) -> int:
    """Make the open runs."""
    if commit().endswith("-dirty"):
        raise UsageError(
            "the checkout has changes: the rows of the second study are of a commit; commit first"
        )
    todo = open_cells([*all_cells(studies)], results)
    expected = estimate(todo, default_results(), here=True)
    hours = f"{expected.processor / 3600:.1f} processor hours by runs of the first study"
    unknown = f", and {expected.unknown} runs of unknown cost" if expected.unknown else ""
    print(
        f"{len(todo)} runs to make into {results.folder}: about {hours}{unknown}", file=sys.stderr, flush=True
    )
    if todo:
        with live_progress() as progress:
            make_runs(todo, results, jobs, CompareWatcher(progress, len(todo)))
    return 0


def _show(results: Results) -> int:
    """Print what there is of each study, the answers to all claims, and the effects of `first_of`."""
    cells = [*all_cells()]
    made = Counter(cell.study.name for cell in cells if cell.digest in results.rows(cell.study.name))
    for name, planned in Counter(cell.study.name for cell in cells).items():
        print(f"{name}: {made[name]} of {planned} runs, {load_design().studies[name].seeds} seeds")
    for paper, claims in answer_papers(results).items():
        counts = Counter(claim.answer for claim in {claim.sampled.key: claim for claim in claims}.values())
        print(f"\n{paper}: " + ", ".join(f"{counts[answer]} {answer}" for answer in Answer if counts[answer]))
        for claim in claims:
            print(f"  {claim.item.name} {claim.number}, {claim.says}: {_answer_text(claim)}")
    for effect in first_of_effects(results):
        text = _effect_text(effect.effect, "time")
        print(f"\n{effect.study}: first-of against fedavg, in {effect.columns} settings: {text}")
    return 0


def _answer_text(claim: AnsweredClaim) -> str:
    parts = [str(claim.answer)]
    if claim.answer != Answer.NOT_RUN:
        ahead, of = claim.ahead
        if of > 1:
            parts.append(f"{ahead} of {of} ahead")
        if claim.effect is not None:
            parts.append(_effect_text(claim.effect, claim.by))
            if claim.answer == Answer.NOT_DECIDED:
                needed = seeds_to_decide(claim.effect, claim.sampled.margin, claim.sampled.seeds)
                parts.append(
                    "no number of seeds is known" if needed is None else f"about {needed} seeds would do"
                )
        if claim.effect_at_target is not None:
            parts.append(f"at the target alone {exp(claim.effect_at_target):.2f}x")
        if claim.paper is not None:
            size = f"{exp(claim.paper):.2f}x" if claim.by in COSTS else f"{claim.paper:+.4f}"
            parts.append(f"the paper's {size}" + (", ours is smaller" if claim.is_smaller else ""))
    return "; ".join(parts)


def _effect_text(effect: Average, by: str) -> str:
    low, high = effect.interval(0.95)
    if by in COSTS:
        return f"{exp(effect.mean):.2f}x [{exp(low):.2f}, {exp(high):.2f}]"
    return f"{effect.mean:+.4f} [{low:+.4f}, {high:+.4f}]"


if __name__ == "__main__":
    sys.exit(main())
