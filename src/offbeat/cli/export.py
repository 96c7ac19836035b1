"""The command that writes a run's model to a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import Directory
from offbeat.cli.console import metric_text, out


def export(
    directory: Directory,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="file to write: *.safetensors, *.pt, *.pt2 or *.onnx"
        ),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="export the best version, not the final one")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="function that makes the module, in place of the recorded one"
        ),
    ] = None,
    name_clients: Annotated[
        bool,
        typer.Option(
            "--name-clients", help="name clients and their samples in the card; default: count them"
        ),
    ] = False,
    allow: AllowOption = None,
) -> None:
    """Write a run's model as a file, and its model card.

    PyTorch or ONNX Runtime read the file.
    """
    import json

    from offbeat.core.metric_names import first_shown
    from offbeat.inference.export import export as write
    from offbeat.models.specs import ModelMaker, NamedModel
    from offbeat.named import load_named

    module = None if model is None else ModelMaker(NamedModel(model), option="--model", load=load_named)
    file = output or Path(f"{directory.resolve().name}.safetensors")
    allowed = allowed_names(allow, [directory])
    made = write(directory, file, module=module, best=best, allow=allowed, name_clients=name_clients)
    found = {name: value for name, value in json.loads(made.metadata["metrics"]).items() if value is not None}
    shown = [metric_text(first_shown(found), found[first_shown(found)])] if found else []
    told = [made.metadata["architecture"], f"version {made.metadata['version']}", *shown]
    out.print(f"wrote {made.path}: {', '.join(told)}", markup=False)
    if made.missing:
        out.print(f"left out, because they stay at the clients: {', '.join(made.missing)}", markup=False)
    out.print(f"wrote {made.card}: the model card; fill in what is unknown", markup=False)
