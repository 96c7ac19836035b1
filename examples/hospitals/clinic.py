"""What each hospital installs: the model with one logit, its loss, a metric, and how a table is read.

python examples/hospitals/clinic.py tables   # writes made-up tables: north.csv, east.csv, south.csv, test.csv
"""

import csv
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob

COLUMNS = ["age", "pressure", "cholesterol", "heart_rate", "smoker"]
TARGET = "disease"


@ob.expose
def make_model(hidden: int = 8) -> nn.Module:
    """A network with one logit."""
    return nn.Sequential(nn.Linear(len(COLUMNS), hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Flatten(0))


@ob.expose
def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy that counts the rarer ill patients twice."""
    return functional.binary_cross_entropy_with_logits(logits, target, pos_weight=torch.tensor(2.0))


@ob.expose
def sensitivity(logits: Tensor, target: Tensor) -> float:
    """Share of the ill patients that are found."""
    ill = target > 0.5
    return float((logits[ill] > 0).float().mean())


def table(path: Path) -> tuple[Tensor, Tensor]:
    """The columns of a CSV file, float32 [N, 5], and the target, float32 [N]."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    x = torch.tensor([[float(row[name]) for name in COLUMNS] for row in rows])
    return x, torch.tensor([float(row[TARGET]) for row in rows])


def data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """This hospital's patients, to train on and, one in five, to evaluate on."""
    x, y = table(Path(os.environ["CLINIC_TABLE"]))
    held = torch.arange(len(x)) % 5 == 0
    return (x[~held], y[~held]), (x[held], y[held])


def test() -> tuple[Tensor, Tensor]:
    """The server's test table."""
    return table(Path(os.environ["CLINIC_TABLE"]))


def write_tables(directory: Path) -> None:
    """Write made-up tables: each hospital has other patients, with the same cause of the disease."""
    directory.mkdir(parents=True, exist_ok=True)
    cause = torch.tensor([0.8, 0.6, 0.9, -0.7, 1.2])
    for number, (name, patients) in enumerate([("north", 150), ("east", 90), ("south", 60), ("test", 200)]):
        rng = torch.Generator().manual_seed(number)
        x = torch.randn(patients, len(COLUMNS), generator=rng) + 0.3 * (number - 1)
        y = (torch.rand(patients, generator=rng) < torch.sigmoid(2 * (x @ cause) - 1)).float()
        with (directory / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS, TARGET])
            writer.writerows(
                [*(f"{v:.4f}" for v in row), int(ill)] for row, ill in zip(x.tolist(), y, strict=True)
            )


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
