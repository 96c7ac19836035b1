"""The real server and its sites: the same algorithm object on a network.

`serve` runs the server's side, `join` a site's; both take any transport that keeps the promises of `link`.
"""

from offbeat.net.client.join import join
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.serve import serve

__all__ = ["ServerOptions", "join", "serve"]
