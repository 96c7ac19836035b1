"""Data and metric of the study of cached updates: slow clients that alone have two of the classes."""

import numpy as np
import torch

import offbeat as ob

CLIENTS, SLOW, CLASSES = 40, 8, (8, 9)
"""The first clients are slow; with `tied` they alone have these classes."""
SAMPLES, TEST_SAMPLES = 12_000, 2_000


@ob.expose
def clothes(tied: bool) -> ob.FederatedData:
    """Fashion-MNIST on 40 clients with 300 images each, of two classes.

    Args:
        tied: Whether the slow clients have classes 8 and 9; else each pair of classes has a random client.
    """
    source = ob.load("fashion_mnist")
    rng = np.random.default_rng(0)
    pairs = [CLASSES] * SLOW + [((2 * i) % 8, (2 * i + 1) % 8) for i in range(CLIENTS - SLOW)]
    if not tied:
        pairs = [pairs[i] for i in rng.permutation(CLIENTS)]
    labels, each = source.train.y.numpy(), SAMPLES // CLIENTS // 2
    of_class = [iter(rng.permutation(np.flatnonzero(labels == c)).reshape(-1, each)[:8]) for c in range(10)]
    parts = [np.sort(np.concatenate([next(of_class[c]) for c in pair])) for pair in pairs]
    test = rng.permutation(len(source.test.y))[:TEST_SAMPLES]
    return ob.federate([source.train.subset(part) for part in parts], source.test.subset(np.sort(test)))


@ob.expose
def slow_accuracy(scores: torch.Tensor, target: torch.Tensor) -> float:
    """Accuracy on the images of classes 8 and 9."""
    own = target >= min(CLASSES)
    return float((scores[own].argmax(1) == target[own]).float().mean())


slow_accuracy.higher_is_better = True  # type: ignore[attr-defined]
