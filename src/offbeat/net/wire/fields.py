"""The messages of the wire and their fields, from which the schema and serialization are made."""

import re
from collections.abc import Mapping
from typing import get_args, get_type_hints

import msgspec.inspect as types

from offbeat.net.messages import FromServer, FromSite, Message

BODY_FIELDS = frozenset({"model", "delta", "integers", "shared", "total"})
"""Fields that travel as the body of their message."""


def kind(message: type[Message]) -> str:
    """The kind of a message: the name of its field in an envelope."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


MESSAGES: Mapping[str, type[Message]] = {kind(message): message for message in get_args(Message)}
"""The messages by their kind."""
FROM_SITE = frozenset(map(kind, get_args(FromSite)))
FROM_SERVER = frozenset(map(kind, get_args(FromServer)))


def fields_of(struct: type) -> dict[str, types.Type]:
    """The fields of a message, without its tensors, and their types."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: types.type_info(hint) for name, hint in hints.items() if name not in BODY_FIELDS}


def optional(told: types.Type) -> types.Type | None:
    """The type that a field has which may be absent; None for other fields."""
    if not isinstance(told, types.UnionType):
        return None
    (other,) = (each for each in told.types if not isinstance(each, types.NoneType))
    return other
