"""Texts of different length: a classifier on token ids, with a collate function that pads.

Without an argument the texts are made up. With a directory that holds IMDb's reviews as train.jsonl.gz and
test.jsonl.gz, one {"text": ..., "label": 0 or 1} a line, it trains on these, divided among ten clients.

    python examples/text.py [DIRECTORY]
"""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.data import MapDataset

VOCABULARY, LONGEST, CLIENTS = 5000, 200, 10
Text = tuple[list[int], int]


class Classifier(nn.Module):
    """The mean of the tokens' vectors, and a linear layer. Token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.output = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Logits [N, 2] of tokens int64 [N, T] with their lengths [N]."""
        return self.output(self.embedding(tokens).sum(1) / lengths.unsqueeze(1))


def padded(texts: list[Text]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """A batch ((tokens, lengths), labels): the module is called with both."""
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(t) for t, _ in texts], batch_first=True)
    lengths = torch.tensor([len(t) for t, _ in texts])
    return (tokens, lengths), torch.tensor([label for _, label in texts])


def made_up(count: int, seed: int) -> list[Text]:
    """Texts in which tokens below 20 are more frequent where the label is 1."""
    rng = np.random.default_rng(seed)
    texts = []
    for label in rng.integers(0, 2, count).tolist():
        tokens = rng.integers(1, 200, rng.integers(5, 40))
        tokens[rng.random(len(tokens)) < 0.3] = rng.integers(1, 20) if label else 100
        texts.append((tokens.tolist(), label))
    return texts


def reviews(directory: Path) -> tuple[list[Text], list[Text]]:
    """Train and test set of IMDb, as the numbers of their most frequent words."""
    read = {}
    for part in ("train", "test"):
        with gzip.open(directory / f"{part}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        read[part] = [(re.findall(r"[a-z']+", row["text"].lower()), int(row["label"])) for row in rows]
    words = Counter(word for text, _ in read["train"] for word in text).most_common(VOCABULARY - 1)
    number = {word: i + 1 for i, (word, _) in enumerate(words)}
    train, test = (
        [([number[w] for w in text if w in number][:LONGEST], label) for text, label in read[part]]
        for part in ("train", "test")
    )
    return train, test


def main() -> None:
    """Train by FedBuff and print the accuracy."""
    real = len(sys.argv) > 1 and Path(sys.argv[1]).is_dir()
    train, test = reviews(Path(sys.argv[1])) if real else (made_up(400, 0), made_up(200, 1))
    parts = np.array_split(np.random.default_rng(0).permutation(len(train)), CLIENTS)
    learner = ob.TorchLearner(
        Classifier,
        ob.federate(MapDataset(train, padded), MapDataset(test, padded), parts),
        ob.Training(optimizer="adam", lr=0.02, batch_size=20),
    )
    run = ob.simulate(
        ob.fedbuff(size=5, steps=20),
        world=ob.World(ob.laws.LogNormal(median=0.2)),
        learner=learner,
        until=ob.Until(versions=60 if real else 12),
        evaluate=ob.Every(versions=20 if real else 6),
    )
    for row in run.metrics:
        print(f"version {row['version']:2d}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}")


if __name__ == "__main__":
    main()
