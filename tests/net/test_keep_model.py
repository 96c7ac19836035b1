"""Sites that keep the final model: those in the run, and those that come when it has ended."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.model import Tensors
from offbeat.data import own_data, without_clients
from offbeat.net import join
from offbeat.net.client.store import SiteStore
from offbeat.runs.files import read_tensors
from offbeat.runs.schema import ModelChoice
from offbeat.testing.network import MemoryNetwork
from tests.net.support import serve, terms_of

pytestmark = pytest.mark.usefixtures("here")

TRAINING = ob.Training(lr=0.1, batch_size=10)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(number))
    return x, (x[:, 0] > 0).long()


def learner(data: Any = None, training: ob.Training = TRAINING) -> ob.TorchLearner:
    """One whose head stays at the sites; the server's has test data."""
    federated = without_clients(samples(9)) if data is None else own_data(data)
    return ob.TorchLearner(net, federated, training, personal=["2.*"])


def federation(
    directory: Path,
    *sites: dict[str, Any],
    share: ModelChoice | None = "final",
    training: ob.Training = TRAINING,
    buffers: Any = "recompute",
    linger: float = 5.0,
) -> list[Any]:
    """A run with its sites; what the server and each site returned or raised."""
    network = MemoryNetwork()
    every = ob.Every(versions=1, keep_best="loss") if share == "best" else ob.Every()
    options = terms_of(clients=len(sites), until=ob.Until(versions=4), evaluate=every, share_model=share)
    algorithm = ob.compose(ob.fedavg(steps=3), buffers=buffers)

    async def run() -> list[Any]:
        server = asyncio.create_task(
            serve(
                algorithm,
                learner(training=training),
                None,
                directory,
                network.listen,
                options=options,
                linger=linger,
            )
        )
        await asyncio.sleep(0)
        joined = [join(network.connect(f"site-{i}"), **own) for i, own in enumerate(sites)]
        found = await asyncio.gather(*joined, return_exceptions=True)
        if not all(isinstance(each, str) for each in found):
            server.cancel()
        return [*await asyncio.gather(server, return_exceptions=True), *found]

    return asyncio.run(run())


def site(number: int, **options: Any) -> dict[str, Any]:
    return {"learner": learner(samples(number)), **options}


def equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("buffers", ["recompute", "local"])
def test_sites_keep_the_model_with_what_is_their_own(buffers: str, tmp_path: Path) -> None:
    """A file, a function, and a site that does not ask; the statistics of its own where it has some."""
    given: list[Tensors] = []
    sites = (
        site(0, state=tmp_path / "a", keep_model=tmp_path / "kept.safetensors"),
        site(1, keep_model=given.append),
        site(2),
    )
    assert set(federation(tmp_path / "run", *sites, buffers=buffers)) == {"reached 4 versions"}
    model = read_tensors(tmp_path / "run" / "model.safetensors")
    assert not any(name.startswith("2.") for name in model)
    kept = read_tensors(tmp_path / "kept.safetensors")
    (other,) = given
    statistics = dict(net().named_buffers())
    for own in (kept, other):
        net().load_state_dict(own)
        assert equal(
            {n: own[n] for n in model if n not in statistics},
            {n: t for n, t in model.items() if n not in statistics},
        )
    state = SiteStore(tmp_path / "a").state
    assert torch.equal(kept["2.weight"], state["personal.2.weight"])
    assert not torch.equal(kept["2.weight"], other["2.weight"])
    assert torch.equal(kept["1.running_mean"], model["1.running_mean"]) == (buffers == "recompute")
    assert torch.equal(kept["1.running_mean"], other["1.running_mean"]) == (buffers == "recompute")
    # the run is over, and served again: who comes now gets the same
    again = tmp_path / "again.safetensors"
    late = site(0, state=tmp_path / "a", keep_model=again)
    assert set(federation(tmp_path / "run", late, buffers=buffers, linger=0.2)) == {"reached 4 versions"}
    assert equal(read_tensors(again), kept)


def test_a_site_keeps_the_best_model(tmp_path: Path) -> None:
    """The last versions are worse: the rate is too large."""
    training = replace(TRAINING, lr=4.0)
    kept, late = tmp_path / "kept.safetensors", tmp_path / "late.safetensors"
    asking = {"learner": learner(samples(0), training), "state": tmp_path / "a"}
    assert federation(
        tmp_path / "run", {**asking, "keep_model": kept}, share="best", training=training, buffers="follow"
    )[1] == "reached 4 versions"  # fmt: skip
    best, last = (read_tensors(tmp_path / "run" / f"{name}.safetensors") for name in ("best", "model"))
    found = read_tensors(kept)
    assert equal({name: found[name] for name in best}, best)
    assert not equal(best, last)
    federation(
        tmp_path / "run", {**asking, "keep_model": late}, share="best", training=training, buffers="follow",
        linger=0.2,
    )  # fmt: skip
    assert equal(read_tensors(late), found)


def test_the_best_model_needs_a_metric(tmp_path: Path) -> None:
    options = terms_of(share_model="best")
    with pytest.raises(ob.UsageError, match=r"share_model = 'best' needs evaluate.keep_best"):
        asyncio.run(serve(ob.fedavg(), learner(), None, tmp_path, MemoryNetwork().listen, options=options))


def test_a_run_that_does_not_share_its_model_says_so(tmp_path: Path) -> None:
    """To a site that asks, before it trains; and once the run has ended."""
    asking = site(0, keep_model=tmp_path / "kept.safetensors")
    refused = federation(tmp_path / "run", asking, share=None)[1]
    assert isinstance(refused, ob.UsageError)
    assert str(refused) == (
        "the run does not share its model: leave keep_model (site.keep_model) out, or have it served with "
        "share_model (--set server.share_model)"
    )
    assert federation(tmp_path / "other", site(0), share=None)[1] == "reached 4 versions"
    ended = federation(tmp_path / "other", asking, share=None, linger=0.2)[1]
    assert isinstance(ended, ob.RunError)
    assert "the run has ended (reached 4 versions), and does not share its model: leave" in str(ended)
    assert not (tmp_path / "kept.safetensors").exists()


@pytest.mark.parametrize("name", ["model.pt", "nowhere/model.safetensors", "."])
def test_a_file_that_cannot_be_written_is_refused_at_once(name: str, tmp_path: Path) -> None:
    async def nobody() -> Any:
        raise AssertionError("it connects")

    with pytest.raises(
        ob.UsageError, match=r"cannot be written: (give a name that ends in|.* is no directory)"
    ):
        asyncio.run(join(nobody, samples(0), keep_model=tmp_path / name))


class Twice(nn.Sequential):
    """Its first and its last layer have two names."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.first, self.head = self[0], self[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[2](self[1](self[0](x)))


def test_a_model_with_two_names_of_a_tensor_has_both_at_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "net", Twice)
    given: list[Tensors] = []
    federation(tmp_path / "run", site(0, keep_model=given.append), site(1), buffers="local")
    Twice().load_state_dict(given[0])
    assert torch.equal(given[0]["head.weight"], given[0]["2.weight"])
