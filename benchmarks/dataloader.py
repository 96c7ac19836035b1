"""What map-style datasets cost: a simulation beside a plain loop over the same data in DataLoaders.

    python benchmarks/dataloader.py [--pairs 9] [--tasks 40] [--models logistic mlp cnn lenet]
        [--before FOLDER]

A: tasks of 20 steps with batches of 32 of a map-style dataset, whose samples are images stored as bytes and
   made float32 when they are read. "plain" is what one writes by hand for a client's task: load the model,
   iterate over a DataLoader of the client's samples, take steps, subtract. "ours" is a simulation of FedAvg
   that does the same.
B: with --before, the folder `src` of another checkout: the same simulation on tensors there and here.
C: evaluations of a LeNet on 4,000 images of three channels, beside a loop over slices of the images with
   the mean loss and the accuracy, in turns in one process. With --before also those of the other checkout.

Each measurement is the CPU time of a process of its own with one thread; the two of a pair run one after the
other, the first by turns. Ratios are of pairs; medians with their range.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from harness import Rows, in_turns, main, new_process, ratios
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

CLIENTS, EACH, STEPS, BATCH, LR = 20, 300, 20, 32, 0.05
LENET = "lenet"
HERE = Path(__file__).parents[1] / "src"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Side = tuple[str, Path]
"""What is measured, and the folder of the package that it is measured with."""


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


def bare_evaluation(images: Tensor, labels: Tensor, module: nn.Module) -> dict[str, float]:
    """Mean loss and accuracy, by hand."""
    loss, right = 0.0, 0
    with torch.inference_mode():
        for x, y in zip(images.split(1000), labels.split(1000), strict=True):
            scores = module(x)
            loss += float(functional.cross_entropy(scores, y)) * len(y)
            right += int((scores.argmax(1) == y).sum())
    return {"loss": loss / len(labels), "accuracy": right / len(labels)}


def evaluations(pairs: int, tasks: int) -> list[float]:
    """CPU seconds of a learner's evaluations by those of the loop, in turns in this process."""
    import offbeat as ob

    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand(4000, 3, 32, 32, generator=rng), torch.randint(10, (4000,), generator=rng)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    data = ob.data.Dataset(images, labels, 10)
    learner = ob.TorchLearner(module, ob.federate(data, data, [np.arange(4000)]), ob.Training())
    laid_out = images.contiguous(memory_format=torch.channels_last)
    sides = {
        "ours": partial(learner.evaluate, learner.initial(0)),
        "bare": partial(bare_evaluation, laid_out, labels, module),
    }
    turns = in_turns(pairs + 1, {name: partial(seconds_of, run, tasks) for name, run in sides.items()})
    return ratios(turns["ours"][1:], turns["bare"][1:])


def seconds_of(run: Callable[[], object], times: int) -> float:
    """CPU seconds of a few calls."""
    begun = time.process_time()
    for _ in range(times):
        run()
    return time.process_time() - begun


def measure(what: str, model: str, tasks: int) -> float:
    """CPU seconds of one side of a pair, in this process."""
    torch.set_num_threads(1)
    one = plain if what == "plain" else partial(ours, tensors=what == "tensors")
    one(model, 2)  # imports and first calls
    return one(model, tasks)


def compare(first: Side, second: Side, model: str, pairs: int, tasks: int) -> list[float]:
    """Ratios second / first of the pairs."""
    found = []
    for pair in range(pairs):
        sides = [first, second] if pair % 2 == 0 else [second, first]
        seconds = {
            side: new_process(measure, side[0], model, tasks, PYTHONPATH=str(side[1]), **ONE_THREAD)
            for side in sides
        }
        found.append(seconds[second] / seconds[first])
    return found


def dataloader(
    pairs: int = 9, tasks: int = 40, models: tuple[str, ...] = ("logistic", "mlp", "cnn", LENET),
    before: Path | None = None,
) -> Rows:  # fmt: skip
    """Measure each model.

    before: the folder src of another checkout
    """
    for model in models:
        tables: dict[str, tuple[Side, Side]] = {"A: ours / plain loop": (("plain", HERE), ("ours", HERE))}
        if before:
            tables["B: tensors here / before"] = (("tensors", before), ("tensors", HERE))
        measures = {
            name: partial(compare, first, second, model, pairs, tasks)
            for name, (first, second) in tables.items()
        }
        if model == LENET:
            folders = {"C: evaluation / bare": HERE} | ({"C: before / bare": before} if before else {})
            measures = {
                name: partial(
                    new_process, evaluations, pairs, max(1, tasks // 10), PYTHONPATH=str(folder), **ONE_THREAD
                )
                for name, folder in folders.items()
            }
        for name, ratios_of in measures.items():
            found = ratios_of()
            yield {
                "": name, "model": model, "ratio: median": f"{median(found):.3f}",
                "least": f"{min(found):.3f}", "most": f"{max(found):.3f}",
            }  # fmt: skip


if __name__ == "__main__":
    main(dataloader)
