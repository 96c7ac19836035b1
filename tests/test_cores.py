"""The cores of a process: its affinity mask, and the quotas of control groups of both versions."""

import os
from pathlib import Path

import pytest

from offbeat import cores
from offbeat.cli.executor_options import count_of
from offbeat.cores import cpu_quota, usable_cores


def system(root: Path, groups: str, **files: str) -> Path:
    """A file system with the control groups of a process; `files` are below sys/fs/cgroup."""
    texts = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """A folder of an earlier test may have had this one's name."""
    cpu_quota.cache_clear()


V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/slice/job\n", {"slice/job/cpu.max": "max 100000", "slice/cpu.max": "50000 100000"}, 0.5),
        ("0::/slice/job\n", {"slice/job/cpu.max": "300000 100000", "cpu.max": "400000 100000"}, 3.0),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "no number"}, None),
        (
            V1,
            {
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            1.5,
        ),
        # In a container, the group is at the top.
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1.5),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("5:memory:/docker/abc\n", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_a_quota_is_that_of_the_narrowest_group(groups, files, quota, tmp_path):
    assert cpu_quota(system(tmp_path, groups, **files)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("given", "wanted"), [("150000", 2), ("1000", 1), ("100000000", 3), ("max", 3)])
def test_auto_is_no_more_than_mask_and_quota_allow(given, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "_ROOT", system(tmp_path, "0::/\n", **{"cpu.max": f"{given} 100000"}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 7}, raising=False)
    assert usable_cores() == count_of("--workers", "auto") == wanted
