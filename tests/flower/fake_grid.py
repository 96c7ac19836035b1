"""A Flower grid in memory, with a clock that jumps: nodes work on one message at a time, in order."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo


@dataclass
class FakeNode:
    """A node; its messages take `seconds` each. Without a memory each of its lives is its first."""

    id: int
    app: Callable[[Message, Context], Message]
    config: dict[str, Any]
    seconds: float = 1.0
    online: bool = True
    lives: int = 1
    context: Context = field(init=False)
    queue: list[Message] = field(default_factory=list)
    free_at: float = 0.0

    def __post_init__(self) -> None:
        self.reboot()

    def reboot(self) -> None:
        """Everything in its memory is gone."""
        self.context = Context(1, self.id, self.config, RecordDict(), {})
        self.queue, self.lives = [], self.lives + 1


class FakeGrid:
    """Nodes, messages on their way, and the time."""

    def __init__(self, nodes: Iterable[FakeNode]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.time = 0.0
        self.replies: dict[str, tuple[float, Message]] = {}
        self.pushed: list[Message] = []
        self.before: Callable[[FakeNode, Message], Message | None] = lambda node, message: None
        self.each_sleep: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.each_sleep()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=n.id, last_activated_at=str(n.lives)) for n in self.nodes.values() if n.online
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self.nodes[message.metadata.dst_node_id].queue.append(message)
            self.pushed.append(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for node in self.nodes.values():
            self._work(node)
        wanted = [i for i in message_ids if i in self.replies and self.replies[i][0] <= self.time]
        return [self.replies.pop(i)[1] for i in wanted]

    def _work(self, node: FakeNode) -> None:
        while node.online and node.queue and node.free_at <= self.time:
            message = node.queue.pop(0)
            node.free_at = self.time + node.seconds
            reply = self.before(node, message) or self._answer(node, message)
            self.replies[message.metadata.message_id] = (node.free_at, reply)

    def _answer(self, node: FakeNode, message: Message) -> Message:
        try:
            return node.app(message, node.context)
        except Exception as error:  # as a node of Flower's does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
