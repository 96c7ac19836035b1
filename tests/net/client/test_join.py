"""What a site does not load: PyTorch's compiler, which its first `torch.optim` optimizer would import."""

import subprocess
import sys
from pathlib import Path

RUNS = """
import asyncio, sys, tempfile
from pathlib import Path

class Compiler:
    def find_spec(self, name, path=None, target=None):
        assert not name.startswith(("torch._dynamo", "torch._inductor")), name

sys.meta_path.insert(0, Compiler())

import torch
import offbeat as ob
from offbeat.core.learner import LocalTask, NO_INPUTS
from offbeat.data import federate
from offbeat.local.objectives import Plain
from offbeat.models.specs import WirelessCNNSpec
from offbeat.net import join
from offbeat.net.client.join import warm_up
from offbeat.testing.network import MemoryNetwork
from tests.net.support import serve, terms_of

warm_up()
x, y = torch.rand(24, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 10
data = ob.Dataset(x, y, 10)
TRAININGS = [
    {}, {"momentum": 0.9, "weight_decay": 0.01, "optimizer_options": {"nesterov": True}, "clip_norm": 1.0},
    {"optimizer": "adamw", "weight_decay": 0.01}, {"optimizer": "adam", "optimizer_options": {"eps": 1e-6}},
]

async def federation(training, directory):
    network = MemoryNetwork()
    terms = terms_of(clients=1, until=ob.Until(tasks=2), evaluate=ob.Every(versions=1))
    server = serve(ob.fedavg(steps=2), WirelessCNNSpec(), training, directory, network.listen, options=terms,
                   sample_shape=(1, 28, 28), classes=10, test=data)
    site = join(network.connect("north"), data, validation=0.25)
    return await asyncio.gather(server, site)

for options in TRAININGS:
    training = ob.Training(lr=0.01, batch_size=8, **options)
    with tempfile.TemporaryDirectory() as directory:
        ended = asyncio.run(federation(training, Path(directory) / "run"))
    learner = ob.TorchLearner(torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(),
                              torch.nn.Linear(2028, 10)), federate([data]), training)
    task, base = LocalTask(0, 0, 0, 4, 0), learner.initial(0)
    saved = learner.train_until(base, task, Plain(), NO_INPUTS, 2)
    again = learner.train_from(base, task, Plain(), NO_INPUTS, 2, saved)
    assert torch.equal(again.delta, learner.train(base, task, Plain()).delta)
    print(ended[1])
"""


def test_no_training_of_a_site_loads_the_compiler() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", RUNS], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr
