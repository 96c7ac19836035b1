"""The model of the run, which the server and the site both have."""

from torch import nn

import offbeat as ob


@ob.expose
def net() -> nn.Module:
    """A linear classifier of the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
