"""The kind of processor: its name, and that a run's directory has those that made it."""

import sqlite3
from pathlib import Path

import pytest

from offbeat.runs import RunStore, processor, read_run, store

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
    with sqlite3.connect(tmp_path / "a" / "run.db") as database:  # as earlier versions wrote it
        database.execute("DELETE FROM meta WHERE key = 'processors'")
        database.execute("DELETE FROM checksums WHERE part = 'meta'")
    database.close()
    assert read_run(tmp_path / "a").processors == ()
    assert on("AMD") == ()
