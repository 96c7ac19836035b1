"""The kind of processor: its name, and that a run's directory has those that made it."""

from pathlib import Path

import pytest

import offbeat as ob
from offbeat.runs import RunStore, processor, read_run, store
from offbeat.runs.processor import gpu_name, processor_name
from offbeat.sim import run_experiment
from tests.sim.sim_worlds import CALM, digits

META = {
    "label": "a", "algorithm": {"name": "fedavg"}, "seed": 0, "clients": 1, "recipe": None, "offbeat": "0",
}  # fmt: skip


def named_in(folder: Path, text: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    path = folder / "cpuinfo"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", path)
    return processor.processor_name.__wrapped__()


def test_the_name_is_the_makers_or_the_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert named_in(tmp_path, None, monkeypatch) == "riscv64"
    assert named_in(tmp_path, "model name\t: \nfeatures: a\n", monkeypatch) == "riscv64"
    text = "vendor_id\t: x\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n"
    assert named_in(tmp_path, text, monkeypatch) == "AMD EPYC"


def test_two_generations_with_one_name_are_two_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        named_in(tmp_path, f"cpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: Intel Xeon\n", monkeypatch)
        for model in (85, 207)
    ]
    assert names == ["Intel Xeon family 6 model 85", "Intel Xeon family 6 model 207"]


def test_a_run_has_the_kinds_of_processor_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(kind: str, make: bool = False) -> tuple[str, ...]:
        monkeypatch.setattr(store, "processor_name", lambda: kind)
        opened = (
            RunStore.create(tmp_path / "a", META, [(0, 1, None)]) if make else RunStore.reopen(tmp_path / "a")
        )
        opened.close()
        return read_run(tmp_path / "a").processors

    assert on("Intel", make=True) == ("Intel",)
    assert on("Intel") == ("Intel",)
    assert on("AMD") == ("Intel", "AMD")
    assert on("Intel") == ("Intel", "AMD")


def test_a_run_has_the_kinds_of_gpu_that_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, learner = tmp_path / "a", digits()
    monkeypatch.setattr(run_experiment, "gpu_name", {"cpu": "A GPU"}.get)
    ob.simulate(ob.fedasync(steps=1), CALM, learner, until=ob.Until(tasks=2), out=directory)
    assert read_run(directory).processors == (processor_name(), "A GPU")
    monkeypatch.setattr(run_experiment, "gpu_name", {"cpu": "Another"}.get)
    ob.resume(directory, ob.fedasync(steps=1), CALM, learner, until=ob.Until(tasks=4))
    assert read_run(directory).processors == (processor_name(), "A GPU", "Another")


def test_a_processor_is_no_gpu() -> None:
    assert gpu_name("cpu") == ""
