"""Norms and distances of long vectors, from the matrix of their inner products.

All that the rules need of k vectors is in the k × k matrix of their products ⟨x_i, x_j⟩: also norms and
distances of weighted sums of them, so iterations cost nothing that grows with the vectors. The products are
summed over chunks in their order, in float64; those of a chunk do not depend on the number of threads.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from offbeat.vectors.arithmetic import chunks


def gram(x: Sequence[Tensor]) -> Tensor:
    """The products ⟨x_i, x_j⟩, float64 [k, k] on the CPU; symmetric, and not finite where a vector is not."""
    products = torch.zeros(len(x), len(x), dtype=torch.float64)
    for parts in chunks(*x):
        rows = torch.stack([part.double() for part in parts])
        products += (rows @ rows.T).cpu()
    return (products + products.T) / 2


def squared_distances(products: Tensor) -> Tensor:
    """‖x_i − x_j‖² = ⟨x_i, x_i⟩ − 2⟨x_i, x_j⟩ + ⟨x_j, x_j⟩, float64 [k, k]."""
    squares = products.diagonal()
    return (squares[:, None] - 2 * products + squares).clamp_(min=0)


def distances_to(products: Tensor, c: Tensor) -> Tensor:
    """‖x_i − Σ_j c_j x_j‖, float64 [k], from the products and the weights c, float64 [k]."""
    return (products.diagonal() - 2 * (products @ c) + c @ products @ c).clamp_(min=0).sqrt_()


def norm(products: Tensor, c: Tensor) -> float:
    """‖Σ_j c_j x_j‖."""
    return sqrt(max(float(c @ products @ c), 0.0))
