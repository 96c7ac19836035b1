"""What is refused is counted; the log has the first one and then a summary."""

import asyncio

import pytest

from offbeat.net import refusal_log
from offbeat.net.refusal_log import RefusalLog


def test_a_thousand_refusals_are_counted_in_a_few_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refusal_log, "PAUSE", 0.05)

    async def story() -> None:
        refused = RefusalLog("page ")
        for k in range(1000):
            refused.add("address" if k % 4 else "full", f"10.0.0.{k % 200}", "too many")
        assert refused.counts == {"page address": 750, "page full": 250}
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # nothing to say, nothing said
        assert len(caplog.records) == 2
        refused.add("full", "10.0.0.1", "too many")
        refused.add("full", "10.0.0.2", "too many")
        refused.close()

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records] == [
        "refused 10.0.0.0: too many",
        "refused 999 more (page address 750, page full 249); the last, 10.0.0.199: too many",
        "refused 10.0.0.1: too many",
        "refused 1 more (page full 1); the last, 10.0.0.2: too many",
    ]
