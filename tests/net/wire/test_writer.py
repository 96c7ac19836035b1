"""The order of frames: what may pass a body of tensors, and what keeps its place."""

from typing import Any, Literal

import torch

from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    FromServer,
    Heartbeat,
    Message,
    RunFinished,
    TaskAssignment,
    TaskCancel,
    TaskRecall,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import MIB, Limits
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.writer import TOGETHER, MessageWriter

VALUES = 3 * MIB // 4  # a body of three chunks


def assign(task: int) -> TaskAssignment:
    return TaskAssignment(task, 0, 1, 0, Model.empty(Layout.flat(VALUES)))


def name(message: Message) -> str:
    return f"{type(message).__name__} {getattr(message, 'task', '')}".strip()


def order(first: Message, *later: Message, peer: Literal["site", "server"] = "server") -> list[str]:
    """In which order messages arrive, if the later ones come after the first frame of the first."""
    outbox, got = MessageWriter(), []
    receiver: MessageReader[Any] = MessageReader(peer, Limits(), registered=True)
    outbox.put(first)
    frame = outbox.frame()
    for message in later:
        outbox.put(message)
    while True:
        got += [name(message) for message, _ in receiver.feed(frame).messages]
        if outbox.empty:
            return got
        frame = outbox.frame()


def test_small_messages_of_other_tasks_pass_a_body():
    assert order(assign(1), TaskRecall(2), UpdateAck(3, True)) == [
        "TaskRecall 2",
        "UpdateAck 3",
        "TaskAssignment 1",
    ]


def test_what_is_said_of_the_bodys_own_task_does_not_pass_it():
    assert order(assign(1), TaskCancel(1, "late"), TaskRecall(2)) == [
        "TaskRecall 2",
        "TaskAssignment 1",
        "TaskCancel 1",
    ]


def test_messages_about_tasks_and_evaluations_pass_each_others_bodies_and_keep_their_own_order():
    evaluation = EvaluationRequest(4, Model.empty(Layout.flat(VALUES)))
    assert order(evaluation, TaskRecall(2)) == ["TaskRecall 2", "EvaluationRequest"]
    assert order(assign(1), evaluation, UpdateAck(2, True)) == [
        "UpdateAck 2",
        "TaskAssignment 1",
        "EvaluationRequest",
    ]
    result = EvaluationResult(4, 8, {"loss": 1.0})
    update = UpdateSubmission(1, 1, torch.zeros(VALUES), torch.zeros(0, dtype=torch.int64))
    assert order(update, result, peer="site") == ["EvaluationResult", "UpdateSubmission 1"]


def test_heartbeats_pass_everything():
    assert order(assign(1), RunFinished("done"), Heartbeat(1, 5)) == [
        "Heartbeat 1",
        "TaskAssignment 1",
        "RunFinished",
    ]


def test_nothing_passes_what_speaks_of_no_task():
    assert order(assign(1), RunFinished("done"), TaskRecall(2)) == [
        "TaskAssignment 1",
        "RunFinished",
        "TaskRecall 2",
    ]


def test_a_body_does_not_pass_and_is_not_passed_by_its_tasks_messages():
    came = order(assign(1), assign(2), TaskCancel(2, "late"), TaskRecall(3))
    assert came == ["TaskRecall 3", "TaskAssignment 1", "TaskAssignment 2", "TaskCancel 2"]


def test_messages_without_a_body_go_together_with_what_comes_after_them():
    outbox = MessageWriter()
    for message in (
        UpdateAck(1, True),
        TaskRecall(2),
        assign(3),
        TaskCancel(3, "late"),
    ):
        outbox.put(message)
    kinds = []
    while not outbox.empty:
        frame = pb.Frame.FromString(outbox.frame())
        kinds.append([envelope.WhichOneof("message") for envelope in frame.envelopes])
    assert kinds[0] == ["update_ack", "task_recall", "task_assignment"]
    assert kinds[-1] == ["task_cancel"]
    assert not any(kinds[1:-1])
    for task in range(20):
        outbox.put(TaskRecall(task))
    assert len(pb.Frame.FromString(outbox.frame()).envelopes) == TOGETHER
    assert len(pb.Frame.FromString(outbox.frame()).envelopes) == 20 - TOGETHER


def test_the_queue_is_counted_without_the_body_under_way():
    outbox = MessageWriter()
    assert outbox.empty
    for task in range(3):
        outbox.put(assign(task))
    assert len(outbox) == 3
    outbox.frame()
    assert (len(outbox), outbox.empty) == (2, False)


def test_a_sent_model_is_not_copied_before_it_is_sent():
    values = torch.zeros(VALUES)
    outbox = MessageWriter()
    outbox.put(
        TaskAssignment(1, 0, 1, 0, Model(Layout.flat(VALUES), values, torch.zeros(0, dtype=torch.int64)))
    )
    outbox.frame()
    values[-1] = 1.0
    last = b""
    while not outbox.empty:
        last = outbox.frame()
    assert last.endswith(torch.tensor([0.0, 1.0]).numpy().tobytes())


def test_a_newer_heartbeat_replaces_one_that_waits():
    writer = MessageWriter()
    for message in (Heartbeat(4, 1), UpdateAck(1, True), Heartbeat(4, 2)):
        writer.put(message)
    receiver: MessageReader[FromServer] = MessageReader("server", Limits())
    assert [m for m, _ in receiver.feed(writer.frame()).messages] == [UpdateAck(1, True), Heartbeat(4, 2)]
