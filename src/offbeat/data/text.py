"""Texts as token ids: words, the most frequent of which make the vocabulary.

A text in lower case is cut into words of letters and digits, with apostrophes within (`don't` is one word);
line breaks of HTML go. The vocabulary is that of the whole train set: id 0 is padding, 1 any other word, then
the words by falling frequency, equal ones in the order of the alphabet. So ids depend neither on a subsample
nor on a smaller vocabulary. A text is cut after `length` tokens, and padded at its end.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.core.types import NUMBER, Count, Indices
from offbeat.core.validation import checked_dataclass
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.subsample import Subsample

PADDING, UNKNOWN = 0, 1
_BREAK = re.compile(r"<br\s*/?>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


@checked_dataclass
class TextOptions:
    """Options of a text dataset.

    Attributes:
        vocabulary: Number of token ids, padding and unknown included; a model must have as many.
        length: Number of tokens of a sample.
        tokenizer: Folder of a pretrained tokenizer of transformers (extra `hf`), whose ids are taken in place
            of the vocabulary's. None means words.
    """

    vocabulary: Annotated[int, Field(ge=2), NUMBER] = 20_000
    length: Count = 400
    tokenizer: str | None = None


Encoder = Callable[[Sequence[str]], torch.Tensor]
"""Token ids of texts, int64 [N, length]."""


@dataclass(frozen=True)
class Texts:
    """Texts of one part of a dataset.

    Attributes:
        texts: The texts.
        labels: The class of each.
        groups: Natural group of each, by name. Empty means that there are none.
    """

    texts: Sequence[str]
    labels: Sequence[int]
    groups: Sequence[str] = ()


def text_source(
    name: str, train: Texts, test: Texts, pick: Subsample, options: TextOptions, classes: int
) -> Source:
    """Make a dataset of texts: token ids int64 [N, length].

    Args:
        name: Name of the dataset.
        train: All train texts, of which the vocabulary is made.
        test: All test texts.
        pick: The subsample.
        options: Vocabulary and length.
        classes: Number of classes.
    """
    encoder = (
        _pretrained(options.tokenizer, options.length) if options.tokenizer else _by_words(train, options)
    )

    def dataset(part: Texts, rows: Indices) -> Dataset:
        ids = encoder([part.texts[row] for row in rows])
        return Dataset(ids, torch.tensor([part.labels[row] for row in rows]), classes)

    rows = pick.train(len(train.texts))
    own = dataset(train, rows), dataset(test, pick.test(len(test.texts)))
    if not train.groups:
        return Source(name, *own)
    names, group = np.unique(np.array(train.groups), return_inverse=True)
    return Source(name, *own, group[rows].astype(np.int64), tuple(map(str, names)))


def _by_words(train: Texts, options: TextOptions) -> Encoder:
    vocabulary = vocabulary_of(map(words, train.texts), options.vocabulary)
    return lambda texts: encode([words(text) for text in texts], vocabulary, options.length)


def _pretrained(folder: str, length: int) -> Encoder:
    """Token ids by a tokenizer of transformers; its id for padding must be 0, as BERT's."""
    with requires_extra("hf", "tokenizer: "):
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        why = " ".join(reason_of(error).split())
        raise UsageError(f"tokenizer = {folder!r} cannot be loaded ({why}); give its folder") from error
    if tokenizer.pad_token_id != PADDING:
        raise UsageError(
            f"tokenizer = {folder!r}: its id for padding is {tokenizer.pad_token_id}, not {PADDING}; give a "
            "tokenizer of BERT's"
        )
    fixed = {"padding": "max_length", "truncation": True, "max_length": length}
    return lambda texts: torch.tensor(tokenizer(list(texts), **fixed)["input_ids"], dtype=torch.int64)


def words(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(_BREAK.sub(" ", text).lower())


def vocabulary_of(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Token ids of the most frequent words.

    Args:
        texts: The train set's texts, as words.
        size: Number of ids, of which the first two are no words.
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    by_frequency = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: number for number, (word, _) in enumerate(by_frequency[: size - 2], start=2)}


def encode(texts: Sequence[Sequence[str]], vocabulary: dict[str, int], length: int) -> torch.Tensor:
    """Token ids of texts, given as words: int64 [N, length]."""
    ids = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        known = [vocabulary.get(word, UNKNOWN) for word in text[:length]]
        ids[row, : len(known)] = known
    return torch.from_numpy(ids)
