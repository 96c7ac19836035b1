"""The systemd units: their command lines are Offbeat's, and the sandbox leaves what these need."""

import shlex
from pathlib import Path

import pytest

from tests.deploy.command_lines import DEPLOY, parse

UNITS = DEPLOY / "systemd"
KINDS = {
    "serve": "offbeat-serve@.service", "site": "offbeat-site@.service", "helper": "offbeat-helper@.service",
}  # fmt: skip


def service(kind: str) -> dict[str, str]:
    """The section [Service] of a unit; of a key that is repeated, the values joined by a space."""
    section = (UNITS / KINDS[kind]).read_text().split("[Service]\n")[1].split("\n[")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key] = f"{found[key]} {value}" if key in found else value
    return found


def settings(kind: str) -> dict[str, str]:
    """The variables of the example of a unit's settings."""
    lines = (UNITS / f"{kind}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_of_a_unit_with_its_example_of_settings_is_one_of_offbeat(kind: str):
    words = service(kind)["ExecStart"].replace("%i", "heart")
    for name, value in settings(kind).items():
        words = words.replace(f"${name}", value)
    program, *rest = shlex.split(words)
    assert program.endswith("/offbeat")
    given = parse(rest)
    assert Path(given["state"]) == Path("/var/lib") / service(kind)["StateDirectory"].replace("%i", "heart")
    assert service(kind)["EnvironmentFile"] == f"/etc/offbeat/{kind}/%i.env"


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_waits_for_ready_and_has_a_watchdog(kind: str):
    unit = service(kind)
    assert unit["Type"] == "notify"
    assert unit["NotifyAccess"] == "main"
    assert unit["WatchdogSec"] == "2min"
    assert unit["RestartPreventExitStatus"] == "2"  # wrong usage


@pytest.mark.parametrize("kind", KINDS)
def test_the_sandbox_of_a_unit(kind: str):
    unit = service(kind)
    assert unit["ProtectSystem"] == "strict"
    assert unit["User"] == "offbeat"
    assert unit["CapabilityBoundingSet"] == ""
    assert unit["SystemCallFilter"] == "@system-service ~@privileged @resources"
    assert unit["LimitCORE"] == "0"


def test_the_backup_of_a_run_is_one_of_offbeat_and_has_its_timer():
    section = (UNITS / "offbeat-backup@.service").read_text()
    lines = dict(line.split("=", 1) for line in section.splitlines() if "=" in line and line[0] != "#")
    program, *rest = shlex.split(lines["ExecStart"].replace("%i", "heart"))
    given = parse(rest)
    assert program == "/opt/offbeat/bin/offbeat"
    assert str(given["directory"]) == "/var/lib/offbeat/heart"
    assert str(given["target"]) == f"{lines['ReadWritePaths']}/heart"
    assert (given["keep"], given["every"]) == (24, None)
    assert lines["User"] == service("serve")["User"]
    assert lines["CapabilityBoundingSet"] == ""
    assert (UNITS / "offbeat-backup@.timer").read_text().count("OnCalendar=") == 1


def test_both_units_run_as_the_user_that_is_made():
    made = [line.split() for line in (UNITS / "offbeat.conf").read_text().splitlines() if line[0] != "#"]
    assert [words[:2] for words in made] == [["u", "offbeat"]]
