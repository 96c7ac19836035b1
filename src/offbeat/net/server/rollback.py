"""Rollback of a deployed run: it goes back to its last good version once an evaluated one has collapsed.

The rule in `collapse` judges each evaluation. A version that it finds good is kept, as `GlobalModel.good`;
from the next checkpoint on, its content is in a file only (`durable_store`). A collapse makes the driver go
back to that one (`Driver.roll_back`). The guard of updates can make the driver go back too, without an
evaluation (`core.guard`).
"""

import logging

from offbeat.core.events import Metrics, Version
from offbeat.core.good_version import GoodVersion
from offbeat.net.server.driver import Driver
from offbeat.net.server.effects import Evaluation

log = logging.getLogger(__name__)


def judge_version(driver: Driver, now: float, evaluation: Evaluation, metrics: Metrics) -> Version | None:
    """Keep an evaluated version if it is good; go back to the last good one if it has collapsed.

    A version that is withdrawn by now says nothing. The log has a warning when the rule begins to warn.

    Args:
        driver: The run's driver, with the rule that judges the evaluations.
        now: The time, in seconds of the run's clock.
        evaluation: The version that was evaluated.
        metrics: Its metrics, with what the rule has added to them.

    Returns:
        The version to which the run has gone back; None means that it has not.
    """
    if evaluation.version < driver.rolled_back:
        return None
    collapse = driver.collapse
    warned = collapse.warning is not None
    reason = collapse.judge(metrics)
    if collapse.warning is not None and not warned:
        log.warning("the loss rises", extra={"version": evaluation.version, "reason": collapse.warning})
    if collapse.good:
        driver.tensors.good = GoodVersion.in_memory(evaluation.version, evaluation.model)
    elif reason is not None and driver.ending is None and driver.tensors.good is not None:
        driver.roll_back(now, f"version {evaluation.version} has collapsed: {reason}")
        return driver.tensors.good.version
    return None
