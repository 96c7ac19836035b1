"""The check of the distributions' files: what it finds in a wheel and in an sdist."""

import io
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "scripts" / "check_wheel.py")


def test_what_is_not_of_the_package_is_found_in_an_sdist(script: ModuleType, tmp_path: Path) -> None:
    names = ["PKG-INFO", "src/offbeat/core/engine.py", "src/offbeat.egg-info/PKG-INFO", "tests/test_one.py"]
    with tarfile.open(tmp_path / "offbeat-0.1.0.tar.gz", "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"offbeat-0.1.0/{name}"), io.BytesIO())
    assert script.wrong_contents(tmp_path) == ["not of offbeat, and in its sdist: tests/test_one.py"]


def test_what_a_wheel_lacks_and_what_it_has_besides_is_found(script: ModuleType, tmp_path: Path) -> None:
    source = script.PACKAGES["offbeat_papers"] / "src"
    files = sorted(
        path.relative_to(source).as_posix()
        for path in (source / "offbeat_papers").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    with zipfile.ZipFile(tmp_path / "offbeat_papers-0.1.0-py3-none-any.whl", "w") as archive:
        for name in [*files[1:], "offbeat/other.py", "offbeat_papers-0.1.0.dist-info/METADATA"]:
            archive.writestr(name, "")
    assert script.wrong_contents(tmp_path) == [
        f"not in the wheel of offbeat_papers: {files[0]}",
        "no file of offbeat_papers, and in its wheel: offbeat/other.py",
    ]
