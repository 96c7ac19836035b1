"""What APPFL loads from a file by its path: the model, and a metric."""

from typing import Any


def accuracy(true: Any, logits: Any) -> float:
    """Share of right answers."""
    return float((logits.argmax(1) == true).mean())


def model(name: str, seed: int) -> Any:
    """The model of the measurements."""
    from nets import build

    return build(name, seed)
