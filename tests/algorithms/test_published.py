"""What is published: modules are searched for factories, and type checkers see the same names."""

import runpy
from pathlib import Path
from types import ModuleType

import pytest

import offbeat as ob
from offbeat import algorithms
from offbeat.algorithms.factory import Factory, in_order

ROOT = Path(__file__).parents[2]


def test_the_stub_names_what_is_found() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_catalogue.py"))
    assert script["STUB"].read_text("utf-8") == script["stub"](), "run python scripts/write_catalogue.py"


def test_every_factory_is_an_attribute_of_the_package() -> None:
    assert set(ob.ALGORITHMS) <= set(dir(ob))
    for name, factory in ob.ALGORITHMS.items():
        assert getattr(ob, name) is factory
    with pytest.raises(AttributeError, match="no attribute 'fedbuf'"):
        ob.fedbuf  # noqa: B018


def test_synchronous_ones_come_first_and_each_kind_from_the_earliest_paper_on() -> None:
    kinds = [factory.kind for factory in ob.ALGORITHMS.values()]
    assert list(dict.fromkeys(kinds)) == ["synchronous", "asynchronous", "semi-asynchronous"]
    assert kinds == sorted(kinds, key=["synchronous", "asynchronous", "semi-asynchronous"].index)
    assert next(iter(ob.ALGORITHMS)) == "fedavg"
    assert in_order(list(reversed(ob.ALGORITHMS.values()))) == ob.ALGORITHMS


def test_a_module_of_the_package_needs_no_entry_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory counts where it is defined, not where it is imported."""
    found = [factory.name for factory in algorithms._published()]
    assert sorted(found) == sorted(set(found)) == sorted(ob.ALGORITHMS)
    other = ModuleType("offbeat.algorithms.fedbuff")
    other.__dict__.update(fedavg=ob.fedavg, fedbuff=ob.fedbuff)
    loaded = algorithms.import_module
    monkeypatch.setattr(
        algorithms, "import_module", lambda name: other if name == other.__name__ else loaded(name)
    )
    assert sorted(factory.name for factory in algorithms._published()) == sorted(found)
    assert all(isinstance(factory, Factory) for factory in ob.ALGORITHMS.values())
