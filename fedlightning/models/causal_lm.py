"""Causal language models of Hugging Face's transformers, made from their configuration or read from a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, MissingFileError, UsageError
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.requirements import imported
from fedlightning.models.adapters import add_adapters

Attention = Literal["eager", "sdpa"]


class CausalLM(nn.Module):
    """Wraps a causal language model of transformers, with PEFT's low-rank adapters (LoRA) where asked for.

    With adapters the model itself is frozen: it neither travels nor counts as traffic. Nothing is downloaded, and no
    code from elsewhere is run.

    Attributes:
        model: The model of transformers, or the ``peft.PeftModel`` around it.
    """

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        weights: str | None = None,
        lora: dict[str, Any] | None = None,
        own_lora: dict[str, Any] | None = None,
        own_ranks: Sequence[int] | None = None,
        attention: Attention = "eager",
    ) -> None:
        """Make the model and its adapters.

        Args:
            config: What a ``config.json`` of transformers holds, ``model_type`` and whatever differs from that type's
                defaults: ``{"model_type": "llama", "num_hidden_layers": 2, ...}``. The weights are drawn at random.
            weights: In place of ``config``, a folder written by ``save_pretrained`` with weights as safetensors.
            lora: Arguments of ``peft.LoraConfig`` for an adapter, ``{"r": 8, "target_modules": ["q_proj"]}``; null to
                train the model itself. Its parameters are named ``lora_A.default`` and ``lora_B.default``.
            own_lora: The same for a second adapter beside it, of every client's own: name ``own`` in the task's
                ``personal``. Its parameters are named ``lora_A.own`` and ``lora_B.own``.
            own_ranks: Rank of the second adapter for every client, in the order of clients; null for the rank in
                ``own_lora``. The scaling ``lora_alpha / r`` of ``own_lora`` holds for all ranks.
            attention: ``eager`` computes all clients at once, whatever their padding. ``sdpa`` looks at the mask in
                Python, so clients are computed one after the other.

        Raises:
            FileNotFoundError: If the folder is missing.
            ModuleNotFoundError: If transformers or PEFT are not installed.
            TypeError: If an argument is of another kind than expected.
            ValueError: If transformers or PEFT do not know an argument, or not exactly one of ``config`` and
                ``weights`` is given.
        """
        super().__init__()
        if attention not in get_args(Attention):
            raise InvalidValueError(f"CausalLM(attention={attention!r}): expected 'eager' or 'sdpa'.")
        if (config is None) == (weights is None):
            raise InvalidValueError(
                "CausalLM(config=..., weights=...): give one of both, a configuration for random weights or a folder "
                "with weights."
            )
        base = _from_config(config, attention) if weights is None else _from_folder(weights, attention)
        self._context: int | None = getattr(base.config, "max_position_embeddings", None)
        self.model = add_adapters(base, lora, own_lora, own_ranks)

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens the model knows."""
        embedding: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        return int(embedding.weight.shape[0])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map tokens ``[B, T]``, with 1 for tokens and 0 for padding in the mask, to next-token logits ``[B, T, V]``.

        Raises:
            ValueError: If the sequences are longer than the model's context.
        """
        length = input_ids.shape[-1]
        if self._context is not None and length > self._context:
            raise InvalidValueError(
                f"CausalLM: sequences have {length} tokens, the model's context {self._context}. Give shorter ones, or "
                f"a configuration with max_position_embeddings={length}."
            )
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        return output.logits  # type: ignore[no-any-return]

    def merged(self) -> Any:
        """Return the model with its adapters added to its own weights, a plain model of transformers.

        For a client's own adapter: ``task.personalize(i).network.merged().save_pretrained(folder)``.

        Raises:
            RuntimeError: If ranks differ between clients and this is the network of no single client.
        """
        if TaskArchitectures(self):
            raise UsageError(
                "CausalLM.merged(): clients' adapters have ranks of their own. Merge those of client i: "
                "task.personalize(i).network.merged()."
            )
        copied: Any = deepcopy(self.model)
        return copied.merge_and_unload(adapter_names=copied.active_adapters) if _is_adapted(copied) else copied


def _is_adapted(model: Any) -> bool:
    return hasattr(model, "peft_config")


def _from_config(config: Any, attention: Attention) -> Any:
    if not isinstance(config, Mapping) or not isinstance(config.get("model_type"), str):
        raise InvalidTypeError(
            f"CausalLM(config={config!r}): expected a dict as in config.json, with 'model_type' and whatever differs "
            "from its defaults: {'model_type': 'llama', 'hidden_size': 64, ...}."
        )
    transformers = imported("transformers")
    kind, options = config["model_type"], {name: value for name, value in config.items() if name != "model_type"}
    try:
        made = transformers.AutoConfig.for_model(kind, **options)
        _require_known(transformers.AutoConfig, kind, options)
        return transformers.AutoModelForCausalLM.from_config(made, attn_implementation=attention)
    except InvalidValueError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidValueError(f"CausalLM(config={dict(config)}): {str(error)[:500]}") from error


def _require_known(auto: Any, kind: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a configuration would keep, and its model never look at, such as misspelt ones.

    An option is known if it has a default, another name, or an effect on other options.
    """
    default = auto.for_model(kind)
    known = {*default.to_dict(), *default.attribute_map}
    for name in sorted(options.keys() - known):
        with_it = auto.for_model(kind, **options).to_dict()
        without = auto.for_model(kind, **{n: v for n, v in options.items() if n != name}).to_dict()
        if {n: v for n, v in with_it.items() if n != name} == without:
            hint = get_close_matches(name, sorted(known), n=1)
            meant = f" Did you mean '{hint[0]}'?" if hint else " Leave it out."
            raise InvalidValueError(f"CausalLM(config=...): a model of type '{kind}' has no option '{name}'.{meant}")


def _from_folder(weights: str, attention: Attention) -> Any:
    folder = Path(weights)
    if not (folder / "config.json").is_file():
        raise MissingFileError(
            f"CausalLM(weights={weights!r}): no {folder / 'config.json'}. Nothing is downloaded: give a folder written "
            "by save_pretrained, or one that 'hf download <model> --local-dir <folder>' has fetched."
        )
    auto = imported("transformers").AutoModelForCausalLM
    return auto.from_pretrained(
        str(folder), attn_implementation=attention, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
