"""Does one process use all cores as well as several processes do?

One process has all threads, and ``Auto`` finds out how to use them; of several processes each has a thread and a part
of the clients. Both train the same networks (``networks.py``) by FedAvg, run after run in turn, each in a process of
its own; printed are the median seconds of a round and their ratio. With ``--beside``, another job keeps one core busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from statistics import median

import torch

from networks import JOBS, machine, run
from standard_job import at_least

NETWORKS = ["MLP 784-200-10", "LeNet5", "CNN, 1.66 M", "ResNet-8", "LSTM", "transformer"]
BUSY = "import torch; torch.set_num_threads(1); x = torch.randn(500, 500)\nwhile True: x @ x"


def one(name, processes, args):
    """Seconds of a round of one run, in the process that Lightning calls the first; it starts the others."""
    if processes > 1:
        torch.set_num_threads(1)
    ours, _, way = run(name, args.clients, args, args.rounds, args.warmup, with_loop=False, devices=processes)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps([median(ours), str(way)]))


def measured(name, processes, args):
    """What :func:`one` finds in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(processes), *(["--unequal"] if args.unequal else [])]
    command += [f"--{each}={getattr(args, each)}" for each in ("clients", "rounds", "warmup")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def another_job(wanted):
    """Something that keeps one core busy."""
    job = subprocess.Popen([sys.executable, "-c", BUSY]) if wanted else None
    try:
        yield
    finally:
        if job is not None:
            job.kill()
            job.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(JOBS), default=NETWORKS)
    parser.add_argument("--processes", type=at_least(1), default=2)
    parser.add_argument("--clients", type=at_least(1), default=10)
    parser.add_argument("--rounds", type=at_least(1), default=7)
    parser.add_argument("--warmup", type=at_least(0), default=2)
    parser.add_argument("--turns", type=at_least(1), default=3)
    parser.add_argument("--unequal", action="store_true", help="clients hold different numbers of samples")
    parser.add_argument("--beside", action="store_true", help="keep one core busy with another job")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.oracle, args.accelerator, args.precision = "auto", "cpu", "32-true"
    warnings.simplefilter("ignore")
    if args.one:
        one(args.one[0], int(args.one[1]), args)
        return
    print(machine("cpu") + (", another job beside" if args.beside else ""))
    print(f"| network | one process, s a round | its way | {args.processes} processes, s a round | ratio |")
    print("| --- | ---: | --- | ---: | ---: |")
    for name in args.networks:
        with another_job(args.beside):
            turns = [[measured(name, processes, args) for processes in (1, args.processes)] for _ in range(args.turns)]
        alone, shared = ([seconds for seconds, _ in each] for each in zip(*turns, strict=True))
        each = [", ".join(f"{seconds:.4f}" for seconds in taken) for taken in (alone, shared)]
        ratio = median(alone) / median(shared)
        print(f"| {name} | {each[0]} | {turns[-1][0][1]} | {each[1]} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
