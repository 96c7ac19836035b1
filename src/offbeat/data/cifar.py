"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the files of their binary version.

A file is rows of one size: a label byte (CIFAR-100: the coarse label, then the fine one, which is used), then
3072 bytes of a 3x32x32 image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample

_PIXELS = 3 * 32 * 32
_LIMIT = 1 << 30  # bytes, six times the largest file


@dataclass(frozen=True)
class CifarFormat:
    """The files of one of the two datasets.

    Attributes:
        folder: Folder of the files in the dataset's own.
        train: Names of the train files.
        test: Name of the test file.
        label_bytes: Number of label bytes of a row, of which the last is used.
        classes: Number of classes.
        scale: Mean and standard deviation of each channel of the train set, scaled to [0, 1].
    """

    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    scale: tuple[tuple[float, float, float], tuple[float, float, float]]


CIFAR10 = CifarFormat(
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test_batch.bin",
    1,
    10,
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
CIFAR100 = CifarFormat(
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    2,
    100,
    ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


def load_cifar(name: str, layout: CifarFormat, root: Path, pick: Subsample) -> Source:
    """Load a CIFAR dataset from `root/name/layout.folder`: x float32 [N, 3, 32, 32], no groups.

    Images are in the memory layout channels_last, in which convolutions read them.
    Pixels are scaled to [0, 1], then normalised by the channel with the mean and deviation of the train set.
    Raises `UsageError` where a file is missing or not intact.
    """
    *train, test = find_files(name, root / name / layout.folder, [*layout.train, layout.test], gz=False)
    rows = np.concatenate([_read(path, layout) for path in train])
    tested = _read(test, layout)
    return Source(
        name, _dataset(rows[pick.train(len(rows))], layout), _dataset(tested[pick.test(len(tested))], layout)
    )


def _read(path: Path, layout: CifarFormat) -> npt.NDArray[np.uint8]:
    """Rows of a file, uint8 [N, label bytes + 3072]."""
    size, row = path.stat().st_size, layout.label_bytes + _PIXELS
    if not size or size % row or size > _LIMIT:
        raise UsageError(
            f"{path}: {size} bytes are no rows of {row} bytes; put an intact copy of the file there"
        )
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, row)
    labels = rows[:, layout.label_bytes - 1]
    if labels.max() >= layout.classes:
        raise UsageError(
            f"{path}: label {labels.max()} is not 0 to {layout.classes - 1}; put the right file there"
        )
    return rows


def _dataset(rows: npt.NDArray[np.uint8], layout: CifarFormat) -> Dataset:
    labels = torch.from_numpy(rows[:, layout.label_bytes - 1].astype(np.int64))
    pixels = rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    images = torch.from_numpy(pixels.astype(np.float32, order="C")).permute(0, 3, 1, 2)
    return Dataset(normalised(images, layout.scale), labels, layout.classes)


def normalised(images: torch.Tensor, scale: tuple[Sequence[float], Sequence[float]]) -> torch.Tensor:
    """Images of values 0 to 255, float32 [..., 3, H, W], normalised in place by mean and deviation."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in scale)
    return images.div_(255.0).sub_(mean).div_(std)
