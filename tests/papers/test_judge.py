"""Claims judged by rows: which runs are paired, which looks are taken, and which claims are one."""

from math import log
from pathlib import Path
from typing import Any

import pytest

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.claim_pairs import _blocks
from offbeat_papers.family import judge_paper, studies_of_the_paper
from offbeat_papers.judge import JudgedClaim, judge_items, undecided_cells, unpaired_cells
from offbeat_papers.load import load_study, make_study
from offbeat_papers.rows import Results
from offbeat_papers.study import Study
from offbeat_papers.texts import pair_counts, verdict_text
from tests.papers.study_files import DOCUMENT, row

FASTER = {"says": "FedBuff is faster", "better": "fedbuff", "than": ["fedavg"]}


def a_study(*claims: dict[str, Any], name: str = "p/s", **item: Any) -> Study:
    """The document's study with other claims."""
    table = {**DOCUMENT["items"]["table-1"], "claims": list(claims), **item}
    return make_study(name, {**DOCUMENT, "items": {"table-1": table}})


def fill(study: Study, results: Results, seeds: int = 3, **costs: tuple[float | None, ...]) -> None:
    """Rows with the seconds to the target by label and seed ("label" or "label_column"); the last goes on."""
    for cell in study_cells(study, "laptop", seeds=seeds):
        given = costs.get(f"{cell.label}_{cell.column}", costs.get(cell.label))
        if given is None:
            continue
        seconds = given[min(cell.seed, len(given) - 1)]
        reached = {"accuracy": {"0.5": None if seconds is None else (seconds, 1, 3, 100)}}
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, reached=reached), [])


def judged(study: Study, results: Results) -> list[JudgedClaim]:
    found = judge_items([item_rows(study, "table-1", "laptop", results)])
    return list(found[0].claims)


SLOW = (4.0, 4.4, 4.2, 4.1, 4.3)
FAST = (1.0, 1.05, 1.1, 0.95, 1.02)


def test_a_clear_difference_is_held_and_its_reverse_is_not(tmp_path: Path) -> None:
    reverse = {"says": "FedAvg is faster", "better": "fedavg", "than": ["fedbuff"]}
    study, results = a_study(FASTER, reverse), Results(tmp_path)
    fill(study, results, fedavg=SLOW, fedbuff=FAST)
    first, second = judged(study, results)
    assert (first.verdict, second.verdict) == (Verdict.HELD, Verdict.NOT_HELD)
    assert first.answers["average"] == first.answers["every"] == Verdict.HELD
    assert first.last is not None
    assert first.last.seeds == 3
    assert pair_counts(first) == "2 of 2 [2, 2]"
    assert pair_counts(second) == "0 of 2 [0, 0]"


def test_a_verdict_follows_the_words(tmp_path: Path) -> None:
    claims = [FASTER | {"quantifier": question} for question in ("average", "every", "some")]
    study, results = a_study(*claims), Results(tmp_path)
    fill(study, results, 10, fedavg_one=SLOW, fedbuff_one=FAST, fedavg_two=FAST, fedbuff_two=SLOW)
    average, every, some = judged(study, results)
    verdicts = [claim.verdict for claim in (average, every, some)]
    assert verdicts == [Verdict.NO_DIFFERENCE, Verdict.NOT_HELD, Verdict.HELD]
    assert verdict_text(every.measured.rows, every) == "not held (every pair)"


def test_an_undecided_claim_says_what_it_would_have_shown(tmp_path: Path) -> None:
    study, results = a_study(FASTER, FASTER | {"by": "best"}), Results(tmp_path)
    fill(study, results, fedavg=SLOW, fedbuff=(3.0, 5.0, 4.0))
    wild = Results(tmp_path / "wild")
    fill(study, wild, fedavg=SLOW, fedbuff=(0.1, 90.0, 1.0))
    text = verdict_text(item_rows(study, "table-1", "laptop", wild), judged(study, wild)[0])
    assert text == "undecided; would have shown only more than 10.00x"
    faster, constant = judged(study, results)
    text = verdict_text(faster.measured.rows, faster)
    assert text.startswith("undecided; would have shown ")
    assert 1.2 < float(text.split()[-1].rstrip("x")) < 6.0
    assert verdict_text(constant.measured.rows, constant) == "undecided"  # nothing varies


