"""The text that comes with the package: nothing is lost, nobody's verses are with anybody else."""

from __future__ import annotations

import pytest
import torch

from fedlightning.data import Speeches, text_of
from fedlightning.tasks.tokens import targets_of


def clients_texts(data):
    """All samples' texts by client, in the order of the text."""
    federation = data.federation
    parts = (federation.partition, federation.val_partition, federation.test_partition)
    tokens = federation.train.tensors["input_ids"]
    for own in zip(*parts, strict=True):
        yield [text_of(tokens[position]) for position in torch.cat(own).sort().values]


def test_every_speaker_has_the_own_speeches_whole():
    data = Speeches()
    texts = list(clients_texts(data))
    assert data.speakers == ("Hamlet", "Macbeth", "Antony", "Henry", "Romeo", "Juliet", "Portia", "Prospero")
    assert data.num_clients == len(texts) == 8
    begins = [
        "To be, or not",
        "Is this a dagger",
        "Friends, Romans",
        "Once more unto",
        "But, soft!",
        "O Romeo",
        "The qual",
    ]
    for text, begin in zip(texts, [*begins, "Our revels"], strict=True):
        assert text[0].startswith(begin)
    assert "".join(texts[0]).count("\n") == 33 + 18
    assert sum(len("".join(text)) for text in texts) > 14_000
    assert all(sample.endswith("\n") for text in texts for sample in text)


def test_samples_hold_as_many_verses_as_fit_and_the_same_text_at_every_length():
    short, long = Speeches(length=64), Speeches(length=256)
    assert [*map("".join, clients_texts(short))] == [*map("".join, clients_texts(long))]
    sizes = [text.federation.train.tensors["attention_mask"].sum(1) for text in (short, long)]
    assert len(sizes[0]) > 3 * len(sizes[1])
    assert sizes[0].max() <= 64
    assert 200 < sizes[1].max() <= 256


def test_parts_do_not_overlap_and_all_clients_have_each():
    federation = Speeches().federation
    parts = (federation.partition, federation.val_partition, federation.test_partition)
    assert all((part.sizes > 0).all() for part in parts)
    everything = torch.cat([part.order for part in parts])
    assert torch.equal(everything.sort().values, torch.arange(len(federation.train)))


def test_samples_suit_language_models():
    samples = Speeches(length=64).federation.train[torch.arange(5)]
    assert samples["input_ids"].max() < 128
    assert ((targets_of(samples) >= 0).sum(1) == samples["attention_mask"].sum(1) - 1).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"length=20\): sequence \d+ has 58 tokens\. .* length=58"):
        Speeches(length=20).federation  # noqa: B018
    with pytest.raises(ValueError, match="texts have no classes"):
        Speeches(class_counts=True)
