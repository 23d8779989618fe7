"""Checks of layers whose statistics are of minibatches: how they fit a federation of separate clients."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError


def check_batch_statistics(task: Any) -> None:
    """Refuse layers that would mix the samples of different clients, and warn of models that share running statistics.

    Args:
        task: The task.

    Raises:
        ValueError: If there is a ``SyncBatchNorm``, written by the user or made by ``Trainer(sync_batchnorm=True)``.
    """
    for name, module in task.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise InvalidValueError(
                f"{type(task).__name__}.{name} is a SyncBatchNorm, which would mix the samples of different clients. "
                "Use BatchNorm without sync_batchnorm: the server averages its statistics (buffers='average')."
            )
    if type(task.algorithm).personal_model is Algorithm.personal_model:
        return
    for name, module in task.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and module.training:
            rank_zero_warn(
                f"{type(task.algorithm).__name__} keeps a model of each client's own beside the global one, and "
                f"{type(task).__name__}.{name} has one set of running statistics for both, which suits one of them "
                "at best in validation and test. Use layers without running statistics (GroupNorm, LayerNorm, "
                "track_running_stats=False)."
            )
            return


def warn_of_single_samples(task: nn.Module, data: Any) -> None:
    """Warn if a client has one sample only and a layer computes statistics of minibatches.

    The minibatches of such a client are copies of the sample, whose variance is zero.

    Args:
        task: The task.
        data: A :class:`~fedlightning.FederatedDataModule`.
    """
    if data.batch_size == 1 or not any(isinstance(module, _BatchNorm) for module in task.modules()):
        return
    single = (data.federation.partition.sizes == 1).nonzero().flatten().tolist()
    if single:
        others = f" and {len(single) - 1} other clients hold" if len(single) > 1 else " holds"
        rank_zero_warn(
            f"Client {single[0]}{others} one sample, of which a minibatch repeats copies: BatchNorm sees no variance "
            "there. Leave such clients out, or use layers without batch statistics (GroupNorm, LayerNorm)."
        )
