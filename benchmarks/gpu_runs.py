"""How many local steps one GPU makes in a second if several runs share it, each in a process of its own.

    python benchmarks/gpu_runs.py [--runs 1 4 8 12] [--tasks 30] [--steps 200] [--out gpu_runs.csv]

Each run is FedAsync with ten clients that train FedCompass's CNN for MNIST (582,026 parameters) on random
images, in batches of 64, with Adam and CUDA graphs. `offbeat compare --workers N` makes such runs at a time.
A process makes a short run first; all processes begin the timed run together. Where NVIDIA's Multi-Process
Service is installed, the same is measured with it: the script starts the service for itself, and ends it.
`--device cpu` tries the script out.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch
from harness import Row, Rows, main

import offbeat as ob
from offbeat.data import Dataset, federate
from offbeat.models.cnn import CompassCNN

CLIENTS, BATCH, SAMPLES, CLASSES = 10, 64, 20_000, 10
CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 300.0  # seconds in which all processes must have come to a barrier


@dataclass(frozen=True)
class Work:
    """What each run does."""

    device: str
    tasks: int
    steps: int
    samples: int = SAMPLES


def learner_of(work: Work) -> ob.TorchLearner:
    """Ten clients with random images of MNIST's shape."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(work.samples, 1, 28, 28, generator=generator)
    y = torch.randint(CLASSES, (work.samples,), generator=generator)
    parts = np.array_split(np.arange(work.samples), CLIENTS)
    training = ob.Training("adam", lr=0.003, batch_size=BATCH, device=work.device, cuda_graph=True)
    return ob.TorchLearner(CompassCNN, federate(Dataset(x, y, CLASSES), None, parts), training)


def one_run(work: Work, begin: Barrier, end: Barrier) -> None:
    """A run in its process: a short one first, then the timed one between two barriers."""
    torch.set_num_threads(1)
    learner = learner_of(work)

    def run(tasks: int) -> None:
        ob.simulate(
            ob.fedasync(steps=work.steps), ob.World(), learner, until=ob.Until(tasks=tasks), evaluate=None
        )

    run(3)
    begin.wait()
    run(work.tasks)
    if work.device.startswith("cuda"):
        torch.cuda.synchronize()
    end.wait()


def steps_a_second(runs: int, work: Work) -> float:
    """Local steps of all runs in a second."""
    context = multiprocessing.get_context("spawn")
    begin, end = context.Barrier(runs + 1), context.Barrier(runs + 1)
    processes = [context.Process(target=one_run, args=(work, begin, end)) for _ in range(runs)]
    for process in processes:
        process.start()
    # A process that ends early, as without memory, breaks neither barrier.
    begin.wait(PATIENCE)
    started = time.perf_counter()
    end.wait(PATIENCE)
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return runs * work.tasks * work.steps / seconds


@contextmanager
def mps() -> Iterator[None]:
    """NVIDIA's service for processes that share a GPU, with folders of its own."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in own.values():
            Path(path).mkdir()
        os.environ |= own
        try:
            subprocess.run([CONTROL, "-d"], check=True)
            try:
                yield
            finally:
                subprocess.run([CONTROL], input="quit\n", text=True, check=True)
        finally:
            for name in own:
                del os.environ[name]


def gpu_runs(
    runs: tuple[int, ...] = (1, 4, 8, 12), tasks: int = 30, steps: int = 200, device: str = "cuda"
) -> Rows:
    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        sys.exit("there is no CUDA GPU on this machine: run it where there is one")
    work = Work(device, tasks, steps, SAMPLES if on_gpu else 400)

    def measure(number: int) -> Row:
        rate = steps_a_second(number, work)
        return {"steps/s of all": rate, "steps/s of a run": rate / number}

    for number in runs:
        yield {"runs at a time": number, "MPS": "no"}, partial(measure, number)
    if on_gpu and shutil.which(CONTROL):
        with mps():
            for number in runs:
                yield {"runs at a time": number, "MPS": "yes"}, partial(measure, number)


if __name__ == "__main__":
    main(gpu_runs)
