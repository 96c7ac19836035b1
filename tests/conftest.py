"""What all tests share. PyTorch is imported where it is used: xdist's main process needs none."""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.forks import SERVER, start_server

# PyTorch has one thread, as under every driver: more take the processors from other tests. The tests of
# servers and sites begin with two, as these set the number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", WANDB_MODE="offline", WANDB_ERROR_REPORTING="false")

# Temporary files are in memory where there is room, unless TMPDIR says where they are. On a disk, most of the
# suite's time is waits for it: servers commit thousands of times. What a killed process leaves is the same in
# memory. A loss of power is not, and `tests/system/disk.py` simulates that.
MEMORY, ROOM = Path("/dev/shm"), 2 * 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
    os.environ.setdefault("TMPDIR", str(MEMORY))
    tempfile.tempdir = None  # what pytest has asked for already

# No time limit: what an example takes says more about the machine's load than about the code. The environment
# variable or pytest's --hypothesis-profile chooses; the option wins, as it is read later.
# The quick run tries the same examples each time, so that a change alone can break it; the thorough run looks
# for new ones.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", UNTIMED, max_examples=10, derandomize=True)
settings.register_profile("thorough", UNTIMED, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C is tested, also where the tests run in the background of a shell, whose processes ignore it.

    Where several workers run tests, they share the process that forks.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[SERVER] = start_server()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to search it for garbage, again and again, takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `cuda` runs where there is a GPU."""
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The next test gets the log as it was, whatever a command has set up in this process."""
    logger = logging.getLogger("offbeat")
    before, level = (logger.handlers, logger.propagate), logger.level
    yield
    logger.handlers, logger.propagate = before
    logger.setLevel(level)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for PyTorch, as under every driver; its random generator is restored."""
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
