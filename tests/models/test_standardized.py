import math

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.core.layout import Layout
from offbeat.models.specs import LogisticSpec, ModelMaker, StandardizedSpec, build


def test_inputs_are_standardized_and_missing_values_become_the_mean():
    model = build(StandardizedSpec(LogisticSpec(), mean=(10.0, 1.0), std=(2.0, 0.0)), (2,), 3)
    x = torch.tensor([[12.0, 4.0], [math.nan, 1.0]])
    torch.testing.assert_close(model(x), model.model(torch.tensor([[1.0, 3.0], [0.0, 0.0]])))


def test_means_do_not_travel_with_the_weights():
    spec = StandardizedSpec(LogisticSpec(), mean=(1.0, 2.0), std=(1.0, 1.0))
    module = ModelMaker(spec, (2,), 3)()
    assert [entry.name for entry in Layout.of(module).entries] == ["model.linear.weight", "model.linear.bias"]


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((1.0,), (1.0, 1.0), "mean has 1 features and std 2"),
        ((math.inf,), (1.0,), "mean"),
        ((1.0,), (-1.0,), "std"),
    ],
)
def test_wrong_statistics_are_refused(mean, std, message):
    with pytest.raises(UsageError, match=message):
        StandardizedSpec(LogisticSpec(), mean=mean, std=std)


def test_statistics_of_other_data_are_refused():
    spec = StandardizedSpec(LogisticSpec(), mean=(1.0,), std=(1.0,))
    with pytest.raises(UsageError, match=r"means of 1 features, and samples of shape \(2,\) have 2"):
        build(spec, (2,), 3)
