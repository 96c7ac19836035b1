"""The command line: what it prints, writes and answers, and how it says what is wrong."""

import csv
import hashlib
import json
import math
import queue
import random
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import offbeat as ob
from offbeat.cli import console
from offbeat.cli.console import _metric_lines, add_row, plain_table
from offbeat.cli.executor_options import memory_size
from offbeat.core.learner import LocalResult
from offbeat.recipes import compare as compare_module
from offbeat.recipes import run_pool
from offbeat.recipes.build import run_recipe
from offbeat.recipes.compare import plan
from offbeat.recipes.load import load_recipe
from offbeat.sim.execution import Execution
from offbeat.units import size_text
from offbeat.version import __version__
from tests.cli.answer import Answer
from tests.ended import ended_files
from tests.forks import OFFBEAT, Fork, shell_command
from tests.sampling import thorough

RECIPE: dict[str, Any] = {
    "title": "Tiny",
    "clients": 4,
    "data": {"dataset": "digits", "samples": 200, "test_samples": 50, "partition": {"kind": "iid"}},
    "model": {"name": "logistic"},
    "world": {"seconds_per_step": {"law": "exponential", "mean": 0.15, "minimum": 0.1}, "jitter": 0.05},
    "algorithm": "fedcompass",
    "algorithms": {
        "fedavg": {"steps": 4},
        "fedbuff": {"steps": 4, "size": 2},
        "fedcompass": {"q_min": 2, "q_max": 8},
    },
    "until": {"tasks": 15},
    "target": 0.3,
    "baseline": "fedcompass",
}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    return "tiny.yaml"


def process(*arguments: object, **environment: str) -> Answer:
    """The command line as a process of its own."""
    begun = Fork(OFFBEAT, *arguments, **environment)
    return Answer(begun.wait(300), *begun.communicate())


def contents(directory: Path) -> dict[str, Any]:
    database = sqlite3.connect(directory / "run.db")
    rows = {
        t: database.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall()
        for t in ("journal", "metrics", "meta")
    }
    database.close()
    return {**rows, "model": hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()}


# ---- what works ----


def test_algorithms_are_listed(offbeat: Any) -> None:
    listed = offbeat("algorithms")
    assert listed.code == 0
    for name, factory in ob.ALGORITHMS.items():
        assert re.search(rf"^{name}\s", listed.out, re.M)
        one = offbeat("algorithms", name)
        assert one.code == 0
        assert factory.paper in one.out
        assert all(option.name in one.out for option in factory.hyperparameters)


def test_recipes_are_listed_and_printed(offbeat: Any, tmp_path: Path) -> None:
    listed = offbeat("recipes")
    assert listed.code == 0
    assert "heart_disease" in listed.out
    printed = offbeat("recipes", "digits").out
    (tmp_path / "mine.yaml").write_text(printed)
    assert load_recipe(str(tmp_path / "mine.yaml")) == load_recipe("digits")


def test_version_and_help(offbeat: Any) -> None:
    assert offbeat("--version").out == f"offbeat {__version__}\n"
    assert "compare" in offbeat("--help").out
    assert offbeat().code == 2


def test_run_journal_replay_report_resume(recipe: str, offbeat: Any) -> None:
    ran = offbeat("run", recipe, "--out", "one", "--seed", 3, "--set", "until.tasks=20")
    assert ran.code == 0, ran.err
    assert "stopped: reached 20 client tasks" in ran.out
    assert "written to one" in ran.out
    record = ob.read_run(Path("one"))
    assert (record.seed, record.label, record.status) == (3, "fedcompass", "finished")

    lines = [json.loads(line) for line in offbeat("replay", "one", "--print").out.splitlines()]
    assert lines == record.journal
    wanted = {"seq", "t", "kind", "name", "client", "task", "base", "version", "staleness", "steps"}
    assert all(wanted <= set(line) for line in lines)
    grouped = [line for line in lines if line["name"] == "train" and "group" in line]
    assert len(grouped) > 5
    assert all(line["T_a"] <= line["T_max"] and line["t"] < line["T_a"] for line in grouped)
    for kind, test in {
        "event": lambda e: e["kind"] == "event",
        "command": lambda e: e["kind"] == "command",
        "arrived": lambda e: e["name"] == "arrived",
        "train": lambda e: e["name"] == "train",
    }.items():
        some = [
            json.loads(line) for line in offbeat("replay", "one", "--print", "--kind", kind).out.splitlines()
        ]
        assert some == [line for line in lines if test(line)]
        assert some

    replayed = offbeat("replay", "one")
    assert (replayed.code, replayed.err) == (0, "")
    events = sum(line["kind"] == "event" for line in lines)
    assert f"identical: {events} events gave the {len(lines) - events} recorded commands" in replayed.out

    reported = offbeat("report", "one", "-o", "page/report.html", "--figures", "png:figures")
    assert reported.code == 0, reported.err
    assert "Tiny" in Path("page/report.html").read_text("utf-8")
    assert len(list(Path("figures").glob("*.png"))) >= 1

    resumed = offbeat("resume", "one")
    assert resumed.code == 0
    assert "has finished already" in resumed.out


