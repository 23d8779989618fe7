"""Predictions of many clients' models on their evaluation data, as one batched operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedlightning.core.errors import FedlightningError
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.tree import flatten, map_tensors
from fedlightning.oracle.effects.side_effects import undone
from fedlightning.oracle.layers.cohort_layers import CohortLayers
from fedlightning.oracle.vectorized import BATCHABLE_ATTENTION


class NotBatchableError(FedlightningError, RuntimeError):
    """The predictions cannot be computed for many clients at once; the message says why."""


class ClientPredictions:
    """Computes ``task.predictions`` of S clients, each with its own model, by ``torch.func.vmap``.

    Predictions that draw random numbers are refused, because the numbers would differ from clients computed one by one.
    """

    def __init__(self, task: nn.Module, space: ParameterSpace) -> None:
        """Wrap a task, a module with a method ``predictions(batch)``.

        Raises:
            NotBatchableError: If a layer normalises by the batch, so that padding would change the predictions.
        """
        for name, module in task.named_modules():
            if isinstance(module, _BatchNorm) and module.running_mean is None:
                raise NotBatchableError(f"'{name}' normalises by the batch (track_running_stats=False)")
        self._space = space
        self._call = _PredictionsModule(task)
        self._task = task
        self._checked = False

    @torch.no_grad()
    def __call__(self, w: Tensor, v: Tensor, b: Tensor | None, data: Any) -> Any:
        """Return the predictions of every client.

        Args:
            w: Shared parameters, ``[S, d]``.
            v: Personal blocks, ``[S, p]``.
            b: Buffers, ``[S, b]``; None for the task's own.
            data: Evaluation batches of the clients, with leaves ``[S, B, ...]``.

        Returns:
            What ``predictions`` returns, with leaves ``[S, B, ...]``.

        Raises:
            NotBatchableError: If ``vmap`` refuses or could only go client by client; or if, in the first call, two
                clients computed alone on half of their samples have other predictions.
        """
        own = dict(self._task.named_parameters()) | dict(self._task.named_buffers())
        views = self._space.shared.views(w) | self._space.personal.views(v)
        if b is not None:
            views |= self._space.buffers.views(b)
        state = {f"task.{name}": _as(view, own[name]) for name, view in views.items()}
        try:
            predictions = self._batched(self._one, state, data)
        except NotBatchableError:
            predictions = self._batched(_apart(self._one), state, data)
        if not self._checked:
            self._compare(predictions, state, data)
            self._checked = True
        return predictions

    def _compare(self, predictions: Any, state: dict[str, Tensor], data: Any) -> None:
        """Check that two clients computed alone, on half of the samples, have the same predictions."""
        for client in range(min(2, len(next(iter(state.values()))))):

            def half(leaf: Tensor, client: int = client) -> Tensor:
                own = leaf[client]
                return own[: (len(own) + 1) // 2]

            with undone(self._task):
                alone = self._one({name: view[client] for name, view in state.items()}, map_tensors(half, data))
            for one, other in zip(flatten(alone)[0], flatten(map_tensors(half, predictions))[0], strict=True):
                size = one.abs().amax() if one.numel() and one.is_floating_point() else 0
                tolerance = torch.finfo(one.dtype).eps ** 0.5 if one.is_floating_point() else 0
                if one.shape != other.shape or not torch.allclose(
                    one, other, rtol=tolerance, atol=float(tolerance * size), equal_nan=True
                ):
                    raise NotBatchableError(
                        f"those of client {client + 1} of the first batch differ from its own alone"
                    )

    def _one(self, state: dict[str, Tensor], data: Any) -> Any:
        return functional_call(self._call, state, (data,))

    @staticmethod
    def _batched(one: Callable[..., Any], state: dict[str, Tensor], data: Any) -> Any:
        layers = CohortLayers() if next(iter(state.values())).device.type == "cpu" else nullcontext()
        with warnings.catch_warnings(), BATCHABLE_ATTENTION(), layers:
            warnings.filterwarnings("error", message=".*batching rule")  # vmap would go client by client
            try:
                return vmap(one)(state, data)
            except (RuntimeError, ValueError, UserWarning) as error:
                raise NotBatchableError(str(error).splitlines()[0]) from error


def _apart(one: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``one`` in an unused ``grad``, below which composite operations (recurrent layers) come apart."""

    def function(state: dict[str, Tensor], data: Any) -> Any:
        zero = next(iter(state.values())).new_zeros(())
        return grad(lambda unused: (unused, one(state, data)), has_aux=True)(zero)[1]

    return function


class _PredictionsModule(nn.Module):
    """Makes the predictions the call of a module, because ``functional_call`` calls modules only."""

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task
        self.training = task.training

    def forward(self, data: Any) -> Any:
        return self.task.predictions(data)  # type: ignore[operator]


def _as(value: Tensor, own: Tensor) -> Tensor:
    """Convert a value to the dtype of the task's own tensor, rounding for integers."""
    return value.to(own.dtype) if own.is_floating_point() else value.round().to(own.dtype)
