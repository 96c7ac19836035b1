"""Check of the metrics that a recipe names, before its runs begin."""

from offbeat.core.errors import UsageError
from offbeat.core.limits import check_found
from offbeat.core.metric_names import CLIENTS, in_order
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.metrics.clients import aggregate_clients
from offbeat.recipes.recipe import Recipe


def check_metrics(recipe: Recipe, learner: TorchLearner | LoopLearner, metric: str | None) -> None:
    """Evaluate the initial model once, if metrics are named, to refuse one that evaluations do not give.

    Args:
        recipe: The experiment, which may name metrics that end or keep.
        learner: Its learner; at a server it has no clients, and their metrics are not known yet.
        metric: The metric that runs are compared by. None means the first that they have.

    Raises:
        UsageError: There is no such metric.
    """
    every, until = recipe.evaluate, recipe.until
    if metric is None and not until.metrics and every.keep_best is None:
        return
    model, metrics = learner.initial(recipe.seed), dict[str, float]()
    if every.at_server:
        metrics |= learner.evaluate(model)
    held = [client for client in range(learner.clients) if learner.held_out(client)]
    if every.at_clients and held:
        metrics |= aggregate_clients({held[0]: learner.evaluate_client(model, held[0])})
    check_found(until, every, metrics)
    later = metric is not None and metric.startswith(CLIENTS) and every.at_clients and not held
    if metric is not None and metric not in metrics and not later:
        given = f"they give {', '.join(in_order(metrics))}" if metrics else "there are none"
        raise UsageError(f"metric = {metric} is not what evaluations give: {given}")
