"""What a release repeats in several files agrees."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    citation = yaml.safe_load(read("CITATION.cff"))
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]


def test_the_papers_have_the_version_of_the_package_and_pin_it() -> None:
    package, papers = (
        tomllib.loads(read(f"{folder}/pyproject.toml"))["project"] for folder in (".", "papers")
    )
    version = package["version"]
    assert papers["version"] == version
    extras = package["optional-dependencies"].values()
    assert not [each for extra in extras for each in extra if "papers" in each], "an index may lack it"
    assert [each for each in papers["dependencies"] if "offbeat" in each] == [f"offbeat[digits]=={version}"]
    assert papers["license"] == package["license"]
    assert papers["authors"] == package["authors"]
    assert read("papers/LICENSE") == read("LICENSE")


def test_the_commit_hooks_have_the_pinned_formatter() -> None:
    hooks = read(".pre-commit-config.yaml")
    (pin,) = re.findall(r"^ruff==\S+", read("constraints.txt"), re.MULTILINE)
    assert set(re.findall(r"ruff==[\w.]+", hooks)) == {pin}


def test_the_workflows_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    ci = read(".github/workflows/ci.yml")
    lines = "\n".join([ci, read(".github/workflows/release.yml"), read(".ci/run")])
    made = {word for line in re.findall(r"\bmake ([a-z -]+)$", lines, re.MULTILINE) for word in line.split()}
    made |= set(re.findall(r"\bmake ([a-z-]+) \w+=", lines))
    made |= set(yaml.safe_load(ci)["jobs"]["thorough"]["strategy"]["matrix"]["target"])
    assert {"check", "test"} <= made <= targets


GRANTED = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("release.yml", "notes"): {"contents": "write"},
    ("docs.yml", "deploy"): {"contents": "write"},
    ("images.yml", "image"): {"contents": "read", "packages": "write"},
}
"""What a job may do beyond reading, and no other job."""


def workflows() -> dict[str, Any]:
    folder = ROOT / ".github/workflows"
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yml"))}


def test_workflows_read_only_unless_they_publish() -> None:
    granted = {}
    for name, workflow in workflows().items():
        assert workflow["permissions"] == {"contents": "read"}
        for job, steps in workflow["jobs"].items():
            if "permissions" in steps:
                granted[name, job] = steps["permissions"]
    assert granted == GRANTED


def test_a_job_that_does_not_push_keeps_no_credentials() -> None:
    for name, workflow in workflows().items():
        for job, steps in workflow["jobs"].items():
            for step in steps["steps"]:
                if step.get("uses", "").startswith("actions/checkout@") and name != "docs.yml":
                    assert step["with"]["persist-credentials"] is False, f"{name}, {job}"


def test_every_action_has_a_version() -> None:
    for name in workflows():
        used = re.findall(r"uses: (\S+)", read(f".github/workflows/{name}"))
        assert used
        assert [
            action for action in used if not re.fullmatch(r"[\w./-]+@(v\d+|release/v1|[0-9a-f]{40})", action)
        ] == []


def test_no_step_runs_what_others_can_write() -> None:
    """An expression in a script is replaced before a shell reads it: a branch's name could be a command."""
    for name, workflow in workflows().items():
        for job, steps in workflow["jobs"].items():
            for step in steps["steps"]:
                found = re.findall(r"\$\{\{ *(\S+) *\}\}", step.get("run", ""))
                assert [each for each in found if not each.startswith("matrix.")] == [], f"{name}, {job}"
