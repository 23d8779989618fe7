"""Low-rank adapters by PEFT, with one rank for all clients or one for each.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: a frozen layer W gets a correction
(alpha / r) B A, with A ``[r, in]`` and B ``[out, r]`` to be trained, B = 0 in the beginning. A shared adapter beside
one of each client's own is the model of Yang et al.,
"Dual-Personalizing Adapter for Federated Foundation Models", 2024.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.per_architecture import PerArchitecture
from fedlightning.core.requirements import imported

SHARED, OWN = "default", "own"
"""Names of the two adapters in the names of parameters: ``lora_A.default``, ``lora_B.own``; the first is PEFT's."""

_IMPORTS_CODE = ("megatron_config", "megatron_core")
"""Arguments of ``LoraConfig`` that name a module to import."""


class RankPerClient(PerArchitecture):
    """Represents one factor of an adapter whose rank differs between clients."""

    @property
    def weight(self) -> Tensor:
        """Return the factor of the active rank, ``[r, in]`` or ``[out, r]``."""
        factor: Any = self.active_module
        return factor.weight  # type: ignore[no-any-return]


def add_adapters(
    model: nn.Module,
    lora: Mapping[str, Any] | None,
    own_lora: Mapping[str, Any] | None,
    own_ranks: Sequence[int] | None,
) -> nn.Module:
    """Freeze a model of transformers, and add adapters that are trained in its place.

    Args:
        model: A model of transformers.
        lora: Arguments of ``peft.LoraConfig`` for the shared adapter; None for none.
        own_lora: Arguments of ``peft.LoraConfig`` for a second one, to be named in the task's ``personal``; None for
            none.
        own_ranks: The rank of the second one for every client, in the order of clients; None for one rank.

    Returns:
        A ``peft.PeftModel``; the model itself without adapters.

    Raises:
        ModuleNotFoundError: If PEFT is not installed.
        TypeError: If an argument is of another kind than expected.
        ValueError: If PEFT does not accept an argument, or ranks are given without a second adapter.
    """
    if own_ranks is not None and own_lora is None:
        raise InvalidValueError("CausalLM(own_ranks=...) are the ranks of own_lora, which is missing. Give both.")
    wanted = {SHARED: ("lora", lora), OWN: ("own_lora", own_lora)}
    configs = {name: _config(argument, given) for name, (argument, given) in wanted.items() if given is not None}
    if not configs:
        return model
    peft = imported("peft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers in a way that will be renamed
        (first, config), *others = configs.items()
        try:
            adapted = peft.get_peft_model(model, config, adapter_name=first)
            for name, other in others:
                adapted.add_adapter(name, other)
        except (ValueError, TypeError) as error:
            raise InvalidValueError(f"CausalLM: PEFT cannot add these adapters: {error}") from error
        adapted.base_model.set_adapter(list(configs))
    if own_ranks is not None:
        _vary_ranks(adapted, own_ranks)
    return adapted  # type: ignore[no-any-return]


def _config(argument: str, given: Mapping[str, Any]) -> Any:
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"CausalLM({argument}={given!r}): expected the arguments of peft.LoraConfig by name, e.g. "
            "{'r': 8, 'lora_alpha': 16, 'target_modules': ['q_proj', 'v_proj']}."
        )
    if code := [name for name in given if name in _IMPORTS_CODE]:
        raise InvalidValueError(f"CausalLM({argument}): '{code[0]}' makes PEFT import other code. Leave it out.")
    try:
        return imported("peft").LoraConfig(**{"task_type": "CAUSAL_LM", **given})
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"CausalLM({argument}): peft.LoraConfig refuses this: {error}") from error


def _vary_ranks(model: nn.Module, ranks: Sequence[int]) -> None:
    """Replace both factors of every layer's own adapter by factors of all ranks.

    The scaling alpha / r of the configuration holds for all of them, as if alpha grew with the rank.
    """
    if isinstance(ranks, str) or not ranks or any(not isinstance(r, int) or r < 1 for r in ranks):
        raise InvalidValueError(f"CausalLM(own_ranks={ranks!r}): expected one rank a client, whole numbers from 1 on.")
    choice = [str(rank) for rank in ranks]
    for name, layer in list(model.named_modules()):
        if OWN in getattr(layer, "lora_embedding_A", ()) or OWN in getattr(layer, "lora_variant", ()):
            raise InvalidValueError(
                f"CausalLM(own_ranks=...): '{name}' is an embedding or has a variant of LoRA, whose rank is the same "
                "for all clients. Let own_lora target linear layers, without use_dora and the like."
            )
        if OWN in getattr(layer, "lora_A", ()):
            _vary_rank(layer, choice)


def _vary_rank(layer: Any, choice: Sequence[str]) -> None:
    down, up = layer.lora_A[OWN], layer.lora_B[OWN]
    if not (isinstance(down, nn.Linear) and isinstance(up, nn.Linear)) or up.bias is not None:
        raise InvalidValueError("CausalLM(own_ranks=...): ranks differ in adapters of linear layers without lora_bias.")
    like = {"device": down.weight.device, "dtype": down.weight.dtype}
    downs, ups = {}, {}
    for rank in dict.fromkeys(choice):
        downs[rank] = nn.Linear(down.in_features, int(rank), bias=False, **like)  # Kaiming's draw, as in PEFT
        ups[rank] = nn.Linear(int(rank), up.out_features, bias=False, **like)
        nn.init.zeros_(ups[rank].weight)
    layer.lora_A[OWN], layer.lora_B[OWN] = RankPerClient(downs, choice), RankPerClient(ups, choice)
