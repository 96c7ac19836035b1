from pathlib import Path

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import data_root, load
from offbeat.data.heart_disease import FILES, HOSPITALS, read_hospital

SICK = "63.0,1.0,4.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,2"
WELL = "41,0,2,130,204,0,0,172,0,1.4,?,?,?,0"
MISSING = "50,1,3,?,233,0,1,150,0,2.3,3,0,6,1"


def write_hospitals(root: Path, rows: int = 10) -> Path:
    """`rows` sick and as many well people per hospital, told apart by their age, and one incomplete row."""
    folder = root / "heart_disease"
    folder.mkdir()
    for hospital, file in enumerate(FILES):
        lines = [MISSING]
        for i in range(rows):
            age = 100 * hospital + i
            lines += [SICK.replace("63.0", str(age), 1), WELL.replace("41", str(age), 1)]
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def test_features_of_a_row(tmp_path):
    path = tmp_path / "processed.va.data"
    path.write_text(f"{SICK}\n{MISSING}\n\n{WELL}\n")
    x, y = read_hospital(path)
    assert y.tolist() == [1, 0]
    #      age sex bps  chol fbs max ang peak | cp 2 3 4 | ecg 1 2
    assert x[0].tolist() == [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 1, 0, 1]
    assert x[1].tolist() == [41, 0, 130, 204, 0, 172, 0, 1.4, 1, 0, 0, 0, 0]


def test_split_groups_and_scaling(tmp_path):
    write_hospitals(tmp_path)
    source = load("heart_disease", root=tmp_path)
    assert source.group_names == HOSPITALS
    assert source.train.classes == 2
    assert len(source.train) == 4 * 13  # 66 % of 20, rounded down
    assert len(source.test) == 4 * 7
    assert np.bincount(source.groups).tolist() == [13] * 4
    for hospital in range(4):
        counts = torch.bincount(source.train.y[torch.from_numpy(source.groups == hospital)]).tolist()
        assert sorted(counts) == [6, 7]
    assert torch.allclose(source.train.x.mean(dim=0), torch.zeros(13), atol=1e-6)
    deviations = source.train.x.std(dim=0, correction=0)
    assert all(abs(d - 1) < 1e-5 or d == 0 for d in deviations.tolist())
    again = load("heart_disease", root=tmp_path, seed=5)
    assert torch.equal(source.train.x, again.train.x)


def test_subsample_keeps_groups_aligned(tmp_path):
    write_hospitals(tmp_path)
    whole = load("heart_disease", root=tmp_path)
    part = load("heart_disease", root=tmp_path, samples=17, test_samples=3, seed=1)
    assert len(part.train) == len(part.groups) == 17
    assert len(part.test) == 3
    for row, group in zip(part.train.x, part.groups, strict=True):
        (matches,) = torch.where((whole.train.x == row).all(dim=1))
        assert whole.groups[int(matches[0])] == group


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "line 2: 3 columns are not the 14"),
        (SICK.replace("145.0", "high"), "line 2: column 4 is 'high', not a number"),
        (SICK.replace("145.0", "nan"), "column 4 is 'nan'"),
        (SICK.replace("1.0,4.0", "1.0,5.0"), r"column 3 is '5.0', not one of \(1, 2, 3, 4\)"),
    ],
)
def test_lines_that_are_not_uci(tmp_path, line, message):
    folder = write_hospitals(tmp_path)
    (folder / FILES[1]).write_text(f"{WELL}\n{line}\n")
    with pytest.raises(UsageError, match=message) as caught:
        load("heart_disease", root=tmp_path)
    assert FILES[1] in str(caught.value)


def test_no_complete_row(tmp_path):
    folder = write_hospitals(tmp_path)
    (folder / FILES[2]).write_text(MISSING + "\n")
    with pytest.raises(UsageError, match="0 complete rows"):
        load("heart_disease", root=tmp_path)


def test_too_large(tmp_path):
    folder = write_hospitals(tmp_path)
    (folder / FILES[2]).write_text(WELL * 40_000)
    with pytest.raises(UsageError, match="put the right file there"):
        load("heart_disease", root=tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UsageError) as caught:
        load("heart_disease", root=tmp_path)
    assert all(file in str(caught.value) for file in FILES)
    assert "\n" not in str(caught.value)


def test_real_files():
    folder = data_root() / "heart_disease"
    if not all((folder / file).is_file() for file in FILES):
        pytest.skip("heart_disease is not on this machine")
    assert [len(read_hospital(folder / file)[1]) for file in FILES] == [303, 261, 46, 130]
    source = load("heart_disease")
    assert np.bincount(source.groups).tolist() == [199, 172, 30, 85]  # FLamby's table
    assert source.train.x.shape == (486, 13)
    assert source.test.x.shape == (254, 13)
