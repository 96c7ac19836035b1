"""Bodies as an envelope announces them."""

from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import TYPES


def announced_body(*parts: tuple[pb.Part.Kind, int]) -> pb.Body:
    """A body of parts, each a kind and its size in bytes."""
    return pb.Body(
        parts=[pb.Part(kind=kind, type=TYPES.get(kind, pb.Part.UNTYPED), bytes=size) for kind, size in parts]
    )
