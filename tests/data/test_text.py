"""Texts become tokens and back; sequences of different lengths become batches with masks."""

from __future__ import annotations

import pytest
import torch

from fedlightning.data import byte_tokens, padded, text_of


@pytest.mark.parametrize("text", ["", "To be, or not to be", "Où? 東京\n"])
def test_text_survives_its_tokens(text):
    tokens = byte_tokens(text)
    assert tokens.tolist() == list(text.encode("utf-8"))
    assert text_of(tokens) == text
    assert text_of([*tokens.tolist(), 0, 0]) == text


def test_nul_is_refused_because_its_token_is_padding():
    with pytest.raises(ValueError, match="character 2 is NUL"):
        byte_tokens("ab\0c")


def test_bytes_that_are_no_text_do_not_stop_the_rest():
    assert text_of([65, 255, 66]) == "A\N{REPLACEMENT CHARACTER}B"


def test_masks_tell_tokens_from_padding():
    batch = padded([torch.tensor([5, 6, 7]), torch.tensor([8])], length=4)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_by_default_the_longest_sequence_sets_the_length():
    batch = padded([torch.tensor([5, 6]), torch.tensor([8])], pad=9)
    assert batch["input_ids"].tolist() == [[5, 6], [8, 9]]


def test_what_cannot_be_padded_is_refused():
    with pytest.raises(ValueError, match=r"padded\(length=2\): sequence 1 has 3 tokens\. .* length=3"):
        padded([torch.tensor([1]), torch.tensor([1, 2, 3])], length=2)
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        padded([torch.tensor([1]), torch.tensor([], dtype=torch.long)])
    with pytest.raises(ValueError, match="there are no sequences"):
        padded([])
