"""The few collective operations a round needs, for one process or several."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedlightning.clients import Rows


class Processes(Protocol):
    """Processes that share the clients of a cohort among them."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""

    def largest(self, value: int) -> int:
        """The largest of the processes' values, so that all agree."""

    def gather_rows(self, ids: list[int], rows: Rows) -> tuple[list[int], Rows]:
        """Clients and their rows of all processes, on every process."""


class OneProcess:
    """Nothing to exchange."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def largest(self, value: int) -> int:
        """The value itself."""
        return value

    def gather_rows(self, ids: list[int], rows: Rows) -> tuple[list[int], Rows]:
        """The rows themselves."""
        return ids, rows


class Distributed:
    """The processes of the default ``torch.distributed`` group; every process keeps all client rows."""

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce."""
        result = tensor.clone()
        torch.distributed.all_reduce(result)
        return result

    def largest(self, value: int) -> int:
        """All-reduce."""
        result = torch.tensor(value, device=_device())
        torch.distributed.all_reduce(result, op=torch.distributed.ReduceOp.MAX)
        return int(result)

    def gather_rows(self, ids: list[int], rows: Rows) -> tuple[list[int], Rows]:
        """All-gather; parts of unequal length are padded for the journey."""
        counts: list[list[int]] = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(counts, ids)
        longest = max(map(len, counts))
        gathered: Rows = {}
        for name, values in rows.items():
            padded = values.new_zeros((longest, *values.shape[1:]))
            padded[: len(ids)] = values
            parts = [torch.empty_like(padded) for _ in counts]
            torch.distributed.all_gather(parts, padded)
            gathered[name] = torch.cat([part[: len(own)] for part, own in zip(parts, counts, strict=True)])
        return [client for own in counts for client in own], gathered


def _device() -> torch.device:
    """Where the default group takes tensors from."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
