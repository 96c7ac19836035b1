"""`offbeat helper`: processes of their own, with tokens, to the end of a run."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from offbeat.runs.record import read_run
from offbeat.secure.helper_file import HelperFile, TaskRelease
from tests.forks import OFFBEAT, Fork

RECIPE: dict[str, Any] = {
    "clients": 3,
    "data": {"dataset": "digits", "samples": 150, "test_samples": 60},
    "model": "logistic",
    "training": {"optimizer": "sgd", "lr": 0.1, "batch_size": 20},
    "algorithm": {"name": "fedbuff", "size": 3, "steps": 2},
    "until": {"versions": 4},
    "evaluate": {"versions": 2},
    "privacy": {"clip": 1.0, "secure": {"helpers": ["anna", "bert", "site-1-helper"]}},
}


MORE = {"samples_unit": 50, "noise": {"multiplier": 4, "bands": 2, "budget": {"delta": 0.01}}}


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{}, MORE], ids=["sums", "sums with noise"])
def test_a_secure_run_from_the_command_line(more: dict[str, Any], tmp_path: Path) -> None:
    recipe = {**RECIPE, "privacy": {**RECIPE["privacy"], **more}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    (tmp_path / "policy.yaml").write_text("samples_unit: 50\nlabels: false\n", encoding="utf-8")
    tokens = tmp_path / "tokens.json"
    names = ("anna", "bert", "site-1-helper", "site-1", "site-2", "site-3")
    for name in names:
        enrolled = Fork(OFFBEAT, "enrol", name, "--tokens", tokens).communicate()[0]
        (tmp_path / f"{name}.token").write_text(enrolled, encoding="utf-8")
    state = tmp_path / "run"
    server = Fork(
        OFFBEAT, "serve", tmp_path / "recipe.yaml", "--state", state, "--listen", "127.0.0.1:0",
        "--tokens", tokens, "--set", "server.lease=60",
    )  # fmt: skip
    address = told_address(state / "server.json")
    started = [
        Fork(OFFBEAT, "helper", address, "--name", name, "--state", tmp_path / name, *token(tmp_path, name))
        for name in ("anna", "bert", "site-1-helper")
    ]
    for k in (1, 2, 3):
        words = (address, "--data", f"digits:{k}/3", "--state", tmp_path / f"s{k}")
        words = (*words, "--policy", tmp_path / "policy.yaml")
        started.append(Fork(OFFBEAT, "join", *words, *token(tmp_path, f"site-{k}")))
    try:
        assert server.wait(300) == 0
        assert [process.wait(60) for process in started] == [0] * 6
    finally:
        for process in (server, *started):
            process.kill()
            process.communicate()
    assert "identical" in Fork(OFFBEAT, "replay", state).communicate()[0]
    assert "helpers: anna, bert, site-1-helper" in Fork(OFFBEAT, "status", state).communicate()[0]
    joined = [row["samples"] for row in read_run(state).entries("joined")]
    assert joined == [500, 500, 500]  # of 479
    released = read_run(state).entries("released")
    assert released
    assert not any(row["reason"] for row in released)
    assert all(("epsilon" in row) == bool(more) for row in read_run(state).entries("aggregate"))
    for helper in ("anna", "bert", "site-1-helper"):
        assert (tmp_path / helper / "helper.db").stat().st_mode & 0o777 == 0o600


def token(directory: Path, name: str) -> tuple[object, ...]:
    return "--set", f"access.token_file={directory / name}.token"


def told_address(file: Path) -> str:
    while not file.exists():
        time.sleep(0.05)
    while not (text := file.read_text(encoding="utf-8")):
        time.sleep(0.05)
    return str(json.loads(text)["address"])


def test_a_damaged_file_ends_a_helper_in_one_line(tmp_path: Path) -> None:
    """Before it connects."""
    with HelperFile(tmp_path / "helper.db") as file:
        file.add([81], TaskRelease(12, b"m" * 32))
    octets = (tmp_path / "helper.db").read_bytes()
    (tmp_path / "helper.db").write_bytes(octets.replace(b"m" * 32, b"n" + b"m" * 31))
    words = ("127.0.0.1:1", "--name", "anna", "--state", tmp_path, "--set", "access.give_up_after=1")
    process = Fork(OFFBEAT, "helper", *words)
    printed = "".join(process.communicate())
    assert process.wait(60) == 1
    assert printed.count("\n") == 1
    assert "helper.db cannot be read (table released, task 64 to 95, does not match its checksum)" in printed
