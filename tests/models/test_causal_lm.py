"""Models of transformers from a configuration or a folder, and what they are asked that they do not know."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.data import padded
from fedlightning.models import CausalLM
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import LanguageModelling
from tests.support.language import LLAMA, needs_hf, ragged_texts, sequences
from tests.support.small import trainer

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 11,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 16,
    **dict.fromkeys(("bos_token_id", "eos_token_id")),
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
SLIDING = {**LLAMA, "model_type": "mistral", "sliding_window": 3, "num_key_value_heads": 1}


def test_missing_transformers_are_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedlightning\[hf\]'"):
        CausalLM(LLAMA)


@needs_hf
@pytest.mark.parametrize("config", [LLAMA, GPT2, SLIDING], ids=lambda config: config["model_type"])
def test_the_model_is_that_of_transformers(config):
    from transformers import AutoConfig, AutoModelForCausalLM

    network = CausalLM(config)
    options = {name: value for name, value in config.items() if name != "model_type"}
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **options))
    theirs.load_state_dict(network.model.state_dict())
    batch = padded(sequences(4, seed=2, longest=12))
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(network(**batch)[real], theirs(**batch).logits[real])
    assert network.vocab_size == 11


@needs_hf
@pytest.mark.parametrize("config", [LLAMA, GPT2, SLIDING], ids=lambda config: config["model_type"])
def test_padded_clients_are_computed_together_as_one_by_one(config):
    weights, ways = [], []
    for oracle in (Vectorized(), Sequential()):
        torch.manual_seed(0)
        task = LanguageModelling(FedAvg(0.3), CausalLM(config), oracle=oracle)
        trainer(max_steps=2).fit(task, ragged_texts())
        weights.append(torch.cat([value.detach().flatten() for value in task.network.parameters()]))
        ways.append(type(task.run.simulation.runner.oracle_selection.oracle))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    assert ways == [Vectorized, Sequential]


@needs_hf
def test_attention_that_looks_at_masks_is_computed_client_by_client_and_says_so(caplog):
    task = LanguageModelling(FedAvg(0.3), CausalLM(LLAMA, attention="sdpa"))
    with caplog.at_level(logging.INFO):
        trainer(max_steps=1).fit(task, ragged_texts())
    assert any("oracle: took Sequential" in line and "data-dependent control flow" in line for line in caplog.messages)


@needs_hf
@pytest.mark.parametrize("pad", [0, 5])
def test_padding_changes_nothing(pad):
    network, texts = CausalLM(LLAMA).double(), sequences(5, seed=4)
    joined = network(**padded(texts, 12, pad=pad))
    for row, text in zip(joined, texts, strict=True):
        torch.testing.assert_close(row[: len(text)], network(text[None])[0])


@needs_hf
def test_a_folder_of_weights(tmp_path):
    trained = CausalLM(LLAMA)
    trained.merged().save_pretrained(tmp_path)
    network = CausalLM(weights=str(tmp_path), attention="sdpa")
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), network.parameters(), strict=True))
    batch = padded(sequences(4, seed=2))
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(network(**batch)[real], trained(**batch)[real])


def test_a_folder_that_is_missing_is_not_looked_for_elsewhere(tmp_path):
    for name in (str(tmp_path), "openai-community/gpt2"):
        with pytest.raises(FileNotFoundError, match=r"Nothing is downloaded: give a folder written by save_pretrained"):
            CausalLM(weights=name)


def test_one_of_configuration_and_weights():
    for options in ({}, {"config": LLAMA, "weights": "folder"}):
        with pytest.raises(ValueError, match="give one of both"):
            CausalLM(**options)
    with pytest.raises(ValueError, match=r"attention='flash'\): expected 'eager' or 'sdpa'"):
        CausalLM(LLAMA, attention="flash")
    for config in ("gpt2", {"vocab_size": 11}):
        with pytest.raises(TypeError, match=r"expected a dict as in config\.json, with 'model_type'"):
            CausalLM(config)


@needs_hf
def test_options_that_transformers_would_ignore_are_refused():
    with pytest.raises(ValueError, match=r"type 'gpt2' has no option 'n_layers'\. Did you mean 'n_layer'\?"):
        CausalLM({**GPT2, "n_layers": 3})
    with pytest.raises(ValueError, match="has no option 'auto_map'"):
        CausalLM({**LLAMA, "auto_map": {"AutoModelForCausalLM": "code.Model"}})
    with pytest.raises(ValueError, match="Unrecognized model identifier: no_such_model"):
        CausalLM({"model_type": "no_such_model"})


@needs_hf
def test_names_that_transformers_translates_are_known():
    renamed = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {name: value for name, value in GPT2.items() if name not in ("n_embd", "n_layer", "n_head")}
    assert CausalLM({**rest, **renamed}).model.config.n_embd == 8
    slow = CausalLM({**LLAMA, "rope_theta": 123.0}).model.config.to_dict()
    assert 123.0 in (slow.get("rope_theta"), (slow.get("rope_parameters") or {}).get("rope_theta"))


@needs_hf
def test_sequences_beyond_the_context_are_refused():
    with pytest.raises(ValueError, match=r"sequences have 17 tokens, the model's context 16\."):
        CausalLM(LLAMA)(torch.ones(1, 17, dtype=torch.long))
