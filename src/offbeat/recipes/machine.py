"""What recipes ask of the machine, checked before the first of several runs."""

from collections.abc import Iterable

from offbeat.local.device import check_device
from offbeat.recipes.recipe import Recipe


def check_devices(recipes: Iterable[Recipe], option: str = "training.device") -> None:
    """Check that this machine has every device that recipes train on.

    Args:
        recipes: The recipes.
        option: Where the device is given, for the error.

    Raises:
        UsageError: PyTorch does not know one, or this machine does not have it.
    """
    for device in sorted({recipe.training.device for recipe in recipes}):
        check_device(device, option)
