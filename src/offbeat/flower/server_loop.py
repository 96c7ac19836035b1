"""The server's loop over Flower's grid: it looks for nodes, handles replies and sends messages.

One thread, as Flower's calls are short; only the evaluation has another. As everywhere, the effects of a
reply are durable before a message about them is sent.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo
from msgspec.structs import replace

from offbeat.flower.nodes import Node
from offbeat.flower.serialization import decode, encode
from offbeat.net.backoff import exponential
from offbeat.net.messages import (
    FromSite,
    Leave,
    ModelRequest,
    Register,
    Registered,
    Rejected,
    RunFinished,
    TaskFailed,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.evaluation_thread import Evaluate, EvaluationThread
from offbeat.net.transport import ProtocolError

# Flower's code for a node that has been silent for too long.
NODE_UNAVAILABLE = 5
QUERY, TRAIN = "query.offbeat", "train.offbeat"
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # s before a node that failed gets another message
log = logging.getLogger(__name__)


class Grid(Protocol):
    """The methods of Flower's `Grid` that are called."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are there."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; gives their ids."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there to messages of these ids."""


@dataclass(frozen=True)
class Polling:
    """How often Flower is asked, and how long it keeps a message; all in seconds.

    Replies are looked for every `poll`, nodes every `look`. `task` is the longest a task may take, from its
    message to its reply: after that it is lost.
    """

    poll: float = 0.1
    look: float = 1.0
    task: float = 43200.0


