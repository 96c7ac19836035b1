"""Worker processes that train on the device: the bits of this process, whose versions stay there."""

from typing import Any

import pytest

import offbeat as ob
from tests.device.pretended import DEVICE, PretendedDevice, register
from tests.sim.sim_worlds import HARD, digits, make, normed, outcome


class OnDevice(ob.TorchLearner):
    """Brings the device along to each process that trains."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        register()
        self.__dict__.update(state)

    def train(self, *given: Any) -> Any:
        with PretendedDevice():
            return super().train(*given)

    def evaluate(self, *given: Any) -> Any:
        with PretendedDevice():
            return super().evaluate(*given)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedasmu", "scaffold"])
def test_workers_have_the_bits_of_one_process(
    device: PretendedDevice, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("offbeat.sim.executors.start._check_device", lambda *_: None)
    here = digits(normed)
    training = ob.Training(**{**vars(here.training), "device": DEVICE})
    options: dict[str, Any] = {"until": ob.Until(tasks=15), "evaluate": ob.Every(seconds=20), "seed": 1}
    alone = ob.simulate(make(name), HARD, here, **options)
    with device.phase() as noted:
        shared = ob.simulate(make(name), HARD, OnDevice(normed, here.data, training), workers=2, **options)
    assert outcome(shared) == outcome(alone)
    assert not noted.operations["addmm"] + noted.operations["mm"]  # trained elsewhere
    assert noted.uploaded > 0 < noted.downloaded
