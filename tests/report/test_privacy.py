"""What a report says of privacy: ε over time, each client's μ, the assumptions in words."""

import html
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.report import write_html
from offbeat.report.privacy import BANDS, assumptions, spendings
from tests.report.test_html import Page


def run(directory: Path, privacy: ob.Privacy | None) -> ob.RunRecord:
    ob.simulate(
        ob.feddyn(2), ob.World(clients=4, seconds_per_step=[1, 2, 3, 4]), ob.NoTraining(4, parameters=5),
        until=ob.Until(versions=6), evaluate=None, privacy=privacy, out=directory,
    )  # fmt: skip
    return ob.read_run(directory)


def test_the_page_shows_what_clients_have_spent(tmp_path: Path):
    noise = ob.Noise(multiplier=2.0, budget=ob.Budget(epsilon=4.0))
    record = run(tmp_path / "noise", ob.Privacy(clip=1.0, noise=noise))
    (found,) = spendings({"feddyn": [record]})
    assert found.mu == pytest.approx((3**0.5 / 2,) * 4)
    assert found.epsilon == tuple(entry["epsilon"] for entry in record.entries("aggregate"))
    page = write_html([record], tmp_path / "report.html").read_text("utf-8")
    assert found.text in page
    assert all(sentence in html.unescape(page) for sentence in assumptions([found]))
    line, bars = Page(page).data()["privacy"]["data"]
    assert line["y"] == [float(f"{epsilon:.6g}") for epsilon in found.epsilon]
    assert sum(bars["y"]) == 4


def test_a_run_without_noise_has_no_such_section(tmp_path: Path):
    plain, secure = (
        run(tmp_path / n, p) for n, p in (("a", None), ("b", ob.Privacy(clip=1.0, secure=ob.Secure())))
    )
    assert spendings({"plain": [plain], "secure": [secure]}) == []
    assert 'id="privacy"' not in write_html([plain], tmp_path / "report.html").read_text("utf-8")


def test_the_caveat_of_bands_is_said_where_there_are_some(tmp_path: Path):
    noise = ob.Noise(multiplier=4.0, bands=4)
    found = spendings({"bands": [run(tmp_path / "bands", ob.Privacy(clip=1.0, noise=noise))]})
    assert BANDS in assumptions(found)
    assert found[0].budget is None
