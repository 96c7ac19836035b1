"""A small study, and the one in the documentation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from offbeat_papers.rows import ResultRow

DOCUMENT: dict[str, Any] = {
    "title": "Two algorithms",
    "paper": "A paper",
    "recipe": {
        "clients": 3,
        "data": {"dataset": "digits", "samples": 90, "test_samples": 60, "partition": {"kind": "iid"}},
        "model": {"name": "logistic"},
        "training": {"lr": 0.2},
        "algorithms": {"fedavg": {"steps": 2}, "fedbuff": {"steps": 2, "size": 2}},
        "until": {"tasks": 12},
        "evaluate": {"versions": 1},
        "target": 0.5,
        "seeds": 3,
    },
    "columns": {"one": {}, "two": {"world.seconds_per_step": {"law": "exponential", "mean": 0.1}}},
    "sizes": {"laptop": {}, "seconds": {"set": {"until.tasks": 4, "seeds": 1}}},
    "items": {
        "table-1": {
            "title": "Table 1",
            "shows": "time",
            "relative": "fedbuff",
            "figure": "curves",
            "numbers": {"one": {"fedavg": 2.0, "fedbuff": 1}, "two": {"fedavg": None, "fedbuff": [1, 0.1]}},
            "claims": [{"says": "FedBuff is faster", "better": "fedbuff", "than": ["fedavg"]}],
        }
    },
}


def documented() -> str:
    """The study file of docs/studies.md."""
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    return page.partition("```yaml\n")[2].partition("```")[0]


def row(digest: str = "d", **values: object) -> ResultRow:
    """A row by hand; `values` replace its own."""
    empty = ResultRow(
        "p/s", "laptop", "one", "fedavg", 0, digest, "0", "c0ffee0", "m", 1.0, 0.5, 1, 1, 1, 1,
        "reached 1 seconds",
        {"accuracy": (10.0, 5, 20, 1000)}, {"accuracy": 0.5}, {"accuracy": 0.5}, {}, {},
        {"accuracy": {"0.5": (2.5, 1, 3, 100), "0.6": None}},
    )  # fmt: skip
    return replace(empty, **values)  # type: ignore[arg-type]