def test_runs_of_other_processors_are_not_paired(tmp_path: Path) -> None:
    study, results = a_study(FASTER, columns=["one"]), Results(tmp_path)
    for cell in study_cells(study, "laptop", columns=["one"], seeds=4):
        other = cell.label == "fedbuff" and cell.seed == 1
        machine = ("AMD EPYC" if other else "Intel Xeon") + f", {cell.seed + 1} cores, PyTorch 2"
        reached = {"accuracy": {"0.5": (FAST[cell.seed] if cell.label == "fedbuff" else 4.0, 1, 3, 100)}}
        arm = {"column": "one", "label": cell.label, "seed": cell.seed, "machine": machine}
        results.append(row(cell.digest, **arm, reached=reached), [])
    (claim,) = judged(study, results)
    (pair,) = claim.pairs
    assert (set(pair.seeds), set(pair.advantages)) == ({0, 1, 2, 3}, {0, 2, 3})
    assert claim.looks[0].seeds == 3
    assert claim.verdict == Verdict.UNDECIDED  # of the three seeds of the look two are compared
    assert claim.effects == []
    assert {(made.label, made.seed) for made in claim.runs} == {
        (label, seed) for label in ("fedavg", "fedbuff") for seed in (0, 2)
    }


def test_the_runs_of_a_claim_are_those_of_the_kind_that_counts(tmp_path: Path) -> None:
    study, results = a_study(FASTER, columns=["one"]), Results(tmp_path)
    for cell in study_cells(study, "laptop", columns=["one"], seeds=3):
        kinds = ("Intel Xeon", "AMD EPYC") if cell.label == "fedavg" else ("AMD EPYC",)
        reached = {"accuracy": {"0.5": (FAST[cell.seed] if cell.label == "fedbuff" else 4.0, 1, 3, 100)}}
        arm = {"column": "one", "label": cell.label, "seed": cell.seed}
        for kind in kinds:
            results.append(row(cell.digest, **arm, machine=f"{kind}, 2 cores", reached=reached), [])
    (claim,) = judged(study, results)
    assert [made.processor_name for made in claim.runs] == ["AMD EPYC"] * 6


