"""Sums of a simulated run through real masks: sites that mask, helpers that unmask, all in this process."""

from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.releases import RoundedUpdate
from offbeat.core.privacy.sums import Integers
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.effects import AskHelper, Effect, MaskedEntry
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile
from offbeat.secure.masks import mask
from offbeat.secure.unmasking import Unmasking, UnmaskingPhase
from offbeat.secure.voted_unmasking import VotedUnmasking

_RUN = bytes(32)


class MaskedSums:
    """Masks updates for a committee of helpers, whose files are in a temporary directory, and unmasks sums.

    Its masks are drawn from the operating system; the sums are exact, so that no bit of a run follows from
    them.

    Args:
        plan: What is fixed for the run.
    """

    def __init__(self, plan: ReleasePlan) -> None:
        privacy, grid = plan.privacy, plan.grid
        assert privacy.secure is not None
        colluding = privacy.secure.most_colluding
        names = privacy.secure.helpers or tuple(f"helper-{n}" for n in range(colluding + 1))
        directory = Path(mkdtemp(prefix="offbeat-helpers-"))
        files = [HelperFile(directory / f"{n}.db") for n in range(len(names))]
        finalize(self, _remove, directory, files)
        self._helpers = [Helper(name, file) for name, file in zip(names, files, strict=True)]
        members = tuple(CommitteeMember(h.name, h.public_key, h.verify_key) for h in self._helpers)
        self._committee = Committee(
            _RUN, 1, members, colluding, privacy.fewest, privacy.colluding_clients, grid.most,
            privacy.dominance, grid.bits, grid.parameters, grid.clip,
        )  # fmt: skip
        for helper in self._helpers:
            helper.serve(self._committee)

    def __call__(self, release: Aggregate, updates: Iterable[RoundedUpdate]) -> Integers:
        """S of a release. Raises `RunError` where a helper refuses it."""
        vectors, entries = {}, []
        for own in updates:
            site = f"client-{own.task.client}"
            masked = mask(own.values, self._committee, own.task.id, own.task.client, site)
            vectors[own.task.id] = masked.vector
            entries.append(MaskedEntry(own.task.id, own.task.client, site, own.weight, masked.boxes))
        kind = VotedUnmasking if self._committee.votes else Unmasking
        unmasking = kind(self._committee, release.version, entries, vectors.__getitem__, 0.0)
        self._carry_out(unmasking, unmasking.begin(range(len(self._helpers)), 0.0))
        if unmasking.phase is not UnmaskingPhase.DONE:
            raise RunError(unmasking.reason or f"release {release.version} has no sum")
        assert unmasking.total is not None
        return unmasking.total

    def _carry_out(self, unmasking: Unmasking | VotedUnmasking, effects: Iterable[Effect]) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, AskHelper):
                answer = self._helpers[effect.helper].answer(effect.request)
                waiting += unmasking.answered(effect.helper, answer, 0.0)


def _remove(directory: Path, files: Iterable[HelperFile]) -> None:
    for file in files:
        file.close()
    rmtree(directory, ignore_errors=True)
