"""A federation of real processes on this machine."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest
import yaml

from offbeat.cli.federate import _data_of_sites, _Federation, _site_name
from offbeat.core.errors import RunError, UsageError
from offbeat.recipes.load import load_recipe
from offbeat.runs.record import read_run
from tests.cli.answer import Answer
from tests.forks import OFFBEAT, Fork

SMALL = ["--set", "until={versions: 4}", "--set", "data.samples=200", "--set", "evaluate={versions: 4}"]


def test_sites_have_equal_shares_of_the_recipes_data() -> None:
    recipe = load_recipe("digits")
    assert _data_of_sites(recipe, 2, None) == [("site-1", "digits:1/2"), ("site-2", "digits:2/2")]
    assert len(_data_of_sites(recipe, None, None)) == recipe.clients


def test_each_site_may_have_its_own_data() -> None:
    recipe = load_recipe("digits")
    assert _data_of_sites(recipe, None, ["a:north", "a:south"]) == [
        ("site-1", "a:north"),
        ("site-2", "a:south"),
    ]
    with pytest.raises(UsageError, match="--sites 3 with 2 times --data: give --data once for each site"):
        _data_of_sites(recipe, 3, ["a:north", "a:south"])


def test_data_of_a_function_must_be_given_for_each_site() -> None:
    recipe = load_recipe("digits", sets=["data={dataset: 'clinics:data'}"])
    with pytest.raises(UsageError, match="the recipe's data are clinics:data: give each site's data"):
        _data_of_sites(recipe, 2, None)


def test_a_helper_cannot_have_the_name_of_a_site(offbeat: Callable[..., Answer], tmp_path: Path) -> None:
    answer = offbeat("federate", str(secure(tmp_path, "site-2")), "--sites", "3")
    expected = "offbeat: site-2 is a site here, and the recipe's helper: give the helper another name"
    assert answer.complaint() == expected


def secure(folder: Path, *helpers: str) -> Path:
    """A recipe with secure aggregation, whose helpers are these and two others."""
    recipe = folder / "secure.yaml"
    document = {
        "clients": 3,
        "data": {"dataset": "digits", "samples": 120},
        "model": "logistic",
        "algorithm": {"name": "fedbuff", "size": 3, "steps": 1},
        "until": {"versions": 2},
        "privacy": {"clip": 1.0, "least": 3, "secure": {"helpers": ["anna", "bert", *helpers]}},
    }
    recipe.write_text(yaml.safe_dump(document))
    return recipe


def test_names_of_natural_groups_become_names_of_sites() -> None:
    assert _site_name("Long Beach VA") == "long-beach-va"


# Processes that take milliseconds to start: one that stays, one that ends well, one that fails.
SCRIPT = """
import signal, sys
if sys.argv[1] == "stay":
    print("listening", flush=True)
    signal.pause()
if sys.argv[1] == "fail":
    print("first line", file=sys.stderr)
    sys.exit("offbeat: no such data")
