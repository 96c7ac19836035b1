"""Running the variants: each repeat in a process of its own, round robin, so that noise hits all alike."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from variants import Table, Variant

HERE = Path(__file__).parent
PEERS = HERE.parent / "peers"
SOURCE = HERE.parents[1] / "src"
LIMIT_SECONDS = 1800.0


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0)))
        if hasattr(os, "sched_getaffinity")
        else str(os.cpu_count()),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "load at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _cpu() -> str:
    """The processor's name, with what tells models of one name apart."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    pairs = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    said = {key.strip(): value.strip() for key, value in pairs.items()}
    name = said.get("model name", platform.machine())
    return f"{name} (family {said.get('cpu family', '?')}, model {said.get('model', '?')})"


def run_all(
    tables: list[Table], repeats: int, data: Path, peers: Path | None, note: Callable[[str], None]
) -> Iterator[list[dict[str, Any]]]:
    """Every variant `repeats` times; after each time round gives the tables with all answers so far."""
    results = [
        {
            **{key: value for key, value in asdict(table).items() if key != "rows"},
            "rows": [{**asdict(row), "repeats": {}} for row in table.rows],
        }
        for table in tables
    ]
    for repeat in range(repeats):
        for table, result in zip(tables, results, strict=True):
            for variant, row in zip(table.rows, result["rows"], strict=True):
                if any("unavailable" in answer for answer in row["repeats"].values()):
                    continue
                load = os.getloadavg()[0]
                answer = once(variant, data, peers)
                row["repeats"][str(repeat)] = {**answer, "load": load}
                said = answer.get("unavailable") or f"{answer['seconds']:.2f} s"
                note(f"{repeat + 1}/{repeats} {table.key}: {variant.name}: {said}")
        yield results


def once(variant: Variant, data: Path, peers: Path | None) -> dict[str, Any]:
    """One variant in a fresh process: its answer, or why there is none."""
    job = replace(variant.job, data=str(data / variant.job.data)) if variant.job.data else variant.job
    if variant.runner in ("bare", "ours"):
        python, script = Path(sys.executable), HERE / f"{variant.runner}.py"
    elif peers is None:
        return {"unavailable": "no --peers folder was given."}
    else:
        python, script = peers / variant.runner / "bin" / "python", PEERS / f"on_{variant.runner}.py"
        if not python.exists():
            return {"unavailable": f"no environment for {variant.runner} in the --peers folder."}
    paths = [str(HERE), str(SOURCE if variant.runner == "ours" else PEERS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [str(python), str(script), job.to_json()]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"unavailable": f"no answer within {LIMIT_SECONDS:.0f} s."}
    return parse(done.returncode, done.stdout, done.stderr)


def parse(status: int, output: str, errors: str) -> dict[str, Any]:
    """The JSON object on the last line of a runner's output."""
    last = output.strip().rpartition("\n")[2]
    if status or not last.startswith("{"):
        said = errors.strip().rpartition("\n")[2]
        return {"unavailable": f"the runner failed (exit status {status}): {said}"}
    answer: dict[str, Any] = json.loads(last)
    return answer
