"""The few collective operations a round needs, for one process or several."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedlightning.clients import Rows

T = TypeVar("T")


class Processes(Protocol):
    """Processes that share the clients of a cohort among them."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""

    def largest(self, value: int) -> int:
        """The largest of the processes' values, so that all agree."""

    def gather_rows(self, ids: list[int], rows: Rows) -> tuple[list[int], Rows]:
        """Clients and their rows of all processes, on every process."""

    def each(self, value: T) -> list[T]:
        """The values of all processes, on every process. They must be picklable."""

    def agree(self, value: T) -> T:
        """The first process's value, on every process: for choices that depend on clocks or free memory.

        All processes must ask, in the same order. The value must be picklable.
        """


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

    def each(self, value: T) -> list[T]:
        """The value alone."""
        return [value]

    def agree(self, value: T) -> T:
        """The value itself."""
        return value


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

    def each(self, value: T) -> list[T]:
        """All-gather."""
        values = [value] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value)
        return values

    def agree(self, value: T) -> T:
        """Broadcast from process 0."""
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]


def _device() -> torch.device:
    """Where the default group takes tensors from."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
