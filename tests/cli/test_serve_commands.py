"""`offbeat serve`, `join`, `stop`, `enrol`: wrong usage, and a run from end to end."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import numpy as np
import pytest
import torch
import yaml

import offbeat as ob
from offbeat.cli.dashboard import dashboard_of
from offbeat.cli.serve import stay_for
from offbeat.data.federated import Source
from offbeat.data.site import site_data
from offbeat.net.audit import AuditLog
from offbeat.net.auth.revocation import serial
from offbeat.net.auth.tokens import TokenAct, Tokens
from offbeat.net.monitor.http import MonitorAddress
from offbeat.net.monitor.scrapes import Scrapes
from offbeat.net.monitor.snapshot import SiteView, Snapshot
from offbeat.net.server.serve import RunServer
from offbeat.net.server.serve import serve as serve_run
from offbeat.runs.lock import lock
from tests.ended import ended_files
from tests.forks import OFFBEAT, Fork
from tests.net.authority import Authority
from tests.sampling import thorough

RECIPE: dict[str, Any] = {
    "clients": 2,
    "data": {"dataset": "digits", "samples": 200, "test_samples": 50, "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "world": {"seconds_per_step": 0.1},
    "algorithm": {"name": "fedasync", "steps": 3},
    "until": {"tasks": 60},
}


@pytest.fixture(autouse=True)
def logging_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of a test leave pytest's handlers of the log in place."""
    for command in ("serve", "join"):
        monkeypatch.setattr(f"offbeat.cli.{command}.setup_logs", lambda *_: None)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    held = lock(directory)
    try:
        yield
    finally:
        held.release()


def refused(answer: tuple[int, str, str], says: str, code: int = 2) -> None:
    """Exit code 2 and one line."""
    assert answer[0] == code, answer
    (line,) = answer[2].strip().splitlines()
    assert re.search(says, line), line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "server.lease=-1"], r"--set server: lease = -1 is not allowed"),
        (["--set", "server.lease=.nan"], r"--set server: lease = nan is not allowed"),
        (["--set", "server.lease="], r"--set server: lease = None is not allowed"),
        (["--set", "server.norm_bound=0"], r"--set server: norm_bound = 0 is not allowed"),
        (["--set", "server={max_samples: 0}"], r"--set server: max_samples = 0 is not allowed"),
        (["--set", "server.unmasking.timeout=0"], r"--set server: unmasking.timeout = 0 is not allowed"),
        (["--set", "server.leas=1"], r'--set server: unknown key leas; did you mean "lease"\?'),
        (["--set", "server.clients=3"], r"--set server.clients=3 is not allowed: give --sites N"),
        (["--set", "server={until: 3}"], r"is not allowed: it is a key of the recipe, so give --set until"),
        (["--set", "server.until.versions=3"], r"it is a key of the recipe, so give --set until… without"),
        (["--set", "server=3"], r"--set server=3 is not allowed: give --set server.KEY=VALUE"),
        (["--set", "server.lease"], r"--set server.lease is not allowed: give --set server.KEY=VALUE"),
        (["--set", "site.threads=2"], r"recipe.yaml: unknown key site"),
        (["--listen", "nowhere"], r"address 'nowhere': it must be HOST:PORT"),
        (["--listen", "0.0.0.0:0"], r"beyond loopback TLS is required"),
        (["--cert", "none.pem", "--key", "none.pem"], r"none.pem cannot be read"),
        (["--revoked", "none"], r"revoked = none: only certificates are revoked so, so give client-ca too"),
        (["--sites", 1, "--set", "algorithm={name: fedbuff, concurrency: 2}"], r"at most 1"),
        (["--set", "algorithm={name: wireless, steps: 3}"], r"wireless needs a world with a channel"),
        (["--set", "algorithm.nothing=1"], r"unknown key"),
        (["--set", "server.mirror_required=true"], r"needs a mirror: give --mirror DIR"),
        (["--set", "server.share_model=best"], r"share_model = 'best' needs evaluate.keep_best"),
        (["--dashboard", "nowhere"], r"address 'nowhere': it must be HOST:PORT"),
        (
            ["--dashboard", "0.0.0.0:0"],
            r"dashboard on 0.0.0.0 needs a token.*: make one with offbeat enrol --dashboard --state \S+run, ",
        ),
        (["--set", "callbacks=[nothing]"], r"nothing"),
    ],
)
def test_serve_and_its_check_refuse_in_one_line(
    options: list[object], says: str, recipe: Path, offbeat: Any, tmp_path: Path
) -> None:
    """Before anything is written, so that a run that goes on does not notice."""
    serve = ("serve", recipe, "--state", tmp_path / "run", *options)
    refused(offbeat(*serve), says)
    assert not (tmp_path / "run").exists()
    code, found, error = offbeat(*serve, "--check")
    assert code in (1, 2)
    failures = [line for line in found.splitlines() if line.startswith("FAIL")]
    assert re.search(says, " ".join((*failures, error))), found


