from offbeat.data.convert import as_samples as as_samples
from offbeat.data.dataset import Dataset as Dataset, MapDataset as MapDataset, Samples as Samples
from offbeat.data.datasets_by_name import DATASETS as DATASETS, load as load
from offbeat.data.federated import (
    FederatedData as FederatedData,
    Rows as Rows,
    Source as Source,
    federate as federate,
    own_data as own_data,
    without_clients as without_clients,
)
from offbeat.data.paths import data_root as data_root
