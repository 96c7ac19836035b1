"""HAPT: human activities from a smartphone's sensors, 30 persons (Reyes-Ortiz et al., 2016).

A sample is a window of 2.56 s: 128 readings at 50 Hz of three axes of acceleration (in g) and of rotation (in
rad/s), each half a window after the one before it. The six activities are those of the official files in
their order (walking, upstairs, downstairs, sitting, standing, lying); transitions are left out.

Neighbouring windows share half their readings. So the split is by time: of each person and activity the last
fifth of the windows is for testing. Channels are normalised with mean and deviation of the train windows.
"""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError, reason_of
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.paths import missing_dataset
from offbeat.data.subsample import Subsample
from offbeat.unpacking import MOST_DATASET

_CLASSES = 6
_WINDOW, _HOP, _CHANNELS = 128, 64, 6
_WINDOWS_FILE, _RAW_FOLDER = "windows.npz", "RawData"

Windows = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Windows float32 [N, 128, 6], activities 0 to 5 and persons 1 to 30, int64 [N], in the recordings' order."""


def load_hapt(root: Path, pick: Subsample) -> Source:
    """Load HAPT from `root/hapt`: x float32 [N, 128, 6], six classes, group = person.

    The windows are those of `windows.npz` (x, y, user) if it is there, else they are cut from the recordings
    in the official `RawData`. Raises `UsageError` where neither is there or one is not intact.
    """
    folder = root / "hapt"
    if (folder / _WINDOWS_FILE).is_file():
        x, y, person = _read_windows(folder / _WINDOWS_FILE)
    elif (folder / _RAW_FOLDER).is_dir():
        x, y, person = cut_windows(folder / _RAW_FOLDER)
    else:
        raise missing_dataset("hapt", folder, f"{_WINDOWS_FILE} or the folder {_RAW_FOLDER}")
    persons, group = np.unique(person, return_inverse=True)
    for_testing = _last_fifth(group * _CLASSES + y)
    train, test = np.flatnonzero(~for_testing), np.flatnonzero(for_testing)
    mean, std = x[train].mean(axis=(0, 1)), x[train].std(axis=(0, 1))
    # A sensor with constant values must not become NaN.
    std[std == 0] = 1.0
    everything = Dataset(torch.from_numpy((x - mean) / std), torch.from_numpy(y), _CLASSES)
    train, test = train[pick.train(len(train))], test[pick.test(len(test))]
    names = tuple(f"person{number}" for number in persons)
    return Source(
        "hapt", everything.subset(train), everything.subset(test), group[train].astype(np.int64), names
    )


def _read_windows(path: Path) -> Windows:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            # No more of a member is unpacked than the archive says.
            if sum(member.file_size for member in file.zip.infolist()) > MOST_DATASET:
                raise ValueError(f"it unpacks to more than the {MOST_DATASET} bytes allowed")
            x, y, person = (file[name] for name in ("x", "y", "user"))
    except (
        OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, RuntimeError, MemoryError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise UsageError(
            f"{path}: no arrays x, y and user can be read ({reason_of(error)}); "
            "put an intact copy of the file there"
        ) from error
    if x.shape[1:] != (_WINDOW, _CHANNELS) or not len(x) == y.size == person.size > 0:
        raise UsageError(
            f"{path}: x {x.shape}, y {y.shape} and user {person.shape} are not N windows of "
            f"{_WINDOW}x{_CHANNELS} with N labels and N persons; put the right file there"
        )
    return _checked(path, (x.astype(np.float32), y.astype(np.int64), person.astype(np.int64)))


def cut_windows(folder: Path) -> Windows:
    """Cut the windows from the official recordings.

    Args:
        folder: The folder RawData: `labels.txt` with lines of experiment, person, activity, first and last
            reading; `acc_expEE_userUU.txt` and `gyro_expEE_userUU.txt` with three numbers a line.

    Raises:
        UsageError: A file is missing or is not in that format.
    """
    labelled = folder / "labels.txt"
    windows, labels, persons = [], [], []
    recordings, readings = dict[tuple[int, int], npt.NDArray[np.float32]](), 0
    for experiment, person, activity, first, last in _numbers(labelled, 5).astype(np.int64):
        if activity > _CLASSES:
            # Higher numbers are transitions between two activities.
            continue
        key = experiment, person
        if key not in recordings:
            names = (f"{sensor}_exp{experiment:02}_user{person:02}.txt" for sensor in ("acc", "gyro"))
            parts = [_numbers(folder / name, 3) for name in names]
            shortest = min(map(len, parts))
            recordings[key] = np.concatenate([part[:shortest] for part in parts], axis=1)
            readings += shortest
        segment = recordings[key][max(first - 1, 0) : last]
        for start in range(0, len(segment) - _WINDOW + 1, _HOP):
            windows.append(segment[start : start + _WINDOW])
            labels.append(activity - 1)
            persons.append(person)
        if len(windows) * _HOP > readings:
            raise UsageError(f"{labelled}: its activities overlap; put an intact copy of the file there")
    if not windows:
        raise UsageError(f"{labelled}: no activity lasts {_WINDOW} readings; put intact files there")
    return _checked(labelled, (np.stack(windows), np.array(labels), np.array(persons)))


def _numbers(path: Path, columns: int) -> npt.NDArray[np.float32]:
    try:
        table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({reason_of(error)}); put an intact copy of the file there"
        ) from error
    if table.shape[1] != columns:
        raise UsageError(f"{path}: {table.shape[1]} columns are not {columns}; put the right file there")
    return table


def _checked(path: Path, windows: Windows) -> Windows:
    x, y, person = windows
    if not np.isfinite(x).all() or not 0 <= y.min() <= y.max() < _CLASSES or person.min() < 1:
        raise UsageError(
            f"{path}: readings must be finite, activities 0 to {_CLASSES - 1} and persons at least 1; put an "
            "intact copy of the file there"
        )
    return windows


def _last_fifth(stratum: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the last fifth, rounded down, of the samples of each stratum."""
    mask = np.zeros(len(stratum), dtype=np.bool_)
    for each in np.unique(stratum):
        rows = np.flatnonzero(stratum == each)
        mask[rows[len(rows) - len(rows) // 5 :]] = True
    return mask
