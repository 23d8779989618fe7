"""The few collective operations a round needs, for one process or several."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Processes(Protocol):
    """Processes that share the clients of a federation among them, each with clients and states of its own."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def rank(self) -> int:
        """The number of this one, from 0."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""

    def largest(self, value: int) -> int:
        """The largest of the processes' values, so that all agree."""

    def collect(self, value: T) -> list[T]:
        """Every process's value, in the order of their numbers, on every process; it must be picklable."""

    def agree(self, value: T | None) -> T | None:
        """The value of the first process that has one: for choices that depend on clocks or free memory."""


class OneProcess:
    """Nothing to exchange."""

    count = 1
    rank = 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def largest(self, value: int) -> int:
        """The value itself."""
        return value

    def collect(self, value: T) -> list[T]:
        """The value alone."""
        return [value]

    def agree(self, value: T | None) -> T | None:
        """The value itself."""
        return value


class DistributedProcesses:
    """The processes of the default ``torch.distributed`` group. All of them must ask the same, in the same order."""

    @property
    def count(self) -> int:
        """The group's size."""
        return torch.distributed.get_world_size()

    @property
    def rank(self) -> int:
        """This process's rank."""
        return torch.distributed.get_rank()

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

    def collect(self, value: T) -> list[T]:
        """All-gather of pickled objects."""
        values: list[T] = [value] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def agree(self, value: T | None) -> T | None:
        """All-gather; the first that is not None."""
        return next((each for each in self.collect(value) if each is not None), None)


def held_by(rank: int, count: int, num_clients: int) -> range:
    """Return the clients whose states lie in process ``rank`` of ``count``: client i is with process i modulo count."""
    return range(rank, num_clients, count)


def _device() -> torch.device:
    """Where the default group takes tensors from."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
