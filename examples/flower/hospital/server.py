"""What the server runs: an algorithm of Offbeat on the nodes of the grid."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import offbeat as ob
from offbeat.flower import serve
from offbeat.models import LogisticSpec
from offbeat.net import ServerOptions, server_learner

ALGORITHMS = {
    "fedcompass": ob.fedcompass(q_min=2, q_max=8),
    "fedasmu": ob.fedasmu(epochs=2, size=2, period=5.0, threshold=2),
    "fedasync": ob.fedasync(steps=3),
    "scaffold": ob.scaffold(steps=3),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve the run until so many updates have arrived; started again, it goes on."""
    config = context.run_config
    test = ob.load("digits", samples=400, test_samples=200).test
    experiment = ob.Experiment(
        ALGORITHMS[str(config["algorithm"])],
        server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=20), test),
        seed=3,
        until=ob.Until(tasks=int(config["tasks"])),
    )
    options = ServerOptions(clients=int(config["clients"]))
    serve(grid, experiment, Path(str(config["offbeat-state"])), options=options)
