"""The messages of secure aggregation over the wire: as they went in, and refused before memory is taken."""

from typing import Any

import numpy as np
import pytest
import torch

from offbeat.core.layout import Layout
from offbeat.net.messages import Register, Registered, UpdateSubmission
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.writer import MessageWriter
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare
from tests.net.announced_body import announced_body

SIZE = 100_000
HELPERS = tuple(
    CommitteeMember(name, bytes([n]) * 32, bytes([9 + n]) * 32) for n, name in enumerate(("a", "b", "ö"))
)
COMMITTEE = Committee(bytes(range(32)), 2, HELPERS, 1, 3, 1, 10, 0.5, 4, SIZE, 0.25)


def through(peer: Any, *messages: Any) -> list[Any]:
    writer, out = MessageWriter(64 << 10), []
    reader: MessageReader[Any] = MessageReader(peer, Limits(layout=Layout.flat(SIZE)), registered=True)
    for message in messages:
        writer.put(message)
    while not writer.empty:
        out += [message for message, _ in reader.feed(writer.frame()).messages]
    return out


def test_what_the_server_says_arrives() -> None:
    entries = (UnmaskEntry(7, 3, "site ö", 15, bytes(112)), UnmaskEntry(8, 4, "b", 1, b"\xff" * 112))
    requests = [UnmaskRequest(12, COMMITTEE.digest, (0, 2), entries), UnmaskRequest(13, b"", (), (), True)]
    registered = Registered(3, "run", {}, 60.0, site="hospital-a")
    assert through("server", registered, COMMITTEE, *requests) == [registered, COMMITTEE, *requests]


def test_what_sites_and_helpers_say_arrives() -> None:
    words = np.arange(SIZE, dtype=np.uint32) * np.uint32(2**31 - 1)
    helper = Register(
        0, 0, public_key=b"k" * 32, instance=9, committee=COMMITTEE.digest, verify_key=b"v" * 32
    )
    share, check = (UnmaskShare(12, b"m" * 32, (0, 1), 9, total) for total in (words, words[:0]))
    refused = UnmaskRefused(12, "the seeds of task 7 do not decrypt", (7,))
    masked = torch.from_numpy(words.view(np.int32))
    boxes = (bytes(112), b"\x01" * 112)
    update = UpdateSubmission(
        7, 5, masked, torch.zeros(0, dtype=torch.int64), {}, 0.1, None, COMMITTEE.digest, boxes
    )
    told = through("site", share, check, refused, update)
    assert told[2] == refused
    for sent, got in zip((share, check), told[:2], strict=True):
        assert (got.release, got.manifest, got.groups, got.instance) == (12, b"m" * 32, (0, 1), 9)
        assert np.array_equal(sent.total, got.total)
    assert torch.equal(told[3].delta, masked)
    assert (told[3].committee, told[3].boxes, told[3].lr) == (COMMITTEE.digest, boxes, 0.1)
    assert not len(told[3].integers)
    registering: MessageReader[Any] = MessageReader("site", Limits())
    writer = MessageWriter()
    writer.put(helper)
    assert registering.feed(writer.frame()).messages == [(helper, 0)]


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (pb.Envelope(unmask_share=pb.UnmaskShare(), body=announced_body((pb.Part.SUM, 4))), "4 bytes"),
        (
            pb.Envelope(
                update_submission=pb.UpdateSubmission(), body=announced_body((pb.Part.MASKED, 8 << 20))
            ),
            "bytes of masked",
        ),
        (
            pb.Envelope(
                update_submission=pb.UpdateSubmission(),
                body=announced_body((pb.Part.MASKED, 4 * SIZE), (pb.Part.SHARED, 4 * SIZE)),
            ),
            "announces parts",
        ),
        (pb.Envelope(update_submission=pb.UpdateSubmission(boxes=[b""] * 10)), "boxes has 10 entries"),
        (pb.Envelope(unmask_share=pb.UnmaskShare(manifest=bytes(33))), "manifest has 33 bytes"),
        (pb.Envelope(unmask_refused=pb.UnmaskRefused(tasks=[0] * 4097)), "tasks has 4097 entries"),
        (pb.Envelope(committee=pb.Committee()), "not for this side"),
    ],
)
def test_what_a_site_may_not_say(envelope: pb.Envelope, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr("offbeat.net.wire.reader.allocate", lambda part: taken.append(part.bytes))
    reader: MessageReader[Any] = MessageReader("site", Limits(layout=Layout.flat(SIZE)), registered=True)
    with pytest.raises(ProtocolError, match=why):
        reader.feed(pb.Frame(envelopes=[envelope]).SerializeToString())
    assert taken == []


def test_a_committee_that_is_none_is_refused() -> None:
    reader: MessageReader[Any] = MessageReader("server", Limits(), registered=True)
    told = pb.Committee(run=bytes(32), epoch=1, helpers=[pb.CommitteeMember(name="a", public_key=b"k")])
    with pytest.raises(ProtocolError, match="colluding"):
        reader.feed(pb.Frame(envelopes=[pb.Envelope(committee=told)]).SerializeToString())
