"""Robust rules in two processes that exchange rows over gloo."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import multiprocessing

from fedlightning.channel.robust.rows import ClientRows
from fedlightning.federation.processes import DistributedProcesses
from tests.support.rules import COUNT, RULES, drawn

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def of_all_rules(processes, rank=0, count=1):
    """The aggregate of every rule and dtype; client i is with process i modulo the number of processes."""
    mine = list(range(rank, COUNT, count))
    return {
        (name, dtype): rule.aggregate(ClientRows([drawn(dtype=dtype)[mine]], mine, processes))
        for name, rule in RULES.items()
        for dtype in DTYPES
    }


def one(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=2)
    torch.save(of_all_rules(DistributedProcesses(), rank, 2), folder / f"{rank}.pt")


if __name__ == "__main__":
    multiprocessing.spawn(one, (Path(sys.argv[1]),), nprocs=2)
