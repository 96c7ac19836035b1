"""What an exchange costs through Flower: a SuperLink and two SuperNodes on this machine's loopback.

    python benchmarks/flower.py [--messages 10] [--isolation process]

A: seconds from pushing a message that asks for nothing to its reply, with an app that is not Offbeat's.
B: seconds from a task to its update, through Offbeat: three steps of a logistic model on 200 samples.
C: seconds from the death of a node to the moment that Flower's grid leaves it out.

`flower_throughput.py` has the updates a second.

Needs the extra `flower`. Medians, with their range; machines are noisy, and the load is printed.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from flower_app import federation, has_ended, where, write_app
from harness import Rows, main, spread

import offbeat as ob
from tests.flower.superlink import LocalFederation
from tests.storm.processes import leave_when_told

NODES, PATIENCE = 2, 1800.0  # seconds for the tasks of a run
APP = Path(__file__).parents[1] / "examples/flower"
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

def exchange(grid, node):
    began = time.monotonic()
    ids = list(grid.push_messages([Message(RecordDict(), node, "query")]))
    while not list(grid.pull_messages(ids)):
        time.sleep(0.05)
    return time.monotonic() - began

@app.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    node = sorted(grid.get_node_ids())[0]
    seconds = [exchange(grid, node) for _ in range(int(context.run_config["messages"]))]
    (out / "seconds.json").write_text(json.dumps(seconds))
    there = len(list(grid.get_node_ids()))
    while len(list(grid.get_node_ids())) == there:
        time.sleep(0.1)
    (out / "gone.json").write_text(json.dumps(time.time()))
"""


def wait(path: Path, seconds: float = 600.0) -> Any:
    """What is written to a file, once it is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.is_file() and path.read_text():
            return json.loads(path.read_text())
        time.sleep(0.05)
    raise TimeoutError(path)


def tasks(nodes: LocalFederation, messages: int) -> list[float]:
    """B: from the journal."""
    directory = nodes.home / "run"
    nodes.run(
        APP, [f'offbeat-state="{directory}"', f"clients={NODES}", f"tasks={messages}", 'algorithm="fedasync"']
    )
    if not has_ended(directory, PATIENCE):
        raise TimeoutError(directory)
    begun: dict[int | None, float] = {}
    seconds = []
    for row in ob.read_run(directory).rows():
        if row.name == "train":
            begun[row.task] = row.t
        elif row.name == "arrived":
            seconds.append(row.t - begun[row.task])
    return seconds


def probe(nodes: LocalFederation, messages: int) -> tuple[list[float], float]:
    """A and C."""
    out = nodes.home / "probe-out"
    out.mkdir()
    app = write_app(nodes.home / "probe-app", CLIENT, SERVER, {"out": "", "messages": 1})
    nodes.run(app, [f'out="{out}"', f"messages={messages}"])
    seconds = wait(out / "seconds.json")
    died = time.time()
    for name in ("node-1", "node-1-exec"):
        if name in nodes.processes:
            nodes.kill(name)
    return seconds, wait(out / "gone.json") - died


def flower(messages: int = 10, isolation: Literal["process", "subprocess"] = "process") -> Rows:
    leave_when_told()  # so that no process of Flower's stays
    with tempfile.TemporaryDirectory() as directory, federation(Path(directory), NODES, isolation) as nodes:
        yield {"exchange": "from a task to its update", "s": spread(tasks(nodes, messages))}
        empty, gone = probe(nodes, messages)
    yield {"exchange": "an empty message", "s": spread(empty)}
    yield {"exchange": "a dead node is noticed", "s": gone}
    yield {**where(), "load": " ".join(f"{load:.1f}" for load in os.getloadavg()), "isolation": isolation}


if __name__ == "__main__":
    main(flower)
