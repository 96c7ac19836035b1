"""The check of a release: what it finds wrong, and what it says of itself."""

import gzip
import io
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "check_release.py"
    before = list(sys.path)
    module = load_script(path)
    sys.path[:] = before
    return module


def sdist(path: Path, mtime: int, names: list[str], owner: str) -> Path:
    with gzip.GzipFile(path, "wb", mtime=mtime) as raw, tarfile.open(fileobj=raw, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.uid = len(name), mtime, owner, mtime % 7
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_sdists_of_two_builds_get_the_same_bytes(script: ModuleType, tmp_path: Path) -> None:
    first = sdist(tmp_path / "1.tar.gz", 1_700_000_000, ["a/x", "a/y"], "me")
    second = sdist(tmp_path / "2.tar.gz", 1_700_000_009, ["a/y", "a/x"], "you")
    assert first.read_bytes() != second.read_bytes()
    for path in (first, second):
        script.without_times(path, 1_600_000_000)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert archive.getnames() == ["a/x", "a/y"]
        assert archive.extractfile("a/y").read() == b"a/y"  # type: ignore[union-attr]


def release(script: ModuleType, tmp_path: Path, version: str) -> object:
    for name in ("work", "dist"):
        (tmp_path / name).mkdir()
    return script.Release(ROOT, tmp_path / "work", tmp_path / "dist", version, script.EXAMPLE)


def test_another_version_in_a_file_is_found(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.FailedError, match=r"pyproject.toml has .*CITATION.cff has "):
        script.versions(release(script, tmp_path, "9.9.9"))


def tree(tmp_path: Path, changelog: str, *fragments: str) -> Path:
    root = tmp_path / "tree"
    (root / "changes").mkdir(parents=True)
    for name in ("README.md", *fragments):
        (root / "changes" / name).write_text("What is new.\n", "utf-8")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}", "utf-8")
    return root


def test_the_notes_are_the_section_of_the_version(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = "## 0.2.0 (2027-01-01)\n\n### Added\n\n- A.\n- B.\n\n\n## 0.1.0: what it does\n\n- C.\n"
    monkeypatch.setattr(script, "ROOT", tree(tmp_path, sections))
    made = release(script, tmp_path, "0.2.0")
    assert script.notes(made) == "2 entries; in notes.md"
    assert (tmp_path / "dist" / "notes.md").read_text("utf-8") == "### Added\n\n- A.\n- B.\n"
    first = script.Release(ROOT, tmp_path / "work", tmp_path / "dist", "0.1.0", script.EXAMPLE)
    assert script.notes(first) == "1 entries; in notes.md"


@pytest.mark.parametrize(
    ("changelog", "fragments", "found"),
    [
        ("## 0.1.0: what it does\n\n- C.\n", [], "no section 0.1, and changes/ has 0 fragments"),
        ("## 0.1 (2027-01-01)\n\n- C.\n", ["+x.added.md"], "a section 0.1, and changes/ has 1 fragments"),
    ],
)
def test_notes_that_are_not_written_are_found(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changelog: str,
    fragments: list[str],
    found: str,
) -> None:
    monkeypatch.setattr(script, "ROOT", tree(tmp_path, changelog, *fragments))
    with pytest.raises(script.FailedError, match=found):
        script.notes(release(script, tmp_path, "0.1"))


def test_a_check_whose_distributions_are_missing_is_not_done(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = release(script, tmp_path, "0.1.0")
    assert script.told("contents", script.contents, made, False)
    assert script.told("sbom", script.sbom, made, False)
    assert script.told("oldest", script.oldest, made, True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "contents   not done  the wheels are not built",
        "sbom       not done  the wheel is not installed",
        "oldest     not done  --skip",
    ]


def test_a_failed_check_is_told(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not script.told("versions", script.versions, release(script, tmp_path, "9.9.9"), False)
    assert capsys.readouterr().out.startswith("versions   FAILED    ")


@pytest.mark.parametrize(
    ("licence", "strong"),
    [
        ("GNU General Public License v3 (GPLv3)", True),
        ("AGPL-3.0-only", True),
        ("LGPL-2.1", False),
        ("GNU Lesser General Public License v2", False),
        ("MIT License", False),
    ],
)
def test_licences_that_bind_are_told_from_others(script: ModuleType, licence: str, strong: bool) -> None:
    assert bool(script.COPYLEFT.search(licence) and not script.LESSER.search(licence)) is strong


def test_what_remains_names_the_tag_and_the_address(script: ModuleType, tmp_path: Path) -> None:
    lines = "\n".join(script.remaining(release(script, tmp_path, "0.1.0")))
    assert "git tag -s v0.1.0" in lines
    assert "REPOSITORY=https://HOST/OWNER/NAME" in lines
    assert "DOI" in lines
