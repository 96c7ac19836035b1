"""A model card: what an exported model is, who contributed, and what it promises, by the run's record.

The card tells the user of a model file how the model was made. What the record does not say, such as the
licence or the intended use, stands there as unknown: the publisher fills it in. An export keeps a card that
was edited.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import yaml

from offbeat.core.metric_names import CLIENTS, NamedMetric, finite, in_order
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.inference.markdown import code_block, escaped, table
from offbeat.inference.trained import TrainedModule
from offbeat.runs.own_files import check_replaceable, write_own
from offbeat.runs.record import RunRecord
from offbeat.version import __version__

MOST_CHARACTERS = 20_000
"""Most characters of a recipe that a card shows: a recipe can have a whole trace in it."""
_NO_PRIVACY = (
    "The updates had no noise. This model has no guarantee of differential privacy: it may reveal samples of "
    "its training data, or whether a sample was among them."
)
_NOT_REVIEWED = "No cryptographer has reviewed the design or its implementation."


def model_card(record: RunRecord, trained: TrainedModule, file: str, name_clients: bool = False) -> str:
    """Write the card of a run's model as Markdown.

    Args:
        record: The run.
        trained: Its module, with the weights that were exported.
        file: Name of the exported file.
        name_clients: Whether the card names the clients. Sites may not want to be known, and their names and
            numbers of samples are told only if the publisher asks for it. False means that they are counted.
    """
    version = int(trained.metadata["version"])
    sections = {
        "Model": _model(trained),
        "Training": _training(record),
        "Contributors": _contributors(record, version, name_clients),
        "Privacy": _privacy(record),
        "Evaluation": _evaluation(record, version),
        "Use": _use(),
        "Load it": _load(trained, file),
    }
    head = [
        f"# Model card: {escaped(file)}",
        "",
        "Offbeat made this card from the run's record. *Unknown* is what the record does not say: fill it in "
        "before you publish the model.",
    ]
    lines = [line for title, own in sections.items() for line in ("", f"## {title}", "", *own)]
    text = "\n".join([*head, *lines, "", ""])
    return text + _mark(text)


def write_card(text: str, file: Path) -> Path:
    """Write the card of a file as `FILE.md`, or as `FILE.new.md` beside a card that was edited.

    Args:
        text: The card.
        file: The exported file.

    Returns:
        Path of the card.
    """
    path = file.with_name(f"{file.name}.md")
    check_replaceable(path)
    if path.exists() and not _is_unedited(path.read_text(encoding="utf-8", errors="replace")):
        path = file.with_name(f"{file.name}.new.md")
    write_own(path, text)
    return path


def _mark(text: str) -> str:
    """The last line of a card, by which an export knows whether it was edited."""
    return f"<!-- made by offbeat export, SHA-256 {sha256(text.encode()).hexdigest()} -->\n"


def _is_unedited(card: str) -> bool:
    text, _, _ = card.rpartition("<!--")
    return card == text + _mark(text)


def _json(value: Any) -> list[str]:
    return code_block(json.dumps(value, ensure_ascii=False), "json")


def _given(value: Any) -> Any:
    """A recipe without the keys that have no value."""
    if isinstance(value, dict):
        return {name: _given(own) for name, own in value.items() if own not in (None, {}, [])}
    return [_given(own) for own in value] if isinstance(value, list) else value


def _model(trained: TrainedModule) -> list[str]:
    metadata, tensors = trained.metadata, trained.state_dict()
    rows = [
        ("architecture", metadata["architecture"]),
        ("numbers in its tensors", f"{sum(tensor.numel() for tensor in tensors.values()):,}"),
        ("version of the global model", metadata["version"]),
        ("SHA-256 of the trained tensors", metadata["digest"]),
        ("licence", "unknown"),
        ("trained by Offbeat", metadata.get("offbeat", "unknown")),
        ("exported by", f"Offbeat {__version__}, PyTorch {torch.__version__}"),
    ]
    rows += [
        (f"columns of {name}, in this order", ", ".join(columns))
        for name, columns in json.loads(metadata.get("columns", "{}")).items()
    ]
    if trained.missing:
        rows.append(("tensors that stay at the clients, not in the file", ", ".join(trained.missing)))
    return [*table(["", ""], rows), "", "Its arguments:", "", *_json(json.loads(metadata["arguments"]))]


def _training(record: RunRecord) -> list[str]:
    algorithm = dict(record.entry("algorithm"))
    deployed = record.served
    rows = [
        ("run", record.meta.get("run", record.path.resolve().name)),
        ("label", record.label),
        ("where", "a server and its sites" if deployed else "a simulation in virtual time"),
        ("algorithm", algorithm.pop("name", "unknown")),
        ("seed", record.seed),
        ("status", record.status),
        ("why it ended", record.stop_reason or "unknown"),
        ("processors", ", ".join(record.processors)),
    ]
    lines = [*table(["", ""], rows), "", "Options of the algorithm:", "", *_json(algorithm), ""]
    recipe = record.recipe_as_run
    if recipe is None:
        return [*lines, "The run has no recipe: it was made in Python."]
    text = yaml.safe_dump(_given(recipe), sort_keys=False, allow_unicode=True, width=100)
    cut = text[:MOST_CHARACTERS]
    shortened = ["", "The recipe is longer: the run's directory has all of it."] if cut != text else []
    own = "; data, speeds and samples held out were the sites' own" if deployed else ""
    return [*lines, f"The recipe, as it was run{own}:", "", *code_block(cut, "yaml"), *shortened]


def _contributors(record: RunRecord, version: int, name_clients: bool) -> list[str]:
    updates: Counter[int] = Counter()
    for row in record.rows("command"):
        if row.name == "aggregate" and (row.version or 0) <= version:
            updates.update((row.data or {})["clients"])
    samples, names = record.client_samples(), record.client_names()
    total = sum(samples.get(client, 0) for client in updates)
    lines = [
        f"{len(updates)} of {record.clients} clients contributed to this version, with {updates.total():,} "
        f"updates, and report {total:,} training samples in all. A client may round its number of samples up."
    ]
    if not name_clients:
        return [*lines, "", "The clients are not named here."]
    rows = [
        (names.get(client, f"client {client}"), samples.get(client, "unknown"), count)
        for client, count in sorted(updates.items())
    ]
    return [*lines, "", *table(["client", "samples", "updates"], rows)]


def _privacy(record: RunRecord) -> list[str]:
    plan = ReleasePlan.read(record.meta["privacy"]) if "privacy" in record.meta else None
    lines = _noise(record, plan) if plan is not None and plan.noise is not None else [_NO_PRIVACY]
    if plan is not None and (secure := plan.privacy.secure) is not None:
        helpers = len(secure.helpers)
        lines += [
            "",
            f"Secure aggregation: the server learnt sums of at least {plan.privacy.fewest} clients' updates, "
            f"clipped to norm {plan.privacy.clip:g}, if at most {secure.most_colluding} of "
            f"{helpers or 'the'} helpers colluded with it. It gives no ε.",
        ]
    examples = (record.recipe or {}).get("examples")
    if examples is not None:
        rows = sorted((name, value) for name, value in examples.items() if value is not None)
        lines += ["", "Privacy of examples at the clients (DP-SGD):", "", *table(["option", "value"], rows)]
    if lines != [_NO_PRIVACY]:
        lines += ["", f"Experimental. {_NOT_REVIEWED}"]
    if record.served:
        lines += ["", "A site may have used DP-SGD on its own examples: only the site knows its ε."]
    return lines


def _noise(record: RunRecord, plan: ReleasePlan) -> list[str]:
    assert plan.noise is not None
    ledger = PrivacyLedger(plan)
    for row in record.rows():
        ledger.read(row)
    spent, noise = ledger.summary(), plan.noise
    rows = [
        ("ε of the busiest client", f"{spent['epsilon']:.4g}"),
        ("ε of the busiest client, by the stricter formula (zCDP)", f"{spent['epsilon_strict']:.4g}"),
        ("δ", f"{spent['delta']:g}"),
        ("budget of ε", f"{spent['budget']:g}" if "budget" in spent else "none"),
        ("releases with the busiest client", f"{spent['releases']:.0f}"),
        ("unit", "a client with all its updates"),
        ("neighbours", "two runs, in one of which all updates of one client are zero"),
        ("clip: largest norm of an update", f"{plan.privacy.clip:g}"),
        ("noise multiplier z", f"{plan.multiplier:.4g}"),
        ("bands of the noise", noise.bands),
        ("limited by", "Gaussian differential privacy" if noise.accounting == "gdp" else "zCDP"),
        ("covers", "all versions of the run, not this one alone"),
    ]
    lines = table(["", ""], rows)
    if not record.served:
        lines += [
            "",
            "The run is a simulation: its noise follows from its seed, which is in this card. So **the model "
            "is not private**, and the table says what a deployed run would have promised.",
        ]
    return [*lines, "", "Which assumptions this needs, the page *Privacy* of the documentation says."]


def _evaluation(record: RunRecord, version: int) -> list[str]:
    made = [evaluation for evaluation in record.evaluations() if evaluation.version == version]
    if not made:
        return ["The run has no evaluation of this version."]
    last = made[-1]
    named = {name: NamedMetric.of(name, record.higher_is_better) for name in in_order(last.found)}
    rows = [
        (
            metric.words,
            _value(metric, last.found[name]),
            _where(name),
            "more" if metric.higher_is_better else "less",
        )
        for name, metric in named.items()
    ]
    data = (record.recipe or {}).get("data") or {}
    dataset = data.get("dataset") or "unknown"
    return [
        f"Dataset: {escaped(dataset)}, evaluated on: {escaped(data.get('evaluate_on') or 'unknown')}. The "
        "run does not record the number of test samples.",
        "",
        *table(["metric", "value", "on", "better"], rows),
        "",
        "One seed gives one value: compare several seeds before you call a difference real.",
    ]


def _value(metric: NamedMetric, value: float | None) -> str:
    return "undefined" if finite(value) is None or value is None else metric.value_text(value)


def _where(name: str) -> str:
    return "held-out samples of the clients" if name.startswith(CLIENTS) else "test data"


def _use() -> list[str]:
    return [
        "- Intended use: unknown.",
        "- Out of scope: unknown.",
        "- Groups of people on which it works less well: unknown.",
        "- Contact: unknown.",
    ]


def _load(trained: TrainedModule, file: str) -> list[str]:
    quoted = repr(file)
    name = type(trained.module).__name__
    strict = ", strict=False" if trained.missing else ""
    made = f"module = …  # {name}, with the arguments above"
    texts: Mapping[str, Callable[[], list[str]]] = {
        ".safetensors": lambda: [
            "from safetensors.torch import load_file", "", made,
            f"module.load_state_dict(load_file({quoted}){strict})", "module.eval()",
        ],
        ".pt": lambda: [
            "import torch", "", made,
            f"module.load_state_dict(torch.load({quoted}, weights_only=True){strict})", "module.eval()",
        ],
        ".pt2": lambda: ["import torch", "", f"module = torch.export.load({quoted}).module()"],
        ".onnx": lambda: ["import onnxruntime", "", f"session = onnxruntime.InferenceSession({quoted})"],
    }  # fmt: skip
    return code_block("\n".join(texts["." + file.rpartition(".")[2]]()), "python")
