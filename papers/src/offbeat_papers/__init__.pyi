from offbeat_papers.cells import Cell as Cell, study_cells as study_cells
from offbeat_papers.claim_pairs import JudgedPair as JudgedPair
from offbeat_papers.interval import Interval as Interval, interval as interval
from offbeat_papers.arm_rows import ItemRows as ItemRows, item_cells as item_cells, item_rows as item_rows
from offbeat_papers.judge import (
    JudgedClaim as JudgedClaim,
    JudgedItem as JudgedItem,
    judge_item as judge_item,
    judge_items as judge_items,
)
from offbeat.verdicts.cost import log_ratio as log_ratio
from offbeat_papers.load import (
    check_study as check_study,
    find_item as find_item,
    load_study as load_study,
    study_document as study_document,
)
from offbeat_papers.rows import (
    ResultRow as ResultRow,
    Results as Results,
    RunCurve as RunCurve,
)
from offbeat_papers.run import run_cells as run_cells
from offbeat_papers.study import (
    Item as Item,
    PaperClaim as PaperClaim,
    Study as Study,
    StudySize as StudySize,
)
from offbeat_papers.tuning import Trial as Trial, Tuned as Tuned, tune as tune
from offbeat.verdicts.verdict import Verdict as Verdict
