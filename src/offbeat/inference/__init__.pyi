from offbeat.inference.export import ExportedModel as ExportedModel
from offbeat.inference.trained import TrainedModule as TrainedModule, trained_module as trained_module