def test_a_claim_all_of_whose_runs_are_of_other_processors_is_not_run(tmp_path: Path) -> None:
    study, results = a_study(FASTER), Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        arm = {"column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, machine=f"{cell.label}, 2 cores"), [])
    (claim,) = judged(study, results)
    assert (claim.verdict, claim.mixed) == (Verdict.NOT_RUN, 2)
    assert pair_counts(claim) == "2 pairs (2 left out: runs of different processors)"


def test_more_seeds_of_some_pairs_wait_for_the_others(tmp_path: Path) -> None:
    study, results = a_study(FASTER), Results(tmp_path)
    fill(study, results, 3, fedavg=SLOW, fedbuff=(1.0, 4.3, 3.9))
    fill(study, results, 5, fedavg_one=SLOW, fedbuff_one=(1.0, 4.3, 3.9, 9.0, 9.0))
    (claim,) = judged(study, results)
    assert claim.measured.sampled.complete == 3
    assert [look.seeds for look in claim.looks] == [3]
    fill(study, results, 5, fedavg_two=SLOW, fedbuff_two=(1.0, 4.3, 3.9, 9.0, 9.0))
    (claim,) = judged(study, results)
    assert [(look.seeds, look.level) for look in claim.looks] == [(3, 0.02), (5, 0.01)]


def test_what_is_undecided_gets_the_seeds_of_its_next_look_in_all_pairs(tmp_path: Path) -> None:
    study, results = a_study(FASTER), Results(tmp_path)
    cells = study_cells(study, "laptop", seeds=10)
    unclear = (1.0, 4.3, 3.9)
    fill(study, results, fedavg=SLOW, fedbuff_one=FAST, fedbuff_two=unclear)
    (item,) = judge_items([item_rows(study, "table-1", "laptop", results)])
    chosen = undecided_cells(item, cells)
    assert {cell.seed for cell in chosen} == {0, 1, 2, 3, 4}
    assert {(cell.label, cell.column) for cell in chosen} == {
        (label, column) for label in ("fedavg", "fedbuff") for column in ("one", "two")
    }
    fill(study, results, 4, fedavg=SLOW)  # a part of them
    (item,) = judge_items([item_rows(study, "table-1", "laptop", results)])
    assert undecided_cells(item, cells) == chosen
    clear = Results(tmp_path / "clear")
    fill(study, clear, fedavg=SLOW, fedbuff=FAST)
    (item,) = judge_items([item_rows(study, "table-1", "laptop", clear)])
    assert undecided_cells(item, cells) == []
    (item,) = judge_items([item_rows(study, "table-1", "laptop", Results(tmp_path / "none"))])
    assert undecided_cells(item, cells) == []


def test_claims_that_compare_the_same_numbers_are_one(tmp_path: Path) -> None:
    same = FASTER | {"says": "FedBuff gets there first"}
    study, results = (
        a_study(FASTER, same, FASTER | {"margin": 0.5}, FASTER | {"by": "best"}),
        Results(tmp_path),
    )
    fill(study, results, fedavg=SLOW, fedbuff=FAST)
    first, second, much, other = judged(study, results)
    assert first.measured.key == second.measured.key
    assert len({claim.measured.key for claim in (first, much, other)}) == 3
    assert first.verdict == second.verdict


def test_claims_on_the_same_numbers_are_adjusted_once_whatever_they_ask(tmp_path: Path) -> None:
    nearly = tuple(value * factor for value, factor in zip(SLOW, (1.0, 1.15, 1.1), strict=False))
    nothing = FASTER | {"by": "best"}
    study, results = a_study(FASTER, nothing, nothing | {"quantifier": "every"}), Results(tmp_path)
    fill(study, results, fedavg=nearly, fedbuff=(3.2, 3.2, 3.2))
    claim, first, second = judged(study, results)
    assert first.measured.key == second.measured.key
    assert first.measured.asked != second.measured.asked
    # A third p-value would make it 5.3 % after the adjustment.
    assert claim.verdict == Verdict.HELD


def test_many_claims_ask_more_of_each(tmp_path: Path) -> None:
    close = tuple(value * factor for value, factor in zip(SLOW, (1.0, 1.25, 1.1), strict=False))
    nothing = [FASTER | {"by": by} for by in ("best", "final", "versions", "tasks", "bytes")]
    verdicts = []
    for claims in ([FASTER], [FASTER, *nothing]):
        study, results = a_study(*claims), Results(tmp_path / str(len(claims)))
        fill(study, results, fedavg=close, fedbuff_one=SLOW, fedbuff_two=(3.9, 4.0, 3.6))
        verdicts.append(over(judged(study, results)[0]))
    alone, among = verdicts
    assert alone == pytest.approx(among)  # its own p-value is the same


def over(claim: JudgedClaim) -> float:
    assert claim.last is not None
    return claim.last.sides("average").two_sided


def test_neither_at_the_target_counts_nothing(tmp_path: Path) -> None:
    study, results = a_study(FASTER), Results(tmp_path)
    fill(study, results, fedavg=(None,), fedbuff_one=(None,), fedbuff_two=(2.0, 2.2, 2.1))
    (claim,) = judged(study, results)
    assert claim.last is not None
    assert claim.last.effect is not None
    whole = [pair.mean(range(3)) for pair in claim.pairs]
    assert whole[0] is None
    assert claim.effects == [whole[1]]
    assert claim.last.effect.mean == pytest.approx(whole[1] / 2)  # type: ignore[operator]


def test_pairs_of_two_columns_join_their_columns() -> None:
    pairs = [frozenset(columns) for columns in (("a",), ("b", "c"), ("c", "d"), ("e",))]
    blocks = _blocks(pairs)
    assert blocks["b"] == blocks["c"] == blocks["d"]
    assert len({blocks["a"], blocks["b"], blocks["e"]}) == 3


def test_a_built_in_study_is_judged_with_its_paper(tmp_path: Path) -> None:
    study = load_study("wireless/figure-3")
    names = {each.name for each in studies_of_the_paper(study)}
    assert {"wireless/figure-3", "wireless/figure-8"} <= names
    assert all(name.startswith("wireless/") for name in names)
    own = a_study(FASTER, name="wireless/figure-3")
    assert studies_of_the_paper(own) == [own]
    assert set(judge_paper(own, "laptop", Results(tmp_path))) == {("wireless/figure-3", "table-1")}


def test_a_gain_is_an_advantage_over_a_label_in_each_column(tmp_path: Path) -> None:
    grows = {"says": "the gain grows", "better": "fedbuff", "than": ["fedbuff"], "over": ["fedavg"]}
    shrinks = {**grows, "says": "and not the other way", "against": {"one": "two"}}
    study = a_study({**grows, "against": {"two": "one"}}, shrinks, numbers={
        "one": {"fedavg": 2.0, "fedbuff": 1.0}, "two": {"fedavg": 6.0, "fedbuff": 1.0},
    })  # fmt: skip
    results = Results(tmp_path)
    fill(study, results, fedavg_one=(2.0, 2.1, 2.05), fedavg_two=SLOW, fedbuff=FAST)
    first, second = judged(study, results)
    assert (first.verdict, second.verdict) == (Verdict.HELD, Verdict.NOT_HELD)
    assert first.effects == pytest.approx([sum(log(b / a) for a, b in GAINS) / 3])
    assert first.pairs[0].paper == pytest.approx(log(3))
    assert first.measured.named == 1


GAINS = ((2.0, 4.0), (2.1, 4.4), (2.05, 4.2))


def test_gains_of_two_labels_are_over_their_own(tmp_path: Path) -> None:
    claim = {"says": "x", "better": "fedbuff", "than": ["fedavg"], "over": ["fedavg", "fedbuff"]}
    study, results = a_study(claim), Results(tmp_path)
    fill(study, results, fedavg=SLOW, fedbuff=FAST)
    (found,) = judged(study, results)
    once = [log(slow / fast) for slow, fast in zip(SLOW[:3], FAST[:3], strict=True)]
    assert found.effects == pytest.approx([2 * sum(once) / 3] * 2)


def test_claims_of_gains_are_not_those_of_their_arms(tmp_path: Path) -> None:
    study, results = a_study(FASTER, {**FASTER, "over": ["fedavg"]}), Results(tmp_path)
    fill(study, results, fedavg=SLOW, fedbuff=FAST)
    arms, gains = judged(study, results)
    assert arms.measured.key != gains.measured.key


def test_a_gain_of_other_processors_is_left_out(tmp_path: Path) -> None:
    claim = {"says": "x", "better": "fedbuff", "than": ["fedbuff"], "over": ["fedavg"]}
    claim |= {"against": {"two": "one"}}
    study, results = a_study(claim), Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, machine=f"{cell.column}, 2 cores"), [])
    (found,) = judged(study, results)
    assert found.mixed == 1
    assert found.verdict == Verdict.NOT_RUN


