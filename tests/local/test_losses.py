import pytest
import torch

from offbeat.local.losses import dice_loss


def test_dice_loss_by_hand():
    # two voxels, two classes; softmax of ln 3 and 0 is 3/4 and 1/4
    scores = torch.tensor([[[3.0, 3.0], [1.0, 1.0]]]).log()
    target = torch.tensor([[0, 1]])
    # class 0: 2 · 3/4 / (3/2 + 1); class 1: 2 · 1/4 / (1/2 + 1)
    assert dice_loss(scores, target).item() == pytest.approx(1 - (0.6 + 1 / 3) / 2)


def test_dice_loss_is_0_for_the_right_mask_and_has_a_gradient():
    target = torch.randint(0, 2, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    right = torch.stack([1 - target, target], dim=1).float() * 200
    assert dice_loss(right, target).item() == pytest.approx(0, abs=1e-6)
    scores = torch.zeros(2, 2, 3, 4, 5, requires_grad=True)
    dice_loss(scores, target).backward()
    assert scores.grad.abs().sum() > 0
