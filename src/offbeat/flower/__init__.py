"""Any algorithm on an existing Flower federation. The only part of the package that knows Flower.

`server_app` makes a Flower `ServerApp` of an algorithm, `client_app` a `ClientApp` of a node's data;
`serve` is for a `ServerApp` of one's own. Needs the extra `offbeat[flower]`.
"""

from offbeat.core.extras import missing_extra

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(str(missing_extra("flwr", "flower", "offbeat.flower: "))) from error

from offbeat.flower.client import client_app
from offbeat.flower.server import serve, server_app
from offbeat.flower.server_loop import Polling

__all__ = ["Polling", "client_app", "serve", "server_app"]
