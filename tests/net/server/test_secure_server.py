"""A server with helpers: deaths at every durable write, lost, lying and restored helpers, spoiled updates."""

from pathlib import Path

import pytest
import torch

from offbeat.net.server.effects import Effects
from tests.net.server.secure_federation import SecureFederation, run
from tests.sampling import thorough

pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(f: SecureFederation) -> bytes:
    return f.coordinator.tensors.model.values.numpy().tobytes()


class Deaths:
    """One death at the first commit of each arrival, release, manifest and sum."""

    def __init__(self, death: str) -> None:
        self.death, self.at = death, set[tuple[str, int | None]]()

    def __call__(self, effects: Effects) -> str | None:
        for row in effects.rows:
            key = row.name, row.task if row.name == "arrived" else row.version
            if (
                row.name in ("arrived", "aggregate", "releasing", "released", "committee")
                and key not in self.at
            ):
                self.at.add(key)
                return self.death
        return None


@pytest.mark.parametrize(
    ("death", "weighted", "tasks"),
    [
        ("between", True, 9),
        *thorough(*((d, w, 30) for d in ("before", "between", "after") for w in (False, True))),
    ],
)
def test_a_death_before_and_after_each_durable_write(
    death: str, weighted: bool, tasks: int, tmp_path: Path
) -> None:
    """The same model to the last bit, whatever died when; no task in two manifests."""
    whole = run(tmp_path / "whole", weighted=weighted, tasks=tasks)
    assert whole.coordinator.stopped == f"reached {tasks} client tasks"
    releases = len(whole.journal("released"))
    assert releases == len(whole.journal("aggregate")) >= tasks // 5
    dies = Deaths(death)
    broken = run(tmp_path / "broken", dies, range(0, 3000, 7), most=3000, weighted=weighted, tasks=tasks)
    assert len(dies.at) >= 1 + tasks + 2 * releases
    assert broken.coordinator.stopped == whole.coordinator.stopped
    broken.check_manifests()
    assert [row["tasks"] for row in broken.journal("releasing")] == [
        row["tasks"] for row in whole.journal("releasing")
    ]
    assert model_of(broken) == model_of(whole)
    assert torch.isfinite(whole.coordinator.tensors.model.values).all()
    broken.finish()
    assert not (tmp_path / "broken" / "run" / "secrets.db").exists()
