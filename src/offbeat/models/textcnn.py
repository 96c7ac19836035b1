"""TextCNN (Kim, 2014): classes of texts, given as token ids."""

import torch
from torch import nn

from offbeat.core.errors import UsageError


class TextCNN(nn.Module):
    """TextCNN: token ids, int64 [N, length], to logits [N, classes].

    Embedding, convolutions over 3, 4 and 5 tokens, ReLU, the maximum over the text, dense. Id 0 is padding,
    whose embedding is zero. No dropout. 2,120,902 parameters with two classes, 538,978 with a vocabulary of
    10,000, width 50 and 64 filters.

    Args:
        classes: Number of classes.
        vocabulary: Number of token ids.
        width: Numbers of an embedding.
        filters: Filters of each of the three convolutions.
    """

    sizes = 3, 4, 5

    def __init__(self, classes: int, vocabulary: int = 20_000, width: int = 100, filters: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, size) for size in self.sizes)
        self.fc = nn.Linear(filters * len(self.sizes), classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of token ids [N, length]."""
        x = self.embedding(check_tokens("textcnn", ids)).transpose(1, 2)
        pooled = [torch.relu(convolution(x)).amax(dim=2) for convolution in self.convolutions]
        logits: torch.Tensor = self.fc(torch.cat(pooled, dim=1))
        return logits


def check_tokens(model: str, ids: torch.Tensor) -> torch.Tensor:
    """Samples, which must be token ids. Raises `UsageError` where they are numbers."""
    if ids.is_floating_point():
        raise UsageError(
            f"model {model!r} with samples of {str(ids.dtype).removeprefix('torch.')}: it takes token ids "
            "(int64), as of imdb; use another model"
        )
    return ids
