"""The global model that a node keeps."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from fedlightning.federation.remote.generation import Generation, Standing
from fedlightning.federation.remote.sent_model import SentModel, SentModels, last_sent_model, read_sent_model
from fedlightning.federation.remote.store import StoreError

ONE, OTHER = Generation(1, 0, "a" * 32), Generation(2, 0, "b" * 32)
MODEL = SentModel("f" * 32, 2, torch.arange(3.0), torch.tensor([0.5]), {1: ONE, 3: None}, {1: ["m"], 3: []})


def test_the_last_model_comes_back_with_what_is_known_of_other_clients(tmp_path):
    SentModels(tmp_path).keep(MODEL)
    back = last_sent_model(tmp_path)
    assert torch.equal(back.point, MODEL.point)
    assert torch.equal(back.buffers, MODEL.buffers)
    assert (back.bases, back.changed, back.rounds) == (MODEL.bases, MODEL.changed, 2)
    assert back.standing(1) == Standing(1, ONE)
    assert back.standing(3) == Standing(3)
    models = SentModels(tmp_path)  # of a new process
    models.keep(replace(MODEL, rounds=3, buffers=None, bases={3: OTHER}, changed={3: ["m"]}))
    back = last_sent_model(tmp_path)
    assert (back.rounds, back.buffers, back.bases) == (3, None, {1: ONE, 3: OTHER})
    assert back.changed == {1: ["m"], 3: ["m"]}
    with pytest.raises(StoreError, match="No server has asked client 2"):
        back.standing(2)


def test_the_federation_that_was_sent_last_counts(tmp_path):
    models = SentModels(tmp_path)
    for number, letter in enumerate("ab"):
        models.keep(replace(MODEL, federation=letter * 32, rounds=number))
        os.utime(tmp_path / (letter * 32) / "model.pt", ns=(number, number))
    assert (last_sent_model(tmp_path).federation, last_sent_model(tmp_path).rounds) == ("b" * 32, 1)
    assert read_sent_model(tmp_path, "a" * 32).rounds == 0
    assert read_sent_model(tmp_path, "c" * 32) is None


def test_a_damaged_file_is_named_and_written_anew(tmp_path):
    SentModels(tmp_path).keep(MODEL)
    path = tmp_path / MODEL.federation / "model.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"model.pt cannot be read: .*The server's next request writes it anew"):
        last_sent_model(tmp_path)
    SentModels(tmp_path).keep(MODEL)
    assert last_sent_model(tmp_path).bases == MODEL.bases


def test_a_model_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / MODEL.federation).write_text("in the way")
    with pytest.raises(StoreError, match="The global model was not kept"):
        SentModels(tmp_path).keep(MODEL)
