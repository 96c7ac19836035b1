"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017) from their idx files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset, Source
from offbeat.data.idx import read_idx
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CLASSES = 10
_SIDE = 28


@dataclass(frozen=True)
class _Pixels:
    """Mean and standard deviation of the train set's pixels after scaling to [0, 1]."""

    mean: float
    std: float


_PIXELS = {"mnist": _Pixels(0.1307, 0.3081), "fashion_mnist": _Pixels(0.2860, 0.3530)}


def load_images(name: str, root: Path, pick: Subsample) -> Source:
    """Load MNIST or Fashion-MNIST (`name` mnist or fashion_mnist) from `root/name/raw`.

    x is float32 [N, 1, 28, 28], scaled to [0, 1] and then normalised with the dataset's published mean and
    standard deviation; ten classes, no groups. Raises `UsageError` when a file is missing or not intact.
    """
    paths = find_files(name, root / name / "raw", IDX_FILES, gz=True)
    train = _read_pair(paths[0], paths[1])
    test = _read_pair(paths[2], paths[3])
    pixels = _PIXELS[name]
    return Source(
        name,
        _dataset(*train, pick.train(len(train[1])), pixels),
        _dataset(*test, pick.test(len(test[1])), pixels),
    )


def _read_pair(images_path: Path, labels_path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (_SIDE, _SIDE):
        raise UsageError(
            f"{images_path}: images of {images.shape[1]}x{images.shape[2]} are not {_SIDE}x{_SIDE}; "
            "put the right file there"
        )
    if len(images) != len(labels) or not len(labels):
        raise UsageError(
            f"{images_path} has {len(images)} images and {labels_path.name} {len(labels)} labels: they must "
            "be as many, and not none; put files of the same set there"
        )
    if labels.max() >= _CLASSES:
        raise UsageError(f"{labels_path}: label {labels.max()} is not 0 to 9; put the right file there")
    return images, labels


def _dataset(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64], pixels: _Pixels
) -> Dataset:
    # Rows are taken as bytes: a small subsample never pays for the whole set in float32.
    x = torch.from_numpy(images[rows]).unsqueeze(1).to(torch.float32)
    x.div_(255.0).sub_(pixels.mean).div_(pixels.std)
    return Dataset(x, torch.from_numpy(labels[rows].astype(np.int64)), _CLASSES)
