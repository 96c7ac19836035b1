"""The items that are judged together: all those of a paper, at a size."""

from collections.abc import Mapping

from offbeat_papers.arm_rows import item_rows, known_cells
from offbeat_papers.judge import JudgedItem, judge_items
from offbeat_papers.load import built_in_studies, load_study
from offbeat_papers.rows import Results
from offbeat_papers.study import Size, Study


def studies_of_the_paper(study: Study) -> list[Study]:
    """The built-in studies of a study's paper; of a study that is not built in, the study alone."""
    built_in = built_in_studies()
    if study.name not in built_in or load_study(study.name) != study:
        return [study]
    paper = study.name.partition("/")[0]
    return [
        study,
        *(load_study(name) for name in built_in if name.split("/")[0] == paper and name != study.name),
    ]


def judge_paper(study: Study, size: Size, results: Results) -> Mapping[tuple[str, str], JudgedItem]:
    """Judge all items of a study's paper that can be run at a size.

    Args:
        study: A study that has the size.
        size: The size.
        results: Where the rows are.

    Returns:
        The items by study and name.
    """
    rows = []
    for each in studies_of_the_paper(study):
        if size in each.sizes:
            cells = known_cells(each, size, results)
            rows += [item_rows(each, item, size, results, cells) for item in each.items]
    return {(item.rows.study.name, item.rows.name): item for item in judge_items(rows)}
