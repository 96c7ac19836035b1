"""Tiny-ImageNet, CIFAR-100 and Fed-ISIC2019 from tiny files of their official layouts."""

import numpy as np
import pytest
import torch
from PIL import Image

from offbeat.core.errors import UsageError
from offbeat.data import load
from offbeat.data.dataset import sample_shape
from offbeat.data.fed_isic2019 import CENTRES
from offbeat.data.image_files import ImageFiles


def write_image(path, height, width, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), colour, dtype=np.uint8)).save(path, format="JPEG")


def write_tiny_imagenet(root):
    folder = root / "tiny_imagenet" / "tiny-imagenet-200"
    for number, name in enumerate(("n02", "n01", "n03")):
        for image in range(2):
            write_image(folder / "train" / name / "images" / f"{name}_{image}.JPEG", 64, 64, 80 * number)
    (folder / "wnids.txt").write_text("n02\nn01\nn03\n")
    for image in range(2):
        write_image(folder / "val" / "images" / f"val_{image}.JPEG", 64, 64, 160)
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn03\t0\t0\t62\t62\nval_1.JPEG\tn01\t1\t1\t9\t9\n"
    )
    return folder


def test_tiny_imagenet(tmp_path):
    write_tiny_imagenet(tmp_path)
    source = load("tiny_imagenet", root=tmp_path)
    assert source.train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.test.y.tolist() == [2, 1]
    assert source.train.classes == 3
    assert sample_shape(source.train) == (3, 64, 64)
    x, y = source.train.gather(torch.tensor([4, 0]))
    assert y.tolist() == [2, 0]
    assert x.dtype == torch.float32
    assert x[0, 1].mean().item() == pytest.approx((160 / 255 - 0.456) / 0.224, abs=0.03)
    part = load("tiny_imagenet", root=tmp_path, samples=3, seed=1).train
    assert len(part) == 3
    assert part.gather(torch.arange(3))[1].tolist() == part.y.tolist()
    assert part.subset([2, 0]).y.tolist() == [part.y[2].item(), part.y[0].item()]


def test_tiny_imagenet_that_is_not_intact(tmp_path):
    with pytest.raises(
        UsageError, match=r"put the folder tiny-imagenet-200 there.* get it from http://cs231n"
    ):
        load("tiny_imagenet", root=tmp_path)
    folder = write_tiny_imagenet(tmp_path)
    (folder / "train" / "n01" / "images" / "n01_0.JPEG").write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"n01_0.JPEG: cannot be read") as caught:
        load("tiny_imagenet", root=tmp_path).train.gather(torch.arange(3))
    assert "\n" not in str(caught.value)
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(UsageError, match=r"val_1.JPEG: the image is missing"):
        load("tiny_imagenet", root=tmp_path)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\n../val_1.JPEG\tn01\n")
    with pytest.raises(UsageError, match=r"val_annotations.txt: line 2 has no image"):
        load("tiny_imagenet", root=tmp_path)


def test_cifar100_takes_the_fine_label(tmp_path):
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, labels in (("train.bin", (99, 3, 50)), ("test.bin", (7,))):
        rows = np.zeros((len(labels), 3074), dtype=np.uint8)
        rows[:, 0], rows[:, 1] = 19, labels
        rows.tofile(folder / name)
    source = load("cifar100", root=tmp_path)
    assert source.train.y.tolist() == [99, 3, 50]
    assert source.test.y.tolist() == [7]
    assert source.train.x.shape == (3, 3, 32, 32)
    assert source.train.x[0, 2, 0, 0].item() == pytest.approx(-0.4409 / 0.2762)


def write_isic(root, more):
    folder = root / "fed_isic2019"
    rows = ["a,0,0,train", "b,7,5,train", "c,3,0,test", "d,2,2,train", "f,1,1,test"]
    for number, row in enumerate(rows):
        write_image(folder / "ISIC_2019_Training_Input_preprocessed" / f"{row[0]}.jpg", 224, 260, 40 * number)
    (folder / "train_test_split").write_text("\n".join(["image,target,center,fold", *rows, *more]) + "\n")
    return folder


def test_fed_isic2019_is_divided_by_centre(tmp_path):
    write_isic(tmp_path, [])
    source = load("fed_isic2019", root=tmp_path)
    assert source.group_names == CENTRES
    assert source.groups.tolist() == [0, 5, 2]
    assert source.train.y.tolist() == [0, 7, 2]
    assert source.test.y.tolist() == [3, 1]
    assert source.train.classes == 8
    x, _ = source.train.gather(torch.tensor([2]))
    assert x.shape == (1, 3, 200, 200)
    assert x[0, 0].mean().item() == pytest.approx((120 / 255 - 0.485) / 0.229, abs=0.03)


def test_fed_isic2019_that_is_not_intact(tmp_path):
    with pytest.raises(UsageError, match=r"get it from FLamby"):
        load("fed_isic2019", root=tmp_path)
    folder = write_isic(tmp_path, ["e,1,9,train"])
    with pytest.raises(UsageError, match=r"train_test_split: line 7 has no image"):
        load("fed_isic2019", root=tmp_path)
    write_isic(tmp_path, ["e,1,5,train"])
    with pytest.raises(UsageError, match=r"e.jpg: the image is missing"):
        load("fed_isic2019", root=tmp_path)
    write_image(folder / "ISIC_2019_Training_Input_preprocessed" / "e.jpg", 150, 224, 0)
    with pytest.raises(UsageError, match=r"an image of 150x224 is smaller than 200x200"):
        load("fed_isic2019", root=tmp_path).train.gather(torch.arange(4))
    for content in (b"\xff\n", b"image\n" + b"x" * 200_000):
        (folder / "train_test_split").write_bytes(content)
        with pytest.raises(UsageError, match=r"train_test_split: cannot be read"):
            load("fed_isic2019", root=tmp_path)


def test_an_image_of_more_pixels_than_any_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    Image.new("L", (9000, 9000)).save(path)
    with pytest.raises(UsageError, match=r"81000000 pixels: 67108864 are allowed"):
        ImageFiles([path], [0], 64)[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UsageError, match=r"bomb.png: cannot be read"):
        ImageFiles([path], [0], 64)[0]
