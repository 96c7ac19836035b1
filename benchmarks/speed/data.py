"""The data files of the measurements: Fashion-MNIST in equal random shares, and random 32x32 images."""

from pathlib import Path

import numpy

import offbeat as ob

FASHION = "fashion.npz"
RANDOM = "random32.npz"


def write(folder: Path, clients: int, seed: int) -> None:
    """Make both files: `x`, `y`, `test_x`, `test_y`, and `parts` [clients, images of each]."""
    folder.mkdir(parents=True, exist_ok=True)
    source = ob.load("fashion_mnist")
    train, test = source.train, source.test
    generator = numpy.random.default_rng(seed)
    order = generator.permutation(len(train)).reshape(clients, -1)
    numpy.savez(
        folder / FASHION, x=train.x.numpy(), y=train.y.numpy(),
        test_x=test.x.numpy(), test_y=test.y.numpy(), parts=order,
    )  # fmt: skip
    x = generator.standard_normal((512, 3, 32, 32), dtype=numpy.float32)
    y = generator.integers(0, 10, 512)
    numpy.savez(
        folder / RANDOM, x=x, y=y, test_x=x[:100], test_y=y[:100], parts=numpy.arange(512).reshape(2, -1)
    )
