"""Try the files for Prometheus and Grafana with a Prometheus beside running servers.

    python deploy/try/prometheus.py

promtool checks the files. Then a server with TLS and a token is scraped as the configuration says. Of its
sites one is killed, one is revoked and one never comes. Its mirror is lost. A second server, whose own
learning rate is absurd, skips its versions; one of its sites runs twice; and it is killed. Every alert must
fire, with its times made short,
and every expression of a panel must give a series. Grafana's models read the board if
grafana-foundation-sdk is installed.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml
from federation import (
    DEPLOY,
    OFFBEAT,
    Trial,
    certificates,
    free_ports,
    get,
    lacking,
    passed,
    trial,
    wait_until,
)

FOLDER = DEPLOY / "prometheus"
BOARD = DEPLOY / "grafana/run.json"
SHORT = (("> 600", "> 5"), ("[1h]", "[12s]"), (r"for: \w+", "for: 1s"))
"""What is shortened in the rules: silence, windows and durations."""
FIRED = {
    "SiteHasNotCome",
    "SiteSilent",
    "NoNewVersion",
    "MirrorBehind",
    "CredentialShared",
    "ModelInDanger",
    "ServerDown",
    "CredentialExpires",
}
"""The alerts that the trial makes fire, which are all."""


def check_files() -> None:
    """What promtool says of the files as they are."""
    for words in (
        ("check", "config", "--syntax-only", "prometheus.yaml"),
        ("check", "rules", "rules.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ):
        subprocess.run(["promtool", *words], cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)
    passed("promtool: check config, check rules, test rules")


def check_board() -> None:
    """Read the board with Grafana's models; what they do not know is lost, and must not be there."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    except ImportError:
        print("SKIPPED Grafana's models of the board: grafana-foundation-sdk is not installed", flush=True)
        return
    register_default_plugins()
    board = json.loads(BOARD.read_text())
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    if unknown := list(lost(board, kept, "")):
        raise AssertionError(f"Grafana's models do not have: {', '.join(unknown)}")
    passed("Grafana's models of the board")


def lost(own: Any, kept: Any, path: str) -> Iterator[str]:
    """The paths of what one document has, and the other has not or has otherwise."""
    if isinstance(own, dict) and isinstance(kept, dict):
        for key, value in own.items():
            yield from lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(own, list) and isinstance(kept, list) and len(own) == len(kept):
        for number, value in enumerate(own):
            yield from lost(value, kept[number], f"{path}[{number}]")
    elif own != kept:
        yield path


