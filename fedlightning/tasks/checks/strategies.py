"""Strategies that a federated fit refuses: they cut the model into pieces, or lose what clients keep."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from fedlightning.core.errors import InvalidTypeError

_SHARDS = {FSDPStrategy: "fsdp", DeepSpeedStrategy: "deepspeed", ModelParallelStrategy: "ModelParallelStrategy"}

_ENDING = ("ddp_spawn", "ddp_fork", "ddp_notebook")


def refuse_sharded_models(strategy: Any) -> None:
    """Refuse strategies in which no process holds the whole model.

    A round needs every shared parameter in one piece: clients start from it, and the server moves it.

    Args:
        strategy: A strategy of Lightning or its name; anything else is left to Lightning.

    Raises:
        TypeError: If the strategy is FSDP, DeepSpeed, a model-parallel one, or derived from one of these.
    """
    for kind, name in _SHARDS.items():
        named = isinstance(strategy, str) and strategy.startswith(name)  # there are "fsdp_cpu_offload" and the like
        if named or isinstance(strategy, kind):
            given = strategy if named else name
            raise InvalidTypeError(
                f"Trainer(strategy={given!r}) cuts the model into pieces, one for each process, but a client's round "
                "starts from the whole model. Use strategy='ddp', which divides the clients of a cohort among "
                "processes, or 'auto'. A model too large for one device is trained through adapters "
                "(fedlightning.models.CausalLM(lora=...)), in half precision (precision='bf16-true'), or with fewer "
                "clients at once (oracle=fedlightning.oracle.Vectorized(chunk_size=1))."
            )


def refuse_spawned_processes(strategy: Any) -> None:
    """Refuse strategies whose processes are gone after the fit, with all but the global model's weights.

    Server, client states, metrics by client, traffic and the draws that a second fit must not repeat are left in them.

    Args:
        strategy: A strategy of Lightning or its name; anything else is left to Lightning.

    Raises:
        TypeError: If it starts processes by spawning or forking this one, as in notebooks.
    """
    named = isinstance(strategy, str) and strategy.startswith(_ENDING)
    if named or isinstance(getattr(strategy, "launcher", None), _MultiProcessingLauncher):
        raise InvalidTypeError(
            "Trainer(strategy='ddp_spawn'), and 'ddp_fork' and 'ddp_notebook' alike, fit in processes that end with "
            "the fit, and with them go the states of server and clients. Use strategy='ddp' in a script, or one device."
        )
