"""Fed-IXI: brain masks of T1 images from three hospitals of London (IXI Tiny, TorchIO; FLamby, 2022).

Every image is resized to 48x60x48 and normalised by its own mean and deviation; its mask to the same size.
80 % of each hospital (249, 145, 59 of FLamby's 311, 181, 74) are for training. The sizes are FLamby's; which
rows fall on which side is our own fixed shuffle. Needs nibabel, of the extra `nifti`.
"""

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.core.types import Indices
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.paths import missing_dataset
from offbeat.data.subsample import Subsample, fixed_permutation
from offbeat.unpacking import MOST_DATASET

HOSPITALS = ("Guys", "HH", "IOP")
FOLDER, SHAPE = "IXI_sample", (48, 60, 48)
_ADDRESS = "FLamby (flamby/datasets/fed_ixi/common.py has the address of 7kd5wj7v7p-3.zip, 444 MB)"
_SPLIT_KEY = 0x0FFBEA7


def load_fed_ixi(root: Path, pick: Subsample) -> Source:
    """Load Fed-IXI from `root/fed_ixi/IXI_sample`: x float32 [N, 1, 48, 60, 48], y int64 [N, 48, 60, 48].

    A subject is a folder such as IXI002-Guys-0828 with T1/*.nii.gz and label/*.nii.gz; the group is the
    hospital. Classes are those of voxels: 0 and brain, 1. Raises `UsageError` where a file is missing or
    cannot be read, or nibabel is not installed.
    """
    folder = root / "fed_ixi" / FOLDER
    subjects = sorted(path for path in folder.glob("IXI*-*-*") if path.is_dir())
    if not subjects:
        raise missing_dataset("fed_ixi", folder.parent, f"the folder {FOLDER} of subjects", source=_ADDRESS)
    hospital = np.array([_hospital(path) for path in subjects])
    for_training = np.zeros(len(subjects), dtype=np.bool_)
    for number in range(len(HOSPITALS)):
        rows = np.flatnonzero(hospital == number)
        order = fixed_permutation(len(rows), _SPLIT_KEY, number)
        for_training[rows[order[: round(0.8 * len(rows))]]] = True
    train, test = np.flatnonzero(for_training), np.flatnonzero(~for_training)
    if not (len(train) and len(test)):
        raise UsageError(f"{folder}: {len(subjects)} subjects cannot be split; put an intact copy there")
    train, test = train[pick.train(len(train))], test[pick.test(len(test))]
    present = np.unique(hospital)
    groups = np.searchsorted(present, hospital[train]).astype(np.int64)
    names = tuple(HOSPITALS[number] for number in present)
    return Source("fed_ixi", _dataset(subjects, train), _dataset(subjects, test), groups, names)


def _hospital(subject: Path) -> int:
    name = subject.name.split("-")[1]
    if name not in HOSPITALS:
        raise UsageError(f"{subject}: {name} is none of {', '.join(HOSPITALS)}; put an intact copy there")
    return HOSPITALS.index(name)


def _dataset(subjects: list[Path], rows: Indices) -> Dataset:
    images, masks = torch.empty(len(rows), 1, *SHAPE), torch.empty(len(rows), *SHAPE, dtype=torch.int64)
    for place, row in enumerate(rows):
        image = interpolate(_volume(subjects[row] / "T1"), SHAPE, mode="area")[0]
        images[place] = (image - image.mean()) / image.std().clamp_min(1e-6)
        masks[place] = interpolate(_volume(subjects[row] / "label"), SHAPE, mode="nearest")[0, 0] > 0
    return Dataset(images, masks, 2)


def _volume(folder: Path) -> torch.Tensor:
    """The only image of a folder, float32 [1, 1, D, H, W]."""
    with requires_extra("nifti", "dataset 'fed_ixi': "):
        import nibabel
    paths = sorted(folder.glob("*.nii.gz"))
    if len(paths) != 1:
        raise UsageError(f"{folder}: {len(paths)} files *.nii.gz, not one; put an intact copy there")
    try:
        image: Any = nibabel.load(paths[0])
        if math.prod(image.shape) * 4 > MOST_DATASET:
            raise ValueError(f"a volume of {image.shape} is larger than the {MOST_DATASET} bytes allowed")
        volume: npt.NDArray[np.float32] = image.get_fdata(dtype=np.float32)
    except (
        nibabel.filebasedimages.ImageFileError,
        OSError,
        EOFError,
        ValueError,
        MemoryError,
        zlib.error,
    ) as error:
        raise UsageError(
            f"{paths[0]}: cannot be read ({reason_of(error)}); put an intact copy of the file there"
        ) from error
    if volume.ndim != 3 or not np.isfinite(volume).all():
        raise UsageError(
            f"{paths[0]}: {volume.ndim} dimensions, or values that are not finite; it must be a volume"
        )
    return torch.from_numpy(volume)[None, None]
