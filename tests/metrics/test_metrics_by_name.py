"""What a user wants, made into metrics: names, functions, objects; defaults; which way is better."""

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.metrics import (
    METRICS,
    Accuracy,
    Dice,
    FunctionMetric,
    StreamingMetric,
    compute_metrics,
    default_metrics,
    higher_is_better,
    make_metrics,
    update_metrics,
)
from tests.metrics.cases import I, t


def largest(scores, target):
    return scores.max()


def test_names_in_their_order():
    made = make_metrics(["rmse", "accuracy"])
    assert list(made) == ["rmse", "accuracy"]
    assert make_metrics(("accuracy",))["accuracy"] is not make_metrics(["accuracy"])["accuracy"]
    assert make_metrics([]) == make_metrics({}) == {}
    for name, metric in make_metrics([*METRICS]).items():
        assert isinstance(metric, StreamingMetric), name


def test_a_mapping_of_names_functions_and_objects():
    dice = Dice(include_background=False)
    dice.update(t([1, 1, 1]), t([1, 0, 0]))
    before = dice.compute()
    made = make_metrics({"right": "accuracy", "largest": largest, "overlap": dice})
    update_metrics(made, t([-1, 2, 3]), t([0, 1, 0]))
    assert compute_metrics(made) == {
        "right": pytest.approx(2 / 3),
        "largest": 3,
        "overlap": pytest.approx(2 / 3),
    }
    assert dice.compute() == before  # a copy was made, and reset
    assert made["overlap"].include_background is False


class Uncopyable(Accuracy):
    def __deepcopy__(self, memo):
        raise TypeError("it holds a file")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["acuracy"], 'metric "acuracy" is unknown; did you mean "accuracy"?'),
        (["zzz"], 'metric "zzz" is unknown; known: accuracy, auroc'),
        ({"mine": "aurok"}, 'metric "aurok" is unknown; did you mean "auroc"?'),
        ("accuracy", "metrics = 'accuracy' is not allowed: give a list, such as ['accuracy']"),
        (["mae", "mae"], 'metrics has "mae" twice'),
        (largest, "is not allowed: give functions and objects by name"),
        ([largest], "which has no name: give functions and objects by name"),
        ({"mine": 3}, 'metric "mine" is 3: give the name of a metric, a function'),
        ({"mine": None}, 'metric "mine" is None: '),
        ({"mine": Accuracy}, 'metric "mine" is the class Accuracy: give an object, such as Accuracy()'),
        ({"mine": Uncopyable()}, 'metric "mine" cannot be copied (it holds a file)'),
        ({"loss": "mae"}, 'metric "loss": every evaluation has the loss'),
        ({"": "mae"}, "metrics has the name ''"),
        ({1: "mae"}, "metrics has the name 1: names are strings"),
        ({"$(id)": "mae"}, "is not allowed: a metric's name has letters"),
    ],
)
def test_what_is_not_allowed_is_told_in_one_line(wanted, message):
    with pytest.raises(UsageError) as error:
        make_metrics(wanted)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scores", "target"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=I)),
        (torch.zeros(4), torch.zeros(4)),
        (torch.zeros(4, 1), torch.ones(4, dtype=I)),
        (torch.zeros(4, 2), torch.ones(4, 2)),
        (torch.zeros(4, 1, 2, 3), torch.ones(4, 2, 3)),
        (torch.zeros(4, 5, 3), torch.zeros(4, 5, dtype=I)),
        (torch.zeros(2, 3), torch.zeros(40, dtype=I)),  # of the whole test set
    ],
)
def test_accuracy_is_the_default_of_every_classification(scores, target):
    made = default_metrics(scores, target)
    assert [type(metric) for metric in made.values()] == [Accuracy]
    update_metrics(made, scores, target[: len(scores)])
    assert list(compute_metrics(made)) == ["accuracy"]


@pytest.mark.parametrize(
    ("scores", "target"),
    [
        (torch.zeros(4), t([0, 1, 0, 0.5])),
        (torch.zeros(4, 1), t([0, 1, 0, 7], I)),
        (torch.zeros(2), t([0, 1, 0, 7])),  # the first two alone would be binary
        (torch.zeros(4, 2), torch.full((4, 2), 0.5)),
        (torch.zeros(4, 3, 3), torch.zeros(4, 3, dtype=I)),  # classes first or last
        (torch.zeros(4, 3), torch.zeros(4)),
        (torch.zeros(()), torch.zeros(4)),
        ((torch.zeros(4), torch.zeros(4)), torch.zeros(4)),
    ],
)
def test_nothing_is_the_default_of_a_regression_and_of_the_unknown(scores, target):
    assert default_metrics(scores, target) == {}


def test_the_default_takes_probabilities_if_told():
    scores, target = t([0.2, 0.7]), t([0, 1])
    for probabilities, accuracy in ((False, 0.5), (True, 1)):
        made = default_metrics(scores, target, probabilities=probabilities)
        update_metrics(made, scores, target)
        assert compute_metrics(made) == {"accuracy": accuracy}


def test_which_way_is_better():
    lower = {"loss", "perplexity", "mae", "rmse"}
    for name in ("loss", "my_own", *METRICS):
        assert higher_is_better(name) is (name not in lower)
    for name, metric in make_metrics([*METRICS]).items():
        assert higher_is_better("my_own", metric) is (name not in lower)
    assert higher_is_better("mae", FunctionMetric(largest)) is False
    assert higher_is_better("mine", FunctionMetric(largest)) is True

    def error(scores, target):
        return 0.0

    error.higher_is_better = False
    assert higher_is_better("mine", make_metrics({"mine": error})["mine"]) is False