def test_a_run_made_again_on_the_other_processor_is_paired_there(tmp_path: Path) -> None:
    study, results = a_study(FASTER), Results(tmp_path)
    seconds = {"fedavg": SLOW, "fedbuff": FAST}

    def made(label: str, kind: str, factor: float = 1.0) -> None:
        for cell in study_cells(study, "laptop", labels=[label]):
            arm = {"column": cell.column, "label": label, "seed": cell.seed, "machine": f"{kind}, 2 cores"}
            reached = {"accuracy": {"0.5": (factor * seconds[label][cell.seed], 1, 3, 100)}}
            results.append(row(cell.digest, **arm, reached=reached), [])

    def judge() -> tuple[JudgedClaim, list[str]]:
        (item,) = judge_items([item_rows(study, "table-1", "laptop", results)])
        (claim,) = item.claims
        return claim, [cell.name for cell in unpaired_cells(item, study_cells(study, "laptop", seeds=5))]

    made("fedavg", "AMD")
    assert judge()[1] == []  # what lacks a partner is not run, and not left out
    made("fedbuff", "Intel")
    claim, wanted = judge()
    assert (claim.verdict, claim.mixed) == (Verdict.NOT_RUN, 2)
    assert len(wanted) == 2 * 2 * 3
    made("fedbuff", "AMD", factor=0.5)
    claim, wanted = judge()
    assert (claim.verdict, claim.mixed, wanted) == (Verdict.HELD, 0, [])
    own = [log(slow / (0.5 * fast)) for slow, fast in zip(SLOW[:3], FAST[:3], strict=True)]
    assert claim.effects == pytest.approx([sum(own) / 3] * 2)  # those of AMD, not the first ones
    made("fedavg", "Intel", factor=100)  # both are on both now: the kind that came first counts
    assert judge()[0].effects == pytest.approx(claim.effects)
    everything = results.all_rows(study.name)
    assert len(everything) == 4 * 2 * 3
    assert {found.processor_name for found in results.rows(study.name).values()} == {"AMD", "Intel"}
    assert {found.label for found in Results(tmp_path, "AMD").rows(study.name).values()} == set(seconds)


def test_a_gain_is_paired_where_all_four_runs_are_of_one_processor(tmp_path: Path) -> None:
    claim = {"says": "x", "better": "fedbuff", "than": ["fedbuff"], "over": ["fedavg"]}
    study, results = a_study(claim | {"against": {"two": "one"}}), Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        reached = {"accuracy": {"0.5": ((2.0 if cell.label == "fedbuff" else 8.0) + cell.seed, 1, 3, 100)}}
        for kind in ("A", "B") if (cell.label, cell.column) != ("fedavg", "one") else ("B",):
            results.append(row(cell.digest, **arm, reached=reached, machine=f"{kind}, 2 cores"), [])
    (found,) = judged(study, results)
    assert (found.mixed, len(found.pairs[0].advantages)) == (0, 3)
    assert found.effects == pytest.approx([0.0])
