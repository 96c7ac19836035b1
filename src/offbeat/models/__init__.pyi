from offbeat.models.bert import BertClassifier as BertClassifier
from offbeat.models.cnn import CompassCNN as CompassCNN, WirelessCNN as WirelessCNN
from offbeat.models.efficientnet import EfficientNetB0 as EfficientNetB0
from offbeat.models.lenet import LeNet5 as LeNet5
from offbeat.models.logistic import LogisticRegression as LogisticRegression
from offbeat.models.mlp import MLP as MLP
from offbeat.models.plain_cnn import alexnet as alexnet, asmu_cnn as asmu_cnn, vgg11 as vgg11
from offbeat.models.specs import (
    MODELS as MODELS,
    AlexNetSpec as AlexNetSpec,
    AsmuCNNSpec as AsmuCNNSpec,
    BertSpec as BertSpec,
    CompassCNNSpec as CompassCNNSpec,
    EfficientNetB0Spec as EfficientNetB0Spec,
    LeNet5Spec as LeNet5Spec,
    LogisticSpec as LogisticSpec,
    MLPSpec as MLPSpec,
    ModelEntry as ModelEntry,
    ModelMaker as ModelMaker,
    ModelSpec as ModelSpec,
    NamedModel as NamedModel,
    ResNet18Spec as ResNet18Spec,
    ResNet20Spec as ResNet20Spec,
    TextCNNSpec as TextCNNSpec,
    UNet3DSpec as UNet3DSpec,
    VGG11Spec as VGG11Spec,
    WirelessCNNSpec as WirelessCNNSpec,
    build as build,
    parameter_count as parameter_count,
)
from offbeat.models.resnet import ResNet as ResNet
from offbeat.models.textcnn import TextCNN as TextCNN
from offbeat.models.unet3d import UNet3D as UNet3D
