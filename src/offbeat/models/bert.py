"""BERT (Devlin et al., 2019) of transformers, with LoRA (Hu et al., 2022) of peft if wanted."""

from typing import Any

import torch
from torch import nn

from offbeat.core.extras import requires_extra
from offbeat.documents import user_path
from offbeat.models.textcnn import check_tokens


class BertClassifier(nn.Module):
    """BERT with a classifier: token ids, int64 [N, length], to logits [N, classes]. Id 0 is padding.

    No dropout.

    Args:
        classes: Number of classes.
        layers: Number of layers.
        width: Width of a layer, a multiple of `heads`.
        heads: Attention heads of a layer.
        vocabulary: Number of token ids.
        lora: Rank of the adapters of queries and values, with α equal to it; only they and the classifier are
            trained. None trains every weight.
        weights: Folder of a pretrained BERT, whose configuration then holds. None means random weights.

    Raises:
        UsageError: transformers, or peft for `lora`, is not installed.
    """

    def __init__(
        self,
        classes: int,
        *,
        layers: int = 2,
        width: int = 128,
        heads: int = 2,
        vocabulary: int = 30_522,
        lora: int | None = None,
        weights: str | None = None,
    ) -> None:
        super().__init__()
        with requires_extra("hf", "model 'bert': "):
            from transformers import BertConfig, BertForSequenceClassification
        common: dict[str, Any] = {
            "num_labels": classes, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }  # fmt: skip
        if weights is None:
            config = BertConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * width,
                **common,
            )
            self.bert = BertForSequenceClassification(config)
        else:
            self.bert = BertForSequenceClassification.from_pretrained(
                user_path(weights), local_files_only=True, **common
            )
        if lora is not None:
            with requires_extra("hf", "model 'bert' with lora: "):
                from peft import LoraConfig, get_peft_model
            adapters = LoraConfig(
                task_type="SEQ_CLS", r=lora, lora_alpha=lora, target_modules=["query", "value"]
            )
            self.bert = get_peft_model(self.bert, adapters)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of token ids [N, length]."""
        ids = check_tokens("bert", ids)
        logits: torch.Tensor = self.bert(input_ids=ids, attention_mask=ids != 0).logits
        return logits
