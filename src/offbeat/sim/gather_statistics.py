"""Federated statistics of simulated clients."""

from offbeat.algorithms.fedavg import fedavg
from offbeat.core.limits import Every, Until
from offbeat.data.federated import FederatedData
from offbeat.experiment import Experiment
from offbeat.local.feature_statistics import VERSIONS, FeatureStatistics, StatisticsLearner
from offbeat.sim.run_experiment import simulate_experiment
from offbeat.world.world import World


def statistics_experiment(learner: StatisticsLearner) -> Experiment:
    """The run that gathers statistics, for a simulation or for `offbeat.net.serve`.

    Args:
        learner: The clients, or a server's learner: `StatisticsLearner(without_clients(), features=13)`.
    """
    until, never = Until(versions=VERSIONS), Every()
    return Experiment(fedavg(epochs=1), learner, until=until, evaluate=never, guard=None, label="statistics")


def feature_statistics(
    data: FederatedData, *, rounded: bool = False, labels: bool = True, least: int = 1
) -> FeatureStatistics:
    """Gather statistics of the features of all clients, as sites would tell them.

    No sample leaves a client: each tells means over its samples, in three rounds.

    Args:
        data: The clients' samples: one tensor of floating-point numbers [N, …]; NaN is missing.
        rounded: Whether each client rounds each number to three significant digits.
        labels: Whether each client tells the shares of its labels.
        least: Fewest samples that a client tells anything of, as for `StatisticsLearner`.

    Raises:
        UsageError: The samples have no features that are numbers.
    """
    learner = StatisticsLearner(data, rounded=rounded, labels=labels, least=least)
    run = simulate_experiment(
        statistics_experiment(learner), World(clients=learner.clients, seconds_per_step=1.0)
    )
    samples = sum(learner.samples(client) for client in range(learner.clients))
    return FeatureStatistics.of(run.model.arrays(), samples, data.columns)
