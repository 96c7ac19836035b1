"""The real server and its sites: the same algorithm object on a network.

`serve` runs the server's side, `join` a site's; both take any transport with the interface in `transport`.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)
