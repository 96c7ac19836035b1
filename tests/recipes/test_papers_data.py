"""The papers' datasets that cannot be had here: recipes on generated files of their official layouts."""

import pytest

from offbeat.recipes.build import run_recipe
from offbeat.recipes.load import check
from tests.data import test_fed_ixi, test_image_sets, test_texts

NATURAL = {"partition": {"kind": "natural"}}
IXI = {
    "clients": 2,
    "data": {"dataset": "fed_ixi", **NATURAL},
    "model": "unet3d",
    "training": {"optimizer": "adamw", "lr": 0.001, "batch_size": 2},
    "loss": "dice_loss",
    "metrics": ["dice"],
    "algorithm": {"name": "fedavg", "steps": 1},
}
ISIC = {
    "clients": 3,
    "data": {"dataset": "fed_isic2019", **NATURAL},
    "model": "efficientnet_b0",
    "training": {"lr": 0.01, "batch_size": 2},
    "metrics": ["accuracy", "balanced_accuracy"],
    "algorithm": {"name": "fedbuff", "size": 2, "steps": 1},
}
SENT140 = {
    "clients": 2,
    "data": {"dataset": "sent140", "options": {"vocabulary": 300, "length": 8}, **NATURAL},
    "model": {"name": "textcnn", "vocabulary": 300, "width": 8, "filters": 4},
    "training": {"optimizer": "adam", "lr": 0.01, "batch_size": 16},
    "algorithm": {"name": "fedasync", "steps": 5},
}
TINY_IMAGENET = {
    "clients": 2,
    "data": {"dataset": "tiny_imagenet", "partition": {"kind": "label_dirichlet", "min_size": 1}},
    "model": "resnet20",
    "training": {"lr": 0.01, "batch_size": 2},
    "algorithm": {"name": "fedavg", "steps": 1},
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("recipe", "write", "metric"),
    [
        (IXI, test_fed_ixi.write_subjects, "dice"),
        (ISIC, lambda root: test_image_sets.write_isic(root, []), "balanced_accuracy"),
        (TINY_IMAGENET, test_image_sets.write_tiny_imagenet, "accuracy"),
    ],
    ids=["fed_ixi", "fed_isic2019", "tiny_imagenet"],
)
def test_a_run_on_generated_files(tmp_path, monkeypatch, recipe, write, metric):
    run = run_on(tmp_path, monkeypatch, recipe, write)
    assert 0 <= run.metrics[-1][metric] <= 1


def test_tweets_of_users_in_a_run(tmp_path, monkeypatch):
    run = run_on(tmp_path, monkeypatch, SENT140, test_texts.write_sent140)
    assert run.metrics[-1]["version"] == 1


def run_on(root, monkeypatch, recipe, write):
    write(root)
    monkeypatch.setenv("OFFBEAT_DATA", str(root))
    checked = check({**recipe, "until": {"versions": 1}, "evaluate": {"versions": 1}}, "recipe")
    return run_recipe(checked, out=None)
