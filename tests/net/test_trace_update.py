"""An update passes few modules and few queues on its way from a site to the server's acknowledgement."""

from pathlib import Path

import pytest

import offbeat
from tests.net.support import torch_left_alone
from tests.script_modules import load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_update.py"
MODULES, QUEUES = 19, 4


def test_an_update_passes_few_modules_and_queues() -> None:
    if not Path(offbeat.__file__).is_relative_to(SCRIPT.parents[1]):
        pytest.skip("the package under test is not this checkout")
    module = load_script(SCRIPT)
    with torch_left_alone():
        trace = module.trace_update()
    path = list(trace.modules)
    assert len(path) <= MODULES, path
    assert len(trace.queues) <= QUEUES, list(trace.queues)
    found = {name.removeprefix("offbeat.net.") for name in path}
    assert found >= {
        "client.task",
        "wire.reader",
        "server.validation",
        "server.state_files",
    }  # it has seen all
    # A large update is in the file of updates before its effects wait for their commit.
    assert list(trace.queues) == [
        "site: writer", "server: inbox", "server: messages of the effects", "server: writer",
    ]  # fmt: skip
