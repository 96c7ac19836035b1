from offbeat import (
    algorithms as algorithms,
    callbacks as callbacks,
    codec as codec,
    data as data,
    flower as flower,
    inference as inference,
    local as local,
    metrics as metrics,
    models as models,
    net as net,
    parts as parts,
    recipes as recipes,
    report as report,
    runs as runs,
    testing as testing,
    world as world,
)
from offbeat.algorithms import ALGORITHMS as ALGORITHMS, Factory as Factory, compose as compose
from offbeat.algorithms import robust as robust
from offbeat.algorithms._factories import *
from offbeat.allowed import Allowed as Allowed, expose as expose
from offbeat.callbacks.callback import Callback as Callback, LiveRun as LiveRun
from offbeat.core.algorithm import Algorithm as Algorithm
from offbeat.core.engine import Engine as Engine
from offbeat.core.errors import (
    AlgorithmError as AlgorithmError,
    DamageError as DamageError,
    DivergedError as DivergedError,
    OffbeatError as OffbeatError,
    RunError as RunError,
    UsageError as UsageError,
)
from offbeat.core.global_model import GlobalModel as GlobalModel
from offbeat.core.guard import Guard as Guard
from offbeat.core.learner import LocalResult as LocalResult, NoTraining as NoTraining
from offbeat.core.limits import EarlyStopping as EarlyStopping, Every as Every, Until as Until
from offbeat.core.layout import Layout as Layout
from offbeat.core.model import Model as Model
from offbeat.core.privacy.privacy_options import (
    Budget as Budget,
    Noise as Noise,
    Privacy as Privacy,
    Secure as Secure,
)
from offbeat.core.server import Server as Server
from offbeat.core.wire_types import Wire as Wire
from offbeat.core.staleness import age as age, constant as constant, hinge as hinge, polynomial as polynomial
from offbeat.data import (
    Dataset as Dataset,
    FederatedData as FederatedData,
    federate as federate,
    load as load,
)
from offbeat.experiment import Experiment as Experiment
from offbeat.inference.export import ExportedModel as ExportedModel, export as export
from offbeat.local.examples_privacy import ExamplesPrivacy as ExamplesPrivacy
from offbeat.local.client_task import ClientTask as ClientTask
from offbeat.local.torch_learner import TorchLearner as TorchLearner
from offbeat.local.loop_learner import LoopLearner as LoopLearner
from offbeat.local.numpy_client import NumPyClientLoop as NumPyClientLoop
from offbeat.local.training import Training as Training
from offbeat.net.client.task_iterator import client as client
from offbeat.runs.record import RunRecord as RunRecord, find_runs as find_runs, read_run as read_run
from offbeat.sim.executors.batched import Batched as Batched
from offbeat.sim.executors.ray.cluster import OnRay as OnRay
from offbeat.runs.summary import Summary as Summary
from offbeat.sim.gather_statistics import feature_statistics as feature_statistics
from offbeat.sim.result import Run as Run
from offbeat.sim.simulate import resume as resume, simulate as simulate
from offbeat.version import __version__ as __version__
from offbeat.world import laws as laws
from offbeat.world.availability import Availability as Availability
from offbeat.world.channel import Channel as Channel
from offbeat.world.network import Network as Network
from offbeat.world.trace import read_trace as read_trace
from offbeat.world.world import World as World
