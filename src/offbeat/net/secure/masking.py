"""Masking of a site's updates, in a run with secure aggregation."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, TaskId
from offbeat.core.learner import LocalResult
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.privacy.sums import SumGrid
from offbeat.net.messages import TaskAssignment, UpdateSubmission
from offbeat.secure.committee import SEED_BYTES, Committee
from offbeat.secure.masks import mask


@dataclass(frozen=True)
class Masking:
    """A site's masking of its updates.

    Attributes:
        committee: The helpers.
        grid: The grid of the updates.
        client: The site's number in the run.
        site: The name by which the server knows it.
    """

    committee: Committee
    grid: SumGrid
    client: ClientId
    site: str

    @classmethod
    def of(
        cls,
        committee: Committee,
        plan: Privacy | None,
        parameters: int,
        client: ClientId,
        site: str,
        pinned: Mapping[str, str] | None,
    ) -> "Masking":
        """The masking for the server's committee, checked against the site's knowledge of the run.

        Args:
            committee: The committee.
            plan: The run's options of privacy, as the server has told them before.
            parameters: Parameters of the model.
            client: The site's number in the run.
            site: The name by which the server knows the site.
            pinned: Fingerprints of the helpers that the site allows, by name. None means that it allows all.

        Raises:
            UsageError: The committee is not the plan's, or has a helper that the site does not allow.
        """
        if plan is None or plan.secure is None:
            raise UsageError("the server tells a committee in a run that is not secure")
        different = committee.mismatch(plan, parameters)
        if different is None and pinned is not None:
            different = committee.unpinned(pinned)
        if different is not None:
            raise UsageError(different)
        grid = SumGrid(committee.most, committee.weight_bits, committee.clip, parameters, dithered=True)
        return cls(committee, grid, client, site)

    def rounding(self, task: TaskId) -> bytes:
        """Fresh bytes for the rounding of a task's update: known ones would tell of it."""
        return os.urandom(SEED_BYTES)

    def submission(
        self, a: TaskAssignment, steps: int, result: LocalResult, factor: float
    ) -> UpdateSubmission:
        """A task's update: clipped, rounded, dithered and masked.

        Args:
            a: The task.
            steps: Local steps that were done.
            result: What the training gave.
            factor: f of the algorithm; it is f Δ that is clipped.
        """
        delta = result.delta[: self.grid.parameters].numpy()
        y = self.grid.round(delta, self.rounding(a.task), factor)
        masked = mask(y, self.committee, a.task, self.client, self.site)
        vector = torch.from_numpy(masked.vector.view("int32"))
        none = torch.zeros(0, dtype=torch.int64)
        return UpdateSubmission(
            a.task, steps, vector, none, {}, result.lr, None, masked.committee, masked.boxes
        )
