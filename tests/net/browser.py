"""A headless Chromium, spoken to over its own debugging protocol."""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
PATIENCE = 60.0


class Browser:
    """One page; `complaints` has every error and warning of its console and network."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self._listener = asyncio.create_task(self._listen())

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, PATIENCE)

    async def eval(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait for an expression to become true."""
        async with asyncio.timeout(PATIENCE):
            while not await self.eval(script):
                await asyncio.sleep(0.1)

    async def screenshot(self, path: Path) -> None:
        """The whole page."""
        height = await self.eval("document.documentElement.scrollHeight")
        width = await self.eval("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = await self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]))
                else:
                    answer.set_result(told["result"])
            elif told["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(told["params"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] in (
                "error",
                "warning",
            ):
                self.complaints.append(json.dumps(told["params"]["entry"]))


@asynccontextmanager
async def browse(width: int = 1180, height: int = 900) -> AsyncIterator[Browser]:
    """Start Chromium with an empty page."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={home}",
            f"--window-size={width},{height}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(home) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    page = next(p for p in await answer.json() if p["type"] == "page")
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    browser = Browser(socket)
                    for domain in ("Runtime", "Log", "Page", "Network"):
                        await browser.call(f"{domain}.enable")
                    try:
                        yield browser
                    finally:
                        await browser.close()
        finally:
            process.terminate()
            await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            if file.is_file() and (text := file.read_text()):
                return int(text.splitlines()[0])
            await asyncio.sleep(0.05)
