"""The real server and its sites: the same algorithm object on a network.

`serve` runs the server's side, `join` a site's; both take any transport with the interface in `transport`.
"""

import os

from offbeat.lazy import exports

# gRPC reads this when it is imported, which only modules below this one do. Its own lines on stderr are no
# JSON, and a site's first failure of each kind is explained in words anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__, __getattr__, __dir__ = exports(__name__)
