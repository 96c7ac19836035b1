"""IMDb: 50,000 film reviews, negative (0) or positive (1), in the official split (Maas et al., 2011)."""

import json
from pathlib import Path

from offbeat.core.errors import UsageError, reason_of
from offbeat.data.federated import Source
from offbeat.data.paths import missing_dataset
from offbeat.data.subsample import Subsample
from offbeat.data.text import TextOptions, Texts, text_source
from offbeat.unpacking import unpacked

_MOST = 1 << 28  # bytes of a file, unpacked: eight times the official ones
_OFFICIAL = "aclImdb"


def load_imdb(root: Path, pick: Subsample, options: TextOptions) -> Source:
    """Load IMDb from `root/imdb`: token ids int64 [N, length], two classes, no groups.

    The reviews are those of `{train,test}.jsonl.gz`, a line {"text": …, "label": 0 or 1} each, if they are
    there, else those of the official folder `aclImdb/{train,test}/{neg,pos}/*.txt`. Raises `UsageError` where
    neither is there or one is not intact.
    """
    folder = root / "imdb"
    return text_source("imdb", _read(folder, "train"), _read(folder, "test"), pick, options, classes=2)


def _read(folder: Path, part: str) -> Texts:
    lines, official = folder / f"{part}.jsonl.gz", folder / _OFFICIAL / part
    if lines.is_file():
        return _read_lines(lines)
    if official.is_dir():
        return _read_folders(official)
    raise missing_dataset("imdb", folder, f"{lines.name} or the folder {_OFFICIAL}/{part}")


def _read_lines(path: Path) -> Texts:
    texts, labels, number = list[str](), list[int](), 0
    try:
        with path.open("rb") as file:
            text = b"".join(unpacked(file, _MOST)).decode().rstrip("\n")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({reason_of(error)}); put an intact copy of the file there"
        ) from error
    try:
        for line in text.split("\n") if text else ():
            number += 1
            review = json.loads(line)
            texts.append(str(review["text"]))
            labels.append((0, 1).index(review["label"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f'{path}: line {number} is not {{"text": …, "label": 0 or 1}} ({error}); put the right file there'
        ) from error
    if not texts:
        raise UsageError(f"{path}: there is no review; put an intact copy of the file there")
    return Texts(texts, labels)


def _read_folders(folder: Path) -> Texts:
    texts, labels = list[str](), list[int]()
    for label, name in enumerate(("neg", "pos")):
        files = sorted((folder / name).glob("*.txt"))
        if not files:
            raise UsageError(
                f"{folder / name}: there is no review (*.txt); unpack the official archive there"
            )
        texts += [path.read_text(encoding="utf-8", errors="replace") for path in files]
        labels += [label] * len(files)
    return Texts(texts, labels)