def configure(folder: Path, targets: list[int]) -> Path:
    """The configuration and the rules with the trial's targets, files and times."""
    rules = (FOLDER / "rules.yaml").read_text()
    for pattern, short in SHORT:
        rules, count = re.subn(re.escape(pattern) if "[" in pattern else pattern, short, rules)
        assert count, f"rules.yaml has no {pattern} to shorten"
    (folder / "rules.yaml").write_text(rules)
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (scrape,) = config["scrape_configs"]
    scrape["authorization"]["credentials_file"] = str(folder / "page.token")
    scrape["tls_config"]["ca_file"] = str(folder / "ca.pem")
    scrape["static_configs"] = [{"targets": [f"localhost:{port}" for port in targets]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yaml"


def serve(
    here: Trial,
    name: str,
    port: int,
    page: int,
    sites: tuple[str, ...],
    *sets: str,
    mirror: Path | None = None,
) -> Path:
    """Start a server, with its page and its tokens; returns its state directory."""
    state = here.folder / name
    for site in sites:
        here.enrol(site, state)
    if (here.folder / "page.token").exists():  # Prometheus has one token for all targets
        (state / "dashboard-token").write_bytes((here.folder / "a/dashboard-token").read_bytes())
    else:
        (here.folder / "page.token").write_text(
            here.offbeat("enrol", "--dashboard", "--state", state).strip()
        )
    here.start(
        name, OFFBEAT, "serve", "digits", "--state", state, "--listen", f"localhost:{port}", "--sites", "2",
        "--dashboard", f"localhost:{page}", "--cert", "server.pem", "--key", "server.key",
        "--tokens", state / "tokens.json", *(word for key in sets for word in ("--set", key)),
        *(("--mirror", mirror) if mirror else ()),
    )  # fmt: skip
    return state


def lose(mirror: Path) -> None:
    """Lose a mirror for good: where it was, there is a file."""
    mirror.rename(mirror.with_name("lost"))
    mirror.touch()


def join(here: Trial, name: str, port: int, data: str, process: str | None = None) -> subprocess.Popen[bytes]:
    """Start a site, in a process that is named as it is where nothing else is said."""
    return here.start(
        process or name, OFFBEAT, "join", f"localhost:{port}", "--set", "access.ca=ca.pem",
        "--set", f"access.token_file={name}.token", "--data", data, "--set", "site.min_step_seconds=0.01",
    )  # fmt: skip


class Prometheus:
    """A Prometheus that runs, and what it answers."""

    def __init__(self, here: Trial, config: Path) -> None:
        (self.port,) = free_ports(1)
        here.start(
            "prometheus", "prometheus", f"--config.file={config}",
            f"--web.listen-address=127.0.0.1:{self.port}", f"--storage.tsdb.path={here.folder / 'tsdb'}",
        )  # fmt: skip

    def ask(self, expression: str) -> list[dict[str, str]]:
        """The labels of the series that an expression gives now."""
        answer = get(f"http://127.0.0.1:{self.port}/api/v1/query?{urlencode({'query': expression})}")
        return [series["metric"] for series in json.loads(answer)["data"]["result"]]

    def wait_for(self, expression: str) -> list[dict[str, str]]:
        """The same, once there is a series."""
        wait_until(expression, lambda: bool(self.ask(expression)))
        return self.ask(expression)


def panels() -> list[tuple[str, str]]:
    """The title and the expression of everything that the board asks, with its variables set."""
    board = json.loads(BOARD.read_text())
    asked = [
        (panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())
    ]
    values = {"$__rate_interval": "20s", "$instance": ".+"}
    for name, value in values.items():
        asked = [(title, expression.replace(name, value)) for title, expression in asked]
    return asked


def main() -> None:
    """Make the trial."""
    check_board()
    if lacking(("promtool", "prometheus", "openssl"), "Prometheus"):
        return
    check_files()
    with trial() as here:
        certificates(here.folder)
        port, page, other_port, other_page = free_ports(4)
        state = serve(
            here,
            "a",
            port,
            page,
            ("north", "east", "south"),
            "until={seconds: 3600}",
            "evaluate={versions: 1}",
            mirror=here.folder / "mirror",
        )
        serve(
            here, "b", other_port, other_page, ("west", "middle"), "until={seconds: 3600}",
            "algorithm={name: fedadagrad, steps: 4, server_lr: 1e6}", "model={name: logistic}",
        )  # fmt: skip
        prometheus = Prometheus(here, configure(here.folder, [page, other_page]))
        join(here, "north", port, "digits:1/2")
        join(here, "east", port, "digits:2/2")
        for number, name in enumerate(("west", "middle")):
            join(here, name, other_port, f"digits:{number + 1}/2")
        for target in (page, other_page):
            prometheus.wait_for(f'offbeat_version{{instance="localhost:{target}"}} > 2')
        prometheus.wait_for("offbeat_accuracy_ratio")
        for title, expression in panels():
            prometheus.wait_for(expression)
            print(f"  panel {title}: {len(prometheus.ask(expression))} series", flush=True)
        lose(here.folder / "mirror")
        here.kill("north")
        here.offbeat("enrol", "east", "--state", state, "--revoke")
        fires(prometheus, "SiteHasNotCome", {"site": "south"})
        fires(prometheus, "SiteSilent", {"site": "north"})
        fires(prometheus, "NoNewVersion", {"instance": f"localhost:{page}"})
        fires(prometheus, "MirrorBehind", {"instance": f"localhost:{page}"})
        fires(prometheus, "ModelInDanger", {"instance": f"localhost:{other_page}"})
        silent = prometheus.ask('ALERTS{alertname="SiteSilent", alertstate="firing"}')
        assert all(alert["site"] != "east" for alert in silent), (
            "a revoked site is silent, and that is no alert"
        )
        join(here, "west", other_port, "digits:1/2", "a copy of west")
        fires(prometheus, "CredentialShared", {"instance": f"localhost:{other_page}"})
        here.kill("b")
        fires(prometheus, "ServerDown", {"instance": f"localhost:{other_page}"})
        named = {
            rule["alert"]
            for rule in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"][0]["rules"]
        }
        assert named == FIRED, named
    passed("Prometheus: every alert has fired, every panel has series")


def fires(prometheus: Prometheus, alert: str, labels: dict[str, str]) -> None:
    """Wait until an alert fires with these labels."""
    asked = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    prometheus.wait_for(f'ALERTS{{alertname="{alert}", alertstate="firing", {asked}}}')
    print(f"  alert {alert} fires: {asked}", flush=True)


if __name__ == "__main__":
    main()