def test_a_run_that_has_ended_goes_on_under_other_limits(recipe: str, offbeat: Any) -> None:
    for name, tasks in (("grown", 12), ("whole", 30)):
        assert offbeat("run", recipe, "-o", name, "--set", f"until.tasks={tasks}").code == 0
    for wrong, says in {
        "training.lr=0.5": "only its limits change; write until.KEY=VALUE",
        "until.tasks=5": "has reached one of them too (reached 5 client tasks)",
        "until.task=50": "unknown key until.task",
    }.items():
        refused = offbeat("resume", "grown", "--set", wrong)
        assert refused.code == 2
        assert says in refused.err
    extended = offbeat("resume", "grown", "--set", "until.tasks=30")
    assert extended.code == 0, extended.err
    assert "stopped: reached 30 client tasks" in extended.out
    assert contents(Path("grown")) == contents(Path("whole"))
    assert offbeat("replay", "grown").code == offbeat("verify", "grown").code == 0
    offbeat("run", recipe, "-o", "small", "--no-keep-checkpoint")
    refused = offbeat("resume", "small", "--set", "until.tasks=500")
    assert refused.code == 2
    assert "cannot go on: it kept no checkpoint" in refused.err


def test_a_model_is_exported(recipe: str, offbeat: Any) -> None:
    offbeat("run", recipe, "-o", "runs/one")
    accuracy = ob.read_run(Path("runs/one")).metrics[-1]["accuracy"]
    told = offbeat("export", "runs/one").out
    first, second = told.splitlines()
    assert re.fullmatch(rf"wrote one.safetensors: logistic, version \d+, accuracy {accuracy:.4f}", first)
    assert second.startswith("wrote one.safetensors.md: ")
    assert "# Model card: one" in Path("one.safetensors.md").read_text("utf-8")
    assert Path("one.safetensors").stat().st_size > Path("runs/one/model.safetensors").stat().st_size
    assert "runs/one has no best.safetensors" in offbeat("export", "runs/one", "--best").complaint()
    assert "one.bin has no known format" in offbeat("export", "runs/one", "-o", "one.bin").complaint()
    wrong = offbeat("export", "runs/one", "--model", "none:x:y").complaint()  # and no picture of a cross
    assert "--model none:x:y: there is no module none" in wrong
    offbeat("run", recipe, "-o", "runs/two", "--set", "personal=[linear.bias]")
    told = offbeat("export", "runs/two").out.splitlines()
    assert told[1] == "left out, because they stay at the clients: linear.bias"


def test_a_replay_that_differs(recipe: str, offbeat: Any) -> None:
    offbeat("run", recipe, "--out", "one")
    database = sqlite3.connect("one/run.db")
    with database:
        database.execute("DELETE FROM checksums")
        database.execute("UPDATE journal SET steps = steps + 1 WHERE name = 'train' AND task = 7")
    database.close()
    assert re.search(
        r"the replay differs at row \d+: the replay gives train\(", offbeat("replay", "one").complaint(1)
    )


def test_a_journal_with_infinities_is_json(offbeat: Any, tmp_path: Path) -> None:
    """A learner of one's own may report a loss that is no number."""

    class Diverged(ob.NoTraining):
        def train(self, *arguments: Any) -> LocalResult:
            return replace(super().train(*arguments), metrics={"loss": math.inf})

    ob.simulate(
        ob.fedavg(), learner=Diverged(2), until=ob.Until(tasks=2), evaluate=None, out=tmp_path / "one"
    )
    lines = [json.loads(line, parse_constant=lambda c: pytest.fail(c)) for line in
             offbeat("replay", tmp_path / "one", "--print").out.splitlines()]  # fmt: skip
    assert any(line["name"] == "arrived" and line["loss"] is None for line in lines)


