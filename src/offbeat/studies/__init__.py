"""Studies: tables and figures of papers with their runs, rows of results, and verdicts on claims; tuning."""

from offbeat.studies.cells import Cell, study_cells
from offbeat.studies.interval import Interval, interval
from offbeat.studies.judge import (
    ItemRows,
    JudgedClaim,
    JudgedItem,
    JudgedPair,
    item_cells,
    item_rows,
    judge_item,
    judge_items,
)
from offbeat.studies.load import check_study, find_item, load_study, study_document
from offbeat.studies.rows import ResultRow, Results, RunCurve, log_ratio
from offbeat.studies.run import run_cells
from offbeat.studies.study import Item, PaperClaim, Study, StudySize
from offbeat.studies.tuning import Trial, Tuned, tune
from offbeat.verdicts.verdict import Verdict

__all__ = [
    "Cell",
    "Interval",
    "Item",
    "ItemRows",
    "JudgedClaim",
    "JudgedItem",
    "JudgedPair",
    "PaperClaim",
    "ResultRow",
    "Results",
    "RunCurve",
    "Study",
    "StudySize",
    "Trial",
    "Tuned",
    "Verdict",
    "check_study",
    "find_item",
    "interval",
    "item_cells",
    "item_rows",
    "judge_item",
    "judge_items",
    "load_study",
    "log_ratio",
    "run_cells",
    "study_cells",
    "study_document",
    "tune",
]
