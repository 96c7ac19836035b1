import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import data_root, load
from offbeat.data.cifar import CIFAR10


def write_cifar10(root, rows=4):
    folder = root / "cifar10" / CIFAR10.folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, rows, 3072), dtype=np.uint8)
    for number, name in enumerate((*CIFAR10.train, CIFAR10.test)):
        labels = (np.arange(rows) + number) % 10
        np.concatenate([labels[:, None].astype(np.uint8), images[number]], axis=1).tofile(folder / name)
    return folder, images


def test_cifar10_pixels_labels_and_subsample(tmp_path):
    _, images = write_cifar10(tmp_path)
    source = load("cifar10", root=tmp_path)
    assert source.train.x.shape == (20, 3, 32, 32)
    assert source.train.x.dtype == torch.float32
    assert source.train.x.is_contiguous(memory_format=torch.channels_last)
    assert source.test.x.shape == (4, 3, 32, 32)
    assert source.train.y.tolist() == [(row + file) % 10 for file in range(5) for row in range(4)]
    green = images[1, 2].reshape(3, 32, 32)[1, 5, 7]
    assert source.train.x[6, 1, 5, 7].item() == pytest.approx((green / 255 - 0.4822) / 0.2435, abs=1e-6)
    part = load("cifar10", root=tmp_path, samples=3, test_samples=2, seed=1)
    assert len(part.train) == 3
    assert all((source.train.x == image).flatten(1).all(1).any() for image in part.train.x)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are no rows of 3073"),
        (b"x" * 3074, "3074 bytes"),
        (b"\x0a" * 3073, "label 10 is not 0 to 9"),
    ],
)
def test_files_that_are_not_cifar(tmp_path, content, message):
    folder, _ = write_cifar10(tmp_path)
    (folder / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        load("cifar10", root=tmp_path)
    assert "data_batch_3.bin" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_missing_file_is_named(tmp_path):
    folder, _ = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(UsageError, match=r"put the file test_batch.bin there.*fetch\('cifar10'\)"):
        load("cifar10", root=tmp_path)


@pytest.mark.thorough
def test_real_cifar10():
    if not (data_root() / "cifar10").is_dir():
        pytest.skip("cifar10 is not on this machine")
    source = load("cifar10")
    assert source.train.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(source.train.y).tolist() == [5000] * 10
    assert source.train.x.mean(dim=(0, 2, 3)).abs().max() < 0.001
    assert (source.train.x.std(dim=(0, 2, 3)) - 1).abs().max() < 0.001
