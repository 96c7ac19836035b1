"""The live page in a real browser, where there is one, while a run is played."""

import asyncio
import json
import re
import struct
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.units import duration_text
from tests.net.browser import CHROMIUM, browse
from tests.net.page_token import page_token
from tests.net.replayed_run import Played, recorded

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

SITES = "document.querySelectorAll('#sites tr').length"
VERSION = "Number(document.querySelectorAll('.card b')[1].textContent)"


@pytest.fixture
def played(tmp_path: Path) -> Played:
    played = Played(recorded(tmp_path / "run"), tmp_path / "state", {"<b>bold</b> NaN": 2})
    played.until(80.0)
    return played


def test_it_shows_a_run_that_goes_on(played: Played, tmp_path: Path) -> None:
    def shown() -> Snapshot:
        snapshot = played.snapshot()
        first, *others = snapshot.sites
        return replace(snapshot, sites=(replace(first, samples=2500, allowed=(100, 5000)), *others))

    async def go() -> None:
        async with (
            dashboard(Watched(shown, played.directory), MonitorAddress()) as url,
            browse() as page,
        ):
            await page.call("Page.navigate", url=url)
            await page.until(f"{SITES} === 4")
            version = await page.eval(VERSION)
            assert version == played.snapshot().version
            sites = await page.eval("document.getElementById('sites').textContent")
            assert "away" in sites
            assert "2,500 (100–5,000)" in sites
            assert await page.eval("document.querySelectorAll('#timeline .span.training').length") > 5
            assert await page.eval("document.querySelectorAll('#timeline .span.lost').length") > 0
            played.until(200.0)
            await page.until(f"{VERSION} > {version}")
            assert await page.eval("document.querySelector('#rejected td').textContent") == "<b>bold</b> NaN"
            await page.eval("document.querySelector('[data-value=version]').click()")
            for scheme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                await page.call("Emulation.setEmulatedMedia", features=features)
                await page.screenshot(tmp_path / f"{scheme}.png")
            size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            await page.call("Emulation.setDeviceMetricsOverride", **size)
            await page.until("document.documentElement.scrollWidth <= 400")
            assert page.complaints == []

    asyncio.run(go())
    light, dark = ((tmp_path / f"{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert light != dark
    assert struct.unpack(">I", light[16:20])[0] == 1180


def test_the_head_is_the_title_of_the_recipe_and_the_plots_begin_with_the_run(
    played: Played, tmp_path: Path
) -> None:
    """The server has waited 90 s for its sites, and the run has lasted 10 s."""
    title = "<b>Hearts</b> & hospitals"

    def shown() -> Snapshot:
        snapshot = played.snapshot()
        sites = tuple(replace(site, last_seen=99.999402) for site in snapshot.sites)
        return replace(snapshot, title=title, now=100.0, began=90.0, sites=sites)

    async def go() -> None:
        played.until(100.0)
        async with (
            dashboard(Watched(shown, played.directory), MonitorAddress()) as url,
            browse() as page,
        ):
            await page.call("Page.navigate", url=url)
            await page.until(f"{SITES} === 4")
            assert await page.eval("document.getElementById('title').textContent") == title
            assert await page.eval("document.getElementById('title').children.length") == 0
            assert await page.eval("document.title") == f"{title} · Offbeat"
            facts = await page.eval("document.getElementById('facts').textContent")
            assert facts == "fedcompass, run state, 10 s since it began"
            heard = (
                "[...document.querySelectorAll('#sites tr td:last-child')].map((cell) => cell.textContent)"
            )
            assert await page.eval(heard) == ["0 s ago"] * 4
            marks = (
                "[...document.querySelectorAll('#timeline text:not(.lane)')].map((mark) => mark.textContent)"
            )
            found = await page.eval(marks)
            assert (found[0], found[-1]) == ("0:00", "0:10"), found
            await page.screenshot(tmp_path / "begun.png")
            assert page.complaints == []

    asyncio.run(go())


def test_a_duration_is_written_as_everywhere_else() -> None:
    script = (files("offbeat.net.monitor") / "page" / "page.js").read_text(encoding="utf-8")
    function = re.search(r"function span\(seconds\) \{.*?\n  \}", script, re.DOTALL)
    assert function is not None
    seconds = [
        0,
        0.000598,
        0.35,
        1.237,
        42,
        99.87,
        119.4,
        120,
        725,
        7199,
        7200.2,
        11105,
        172799,
        187200,
        259200,
    ]

    async def go() -> None:
        async with browse() as page:
            found = await page.eval(f"{json.dumps(seconds)}.map({function[0]})")
            assert found == [duration_text(each) for each in seconds]

    asyncio.run(go())


def test_it_works_behind_a_token(played: Played) -> None:
    async def go() -> None:
        listen = MonitorAddress(token=page_token(played.directory, "secret"))
        async with dashboard(Watched(played.snapshot, played.directory), listen) as url, browse() as page:
            await page.call("Page.navigate", url=url.replace("//", "//me:secret@"))
            await page.until(f"{SITES} === 4")
            assert page.complaints == []

    asyncio.run(go())


@pytest.mark.thorough
def test_it_says_when_the_server_is_gone_and_goes_on_when_it_is_back(played: Played) -> None:
    async def go() -> None:
        watched = Watched(played.snapshot, played.directory)
        async with browse() as page:
            async with dashboard(watched, MonitorAddress()) as url:
                await page.call("Page.navigate", url=url)
                await page.until(f"{SITES} === 4")
            await page.until("document.getElementById('state').textContent.startsWith('no answer')")
            port = int(url.rstrip("/").rpartition(":")[2])
            async with dashboard(watched, MonitorAddress(port=port)):
                await page.until("document.getElementById('state').textContent === 'running'")

    asyncio.run(go())
