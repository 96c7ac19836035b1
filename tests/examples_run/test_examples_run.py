"""Every example runs, the one-file algorithm of the docs is right, and the docs' Python works as printed."""

import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import offbeat as ob
from offbeat.parts import Arrived, Begin, Joined, Timer
from offbeat.recipes import load_recipe
from offbeat.testing import check_algorithm
from tests.forks import Fork
from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONG = {"autoencoder", "multilabel", "own_loop", "regression", "scikit_learn_sites", "segmentation"}
NEEDS = {"lora": "peft", "scikit_learn_sites": "grpc", "regression": "sklearn", "tabular": "sklearn"}
SAYS = {
    "autoencoder": "version 30  loss 0.00",
    "deadline": "144 versions, 1152 updates, 90 dropped",
    "drive_by_hand": "version 2: w = [2.0, 2.8284270763397217]",
    "fedcompass_theory": "at most 2 groups remain",
    "lora": "bytes of an update: 2,312, of the whole model: ",
    "multilabel": "round 12  accuracy 0.9",
    "own_loop": "fedasmu: accuracy 0.9",
    "own_module": "(0.5, 0.5) is of class 1",
    "regression": "version 60  RMSE 0.",
    "scikit_learn": "fedcompass: accuracy 0.8",
    "scikit_learn_sites": "reached 20 versions: accuracy 0.8",
    "segmentation": "version 24  loss 0.0",
    "tabular": "balanced accuracy 0.9",
    "text": "version 12  loss 0.1",
    "quickstart": "12:00  version 6 from clients [1, 2, 3]",
}


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.thorough] if path.stem in LONG else [])
        for path in EXAMPLES
    ],
)
def test_an_example_runs_and_says_what_it_should(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS[path.stem] in capsys.readouterr().out


def module(name: str) -> ModuleType:
    return load_script(ROOT / "examples" / f"{name}.py")


fedavg_deadline = module("deadline").fedavg_deadline


# --8<-- [start:golden]
def test_deadline_by_hand() -> None:
    server = ob.Server(fedavg_deadline(10, steps=5).schedule)
    for client in range(3):
        server.feed(0, Joined(client, samples=1, steps_per_epoch=1))
    assert [c.client for c in server.feed(0, Begin())[1:]] == [0, 1, 2]  # after the timer

    assert server.feed(4, Arrived(0, 0, 5)) == []
    assert server.feed(6, Arrived(1, 1, 5)) == []
    aggregate, timer, *trains = server.feed(10, Timer("deadline"))  # client 2 is late
    assert (aggregate.clients, aggregate.version) == ((0, 1), 1)
    assert timer.at == 20
    assert [t.client for t in trains] == [0, 1]  # client 2 is busy

    (drop,) = server.feed(12, Arrived(2, 2, 5))
    assert (drop.client, drop.reason) == (2, "after the deadline")
    server.feed(13, Arrived(0, 3, 5))
    cancel, aggregate, timer, *trains = server.feed(15, Arrived(1, 4, 5))  # everyone, before the deadline
    assert cancel.timer == "deadline"
    assert aggregate.clients == (0, 1)
    assert (timer.at, [t.client for t in trains]) == (25, [0, 1, 2])


def test_a_round_without_an_update_lasts_until_its_first() -> None:
    server = ob.Server(fedavg_deadline(10, steps=5).schedule)
    for client in range(2):
        server.feed(0, Joined(client, samples=1, steps_per_epoch=1))
    server.feed(0, Begin())
    assert server.feed(10, Timer("deadline")) == []
    aggregate, timer, train = server.feed(17, Arrived(1, 1, 5))
    assert (aggregate.clients, timer.at, train.client) == ((1,), 27, 1)


# --8<-- [end:golden]


# --8<-- [start:properties]
WORLD = ob.World(
    ob.laws.Exponential(1.0),
    clients=6,
    jitter=0.5,
    availability=ob.Availability(dropout=0.2, period=100, present=0.7),
)


def test_with_a_far_deadline_it_is_fedavg() -> None:
    def decisions(algorithm: ob.Algorithm) -> list[object]:
        run = ob.simulate(algorithm, WORLD, until=ob.Until(seconds=2000))
        keep = ("t", "name", "client", "task", "base", "steps", "tasks")
        return [{k: e.get(k) for k in keep} for e in run.journal if e["name"] in ("train", "aggregate")]

    assert decisions(fedavg_deadline(1e9, steps=5)) == decisions(ob.fedavg(steps=5))


@pytest.mark.parametrize("clients", [None, 1, 3])
@pytest.mark.parametrize("seconds", [0.5, 5.0, 50.0])
def test_it_keeps_the_rules_in_random_worlds(seconds: float, clients: int | None) -> None:
    algorithm = fedavg_deadline(seconds, steps=5, clients_per_round=clients)
    check_algorithm(algorithm, 4, clients=(3, 6))
    run = ob.simulate(algorithm, WORLD, until=ob.Until(seconds=2000))
    assert run.summary.versions > 10


# --8<-- [end:properties]


def test_the_page_about_adding_an_algorithm_takes_its_code_from_files() -> None:
    """A formatter that takes the marks for Python writes them so that nothing is put in their place."""
    page = (ROOT / "docs" / "add-an-algorithm.md").read_text(encoding="utf-8")
    marks = re.findall(r"^--8.*$", page, re.MULTILINE)
    assert len(marks) == 3
    for mark in marks:
        found = re.fullmatch(r'--8<-- "([^":]+)(?::(\w+))?"', mark)
        assert found, mark
        text = (ROOT / found[1]).read_text(encoding="utf-8")
        assert found[2] is None or f"# --8<-- [start:{found[2]}]\n" in text


PAGES = (
    "index", "python", "compose", "testing", "wireless", "codecs", "metrics", "own-training", "own-loop",
    "client-evaluation", "robust", "privacy", "secure-aggregation", "private-examples", "callbacks",
    "trackers", "results", "inference", "studies", "feature-scaling", "leaf-and-pandas",
    "coming-from/flower", "coming-from/flgo", "coming-from/appfl", "coming-from/pfl-research",
    "coming-from/nvflare",
)  # fmt: skip


PAGE_NEEDS = {
    "inference": "onnxruntime", "python": "pandas", "leaf-and-pandas": "pandas", "coming-from/flower": "flwr",
    "secure-aggregation": "cryptography.hazmat.primitives.hpke", "private-examples": "opacus",
}  # fmt: skip


def python_blocks(page: str) -> list[str]:
    """The Python on a page of the documentation."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    return blocks


@pytest.mark.parametrize("page", PAGES)
def test_the_python_on_a_page_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")  # the pages use the digits
    pytest.importorskip(PAGE_NEEDS.get(page, "torch"))
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    names: dict[str, object] = {"__name__": page}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)


def test_the_tuning_on_the_page_of_studies_works_as_a_file(tmp_path: Path) -> None:
    """The processes that it starts import it."""
    pytest.importorskip("sklearn")
    script = tmp_path / "tuning.py"
    script.write_text(next(block for block in python_blocks("studies") if "import tune" in block))
    process = Fork(script, cwd=tmp_path)
    printed, errors = process.communicate(300)
    assert process.returncode == 0, errors
    assert printed.startswith("{")


@pytest.mark.parametrize("page", sorted((ROOT / "docs/coming-from").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_for_those_who_come_from_elsewhere(page: Path, tmp_path: Path) -> None:
    """It has code of both, a table of words, what is missing on both sides, limits; its recipe is one."""
    text = page.read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert {"Words", "What has no counterpart", "Limits", "Where to go on"} <= headings
    assert "fter this page you can" in " ".join(text.split())
    assert "has these features, and Offbeat does not:" in text
    assert re.search("Offbeat has these features, and .* does not:", text)
    assert text.count('<div class="grid" markdown>') >= 1
    for recipe in re.findall(r"^```yaml\n# Offbeat: .*\n((?:.*\n)*?)```", text, re.MULTILINE):
        (tmp_path / "recipe.yaml").write_text(recipe)
        load_recipe(tmp_path / "recipe.yaml")
