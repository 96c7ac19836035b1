import gzip

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import load

nibabel = pytest.importorskip("nibabel")


def write_subject(root, name, image=None):
    shape = (12, 15, 12)
    bright = np.zeros(shape, dtype=np.float32)
    bright[:6] = 100.0
    for kind, volume in (("T1", bright + 7 if image is None else image), ("label", bright / 100)):
        folder = root / "fed_ixi" / "IXI_sample" / name / kind
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}_{'image' if kind == 'T1' else 'label'}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(volume.astype(np.float32), np.eye(4)), path)
    return root / "fed_ixi" / "IXI_sample" / name


def write_subjects(root):
    for number in range(5):
        write_subject(root, f"IXI{number:03}-Guys-0{number}")
        write_subject(root, f"IXI{number + 10:03}-IOP-0{number}")


def test_volumes_masks_and_hospitals(tmp_path):
    write_subjects(tmp_path)
    source = load("fed_ixi", root=tmp_path)
    assert source.train.x.shape == (8, 1, 48, 60, 48)
    assert source.train.y.shape == (8, 48, 60, 48)
    assert len(source.test) == 2
    assert source.group_names == ("Guys", "IOP")
    assert np.bincount(source.groups).tolist() == [4, 4]
    assert source.train.classes == 2
    assert source.train.y[0, :24].all()
    assert not source.train.y[0, 24:].any()
    assert source.train.x.mean().abs() < 1e-4
    assert torch.equal(source.train.x[0, 0] > 0, source.train.y[0] > 0)


def test_subjects_that_are_not_intact(tmp_path):
    with pytest.raises(UsageError, match=r"put the folder IXI_sample of subjects there.*get it from FLamby"):
        load("fed_ixi", root=tmp_path)
    write_subjects(tmp_path)
    folder = write_subject(tmp_path, "IXI090-Guys-09", np.zeros((4, 4)))
    with pytest.raises(UsageError, match=r"IXI090.* 2 dimensions"):
        load("fed_ixi", root=tmp_path)
    (path,) = (folder / "T1").iterdir()
    path.write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"IXI090-Guys-09_image.nii.gz: cannot be read") as caught:
        load("fed_ixi", root=tmp_path)
    assert "\n" not in str(caught.value)
    image = nibabel.Nifti1Image(np.zeros((2, 2, 2), np.float32), np.eye(4))
    image.header.set_data_shape((2000, 2000, 2000))
    path.write_bytes(gzip.compress(image.header.binaryblock + bytes(36)))
    with pytest.raises(UsageError, match=r"larger than the 1073741824 bytes allowed"):
        load("fed_ixi", root=tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match=r"T1: 0 files \*.nii.gz, not one"):
        load("fed_ixi", root=tmp_path)
    write_subject(tmp_path, "IXI091-Bart-09")
    with pytest.raises(UsageError, match=r"Bart is none of Guys, HH, IOP"):
        load("fed_ixi", root=tmp_path)
