from offbeat.models.cnn import CompassCNN as CompassCNN, WirelessCNN as WirelessCNN
from offbeat.models.lenet import LeNet5 as LeNet5
from offbeat.models.logistic import LogisticRegression as LogisticRegression
from offbeat.models.mlp import MLP as MLP
from offbeat.models.registry import (
    CompassCNNSpec as CompassCNNSpec,
    LeNet5Spec as LeNet5Spec,
    LogisticSpec as LogisticSpec,
    ModelMaker as ModelMaker,
    MLPSpec as MLPSpec,
    ModelSpec as ModelSpec,
    NamedModel as NamedModel,
    WirelessCNNSpec as WirelessCNNSpec,
    build as build,
    parameter_count as parameter_count,
)
