import zipfile

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import data_root, federate, load
from offbeat.data.hapt import cut_windows
from offbeat.world.partitions import Natural


def write_windows(root, persons=(2, 7), per_activity=5, **changes):
    folder = root / "hapt"
    folder.mkdir(exist_ok=True)
    user = np.repeat(persons, 6 * per_activity)
    y = np.tile(np.repeat(np.arange(6), per_activity), len(persons))
    x = np.random.default_rng(0).normal(3, 2, (len(y), 128, 6)).astype(np.float32)
    np.savez(folder / "windows.npz", **({"x": x, "y": y, "user": user} | changes))
    return x, y, user


def test_windows_are_split_by_time_and_person(tmp_path):
    x, _, _ = write_windows(tmp_path)
    source = load("hapt", root=tmp_path)
    assert source.train.x.shape == (48, 128, 6)
    assert source.test.x.shape == (12, 128, 6)
    assert source.group_names == ("person2", "person7")
    assert np.bincount(source.groups).tolist() == [24, 24]
    assert torch.bincount(source.test.y).tolist() == [2] * 6
    kept = x[np.arange(60) % 5 < 4]  # the last of five is for testing
    wanted = (kept - kept.mean(axis=(0, 1))) / kept.std(axis=(0, 1))
    assert torch.allclose(source.train.x, torch.from_numpy(wanted), atol=1e-6)
    parts = Natural().split(source.train.y.numpy(), 2, np.random.default_rng(0), source.groups)
    assert federate(source, None, parts).samples(1) == 24


def test_windows_are_cut_from_the_official_recordings(tmp_path):
    raw = tmp_path / "hapt" / "RawData"
    raw.mkdir(parents=True)
    readings = np.arange(900 * 3).reshape(900, 3)
    for sensor, shift in (("acc", 0), ("gyro", 10_000)):
        np.savetxt(raw / f"{sensor}_exp01_user03.txt", readings + shift)
    # five whole windows with a hop of 64; a transition; one that is too short
    (raw / "labels.txt").write_text("1 3 5 101 490\n1 3 7 491 700\n1 3 1 701 800\n")
    source = load("hapt", root=tmp_path)
    assert (len(source.train), len(source.test)) == (4, 1)
    assert source.train.y.tolist() == [4] * 4
    x, _, person = cut_windows(raw)
    assert person.tolist() == [3] * 5
    assert x[1, 0].tolist() == [*readings[164], *(readings[164] + 10_000)]  # line 101 is reading 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((60, 100, 6))}, r"x \(60, 100, 6\), y"),
        ({"y": np.full(60, 6)}, "activities 0 to 5"),
        ({"y": np.zeros(59)}, r"y \(59,\)"),
        ({"x": np.full((60, 128, 6), np.nan)}, "readings must be finite"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, changes, message):
    write_windows(tmp_path, **changes)
    with pytest.raises(UsageError, match=message):
        load("hapt", root=tmp_path)


def test_broken_and_missing_files(tmp_path):
    with pytest.raises(UsageError, match=r"put windows.npz or the folder RawData there"):
        load("hapt", root=tmp_path)
    (tmp_path / "hapt").mkdir()
    (tmp_path / "hapt" / "windows.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(UsageError, match=r"no arrays x, y and user can be read"):
        load("hapt", root=tmp_path)
    (tmp_path / "hapt" / "windows.npz").unlink()
    raw = tmp_path / "hapt" / "RawData"
    raw.mkdir()
    (raw / "labels.txt").write_text("1 3 5 101\n")
    with pytest.raises(UsageError, match=r"labels.txt: 4 columns are not 5"):
        load("hapt", root=tmp_path)
    (raw / "labels.txt").write_text("1 3 5 101 490\n")
    with pytest.raises(UsageError, match=r"acc_exp01_user03.txt: cannot be read"):
        load("hapt", root=tmp_path)


def test_windows_that_unpack_to_more_than_any_are_refused_before_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.data.hapt.MOST_DATASET", 10_000)
    write_windows(tmp_path)
    with pytest.raises(UsageError, match="more than the 10000 bytes allowed"):
        load("hapt", root=tmp_path)


def test_an_array_of_more_values_than_there_is_memory_for(tmp_path):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    array = b"\x93NUMPY\x01\x00" + len(header + b"\n").to_bytes(2, "little") + header + b"\n"
    (tmp_path / "hapt").mkdir()
    with zipfile.ZipFile(tmp_path / "hapt" / "windows.npz", "w") as file:
        file.writestr("x.npy", array)
    with pytest.raises(UsageError, match="no arrays x, y and user"):
        load("hapt", root=tmp_path)


def test_activities_that_overlap_are_refused_before_their_windows_fill_the_memory(tmp_path):
    raw = tmp_path / "hapt" / "RawData"
    raw.mkdir(parents=True)
    (raw / "labels.txt").write_text("1 3 5 1 640\n" * 1000)
    for sensor in ("acc", "gyro"):
        (raw / f"{sensor}_exp01_user03.txt").write_text("1 2 3\n" * 640)
    with pytest.raises(UsageError, match="its activities overlap"):
        load("hapt", root=tmp_path)


def test_real_windows():
    if not (data_root() / "hapt").is_dir():
        pytest.skip("hapt is not on this machine")
    source = load("hapt")
    assert len(source.group_names) == 30
    assert (len(source.train), len(source.test)) == (8094, 1923)
