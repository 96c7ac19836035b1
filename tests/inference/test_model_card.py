"""Model cards: what the record says, word for word; names of others are text; an edited card stays."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from torch import nn

import offbeat as ob
from offbeat.inference.markdown import code_block, escaped
from offbeat.runs.record import RunRecord

DATA = ob.federate(
    ob.Dataset(torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 2, 2),
    ob.Dataset(torch.randn(4, 3, generator=torch.Generator().manual_seed(2)), torch.arange(4) % 2, 2),
    np.split(np.arange(12), 3),
)
HOSTILE = (
    "<script>alert(1)</script>",
    "a | b | c\n\n# Heading",
    "[click](javascript:alert(1)) ![x](https://example.org/x.png) <https://example.org> www.example.org",
    "`code` **bold** _em_ ~~no~~ $x$ \\| &lt;b&gt; http://example.org",
    "\u202egnp.exe \ud800 \x1b[31m",
    "x" * 5000,
)


def linear() -> nn.Module:
    return nn.Linear(3, 2)


def simulated(path: Path, **options: Any) -> RunRecord:
    learner = ob.TorchLearner(linear, DATA, ob.Training(batch_size=4))
    until = ob.Until(versions=3)
    ob.simulate(ob.fedavg(steps=1), learner=learner, seed=5, until=until, out=path, **options)
    return ob.read_run(path)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return simulated(tmp_path_factory.mktemp("card") / "run")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    noise = ob.Noise(multiplier=2.0, budget=ob.Budget(epsilon=20.0, delta=1e-5))
    return simulated(tmp_path_factory.mktemp("card") / "run", privacy=ob.Privacy(clip=1.5, noise=noise))


def card_of(record: RunRecord, folder: Path, name: str = "model.safetensors", **options: Any) -> str:
    return ob.export(record, folder / name, module=linear, **options).card.read_text("utf-8")


def section(card: str, title: str) -> str:
    return card.partition(f"\n## {title}\n\n")[2].partition("\n\n## ")[0]


MADE_HERE = re.compile(
    r"(?<=SHA-256 of the trained tensors \| )\w+|(?<=trained by Offbeat \| )[^|]+(?= \|)"
    r"|(?<=exported by \| )[^|]+(?= \|)|(?<=processors \| )[^|]+(?= \|)|(?<=accuracy \| )[^|]+(?= \|)"
    r"|(?<=loss \| )[^|]+(?= \|)|(?<=SHA-256 )\w{64}"
)
"""What depends on the machine and on versions."""


def test_the_card_of_a_plain_run_word_for_word(record: RunRecord, tmp_path: Path) -> None:
    card = MADE_HERE.sub("*", card_of(record, tmp_path))
    assert card == (Path(__file__).parent / "plain_card.md").read_text("utf-8")


def test_the_privacy_of_a_run_with_noise_word_for_word(private: RunRecord, tmp_path: Path) -> None:
    found = section(card_of(private, tmp_path), "Privacy")
    assert found == (Path(__file__).parent / "private_section.md").read_text("utf-8").rstrip("\n")
    spent = private.summary.privacy  # type: ignore[union-attr]
    assert spent is not None
    assert f"| ε of the busiest client | {spent['epsilon']:.4g} |" in found


def test_a_deployed_run_does_not_say_that_it_was_simulated(private: RunRecord, tmp_path: Path) -> None:
    secure = {"helpers": ["anna", "bert"], "colluding": None}
    options = private.meta["privacy"]["options"] | {"secure": secure, "least": 3, "most": 3}
    meta = private.meta | {"privacy": private.meta["privacy"] | {"options": options}}
    meta["plan"] = meta.pop("learner")
    card = card_of(replace(private, meta=meta), tmp_path)
    assert "| where | a server and its sites |" in card
    assert "simulation" not in section(card, "Privacy")
    assert "sums of at least 3 clients' updates, clipped to norm 1.5" in card
    assert "if at most 1 of 2 helpers colluded" in card
    assert "No cryptographer has reviewed" in card


def test_the_recipe_of_a_deployed_run_is_without_what_its_server_ignored(
    record: RunRecord, tmp_path: Path
) -> None:
    recipe = {
        "data": {"dataset": "digits", "partition": {"kind": "iid"}, "validation": 0.25},
        "world": {"seconds_per_step": 3}, "seed": 5,
    }  # fmt: skip
    simulated = replace(record, recipe=recipe)
    deployed = replace(simulated, meta=record.meta | {"plan": {}})
    for made, there in ((simulated, True), (deployed, False)):
        training = section(card_of(made, tmp_path), "Training")
        assert "dataset: digits" in training
        assert [word in training for word in ("partition", "validation", "world")] == [there] * 3
    assert deployed.recipe == recipe


def test_clients_are_counted_and_named_only_if_asked_for(record: RunRecord, tmp_path: Path) -> None:
    named = replace(record, meta=record.meta | {"client_names": ["north", "east", "south"]})
    assert "north" not in card_of(named, tmp_path)
    table = section(card_of(named, tmp_path, name_clients=True), "Contributors")
    assert "| north | 4 | 3 |\n| east | 4 | 3 |\n| south | 4 | 3 |" in table


def test_only_clients_of_the_exported_version_contribute(record: RunRecord, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(record.path / "model.safetensors")
    best = record.path / "best.safetensors"
    save_file(tensors, best, {"metric": "loss", "value": "0.5", "version": "1", "t": "1.0"})
    card = card_of(record, tmp_path, best=True)
    best.unlink()
    assert "3 of 3 clients contributed to this version, with 3 updates" in card


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("model.safetensors", "load_file('model.safetensors')"),
        ("model.pt", "torch.load('model.pt', weights_only=True)"),
        ("model.pt2", "torch.export.load('model.pt2').module()"),
    ],
)
def test_the_card_says_how_the_format_is_loaded(
    record: RunRecord, name: str, line: str, tmp_path: Path
) -> None:
    assert line in section(card_of(record, tmp_path, name), "Load it")


def test_a_long_recipe_is_shortened(record: RunRecord, tmp_path: Path) -> None:
    long = replace(record, recipe={"world": {"trace": ["x" * 50] * 2000}})
    card = card_of(long, tmp_path)
    assert len(card) < 30_000
    assert "The recipe is longer" in card


# Texts of others


class Tags(HTMLParser):
    """The tags of a page, its links and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.links, self.text = set[str](), list[str | None](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for key, value in attrs if key in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def pages(text: str) -> list[Tags]:
    """The page as two renderers show it: CommonMark with tables, and that of the documentation."""
    made = [MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)]
    try:
        from markdown import markdown
    except ImportError:
        pass
    else:
        made.append(markdown(text, extensions=["tables", "fenced_code"]))
    return [Tags(page) for page in made]


