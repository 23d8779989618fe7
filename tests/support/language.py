"""Small language models and texts, with and without transformers and PEFT."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from fedlightning import FederatedDataModule
from fedlightning.data import TensorData, padded

needs_hf = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("peft") is None,
    reason="needs transformers and peft: pip install 'fedlightning[hf]'",
)

VOCABULARY = 11
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}
SIZES = {"q_proj": (8, 8), "down_proj": (12, 8), "lm_head": (8, VOCABULARY)}
"""Inputs and outputs of layers of this model; the first two are there once a layer."""
LAYERS = {"q_proj": 2, "down_proj": 2, "lm_head": 1}


def lora(r=2, **options):
    return {"r": r, "lora_alpha": 2 * r, "target_modules": list(SIZES), **options}


def adapter_numbers(r, factors="AB"):
    """Numbers in the factors of an adapter of rank r: A is [r, in], B is [out, r]."""
    return sum(
        LAYERS[name] * r * (inputs * ("A" in factors) + outputs * ("B" in factors))
        for name, (inputs, outputs) in SIZES.items()
    )


class Bigram(nn.Module):
    """The logits of the next token are a row of a table, chosen by the present token alone."""

    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)
        self.vocab_size = vocabulary

    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids)


def sequences(count, seed, shortest=2, longest=9):
    """Random tokens, from 1 on, of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(shortest, longest + 1, (count,), generator=draw).tolist()
    return [torch.randint(1, VOCABULARY, (size,), generator=draw) for size in sizes]


def ragged_texts(clients=4, samples=6, own_validation=False, **options):
    """Clients whose samples have lengths of their own, padded to one length."""
    train = [TensorData(padded(sequences(samples, client), 9)) for client in range(clients)]
    val = [TensorData(padded(sequences(5, 100 + client), 9)) for client in range(clients)]
    defaults = {"batch_size": 3, "local_steps": 4, "rounds_per_epoch": 5, "seed": 1}
    held_out = val if own_validation else val[0]
    return FederatedDataModule.from_datasets(train, val=held_out, **{**defaults, **options})