def test_a_certificate_and_another_key_are_refused_before_the_run_is_opened(
    recipe: Path, offbeat: Any, tmp_path: Path
) -> None:
    ours = Authority(tmp_path, "ours")
    (certificate, _), (_, key) = ours.issue("one"), ours.issue("another")
    state = tmp_path / "run"
    serve = ("serve", recipe, "--state", state, "--listen", "127.0.0.1:0", "--cert", certificate)
    refused(offbeat(*serve, "--key", key), "they cannot be used .*give a certificate and its own key")
    assert not state.exists()


def test_serve_refuses_an_unknown_recipe(offbeat: Any, tmp_path: Path) -> None:
    refused(offbeat("serve", "nothing", "--state", tmp_path / "run"), "neither a file nor built in")


def test_a_damaged_tokens_file_says_so(recipe: Path, offbeat: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text("damaged", encoding="utf-8")
    says = (
        rf"tokens = {re.escape(str(tokens))}: the file cannot be read .*restore it from a copy, or delete it"
    )
    refused(offbeat("serve", recipe, "--state", tmp_path / "run", "--tokens", tokens), says, 1)
    assert not (tmp_path / "run").exists()
    refused(offbeat("enrol", "a", "--tokens", tokens), says, 1)
    assert tokens.read_text(encoding="utf-8") == "damaged"


def test_a_directory_of_a_simulated_run_is_refused(recipe: Path, offbeat: Any, tmp_path: Path) -> None:
    ob.simulate(ob.fedasync(steps=1), ob.World([1.0, 1.0]), until=ob.Until(tasks=3), out=tmp_path / "run")
    answer = offbeat("serve", recipe, "--state", tmp_path / "run", "--listen", "127.0.0.1:0")
    refused(answer, "holds a simulated run: choose another state directory")


def test_what_a_users_function_raises_is_one_line_and_with_debug_a_traceback(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "def read():\n    return open('patients.csv')\n"
    (tmp_path / "a_clinic_that_raises.py").write_text(text, encoding="utf-8")
    command = ["join", "127.0.0.1:1", "--name", "a", "--data", "a_clinic_that_raises:read"]
    says = r"--data a_clinic_that_raises:read: .*a_clinic_that_raises.py:2: FileNotFoundError: .*patients.csv"
    refused(offbeat(*command), says)
    for place in (0, len(command)):
        code, _, said = offbeat(*command[:place], "--debug", *command[place:])
        assert code == 2
        assert "Traceback" in said
        assert re.search(says, said.strip().splitlines()[-1])
    sys.modules.pop("a_clinic_that_raises")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "model=nowhere:make"], r"^offbeat: model nowhere:make: there is no module nowhere: "),
        (
            ["--set", "model={name: 'os:getcwd'}"],
            r"model os:getcwd returned a str: it must return a torch.nn.Mo",
        ),
        (
            ["--set", "algorithm=os:getcwd"],
            r"algorithm os:getcwd returned a str: it must return an Algorithm",
        ),
        (["--set", "loss=os:nothing"], r"^offbeat: loss os:nothing: the module os has no nothing$"),
        (["--test", "os:nothing"], r"^offbeat: --test os:nothing: the module os has no nothing$"),
        (
            ["--test", "nothing"],
            r"--test nothing: there is no such dataset; known: .*digits, .*give module:funct",
        ),
        (["--set", "initial=nowhere"], r"initial = .*/nowhere cannot be read .*give a .safetensors file, or"),
        (["--set", "data={}", "--set", "model=mlp"], r"model 'mlp' is made for the data's sample shape and"),
    ],
)
def test_serve_refuses_functions_that_are_not_there(
    options: list[object], says: str, recipe: Path, offbeat: Any, tmp_path: Path
) -> None:
    command = ["serve", recipe, "--state", tmp_path / "run", "--listen", "127.0.0.1:0", *options]
    refused(offbeat(*command), says)
    assert not (tmp_path / "run" / "run.db").exists()


