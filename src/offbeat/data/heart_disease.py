"""Heart disease in four hospitals: UCI's processed files (Janosi et al., 1988), prepared as Fed-Heart-Disease
of FLamby (Ogier du Terrail et al., 2022).

The columns slope, ca and thal are dropped, then every row with a missing value: 303, 261, 46 and 130 rows
remain. The label is disease (num > 0) or none. Chest pain (cp) and resting ECG (restecg) become one column
per level but the first, which makes 13 features. 66 % of each hospital (199, 172, 30, 85 rows) are for
training, stratified by label where both labels have more than two rows. The sizes are FLamby's; which rows
fall on which side is our own fixed shuffle. Features are standardised with the mean and standard deviation
of the train rows of all hospitals together.
"""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample, fixed_permutation

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILES = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)

_COLUMNS = 14
_CP, _RESTECG, _LABEL = 2, 6, 13
_PLAIN = (0, 1, 3, 4, 5, 7, 8, 9)  # age, sex, trestbps, chol, fbs, thalach, exang, oldpeak
_LEVELS = {_CP: (1, 2, 3, 4), _RESTECG: (0, 1, 2)}
_DROPPED = (10, 11, 12)  # slope, ca, thal
_LIMIT = 1 << 20  # bytes; the largest of the four files has 18 kB
_SPLIT_KEY = 0x0FFBEA7

Rows = npt.NDArray[np.float64]


def load_heart_disease(root: Path, pick: Subsample) -> Source:
    """Load the four hospitals from `root/heart_disease`: x float32 [N, 13], two classes, group = hospital.

    Raises `UsageError` when a file is missing, is not in UCI's format or has no complete row.
    """
    paths = find_files("heart_disease", root / "heart_disease", FILES, gz=False)
    features, labels = zip(*map(read_hospital, paths), strict=True)
    x, group = np.concatenate(features), np.repeat(np.arange(len(labels)), [len(y) for y in labels])
    for_training = np.concatenate([_train_mask(y, hospital) for hospital, y in enumerate(labels)])
    train, test = np.flatnonzero(for_training), np.flatnonzero(~for_training)
    mean, std = x[train].mean(axis=0), x[train].std(axis=0)
    # A constant column must not become NaN.
    std[std == 0] = 1.0
    everything = Dataset(
        torch.from_numpy(((x - mean) / std).astype(np.float32)), torch.from_numpy(np.concatenate(labels)), 2
    )
    train, test = train[pick.train(len(train))], test[pick.test(len(test))]
    return Source("heart_disease", everything.subset(train), everything.subset(test), group[train], HOSPITALS)


def read_hospital(path: Path) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Read the complete rows of one hospital's file: features float64 [N, 13] and labels 0 or 1.

    The features are not standardised. Raises `UsageError` naming the file and the line that is not in
    UCI's format.
    """
    if path.stat().st_size > _LIMIT:
        raise UsageError(
            f"{path}: more than {_LIMIT} bytes is not one of UCI's files; put the right file there"
        )
    lines = enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
    parsed = [_parse(line, f"{path}: line {number}") for number, line in lines if line.strip()]
    rows = [row for row in parsed if row is not None]
    if len(rows) < 2:
        raise UsageError(
            f"{path}: {len(rows)} complete rows; at least 2 are needed, one to train and one to test; "
            "put the right file there"
        )
    labels = np.array([row[_LABEL] > 0 for row in rows], dtype=np.int64)
    return np.array([_features(row) for row in rows], dtype=np.float64), labels


def _parse(line: str, where: str) -> dict[int, float] | None:
    """The columns of a line that are used, by number; None where one of them is missing."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != _COLUMNS:
        raise UsageError(f"{where}: {len(cells)} columns are not the {_COLUMNS} of UCI's processed files")
    used = {column: cell for column, cell in enumerate(cells) if column not in _DROPPED}
    if "?" in used.values():
        return None
    row = {}
    for column, cell in used.items():
        try:
            row[column] = float(cell)
        except ValueError:
            row[column] = math.nan
        if not math.isfinite(row[column]) or (column in _LEVELS and row[column] not in _LEVELS[column]):
            allowed = f"one of {_LEVELS[column]}" if column in _LEVELS else "a number or ?"
            raise UsageError(f"{where}: column {column + 1} is {cell!r}, not {allowed}")
    return row


def _features(row: dict[int, float]) -> list[float]:
    plain = [row[column] for column in _PLAIN]
    levels = [float(row[column] == level) for column in (_CP, _RESTECG) for level in _LEVELS[column][1:]]
    return plain + levels


def _train_mask(labels: npt.NDArray[np.int64], hospital: int) -> npt.NDArray[np.bool_]:
    """Mask of a hospital's train rows: 66 % rounded down, at least 1, stratified if possible."""
    n = len(labels)
    wanted = max(1, n * 66 // 100)
    counts = np.bincount(labels, minlength=2)
    strata = labels if counts.min() > 2 else np.zeros_like(labels)
    sizes = np.bincount(strata)
    exact = sizes * wanted / n
    quota = np.floor(exact).astype(np.int64)
    # Largest remainders get the rows that rounding down left over; a tie goes to the first stratum.
    quota[np.argsort(quota - exact, kind="stable")[: wanted - quota.sum()]] += 1
    mask = np.zeros(n, dtype=np.bool_)
    for stratum, take in enumerate(quota):
        rows = np.flatnonzero(strata == stratum)
        mask[rows[fixed_permutation(len(rows), _SPLIT_KEY, 2 * hospital + stratum)[:take]]] = True
    return mask
