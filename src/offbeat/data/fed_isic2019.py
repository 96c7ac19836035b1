"""Fed-ISIC2019: skin lesions of eight kinds from six centres (ISIC 2019 challenge; FLamby, 2022).

Images and split are FLamby's: its scripts make the folder of preprocessed images, and its repository has the
file that gives each image its class, centre and part. FLamby changes the train images at random (scale,
rotation, colours, holes); here the middle 200x200 is taken in training too.
"""

import csv
from pathlib import Path

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.data.federated import Source
from offbeat.data.image_files import check_images, image_dataset
from offbeat.data.paths import missing_dataset
from offbeat.data.subsample import Subsample

CENTRES = ("bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk", "vienna_dias")
IMAGES, SPLIT = "ISIC_2019_Training_Input_preprocessed", "train_test_split"
_CLASSES, _SIDE = 8, 200
_ADDRESS = "FLamby (flamby/datasets/fed_isic2019), whose scripts fetch and resize the images"


def load_fed_isic2019(root: Path, pick: Subsample) -> Source:
    """Load Fed-ISIC2019 from `root/fed_isic2019`: x float32 [N, 3, 200, 200], eight classes, group = centre.

    Images are read when they are used. Raises `UsageError` where a file is missing or the split is not in
    FLamby's format.
    """
    folder = root / "fed_isic2019"
    if not ((folder / IMAGES).is_dir() and (folder / SPLIT).is_file()):
        raise missing_dataset(
            "fed_isic2019", folder, f"the folder {IMAGES} and the file {SPLIT}", source=_ADDRESS
        )
    rows = _read_split(folder / SPLIT)
    images = [(folder / IMAGES / f"{name}.jpg", label) for name, label, _, _ in rows]
    check_images(images)
    for_training = np.array([training for *_, training in rows])
    train, test = np.flatnonzero(for_training), np.flatnonzero(~for_training)
    train, test = train[pick.train(len(train))], test[pick.test(len(test))]
    return Source(
        "fed_isic2019",
        image_dataset(images, train, _SIDE, _CLASSES),
        image_dataset(images, test, _SIDE, _CLASSES),
        np.array([rows[row][2] for row in train], dtype=np.int64),
        CENTRES,
    )


def _read_split(path: Path) -> list[tuple[str, int, int, bool]]:
    """Name, class and centre of each image, and whether it is for training."""
    rows = list[tuple[str, int, int, bool]]()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        read = list(csv.DictReader(lines))
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read ({error}); put FLamby's file there") from None
    for number, row in enumerate(read, start=2):
        try:
            name, label, centre = str(row["image"]), int(row["target"]), int(row["center"])
            training = ("test", "train").index(row["fold"])
            if Path(name).name != name or not (0 <= label < _CLASSES and 0 <= centre < len(CENTRES)):
                raise ValueError("out of range")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: line {number} has no image, target 0 to {_CLASSES - 1}, center 0 to "
                f"{len(CENTRES) - 1} and fold train or test ({error}); put FLamby's file there"
            ) from None
        rows.append((name, label, centre, bool(training)))
    if len({training for *_, training in rows}) != 2:
        raise UsageError(f"{path}: has no train or no test images; put FLamby's file there")
    return rows