class Federation:
    """One run on the nodes of a grid. `now` gives seconds that never go back, `sleep` waits."""

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        state: DurableStore,
        evaluate: Evaluate | None,
        polling: Polling,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._coordinator, self._state, self._polling = grid, coordinator, state, polling
        self._now, self._sleep = now, sleep
        self._offset = coordinator.now - now()
        self._looked = -float("inf")
        self._nodes: dict[str, Node] = {}
        self._evaluator = EvaluationThread(evaluate)

    def run(self) -> str:
        """Serve until the run ends; returns why. Raises `RunError` where its directory cannot be written."""
        try:
            while self._coordinator.stopped is None:
                self._look()
                received = self._pull()
                self._commit()
                if not received and self._coordinator.stopped is None:
                    self._sleep(self._polling.poll)
            return self._finish()
        except BaseException as error:
            self._state.abandon("failed" if isinstance(error, Exception) else "interrupted")
            raise
        finally:
            self._evaluator.close()

    def _time(self) -> float:
        """Seconds of the run's clock."""
        return self._now() + self._offset

    # ---- nodes ----

    def _look(self) -> None:
        """Look which nodes are present. A present node is alive, however long its task takes."""
        now = self._time()
        if now - self._looked < self._polling.look:
            return
        self._looked = now
        nodes = {f"node-{info.node_id}": info for info in self._grid.get_nodes()}
        for name, info in nodes.items():
            node = self._nodes.setdefault(name, Node(info.node_id, name))
            if not node.online or node.activated != info.last_activated_at:
                node.online, node.activated = True, info.last_activated_at
                node.reset()
            if node.registered:
                self._coordinator.heartbeat(now, name)
            elif node.refused is None and node.free(now) and self._coordinator.may_register(now, name):
                self._push(node, QUERY)
        for node in self._nodes.values():
            if node.online and node.name not in nodes:
                self._gone(now, node)

    def _gone(self, now: float, node: Node) -> None:
        """A node has left the grid: its lease goes on."""
        log.info("%s is not there", node.name)
        node.online = False
        node.reset()
        self._coordinator.disconnected(now, node.name)

    # ---- messages ----

    def _pull(self) -> bool:
        """Take the replies that are there, each by itself."""
        owners = {message: node for node in self._nodes.values() for message in node.unanswered}
        replies = list(self._grid.pull_messages(list(owners))) if owners else []
        for reply in replies:
            node = owners[reply.metadata.reply_to_message_id]
            self._reply(node, reply)
        return bool(replies)

    def _reply(self, node: Node, reply: Message) -> None:
        now = self._time()
        newest, task = node.mark_answered(reply.metadata.reply_to_message_id)
        if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
            if newest:
                self._gone(now, node)
            return
        try:
            messages = self._decode(reply)
        except ProtocolError as error:
            log.warning("%s: %s", node.name, error)
            self._coordinator.rejected[error.kind] += 1
            messages = [TaskFailed(task, str(error))] if task is not None else []
        if not messages or any(isinstance(m, TaskFailed) for m in messages):
            node.not_before = now + exponential(node.failures, FIRST_DELAY, LONGEST_DELAY)
            node.failures += 1
        else:
            node.not_before, node.failures = now, 0
        for message in messages:
            self._handle(now, node, message)

    def _decode(self, reply: Message) -> list[FromSite]:
        if reply.has_error():
            reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
            raise ProtocolError(f"Flower's error {reply.error.code}: {reason[-1]}", "flower")
        layout = self._coordinator.tensors.model.layout
        return cast(list[FromSite], decode(reply.content, "site", layout))

    def _handle(self, now: float, node: Node, message: FromSite) -> None:
        coordinator = self._coordinator
        if isinstance(message, Leave):
            node.refused = message.reason
            log.error("%s cannot take part: %s", node.name, message.reason)
        elif isinstance(message, Register):
            early, node.early, node.registered = node.early, [], True
            tasks = [m.task for m in early if isinstance(m, UpdateSubmission | ModelRequest)]
            holds = tasks[-1] if tasks else None
            again = replace(message, holds=holds, run=coordinator.info.run if tasks else "")
            for each in (again, *early):
                coordinator.receive(now, node.name, each)
        elif node.registered:
            coordinator.receive(now, node.name, message)
        else:
            node.early.append(message)

    def _push(self, node: Node, kind: str) -> None:
        """Send a node the run specification and its messages, one request each: Flower limits its size."""
        c, sites = self._coordinator, self._coordinator.registry.sites
        # A new node has no number yet.
        client = sites[node.name].client if node.name in sites else 0
        content = list(node.queued) if kind == TRAIN else []
        registered = Registered(client, c.info.run, c.info.spec, c.options.lease)
        message = Message(encode([registered, *content]), node.id, kind, ttl=self._polling.task)
        ids = list(self._grid.push_messages([message]))
        if ids and ids[0]:
            node.mark_sent(ids[0], content)
        else:
            log.warning("Flower has not accepted a message for %s", node.name)

    # ---- effects ----

    def _commit(self) -> None:
        """Let time pass; make the events durable, then send their messages."""
        coordinator = self._coordinator
        coordinator.evaluated(self._evaluator.collect())
        coordinator.tick(self._time())
        effects = coordinator.take()
        if effects.durable:
            self._state.commit(effects)
        self._queue(effects)
        if effects.evaluations:
            self._evaluator.request(effects.evaluations[-1])
        now = self._time()
        for node in self._nodes.values():
            if node.ready(now):
                self._push(node, TRAIN)
        if self._state.due(coordinator.tensors.model.layout.nbytes):
            self._state.checkpoint(coordinator)

    def _queue(self, effects: Effects) -> None:
        for name, message in effects.messages:
            if isinstance(message, Rejected):
                log.warning("%s: %s", name, message.reason)
                if message.final:
                    self._nodes[name].refused = message.reason
            if name in self._nodes and not isinstance(message, RunFinished):
                self._nodes[name].queue(message)
        for name, reason in effects.closed:
            if name in self._nodes:
                log.info("%s: %s", name, reason)
                self._nodes[name].reset()

    def _finish(self) -> str:
        coordinator = self._coordinator
        reason = coordinator.stopped or ""
        coordinator.evaluated(self._evaluator.finish(coordinator.last_evaluation()))
        self._state.commit(coordinator.take())
        self._state.finish(coordinator, coordinator.summary())
        return reason
