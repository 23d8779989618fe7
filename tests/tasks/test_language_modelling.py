"""Language modelling: means over real tokens whatever the padding, and parts of a network that stay on clients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, FedSim
from fedlightning.cli import FederatedCLI, main
from fedlightning.data import TensorData, padded
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import LanguageModelling
from tests.support.commands import SMALL, of
from tests.support.language import VOCABULARY, Bigram, needs_hf, ragged_texts, sequences
from tests.support.small import trainer


def bigram(seed=0, **options):
    torch.manual_seed(seed)
    return LanguageModelling(FedAvg(0.5), Bigram(), **options)


def mean_loss(table, texts):
    """Mean of -log softmax over all pairs (token, next token), one at a time."""
    losses = [
        -math.log(torch.softmax(table[before].double(), 0)[after])
        for text in texts
        for before, after in zip(text.tolist(), text.tolist()[1:], strict=False)
    ]
    return sum(losses) / len(losses)


def test_the_objective_is_the_mean_over_real_tokens():
    task, texts = bigram(), sequences(6, seed=3)
    expected = mean_loss(task.network.table.weight.detach(), texts)
    for pad in (0, 4):
        assert task.objective(padded(texts, 12, pad=pad)).item() == pytest.approx(expected, rel=1e-5)


def test_padding_has_no_gradient():
    task, texts = bigram().double(), sequences(6, seed=3)
    task.objective(padded(texts, 12, pad=4)).backward()
    padding = task.network.table.weight.grad.clone()
    task.zero_grad()
    weights = torch.tensor([len(text) - 1.0 for text in texts], dtype=torch.float64)
    losses = torch.stack([task.objective({"input_ids": text[None]}) for text in texts])
    (losses @ (weights / weights.sum())).backward()
    torch.testing.assert_close(padding, task.network.table.weight.grad)


def test_without_a_token_to_predict_there_is_neither_loss_nor_gradient():
    task = bigram()
    loss = task.objective(padded([torch.tensor([3]), torch.tensor([5])], 4))
    loss.backward()
    assert loss.item() == 0.0
    assert not task.network.table.weight.grad.any()


def test_models_that_return_an_object_with_logits_will_do():
    class Output(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Bigram()

        def forward(self, input_ids, attention_mask):
            assert attention_mask is not None
            return type("Output", (), {"logits": self.inner(input_ids)})

    task = bigram()
    other = LanguageModelling(FedAvg(0.5), Output())
    other.network.inner.load_state_dict(task.network.state_dict())
    batch = padded(sequences(4, seed=1))
    assert torch.equal(task.objective(batch), other.objective(batch))


def test_clients_of_ragged_texts_are_computed_together_as_one_by_one():
    tables = []
    for oracle in (Vectorized(), Sequential()):
        task = bigram(oracle=oracle)
        trainer(max_steps=3, precision="64-true").fit(task, ragged_texts())
        tables.append(task.network.table.weight.detach())
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-12, atol=1e-12)


class Loaded(Dataset):
    """Dicts of one sample each, which a DataLoader collates."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors["input_ids"])

    def __getitem__(self, index):
        return {name: value[index] for name, value in self.tensors.items()}


