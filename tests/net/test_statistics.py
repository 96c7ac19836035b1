"""Sites tell statistics of their features, as their policies allow."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.data.federated import without_clients
from offbeat.local.feature_statistics import StatisticsLearner
from offbeat.models.specs import LogisticSpec, StandardizedSpec
from offbeat.net import SitePolicy
from offbeat.net.client.sent_lines import sent_lines
from offbeat.net.client.site import STATISTICS
from offbeat.recipes.standardize import read_statistics
from offbeat.sim.gather_statistics import statistics_experiment

SITES = {"north": torch.randn(40, 3) * 5 + 100, "south": torch.randn(25, 3) * 5 + 90}


def test_a_site_records_that_it_told_statistics(tmp_path: Path) -> None:
    gather(tmp_path / "run")
    left = list(sent_lines(tmp_path / "north"))
    (registered,) = [line for line in left if line["kind"] == "run"]
    assert registered["model"] == STATISTICS
    assert any(line["kind"] == "update_submission" and line["run"] == registered["run"] for line in left)


def gather(state: Path, policy: SitePolicy | None = None) -> list[object]:
    """A run with both sites; returns how each of them ended."""
    learner = StatisticsLearner(without_clients(), features=3)

    async def run() -> list[object]:
        options = ob.net.ServerOptions(clients=2)
        async with ob.net.serve(
            statistics_experiment(learner), state, "127.0.0.1:0", options=options
        ) as server:
            address = f"127.0.0.1:{server.port}"
            sites = [
                ob.net.join(address, x, name=name, policy=policy, state=state.with_name(name))
                for name, x in SITES.items()
            ]
            ended: list[object] = await asyncio.gather(*sites, return_exceptions=True)
            return ended

    return asyncio.run(run())


@pytest.mark.parametrize(("told", "tolerance"), [("exact", 1e-6), ("rounded", 5e-3)])
def test_a_server_has_the_statistics_of_all_sites(tmp_path: Path, told: str, tolerance: float) -> None:
    assert gather(tmp_path / "run", SitePolicy(statistics=told)) == ["reached 3 versions"] * 2  # type: ignore[arg-type]
    found, x = read_statistics(tmp_path / "run"), torch.cat([*SITES.values()]).double().numpy()
    assert found.samples == 65
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=tolerance)
    np.testing.assert_allclose(found.std, x.std(0), rtol=10 * tolerance)
    assert (np.abs(found.mean / x.mean(0) - 1).max() > 1e-6) == (told == "rounded")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            SitePolicy(statistics="refused"),
            r"refuses to tell statistics of its features \(statistics = refused\)",
        ),
        (SitePolicy(clip=1.0), "which clip = 1 would spoil"),
        (SitePolicy(min_samples=30), "needs min_samples = 30"),
    ],
)
def test_a_site_tells_no_more_than_its_policy_allows(
    tmp_path: Path, policy: SitePolicy, message: str
) -> None:
    *_, last = gather(tmp_path / "run", policy)
    with pytest.raises(UsageError, match=message):
        raise last if isinstance(last, Exception) else AssertionError(last)


def test_sites_scale_features_by_the_numbers_of_the_runs_model(tmp_path: Path) -> None:
    """Labels hang on the second feature, whose deviation is a thousandth of its mean."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 2, generator=generator) * torch.tensor([1.0, 5.0]) + torch.tensor([0.0, 5000.0])
    data = ob.Dataset(x, (x[:, 1] > 5000).long(), 2)
    spec = StandardizedSpec(LogisticSpec(), mean=(0.0, 5000.0), std=(1.0, 5.0))
    learner = ob.net.server_learner(spec, ob.Training(lr=0.5, batch_size=10), data)
    experiment = ob.Experiment(ob.fedavg(steps=10), learner, until=ob.Until(versions=4))

    async def run() -> None:
        options = ob.net.ServerOptions(clients=2)
        async with ob.net.serve(experiment, tmp_path / "run", "127.0.0.1:0", options=options) as server:
            address = f"127.0.0.1:{server.port}"
            parts = {"north": range(45), "south": range(45, 90)}
            await asyncio.gather(
                *(ob.net.join(address, data.subset(list(rows)), name=name) for name, rows in parts.items())
            )

    asyncio.run(run())
    summary = ob.read_run(tmp_path / "run").summary
    assert summary is not None
    assert (summary.accuracy or 0.0) > 0.9


def test_sites_with_columns_in_another_order_are_counted_together(tmp_path: Path) -> None:
    names = ("age", "height", "weight")
    learner = StatisticsLearner(without_clients(columns=names), features=3)
    order = [2, 0, 1]
    data = [
        ob.Dataset(SITES["north"], columns={"x": names}),
        ob.Dataset(SITES["south"][:, order], columns={"x": tuple(names[n] for n in order)}),
    ]

    async def run() -> None:
        options = ob.net.ServerOptions(clients=2)
        served = statistics_experiment(learner)
        async with ob.net.serve(served, tmp_path / "run", "127.0.0.1:0", options=options) as server:
            address = f"127.0.0.1:{server.port}"
            await asyncio.gather(
                *(
                    ob.net.join(address, own, name=str(n), state=tmp_path / str(n))
                    for n, own in enumerate(data)
                )
            )

    asyncio.run(run())
    found, x = read_statistics(tmp_path / "run"), torch.cat([*SITES.values()]).double().numpy()
    assert found.names == names
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=5e-3)
