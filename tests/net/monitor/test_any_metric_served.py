"""A served run with metrics other than accuracy: it ends at one, and its page, status and numbers show it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import offbeat as ob
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.monitor.dashboard_client import fetch_snapshot
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from offbeat.net.server.server_learner import server_learner
from offbeat.testing.network import MemoryNetwork
from tests.net.browser import CHROMIUM, browse
from tests.net.support import Shares, serve, terms_of

TRAINING = ob.Training(lr=0.1, batch_size=20)
UNTIL = ob.Until(tasks=60, metric="auroc", reaches=0.9)
SITES = 2


@pytest.fixture(autouse=True)
def server_with_auroc(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server evaluates the AUROC."""

    def with_auroc(*arguments: Any) -> ob.TorchLearner:
        learner = server_learner(*arguments)
        assert isinstance(learner, ob.TorchLearner)
        learner.metrics = ["auroc", "balanced_accuracy"]
        return learner

    monkeypatch.setattr("tests.net.support.server_learner", with_auroc)


def served(digits: Shares, directory: Path, until: ob.Until, started: Any = None) -> str | None:
    data, test = digits

    async def go() -> str | None:
        network = MemoryNetwork()
        options = terms_of(clients=SITES, until=until, evaluate=ob.Every(versions=1))
        server = asyncio.create_task(
            serve(
                ob.fedasync(steps=3), LogisticSpec(), TRAINING, directory, network.listen,
                options=options, test=test, started=started,
            )
        )  # fmt: skip
        sites = [asyncio.create_task(join(network.connect(f"site-{i}"), d)) for i, d in enumerate(data)]
        try:
            return await server
        finally:
            for site in sites:
                site.cancel()
            await asyncio.gather(*sites, return_exceptions=True)

    return asyncio.run(go())


def test_it_ends_at_the_metric_and_everything_shows_it(digits: Shares, tmp_path: Path) -> None:
    services: list[Any] = []
    assert served(digits, tmp_path / "run", UNTIL, services.append) == "reached auroc 0.9"
    record = ob.read_run(tmp_path / "run")
    last = record.evaluations()[-1]
    assert last.found["auroc"] == record.meta["summary"]["metrics"]["auroc"]
    assert max(m.found["auroc"] for m in record.evaluations()) >= 0.9
    assert record.meta["higher_is_better"] == {"auroc": True, "balanced_accuracy": True}
    snapshot: Callable[[], Any] = services[0].snapshot
    assert snapshot().metrics == snapshot_of(record).metrics == last.found

    async def watch() -> None:
        async with dashboard(Watched(snapshot, record.path), MonitorAddress()) as url:
            fetched = await asyncio.to_thread(fetch_snapshot, url)
            assert fetched.metrics == last.found
            async with aiohttp.ClientSession() as session:
                text = await (await session.get(url + "metrics")).text()
                assert f'offbeat_metric{{name="auroc"}} {last.found["auroc"]!r}' in text
                metrics = (await (await session.get(url + "api/metrics")).json())["metrics"]
            assert list(metrics) == ["auroc", "balanced_accuracy", "loss"]
            assert metrics["auroc"] == {"words": "auroc", "higher": True, "share": True, "statistic": False}
            assert metrics["loss"] == {"words": "loss", "higher": False, "share": False, "statistic": False}
            if CHROMIUM is not None:
                await look(url, last.found["auroc"])

    asyncio.run(watch())


async def look(url: str, auroc: float) -> None:
    """The page begins with the first metric beside the loss, and shows those that are chosen.

    Nobody is in training: the run has ended.
    """
    async with browse() as page:
        await page.call("Page.navigate", url=url)
        await page.until("document.querySelectorAll('#metrics .curve').length === 2")
        assert await page.eval("document.querySelector('.card b').textContent") == f"{auroc:.4f}"
        titles = "[...document.querySelectorAll('#metrics text.lane')].map((e) => e.textContent)"
        assert (await page.eval(titles))[0::2] == ["auroc", "loss"]
        ticks = "[...document.querySelectorAll('{} text[text-anchor=middle]')]"
        places = f"{ticks}.map((e) => e.textContent + ' at ' + e.getAttribute('x')).join()"
        axis = [await page.eval(places.format(plot)) for plot in ("#metrics", "#timeline")]
        assert axis[0] == axis[1] != ""  # one time axis
        choose = "document.querySelector('#names [data-value={}]').click()"
        await page.eval(choose.format("balanced_accuracy"))
        assert (await page.eval(titles))[0::2] == ["auroc", "balanced accuracy", "loss"]
        await page.eval(choose.format("auroc"))
        await page.eval(choose.format("loss"))
        assert (await page.eval(titles))[0::2] == ["balanced accuracy"]
        assert await page.eval("document.getElementById('statistics').hidden")
        assert await page.eval("document.querySelectorAll('#sites tr').length") == 2
        assert await page.eval("document.querySelectorAll('#sites .training').length") == 0
        assert page.complaints == []


def test_a_metric_that_is_not_given_is_refused_before_a_site_comes(digits: Shares, tmp_path: Path) -> None:
    with pytest.raises(
        ob.UsageError, match=r"there is no metric 'auc': evaluations give loss, auroc, balanced"
    ):
        served(digits, tmp_path / "run", ob.Until(metric="auc", reaches=0.9))
    assert not (tmp_path / "run").exists()
