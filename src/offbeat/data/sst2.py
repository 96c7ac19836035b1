"""SST-2: sentences of film reviews, negative (0) or positive (1) (Socher et al., 2013), as in GLUE."""

from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.data.federated import Source
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample
from offbeat.data.text import TextOptions, Texts, text_source

FOLDER = "SST-2"


def load_sst2(root: Path, pick: Subsample, options: TextOptions) -> Source:
    """Load SST-2 from `root/sst2/SST-2`: token ids int64 [N, length], two classes, no groups.

    The development set is the test set, since GLUE's has no labels. Raises `UsageError` where a file is
    missing or not in GLUE's format.
    """
    train, test = find_files("sst2", root / "sst2" / FOLDER, ["train.tsv", "dev.tsv"], gz=False)
    return text_source("sst2", _read(train), _read(test), pick, options, classes=2)


def _read(path: Path) -> Texts:
    head, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    texts, labels = list[str](), list[int]()
    for number, line in enumerate(lines, start=2):
        text, _, label = line.rstrip("\r").rpartition("\t")
        if not line:
            continue
        if label not in ("0", "1"):
            raise UsageError(f"{path}: line {number} is no sentence, tab, 0 or 1; put an intact copy there")
        texts.append(text)
        labels.append(int(label))
    if head.rstrip("\r") != "sentence\tlabel" or not texts:
        raise UsageError(
            f"{path}: needs the columns sentence and label, and sentences; put GLUE's file there"
        )
    return Texts(texts, labels)
