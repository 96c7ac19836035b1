"""Sentiment140: tweets, negative (0) or positive (1), of the users with at least 100 (Go et al., 2009).

The users are the natural groups, as in LEAF and in FedFa. Of each user the last fifth of the tweets, in the
order of the file, is for testing. The official test set has other users and is not used.
"""

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.data.federated import Source
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample
from offbeat.data.text import TextOptions, Texts, text_source

FILE = "training.1600000.processed.noemoticon.csv"
USER_TWEETS = 100
_COLUMNS, _LABELS = 6, {"0": 0, "4": 1}


def load_sent140(root: Path, pick: Subsample, options: TextOptions) -> Source:
    """Load Sentiment140 from `root/sent140`: token ids int64 [N, length], two classes, group = user.

    Raises `UsageError` where the file is missing or not in the official format, or no user has enough tweets.
    """
    (path,) = find_files("sent140", root / "sent140", [FILE], gz=False)
    rows = _read(path)
    counts = Counter(user for user, _, _ in rows)
    kept = [row for row in rows if counts[row[0]] >= USER_TWEETS]
    if not kept:
        raise UsageError(f"{path}: no user has {USER_TWEETS} tweets; put an intact copy of the file there")
    seen = Counter[str]()
    place = np.empty(len(kept), dtype=np.int64)
    for number, (user, _, _) in enumerate(kept):
        place[number] = seen[user]
        seen[user] += 1
    total = np.array([counts[user] for user, _, _ in kept])
    for_testing = place >= total - total // 5
    train, test = (
        Texts([kept[row][2] for row in part], [kept[row][1] for row in part], [kept[row][0] for row in part])
        for part in (np.flatnonzero(~for_testing), np.flatnonzero(for_testing))
    )
    return text_source("sent140", train, test, pick, options, classes=2)


def _read(path: Path) -> list[tuple[str, int, str]]:
    """User, label and text of each tweet."""
    rows = list[tuple[str, int, str]]()
    with path.open(encoding="latin-1", newline="") as file:
        for number, row in enumerate(_rows(path, csv.reader(file)), start=1):
            if len(row) != _COLUMNS or row[0] not in _LABELS:
                raise UsageError(
                    f"{path}: row {number} has not {_COLUMNS} columns that begin with 0 or 4; put an "
                    "intact copy of the file there"
                )
            rows.append((row[4], _LABELS[row[0]], row[5]))
    return rows


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows of CSV. Raises `UsageError` where a field is longer than any text."""
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"{path}: cannot be read ({error}); put an intact copy of the file there") from None
