"""The few collective operations that a round needs, for one process or several."""

from __future__ import annotations

import atexit
from functools import lru_cache
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Processes(Protocol):
    """Connects the processes that share a federation's clients; each has clients and states of its own."""

    @property
    def count(self) -> int:
        """The number of processes."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""

    def largest(self, value: int) -> int:
        """Return the largest of the processes' values, so that all processes agree."""

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks; values must be picklable."""

    def agree(self, value: T | None) -> T | None:
        """Return the first value that is not None, so that choices by clocks or free memory are the same everywhere."""


class OneProcess:
    """Stands for a single process, which has nothing to exchange."""

    count = 1
    rank = 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def largest(self, value: int) -> int:
        """Return the value itself."""
        return value

    def collect(self, value: T) -> list[T]:
        """Return a list of the value alone."""
        return [value]

    def agree(self, value: T | None) -> T | None:
        """Return the value itself."""
        return value


class DistributedProcesses:
    """Connects the processes of the default ``torch.distributed`` group, which ends when Python does.

    All processes must call the same methods in the same order.
    """

    def __init__(self) -> None:
        _end_group_at_exit()

    @property
    def count(self) -> int:
        """The size of the group."""
        return torch.distributed.get_world_size()

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return torch.distributed.get_rank()

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes as a new tensor, by all-reduce."""
        result = tensor.clone()
        torch.distributed.all_reduce(result)
        return result

    def largest(self, value: int) -> int:
        """Return the largest value of all processes, by all-reduce."""
        result = torch.tensor(value, device=_device())
        torch.distributed.all_reduce(result, op=torch.distributed.ReduceOp.MAX)
        return int(result)

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, by an all-gather of pickled objects."""
        values: list[T] = [value] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def agree(self, value: T | None) -> T | None:
        """Return the first value that is not None, by an all-gather."""
        return next((each for each in self.collect(value) if each is not None), None)


def held_by(rank: int, count: int, num_clients: int) -> range:
    """Return the clients whose states lie in process ``rank`` of ``count``: client i is with process i modulo count."""
    return range(rank, num_clients, count)


@lru_cache(maxsize=1)
def _end_group_at_exit() -> None:
    """Have the group destroyed while Python still runs.

    A thread of gloo may hold the tensors of the last operation. If it lets go of them when Python has ended, the
    process is aborted, and a finished training looks like a failed one. Lightning does the same for NCCL alone.
    """
    atexit.register(_end_group)


def _end_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _device() -> torch.device:
    """Return the device from which the default group takes tensors."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