"""


@pytest.fixture
def federation(tmp_path: Path) -> _Federation:
    return _Federation(tmp_path, 1, (sys.executable, "-c", SCRIPT))


def all_ended(federation: _Federation) -> bool:
    return all(process.poll() is not None for process in federation._processes.values())


def test_a_site_that_fails_ends_all_with_its_last_line(federation: _Federation) -> None:
    message = r"site north has failed \(exit code 1\): offbeat: no such data; see .*north\.log"
    with federation.running():
        federation.start("server", "stay")
        federation.start("south", "stay")
        federation.start("north", "fail")
        with pytest.raises(RunError, match=message):
            federation.wait()
    assert all_ended(federation)


def test_a_server_that_fails_ends_all(federation: _Federation) -> None:
    with federation.running():
        federation.start("north", "stay")
        federation.start("server", "fail")
        with pytest.raises(RunError, match=r"the server has failed \(exit code 1\): offbeat: no such data"):
            federation.wait()
    assert all_ended(federation)


def test_a_site_that_is_killed_is_no_failure_while_others_go_on(
    federation: _Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    with federation.running():
        for name in ("server", "south", "north"):
            federation.start(name, "stay")
        federation._processes["north"].kill()
        federation._ended.put(federation._ended.get())  # now the server may end
        federation._processes["server"].terminate()
        with pytest.raises(RunError, match=r"the server has failed \(exit code -15\)"):
            federation.wait()
    assert "site north was ended by SIGKILL; the others go on" in capfd.readouterr().out


def test_the_last_site_that_is_killed_ends_all(federation: _Federation) -> None:
    with federation.running():
        federation.start("server", "stay")
        federation.start("north", "stay")
        federation._processes["north"].kill()
        with pytest.raises(RunError, match="no site is left"):
            federation.wait()
    assert all_ended(federation)


def test_without_a_site_helpers_do_not_go_on(federation: _Federation) -> None:
    with federation.running():
        federation.start("server", "stay")
        federation.start("helpers/anna", "stay")
        federation.start("north", "stay")
        federation._processes["north"].kill()
        with pytest.raises(RunError, match="no site is left"):
            federation.wait()
    assert all_ended(federation)


def test_a_helper_that_fails_ends_all(federation: _Federation) -> None:
    message = r"helper anna has failed \(exit code 1\): offbeat: no such data; see .*helpers/anna\.log"
    with federation.running():
        federation.start("server", "stay")
        federation.start("north", "stay")
        federation.start("helpers/anna", "fail")
        with pytest.raises(RunError, match=message):
            federation.wait()


def test_what_the_server_prints_is_shown_and_kept(
    federation: _Federation, capfd: pytest.CaptureFixture[str]
) -> None:
    with federation.running():
        federation.start("server", "stay")
        # What is captured is read once, at the end: what is printed while it is read would be lost.
        while not federation.log("server").read_text():
            sleep(0.01)
    assert federation.log("server").read_text() == "listening\n"
    assert "server: listening\n" in capfd.readouterr().out


def test_an_interrupted_federation_leaves_no_process(federation: _Federation) -> None:
    def interrupted() -> None:
        with federation.running():
            federation.start("server", "stay")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all_ended(federation)


def test_an_interruption_names_the_federations_directory(
    offbeat: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_Federation, "prepare", interrupted)
    answer = offbeat("federate", "digits", "--out", tmp_path / "fed")
    going_on = f"the same command with --out {tmp_path / 'fed'} goes on"
    assert (answer.code, answer.err) == (130, f"offbeat: interrupted; {going_on}\n")


def test_the_server_gets_its_own_keys(
    offbeat: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(_Federation, "prepare", lambda *_: None)
    monkeypatch.setattr(_Federation, "start", lambda _, *words: started.append(words))
    monkeypatch.setattr(_Federation, "wait", lambda _: None)
    answer = offbeat("federate", "digits", "--out", tmp_path / "fed", "--set", "server.lease=5")
    assert answer.code == 0
    assert "server.lease=5" in started[0]
    assert not any("server.lease=5" in words for words in started[1:])


@pytest.mark.parametrize(
    ("options", "recorded"), [([], True), (["--sites", "2", "--data", "digits", "--data", "digits"], False)]
)
def test_the_servers_recipe_divides_the_data_as_the_sites_have_them(
    offbeat: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    recorded: bool,
) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(_Federation, "prepare", lambda *_: None)
    monkeypatch.setattr(_Federation, "start", lambda _, *words: started.append(words))
    monkeypatch.setattr(_Federation, "wait", lambda _: None)
    answer = offbeat("federate", "digits", "--out", tmp_path / "fed", *options)
    assert answer.code == 0
    assert ("data.partition={kind: iid}" in started[0]) is recorded


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("server.leas=5", r"--set server.*leas.*did you mean .?lease"),
        ("server.lease=-5", r"lease = -5.* is not allowed"),
        ("server.clients=3", r"server\.clients=3 is not allowed: give --sites N"),
    ],
)
def test_a_wrong_key_of_the_server_is_refused_before_it_starts(
    offbeat: Callable[..., Answer], tmp_path: Path, key: str, complaint: str
) -> None:
    answer = offbeat("federate", "digits", "--out", tmp_path / "fed", "--set", key)
    assert answer.code == 2
    assert re.search(complaint, answer.err), answer.err
    assert not (tmp_path / "fed").exists()


@pytest.mark.thorough
def test_a_federation_with_secure_aggregation_has_its_helpers(tmp_path: Path) -> None:
    words = ["federate", str(secure(tmp_path)), "--no-page", "--out", tmp_path / "fed"]
    run = Fork(OFFBEAT, *words)
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert "server, helpers anna, bert and sites site-1, site-2, site-3;" in said
    assert "the run has ended: reached 2 versions" in said
    assert (tmp_path / "fed" / "helpers" / "anna" / "helper.db").exists()


@pytest.mark.thorough
def test_a_federation_runs_to_its_end_and_serves_its_model_again(tmp_path: Path) -> None:
    words = ["federate", "digits", "--sites", "2", "--no-page", "--out", tmp_path / "fed", *SMALL]
    first = Fork(OFFBEAT, *words)
    assert "the run has ended: reached 4 versions" in first.communicate()[0]
    assert first.returncode == 0
    record = read_run(tmp_path / "fed" / "server")
    assert record.stop_reason == "reached 4 versions"
    assert sorted(record.client_names().values()) == ["site-1", "site-2"]
    again = Fork(OFFBEAT, *words)
    assert "the run has ended: reached 4 versions" in again.communicate()[0]
    assert again.returncode == 0
