"""fedlightning and other frameworks on the same jobs, in turn: a round of the one, then a round of the next.

``FEDLIGHTNING_DATA=... python benchmarks/peers/run.py`` prints a table a job; README.md beside this file says how the
environments are made and what is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from samples import write
from driver import FRAMEWORKS, Worker, start
from jobs import JOBS

LOOP = "plain loop"
STANDARD = ("logreg", "lenet", "cnn", "flute", "pfl")


def needs_files(name):
    return JOBS[name].data != "noise"


def measure(name, frameworks, rounds, root):
    job = JOBS[name]
    print(f"\n### {job.title}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = [stack.enter_context(closing(each)) for each in start(frameworks, name, write(name, folder, root))]
        for _ in range(1 + rounds):
            for worker in workers:
                worker.round()
        print_table(job, rounds, workers)
    print(f"\nLoad {os.getloadavg()[0]:.2f} at the end, the frameworks' own included. Versions:")
    for worker in workers:
        print(f"* {worker.name}: {', '.join(map(' '.join, worker.packages.items()))}")


def print_table(job, rounds, workers):
    print(
        f"{job.clients} clients, {job.cohort} a round, batch {job.batch}, step size {job.lr}; medians of "
        f"{rounds} rounds after the first.\n"
    )
    columns = ["framework", "s a round", "times faster", "CPU s", "first round s", "peak MiB"]
    columns += [f"{job.printed_rounds} rounds, s"] * bool(job.printed_rounds)
    columns += [f"accuracy after {1 + rounds}, %"] * (job.data != "noise")
    print("|", " | ".join(columns), "|")
    print("| --- |", " | ".join(["---:"] * (len(columns) - 1)), "|")
    loop = next((each.seconds_a_round() for each in workers if each.name == LOOP), float("nan"))
    for worker in sorted(workers, key=Worker.seconds_a_round):
        seconds = worker.seconds_a_round()
        cells = [worker.name, f"{seconds:.4f}", f"{loop / seconds:.2f}", f"{worker.cpu_a_round():.3f}"]
        cells += [f"{worker.seconds[0]:.2f}", f"{worker.peak_mib():.0f}"]
        if job.printed_rounds:
            left = job.printed_rounds - len(worker.seconds)
            cells.append(f"{sum(worker.seconds) + left * seconds:.1f}")
        if job.data != "noise":
            cells.append(f"{100 * worker.accuracy():.1f}")
        print("|", " | ".join(cells), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=STANDARD)
    parser.add_argument("--frameworks", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=0, help="rounds after the first; 0: the job's own number")
    parser.add_argument("--cores", type=int, default=0, help="pin every framework to so many cores; 0: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDLIGHTNING_DATA"), help="mnist/, cifar10_jpeg/")
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    print(f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, OMP_NUM_THREADS {threads}, {platform.machine()}.")
    print(f"Python {platform.python_version()}, load {os.getloadavg()[0]:.2f} at the start.")
    for name in args.jobs:
        if needs_files(name) and args.data is None:
            print(f"\n{JOBS[name].title} is left out: --data or FEDLIGHTNING_DATA names the folder of its samples.")
            continue
        measure(name, args.frameworks, args.rounds or JOBS[name].rounds, args.data)


if __name__ == "__main__":
    main()
