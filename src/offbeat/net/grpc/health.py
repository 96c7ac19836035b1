"""gRPC's health protocol, `grpc.health.v1`, for load balancers and probes: no credential, no data.

The listener serves, or its port is closed, so there is one answer. `Watch` is not there, which the protocol
allows.
"""

from typing import Any

import grpc

from offbeat.net.grpc.stream import Context

CHECK = "/grpc.health.v1.Health/Check"
SERVICES = (b"", b"offbeat.v1.Federation")
"""The services that may be asked for; "" is the whole server."""
SERVING = b"\x08\x01"
"""`HealthCheckResponse{status: SERVING}`, as Protocol Buffers write it."""
_SERVICE = 0x0A
"""The tag of `HealthCheckRequest.service`, a text."""


class Health(grpc.GenericRpcHandler):
    """Answers whether the server serves."""

    def __init__(self) -> None:
        self._check: Any = grpc.unary_unary_rpc_method_handler(_check)

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        """The handler of a call; None if there is no such method."""
        return self._check if call.method == CHECK else None


async def _check(request: bytes, context: Context) -> bytes:
    if requested(request) not in SERVICES:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("this server has no such service")
        return b""
    return SERVING


def requested(request: bytes) -> bytes | None:
    """The service of a `HealthCheckRequest`; None if it is not valid, or has a name of 128 bytes or more."""
    if not request:
        return b""
    if len(request) < 2 or request[0] != _SERVICE or request[1] != len(request) - 2 or request[1] > 0x7F:
        return None
    return request[2:]
