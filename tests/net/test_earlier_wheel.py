"""Sites and servers of this version with those of an earlier wheel, and a site of a much later version.

The wheel is that of a commit, until there is a release. It is built from the history here, and runs
with the dependencies of this checkout.
"""

import json
import os
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from offbeat.runs.record import read_run

COMMIT = "b9f29fa"
ROOT = Path(__file__).parents[2]
HERE = ROOT / "src"
RECIPE = {
    "clients": 2, "data": {"dataset": "digits", "samples": 100, "test_samples": 20},
    "model": {"name": "logistic"}, "training": {"lr": 0.1, "batch_size": 20},
    "algorithm": {"name": "fedbuff", "steps": 2, "size": 2}, "until": {"versions": 5},
}  # fmt: skip
LATER = "import offbeat.version as v; v.__version__ = '0.9.0'; from offbeat.cli import main; main()"
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the earlier version's package."""
    place = tmp_path_factory.mktemp("earlier")
    packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True)
    if packed.returncode:
        pytest.skip(f"the history here does not have {COMMIT}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
        tar.extractall(place / "source", filter="data")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    built = subprocess.run([*build, "-w", place, place / "source"], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the wheel cannot be built here: {built.stderr.strip()[-300:]}")
    with ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(place / "package")
    where = "import offbeat; print(offbeat.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        env=environment(place / "package"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(place))
    return place / "package"


def environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}


def begin(
    package: Path, log: Path, *words: object, script: tuple[str, ...] = ("-m", "offbeat.cli")
) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *script, *map(str, words)], env=environment(package), stdout=out, stderr=out,
            cwd=log.parent,
        )  # fmt: skip


def address_of(state: Path, server: subprocess.Popen[bytes]) -> str:
    while server.poll() is None:
        if (state / "server.json").exists() and (text := (state / "server.json").read_text(encoding="utf-8")):
            return str(json.loads(text)["address"])
        time.sleep(0.1)
    raise AssertionError("the server has ended")


def recipe(place: Path) -> Path:
    path = place / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return path


@pytest.mark.parametrize("new", ["server", "site"])
def test_either_end_is_the_earlier_one(earlier: Path, tmp_path: Path, new: str) -> None:
    serves, joins = (HERE, earlier) if new == "server" else (earlier, HERE)
    state = tmp_path / "run"
    server = begin(
        serves,
        tmp_path / "server.log",
        "serve",
        recipe(tmp_path),
        "--state",
        state,
        "--listen",
        "127.0.0.1:0",
    )
    try:
        address = address_of(state, server)
        sites = [
            begin(
                joins,
                tmp_path / f"{i}.log",
                "join",
                address,
                "--name",
                f"site-{i}",
                "--data",
                f"digits:{i + 1}/2",
            )
            for i in range(2)
        ]
        ends = [site.wait() for site in sites]
        ends.append(0 if any(ends) else server.wait())
    finally:
        server.kill()
    logs = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.log")}
    assert ends == [0, 0, 0], logs
    assert read_run(state).status == "finished"


def test_a_site_of_a_much_later_version_is_served(tmp_path: Path) -> None:
    state = tmp_path / "run"
    one = tmp_path / "recipe.yaml"
    one.write_text(yaml.safe_dump({**RECIPE, "clients": 1}), encoding="utf-8")
    server = begin(
        HERE, tmp_path / "server.log", "serve", one, "--state", state, "--listen", "127.0.0.1:0"
    )  # fmt: skip
    try:
        address = address_of(state, server)
        words = ("join", address, "--name", "site-0", "--data", "digits:1/2")
        site = begin(HERE, tmp_path / "site.log", *words, script=("-c", LATER))
        assert site.wait() == 0
        assert server.wait() == 0
    finally:
        server.kill()
        server.wait()
    said = (tmp_path / "server.log").read_text(encoding="utf-8")
    assert said.count("another version of Offbeat: the site has Offbeat 0.9.0, and this server") == 1
