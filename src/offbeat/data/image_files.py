"""Images that are read from their files when they are needed: sets too large for memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.types import Indices
from offbeat.data.cifar import normalised
from offbeat.data.dataset import MapDataset

_MOST_PIXELS = 1 << 26  # of an image, whose compressed bytes may be a few
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of each channel of ImageNet's train set, scaled to [0, 1]."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """A map-style dataset of image files: (x float32 [3, side, side], y) each, normalised as `IMAGENET`.

    Attributes:
        paths: The files.
        labels: Class of each.
        side: Height and width: the middle of a larger image is taken.
    """

    paths: Sequence[Path]
    labels: Sequence[int]
    side: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        path = self.paths[row]
        pixels = _read(path)
        top, left = ((length - self.side) // 2 for length in pixels.shape[:2])
        if min(top, left) < 0:
            raise UsageError(
                f"{path}: an image of {pixels.shape[0]}x{pixels.shape[1]} is smaller than "
                f"{self.side}x{self.side}; put the right file there"
            )
        middle = pixels[top : top + self.side, left : left + self.side]
        x = torch.from_numpy(middle.transpose(2, 0, 1).astype(np.float32))
        return normalised(x, IMAGENET), self.labels[row]


def image_dataset(images: Sequence[tuple[Path, int]], rows: Indices, side: int, classes: int) -> MapDataset:
    """The image files at `rows`, with their classes, as samples."""
    files = ImageFiles([images[row][0] for row in rows], [images[row][1] for row in rows], side)
    return MapDataset(files, labels=torch.tensor(files.labels), classes=classes)


def check_images(images: Sequence[tuple[Path, int]]) -> None:
    """Raises `UsageError` for the first file that is missing; none is read."""
    for path, _ in images:
        if not path.is_file():
            raise UsageError(f"{path}: the image is missing; put an intact copy of the dataset there")


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """Pixels [H, W, 3]."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if (pixels := image.width * image.height) > _MOST_PIXELS:
                raise ValueError(f"it has {pixels} pixels: {_MOST_PIXELS} are allowed")
            return np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"{path}: cannot be read ({reason_of(error)}); put an intact copy of the file there"
        ) from error
