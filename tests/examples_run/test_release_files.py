"""What a release repeats in several files agrees."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    citation = yaml.safe_load(read("CITATION.cff"))
    assert str(citation["version"]) == project["version"]
    assert citation["license"] == project["license"]


def test_the_papers_have_the_version_of_the_package_and_each_pins_the_other() -> None:
    package, papers = (
        tomllib.loads(read(f"{folder}/pyproject.toml"))["project"] for folder in (".", "papers")
    )
    version = package["version"]
    assert papers["version"] == version
    assert package["optional-dependencies"]["papers"] == [f"offbeat-papers=={version}"]
    assert [each for each in papers["dependencies"] if "offbeat" in each] == [f"offbeat[digits]=={version}"]
    assert papers["license"] == package["license"]
    assert read("papers/LICENSE") == read("LICENSE")


def test_the_commit_hooks_have_the_pinned_formatter() -> None:
    hooks = read(".pre-commit-config.yaml")
    (pin,) = re.findall(r"^ruff==\S+$", read("constraints.txt"), re.MULTILINE)
    assert set(re.findall(r"ruff==[\w.]+", hooks)) == {pin}


def test_the_workflows_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    ci = read(".github/workflows/ci.yml")
    lines = "\n".join([ci, read(".github/workflows/release.yml"), read(".ci/run")])
    made = {word for line in re.findall(r"\bmake ([a-z -]+)$", lines, re.MULTILINE) for word in line.split()}
    made |= set(yaml.safe_load(ci)["jobs"]["thorough"]["strategy"]["matrix"]["target"])
    assert {"check", "test"} <= made <= targets


def test_workflows_read_only_unless_they_publish() -> None:
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        granted = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
        assert granted in ({}, {"publish": {"id-token": "write"}})
