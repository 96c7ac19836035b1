"""Messages as Flower carries them: the frames of `net.wire`, each an array of bytes in one array record."""

from collections.abc import Iterable
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, RecordDict

from offbeat.core.layout import Layout
from offbeat.net.messages import Message
from offbeat.net.transport import ProtocolError
from offbeat.net.wire.limits import MOST_CHUNK, Limits
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.writer import MessageWriter

RECORD = "offbeat"
MOST_MESSAGES = 64


def encode(messages: Iterable[Message]) -> RecordDict:
    """The content of a Flower message."""
    return RecordDict({RECORD: to_arrays(messages)})


def to_arrays(messages: Iterable[Message]) -> ArrayRecord:
    """The frames of messages."""
    writer = MessageWriter(MOST_CHUNK)
    for message in messages:
        writer.put(message)
    arrays: dict[str, Array] = {}
    while not writer.empty:
        frame = writer.frame()
        arrays[str(len(arrays))] = Array("uint8", (len(frame),), "offbeat.frame", frame)
    return ArrayRecord(arrays)


def decode(
    record: RecordDict, sender: Literal["site", "server"], layout: Layout | None = None
) -> list[Message]:
    """The messages in the content of a Flower message; `layout` is that of the model, if it is known.

    Raises `ProtocolError`.
    """
    arrays, messages = record.get(RECORD), list[Message]()
    if not isinstance(arrays, ArrayRecord):
        raise ProtocolError("the message is not one of Offbeat's", "frame")
    reader: MessageReader[Any] = MessageReader(sender, Limits(layout=layout), registered=True)
    for number in range(len(arrays)):
        array = arrays.get(str(number))
        if array is None:
            raise ProtocolError(f"frame {number} is missing", "frame")
        messages += [message for message, _ in reader.feed(array.data).messages]
        if len(messages) > MOST_MESSAGES:
            raise ProtocolError(f"more than {MOST_MESSAGES} messages", "frame")
    if reader.under_way:
        raise ProtocolError("the last body is not complete", "frame")
    return messages
