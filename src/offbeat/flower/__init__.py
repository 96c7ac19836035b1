"""Any algorithm on an existing Flower federation. The only part of the package that knows Flower.

`server_app` makes a Flower `ServerApp` of an algorithm, `client_app` a `ClientApp` of a node's data;
`serve` is for a `ServerApp` of one's own. Needs the extra `flower`.
"""

from typing import Any

from offbeat.core.extras import missing_extra
from offbeat.lazy import exports

__all__, _load, __dir__ = exports(__name__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        # `offbeat.flower` can be imported without the extra: its names say what is missing.
        try:
            import flwr as _flwr  # noqa: F401
        except ImportError as error:
            raise ImportError(str(missing_extra("flwr", "flower", "offbeat.flower: "))) from error
    return _load(name)
