"""What is to be predicted: the next token, where it and the token before it are real."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import ObjectiveError
from fedlightning.tasks import LanguageModelling
from fedlightning.tasks.tokens import IGNORED, targets_of
from tests.support.language import Bigram, ragged_texts
from tests.support.small import trainer

X = IGNORED


def batch(**rows):
    return {name: torch.tensor(value) for name, value in rows.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (batch(input_ids=[[5, 6, 7]]), [[6, 7]]),
        (batch(input_ids=[[5, 6, 7]], attention_mask=[[1, 1, 1]]), [[6, 7]]),
        (batch(input_ids=[[5, 6, 0]], attention_mask=[[1, 1, 0]]), [[6, X]]),
        (batch(input_ids=[[0, 6, 7]], attention_mask=[[0, 1, 1]]), [[X, 7]]),
        (batch(input_ids=[[5, 0, 0]], attention_mask=[[1, 0, 0]]), [[X, X]]),
        (batch(input_ids=[[5, 6, 7]], labels=[[X, X, 7]]), [[X, 7]]),
        (batch(input_ids=[[5, 6, 0]], labels=[[5, 6, 0]], attention_mask=[[1, 1, 0]]), [[6, X]]),
    ],
)
def test_targets(given, expected):
    before = {name: value.clone() for name, value in given.items()}
    assert targets_of(given).tolist() == expected
    assert vmap(targets_of)({name: value[None] for name, value in given.items()}).tolist() == [expected]
    assert all(torch.equal(given[name], before[name]) for name in given)


def test_other_batches_are_named():
    with pytest.raises(TypeError, match=r"'input_ids' and 'attention_mask', this one is tuple\..*padded\(sequences\)"):
        targets_of((torch.zeros(1, 2), torch.zeros(1)))
    with pytest.raises(TypeError, match="this one is a dict with 'text', 'label'"):
        targets_of({"text": torch.zeros(1), "label": torch.zeros(1)})


def test_tokens_beyond_the_vocabulary_are_refused_before_training():
    task = LanguageModelling(FedAvg(0.1), Bigram(vocabulary=7))
    with pytest.raises(ValueError, match=r"tokens 0 to 10, the network knows 0 to 6\. .*vocab_size=11"):
        trainer().fit(task, ragged_texts())


def test_data_without_tokens_as_tensors_are_left_to_the_objective():
    task = LanguageModelling(FedAvg(0.1), Bigram())
    data = FederatedDataModule.from_datasets([TensorDataset(torch.ones(4, 3, dtype=torch.long))])
    with pytest.raises(ObjectiveError, match=r"InvalidTypeError: .* this one is tuple"):
        trainer().fit(task, data)
