"""compose.yaml: its commands are those of Offbeat, its containers are closed, its files are there."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.command_lines import DEPLOY, parse

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = ("north", "east", "south")


def command(name: str) -> dict[str, Any]:
    return parse(shlex.split(SERVICES[name]["command"]))


def test_a_site_starts_from_a_kit_that_it_can_renew():
    for site in SITES:
        kit = Path(command(site)["target"])
        (folder,) = (mount for mount in SERVICES[site]["volumes"] if not mount.startswith(f"{site}:"))
        assert folder == f"./secrets/{site}:{kit.parent}"
        assert "secrets" not in SERVICES[site]


@pytest.mark.parametrize("name", ["server", *SITES])
def test_a_container_is_closed(name: str):
    service = SERVICES[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"][0] == f"{name}:/state"
    assert "ports" not in service


def test_the_backup_is_of_the_servers_run_and_closed():
    service, given = SERVICES["backup"], command("backup")
    assert str(given["directory"]) == str(command("server")["state"])
    assert str(given["target"]).startswith("/backup/")
    assert (given["every"], given["keep"]) == ("5m", 24)
    assert service["volumes"] == ["server:/state", "backup:/backup"]
    assert service["network_mode"] == "none"
    assert {key: service[key] for key in ("user", "read_only", "cap_drop")} == {
        key: SERVICES["server"][key] for key in ("user", "read_only", "cap_drop")
    }
    image = (DEPLOY / "container/Containerfile").read_text()
    assert "install -d -o 10001 -g 10001 -m 0700 /state /backup\n" in image  # who owns a new volume


def test_the_parties_meet():
    server = command("server")
    (alias,) = SERVICES["server"]["networks"]["default"]["aliases"]
    port = server["listen"].rpartition(":")[2]
    page = (DEPLOY.parent / "docs/operate.md").read_text()
    assert f"enrol --state {server['state']} --host {alias}" in page
    assert f"--address {alias}:{port}" in page
    assert server["sites"] == len(SITES)
    assert len({command(site)["data"] for site in SITES}) == len(SITES)
    shown = server["dashboard"].rpartition(":")[2]
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"] == [{"targets": [f"{alias}:{shown}"]}]
    targets = {secret["target"] for secret in SERVICES["prometheus"]["secrets"]}
    named = {scraped["authorization"]["credentials_file"], scraped["tls_config"]["ca_file"]}
    assert named == targets


def test_every_file_is_there_but_the_secrets():
    files = [file["file"] for file in COMPOSE["configs"].values()]
    assert [name for name in files if not (DEPLOY / name).is_file()] == []
    build = SERVICES["server"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert all(file["file"] == f"secrets/{name}" for name, file in COMPOSE["secrets"].items())
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().splitlines()
    assert "/deploy/secrets/" in ignored


def test_the_board_is_where_grafana_looks_for_boards():
    (provider,) = yaml.safe_load((DEPLOY / "grafana/boards.yaml").read_text())["providers"]
    targets = {config["source"]: config["target"] for config in SERVICES["grafana"]["configs"]}
    assert targets["run.json"] == f"{provider['options']['path']}/run.json"
    (source,) = yaml.safe_load((DEPLOY / "grafana/datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
