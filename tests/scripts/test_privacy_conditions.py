"""The script that counts conditions on a run's privacy, and the modules that have none."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOUND = runpy.run_path(str(ROOT / "scripts" / "privacy_conditions.py"))
conditions: Callable[[str], list[Any]] = FOUND["conditions"]


def kinds(source: str) -> list[str]:
    return [condition.kind for condition in conditions(source)]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("if c.secure is None: pass", "None"),
        ("x = 1 if None != releases else 2", "None"),
        ("while self.engine.waiting: pass", "truth"),
        ("assert helpers.names", "truth"),
        ("x = [n for n in names if release]", "truth"),
        ("x = not self.driver.helpers.busy", "truth"),
        ("f(secure.ready and now)", "truth"),
        ("f(bool(waiting))", "truth"),
        ("if (secure := f()) is not None: pass", "None"),
        ("if isinstance(self._release, Sum): pass", "isinstance"),
        ("f(isinstance(release, Sum))", "isinstance"),
        ("if name in secure.names: pass", "comparison"),
        ("if run.release_plan is not None: pass", "None"),
        ("match self.helpers:\n case None: pass", "truth"),
        ("match event:\n case 1 if secure.ready: pass", "truth"),
        ("plan = run.release_plan\nif plan is None: pass", "None"),
        ("a, plan = 1, run.release_plan\nother = plan\nif other.x: pass", "truth"),
        ("def f(self): self.p = releases is not None\ndef g(self): return 1 if self.p else 2", "truth"),
    ],
)  # fmt: skip
def test_a_condition_is_found_wherever_it_stands(source: str, kind: str):
    assert kind in kinds(source)


def test_operands_count_by_themselves_and_once():
    found = conditions("if secure is not None and not (secure.busy or other) and now: pass")
    assert [(own.kind, own.text) for own in found] == [
        ("None", "secure is not None"),
        ("truth", "secure.busy"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "for name in helpers.connected: f(name)",
        "self.helpers.tick(now)",
        "x = release.step(updates) if updates else None",
        "if secured or unreleased: pass",
        "if plan is None: pass",
        "def f(run):\n plan = run.release_plan\ndef g(plan):\n if plan is None: pass",
    ],
)
def test_what_is_no_condition_on_privacy_is_not_counted(source: str):
    assert kinds(source) == []


@pytest.mark.parametrize(
    "module",
    [
        "net/server/coordinator.py",
        "net/server/driver.py",
        "net/server/durable_store.py",
        "net/server/state_files.py",
        "net/server/handlers.py",
        "core/engine.py",
    ],
)
def test_the_path_without_privacy_does_not_ask_for_it(module: str):
    assert conditions((ROOT / "src" / "offbeat" / module).read_text(encoding="utf-8")) == []
