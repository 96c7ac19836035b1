"""Everything that the author of an algorithm imports, in one line: `from offbeat import parts as p`.

The parts of one paper are in its file, such as `offbeat.algorithms.fedcompass.CompassSchedule`.

>>> from offbeat import parts as p
>>> p.Algorithm(p.Buffered(p.Programme(steps=10), size=3), p.SumOfDeltas(), p.Plain(), name="mine").name
'mine'
"""

from offbeat.algorithms.aggregators import (
    MeanOfModels,
    Mixing,
    Momentum,
    Normalization,
    SumOfDeltas,
    from_memory,
    toward_models,
)
from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import (
    Concurrency,
    Count,
    Epochs,
    Memory,
    NonNegative,
    Positive,
    ProximalWeight,
    ServerRate,
    Share,
    Steps,
)
from offbeat.algorithms.schedules import Buffered, Rounds, train
from offbeat.core.aggregator import Aggregator, FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.algorithm import Algorithm, AwareStep, ServerStep, StepContext
from offbeat.core.commands import (
    Aggregate,
    CancelTimer,
    Command,
    Discard,
    Drop,
    Measure,
    Recall,
    Send,
    SetTimer,
    Stop,
    Train,
    Upload,
)
from offbeat.core.events import (
    Arrived,
    Begin,
    ClientId,
    Event,
    Joined,
    Left,
    Lost,
    Measured,
    Metrics,
    Ready,
    TaskId,
    Timer,
    Version,
    WantsModel,
)
from offbeat.core.features import NONE, Feature
from offbeat.core.fleet import Fleet
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import FreshModel, LocalRun, Objective, ObjectiveWrapper, flat
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, ScheduleWrapper, Task, View
from offbeat.core.staleness import (
    AgeWeight,
    ConstantWeight,
    HingeWeight,
    PolynomialWeight,
    StalenessWeight,
    age,
    constant,
    hinge,
    polynomial,
)
from offbeat.core.streams import Purpose, stream
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain, Proximal
from offbeat.vectors.arithmetic import RunningWindow, weighted_sum

__all__ = [
    "NONE",
    "AgeWeight",
    "Aggregate",
    "Aggregator",
    "Algorithm",
    "Arrived",
    "AwareStep",
    "Begin",
    "Buffered",
    "CancelTimer",
    "ClientId",
    "Command",
    "Concurrency",
    "ConstantWeight",
    "Count",
    "Discard",
    "Drop",
    "Epochs",
    "Event",
    "Feature",
    "Fleet",
    "FreshModel",
    "FullWeight",
    "HingeWeight",
    "Joined",
    "Layout",
    "Left",
    "LocalRun",
    "Lost",
    "MeanOfModels",
    "Measure",
    "Measured",
    "Memory",
    "Metrics",
    "Mixing",
    "Model",
    "Momentum",
    "NonNegative",
    "Normalization",
    "Objective",
    "ObjectiveWrapper",
    "Plain",
    "PolynomialWeight",
    "Positive",
    "Programme",
    "Proximal",
    "ProximalWeight",
    "Purpose",
    "Ready",
    "Recall",
    "Rounds",
    "RunningWindow",
    "Schedule",
    "ScheduleWrapper",
    "Send",
    "ServerRate",
    "ServerStep",
    "SetTimer",
    "Share",
    "StalenessWeight",
    "StepContext",
    "Steps",
    "Stop",
    "SumOfDeltas",
    "SumOnly",
    "Task",
    "TaskId",
    "Tensors",
    "Timer",
    "Train",
    "Update",
    "UpdateSum",
    "Upload",
    "Version",
    "View",
    "WantsModel",
    "age",
    "algorithm",
    "checked_dataclass",
    "constant",
    "flat",
    "from_memory",
    "hinge",
    "polynomial",
    "programme",
    "stream",
    "toward_models",
    "train",
    "weighted_sum",
]
