"""LoRA: a transformer of which only the adapters are trained, and only they travel.

pip install -e ".[hf]". The transformer is small, its weights are random and nothing is downloaded. Real
weights come from a local folder instead: BertForSequenceClassification.from_pretrained(FOLDER).

    python examples/lora.py
"""

import numpy as np
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import offbeat as ob

TOKENS, LENGTH = 24, 8
CONFIG = BertConfig(
    vocab_size=TOKENS,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
)


def adapted() -> nn.Module:
    """The transformer with adapters of rank 2; its other weights are frozen, but for the classifier's."""
    adapters = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(CONFIG), adapters)


def texts(count: int, seed: int) -> Dataset:
    """Token ids whose label says whether the first one is in the lower half."""
    ids = np.random.default_rng(seed).integers(0, TOKENS, (count, LENGTH))
    columns = {"input_ids": ids.tolist(), "attention_mask": np.ones_like(ids).tolist()}
    return Dataset.from_dict({**columns, "labels": (ids[:, 0] < TOKENS // 2).astype(int).tolist()})


def main() -> None:
    """Train by FedBuff and compare the bytes of an update with those of the whole model."""
    clients = np.array_split(np.arange(160), 4)
    learner = ob.TorchLearner(
        adapted,
        ob.federate(texts(160, seed=1), texts(80, seed=2), clients),
        ob.Training(optimizer="adamw", lr=0.03, batch_size=16),
    )
    run = ob.simulate(
        ob.fedbuff(size=2, steps=5),
        learner=learner,
        until=ob.Until(versions=20),
        evaluate=ob.Every(versions=10),
    )
    whole = 4 * sum(tensor.numel() for tensor in BertForSequenceClassification(CONFIG).parameters())
    print(f"bytes of an update: {run.summary.bytes_up // run.summary.tasks:,}, of the whole model: {whole:,}")
    print(f"tensors of an update: {len(run.model.state_dict())}, such as {min(run.model.state_dict())}")
    for row in run.metrics:
        print(f"version {row['version']:2d}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.3f}")


if __name__ == "__main__":
    main()
