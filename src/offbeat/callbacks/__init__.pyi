from offbeat.callbacks.csv_tracker import CSVTracker as CSVTracker
from offbeat.callbacks.mlflow_tracker import MLflowTracker as MLflowTracker
from offbeat.callbacks.callbacks_by_name import CALLBACKS as CALLBACKS, make_callbacks as make_callbacks
from offbeat.callbacks.tensorboard_tracker import TensorBoardTracker as TensorBoardTracker
from offbeat.callbacks.wandb_tracker import WandbTracker as WandbTracker
