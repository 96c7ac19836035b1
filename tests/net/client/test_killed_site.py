"""A site with privacy of examples whose process is killed again and again never counts too little."""

import asyncio
import json
from pathlib import Path
from random import Random
from signal import SIGKILL
from time import sleep
from typing import Any

import pytest

import offbeat as ob
from offbeat.local.examples_privacy import examples_epsilon
from offbeat.models.specs import LogisticSpec
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.client.examples_ledger import ExamplesSpent
from offbeat.net.grpc.server import GrpcListener, listen
from offbeat.net.transport import OnChannel
from tests.forks import Fork
from tests.net.client import killed_site
from tests.net.client.killed_site import NOISE, SAMPLES, SPENT
from tests.net.support import LIMITS, serve, terms_of, torch_left_alone, until
from tests.sampling import needs, thorough

needs("opacus")
pytestmark = pytest.mark.xdist_group("killed site")

STEPS, BATCH = 3, 20
SCRIPT = Path(killed_site.__file__)


def notes(directory: Path) -> list[Any]:
    """What the processes of the site have noted, in order; a line that is being written is left out."""
    path = directory / "notes"
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    return [json.loads(line) for line in lines[:-1]]


def ended(site: Fork) -> tuple[int, str]:
    """How a process ended, and what it told; it ends here at the latest."""
    try:
        return site.wait(300), site.communicate()[1]
    finally:
        site.kill()


def live(address: str, directory: Path, kill_at: int, by_hand: bool) -> None:
    """One life of the site: it ends itself at a note, or is killed some time after it."""
    before = len(notes(directory))
    site = Fork(SCRIPT, address, directory, 0 if by_hand else kill_at, 0)
    while by_hand and len(notes(directory)) < before + kill_at and site.poll() is None:
        sleep(0.002)
    if by_hand:
        site.kill()
    status, told = ended(site)
    assert status == -SIGKILL, told


def check(directory: Path) -> tuple[int, int]:
    """Every step was charged on the disk before it began; steps begun and charged so far."""
    begun = 0
    for what, *more in notes(directory):
        if what == "step":
            begun += 1
            assert more[0] >= begun
    spent = ExamplesSpent.read(directory / "state")
    charged = 0 if spent is None else spent.steps
    assert charged >= begun
    assert charged % STEPS == 0
    return begun, charged


def left(directory: Path) -> list[str]:
    """Why the site has left the run, as the server has recorded it."""
    rows = ob.read_run(directory / "run").rows("event")
    return [str((row.data or {}).get("reason")) for row in rows if row.name == "left"]


def spend_the_rest(address: str, directory: Path, tasks: int) -> None:
    """The last life, whose budget allows so many tasks beside what was charged before, counts them all."""
    _, charged = check(directory)
    rate = BATCH / SAMPLES
    epsilon = examples_epsilon([(NOISE, rate, charged + tasks * STEPS)], 1e-5) + 1e-4
    status, told = ended(Fork(SCRIPT, address, directory, 0, epsilon))
    assert status == SPENT, told
    assert f"a task of {STEPS} steps goes beyond ε = {epsilon:g} (δ = 1e-05)" in told
    assert check(directory)[1] == charged + tasks * STEPS


@pytest.mark.parametrize(("kills", "seed"), [(2, 1), *thorough((30, 2))])
def test_a_site_that_is_killed_never_counts_too_little(kills: int, seed: int, tmp_path: Path) -> None:
    rng = Random(seed)

    async def run() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def opened(on_channel: OnChannel) -> GrpcListener:
            listener = await listen("127.0.0.1:0", ServerCredentials(), LIMITS, on_channel)
            port.set_result(listener.port)
            return listener

        options = terms_of(clients=1, until=ob.Until(tasks=10_000))
        test = ob.load("digits", samples=20, test_samples=20).test
        server = asyncio.create_task(
            serve(
                ob.fedbuff(size=1, steps=STEPS), LogisticSpec(), ob.Training(lr=0.1, batch_size=BATCH),
                tmp_path / "run", opened, options=options, test=test, seed=3,
            )
        )  # fmt: skip
        address = f"127.0.0.1:{await port}"
        try:
            for kill in range(kills):
                await asyncio.to_thread(live, address, tmp_path, rng.randint(1, 120), kill % 2 == 1)
                check(tmp_path)
            await asyncio.to_thread(spend_the_rest, address, tmp_path, 2)
            await until(
                lambda: any(
                    why.startswith("its privacy budget is spent: it allows no task") for why in left(tmp_path)
                )
            )
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    with torch_left_alone():
        asyncio.run(run())
    found = notes(tmp_path)
    drawn = [more[0] for what, *more in found if what == "drawn"]
    assert len(drawn) == len(set(drawn)) >= 3 * STEPS
    charged = check(tmp_path)[1]
    sent = {more[0] for what, *more in found if what == "sent"}
    assert len(sent) >= 2
    assert charged > STEPS * len(sent)  # it died in some tasks, which were charged again
