"""Release notes: fragments have known kinds, and a release has them with what was unreleased."""

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "release_notes.py"))
section, split = SCRIPT["section"], SCRIPT["split"]
HEAD = "# Changelog\n\n"
OLD = "\n\nThe first.\n\n### Added\n\n- A.\n  More.\n\n### Fixed\n\n- F.\n\n"
EARLIER = "## [0.0.1] - 2025-01-01\n\n- x\n"


def test_the_kinds_are_those_of_towncrier() -> None:
    kinds = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["towncrier"]["type"]
    assert [kind["name"] for kind in kinds] == list(SCRIPT["KINDS"])
    assert [kind["directory"] for kind in kinds] == [name.lower() for name in SCRIPT["KINDS"]]


def test_each_fragment_has_a_name_a_kind_and_a_text() -> None:
    kinds = {kind.lower() for kind in SCRIPT["KINDS"]}
    for path in SCRIPT["fragments"]():
        name, kind, ending = path.name.split(".")
        assert name, path
        assert kind in kinds, f"{path.name}: a fragment is NAME.KIND.md with KIND one of {sorted(kinds)}"
        assert ending == "md"
        text = path.read_text("utf-8")
        assert text.strip(), f"{path.name} is empty"
        assert not text.startswith(("-", "#")), f"{path.name}: the release writes the list"


def test_the_changelog_has_what_is_unreleased_first() -> None:
    head, unreleased, earlier = split((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert head.startswith("# Changelog\n")
    assert head + ("## [Unreleased]" if unreleased else "") + unreleased + earlier


@pytest.mark.parametrize("earlier", ["", EARLIER])
def test_a_changelog_is_split_in_three(earlier: str) -> None:
    assert split(f"{HEAD}## [Unreleased]{OLD}{earlier}") == (HEAD, OLD, earlier)
    assert split(HEAD + earlier) == (HEAD, "", earlier)


def test_fragments_come_before_what_was_unreleased_of_their_kind() -> None:
    made = "## [0.1.0] - 2000-01-01\n\n### Added\n\n- New.\n\n### Security\n\n- S.\n"
    assert section("0.1.0", "2026-12-01", OLD, made.partition("\n")[2]) == (
        "## [0.1.0] - 2026-12-01\n\nThe first.\n\n### Added\n\n- New.\n- A.\n  More.\n\n"
        "### Fixed\n\n- F.\n\n### Security\n\n- S.\n"
    )
    assert section("1", "D", "", "\n### Fixed\n\n- F.\n") == "## [1] - D\n\n### Fixed\n\n- F.\n"


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="no known kind: Misc"):
        section("1", "D", "\n### Misc\n\n- x\n", "")


def test_the_citation_gets_the_day_once() -> None:
    before = "title: x\nversion: 0.1.0\nlicense: y\n"
    dated = "title: x\nversion: 0.1.0\ndate-released: 2026-12-01\nlicense: y\n"
    assert SCRIPT["with_date"](before, "2026-12-01") == dated
    assert SCRIPT["with_date"](dated, "2026-12-01") == dated
