"""What map-style datasets cost: a simulation beside a plain loop over the same data in DataLoaders.

    python benchmarks/dataloader.py [--pairs 9] [--tasks 40] [--models logistic,mlp,cnn]
        [--before FOLDER] [--json FILE]

A: tasks of 20 steps with batches of 32 of a map-style dataset, whose samples are images stored as bytes and
   made float32 when they are read. "plain" is what one writes by hand for a client's task: load the model,
   iterate over a DataLoader of the client's samples, take steps, subtract. "ours" is a simulation of FedAvg
   that does the same.
B: with --before, the folder `src` of another checkout: the same simulation on tensors there and here.

Each measurement is the CPU time of a process of its own with one thread; the two of a pair run one after the
other, the first by turns. Ratios are of pairs; medians with their range.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

CLIENTS, EACH, STEPS, BATCH, LR = 20, 300, 20, 32, 0.05
HERE = Path(__file__).parents[1] / "src"


class Images(Dataset[tuple[Tensor, int]]):
    """Made-up images of 1x28x28 as bytes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (CLIENTS * EACH, 1, 28, 28), dtype=np.uint8)
        self.labels = rng.integers(0, 10, CLIENTS * EACH).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.pixels[i]).float().div_(255), self.labels[i]


def make(model: str) -> nn.Module:
    """One of the package's models."""
    from offbeat.models import LogisticSpec, MLPSpec, WirelessCNNSpec, build

    specs = {"logistic": LogisticSpec(), "mlp": MLPSpec(hidden=(200,)), "cnn": WirelessCNNSpec()}
    return build(specs[model], (1, 28, 28), 10)


def plain(model: str, tasks: int) -> float:
    """CPU seconds of tasks in a loop over DataLoaders."""
    images, module = Images(), make(model)
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    begun = time.process_time()
    for task in range(tasks):
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), LR)
        client = task % CLIENTS
        loader = DataLoader(Subset(images, range(client * EACH, (client + 1) * EACH)), BATCH, shuffle=True)
        done = 0
        while done < STEPS:
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(module(x), y).backward()
                optimizer.step()
                done += 1
                if done == STEPS:
                    break
        change = {name: tensor - start[name] for name, tensor in module.state_dict().items()}
        assert all(bool(tensor.isfinite().all()) for tensor in change.values())
    return time.process_time() - begun


def ours(model: str, tasks: int, tensors: bool) -> float:
    """CPU seconds of a simulation of as many tasks."""
    import offbeat as ob

    images = Images()
    parts = np.split(np.arange(CLIENTS * EACH), CLIENTS)
    if tensors:
        pixels, labels = torch.from_numpy(images.pixels).float() / 255, torch.tensor(images.labels)
        whole = ob.data.Dataset(pixels, labels, 10)
        data = ob.federate(whole, whole, parts)
    else:
        data = ob.federate(images, None, parts)
    learner = ob.TorchLearner(lambda: make(model), data, ob.Training(lr=LR, batch_size=BATCH))
    learner.prepare()
    begun = time.process_time()
    ob.simulate(ob.fedavg(steps=STEPS), learner=learner, until=ob.Until(tasks=tasks), evaluate=None)
    return time.process_time() - begun


def measure(what: str, model: str, tasks: int, source: Path) -> float:
    """CPU seconds in a process of its own, with the package from `source`."""
    command = [sys.executable, __file__, "--measure", what, "--models", model, "--tasks", str(tasks)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def compare(
    first: tuple[str, Path], second: tuple[str, Path], model: str, given: argparse.Namespace
) -> list[float]:
    """Ratios second / first of the pairs, a line for each."""
    ratios = []
    for pair in range(given.pairs):
        order = [first, second] if pair % 2 == 0 else [second, first]
        seconds = {each: measure(each[0], model, given.tasks, each[1]) for each in order}
        ratios.append(seconds[second] / seconds[first])
        print(
            f"  {model} {pair + 1}/{given.pairs}: {seconds[first]:.2f} s, {seconds[second]:.2f} s",
            file=sys.stderr,
        )
    return ratios


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--models", default="logistic,mlp,cnn")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=("plain", "ours", "tensors"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        torch.set_num_threads(1)
        one = plain if given.measure == "plain" else lambda m, n: ours(m, n, given.measure == "tensors")
        one(given.models, 2)  # imports and first calls
        print(one(given.models, given.tasks))
        return
    found = {}
    print("| | model | ratio: median | least | most |\n|---|---|---|---|---|")
    for model in given.models.split(","):
        tables = {"A: ours / plain loop": (("plain", HERE), ("ours", HERE))}
        if given.before:
            tables["B: tensors here / before"] = (("tensors", given.before), ("tensors", HERE))
        for name, (first, second) in tables.items():
            ratios = found[f"{name}, {model}"] = compare(first, second, model, given)
            low, high = min(ratios), max(ratios)
            print(
                f"| {name} | {model} | {statistics.median(ratios):.3f} | {low:.3f} | {high:.3f} |", flush=True
            )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