def test_loaded_samples_train_as_those_in_memory():
    tables = []
    for kind in (TensorData, Loaded):
        task = bigram()
        data = FederatedDataModule.from_datasets([kind(padded(sequences(6, client), 9)) for client in range(3)])
        trainer(max_steps=2, precision="64-true").fit(task, data)
        tables.append(task.network.table.weight.detach())
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_validation_is_a_mean_over_tokens_whatever_the_batches(size):
    task = bigram()
    fit = trainer()
    fit.validate(task, ragged_texts(eval_batch_size=size), verbose=False)
    loss = mean_loss(task.network.table.weight.detach(), sequences(5, 100))
    assert float(fit.callback_metrics["val_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(fit.callback_metrics["val_perplexity"]) == pytest.approx(math.exp(loss), rel=1e-5)
    likeliest = task.network.table.weight.argmax(1)
    pairs = [pair for text in sequences(5, 100) for pair in zip(text.tolist(), text.tolist()[1:], strict=False)]
    hits = sum(int(likeliest[before]) == after for before, after in pairs)
    assert float(fit.callback_metrics["val_accuracy"]) == pytest.approx(hits / len(pairs), rel=1e-5)


def test_a_model_that_knows_nothing_is_as_perplexed_as_the_vocabulary_is_large():
    task = bigram()
    nn.init.zeros_(task.network.table.weight)
    fit = trainer()
    fit.validate(task, ragged_texts(), verbose=False)
    assert float(fit.callback_metrics["val_perplexity"]) == pytest.approx(VOCABULARY, rel=1e-5)


class Towered(Bigram):
    """Two tables, whose logits are added."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"low": nn.Embedding(VOCABULARY, VOCABULARY), "lower": Bigram()})

    def forward(self, input_ids, attention_mask=None):
        return self.table(input_ids) + self.towers["low"](input_ids) + self.towers["lower"](input_ids)


@pytest.mark.parametrize(
    ("personal", "prefixes"),
    [
        ((), ()),
        (["low"], ("network.towers.low",)),
        (["lower.table", "low"], ("network.towers.lower.table", "network.towers.low")),
        (["table"], ("network.table", "network.towers.lower.table")),
        (["towers"], ("network.towers",)),
        (["weight"], ("network.table.weight", "network.towers.low.weight", "network.towers.lower.table.weight")),
    ],
)
def test_names_anywhere_in_a_parameters_name_choose_what_is_personal(personal, prefixes):
    assert LanguageModelling(FedSim(0.1), Towered(), personal).personal_parameters == prefixes


def test_frozen_parameters_are_not_personal_and_unknown_names_are_named():
    network = Towered()
    network.towers["low"].requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"personal=\['low'\]\): no trainable .* lower, network, table, towers, weight"
    ):
        LanguageModelling(FedSim(0.1), network, ["low"])
    with pytest.raises(TypeError, match="personal='low'"):
        LanguageModelling(FedSim(0.1), network, "low")


def test_personal_parts_are_validated_client_by_client_on_own_texts():
    task = LanguageModelling(FedSim(0.5), Towered(), ["low"])
    fit = trainer(max_steps=5)
    fit.fit(task, ragged_texts(own_validation=True))
    own = task.client_metrics["val_perplexity"]
    assert own.shape == (4,)
    assert own.isfinite().all()
    for client in (0, 3):
        alone = task.personalize(client)
        tables = [alone.network.table, alone.network.towers["low"], alone.network.towers["lower"].table]
        expected = math.exp(mean_loss(sum(table.weight.detach() for table in tables), sequences(5, 100 + client)))
        assert float(own[client]) == pytest.approx(expected, rel=1e-4)
    assert float(fit.callback_metrics["val_perplexity_worst"]) == pytest.approx(float(own.max()), rel=1e-5)
    assert float(fit.callback_metrics["val_accuracy_worst"]) == pytest.approx(
        float(task.client_metrics["val_accuracy"].min()), rel=1e-5
    )


@needs_hf
@pytest.mark.parametrize("algorithm", ["fed_sim_factors", "fed_sim_ranks"])
def test_a_checkpoint_of_the_command_brings_all_adapters_back(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    few = [*of("language", algorithm), "--data.init_args.local_steps=2", *SMALL]
    main(["fit", *few])
    (path,) = tmp_path.rglob("last.ckpt")
    task = LanguageModelling.load_from_checkpoint(path, weights_only=True)
    cli = FederatedCLI([*few, "--trainer.logger=false"], run=False)
    cli.trainer.validate(cli.model, cli.datamodule, ckpt_path=str(path), verbose=False)
    batch = cli.datamodule.federation.val[torch.arange(4)]
    for client in (0, 7):
        again, own = (each.personalize(client) for each in (task, cli.model))
        names = [name for name, value in own.named_parameters() if value.requires_grad]
        assert any("lora_B" in name and dict(own.named_parameters())[name].any() for name in names)
        torch.testing.assert_close(again.objective(batch), own.objective(batch), rtol=0, atol=0)


def test_predictions_are_the_likeliest_next_tokens():
    task, batch = bigram(), padded(sequences(3, seed=1))
    predicted = task.predict_step(batch, 0)
    assert torch.equal(predicted, task.network.table.weight.argmax(1)[batch["input_ids"]])
