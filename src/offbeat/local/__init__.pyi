from offbeat.local.client_task import ClientTask as ClientTask
from offbeat.local.torch_learner import TorchLearner as TorchLearner
from offbeat.local.loop_learner import LoopLearner as LoopLearner
from offbeat.local.ranks import RankTask as RankTask, each_rank as each_rank
from offbeat.local.numpy_client import NumPyClientLoop as NumPyClientLoop
from offbeat.local.objectives import Plain as Plain, Proximal as Proximal
from offbeat.local.training import (
    CosineDecay as CosineDecay,
    ExponentialDecay as ExponentialDecay,
    InverseDecay as InverseDecay,
    Training as Training,
)