def test_compare_and_compare_again(recipe: str, offbeat: Any) -> None:
    command = (
        "compare",
        recipe,
        "-a",
        "fedavg",
        "-a",
        "fedbuff",
        "--seeds",
        2,
        "--out",
        "many",
        "--workers",
        2,
        "--target",
        0.2,
    )
    first = process(*command)
    assert first.code == 0, first.err
    assert re.search(r"fedavg\b.*fedbuff\b", first.out, re.S)
    assert sorted(r.path.as_posix() for r in ob.find_runs(Path("many"))) == [
        "many/fedavg/seed-0", "many/fedavg/seed-1", "many/fedbuff/seed-0", "many/fedbuff/seed-1"
    ]  # fmt: skip
    before = {p: p.stat().st_mtime_ns for p in Path("many").rglob("*") if p.suffix in (".db", ".safetensors")}
    second = offbeat(*command)
    assert second.code == 0, second.err
    assert second.out == first.out
    assert before == {p: p.stat().st_mtime_ns for p in before}
    other = offbeat(*command, "--set", "training.lr=0.5")
    assert (
        "holds another experiment's run (training.lr was 0.1, now it is 0.5): choose another --out"
        in other.complaint()
    )
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert offbeat("report", "many", "-o", "r.html", "--baseline", "fedavg").code == 0


def one_by_one(jobs: list[Any], *_: Any) -> list[ob.RunRecord]:
    """A comparison without processes; a run that is there is not made again."""
    for job in jobs:
        if not job.directory.exists():
            run_recipe(job.recipe, out=job.directory, label=job.label)
    return [ob.read_run(job.directory) for job in jobs]


@pytest.mark.thorough
def test_a_sweep_its_tables_and_runs_of_equal_labels(
    recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "compare", one_by_one)
    sweep = ("-a", "fedbuff", "--seeds", 2, "--set", "until.tasks=4", "--sweep", "training.lr=0.01,0.5")
    tables = ("--table", "grid.csv", "--table", "t/grid.tex")
    found = offbeat("compare", recipe, *sweep, "--out", "grid", *tables)
    assert found.code == 0, found.err
    assert re.search(r"label +lr +seeds +accuracy", found.out)
    assert re.search(r"Differences from fedbuff lr=0.01\s", found.out)
    assert Path("t/grid.tex").read_text().count("\\toprule") == 2
    rows = list(csv.DictReader(Path("grid.csv").read_text().splitlines()))
    assert [(row["label"], row["training.lr"], row["best_difference_n"]) for row in rows] == [
        ("fedbuff lr=0.01", "0.01", "0"), ("fedbuff lr=0.5", "0.5", "2"),
    ]  # fmt: skip
    for name, rate in (("a", 0.01), ("b", 0.5)):
        more = ("--set", "algorithm=fedbuff", "--set", "until.tasks=4", "--set", f"training.lr={rate}")
        assert offbeat("run", recipe, *more, "--label", "mine", "--out", name).code == 0
    told = offbeat("report", "a", "b", "a", "grid", "--table", "all.md", "--baseline", "mine")
    assert told.code == 0, told.err
    lines = Path("all.md").read_text().splitlines()
    assert [re.findall(r"[\w.]+", line)[:3] for line in lines[2:6]] == [
        ["fedbuff", "0.01", "2"], ["fedbuff", "0.5", "2"], ["mine", "0.01", "1"], ["mine", "0.5", "1"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "says"), [("", "give what reports"), ("a\nb", "leave out characters"), ("a/b", "leave out /")]
)
def test_a_label_of_the_command_line_follows_the_rule_of_recipes(
    label: str, says: str, recipe: str, offbeat: Any
) -> None:
    complaint = offbeat("run", recipe, "--label", label).complaint()
    assert f"--label {label!r} is not allowed: " in complaint
    assert says in complaint


