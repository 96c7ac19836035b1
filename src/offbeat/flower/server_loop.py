"""The server's loop over Flower's grid: it asks who is there, takes each reply as it comes, and sends on.

One thread: Flower's calls are short. Only the evaluation of a version has a thread of its own. As
everywhere, what comes of a reply is durable before anybody hears of it.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from offbeat.flower.nodes import Node
from offbeat.flower.serialization import TO_SERVER, decode, encode
from offbeat.net.messages import (
    FromSite,
    Leave,
    ModelRequest,
    Register,
    Rejected,
    RunFinished,
    TaskFailed,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.evaluator import Evaluate, Evaluator
from offbeat.net.server.validation import InvalidUpdateError

NODE_UNAVAILABLE = 5  # Flower's code for a node that has been silent for too long
QUERY, TRAIN = "query.offbeat", "train.offbeat"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a node that failed is asked again
log = logging.getLogger(__name__)


class Grid(Protocol):
    """What is used of Flower's `Grid`."""

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
        pace: Polling,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._coordinator, self._state, self._pace = grid, coordinator, state, pace
        self._now, self._sleep = now, sleep
        self._offset = coordinator.now - now()
        self._looked = -float("inf")
        self._nodes: dict[str, Node] = {}
        self._evaluator = Evaluator(evaluate)

    def run(self) -> str:
        """Serve until the run ends; returns why. Raises `RunError` where its directory cannot be written."""
        try:
            while self._coordinator.stopped is None:
                self._look()
                heard = self._pull()
                self._settle()
                if not heard and self._coordinator.stopped is None:
                    self._sleep(self._pace.poll)
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
        """Who is there? A node that is, is alive, however long its task takes."""
        now = self._time()
        if now - self._looked < self._pace.look:
            return
        self._looked = now
        found = {f"node-{info.node_id}": info for info in self._grid.get_nodes()}
        for name, info in found.items():
            node = self._nodes.setdefault(name, Node(info.node_id, name))
            if not node.online or node.activated != info.last_activated_at:
                node.online, node.activated = True, info.last_activated_at
                node.away()
            if node.greeted:
                self._coordinator.seen(now, name)
            elif (
                node.letter is None
                and node.refused is None
                and now >= node.not_before
                and self._coordinator.may_come(now, name)
            ):
                self._push([(node, self._letter(node, QUERY))])
        for node in self._nodes.values():
            if node.online and node.name not in found:
                self._gone(now, node)

    def _gone(self, now: float, node: Node) -> None:
        """A node has left the grid: its lease goes on."""
        log.info("%s is not there", node.name)
        node.online = False
        node.away()
        self._coordinator.disconnected(now, node.name)

    # ---- letters ----

    def _pull(self) -> bool:
        """Take the replies that are there, each by itself."""
        owners = {letter: node for node in self._nodes.values() for letter in node.outstanding}
        replies = list(self._grid.pull_messages(list(owners))) if owners else []
        for reply in replies:
            node = owners[reply.metadata.reply_to_message_id]
            self._reply(node, reply)
        return bool(replies)

    def _reply(self, node: Node, reply: Message) -> None:
        now = self._time()
        newest, task = node.answered(reply.metadata.reply_to_message_id)
        if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
            if newest:
                self._gone(now, node)
            return
        try:
            said = self._opened(reply)
        except InvalidUpdateError as error:
            log.warning("%s: %s", node.name, error)
            self._coordinator.rejected[error.kind] += 1
            said = [TaskFailed(task, str(error))] if task is not None else []
        failed = not said or any(isinstance(m, TaskFailed) for m in said)
        node.failures = node.failures + 1 if failed else 0
        pause = min(FIRST_PAUSE * 2 ** (node.failures - 1), LONGEST_PAUSE) if failed else 0.0
        node.not_before = now + pause
        for message in said:
            self._hear(now, node, message)

    def _opened(self, reply: Message) -> list[FromSite]:
        """What a reply says."""
        if reply.has_error():
            reason = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
            raise InvalidUpdateError("flower", f"Flower's error {reply.error.code}: {reason[-1]}")
        letter = decode(reply.content, TO_SERVER)
        return [
            m
            for m in letter.messages
            if isinstance(m, Register | ModelRequest | UpdateSubmission | TaskFailed | Leave)
        ]

    def _hear(self, now: float, node: Node, message: FromSite) -> None:
        coordinator = self._coordinator
        if isinstance(message, Leave):
            node.refused = message.reason
            log.error("%s cannot take part: %s", node.name, message.reason)
        elif isinstance(message, Register):
            early, node.early, node.greeted = node.early, [], True
            tasks = [m.task for m in early if isinstance(m, UpdateSubmission | ModelRequest)]
            holds = tasks[-1] if tasks else None
            coordinator.receive(
                now, node.name, replace(message, holds=holds, run=coordinator.run if tasks else "")
            )
            for said in early:
                coordinator.receive(now, node.name, said)
        elif node.greeted:
            coordinator.receive(now, node.name, message)
        else:
            node.early.append(message)

    def _push(self, letters: list[tuple[Node, Message]]) -> None:
        """Send letters, one request each: Flower limits the size of one."""
        for node, message in letters:
            waiting = list(node.waiting)
            ids = list(self._grid.push_messages([message]))
            if ids and ids[0]:
                node.sent(ids[0], waiting if message.metadata.message_type == TRAIN else ())
            else:
                log.warning("Flower has not taken a message for %s", node.name)

    def _letter(self, node: Node, kind: str) -> Message:
        c = self._coordinator
        head = {"run": c.run, "plan": dict(c.plan)}
        if kind == QUERY:
            content: RecordDict = encode(head)
        else:
            content = encode({**head, "client": c.registry.sites[node.name].client}, node.waiting)
        return Message(content, node.id, kind, ttl=self._pace.task)

    # ---- what comes of it ----

    def _settle(self) -> None:
        """Let time pass; make durable what has come of all this, and send it."""
        coordinator = self._coordinator
        for evaluation, metrics in self._evaluator.collect():
            coordinator.evaluated(evaluation, metrics)
        coordinator.tick(self._time())
        outcome = coordinator.take()
        if outcome.durable:
            self._state.commit(outcome)
        self._queue(outcome)
        if outcome.evaluations:
            self._evaluator.request(outcome.evaluations[-1])
        now = self._time()
        ready = [n for n in self._nodes.values() if n.ready() and now >= n.not_before]
        self._push([(node, self._letter(node, TRAIN)) for node in ready])
        if self._state.due(coordinator.tensors.model.layout.nbytes):
            self._state.checkpoint(coordinator)

    def _queue(self, outcome: Effects) -> None:
        for name, message in outcome.messages:
            if isinstance(message, Rejected):
                log.warning("%s: %s", name, message.reason)
                if message.final:
                    self._nodes[name].refused = message.reason
            if name in self._nodes and not isinstance(message, RunFinished):
                self._nodes[name].queue(message)
        for name, reason in outcome.closed:
            if name in self._nodes:
                log.info("%s: %s", name, reason)
                self._nodes[name].away()

    def _finish(self) -> str:
        coordinator = self._coordinator
        reason = coordinator.stopped or ""
        for evaluation, metrics in self._evaluator.finish(coordinator.last_evaluation()):
            coordinator.evaluated(evaluation, metrics)
        self._state.commit(coordinator.take())
        self._state.finish(coordinator, coordinator.summary())
        return reason
