"""The chart, read without helm: its command lines, the sandbox of its pods, its probes, its ports."""

import re
import subprocess
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
import yaml

from offbeat.cli.join import make_policy
from offbeat.net.monitor.http import HEALTHY, READY
from offbeat.recipes.load import load_recipe
from tests.deploy.command_lines import DEPLOY, parse

CHART = DEPLOY / "helm/offbeat"
POD = (CHART / "templates/statefulset.yaml").read_text()
VALUE = re.compile(r"\{\{ \.Values\.([\w.]+)[^}]*\}\}")
BRANCHES = re.compile(
    r'^ *args:\n *\{\{- if eq \.Values\.role "server" \}\}\n(.*?)'
    r" *\{\{- else \}\}\n(.*?) *\{\{- end \}\}\n(.*?) *\{\{- with",
    re.MULTILINE | re.DOTALL,
)
"""The arguments of a server, of a site, and of both."""


def merged(below: Any, above: Any) -> Any:
    """Values of the chart with those of a file above them."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def values(role: str) -> dict[str, Any]:
    files = ("values.yaml", f"values-{role}.yaml")
    return dict(reduce(merged, (yaml.safe_load((CHART / file).read_text()) for file in files)))


def command_line(role: str) -> list[str]:
    """The arguments of a role's container, with the values in their places."""
    found = BRANCHES.search(POD)
    assert found is not None
    own = found[1] if role == "server" else found[2]
    given = values(role)

    def value(match: re.Match[str]) -> str:
        return str(reduce(lambda node, key: node[key], match[1].split("."), given))

    return [*yaml.safe_load(VALUE.sub(value, own + found[3])), *given["options"]]


@pytest.mark.parametrize("role", ["server", "site"])
def test_the_command_line_is_one_of_offbeat(role: str):
    given = parse(list(map(str, command_line(role))))
    assert str(given["state"]).startswith("/state/")
    files = {key: str(value) for key, value in given.items() if str(value).startswith("/secrets/")}
    assert len(files) == (3 if role == "server" else 0)


def test_a_kit_is_copied_once_and_again_when_the_secret_has_another(tmp_path):
    """The kit in the volume has tokens that were renewed: a pod that starts again must keep it."""
    (script,) = re.findall(r"- >-\n((?: {14}.*\n)+)", POD)
    script = script.replace("/secrets", f"{tmp_path}/secrets").replace("/state", f"{tmp_path}/state")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "state").mkdir()
    given, used = tmp_path / "secrets/site.kit", tmp_path / "state/site.kit"
    assert str(parse(list(map(str, command_line("site"))))["target"]) == "/state/site.kit"

    def start() -> str:
        subprocess.run(["sh", "-c", " ".join(script.split())], check=True)
        return used.read_text()

    given.write_text("first")
    assert start() == "first"
    assert used.stat().st_mode & 0o777 == 0o600
    used.write_text("renewed")
    assert start() == "renewed"
    given.write_text("second")
    assert start() == "second"


def test_the_example_of_a_recipe_is_one(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(values("server")["files"]["recipe.yaml"])
    assert load_recipe(str(file)).clients == values("server")["server"]["sites"]


def test_the_example_of_a_policy_is_one(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(values("site")["files"]["policy.yaml"])
    policy = make_policy(file, None)
    assert policy is not None
    assert policy.min_steps == 2


def test_what_is_probed_is_served_at_the_page():
    probes = re.findall(r"(\w+)Probe: \{httpGet: \{path: ([^,]+), port: (\w+), scheme: (\w+)\}", POD)
    assert {name: path for name, path, *_ in probes} == {
        "startup": HEALTHY,
        "liveness": HEALTHY,
        "readiness": READY,
    }
    assert {(port, scheme) for *_, port, scheme in probes} == {("page", "HTTPS")}
    ports = dict(re.findall(r"\{name: (\w+), containerPort: (\d+)\}", POD))
    given = parse(list(map(str, command_line("server"))))
    assert given["dashboard"].rpartition(":")[2] == ports["page"]
    assert given["listen"].rpartition(":")[2] == ports["sites"]


def test_the_pods_are_closed():
    assert "runAsNonRoot: true" in POD
    assert "seccompProfile: {type: RuntimeDefault}" in POD
    assert "automountServiceAccountToken: false" in POD
    containers = len(re.findall(r"^ *image: ", POD, re.MULTILINE))
    for rule in (
        "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false",
        "capabilities: {drop: [ALL]}",
    ):
        assert POD.count(rule) == containers


def test_the_backup_is_of_the_servers_run_and_its_pod_is_closed():
    job = (CHART / "templates/backup.yaml").read_text()
    (words,) = re.findall(r"args:\n((?: +- .*\n)+)", job)
    line = [
        VALUE.sub(str(values("server")["backup"]["keep"]), word.strip("- ")) for word in words.splitlines()
    ]
    given = parse([line[0], *line[1:3], "--" + line[3]])
    assert str(given["directory"]) == str(parse(list(map(str, command_line("server"))))["state"])
    assert (str(given["target"]), given["keep"]) == ("/backup/run", 24)
    for rule in (
        "runAsNonRoot: true",
        "seccompProfile: {type: RuntimeDefault}",
        "automountServiceAccountToken: false",
        "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false",
        "capabilities: {drop: [ALL]}",
    ):
        assert job.count(rule) == 1
    # Its pods are no server's: neither the Service nor the StatefulSet may take them for one.
    assert job.count('"offbeat.labels"') == 1
    assert '"offbeat.labels" . | nindent 22' in job  # where it must run


def test_of_a_run_there_is_one_pod_at_a_time():
    assert "kind: StatefulSet" in POD
    assert "replicas: 1" in POD


def test_the_policy_of_the_network_opens_the_ports_of_the_container():
    policy = (CHART / "templates/network.yaml").read_text()
    ports = set(re.findall(r"containerPort: (\d+)", POD))
    assert ports == {"7117", "8443"}
    assert ports | {"53"} == set(re.findall(r"port: (\d+)", policy))


def test_every_value_that_a_template_names_is_there():
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    for template in (CHART / "templates").iterdir():
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            reduce(lambda node, key: node[key], path.split("."), given)
