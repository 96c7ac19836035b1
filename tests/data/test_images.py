import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import data_root, load
from offbeat.data.images import IDX_FILES


def write_idx(path: Path, array: np.ndarray) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_set(root: Path, name: str, train: int = 12, test: int = 5, suffix: str = "") -> None:
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for prefix, n in (("train", train), ("t10k", test)):
        images = np.zeros((n, 28, 28), dtype=np.uint8)
        images[:, 0, 0] = 255
        images[:, 0, 1] = np.arange(n)
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", (np.arange(n) % 10).astype(np.uint8))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)]
)
def test_scaling_and_shapes(tmp_path, name, mean, std, suffix):
    write_set(tmp_path, name, suffix=suffix)
    source = load(name, root=tmp_path)
    assert source.name == name
    assert source.train.x.shape == (12, 1, 28, 28)
    assert len(source.test) == 5
    assert source.train.classes == 10
    assert source.groups is None
    assert source.train.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert source.train.x[0, 0, 0, 0].item() == pytest.approx((1 - mean) / std, rel=1e-5)
    assert source.train.x[0, 0, 5, 5].item() == pytest.approx(-mean / std, rel=1e-5)
    assert source.train.x[7, 0, 0, 1].item() == pytest.approx((7 / 255 - mean) / std, rel=1e-5)


def test_subsample_keeps_images_and_labels_together(tmp_path):
    write_set(tmp_path, "mnist")
    source = load("mnist", root=tmp_path, samples=4, test_samples=2, seed=3)
    number = torch.round((source.train.x[:, 0, 0, 1] * 0.3081 + 0.1307) * 255).long()
    assert len(source.train) == 4
    assert len(source.test) == 2
    assert (number % 10 == source.train.y).all()
    assert len(set(number.tolist())) == 4


def test_missing_files_are_said_in_one_line(tmp_path):
    with pytest.raises(UsageError) as caught:
        load("mnist", root=tmp_path)
    text = str(caught.value)
    assert all(name in text for name in IDX_FILES)
    assert str(tmp_path / "mnist" / "raw") in text
    assert "OFFBEAT_DATA" in text
    assert "\n" not in text


def test_only_the_missing_file_is_named(tmp_path):
    write_set(tmp_path, "mnist")
    (tmp_path / "mnist" / "raw" / IDX_FILES[3]).unlink()
    with pytest.raises(UsageError, match=IDX_FILES[3]) as caught:
        load("mnist", root=tmp_path)
    assert IDX_FILES[0] not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        (1, np.zeros(11, dtype=np.uint8), "12 images and train-labels-idx1-ubyte 11 labels"),
        (1, np.full(12, 10, dtype=np.uint8), "label 10 is not 0 to 9"),
        (0, np.zeros((12, 27, 28), dtype=np.uint8), "images of 27x28 are not 28x28"),
    ],
)
def test_files_that_do_not_fit(tmp_path, file, array, message):
    write_set(tmp_path, "mnist")
    write_idx(tmp_path / "mnist" / "raw" / IDX_FILES[file], array)
    with pytest.raises(UsageError, match=message):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_files(name):
    if not (data_root() / name / "raw").is_dir():
        pytest.skip(f"{name} is not on this machine")
    source = load(name, samples=2000)
    assert source.train.x.shape == (2000, 1, 28, 28)
    assert source.test.x.shape == (10_000, 1, 28, 28)
    assert abs(source.train.x.mean().item()) < 0.05
    assert abs(source.train.x.std().item() - 1) < 0.05
    assert torch.bincount(source.train.y, minlength=10).min() > 100
