"""The hook of commit messages, called by git itself as pre-commit calls it."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_commit_message.py"
SUBJECT = "Refuse an empty list of sites"
WHY = "The server waited for nobody."

problem: Callable[[str], str | None] = runpy.run_path(str(SCRIPT))["problem"]


@pytest.mark.parametrize(
    "message",
    [
        f"{SUBJECT}\n\n{WHY}",
        f"{SUBJECT}\n\n{WHY}\n\nSigned-off-by: A Person <a@example.org>",
        f"\n{SUBJECT}\n\nWhy: {WHY}\n",
        "Mend a typo",
        "Correct the spelling of lease",
        "Mend two typos\n\nSigned-off-by: A Person <a@example.org>",
        "fixup! Lines",
        "Merge branch 'serve'",
        'Revert "Lines"\n\nThis reverts commit 4361d5508a.',
    ],
)
def test_a_message_that_says_what_and_why_passes(message: str) -> None:
    assert problem(message) is None


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("", "fewer than 3 words"),
        ("Lines", "fewer than 3 words"),
        (f"Lines\n\n{WHY}", "fewer than 3 words"),
        ("Short lines - .", "fewer than 3 words"),
        ("Typo", "fewer than 3 words"),
        (f"Texts of 40\n\n{WHY}", "fewer than 3 words"),
        (SUBJECT, "has no body"),
        (f"{SUBJECT}\n\n", "has no body"),
        (f"{SUBJECT}\n\n.", "has no body"),
        (f"{SUBJECT}\n\nSee above", "has no body"),
        (f"{SUBJECT}\n\n{SUBJECT}", "has no body"),
        (f"{SUBJECT}\n\nSigned-off-by: A Person <a@example.org>", "has no body"),
        (f"{SUBJECT}\n{WHY}", "is not empty"),
        ('Revert "Lines"', "has no body"),
        ("Merge what two helpers do", "has no body"),
    ],
)
def test_a_message_that_does_not_is_told_in_one_line(message: str, part: str) -> None:
    found = problem(message)
    assert found is not None
    assert part in found
    assert "\n" not in found


def test_git_refuses_and_takes_commits_with_the_hook(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    people = {f"GIT_{who}_{what}": "a@b.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        given = ["git", "-C", str(tmp_path), *words]
        return subprocess.run(given, capture_output=True, text=True, check=False, env=clean | people | more)

    assert git("init", "--quiet").returncode == 0
    hook = tmp_path / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "$1"\n')
    hook.chmod(0o755)
    commit = ("commit", "--quiet", "--allow-empty")

    refused = git(*commit, "-m", "Lines")
    assert refused.returncode == 1
    assert refused.stderr.startswith("commit message: the subject 'Lines' has fewer than 3 words")
    assert git("log").returncode != 0, "there is no commit"
    assert git(*commit, "-m", SUBJECT, "-m", WHY).returncode == 0

    (tmp_path / "file").write_text("words of the change that git shows to its author\n")
    git("add", "file")
    editor = f'printf \'{SUBJECT}\\n\' | cat - "$1" > "$1.new" && mv "$1.new" "$1"'
    (tmp_path / "editor").write_text(f"#!/bin/sh\n{editor}\n")
    (tmp_path / "editor").chmod(0o755)
    shown = git("commit", "--verbose", GIT_EDITOR=str(tmp_path / "editor"))
    assert shown.returncode == 1
    assert "has no body" in shown.stderr, "neither git's comments nor the shown change are a body"


def test_pre_commit_installs_the_hook_and_the_others_leave_messages_alone() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert config["default_install_hook_types"] == ["pre-commit", "commit-msg"]
    assert config["default_stages"] == ["pre-commit"]
    (hook,) = [hook for hook in config["repos"][0]["hooks"] if "stages" in hook]
    assert hook["stages"] == ["commit-msg"]
    assert hook["entry"].split() == ["python", str(SCRIPT.relative_to(ROOT))]