PLAIN = {
    "h1",
    "h2",
    "p",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "em",
    "strong",
    "code",
    "pre",
    "ul",
    "li",
}


def test_hostile_names_are_text(record: RunRecord, tmp_path: Path) -> None:
    card = card_of(record, tmp_path, name_clients=True)
    headings = re.findall(r"^#+ .*", card, re.MULTILINE)
    for name in HOSTILE:
        meta = record.meta | {"client_names": [name] * 3, "run": name, "offbeat": name, "processors": [name]}
        recipe = {"title": f"```\n{name}\n```", name: name, "data": {"dataset": name}}
        hostile = replace(record, meta=meta, label=name, stop_reason=name, recipe=recipe)
        found = card_of(hostile, tmp_path, name_clients=True)
        assert (
            re.findall(r"^#{1,2} .*", re.sub(r"^(`{3,}).*?^\1$", "", found, flags=re.M | re.S), re.M)
            == headings
        )
        for page in pages(found):
            assert page.tags <= PLAIN
            assert page.links == []
        assert not re.search(r"[\u202e\x1b\ud800]", found)


@pytest.mark.parametrize(
    "meta",
    [
        {"privacy": {}},
        {"privacy": {"options": {"clip": -1.0}, "parameters": 8, "clients": 3}},
        {"algorithm": 7},
        {"processors": 7},
        {"client_names": 7},
    ],
)
def test_a_record_that_is_not_as_it_was_written_gives_one_line(
    record: RunRecord, meta: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ob.OffbeatError):
        card_of(replace(record, meta=record.meta | meta), tmp_path, name_clients=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_an_escaped_text_reads_as_it_was(name: str) -> None:
    shown = " ".join(name.split())[:200]
    for page in pages(f"| a |\n|---|\n| {escaped(name)} |\n"):
        assert page.tags <= PLAIN
        expected = "".join(c if c.isprintable() else "?" for c in shown)
        assert expected in page.text


def test_a_fence_is_longer_than_those_in_the_text() -> None:
    assert code_block("a\n````\nb", "yaml") == ["`````yaml", "a", "````", "b", "`````"]


# An edited card


def test_a_card_that_nobody_edited_is_replaced(record: RunRecord, tmp_path: Path) -> None:
    first = ob.export(record, tmp_path / "m.pt", module=linear).card
    again = ob.export(record, tmp_path / "m.pt", module=linear, name_clients=True).card
    assert first == again == tmp_path / "m.pt.md"
    assert "client 2" in again.read_text("utf-8")


@pytest.mark.parametrize("edit", ["mine", "", "<!--", "# Model card\n<!-- made by offbeat export -->\n"])
def test_an_edited_card_stays(record: RunRecord, edit: str, tmp_path: Path) -> None:
    card = tmp_path / "m.pt.md"
    card.write_text(edit)
    made = ob.export(record, tmp_path / "m.pt", module=linear).card
    assert made == tmp_path / "m.pt.new.md"
    assert card.read_text() == edit


def test_a_card_says_the_order_of_the_columns(tmp_path: Path) -> None:
    columns = {"x": ("age", "dose | x", "weight")}
    data = ob.federate([ob.Dataset(torch.ones(4, 3), torch.arange(4) % 2, 2, columns)])
    learner = ob.TorchLearner(linear, data)
    until = ob.Until(versions=1)
    ob.simulate(ob.fedavg(steps=1), learner=learner, until=until, out=tmp_path / "run", evaluate=None)
    exported = ob.export(tmp_path / "run", tmp_path / "model.safetensors", module=linear)
    assert json.loads(exported.metadata["columns"]) == {"x": ["age", "dose | x", "weight"]}
    card = exported.card.read_text("utf-8")
    assert "| columns of x, in this order | age, dose &#124; x, weight |" in card
