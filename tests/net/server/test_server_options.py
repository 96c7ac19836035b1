"""What a server can promise of attackers with the sites that it begins with."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.experiment import Experiment
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.server_options import ServerOptions


@pytest.mark.parametrize(
    ("clients", "options", "tested", "bounded"),
    [(1, {}, False, False), (2, {}, False, False), (2, {"rollback": False}, True, False)],
)
def test_few_sites_without_a_measure_are_told(
    clients: int, options: dict[str, Any], tested: bool, bounded: bool
) -> None:
    reason = ServerOptions(clients=clients, **options).unguarded(tested=tested, bounded=bounded)
    assert reason is not None
    assert "give test data" in reason
    assert "norm_bound" in reason


@pytest.mark.parametrize(
    ("clients", "options", "tested", "bounded"),
    [
        (3, {}, False, False),
        (2, {}, True, False),
        (2, {"norm_bound": 1.0}, False, False),
        (1, {}, False, True),
    ],
)
def test_a_measure_or_a_majority_is_enough(
    clients: int, options: dict[str, Any], tested: bool, bounded: bool
) -> None:
    assert ServerOptions(clients=clients, **options).unguarded(tested=tested, bounded=bounded) is None


def test_the_log_says_so_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_run(
            Experiment(ob.fedasync(steps=1), server_learner(torch.nn.Linear(3, 2)), evaluate=ob.Every()),
            tmp_path / "run", ServerOptions(clients=2),
        ).store.close()  # type: ignore[union-attr]  # fmt: skip
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("a run that begins with 2 of 3 sites has no majority")
