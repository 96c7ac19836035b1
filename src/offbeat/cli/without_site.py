"""What `offbeat replay DIR --without SITE` does: a deployed run's model without the updates of one site."""

from pathlib import Path

from offbeat.allowed import Allow
from offbeat.cli.console import metric_text, out, print_json
from offbeat.core.buffers import unchanged
from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.events import Metrics
from offbeat.core.metric_names import first_shown
from offbeat.core.model import Model
from offbeat.net.server.without_site import Contribution, contribution, replay_without
from offbeat.recipes.build import make_experiment, make_server_learner, recorded_algorithm, recorded_recipe
from offbeat.recipes.names import check_names
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import write_tensors
from offbeat.runs.record import RunRecord


def replay_without_site(
    record: RunRecord, site: str, output: Path | None, test: str | None, allow: Allow, *, as_json: bool
) -> None:
    """Make the model, evaluate it on the server's test data, and tell what the site had a part in."""
    if output is not None and output.suffix != ".safetensors":
        raise UsageError(f"--out {output} is not allowed: give a name that ends in .safetensors")
    part = contribution(record, site)
    recipe = recorded_recipe(record)
    check_names(recipe, allow)
    learner = make_server_learner(recipe, test, allow)
    tested = learner.data.test is not None
    experiment = make_experiment(recipe, recorded_algorithm(record, allow), learner)
    prepared = experiment.prepare(int(record.meta["clients"]), tested=tested)
    replay = replay_without(record, prepared, part.client)
    model = replay.model if prepared.complete is unchanged else prepared.complete(replay.model)
    metrics = learner.evaluate(model) if tested else {}
    if output is not None:
        _write(output, model)
    if as_json:
        site_part = {"site": site, "updates": part.updates, "of": part.of, "versions": part.versions}
        made = {"start": replay.start, "version": replay.version, "metrics": metrics}
        print_json({**site_part, **made, "output": None if output is None else str(output)})
        return
    for line in _lines(part, replay.start, metrics, record):
        out.print(line, markup=False, soft_wrap=True)
    if output is not None:
        out.print(
            f"wrote {output}; begin a run from it with --set initial={output}", markup=False, soft_wrap=True
        )


def _write(output: Path, model: Model) -> None:
    try:
        write_tensors(output, model.state_dict())
        sync_directory(output.parent)
    except OSError as error:
        raise RunError(f"--out {output} cannot be written: {reason_of(error)}") from None


def _lines(part: Contribution, start: int, metrics: Metrics, record: RunRecord) -> list[str]:
    """What the site had a part in, and what the model is worth without it."""
    lines = [f"{part.site}: {part.updates} of {part.of} updates"]
    if part.versions:
        lines[0] += f", in {len(part.versions)} of {part.last} versions, the first of them {part.versions[0]}"
    begun = "the initial model" if start == 0 else f"version {start}"
    lines.append(f"repeated from {begun} without them, to version {part.last}")
    if metrics:
        name = first_shown(metrics)
        before = [each.found[name] for each in record.evaluations() if name in each.found]
        with_it = f"; with it the last evaluation had {before[-1]:.4f}" if before else ""
        lines.append(f"without it: {metric_text(name, metrics[name])}{with_it}")
    return lines