@pytest.mark.parametrize("option", ["--listen", "--dashboard"])
def test_a_port_in_use_is_refused_before_anything_is_made(
    option: str, recipe: Path, offbeat: Any, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        at = {"--listen": "127.0.0.1:0", option: address}
        answer = offbeat(
            "serve", recipe, "--state", tmp_path / "run", *(x for pair in at.items() for x in pair)
        )
    says = rf"{option}: cannot listen on {address} \(Address already in use\): give .* a free port"
    refused(answer, says)
    assert not (tmp_path / "run").exists()


def test_a_directory_of_another_format_is_refused_and_left_as_it_is(
    recipe: Path, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.net.grpc.server.check_free", lambda *_: None)
    state = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that the run does not begin
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert offbeat("serve", recipe, "--state", state, "--listen", address)[0] == 2
    with closing(sqlite3.connect(state / "run.db")) as database:
        for query in (
            "DELETE FROM checksums",
            "UPDATE meta SET value = '2' WHERE key = 'format'",
            "UPDATE meta SET value = '\"9.0.1\"' WHERE key = 'offbeat'",
        ):
            database.execute(query)
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def content() -> dict[str, bytes]:
        kept = (path for path in state.iterdir() if not path.suffix.startswith(".db-"))  # SQLite's own
        return {path.name: path.read_bytes() for path in kept}

    before = content()
    answer = offbeat("serve", recipe, "--state", state, "--listen", "127.0.0.1:0")
    refused(
        answer,
        rf"^offbeat: {state / 'run.db'} has format 2, and this version of Offbeat reads 1: use the "
        r"version that wrote it \(9\.0\.1\)$",
    )
    assert content() == before


def test_a_directory_that_another_process_serves_is_refused(
    recipe: Path, offbeat: Any, tmp_path: Path
) -> None:
    state = tmp_path / "run"
    ob.simulate(ob.fedasync(steps=1), ob.World([1.0, 1.0]), until=ob.Until(tasks=3), out=state)
    with locked(state):
        answer = offbeat("serve", recipe, "--state", state, "--listen", "127.0.0.1:0")
    refused(
        answer, rf"--state {state}: another process is serving this run; end it with offbeat stop {state}"
    )


def test_a_directory_that_is_taken_at_the_last_moment_is_refused(
    recipe: Path, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.cli.server_set_up.is_locked", lambda _: False)
    state = tmp_path / "run"
    state.mkdir()
    with locked(state):
        answer = offbeat("serve", recipe, "--state", state, "--listen", "127.0.0.1:0")
    refused(answer, rf"{state}: another process is writing this run; wait for it or stop it")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--data", "nothing"], "there is no such dataset; known: .*digits"),
        (["--data", "digits:9/4"], "give K/N, the Kth of N shares"),
        (["--data", "digits:0/4"], "give K/N"),
        (["--data", "nomodule:f"], "--data nomodule:f: there is no module nomodule: install it, or"),
        (["--data", "os:nothing"], "the module os has no nothing"),
        (["--data", "os:getcwd"], "--data os:getcwd returned a str: a str is no dataset"),
        ([], "give --data, or --learner"),
        (["--data", "digits:1/4", "--learner", "os:getcwd"], "give --data, or --learner"),
        (["--learner", "os:getcwd"], "--learner os:getcwd returned a str: it must return a TorchLearner"),
        (["--data", "digits:1/4", "--model", "mlp"], "--model mlp: give module:function"),
        (
            ["--data", "digits:1/4", "--set", "site.min_step_seconds=-1"],
            "--set site: min_step_seconds = -1 is not allowed",
        ),
        (["--data", "digits:1/4", "--set", "site.threads=0"], "--set site: threads = 0 is not allowed"),
        (
            ["--data", "digits:1/4", "--set", "until.versions=3"],
            "--set until.versions=3 is not allowed: give one of access.KEY, policy.KEY,",
        ),
        (
            ["--data", "digits:1/4", "--set", "policy.min_step=3"],
            '--set policy: unknown key min_step; did you mean "min_steps"',
        ),
        (
            ["--data", "digits:1/4", "--set", "access.give_up_after=0"],
            "--set access: give_up_after = 0 is not allowed",
        ),
        (
            ["--data", "digits:1/4", "--set", "access.give_up_after=.nan"],
            "--set access: give_up_after = nan is not allowed",
        ),
        (
            ["--data", "digits:1/4", "--set", "site.validation=1"],
            r"validation = 1.0 is not allowed: give a share in \[0, 1\)",
        ),
        (["--data", "digits:1/4", "--set", "access.ca=none.pem"], "none.pem cannot be read"),
        (
            ["--data", "digits:1/4", "--set", "access.token_file=none"],
            "access.token_file none cannot be read",
        ),
    ],
)
def test_join_refuses_in_one_line(options: list[object], says: str, offbeat: Any) -> None:
    refused(offbeat("join", "127.0.0.1:1", "--name", "a", *options), says)


def test_join_refuses_a_device_before_it_looks_for_a_server(offbeat: Any) -> None:
    answer = offbeat("join", "127.0.0.1:1", "--name", "a", "--data", "digits:1/4", "--device", "tpu")
    refused(answer, "device = 'tpu' is not allowed: choose cpu, cuda")


def test_join_that_is_interrupted_says_how_it_goes_on(offbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(running: Any) -> None:
        running.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.cli.event_loop.asyncio.run", interrupted)
    answer = offbeat("join", "127.0.0.1:1", "--name", "a", "--data", "digits:1/4")
    refused(answer, "^offbeat: interrupted; the same command takes part again$", 130)


def test_join_refuses_an_address_that_is_none(offbeat: Any) -> None:
    refused(
        offbeat("join", "nowhere", "--name", "a", "--data", "digits:1/4"), "neither a file nor an address"
    )
    refused(offbeat("join", "a:b:1", "--name", "a", "--data", "digits:1/4"), "it must be HOST:PORT")


def test_a_site_that_finds_no_server_gives_up(offbeat: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "offbeat"):
        answer = offbeat(
            "join", "127.0.0.1:1", "--name", "a", "--data", "digits:1/4", "--set", "access.give_up_after=0.01"
        )
    refused(
        answer, r"no server for 0.01 s \(.*\): .*; access.give_up_after says for how many seconds to try", 1
    )
    assert [record.getMessage() for record in caplog.records if record.name == "offbeat.cli.join"] == [
        "joining 127.0.0.1:1 with --data digits:1/4: loading PyTorch",
        "loading --data digits:1/4",
        "connecting to 127.0.0.1:1",
    ]


def test_stop_without_a_server(offbeat: Any, tmp_path: Path) -> None:
    refused(offbeat("stop", tmp_path), "no server is running on")
    assert not list(tmp_path.iterdir())
    refused(offbeat("stop", tmp_path / "none"), "is not a directory")


def test_stop_ends_no_process_that_an_earlier_server_has_named(
    recipe: Path, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that died left its process number behind, which may be anybody's by now."""
    state = tmp_path / "run"
    ob.simulate(ob.fedasync(steps=1), ob.World([1.0, 1.0]), until=ob.Until(tasks=3), out=state)
    (state / "server.json").write_text(f'{{"pid": {os.getpid()}}}')
    with locked(state):  # then that server is still there
        offbeat("serve", recipe, "--state", state)
        assert (state / "server.json").exists()
    offbeat("serve", recipe, "--state", state, "--listen", "127.0.0.1:0")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process was told to end"))
    with locked(state):  # as another has it from when it begins to start
        refused(
            offbeat("stop", state), "not by a server .*; one that has just been started can be in a moment"
        )


def test_stop_comes_too_late_or_from_another_user(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ob.simulate(ob.fedasync(steps=1), ob.World([1.0, 1.0]), until=ob.Until(tasks=3), out=tmp_path)
    (tmp_path / "server.json").write_text('{"pid": 12345}')
    held = lock(tmp_path)

    def not_ours(*_: int) -> None:
        raise PermissionError

    def has_ended(*_: int) -> None:
        held.release()
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", not_ours)
    refused(offbeat("stop", tmp_path), r"process 12345\) is another user's: stop it as that user")
    monkeypatch.setattr(os, "kill", has_ended)
    assert offbeat("stop", tmp_path)[0] == 0
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    refused(offbeat("stop", tmp_path), "lock cannot be read: it is no file")


def test_stop_waits_until_the_ports_are_free(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that closes the connections of its sites holds them for longer than its directory."""
    ob.simulate(ob.fedasync(steps=1), ob.World([1.0, 1.0]), until=ob.Until(tasks=3), out=tmp_path)
    named, asked = tmp_path / "server.json", 0
    named.write_text('{"pid": 12345}')
    held = lock(tmp_path)

    def kill(_: int, number: int) -> None:
        nonlocal asked
        held.release()
        asked += number == 0
        if number == 0 and asked == 3:
            named.unlink()

    monkeypatch.setattr(os, "kill", kill)
    assert offbeat("stop", tmp_path)[0] == 0
    assert asked == 3
    named.write_text('{"pid": 12345}')
    held = lock(tmp_path)
    refused(
        offbeat("stop", tmp_path, "--wait", 0.2),
        "not stopped in 0.2 s; it still closes the connections of its",
        1,
    )


def test_enrol_makes_keeps_and_revokes(offbeat: Any, tmp_path: Path) -> None:
    refused(offbeat("enrol", "a"), "give --state DIR or --tokens FILE")
    refused(offbeat("enrol", "bad name", "--state", tmp_path), "site 'bad name'")
    code, token, _ = offbeat("enrol", "a", "--state", tmp_path / "run")
    assert code == 0
    assert token.strip()
    assert token.strip() not in (tmp_path / "run" / "tokens.json").read_text(encoding="utf-8")
    code, said, _ = offbeat("enrol", "a", "--state", tmp_path / "run", "--revoke")
    assert (code, said.strip()) == (0, "a has no token any more")
    refused(
        offbeat("enrol", "a", "--state", tmp_path / "run", "--revoke"),
        r"has no token in .*tokens\.json; there are tokens of: nobody$",
    )
    refused(offbeat("enrol", "a", "--state", tmp_path / "run", "--revoke", "--keep"), "give one of them")
    refused(offbeat("enrol", "a", "--state", tmp_path / "mistyped", "--revoke"), "has no token")
    for text in ("5", "7:3", "a:b", ":-1", f"1:{2**41}", "1.5:2"):
        answer = offbeat("enrol", "a", "--state", tmp_path / "run", "--samples", text)
        refused(answer, rf"--samples {re.escape(text)} is not allowed: give MIN:MAX, such as 100:5000")
    answer = offbeat("enrol", "a", "--state", tmp_path / "run", "--samples", "1:2", "--revoke")
    refused(answer, "--samples 1:2 is for a site with a token")
    for text, allowed in (("100:5000", (100, 5000)), (":7", (1, 7)), ("100:", (100, 2**40))):
        assert offbeat("enrol", "a", "--state", tmp_path / "run", "--samples", text)[0] == 0
        assert Tokens(tmp_path / "run" / "tokens.json").samples("a") == allowed
    assert not (tmp_path / "mistyped").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("min_batch_size: [", "is not valid YAML at line 1"),
        ("7", "is not a mapping, such as min_batch_size: 8"),
        ("min_batch: 8", 'unknown key min_batch; did you mean "min_batch_size"'),
        ("min_batch_size: 0", "min_batch_size = 0 is not allowed"),
        ("noise: 0", "noise = 0 is not allowed"),
        ("objectives: Plain", "objectives = 'Plain' is not allowed"),
    ],
)
def test_a_policy_that_is_none_is_refused_in_one_line(
    text: str | None, says: str, offbeat: Any, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    answer = offbeat("join", "127.0.0.1:1", "--name", "a", "--data", "digits:1/4", "--policy", file)
    refused(answer, f"--policy {re.escape(str(file))}:? {says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("examples=1", "is not allowed: give --set examples.KEY=VALUE"),
        ("examples.noise=0", "noise = 0 is not allowed"),
        ("examples.nois=1", 'unknown key nois; did you mean "noise"'),
        ("examples.noise=1", "needs --state: what is spent must outlive the process"),
        ("examples={}", "needs --state: what is spent must outlive the process"),
    ],
)
def test_privacy_of_examples_that_is_none_is_refused_in_one_line(text: str, says: str, offbeat: Any) -> None:
    answer = offbeat("join", "127.0.0.1:1", "--name", "a", "--data", "digits:1/4", "--set", text)
    refused(answer, f"--set examples.*{says}")


def test_tokens_that_cannot_be_written_are_refused(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.net.auth.tokens.LOCK_SECONDS", 0.1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tokens.json").mkdir()
    refused(offbeat("enrol", "a", "--state", tmp_path / "run"), "tokens = .*: the file cannot be read", 1)
    if not Path("/proc/self").is_dir():
        pytest.skip("there is no directory here that even root cannot write to")
    refused(offbeat("enrol", "a", "--tokens", "/proc/x"), "tokens = /proc/x: the file cannot be written")


def test_the_live_page_has_one_token_at_a_time(offbeat: Any, tmp_path: Path) -> None:
    code, first, _ = offbeat("enrol", "--dashboard", "--state", tmp_path / "run")
    kept = (tmp_path / "run" / "dashboard-token").read_bytes()
    assert code == 0
    assert first.strip().encode() not in kept
    assert offbeat("enrol", "--dashboard", "--state", tmp_path / "run")[1] != first
    assert (tmp_path / "run" / "dashboard-token").read_bytes() != kept
    (tmp_path / "file").write_text("", encoding="utf-8")
    refused(offbeat("enrol", "--dashboard", "--state", tmp_path / "file"), "cannot be made")


def server_of(service: Any, listener: Any) -> RunServer:
    """What the page asks of a server."""
    return cast(RunServer, SimpleNamespace(service=service, listener=listener, audit=AuditLog()))


def test_the_served_page_takes_a_token_that_is_made_later(offbeat: Any, tmp_path: Path) -> None:
    place = MonitorAddress(token=Tokens(tmp_path / "dashboard-token"))

    async def go() -> None:
        page = dashboard_of(place, tmp_path, server_of(None, None))
        async with page as url, aiohttp.ClientSession() as session:
            for status in (200, 401):
                async with session.get(url) as answer:
                    assert answer.status == status
                made = offbeat("enrol", "--dashboard", "--state", tmp_path)[1].strip()
            async with session.get(url, headers={"Authorization": f"Bearer {made}"}) as answer:
                assert answer.status == 200

    asyncio.run(go())


def test_the_audit_of_a_run_has_who_made_the_token_of_its_page(offbeat: Any, tmp_path: Path) -> None:
    assert offbeat("enrol", "--dashboard", "--state", tmp_path, "--as", "anna")[0] == 0
    rows: list[TokenAct] = []
    server = SimpleNamespace(service=None, listener=None, audit=SimpleNamespace(tokens=rows.extend))

    async def go() -> None:
        place = MonitorAddress(token=Tokens(tmp_path / "dashboard-token"))
        async with dashboard_of(place, tmp_path, cast(RunServer, server)):
            assert [(row.action, row.site, row.by) for row in rows] == [("site.enrol", "@dashboard", "anna")]

    asyncio.run(go())


def test_the_served_page_adds_up_what_the_door_and_the_server_have_refused(tmp_path: Path) -> None:
    sites = SiteView(0, "north", samples=120), SiteView(1, "east", samples=80)
    shown = Snapshot("r", "l", "a", 0.0, 0, 0, 0, 0, 0, 0, 0, 0, {"layout": 2, "norm": 1}, sites)
    service = SimpleNamespace(snapshot=lambda: shown)
    enrolled = {"north": (100, 5000)}
    door = SimpleNamespace(
        rejected={"layout": 5, "frame": 3}, samples=enrolled.get, enrolled=lambda: {"north", "west"}
    )

    async def go() -> None:
        page = dashboard_of(MonitorAddress(), tmp_path, server_of(service, door))
        async with (
            page as url,
            aiohttp.ClientSession() as session,
            session.get(f"{url}api/snapshot") as answer,
        ):
            told = await answer.json()
            assert told["rejected"] == {"layout": 7, "norm": 1, "frame": 3}
            assert [site["allowed"] for site in told["sites"]] == [[100, 5000], None, None]
            assert [(s["name"], s["state"], s["last_seen"]) for s in told["sites"]] == [
                ("north", "away", None), ("east", "revoked", None), ("west", "expected", None),
            ]  # fmt: skip

    asyncio.run(go())


@pytest.mark.parametrize("ends", ["scrape", "signal"])
def test_the_page_of_an_ended_run_stays_until_it_was_scraped(
    ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    scrapes = Scrapes(lambda: now)
    asyncio.run(stay_for(scrapes))
    assert not capsys.readouterr().out, "nobody scrapes"
    scrapes.add("10.0.0.1", ended=False)
    now = 3600.0
    scrapes.add("10.0.0.1", ended=False)

    async def story() -> None:
        waiting = asyncio.create_task(stay_for(scrapes))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        if ends == "scrape":
            scrapes.add("10.0.0.1", ended=True)
        else:
            signal.raise_signal(signal.SIGTERM)
        await waiting

    asyncio.run(story())
    said = " ".join(capsys.readouterr().out.split())
    assert said == "the page stays until its metrics have been read once more, at most 2 min"


def test_data_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = site_data("digits")
    shares = [site_data(f"digits:{k}/3") for k in (1, 2, 3)]
    assert sum(s.samples(0) for s in shares) == whole.samples(0)
    assert len({tuple(row) for s in shares for row in s.train.x.flatten(1).tolist()}) <= whole.samples(0)
    assert shares[0].train.x.equal(site_data("digits:1/3").train.x)
    (tmp_path / "clinic_of_ours.py").write_text(
        "from offbeat.data.site import site_data\n\ndef own():\n    return site_data('digits:1/3')\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert site_data("clinic_of_ours:own").train.x.equal(shares[0].train.x)
    sys.modules.pop("clinic_of_ours")


def test_a_natural_group_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of two hospitals, in place of one whose files may not be here."""
    patients = ob.Dataset(torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0]), 2)
    groups = np.array([0, 1, 1, 0, 1])
    source = Source("heart_disease", patients, patients, groups, ("cleveland", "va"))
    monkeypatch.setattr("offbeat.data.site.load", lambda name: source)
    assert site_data("heart_disease:va").train.x.flatten().tolist() == [1.0, 2.0, 4.0]
    assert site_data("heart_disease").samples(0) == 5
    with pytest.raises(ob.UsageError, match=r"one of cleveland, va"):
        site_data("heart_disease:nowhere")


# ---- from end to end ----


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts `offbeat …` as a process of its own, with its output in a file."""
    running: list[Fork] = []

    def begin(name: str, *arguments: object) -> Fork:
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(Fork(OFFBEAT, *arguments, out=log, err=log, cwd=tmp_path))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def port_in(log: Path, seconds: float = 240) -> int:
    """Where a server listens, once it says so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text(encoding="utf-8")):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8"))


def test_a_run_is_served_left_served_again_and_ends(
    recipe: Path, start: Any, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    server = start("first", "serve", recipe, "--state", directory, "--listen", "127.0.0.1:0")
    address = f"127.0.0.1:{port_in(tmp_path / 'first.log')}"
    sites = [
        start(f"site-{k}", "join", address, "--data", f"digits:{k}/2", "--name", f"site-{k}",
              "--state", tmp_path / f"site-{k}", "--set", "site.min_step_seconds=0.02")
        for k in (1, 2)
    ]  # fmt: skip
    deadline = time.monotonic() + 240
    while not any(row.name == "arrived" for row in ob.read_run(directory).rows()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    code, said, _ = offbeat("stop", directory)
    assert (code, said.strip()) == (0, "the server has left; the run can be served again")
    assert server.wait(240) == 0
    assert ob.read_run(directory).status == "interrupted"
    assert not (directory / "server.json").exists()
    refused(offbeat("stop", directory), "no server is running")
    other = ["--set", "algorithm.steps=4", "--listen", address]
    refused(
        offbeat("serve", recipe, "--state", directory, *other),
        "started with another plan: .*; give the recipe and options",
    )

    again = start("again", "serve", recipe, "--state", directory, "--listen", address)
    assert [process.wait(240) for process in (again, *sites)] == [0, 0, 0]
    assert "the run begins when 2 sites are there" in (tmp_path / "first.log").read_text()
    assert "; the run goes on" in (tmp_path / "again.log").read_text()
    for name in ("again", "site-1", "site-2"):
        assert "the run has ended: reached 60 client tasks" in (tmp_path / f"{name}.log").read_text()
    assert offbeat("status", directory)[0] == 0
    assert offbeat("replay", directory)[0] == 0
    record = ob.read_run(directory)
    assert (record.status, sorted(record.site_names().values())) == ("finished", ["site-1", "site-2"])
    assert {p.name for p in directory.glob("*.safetensors")} == ended_files(directory)
    monkeypatch.setitem(serve_run.__kwdefaults__, "linger", 0.1)
    stayed: list[Scrapes] = []

    async def stay(scrapes: Scrapes) -> None:
        stayed.append(scrapes)

    monkeypatch.setattr("offbeat.cli.serve.stay_for", stay)
    assert offbeat("serve", recipe, "--state", directory, "--listen", "127.0.0.1:0")[0] == 0
    assert len(stayed) == 1, "for those that scrape its metrics"
    assert list(ob.read_run(directory).rows()) == list(record.rows())


def arrivals(directory: Path, more_than: int = 0, seconds: float = 240) -> int:
    """How many updates have arrived, once there are more than so many."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        count = sum(row.name == "arrived" for row in ob.read_run(directory).rows())
        if count > more_than:
            return count
        time.sleep(0.1)
    raise AssertionError(f"no more than {more_than} updates have arrived")


@pytest.mark.thorough
def test_a_stolen_key_is_out_and_the_site_goes_on_with_another(
    recipe: Path, start: Any, offbeat: Any, tmp_path: Path
) -> None:
    """What docs/deploy.md says to do, while the server runs."""
    ours, revoked, directory = Authority(tmp_path, "ours"), tmp_path / "revoked.txt", tmp_path / "run"
    certificate, key = ours.issue("server", host="127.0.0.1")
    revoked.write_text("", encoding="utf-8")
    server = start(
        "server", "serve", recipe, "--state", directory, "--listen", "127.0.0.1:0", "--sites", 1,
        "--cert", certificate, "--key", key, "--client-ca", ours.file, "--revoked", revoked,
        "--set", "until.tasks=100000",
    )  # fmt: skip
    address = f"127.0.0.1:{port_in(tmp_path / 'server.log')}"

    def join(name: str) -> Fork:
        keys = {"ca": ours.file, **dict(zip(("certificate", "key"), ours.issue("north"), strict=True))}
        shown = [word for key, file in keys.items() for word in ("--set", f"access.{key}={file}")]
        data = ("--data", "digits:1/2", "--set", "site.min_step_seconds=0.05")
        process: Fork = start(name, "join", address, *shown, *data)
        return process

    first = join("first")
    arrivals(directory)
    number = serial((tmp_path / "ours-north.pem").read_bytes())
    revoked.write_text(f"serial={number:X}  # north\n", encoding="utf-8")
    assert first.wait(240) == 1
    assert "the credential of north is no longer valid" in (tmp_path / "first.log").read_text()
    second = join("second")
    arrivals(directory, arrivals(directory))
    assert second.poll() is None
    assert offbeat("stop", directory)[0] == 0
    assert server.wait(240) == 0
    assert ob.read_run(directory).site_names() == {0: "north"}


def test_a_server_says_at_its_start_that_its_certificate_has_expired(
    start: Any, offbeat: Any, recipe: Path, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path, "ours").issue("server", host="127.0.0.1", days=-1)
    server = start(
        "server", "serve", recipe, "--state", tmp_path / "run", "--listen", "127.0.0.1:0",
        "--cert", certificate, "--key", key,
    )  # fmt: skip
    port_in(tmp_path / "server.log")
    assert offbeat("stop", tmp_path / "run")[0] == 0
    assert server.wait(240) == 0
    assert f"certificate {certificate} has expired" in (tmp_path / "server.log").read_text()


@pytest.mark.thorough
def test_status_says_that_a_server_is_stopped_silent_or_dead(
    start: Any, offbeat: Any, recipe: Path, tmp_path: Path
) -> None:
    """A real process, which gets SIGSTOP, SIGCONT and SIGKILL."""
    directory = tmp_path / "state"
    server = start("server", "serve", recipe, "--state", directory, "--listen", "127.0.0.1:0")
    port_in(tmp_path / "server.log")
    pid = json.loads((directory / "server.json").read_text(encoding="utf-8"))["pid"]
    assert "fedasync: running;" in offbeat("status", directory)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: "is stopped" in offbeat("status", directory)[1])
        said = f"not running: its server (process {pid}) is stopped: kill -CONT {pid} lets it go on;"
        assert said in offbeat("status", directory)[1]
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: "fedasync: running;" in offbeat("status", directory)[1])
    os.utime(directory / "server.json", (time.time() - 500, time.time() - 500))
    assert re.search(r"has not answered for 50\d s: see its log", offbeat("status", directory)[1])
    wait_for(lambda: "fedasync: running;" in offbeat("status", directory)[1])  # its next sign of life
    server.kill()
    server.wait()
    os.utime(directory / "server.json", (time.time() - 20, time.time() - 20))
    wait_for(lambda: f"(process {pid}) has died: the same offbeat serve" in offbeat("status", directory)[1])


def wait_for(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("command", ["serve", "join"])
def test_what_their_code_writes_is_the_owners_alone(
    command: str, recipe: Path, offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback's folder and files, whatever the umask was."""

    def writing(main: Any) -> str:
        main.close()
        (tmp_path / "tensorboard").mkdir()
        (tmp_path / "tensorboard" / "events").touch()
        return "ended"

    monkeypatch.setattr("asyncio.run", writing)
    served = (recipe, "--state", tmp_path / "run", "--listen", "127.0.0.1:0")
    joined = ("127.0.0.1:7117", "--name", "north", "--data", "digits:1/3")
    before = os.umask(0)
    try:
        assert offbeat(command, *(served if command == "serve" else joined))[0] == 0
    finally:
        os.umask(before)
    found = [
        path.stat().st_mode & 0o777 for path in (tmp_path / "tensorboard", tmp_path / "tensorboard/events")
    ]
    assert found == [0o700, 0o600]


@pytest.mark.parametrize("number", [signal.SIGTERM, *thorough(signal.SIGINT)])
@pytest.mark.parametrize("command", ["join", *thorough("helper")])
def test_a_signal_ends_a_site_in_one_line(command: str, number: signal.Signals, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {
            "join": ("--data", "digits", "--name", "north"), "helper": ("--name", "anna", "--state", tmp_path)
        }  # fmt: skip
        site = Fork(OFFBEAT, command, address, *given[command])
        silent.settimeout(300)
        connection, _ = silent.accept()
        with connection:
            site.send_signal(number)
            said = site.communicate(timeout=300)
    assert site.returncode == 130, said
    again = {"join": "takes part again", "helper": "helps again"}[command]
    assert said[1].splitlines()[-1] == f"offbeat: interrupted; the same command {again}"
    assert "Traceback" not in said[1]
