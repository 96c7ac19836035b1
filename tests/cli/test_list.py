"""`offbeat algorithms`, `models` and `datasets`: what there is, what it is made of, what it needs."""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from pydantic import Field
from rich.console import Console

import offbeat as ob
from offbeat.algorithms.describe import driver_needs, made_with_defaults, parts, short_paper
from offbeat.algorithms.factory import Factory, algorithm
from offbeat.algorithms.privacy.private import sum_only
from offbeat.cli import list as listing
from offbeat.cli.catalogue import AlgorithmView, catalogue
from offbeat.core.errors import UsageError
from offbeat.core.features import DRIVERS, Feature
from offbeat.data import DATASETS
from offbeat.models import MODELS
from tests.cli.answer import Answer

ROOT = Path(__file__).parents[2]
EVERY = sorted(ob.ALGORITHMS)


@algorithm(paper="Nobody, Steps Wanted [1], 2026", kind="synchronous")
def wanting(steps: Annotated[int, Field(ge=1, description="local steps [Q]")]) -> ob.Algorithm:
    """What has a required option."""
    return ob.fedavg(steps=steps)


@algorithm(paper="Nobody, At Odds, 2026", kind="synchronous")
def at_odds(steps: int = 0) -> ob.Algorithm:
    """What its own default does not allow."""
    return ob.fedavg(steps=steps)


def shown(width: int, factory: Factory[...] | None = None) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        if factory is None:
            listing.show_algorithms(console, catalogue().algorithms.values())
        else:
            listing.show_algorithm(console, listing.view_of(factory))
    return captured.get()


