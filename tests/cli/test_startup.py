"""What the command line does not import before it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus.archive import unpack
from tests.sampling import thorough

HEAVY = {
    "torch", "numpy", "plotly", "matplotlib", "jinja2", "aiohttp", "grpc", "ray", "sklearn", "filelock",
    "pandas", "scipy", "torchvision", "cryptography", "offbeat.notebook", "offbeat.data", "offbeat.report",
    "offbeat.sim", "offbeat.world",
}  # fmt: skip


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """The exit code of a call in a process of its own, and which of these packages it has imported."""
    code = (
        "import sys\nfrom offbeat.cli import main\nsys.argv[0] = 'offbeat'\ntry:\n    main()\n"
        f"finally:\n    print('loaded:', *({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, set(done.stdout.rpartition("loaded:")[2].split())


def test_an_interruption_is_handled_before_anything_slow_is_loaded() -> None:
    """What the entry point imports before it handles signals."""
    slow = {"typer", "click", "rich", "asyncio", "logging"}
    code = f"import sys, offbeat.cli\nprint({slow!r} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_help_loads_no_command() -> None:
    assert loaded("--help") == (0, set())


@pytest.mark.parametrize("command", ["run", *thorough("serve", "join", "status", "algorithms")])
def test_the_help_of_a_command_loads_nothing_that_it_needs_to_run(command: str) -> None:
    assert loaded(command, "--help") == (0, set())


@pytest.mark.parametrize(
    "arguments", [["run", "digits", "--sed", "3"], *thorough(["--hlep"], ["runn"], ["serve"])]
)
def test_a_mistyped_option_is_refused_before_anything_is_loaded(arguments: list[str]) -> None:
    assert loaded(*arguments) == (2, set())


def test_a_run_to_its_end_loads_no_library_but_pytorch_and_what_that_loads(tmp_path: Path) -> None:
    """The digits are read from scikit-learn's file without scikit-learn, whose import takes as long."""
    run = ["run", "digits", "--set", "until.tasks=1", "--out", str(tmp_path / "run")]
    code, found = loaded(*run)
    assert code == 0
    assert {"torch", "offbeat.sim"} <= found
    assert found <= {"torch", "numpy", "filelock", "jinja2", "offbeat.data", "offbeat.sim", "offbeat.world",
                     "offbeat.report"}  # fmt: skip


def test_join_says_where_it_goes_and_what_it_loads_before_pytorch() -> None:
    way = "127.0.0.1:1"
    code = "import sys; sys.modules['torch'] = None; from offbeat.cli import main; main()"
    arguments = ["join", way, "--data", "digits:1/4"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    event = json.loads(done.stderr.splitlines()[0])["event"]
    assert event == f"joining {way} with --data digits:1/4: loading PyTorch"
    assert done.stdout == ""


WITHOUT_PYTORCH = """
import contextlib, io, json, sys
from offbeat.cli import main
for line in sys.stdin:
    sys.argv = ["offbeat", *json.loads(line)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code
    print("ran:", json.dumps([code, "torch" in sys.modules, said.getvalue()]), flush=True)
"""
"""A process that runs commands one after the other, and tells of each whether PyTorch is imported then."""


def test_commands_that_make_no_model_do_not_import_pytorch(tmp_path: Path) -> None:
    run, kit = str(unpack(1, "served", tmp_path) / "run"), str(tmp_path / "north.kit")
    noise = str(unpack(1, "served-noise", tmp_path) / "run")
    enrol = ["enrol", "north", "--state", str(tmp_path / "state"), "-o", kit, "--address", "localhost:1"]
    cases = {
        **{(name,): 0 for name in ("algorithms", "recipes", "models", "datasets", "--help")},
        ("algorithms", "fedasmu"): 0, ("recipes", "digits"): 0, ("new", str(tmp_path / "project")): 0,
        tuple(enrol): 0, ("check", kit, "--offline"): 0, ("check", kit, "--state", str(tmp_path)): 1,
        ("status", run): 0, ("status", noise): 0,
        ("audit", run): 0, ("audit", run, "--verify"): 0, ("replay", run, "--print"): 0,
        ("join", "nowhere", "--data", "digits"): 2,
        ("join", "x.example:1", "--data", "digits", "--set", "access.proxy=socks5://x"): 2,
        ("backup", run, str(tmp_path / "copies")): 0,
        ("stop", run): 2, ("run", "digitz"): 2, ("compare", "digitz"): 2,
        ("serve", "digits", "--stat", run): 2,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH], input="\n".join(map(json.dumps, cases)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    ran = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("ran: ")]
    for (words, wanted), (code, has_pytorch, errors) in zip(cases.items(), ran, strict=True):
        assert (code, has_pytorch) == (wanted, False), (words, errors)
