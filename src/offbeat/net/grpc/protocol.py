"""Common definitions of both ends of the gRPC transport: method, channel options, status codes."""

import re

import grpc

from offbeat.net.wire.limits import FRAME, Limits

VERSION = 1
PATH = f"/offbeat.v{VERSION}.Federation/Connect"
"""The one method of the service."""
ADMITTED = (("offbeat-protocol", f"{VERSION}"),)
"""The initial metadata of a server that has accepted a site's credential, beside its version of Offbeat."""
TIME_KEY = "offbeat-time"
"""The key of the server's time in this metadata: seconds since 1970, for a site that compares clocks."""
ChannelOptions = list[tuple[str, int]]
_METHOD = re.compile(r"/offbeat\.v([0-9]{1,6})\.", re.ASCII)

STATUS = {
    "": grpc.StatusCode.CANCELLED,
    "credential": grpc.StatusCode.UNAUTHENTICATED,
    "revoked": grpc.StatusCode.PERMISSION_DENIED,
    "replaced": grpc.StatusCode.ABORTED,
    "busy": grpc.StatusCode.ABORTED,
    "duplicate": grpc.StatusCode.ALREADY_EXISTS,
    "without key": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
    "slow": grpc.StatusCode.DEADLINE_EXCEEDED,
    "full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "site": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "logins": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "wire": grpc.StatusCode.UNIMPLEMENTED,
    "ours": grpc.StatusCode.INTERNAL,
}
"""The status for each kind of end; every other kind is a protocol error. "" is no failure."""

FINAL = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""Statuses after which another attempt without a change is of no use."""


def wire_version(method: str) -> str | None:
    """The version of the wire that a call of another method speaks, as a number; None where it tells none."""
    found = _METHOD.match(method)
    return None if found is None else found[1]


def channel_options(limits: Limits) -> ChannelOptions:
    """Sizes and keepalive of a channel or server."""
    milliseconds = int(limits.keepalive * 1000)
    return [
        ("grpc.max_receive_message_length", FRAME),
        ("grpc.max_send_message_length", FRAME),
        ("grpc.max_metadata_size", limits.metadata),
        ("grpc.absolute_max_metadata_size", limits.metadata),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
