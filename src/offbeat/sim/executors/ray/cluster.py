"""A Ray cluster: which one, how much of it, and how this process joins it."""

import os
import signal
import socket
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import missing_extra
from offbeat.signals import handled

REACH_SECONDS = 10.0


@dataclass(frozen=True)
class OnRay:
    """Training on a Ray cluster, or on a part of it.

    Args:
        address: HOST:PORT of the cluster's head, or "auto" for the cluster on this machine. None uses the
            environment variable RAY_ADDRESS; if the variable is not set, None starts Ray on this machine for
            the run.
        workers: Number of CPUs to train on, at least 1. None means all CPUs of the cluster at the start of
            the run, divided by `share`.
        share: Number of runs that train on the cluster at the same time, at least 1.

    Raises:
        UsageError: The address has another form, or a number is below 1.
    """

    address: str | None = None
    workers: int | None = None
    share: int = 1

    def __post_init__(self) -> None:
        if self.address not in (None, "auto"):
            _host_and_port(str(self.address))
        for name, value in (("workers", self.workers), ("share", self.share)):
            if value is not None and value < 1:
                raise UsageError(f"{name} = {value} is not allowed on Ray: give a number from 1")


def import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise missing_extra(error.name, "ray", "executor ray: ") from None


def connect(ray: Any, address: str | None) -> bool:
    """Join the cluster; False if this process had done so before. Raises `UsageError` if it is not there."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in ("local", "auto", joined):
            raise UsageError(f"ray address {address}: this process is on another cluster already, {joined}")
        return False
    if address not in ("local", "auto"):
        _check_reach(address)
    # A cluster that Ray starts here must not report usage to Ray's makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {"include_dashboard": False} if address == "local" else {}
    try:
        # Ray takes over the handler of SIGTERM, so it is put back.
        with handled(signal.getsignal(signal.SIGTERM), signal.SIGTERM):
            ray.init(address, logging_level="error", log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "" if address == "local" else "; a cluster with a token needs RAY_AUTH_MODE=token here too"
        raise UsageError(f"ray address {address} cannot be used: {reason_of(error)}{hint}") from None
    return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"ray address {address} is not allowed: give HOST:PORT of the cluster's head, such as "
            "10.0.0.1:6379, or auto; this machine must be one of its nodes (ray start --address=HOST:PORT)"
        )
    return host.strip("[]"), int(port)


def _check_reach(address: str) -> None:
    """Ray would try for minutes, and then end this process."""
    try:
        socket.create_connection(_host_and_port(address), REACH_SECONDS).close()
    except OSError as error:
        raise UsageError(
            f"ray address {address} cannot be reached: {reason_of(error)}; "
            "start a cluster with `ray start --head`"
        ) from None


def count_workers(ray: Any, options: OnRay) -> int:
    """How many workers to ask for."""
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if options.workers is None and cpus < 1:
        raise UsageError(
            "the Ray cluster has no CPU to train on: add a node, or say how many workers to wait for"
        )
    return options.workers or max(1, cpus // options.share)
