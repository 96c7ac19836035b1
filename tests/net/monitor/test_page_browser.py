"""The live page in a real browser, where there is one, while a run is played."""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from offbeat.net.monitor.snapshot import Snapshot
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
