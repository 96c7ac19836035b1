"""Tiny-ImageNet: 200 classes of ImageNet in 64x64 (Le and Yang, 2015), from its official folder."""

from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.data.federated import Source
from offbeat.data.image_files import check_images, image_dataset
from offbeat.data.paths import missing_dataset
from offbeat.data.subsample import Subsample

FOLDER = "tiny-imagenet-200"
_ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_SIDE = 64


def load_tiny_imagenet(root: Path, pick: Subsample) -> Source:
    """Load Tiny-ImageNet from `root/tiny_imagenet/tiny-imagenet-200`: x float32 [N, 3, 64, 64], no groups.

    The validation images are the test set, since those for testing have no labels. Images are read when they
    are used. Raises `UsageError` where a list or an image is missing, or a list is not in the format.
    """
    folder = root / "tiny_imagenet" / FOLDER
    listed, annotated = folder / "wnids.txt", folder / "val" / "val_annotations.txt"
    if not (listed.is_file() and annotated.is_file()):
        raise missing_dataset("tiny_imagenet", folder.parent, f"the folder {FOLDER}", source=_ADDRESS)
    names = listed.read_text(encoding="utf-8", errors="replace").split()
    class_of = {name: number for number, name in enumerate(names)}
    train = [
        (path, number)
        for name, number in class_of.items()
        for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]
    if len({label for _, label in train}) != len(names) or not names:
        raise UsageError(
            f"{listed}: a class has no images in train/; put an intact copy of the dataset there"
        )
    test = [(annotated.parent / "images" / name, label) for name, label in _annotations(annotated, class_of)]
    check_images(test)
    return Source(
        "tiny_imagenet",
        image_dataset(train, pick.train(len(train)), _SIDE, len(names)),
        image_dataset(test, pick.test(len(test)), _SIDE, len(names)),
    )


def _annotations(path: Path, class_of: dict[str, int]) -> list[tuple[str, int]]:
    """File name and class of each validation image."""
    annotations = list[tuple[str, int]]()
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, _, rest = line.partition("\t")
        label = class_of.get(rest.partition("\t")[0])
        if label is None or Path(name).name != name:
            raise UsageError(
                f"{path}: line {number} has no image and class of wnids.txt; put an intact copy there"
            )
        annotations.append((name, label))
    if not annotations:
        raise UsageError(f"{path}: there is no image; put an intact copy of the file there")
    return annotations
