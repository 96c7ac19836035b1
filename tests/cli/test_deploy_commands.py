"""`offbeat status` and `offbeat simulate-like`: what they print and write, and how they say what is wrong."""

import asyncio
import json
import shutil
import sqlite3
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import offbeat as ob
from offbeat.cli.state_dir import enrolled_sites
from offbeat.local.examples_privacy import ExamplesPrivacy, examples_epsilon
from offbeat.net.audit import INSERT, TABLE, AuditLog, operator
from offbeat.net.auth.tokens import make_token
from offbeat.net.client.examples_ledger import ExamplesLedger
from offbeat.net.client.store import PendingUpdate, SiteStore
from offbeat.net.messages import UpdateSubmission
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from offbeat.recipes.build import run_recipe
from offbeat.recipes.from_run import fit_run
from offbeat.recipes.load import check
from offbeat.runs.record import read_run
from tests.net.page_token import page_token

DOCUMENT: dict[str, Any] = {
    "clients": 3,
    "data": {"dataset": "digits", "samples": 200, "test_samples": 50, "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "world": {"seconds_per_step": [0.1, 0.2, 0.4], "jitter": 0.05},
    "algorithm": {"label": "fedcompass", "name": "fedcompass", "q_min": 2, "q_max": 8},
    "algorithms": {"fedbuff": {"steps": 4, "size": 2}},
    "until": {"tasks": 30},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("deploy") / "run"
    recipe = check(DOCUMENT, "test")
    run_recipe(recipe, out=place)
    return place


@contextmanager
def page(directory: Path, token: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The run's live page, in a thread of its own."""
    ready, over = threading.Event(), asyncio.Event()
    address: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        listen = MonitorAddress(token=None if token is None else page_token(directory, token), tls=tls)
        watched = Watched(lambda: snapshot_of(read_run(directory)), directory)
        async with dashboard(watched, listen) as url:
            address.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()


# ---- status ----


def test_status_of_a_directory(offbeat: Any, done: Path) -> None:
    code, out, _ = offbeat("status", done)
    assert code == 0
    assert out.startswith("fedcompass: ended: reached 30 client tasks; it took ")
    assert "last heard" not in out, "nobody waits for its sites"
    head = ["site", "state", "steps/s", "staleness", "updates", "samples", "time"]
    assert out.splitlines()[-5].split() == head
    summary = ob.read_run(done).summary
    assert summary is not None
    assert "30 updates arrived" in out
    assert f"{summary.lost} lost, {summary.held} waiting, 0 in training" in out
    rows = [line.split()[:3] for line in out.splitlines()[-4:-1]]
    assert rows == [["client", str(c), "–"] for c in range(3)]


def test_status_as_json(offbeat: Any, done: Path, tmp_path: Path) -> None:
    told = json.loads(offbeat("status", done, "--json")[1])
    assert told["state"].startswith("ended: ")
    assert (told["run"]["arrived"], len(told["run"]["sites"])) == (30, 3)
    assert [site["last_seen"] for site in told["run"]["sites"]] == [None] * 3
    store = SiteStore(tmp_path)
    store.begin("run-5")
    site = json.loads(offbeat("status", tmp_path, "--json")[1])["site"]
    assert (site["run"], site["waits"], site["progress"]["done"]) == ("run-5", False, 0)
    store.close()


def audited(directory: Path, *events: tuple[str, str], moment: float = 1.8e9) -> None:
    """Give a run's record the rows of an audit: action and site, or reason."""
    log = AuditLog(lambda: moment)
    for action, text in events:
        log.record(operator("anna"), {"action": action, "reason" if "run" in action else "site": text})
    with closing(sqlite3.connect(directory / "run.db")) as database, database:
        database.execute(TABLE)
        database.executemany(INSERT, log.take())


def test_status_says_when_a_run_has_ended(offbeat: Any, done: Path, tmp_path: Path) -> None:
    run = shutil.copytree(done, tmp_path / "run")
    audited(run, ("run.start", ""), ("run.end", "reached 30 client tasks"))
    first = offbeat("status", run)[1].splitlines()[0]
    assert first.startswith("fedcompass: ended on 2027-01-15 08:00 UTC: reached 30 client tasks; it took ")


def test_a_revoked_site_is_shown_as_revoked_where_the_tokens_are_not_known(
    offbeat: Any, done: Path, tmp_path: Path
) -> None:
    """As of a server that has ended, whose tokens were in another directory."""
    run = shutil.copytree(done, tmp_path / "run")
    acts = [("site.enrol", f"client {k}") for k in range(3)]
    again = ("site.revoke", "client 2"), ("site.enrol", "client 2")
    audited(run, *acts, ("site.revoke", "client 0"), *again)
    said = offbeat("status", run)[1]
    assert [line.split()[2] for line in said.splitlines()[-4:-1]] == ["revoked", "–", "–"]


def test_a_run_that_nobody_serves_does_not_say_when_its_sites_were_heard(
    offbeat: Any, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock stands still."""
    shown = snapshot_of(read_run(done))
    sites = replace(shown.sites[0], state="training", task=3, last_seen=1.0), *shown.sites[1:]
    left = replace(shown, stopped=None, sites=sites)
    monkeypatch.setattr("offbeat.net.monitor.from_journal.snapshot_of", lambda _: left)
    record = replace(read_run(done), status="interrupted", stop_reason=None)
    monkeypatch.setattr("offbeat.runs.record.read_run", lambda _: record)
    said = offbeat("status", done)[1]
    assert said.startswith("fedcompass: interrupted; ")
    assert "training     3" in said
    assert "last heard" not in said


def test_status_of_a_sites_state(offbeat: Any, tmp_path: Path) -> None:
    """It is read while the site has locked it, and stays as it is."""
    pytest.importorskip("opacus")
    store = SiteStore(tmp_path)
    store.begin("run-5")
    assert offbeat("status", tmp_path)[:2] == (0, "a site of run run-5: 0 tasks done; no update waits\n")
    ledger = ExamplesLedger(ExamplesPrivacy(noise=2.0, epsilon=8.0), tmp_path)
    ledger.prepare(0.3)
    ledger.begin(30)
    store.save(PendingUpdate(UpdateSubmission(4, 3, torch.zeros(2), torch.zeros(0, dtype=torch.int64))))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, _ = offbeat("status", tmp_path)
    assert (code, out.splitlines()[0]) == (
        0,
        "a site of run run-5: 0 tasks done; an update waits for the server's answer",
    )
    epsilon = examples_epsilon([(2.0, 0.3, 30)], 1e-5)
    expected = f"privacy of examples: ε = {epsilon:.2f} of 8 (δ = 1e-05; 30 local steps)"
    assert out.splitlines()[1:] == [expected]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    store.close()


def test_status_of_a_site_that_has_done_tasks(offbeat: Any, tmp_path: Path) -> None:
    """What it has done survives its process, and ends with the run."""
    store, nothing = SiteStore(tmp_path), torch.zeros(0, dtype=torch.int64)
    store.begin("run-5")
    for task, accepted in ((4, True), (7, False), (9, True)):
        update = UpdateSubmission(task, 3, torch.zeros(2), nothing, {"loss": task / 8})
        store.save(PendingUpdate(update))
        store.acknowledge(task, accepted)
    store.close()
    store = SiteStore(tmp_path)
    first, second = offbeat("status", tmp_path)[1].splitlines()
    assert first == "a site of run run-5: 2 tasks done, the last with loss 1.125; no update waits"
    assert second.startswith("the server accepted its last update ")
    store.begin("run-6")
    assert offbeat("status", tmp_path)[1] == "a site of run run-6: 0 tasks done; no update waits\n"
    store.close()


@pytest.mark.parametrize("option", [("--token-file", "x"), ("--ca", "x"), ("--unencrypted",)])
def test_status_of_a_directory_takes_no_options_of_a_page(
    option: tuple[str, ...], offbeat: Any, done: Path
) -> None:
    code, out, err = offbeat("status", done, *option)
    assert (code, out) == (2, "")
    assert f"are for a live page: {done} is not a URL" in err


def test_status_shows_names_and_reasons_as_they_are(
    offbeat: Any, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(record: Any) -> Any:
        shown = snapshot_of(record)
        named = [replace(site, name="a[b]\x1b[1m") for site in shown.sites]
        return replace(shown, sites=tuple(named), rejected={"the update is float32 [4]\n": 2})

    monkeypatch.setattr("offbeat.net.monitor.from_journal.snapshot_of", odd)
    out = offbeat("status", done)[1]
    assert "rejected 2: the update is float32 [4]\\n\n" in out
    assert "\na[b]\\u001b[1m " in out


def test_status_of_a_page_is_the_same(offbeat: Any, done: Path) -> None:
    table = offbeat("status", done)[1].splitlines()[1:]
    with page(done) as url:
        code, out, _ = offbeat("status", url)
    assert code == 0
    assert out.splitlines()[1:] == table


def test_status_with_a_token(
    offbeat: Any, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret\n")
    with page(done, "secret") as url:
        code, out, err = offbeat("status", url)
        assert (code, out) == (1, "")
        assert "401" in err
        assert "--token-file" in err
        assert offbeat("status", url, "--token-file", tmp_path / "token")[0] == 0
        monkeypatch.setenv("OFFBEAT_TOKEN", "secret")
        assert offbeat("status", url)[0] == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_status_over_tls_trusts_only_what_it_is_told(offbeat: Any, done: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-days", "2", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with page(done, "secret", context) as url:
        assert url.startswith("https://")
        (tmp_path / "token").write_text("secret")
        code, _, err = offbeat("status", url, "--token-file", tmp_path / "token")
        assert code == 1
        assert "certificate" in err
        assert offbeat("status", url, "--token-file", tmp_path / "token", "--ca", certificate)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["status", "nowhere"], 2, "is not a run"),
        (["status", "http://"], 2, "is not the address of a dashboard"),
        (["status", "http://[::1"], 2, "is not the address of a dashboard"),
        (["status", "http://[::1].evil.example/"], 2, "is not the address of a dashboard"),
        (["status", "http://127.0.0.1:1/"], 1, "does not answer"),
        (["status", "http://127.0.0.1:1/"], 1, "the address of a page with TLS begins with https"),
        (["status", "http://127.0.0.1:1/", "--token-file", "nowhere"], 2, "--token-file nowhere"),
        (["status", "https://127.0.0.1:1/", "--ca", "nowhere"], 2, "--ca nowhere"),
    ],
)
def test_what_is_wrong_is_one_line(offbeat: Any, arguments: list[str], code: int, words: str) -> None:
    got, out, err = offbeat(*arguments)
    assert (got, out) == (code, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_token_does_not_go_readable_over_a_network(offbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFBEAT_TOKEN", "secret")
    code, _, err = offbeat("status", "http://192.0.2.1:1/")
    assert code == 2
    assert "--unencrypted" in err


@pytest.mark.parametrize("token", ["two\nlines", "not ÄSCII", "\x00"])
def test_what_is_no_token_is_not_sent(token: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.cli.status.read_token", lambda _: token)
    code, _, err = offbeat("status", "http://127.0.0.1:1/", "--token-file", "some")
    assert code == 2
    assert "characters that no token has" in err


def test_a_token_for_this_machine_goes_to_no_proxy(
    offbeat: Any, done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")  # where nobody listens
    monkeypatch.setenv("OFFBEAT_TOKEN", "secret\n")
    with page(done, "secret") as url:
        assert offbeat("status", url)[0] == 0


class _Elsewhere(BaseHTTPRequestHandler):
    answers: tuple[int, bytes] = (200, b"")

    def do_GET(self) -> None:
        status, body = self.answers
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/stolen")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (302, b"", "answers 302"),
        (200, b"<html>", "that is not JSON"),
        (200, b"\xff", "that is not JSON"),
        (200, b"[1]", "does not answer as a dashboard does"),
        (200, json.dumps({"run": "x"}).encode(), "is missing"),
    ],
)
def test_another_server_is_recognised(offbeat: Any, status: int, body: bytes, words: str) -> None:
    handler = type("Handler", (_Elsewhere,), {"answers": (status, body)})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        code, _, err = offbeat("status", f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert code == 1
    assert words in err
    assert len(err.splitlines()) == 1


# ---- simulate-like ----


def test_another_algorithm_on_the_federation_one_has(offbeat: Any, done: Path, tmp_path: Path) -> None:
    world, out = tmp_path / "world.yaml", tmp_path / "like"
    code, said, _ = offbeat(
        "simulate-like", done, "--algorithm", "fedbuff", "--set", "algorithm.size=3",
        "-o", world, "-o", out,
    )  # fmt: skip
    assert code == 0
    assert "stopped: 30 tasks" in said or "stopped: reached 30" in said
    record = read_run(out)
    assert record.meta["algorithm"]["size"] == 3
    assert record.label == "fedbuff"
    written = yaml.safe_load(world.read_text())["world"]
    assert written["seconds_per_step"] == pytest.approx([0.1, 0.2, 0.4], rel=0.1)
    assert record.recipe is not None
    assert record.recipe["world"]["seconds_per_step"] == written["seconds_per_step"]


def test_the_fit_and_the_simulation_as_json(offbeat: Any, done: Path, tmp_path: Path) -> None:
    code, said, _ = offbeat("simulate-like", done, "-o", tmp_path / "w.yaml", "--json")
    fit = json.loads(said)
    assert (code, len(fit["clients"])) == (0, 3)
    code, said, _ = offbeat("simulate-like", done, "-o", tmp_path / "like", "--json")
    told = json.loads(said)
    assert (code, told["clients"]) == (0, fit["clients"])
    assert (told["directory"], told["summary"]["tasks"]) == (str(tmp_path / "like"), 30)


def test_a_simulation_on_other_parts_of_the_data_says_so(offbeat: Any, done: Path, tmp_path: Path) -> None:
    code, said, _ = offbeat("simulate-like", done, "-o", tmp_path / "same")
    assert code == 0
    assert "cannot be compared" not in said
    code, said, _ = offbeat("simulate-like", done, "--set", "data.samples=100", "-o", tmp_path / "less")
    assert code == 0
    text = " ".join(said.split())
    assert (
        "the run's clients had 67, 67, 66 training samples, and those of the simulation have 34, 33," in text
    )
    assert text.endswith("accuracies of the two cannot be compared")


def test_an_interruption_names_the_simulations_directory(
    offbeat: Any, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, out: Path, **__: Any) -> None:
        out.mkdir()
        (out / "run.db").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.recipes.build.run_recipe", interrupted)
    out = tmp_path / "like"
    code, _, err = offbeat("simulate-like", done, "-o", out)
    assert (code, err) == (130, f"offbeat: interrupted; go on with: offbeat resume {out}\n")


def test_only_the_world(offbeat: Any, done: Path, tmp_path: Path) -> None:
    code, said, _ = offbeat("simulate-like", done, "-o", tmp_path / "w.yaml", "--speeds", "tasks")
    assert code == 0
    assert "stopped" not in said
    assert all(
        isinstance(s, list)
        for s in yaml.safe_load((tmp_path / "w.yaml").read_text())["world"]["seconds_per_step"]
    )


def test_the_world_as_a_trace(offbeat: Any, done: Path, tmp_path: Path) -> None:
    code, said, _ = offbeat("simulate-like", done, "-o", tmp_path / "w.csv")
    assert code == 0
    assert "name it as a recipe's world.trace" in said
    assert ob.read_trace(tmp_path / "w.csv") == fit_run(read_run(done)).world
    code, _, err = offbeat("simulate-like", done, "-o", tmp_path / "t.csv", "--speeds", "tasks")
    assert code == 2
    assert "world.seconds_per_step cannot be written as a trace" in err
    assert not (tmp_path / "t.csv").exists()


def test_a_run_from_python_can_be_fitted(offbeat: Any, tmp_path: Path) -> None:
    ob.simulate(ob.fedasync(steps=2), ob.World(1.0, 2), until=ob.Until(tasks=4), out=tmp_path / "run")
    assert offbeat("simulate-like", tmp_path / "run", "-o", tmp_path / "w.yaml")[0] == 0
    code, _, err = offbeat("simulate-like", tmp_path / "run")
    assert code == 2
    assert "started from Python" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "fedbuf"], "fedbuf"),
        (["--set", "algorithm.q_mim=2"], "q_mim"),
        (["--speeds", "task"], "'--speeds': 'task' is not one of 'jitter', 'tasks'"),
        (["-o", "w.yaml", "--seed", "1"], "--out w.yaml alone simulates nothing"),
        (["-o", "a", "-o", "b"], "--out is given twice"),
        (["-o", "/nowhere/at/all.yaml"], "--out /nowhere/at/all.yaml"),
    ],
)
def test_wrong_options_are_one_line(offbeat: Any, done: Path, arguments: list[str], words: str) -> None:
    code, _, err = offbeat("simulate-like", done, *arguments)
    assert code == 2
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ({"tokens": "elsewhere/t.json"}, {"north", "south"}),
        ({"tokens": "elsewhere/none.json"}, None),
        ({"tokens": "elsewhere"}, None),
        ({"tokens": None}, None),
        ({"tokens": 3}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_enrolled_sites_are_those_that_the_server_goes_by(
    server: Any, names: set[str] | None, tmp_path: Path
) -> None:
    """Wherever the tokens are."""
    (tmp_path / "elsewhere").mkdir()
    for name in ("north", "south"):
        make_token(tmp_path / "elsewhere" / "t.json", name)
    if isinstance(server, dict) and isinstance(server.get("tokens"), str):
        server = {"tokens": str(tmp_path / server["tokens"])}
    if server is not None:
        (tmp_path / "server.json").write_text(json.dumps(server), encoding="utf-8")
    assert enrolled_sites(tmp_path) == names