@pytest.mark.parametrize("width", [100, 130, 160])
def test_the_list_fits_and_says_what_each_needs(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    starts = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert starts == ["algorithm", *ob.ALGORITHMS]
    assert "McMahan et al. 2017" in " ".join(text.split()) or width < 130


def test_the_list_has_the_needs_in_words() -> None:
    lines = {line.split()[0]: line for line in shown(160).splitlines()}
    assert lines["fedavg"].rstrip().endswith("–")
    assert lines["fedasync"].rstrip().endswith("single updates")
    assert lines["fedasmu"].rstrip().endswith("single updates, client state, fresh models")


def test_the_command_says_what_runs_an_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    listing.algorithms()
    text = " ".join(capsys.readouterr().out.split())
    assert "needs of what" in text
    assert "what runs an algorithm is the simulator, which has all of this, or a server" in text


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_shows_its_parts_and_needs(name: str) -> None:
    factory = ob.ALGORITHMS[name]
    text = shown(400, factory)
    made = factory()
    for part in (made.schedule, made.aggregator, made.objective, *made.server_steps):
        assert f" {type(part).__name__} " in text
    for feature in Feature:
        assert (f"  {feature}: {feature.description}" in text) == (feature in made.requires)
    assert set(driver_needs(made)) == made.requires <= DRIVERS
    assert ("with privacy, with its defaults: sums of updates are enough" in text) == (name in sum_only())
    assert listing.NOT_REVIEWED in text
    for part in parts(made):
        assert part.summary
        assert part.exchange


@pytest.mark.parametrize("width", [100, 160])
def test_the_parts_fit(width: int) -> None:
    text = shown(width, ob.fedbuff)
    assert max(map(len, text.splitlines())) <= width
    assert "needs of what runs it, with its defaults: nothing" in text


def test_parts_of_parts_and_their_conditions() -> None:
    listed = {part.name: part for part in parts(ob.ALGORITHMS["fedasmu"]())}
    assert list(listed) == [
        "RequestFreshModel",
        "Periodic",
        "AdaptiveMixing",
        "FreshMerge",
        "Plain",
        "follow",
    ]
    assert [part.depth for part in listed.values()] == [0, 1, 0, 0, 1, 0]
    assert listed["Periodic"].role == "its schedule"
    assert listed["AdaptiveMixing"].exchange == "any aggregator"
    assert listed["RequestFreshModel"].exchange == (
        f"{Feature.ASKING.description}; FreshMerge needs it; this one needs {Feature.MERGE.description}"
    )
    plain = replace(ob.fedavg(), aggregator=ob.fedasync().aggregator)
    *shown_parts, buffers = parts(plain)
    assert [part.exchange for part in shown_parts] == ["any schedule", "any aggregator", "any objective"]
    assert (buffers.role, buffers.name, buffers.exchange) == ("buffers", "follow", "mean, local, recompute")


def test_what_buffers_put_round_an_objective_is_no_part() -> None:
    made = replace(ob.fedprox(), buffers="local")
    assert [part.name for part in parts(made)] == ["Rounds", "MeanOfModels", "Proximal", "local"]
    assert driver_needs(made) == [Feature.CLIENT_STATE]


def test_an_algorithm_that_needs_options_says_which() -> None:
    assert made_with_defaults(wanting) == "give steps"
    text = shown(160, wanting)
    assert "It cannot be made with its defaults: give steps" in text
    assert "local steps [Q]" in text
    assert "Steps Wanted [1]" in text
    assert "steps = 0" in shown(160, at_odds)


def test_the_list_goes_on_past_such_an_algorithm() -> None:
    console = Console(width=160, highlight=False)
    with console.capture() as captured:
        listing.show_algorithms(console, map(listing.view_of, (wanting, ob.fedavg)))
    text = captured.get()
    assert "? (give steps)" in text
    assert "fedavg" in text


def test_the_catalogue_has_what_is_found() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_catalogue.py"))
    assert script["CATALOGUE"].read_text("utf-8") == script["catalogue"](), (
        "run python scripts/write_catalogue.py"
    )


@pytest.mark.parametrize("command", ["algorithms", "recipes", "models", "datasets"])
def test_each_list_is_printed_as_json_too(command: str, offbeat: Callable[..., Answer]) -> None:
    code, text, _ = offbeat(command, "--json")
    assert code == 0
    known = getattr(catalogue(), command)
    assert list(json.loads(text)) == list(known)


def test_one_algorithm_is_printed_as_json(offbeat: Callable[..., Answer]) -> None:
    code, text, _ = offbeat("algorithms", "fedbuff", "--json")
    assert code == 0
    assert msgspec.json.decode(text, type=AlgorithmView) == catalogue().algorithms["fedbuff"]
    code, _, errors = offbeat("recipes", "digits", "--json")
    assert code == 2
    assert errors == "offbeat: --json is for the list: offbeat recipes digits prints the recipe as YAML\n"


def test_papers_in_short() -> None:
    assert short_paper("Li et al., FedCompass, ICLR 2024, Algorithms 1-3") == "Li et al. 2024"
    assert short_paper("Su, Li, How Asynchronous can it be?, IWQoS 2022") == "Su and Li 2022"
    assert short_paper("Somebody") == "Somebody"


def test_choices_and_types_are_told_without_their_modules() -> None:
    allowed = {o.name: o.allowed for o in ob.ALGORITHMS["fedasmu"].hyperparameters}
    assert allowed["controls.gradient"] == "derived or as_printed or derived_epochs or as_printed_epochs"
    assert allowed["ask"] == "fixed or learned or never"
    assert allowed["threshold"] == "int, ≥ 1"


@pytest.mark.parametrize(
    ("command", "names", "said"),
    [
        (listing.models, MODELS, "resnet20 278,324 (any, any, any)"),
        (
            listing.datasets,
            DATASETS,
            "hapt 8,094 / 1,923 128x6 6 activities by a smartphone's sensors 30 persons",
        ),
    ],
)
def test_models_and_datasets_are_listed(command, names, said, monkeypatch):
    console = Console(width=300, highlight=False)
    monkeypatch.setattr(listing, "out", console)
    with console.capture() as captured:
        command()
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert [line.split()[0] for line in lines[1 : len(names) + 1]] == list(names)
    assert any(line.startswith(said) for line in lines)


OWN = """
import offbeat as ob
from offbeat import parts as p


def schedule(steps: int = 5, *rest, weight=1, **more) -> ob.Algorithm:
    \"\"\"Rounds of our own.

    They are those of FedAvg.
    \"\"\"
    return ob.fedavg(steps=steps)


@p.algorithm(paper="Nobody, Own Rounds, 2026", kind="synchronous")
def published(steps: p.Steps = 3) -> ob.Algorithm:
    \"\"\"Rounds with checked options.\"\"\"
    return ob.fedavg(steps=steps)


def wanting(steps): return ob.fedavg(steps=steps)
def breaks(): return 1 / 0
def number(): return 3
COUNT = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_rounds.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_rounds"
    sys.modules.pop("own_rounds", None)


def described(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    listing.algorithms(name)
    return capsys.readouterr().out


def test_an_algorithm_of_ones_own_is_described(own_module: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = described(f"{own_module}:schedule", capsys)
    assert text.startswith(f"{own_module}:schedule: Rounds of our own.\n\nThey are those of FedAvg.\n\n")
    options = [
        line.split() for line in text.splitlines() if line.startswith(("steps", "weight", "rest", "more"))
    ]
    assert options == [["steps", "5", "int"], ["weight", "1", "anything"]]
    assert " Rounds " in text
    text = described(f"{own_module}:published", capsys)
    assert text.splitlines()[:2] == [
        f"{own_module}:published: Rounds with checked options.", "Nobody, Own Rounds, 2026"
    ]  # fmt: skip
    assert "int, ≥ 1" in text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("wanting", "give steps"),
        ("breaks", "own_rounds.py:21: ZeroDivisionError: division by zero"),
        ("number", "returned a int: it must return an Algorithm"),
    ],
)
def test_an_algorithm_of_ones_own_that_cannot_be_made_is_told(
    own_module: str, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    text = described(f"{own_module}:{name}", capsys)
    assert text.startswith(f"{own_module}:{name}\n\n"), "there is no docstring and no paper"
    assert "It cannot be made with its defaults: " in text
    assert text.rstrip().endswith(why)


@pytest.mark.parametrize("name", ["own_rounds:nothing", "own_rounds:COUNT", "no_such_module:f", "fedbuf"])
def test_a_name_of_no_algorithm_is_wrong_usage(own_module: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"algorithm {name}"):
        listing.algorithms(name)
