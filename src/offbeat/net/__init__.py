"""The real server and its sites: the same algorithm object on a network.

`serve` runs the server's side, `join` a site's; both take any transport that keeps the promises of `link`.
"""

from offbeat.net.join import join
from offbeat.net.serve import serve
from offbeat.net.terms import Terms

__all__ = ["Terms", "join", "serve"]
