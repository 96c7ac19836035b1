"""The steps that commit a version of the documentation to gh-pages, run in a clone with one page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("mike")
ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(
    each for each in os.environ["PATH"].split(os.pathsep) if each != str(Path(sys.prefix) / "bin")
)


def called(clone: Path, *command: str, **environment: str) -> str:
    """What a command in a clone prints, without the programs of this environment on the path."""
    words = {"PATH": PATH, "GIT_CONFIG_GLOBAL": os.devnull, "NO_MKDOCS_2_WARNING": "1", **environment}
    done = subprocess.run(
        command, cwd=clone, env={**os.environ, **words}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the Makefile, one page and this environment as its `.venv`; its origin is beside it."""
    made = tmp_path / "clone"
    (made / "docs").mkdir(parents=True)
    (made / "docs" / "index.md").write_text("# One page\n")
    (made / "mkdocs.yml").write_text("site_name: One page\nplugins: [mike]\n")
    (made / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"), encoding="utf-8")
    (made / ".gitignore").write_text(".venv\nsite\n")
    (made / ".venv").symlink_to(sys.prefix)
    called(tmp_path, "git", "init", "--quiet", "--bare", "origin")
    called(made, "git", "init", "--quiet", "--initial-branch", "main")
    for name, value in (("user.name", "someone"), ("user.email", "someone@example.org")):
        called(made, "git", "config", name, value)
    called(made, "git", "remote", "add", "origin", str(tmp_path / "origin"))
    called(made, "git", "add", ".")
    called(made, "git", "commit", "--quiet", "--message", "Begin with one page")
    return made


def published(repository: Path) -> dict[str, list[str]]:
    """The aliases of each version on gh-pages."""
    listed = json.loads(called(repository, "git", "show", "gh-pages:versions.json"))
    return {each["version"]: each["aliases"] for each in listed}


def test_make_commits_a_version(clone: Path) -> None:
    called(clone, "make", "--old-file", ".venv/installed", "docs-version", "VERSION=0.3.1", "ALIAS=latest")
    assert published(clone) == {"0.3.1": ["latest"]}
    assert "One page" in called(clone, "git", "show", "gh-pages:0.3.1/index.html")


def test_the_workflow_publishes_tags_and_main(clone: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text("utf-8"))
    scripts = [step["run"] for step in workflow["jobs"]["deploy"]["steps"] if "run" in step]
    assert scripts.pop(0) == "make env"
    for kind, name in (("tag", "v0.3.1"), ("branch", "main")):
        added = tmp_path / f"path-of-{kind}"
        added.touch()
        for script in scripts:
            called(
                clone, "bash", "-e", "-c", script,
                PATH=os.pathsep.join([*added.read_text().split(), PATH]),
                GITHUB_PATH=str(added), GITHUB_REF_TYPE=kind, GITHUB_REF_NAME=name,
            )  # fmt: skip
        called(
            clone, "git", "branch", "--delete", "--force", "gh-pages"
        )  # each run has a checkout of its own
    origin = tmp_path / "origin"
    assert published(origin) == {"0.3": ["latest"], "dev": []}
    assert "latest" in called(origin, "git", "show", "gh-pages:index.html")
