"""The files of a run that has ended."""

from pathlib import Path

import offbeat as ob
from offbeat.runs.schema import version_file
from offbeat.runs.verify import named_files


def ended_files(directory: Path) -> set[str]:
    """The files of tensors that a run which has ended needs: its model, and what it can go on from."""
    last = ob.read_run(directory).checkpoint()
    if last is None:
        return {"model.safetensors"}
    current = {path.name for path in directory.glob(version_file(last.version))}  # it is in the state too
    return {"model.safetensors", *named_files(last), *current}
