"""Masked updates of sites: checked, and as the one vector that is stored and held."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from offbeat.core.commands import Train
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.net.messages import UpdateAck, UpdateSubmission
from offbeat.net.secure.helper_committee import HelperCommittee
from offbeat.net.secure.served_run import ServedRun
from offbeat.net.server.site_registry import SiteRecord
from offbeat.net.server.validation import InvalidUpdateError, check_lr, check_steps
from offbeat.secure.committee import Committee
from offbeat.secure.messages import Words
from offbeat.secure.refusals import SecureRefusal


class MaskedUpdateCheck:
    """Checks masked updates; one for other helpers than the run has now is to be masked anew.

    Args:
        run: The run.
        helpers: Its helpers.
        samples_unit: Of what the numbers of samples are multiples that sites tell.
    """

    def __init__(self, run: ServedRun, helpers: HelperCommittee, samples_unit: int) -> None:
        self._run, self._helpers, self.samples_unit = run, helpers, samples_unit

    def check(
        self, site: SiteRecord, command: Train, update: UpdateSubmission, base: Model
    ) -> LocalResult | None:
        """Check an update; None means that it is masked for another committee: its task is given again."""
        committee = self._helpers.formed
        assert committee is not None
        if update.boxes and update.committee != committee.digest:
            refused = UpdateAck(command.task, accepted=False, reason=SecureRefusal.OTHER_MASK)
            self._run.send(site.name, refused)
            self._run.assign(command)
            return None
        return check_masked(update, base, command.steps, committee)


def check_masked(update: UpdateSubmission, base: Model, steps: int, committee: Committee) -> LocalResult:
    """A masked update as it is held: v, then the boxes, int32.

    Args:
        update: The site's message, masked for this committee.
        base: Model that the task began with.
        steps: Local steps that were asked for.
        committee: The committee.

    Raises:
        InvalidUpdateError: The update is not accepted.
    """
    check_steps(update.steps, steps)
    lr, delta, boxes = check_lr(float(update.lr)), update.delta, update.boxes
    if not isinstance(delta, Tensor) or delta.dtype != torch.int32 or len(delta) != committee.parameters:
        raise InvalidUpdateError(
            f"the update is not masked: {committee.parameters} integers are needed", "layout"
        )
    if [len(box) for box in boxes] != [committee.box_bytes] * len(committee.helpers):
        raise InvalidUpdateError(
            f"the update has boxes of {[len(box) for box in boxes]} bytes: {len(committee.helpers)} of "
            f"{committee.box_bytes} are needed", "boxes",
        )  # fmt: skip
    return LocalResult(pack(delta, boxes), base.integers, {}, lr)


def pack(masked: Tensor, boxes: Sequence[bytes]) -> Tensor:
    """A masked vector and its boxes as one vector, int32."""
    return torch.cat([masked, torch.from_numpy(np.frombuffer(b"".join(boxes), np.int32).copy())])


def unpack(packed: Tensor, committee: Committee) -> tuple[Words, tuple[bytes, ...]]:
    """The masked vector, uint32 [parameters], and the boxes."""
    words, size = packed.numpy().view(np.uint32), committee.box_bytes
    octets = words[committee.parameters :].tobytes()
    boxes = tuple(octets[size * i :][:size] for i in range(len(committee.helpers)))
    return words[: committee.parameters], boxes
