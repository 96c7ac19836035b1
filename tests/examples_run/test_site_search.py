"""The site's search answers questions of users: a right page is among the first three results.

The index is the one that mkdocs writes for the browser, built from all pages but without the papers'
tables, which the search leaves out. The scorer is a small copy of what the browser runs: lunr's BM25 (with
b = 0) over title, text and tags with the boosts of the index, where each word of a question also finds the
words that begin with it, and Material's factor for whole pages and for the share of the question's words.
"""

import json
import re
from collections import Counter, defaultdict
from html import unescape
from math import log
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material")
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
QUESTIONS = {
    "how do I use my own data": {"tutorials/own-data/", "own-training/"},
    "which algorithm": {"algorithms/"},
    "GPU": {"gpu/"},
    "resume an interrupted run": {"run/"},
    "seeds": {"run/", "recipes/", "results/"},
    "figure as PDF": {"run/", "results/"},
    "TLS certificate": {"deploy/"},
    "how many clients": {"numbers/", "worlds/"},
    "staleness": {"theory/"},
    "my own model": {"own-training/", "tutorials/own-data/"},
    "differential privacy": {"privacy/"},
    "slow client": {"theory/", "worlds/"},
    "compare two methods": {"tutorials/first-comparison/", "run/", "results/"},
    "restart the server": {"operate/"},
    "how to cite": {""},
}
"""By question the pages that answer it."""
K1 = 1.2
"""Constant of lunr's BM25."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The index of the site, without what needs the results' rows or runs."""
    site = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), plugins=["search"])
    (hooks,) = config.hooks.values()
    hooks.tables = lambda: defaultdict(lambda: [["head"], ["row"]])  # type: ignore[attr-defined]
    config.plugins.events["post_build"].remove(hooks.on_post_build)
    build(config)
    found: dict[str, Any] = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    return found


def words_of(text: str, separator: str) -> list[str]:
    """The words of a question, of a text or of a title, as the index has them."""
    plain = unescape(re.sub(r"<[^>]+>", " ", text)).lower()
    found = (re.sub(r"^\W+|\W+$", "", word) for word in re.split(separator, plain) if word)
    return [word for word in found if word]


def search(index: dict[str, Any], question: str) -> list[str]:
    """The pages that a question finds, the best first."""
    separator, fields = index["config"]["separator"], index["config"]["fields"]
    documents = index["docs"]
    asked = list(dict.fromkeys(words_of(question, separator)))
    counts = {
        field: [Counter(_field(document, field, separator)) for document in documents] for field in fields
    }
    having = Counter(word for own in counts.values() for count in own for word in count)
    scores: dict[int, float] = defaultdict(float)
    matched: dict[int, set[str]] = defaultdict(set)
    for term, often in having.items():
        if not (words := [word for word in asked if term.startswith(word)]):
            continue
        rarity = log(1 + abs((len(documents) - often + 0.5) / (often + 0.5)))
        for field, options in fields.items():
            for number, count in enumerate(counts[field]):
                if number_of := count.get(term):
                    weight = rarity * number_of * (K1 + 1) / (K1 + number_of) * options["boost"]
                    scores[number] += weight * documents[number].get("boost", 1) * len(words)
                    matched[number].update(words)
    best: dict[str, float] = {}
    for number, score in scores.items():
        page, _, section = documents[number]["location"].partition("#")
        factor = (not section) + len(matched[number]) / len(asked)
        best[page] = max(best.get(page, 0.0), score * (1 + factor**2))
    return sorted(best, key=lambda page: -best[page])


def _field(document: dict[str, Any], field: str, separator: str) -> list[str]:
    value = document.get(field, "")
    return words_of(" ".join(value) if isinstance(value, list) else value, separator)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_right_page_is_among_the_first_three(index: dict[str, Any], question: str) -> None:
    found = search(index, question)[:3]
    assert QUESTIONS[question] & set(found), found
