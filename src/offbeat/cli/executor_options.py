"""Options of every command that simulates: the executor and its memory."""

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from offbeat.core.errors import UsageError
from offbeat.cores import usable_cores

if TYPE_CHECKING:
    from offbeat.sim.execution import Execution

WorkersOption = Annotated[
    str, typer.Option("--workers", help="number of worker processes, or auto; 0 trains in the main process")
]
ExecutorOption = Annotated[
    Literal["local", "batched", "ray"],
    typer.Option("--executor", help="train on this machine, many clients together, or on a Ray cluster"),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS",
        help="HOST:PORT of the Ray cluster's head, or auto; default: $RAY_ADDRESS, else Ray on this machine",
    ),
]  # fmt: skip
ClientMemory = Annotated[
    str | None,
    typer.Option(
        "--client-memory", metavar="SIZE",
        help="memory for what clients keep, such as 512MB; the rest goes to files; default: no limit",
    ),
]  # fmt: skip
_MOST_PROCESSES = 1024
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def execution(
    workers: str,
    executor: str,
    address: str | None,
    client_memory: str | None,
    *,
    share: int = 1,
    keep_checkpoint: bool = True,
) -> "Execution":
    """How the options carry a simulation out.

    Args:
        workers: The value of `--workers`; on Ray, auto means all CPUs of the cluster.
        executor: The value of `--executor`.
        address: The value of `--ray-address`.
        client_memory: The value of `--client-memory`.
        share: Number of runs that share the Ray cluster.
        keep_checkpoint: The value of `--keep-checkpoint`.

    Raises:
        UsageError: The options are unknown or do not go together.
    """
    from offbeat.sim.execution import Execution
    from offbeat.sim.executors.batched import Batched
    from offbeat.sim.executors.ray.cluster import OnRay

    memory = memory_size("--client-memory", client_memory)
    if executor == "ray":
        count = 0 if workers == "auto" else count_of("--workers", workers, least=0)
        return Execution(0, OnRay(address, count or None, share), memory, keep_checkpoint=keep_checkpoint)
    if address is not None:
        raise UsageError(f"--ray-address {address} is not allowed without --executor ray")
    if executor == "batched" and workers != "0":
        raise UsageError(
            f"--workers {workers} is not allowed with --executor batched: it trains in this process"
        )
    count, chosen = count_of("--workers", workers, least=0), Batched() if executor == "batched" else None
    return Execution(count, chosen, memory, keep_checkpoint=keep_checkpoint)


def count_of(option: str, text: str, least: int = 1) -> int:
    """A number of processes, `least` or more; auto means as many as this process may use cores."""
    if text == "auto":
        return usable_cores()
    # The length is checked first: Python refuses to read a number of some thousand digits.
    if text.isdecimal() and len(text) <= 9 and least <= int(text) <= _MOST_PROCESSES:
        return int(text)
    raise UsageError(
        f"{option} {text} is not allowed: give a number from {least} to {_MOST_PROCESSES}, or auto"
    )


def memory_size(option: str, text: str | None) -> int | None:
    """Bytes of a size such as 512MB; None stays None."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Z]*)", text.strip().upper(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UsageError(
            f"{option} {text} is not allowed: give bytes, or a number with KB, MB, GB, KiB, MiB or GiB, "
            "such as 512MB"
        )
    return int(float(match[1]) * _UNITS[match[2]])
