"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017) from their idx files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.idx import read_idx
from offbeat.data.paths import find_files
from offbeat.data.subsample import Subsample

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
Pick = Callable[[int], npt.NDArray[np.int64]]
_CLASSES = 10
_SIDE = 28

_PIXELS = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}
"""Mean and standard deviation of the train set's pixels after scaling to [0, 1]."""


def load_images(name: str, root: Path, pick: Subsample) -> Source:
    """Load MNIST or Fashion-MNIST (`name` mnist or fashion_mnist) from `root/name/raw`.

    x is float32 [N, 1, 28, 28], scaled to [0, 1] and then normalised with the dataset's published mean and
    standard deviation; ten classes, no groups. Raises `UsageError` when a file is missing or not intact.
    """
    images, labels, test_images, test_labels = find_files(name, root / name / "raw", IDX_FILES, gz=True)
    scale = _PIXELS[name]
    return Source(
        name, _read(images, labels, pick.train, scale), _read(test_images, test_labels, pick.test, scale)
    )


def _read(images_path: Path, labels_path: Path, pick: Pick, scale: tuple[float, float]) -> Dataset:
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
    # The rows are taken as bytes, so a small subsample never pays for the whole set in float32.
    rows = pick(len(labels))
    x = torch.from_numpy(images[rows]).unsqueeze(1).to(torch.float32)
    mean, std = scale
    x.div_(255.0).sub_(mean).div_(std)
    return Dataset(x, torch.from_numpy(labels[rows].astype(np.int64)), _CLASSES)
