"""Adapters alone are trained, travel and are counted; factors or whole adapters stay on clients; ranks differ."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedSim
from fedlightning.data import padded
from fedlightning.models import CausalLM
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import LanguageModelling
from tests.support.language import LLAMA, adapter_numbers, lora, needs_hf, ragged_texts, sequences
from tests.support.small import trainer

RANKS = [1, 3, 1, 2]


def fitted(algorithm=None, personal=(), rounds=2, oracle=None, precision="64-true", **adapters):
    torch.manual_seed(0)
    task = LanguageModelling(algorithm or FedSim(0.5), CausalLM(LLAMA, **adapters), personal, oracle=oracle)
    start = {name: value.clone() for name, value in task.state_dict().items()}
    trainer(max_steps=rounds, precision=precision).fit(task, ragged_texts(own_validation=bool(personal)))
    return task, start


def changed(task, start):
    return {name for name, value in task.state_dict().items() if not torch.equal(value, start[name].to(value))}


def with_ranks(**options):
    return fitted(personal=["own"], lora=lora(2), own_lora=lora(4), own_ranks=RANKS, **options)


@needs_hf
@pytest.mark.parametrize("r", [1, 4])
def test_adapters_alone_are_trained_travel_and_are_counted(r):
    task, start = fitted(FedAvg(0.5), lora=lora(r))
    count = adapter_numbers(r)
    assert task.parameter_space().shared.dim == count
    assert task.traffic == (2 * 4 * count, 2 * 4 * count)  # rounds, clients
    moved = changed(task, start)
    assert moved
    assert all("lora_" in name for name in moved)
    assert any("lora_A" in name for name in moved)


@needs_hf
def test_one_factor_is_shared_and_the_other_personal():
    task, _ = fitted(personal=["lora_B"], lora=lora(2))
    count = adapter_numbers(2, "A")
    assert task.traffic == (2 * 4 * count, 2 * 4 * count)
    own = [dict(task.personalize(client).network.named_parameters()) for client in range(4)]
    factors = [name for name in own[0] if "lora_" in name]
    assert len(factors) == 10
    for name in factors:
        alike = [torch.equal(own[0][name], other[name]) for other in own[1:]]
        assert alike == [".lora_A." in name] * 3


@needs_hf
def test_every_client_has_an_adapter_of_its_own_rank_beside_the_shared_one():
    task, start = with_ranks()
    count = adapter_numbers(2)
    assert task.traffic == (2 * 4 * count, 2 * 4 * count)
    assert all("lora_" in name for name in changed(task, start))
    shared = []
    for client, rank in enumerate(RANKS):
        own = dict(task.personalize(client).network.named_parameters())
        numbers = {name: value for name, value in own.items() if ".own." in name}
        assert sum(value.numel() for value in numbers.values()) == adapter_numbers(rank)
        assert all(value.any() for value in numbers.values())
        shared.append(torch.cat([value.flatten() for name, value in own.items() if ".default." in name]))
    assert all(torch.equal(shared[0], other) for other in shared[1:])


@needs_hf
@pytest.mark.parametrize("adapters", ["one", "dropout", "factor", "ranks"])
def test_clients_are_computed_together_as_one_by_one(adapters):
    ways = {
        "one": {"lora": lora(2)},
        "dropout": {"lora": lora(2, lora_dropout=0.3)},
        "factor": {"lora": lora(2), "personal": ["lora_B"]},
    }
    states = []
    for oracle in (Vectorized(), Sequential()):
        task, _ = with_ranks(oracle=oracle) if adapters == "ranks" else fitted(oracle=oracle, **ways[adapters])
        assert type(task.run.simulation.runner.oracle_selection.oracle) is type(oracle)
        clients = [task.personalize(client).network.state_dict() for client in range(4)]
        states.append(torch.cat([value.double().flatten() for client in clients for value in client.values()]))
    torch.testing.assert_close(*states, rtol=1e-9, atol=1e-9)


@needs_hf
def test_an_adapter_adds_its_scaled_product():
    network = CausalLM(LLAMA, lora=lora(2, lora_alpha=6)).double()
    layer = network.model.base_model.model.model.layers[1].self_attn.q_proj
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    x = torch.randn(3, 8, dtype=torch.float64)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), x @ layer.base_layer.weight.T + 6 / 2 * x @ a.T @ b.T)


@needs_hf
def test_the_scaling_holds_for_all_ranks():
    network = CausalLM(LLAMA, own_lora=lora(4, lora_alpha=20), own_ranks=RANKS)
    layer = network.model.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.scaling["own"] == 5.0
    assert {rank: factor.weight.shape for rank, factor in layer.lora_A["own"].items()} == {
        "1": (1, 8), "3": (3, 8), "2": (2, 8)
    }  # fmt: skip
    assert not any(factor.weight.any() for factor in layer.lora_B["own"].values())


@needs_hf
@pytest.mark.parametrize("client", [0, 1])
def test_merged_models_compute_what_adapters_compute(client, tmp_path):
    task, _ = with_ranks(rounds=3)
    network = task.personalize(client).network.eval()
    batch = padded(sequences(5, seed=8))
    plain = network.merged()
    assert type(plain).__name__ == "LlamaForCausalLM"
    assert not any("lora" in name for name, _ in plain.named_parameters())
    torch.testing.assert_close(plain(**batch).logits, network(**batch))
    plain.save_pretrained(tmp_path)
    torch.testing.assert_close(CausalLM(weights=str(tmp_path)).double()(**batch), network(**batch))


@needs_hf
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's own
def test_the_files_of_a_clients_adapter_are_those_of_peft(tmp_path):
    from peft import PeftModel

    task, start = fitted(personal=["lora_B"], lora=lora(2), precision="32-true")
    own = task.personalize(1).network.eval()
    own.model.save_pretrained(tmp_path, save_embedding_layers=False)
    base = CausalLM(LLAMA)
    frozen = {name.replace(".base_layer", ""): value for name, value in start.items() if "lora_" not in name}
    base.model.load_state_dict({name.removeprefix("network.model.base_model.model."): v for name, v in frozen.items()
                                if name.startswith("network.")})  # fmt: skip
    theirs = PeftModel.from_pretrained(base.model, tmp_path).eval()
    batch = padded(sequences(5, seed=8))
    torch.testing.assert_close(theirs(**batch).logits, own(**batch))


@needs_hf
def test_adapters_of_many_ranks_are_merged_for_a_client_alone():
    with pytest.raises(RuntimeError, match=r"task\.personalize\(i\)\.network\.merged\(\)"):
        CausalLM(LLAMA, lora=lora(), own_lora=lora(), own_ranks=RANKS).merged()


@needs_hf
def test_ranks_must_stay_on_the_clients():
    task = LanguageModelling(FedSim(0.1), CausalLM(LLAMA, lora=lora(), own_lora=lora(), own_ranks=RANKS))
    with pytest.raises(ValueError, match=r"varies between clients, so it cannot be shared"):
        trainer().fit(task, ragged_texts())


@needs_hf
def test_ranks_need_an_adapter_to_be_of():
    with pytest.raises(ValueError, match=r"own_ranks=\.\.\.\) are the ranks of own_lora, which is missing"):
        CausalLM(LLAMA, lora=lora(), own_ranks=RANKS)


@needs_hf
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lora": 8}, TypeError, r"lora=8\): expected the arguments of peft\.LoraConfig"),
        ({"lora": {"rank": 8}}, ValueError, r"lora\): peft\.LoraConfig refuses this: .*'rank'"),
        ({"lora": {"r": 0}}, ValueError, r"r.* should be a positive integer"),
        ({"lora": {"r": 2, "target_modules": ["c_attn"]}}, ValueError, "PEFT cannot add these adapters: .*c_attn"),
        ({"lora": lora(megatron_core="os")}, ValueError, "'megatron_core' makes PEFT import other code"),
        ({"own_lora": lora(), "own_ranks": [2, 0]}, ValueError, r"own_ranks=\[2, 0\]\): expected one rank a client"),
        ({"own_lora": lora(), "own_ranks": []}, ValueError, r"own_ranks=\[\]\): expected one rank a client"),
        ({"own_lora": lora(use_dora=True), "own_ranks": [2]}, ValueError, "has a variant of LoRA"),
        ({"own_lora": lora(target_modules=["embed_tokens"]), "own_ranks": [2]}, ValueError, "is an embedding or"),
    ],
)
def test_what_peft_or_ranks_do_not_allow_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        CausalLM(LLAMA, **options)


@needs_hf
def test_ranks_of_adapters_with_bias_are_refused():
    biased = {**LLAMA, "attention_bias": True}
    with pytest.raises(ValueError, match="without lora_bias"):
        CausalLM(biased, own_lora=lora(target_modules=["q_proj"], lora_bias=True), own_ranks=RANKS)
