"""The Containerfile and its health check."""

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offbeat.net.monitor.http import HEALTHY
from tests.deploy.command_lines import DEPLOY, parse
from tests.script_modules import load_script

TEXT = (DEPLOY / "container/Containerfile").read_text()


def health() -> Any:
    return load_script(DEPLOY / "container/health.py")


def test_what_is_copied_is_there():
    root = Path(__file__).parents[2]
    for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE):
        *sources, _ = line.split()
        assert all((root / source).exists() for source in sources), line


def test_the_program_runs_as_nobody_that_the_machine_knows():
    assert re.findall(r"^USER (.*)$", TEXT, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^VOLUME (.*)$", TEXT, re.MULTILINE) == ["/state"]
    assert re.findall(r"^ENTRYPOINT (.*)$", TEXT, re.MULTILINE) == ['["/opt/offbeat/bin/offbeat"]']


def test_the_ports_are_those_that_offbeat_has():
    listen = parse(["serve", "digits", "--state", "x"])["listen"]
    assert listen.rpartition(":")[2] in re.findall(r"^EXPOSE (.*)$", TEXT, re.MULTILINE)[0].split()


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", TEXT, re.MULTILINE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_a_container_without_a_page_is_healthy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OFFBEAT_HEALTH", raising=False)
    assert health().main() == 0


def test_the_health_of_a_server_is_that_of_its_page(monkeypatch: pytest.MonkeyPatch, capsys):
    statuses = iter([200, 503])

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=next(statuses))

    async def story() -> None:
        app = web.Application()
        app.router.add_get(HEALTHY, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}{HEALTHY}"
        monkeypatch.setenv("OFFBEAT_HEALTH", address)
        assert await asyncio.to_thread(health().main) == 0
        assert await asyncio.to_thread(health().main) == 1
        await runner.cleanup()
        assert await asyncio.to_thread(health().main) == 1
        assert capsys.readouterr().out.startswith(f"{address}: HTTP Error 503")

    asyncio.run(story())