def test_runs_are_compared_by_any_metric(recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_module, "compare", one_by_one)
    options = ("-a", "fedbuff", "--seeds", 1, "--out", "one", "--metric", "loss", "--target", 2.2)
    limits = ("--set", "until.metric=loss", "--set", "until.reaches=2")
    found = offbeat("compare", recipe, *options, *limits)
    assert found.code == 0, found.err
    assert "best loss" in found.out
    assert re.search(r"at\s+loss\s+2.2\s+or\s+less", found.out)
    assert ob.read_run("one/fedbuff/seed-0").stop_reason == "reached loss 2"
    assert (
        "metric 'auc' was not recorded: the runs have accuracy, loss"
        in offbeat("report", "one", "--metric", "auc").complaint()
    )
    assert (
        "target = 2.2 is not allowed: accuracy is a share"
        in offbeat("report", "one", "--target", 2.2).complaint()
    )
    page = offbeat("report", "one", "--metric", "loss")  # the recipe's target is of another metric
    assert page.code == 0, page.err
    refused = offbeat("run", recipe, "--set", "until.metric=auc", "--set", "until.reaches=0.9").complaint()
    assert "there is no metric 'auc': evaluations give loss, accuracy" in refused


def test_a_comparison_of_an_earlier_version_goes_on(
    recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recipe was recorded without the options that have come since."""
    monkeypatch.setattr(compare_module, "compare", one_by_one)
    command = ("compare", recipe, "-a", "fedbuff", "--seeds", 1, "--out", "one")
    assert offbeat(*command).code == 0
    with sqlite3.connect("one/fedbuff/seed-0/run.db") as database:
        database.execute("DELETE FROM checksums")
        database.execute(
            "UPDATE meta SET value = json_remove(value, '$.until.metric', '$.until.reaches', '$.metric') "
            "WHERE key = 'recipe'"
        )
    database.close()
    assert offbeat(*command).code == 0


def test_lines_of_metrics() -> None:
    found = {
        "loss": 0.5,
        "auroc": 0.75,
        "own_error": float("nan"),
        "clients.auroc": 0.5,
        "clients.auroc.p10": 0.1,
    }
    assert list(_metric_lines(found, {"auroc": 0.8, "loss": 0.4, "clients.auroc": 0.5})) == [
        "auroc 0.7500 at the end, 0.8000 at best, loss 0.5000",
        "own error nan at the end",
        "clients.auroc 0.5000 at the end, 0.5000 at best",
    ]
    assert list(_metric_lines({"loss": 0.5}, {})) == ["loss 0.5000"]
    assert list(_metric_lines({}, {})) == []


ASMU = ("--set", "algorithm=fedasmu", "--set", "algorithm.steps=4", "--set", "algorithm.ask_every=1",
        "--set", "algorithm.size=3", "--set", "algorithm.period=0.5", "--set", "until.tasks=12")  # fmt: skip


def test_what_clients_keep_is_shown_and_may_be_in_files(recipe: str, offbeat: Any) -> None:
    kept = offbeat("run", recipe, "--out", "kept", *ASMU)
    assert kept.code == 0, kept.err
    (line,) = [line for line in kept.out.splitlines() if line.startswith("clients keep")]
    assert re.fullmatch(r"clients keep 64 B, the server \d+\.\d kB", line)  # 4 clients, 2 numbers each
    spilled = offbeat("run", recipe, "--out", "spilled", "--client-memory", "0", *ASMU)
    assert contents(Path("spilled"))["model"] == contents(Path("kept"))["model"]
    assert line in spilled.out
    assert {p.name for p in Path("spilled").glob("*.safetensors")} == ended_files(Path("spilled"))
    assert "clients keep" not in offbeat("run", recipe, "--out", "none").out


def test_the_memory_for_clients_reaches_every_run(
    recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offbeat.sim import run_experiment

    asked = []

    class Watched(run_experiment.ClientStates):
        def __init__(self, directory: Path | None = None, limit: int | None = None) -> None:
            asked.append(limit)
            super().__init__(directory, limit)

    monkeypatch.setattr(run_experiment, "ClientStates", Watched)
    offbeat("run", recipe, "--out", "one", "--client-memory", "1.5kb", *ASMU)
    offbeat("run", recipe, "--out", "two", *ASMU)
    database = sqlite3.connect("two/run.db")
    with database:
        database.execute("DELETE FROM checksums")
        database.execute("UPDATE meta SET value = '\"interrupted\"' WHERE key = 'status'")
    database.close()
    offbeat("resume", "two", "--client-memory", "2MiB")
    loaded = load_recipe(recipe)
    (job,) = plan(loaded, ["fedavg"], 1, Path("many"), Execution(client_memory=7))
    run_pool._reports_queue = queue.SimpleQueue()
    run_pool._run(job)
    assert asked == [1500, None, 2 * 2**20, 7]
    assert "--client-memory" in offbeat("compare", "--help").out


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("12", 12),
        ("512MB", 512_000_000),
        ("2 gb", 2_000_000_000),
        ("1KiB", 1024),
        ("0.5GiB", 2**29),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert memory_size("--client-memory", text) == count


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 12_345, 3_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12.3 kB",
        "3.0 MB",
    ]


def test_brackets_in_a_table_are_printed_as_they_are() -> None:
    table = plain_table("the paper says", "here")
    add_row(table, "[3] is faster", "[bold]yes")
    with console.out.capture() as captured:
        console.out.print(table)
    assert captured.get().split()[-4:] == ["[3]", "is", "faster", "[bold]yes"]


def test_a_failing_run_says_so(recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ob.RunError("task 3 failed")

    monkeypatch.setattr(ob.TorchLearner, "train", fail)
    assert offbeat("run", recipe, "--out", "one").complaint(1) == "offbeat: task 3 failed"
    assert ob.read_run(Path("one")).status == "failed"


# ---- interruptions of a real process ----


@pytest.fixture
def long_recipe(recipe: str) -> str:
    longer = {**RECIPE, "until": {"tasks": 1200}, "evaluate": {"versions": 3}, "algorithm": "fedbuff"}
    Path("long.yaml").write_text(yaml.safe_dump(longer))
    return "long.yaml"


def wait_for(path: Path) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, *thorough(signal.SIGTERM)])
def test_a_comparison_that_is_interrupted_leaves_its_runs_at_a_checkpoint(
    number: signal.Signals, long_recipe: str
) -> None:
    command = ("compare", long_recipe, "-a", "fedbuff", "--seeds", 2, "--workers", 1, "--out", "runs")
    run = Fork(OFFBEAT, *command, "--set", "until.tasks=1000000")
    directory = Path("runs", "fedbuff", "seed-0")
    wait_for(directory / "run.db")
    time.sleep(0.5)
    run.send_signal(number)
    said = run.communicate(timeout=300)
    assert run.returncode == 130, said
    assert said[1].count("\n") == 1, said
    assert said[1] == "offbeat: interrupted; the same command with --out runs goes on\n"
    assert ob.read_run(directory).status == "interrupted"
    assert not Path("runs", "fedbuff", "seed-1").exists()  # it was handed out already, but does not begin


@pytest.mark.parametrize("kills", [1, *thorough(3)])
def test_kill_ctrl_c_and_resume(kills: int, long_recipe: str) -> None:
    """Killed, then Ctrl-C, then brought to its end by another number of processes."""
    directory, draw = Path("run"), random.Random(1)
    moments = [draw.uniform(0, 0.3) for _ in range(kills)]
    begun = ("run", long_recipe, "--out", directory)
    run = Fork(OFFBEAT, *begun)
    for moment in moments:
        wait_for(directory / "lock")
        time.sleep(moment)
        run.kill()
        run.communicate()
        started = (directory / "run.db").exists()
        run = Fork(OFFBEAT, "resume", directory) if started else Fork(OFFBEAT, *begun)
        if started:
            sessions = rows_in(directory, "sessions")
            end = time.monotonic() + 300
            while rows_in(directory, "sessions") == sessions and time.monotonic() < end:
                time.sleep(0.01)
    wait_for(directory / "run.db")
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    said = run.communicate()
    assert run.returncode == 130, said
    *progress, last = said[1].splitlines()  # on a slow machine there are lines of progress before it
    assert last.startswith("offbeat: interrupted; go on with: offbeat resume")
    assert all(line.startswith("t=") for line in progress)
    record = ob.read_run(directory)
    assert record.status == "interrupted"
    saved = record.checkpoint()
    assert saved is not None
    assert saved.journal == record.length > 0
    ended = process("resume", directory, "--workers", 1)
    assert ended.code == 0, ended.err
    loaded = load_recipe(long_recipe)
    run_recipe(loaded, out=Path("whole"))
    assert contents(directory) == contents(Path("whole"))
    assert not list(directory.glob("*.part"))
    assert {p.name for p in directory.glob("*.safetensors")} == ended_files(directory)


def rows_in(directory: Path, table: str) -> int:
    database = sqlite3.connect(f"file:{directory / 'run.db'}?mode=ro", uri=True)
    try:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        database.close()


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run nosuch", "recipe nosuch is neither a file nor built in"),
        ("run /proc/self/mem", "recipe /proc/self/mem"),
        ("run digits --set clents=3", 'unknown key clents; did you mean "clients"?'),
        ("run digits --set clients=ten", "clients = 'ten'"),
        ("run digits --set clients", "--set clients is not allowed"),
        ("run digits --set algorithm.q_min=0", "fedcompass: q_min = 0"),
        ("run digits --set algorithm.q_min=99", "q_min = 99 must not be above q_max = 40"),
        ("run digits --set algorithm.momentum=1", "momentum = 1"),
        ("run digits --set algorithm=fedbuf", 'did you mean "fedbuff"?'),
        ("run digits --set algorithm=fedbuff --set algorithm.concurrency=50", "50 clients .* there are 10"),
        (
            "run digits --set algorithm=fedavg --set algorithm.clients_per_round=11",
            "11 clients .* there are 10",
        ),
        ("run digits --set clients=2000 --set data.partition.kind=iid", "partition"),
        ("run digits --set clients=2000 --set data.partition={kind:label_dirichlet}", "partition"),
        ("run digits --set data.dataset=fashion_mnist", "dataset 'fashion_mnist' is not in"),
        ("run digits --set data.dataset=digit", "dataset 'digit' is unknown"),
        ("run digits --set data.samples=99999", "99999"),
        ("run digits --set model.name=cnn_21840", "unknown key model.hidden; known: name"),
        ("run digits --seed -1", "seed = -1"),
        ("run digits --seed 99999999999999999999", "seed = 99999999999999999999"),
        ("run digits --seed one", "--seed"),
        ("run digits --scale big", "--scale big is not allowed"),
        ("run digits --workers -1", "--workers -1 is not allowed: give a number from 0 to 1024, or auto"),
        ("run digits --workers 1000000", "--workers 1000000 is not allowed"),
        ("run digits --out=", "--out '' is not allowed: give a path"),
        ("run digits --algorithm fedavg", "has no option --algorithm: give --set algorithm=NAME"),
        ("run digits --set data=mnist", "should be a mapping with keys of .*dataset"),
        ("run digits --set client=3 --set clients=null", 'unknown key client; did you mean "clients"?'),
        ("run empty", "recipe empty is a directory"),
        ("run digits --out file", "file .a file has this name."),
        ("compare digits --target 80", "for 80 % give 0.8"),
        ("run digits --workers two", "--workers two is not allowed"),
        (
            "run digits --client-memory much",
            "--client-memory much is not allowed: give bytes, or .* as 512MB",
        ),
        ("run digits --client-memory -1", "--client-memory -1 is not allowed"),
        ("run digits --client-memory 5XB", "--client-memory 5XB is not allowed"),
        ("compare digits --client-memory MB --out new", "--client-memory MB is not allowed"),
        ("resume one --client-memory 1e9", "--client-memory 1e9 is not allowed"),
        ("run digits --out file", "cannot write a run to file"),
        ("run digits --out /proc/x", "cannot write a run to /proc/x"),
        ("run digits --nonsense", "No such option"),
        ("run", "RECIPE"),
        ("compare digits --seeds 0", "--seeds"),
        ("compare digits --target 2 --out new", "target = 2"),
        ("compare digits --target 0 --out new", "target = 0"),
        (
            "compare digits -a fedavg --metric auroc --out new",
            "metric = auroc is not what evaluations give: they give accuracy, loss",
        ),
        (
            "run digits --set metric=auc --out new",
            "metric = auc is not what evaluations give: they give accuracy",
        ),
        ("compare digits -a fedavg -a nosuch", "--algorithm nosuch is unknown"),
        ("compare digits -a fedavg -a fedavg", "name each algorithm once"),
        ("compare digits -a fedavg,fedbuff", "--algorithm fedavg,fedbuff is unknown"),
        ("compare digits --algorithm=", "--algorithm  is not allowed: name each algorithm once"),
        ("compare digits -a fedavg --baseline nosuch --out new", "--baseline nosuch is not among"),
        ("compare digits --set baseline=fedav", "baseline 'fedav' is none of the algorithms; did you mean"),
        ("compare digits --workers 0", "--workers 0 is not allowed: give a number from 1 to 1024, or auto"),
        ("compare digits --out file", "file"),
        ("compare digits --out /proc/x", "/proc/x"),
        ("compare digits -a fedbuff --set algorithms.fedbuff.concurrency=50", "50 clients"),
        ("compare digits -a fedbuff --set algorithms.fedbuff.size=0", "size = 0"),
        ("algorithms fedbuf", 'did you mean "fedbuff"?'),
        ("recipes digts", 'did you mean "digits"?'),
        ("replay nowhere --print", "nowhere is not a run"),
        ("replay nowhere", "nowhere is not a run"),
        ("resume nowhere", "nowhere is not a run"),
        ("report nowhere", "nowhere holds no run"),
        ("replay file --print", "file is not a run"),
        ("report one --target 2", "target = 2"),
        ("report one --baseline nosuch", "nosuch"),
        ("report one -o file/page.html", "cannot be written"),
        ("report one -o page.html --figures png:file", "cannot be written"),
        ("report one --table page.html", "let its name end with .csv, .md, .tex"),
        ("report one --table file/table.md", "cannot be written"),
        ("compare tiny.yaml --table table.txt", "let its name end with .csv, .md, .tex"),
        ("replay one --print --kind nonsense", "nonsense"),
        ("nosuch", "No such command"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: str, said: str, recipe: str, offbeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    monkeypatch.setenv("OFFBEAT_DATA", "empty")
    words = [w.replace("kind:", "kind: ") for w in arguments.split()]
    if "one" in words[1:2]:
        ob.simulate(ob.fedavg(steps=1), ob.World(clients=2), until=ob.Until(tasks=4), out="one")
    assert re.search(re.sub(r"\?$", r"\?", said), offbeat(*words).complaint())
    if words[0] in ("run", "compare"):
        assert not [p for p in Path().rglob("*") if p.name in ("run.db", "new")]


def test_wrong_usage_as_a_process(tmp_path: Path) -> None:
    missing = process("run", "digits", "--set", "data.dataset=fashion_mnist", OFFBEAT_DATA=str(tmp_path))
    assert "is not in" in missing.complaint()


def test_a_run_started_from_python_can_be_looked_at_but_not_resumed(recipe: str, offbeat: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        ob.simulate(
            ob.fedasync(steps=1), ob.World(clients=2), until=ob.Until(tasks=4), out="one",
            watch=lambda _: 1 / 0, checkpoint_seconds=0,
        )  # fmt: skip
    assert "was started from Python" in offbeat("resume", "one").complaint()


def test_a_reader_that_has_seen_enough(recipe: str, offbeat: Any) -> None:
    offbeat("run", recipe, "--out", "one", "--set", "until.tasks=300")
    done = subprocess.run(
        f"{shell_command(OFFBEAT)} replay one --print | head -n 2", shell=True, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_letters_that_the_locale_has_not() -> None:
    """Equations have Greek letters: where they cannot be printed, their numbers are."""
    answer = process("algorithms", "fedavgm", PYTHONIOENCODING="ascii")
    assert answer.code == 0
    assert answer.err == ""
    assert r"\u03b2" in answer.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ["algorithms", *thorough("recipes digits")])
def test_output_to_a_full_disk(command: str) -> None:
    done = subprocess.run(
        f"{shell_command(OFFBEAT)} {command} > /dev/full", shell=True, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "offbeat: the output cannot be written: No space left on device\n"


def test_without_an_output() -> None:
    done = subprocess.run(f"{OFFBEAT} --version >&-", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_results_as_json(offbeat: Any, recipe: str, tmp_path: Path) -> None:
    done = offbeat("run", recipe, "--out", "one", "--json")
    run = json.loads(done.out)
    assert (done.code, run["directory"], run["summary"]["tasks"]) == (0, "one", 15)
    assert run["stop_reason"] == "reached 15 client tasks"
    compared = json.loads(
        offbeat(
            "compare",
            recipe,
            "-a",
            "fedavg",
            "-a",
            "fedbuff",
            "--seeds",
            1,
            "--out",
            "two",
            "--json",
            "--workers",
            1,
        ).out
    )
    assert [row["label"] for row in compared["table"]] == ["fedavg", "fedbuff"]
    assert compared["table"][0]["seeds"] == 1
    verified = json.loads(offbeat("verify", "one", "--json").out)
    assert verified["problems"] == []
    assert verified["rows_replayed"] > 15
    (tmp_path / "one" / "model.safetensors").write_bytes(b"")
    damaged = offbeat("verify", "one", "--json")
    assert damaged.code == 1
    assert len(json.loads(damaged.out)["problems"]) == 1


# ---- training that diverges ----

# With one step an update is absurd, and the guard ends the run; with more the loss is not finite.
DIVERGING: dict[str, Any] = {
    "wild": {"name": "fedbuff", "steps": 1, "size": 2, "set": {"training.lr": 1e20}},
    "boom": {
        "name": "fedbuff",
        "steps": 3,
        "size": 2,
        "set": {"training.lr": 1e30, "model": {"name": "mlp", "hidden": [8]}},
    },
}


@pytest.mark.parametrize("label", DIVERGING)
def test_a_run_that_diverges_ends_with_exit_code_1(recipe: str, offbeat: Any, label: str) -> None:
    Path("wild.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithms": DIVERGING, "baseline": None}))
    for call in (("run", "wild.yaml", "--set", f"algorithm={label}", "--out", "one"), ("resume", "one")):
        answer = offbeat(*call)
        assert answer.code == 1
        assert re.search(r"has diverged; give a smaller learning rate, or a clip_norm$", answer.err.strip())
    record = ob.read_run(Path("one"))
    assert record.diverged
    assert record.status == ("finished" if label == "wild" else "diverged")
    # Nothing that was computed is lost.
    assert offbeat("report", "one").code == 0


def test_a_comparison_finishes_the_others_and_marks_what_diverged(recipe: str, offbeat: Any) -> None:
    labels = {**DIVERGING, "fedavg": {"steps": 4}, "fedbuff": {"steps": 4, "size": 2}}
    Path("wild.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithms": labels, "baseline": "fedavg"}))
    call = ("compare", "wild.yaml", "--seeds", 1, "--out", "both", "--workers", 1, "--table", "t.csv")
    first, again = offbeat(*call), offbeat(*call)
    for answer in (first, again):
        assert answer.code == 1
        assert "wild (diverged)" in answer.out
        assert "boom, seed 0, has diverged: its numbers are of the part that ran." in answer.out
        assert answer.out.splitlines()[0].startswith(("fedavg ", "fedbuff "))
        assert re.search(r"^offbeat: .*wild, seed 0: the last 10 updates", answer.err, re.MULTILINE)
    with Path("t.csv").open(encoding="utf-8") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    assert {label: row["diverged"] for label, row in rows.items()} == {
        "wild": "1", "boom": "1", "fedavg": "0", "fedbuff": "0"
    }  # fmt: skip
    assert "boom seed 0: diverged" in first.err
    assert "fedbuff seed 0: done" in first.err


def test_a_run_that_the_guard_ends_says_in_python_that_it_diverged(recipe: str) -> None:
    Path("wild.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithms": DIVERGING, "baseline": None}))
    assert run_recipe(load_recipe("wild.yaml", sets=["algorithm=wild"]), out=None).diverged
    assert not run_recipe(load_recipe(recipe), out=None).diverged
    with pytest.raises(ob.DivergedError):
        run_recipe(load_recipe("wild.yaml", sets=["algorithm=boom"]), out=None)


def test_a_tilde_in_an_option_is_the_home_directory(
    offbeat: Any, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell replaces it in `-o ~/run`, and not in `--out=~/run`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert offbeat("run", recipe, "--out=~/run").code == 0
    assert offbeat("report", "~/run", "--out=~/page.html", "--table=~/a.md", "--table=~/b.csv").code == 0
    found = [path.name for path in (tmp_path / "home").iterdir()]
    assert {"a.md", "b.csv", "page.html", "run"} <= set(found)
    assert not (tmp_path / "~").exists()
