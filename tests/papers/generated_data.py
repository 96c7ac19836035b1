"""Generated files in the official layouts of datasets that cannot be had everywhere: noise, a few samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from offbeat.data.fed_isic2019 import CENTRES, IMAGES, SPLIT
from offbeat.data.fed_ixi import HOSPITALS


def write_dataset(name: str, root: Path) -> None:
    """Write a dataset's files into a data directory."""
    _WRITERS[name](root / name, np.random.default_rng(0))


def _cifar100(folder: Path, rng: np.random.Generator) -> None:
    files = folder / "cifar-100-binary"
    files.mkdir(parents=True)
    for name, samples in (("train.bin", 200), ("test.bin", 100)):
        rows = rng.integers(0, 256, (samples, 3074), dtype=np.uint8)
        rows[:, 1] = np.arange(samples) % 100
        rows.tofile(files / name)


def _image(path: Path, rng: np.random.Generator, height: int, width: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path, format="JPEG")


def _tiny_imagenet(folder: Path, rng: np.random.Generator) -> None:
    files, names = folder / "tiny-imagenet-200", [f"n{number:02}" for number in range(10)]
    for name in names:
        for number in range(8):
            _image(files / "train" / name / "images" / f"{name}_{number}.JPEG", rng, 64, 64)
    lines = []
    for number in range(20):
        _image(files / "val" / "images" / f"val_{number}.JPEG", rng, 64, 64)
        lines.append(f"val_{number}.JPEG\t{names[number % 10]}\t0\t0\t62\t62\n")
    (files / "wnids.txt").write_text("\n".join(names) + "\n")
    (files / "val" / "val_annotations.txt").write_text("".join(lines))


def _fed_isic2019(folder: Path, rng: np.random.Generator) -> None:
    rows = ["image,target,center,fold"]
    for centre in range(len(CENTRES)):
        for number in range(5):
            _image(folder / IMAGES / f"{centre}_{number}.jpg", rng, 224, 260)
            rows.append(f"{centre}_{number},{number},{centre},{'test' if number == 4 else 'train'}")
    (folder / SPLIT).write_text("\n".join(rows) + "\n")


def _fed_ixi(folder: Path, rng: np.random.Generator) -> None:
    import nibabel

    for place, hospital in enumerate(HOSPITALS):
        for number in range(5):
            name = f"IXI{10 * place + number:03}-{hospital}-{number:04}"
            mask = np.zeros((12, 15, 12), dtype=np.float32)
            mask[:6] = 1
            for kind, volume in (("T1", 100 * mask + rng.normal(size=mask.shape)), ("label", mask)):
                path = folder / "IXI_sample" / name / kind / f"{name}_{kind}.nii.gz"
                path.parent.mkdir(parents=True)
                nibabel.save(nibabel.Nifti1Image(volume.astype(np.float32), np.eye(4)), path)


_WORDS = ("good", "bad", "film", "day", "rain", "fine")


def _sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(_WORDS, 6))


def _sent140(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    rows = [
        f'"{4 * (number % 2)}","{number}","Mon","NO_QUERY","{user}","{_sentence(rng)}"\n'
        for user in ("ann", "bob", "cy", "dee")
        for number in range(100)
    ]
    (folder / "training.1600000.processed.noemoticon.csv").write_text("".join(rows))


def _sst2(folder: Path, rng: np.random.Generator) -> None:
    files = folder / "SST-2"
    files.mkdir(parents=True)
    for name, samples in (("train.tsv", 80), ("dev.tsv", 20)):
        rows = [f"{_sentence(rng)} \t{number % 2}\n" for number in range(samples)]
        (files / name).write_text("sentence\tlabel\n" + "".join(rows))


_WRITERS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "cifar100": _cifar100,
    "fed_isic2019": _fed_isic2019,
    "fed_ixi": _fed_ixi,
    "sent140": _sent140,
    "sst2": _sst2,
    "tiny_imagenet": _tiny_imagenet,
}
