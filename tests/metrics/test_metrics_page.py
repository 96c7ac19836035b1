"""The page about metrics: all its Python, with that which needs torchmetrics."""

import re
from pathlib import Path

import pytest

from offbeat.metrics import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_the_python_on_the_page_works_with_torchmetrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("torchmetrics")
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert any("torchmetrics" in block for block in blocks)
    names: dict[str, object] = {"__name__": "metrics"}
    for block in blocks:
        exec(compile(block, "metrics.md", "exec"), names)


def test_the_page_has_every_metric():
    assert not [name for name in METRICS if f"`{name}`" not in PAGE]
