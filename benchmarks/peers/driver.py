"""The driver's side: starts one process a framework, asks each for one round in turn, and measures what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".env"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Framework:
    """How a framework is started.

    Attributes:
        script: File beside this one.
        environment: Folder of its virtual environment in ``.env``; empty for the driver's own interpreter.
        mode: Arguments before the folder of the job.
        not_for: Jobs it is left out of, and why.
    """

    script: str
    environment: str = ""
    mode: tuple[str, ...] = ()
    not_for: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return ENVIRONMENTS / self.environment / "bin" / "python" if self.environment else Path(sys.executable)


EQUAL = {"flute": "it needs clients with equally many samples"}
SLOW = dict.fromkeys(("cnn", "pfl"), "XLA takes a minute a round for its convolutions inside a compiled loop on a CPU")
CONVOLUTIONS = dict.fromkeys(("lenet", "cnn", "pfl", "mnist"), "compiled convolutions are slower than the default's")
UNEQUAL = {"flute": "every number of clients that still step would be compiled by itself"}
FRAMEWORKS = {
    "plain loop": Framework("plain_loop.py"),
    "fedlightning": Framework("ours.py"),
    "fedlightning, compiled": Framework("ours.py", mode=("compiled",), not_for={**CONVOLUTIONS, **UNEQUAL}),
    "torch.func.vmap": Framework("torch_vmap.py", not_for=EQUAL),
    "JAX vmap": Framework("jax_plain.py", "jax", ("vmap",), {**EQUAL, **SLOW}),
    "JAX map": Framework("jax_plain.py", "jax", ("map",), {**EQUAL, **SLOW}),
    "FedJAX": Framework("fedjax_fedavg.py", "fedjax"),
    "pfl-research": Framework("pfl_research.py", "pfl"),
    "Flower": Framework("flower.py", "flower"),
}


class Worker:
    """A framework in a process of its own, which does one round whenever it is asked.

    Attributes:
        seconds: What each round took, the first included.
        cpu: CPU seconds of each round, those of its own processes included.
        packages: Versions of what runs.
    """

    def __init__(self, name, folder):
        self.name, framework = name, FRAMEWORKS[name]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            [framework.python, HERE / framework.script, *framework.mode, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )
        self.seconds, self.cpu, self.packages = [], [], {}

    def wait_until_ready(self):
        self.packages = self._answer()

    def round(self):
        cpu, start = self._cpu(), time.perf_counter()
        self._ask("round")
        self.seconds.append(time.perf_counter() - start)
        self.cpu.append(self._cpu() - cpu)

    def accuracy(self):
        return self._ask("accuracy")

    def seconds_a_round(self):
        """Median over the rounds after the first, which compiles, records or measures."""
        return median(self.seconds[1:])

    def cpu_a_round(self):
        """Mean over the same rounds, as the system counts in hundredths of a second."""
        return mean(self.cpu[1:])

    def peak_mib(self):
        """Peak of the process, and what its own processes hold now, shared pages counted once."""
        own, *others = family(self.process.pid)
        return (kib(own, "status", "VmHWM") + sum(kib(pid, "smaps_rollup", "Pss") for pid in others)) / 1024

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _ask(self, word):
        print(word, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self):
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.log.seek(0)
        raise RuntimeError(f"{self.name} stopped:\n" + "".join(self.log.readlines()[-15:]))

    def _cpu(self):
        return sum(cpu_seconds(pid) for pid in family(self.process.pid))


def family(pid):
    """A process and its descendants."""
    parents = {stat.parent.name: stat_of(stat.parent)[1] for stat in Path("/proc").glob("[0-9]*/stat")}
    found = [str(pid)]
    for each in found:  # grows as it goes
        found += [child for child, parent in parents.items() if parent == each]
    return found


def stat_of(process):
    """What follows a process's name in its ``stat``: state, parent, ...; zeros if it has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def cpu_seconds(pid):
    """User and system time."""
    return sum(map(int, stat_of(Path("/proc", pid))[11:13])) / TICKS


def kib(pid, file, entry):
    lines = Path("/proc", pid, file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


def start(names, job, folder):
    """Start the frameworks that take part in a job; say which do not, and why."""
    workers = []
    for name in names:
        framework = FRAMEWORKS[name]
        if job in framework.not_for:
            print(f"{name} is left out: {framework.not_for[job]}.")
        elif not framework.python.exists():
            print(f"{name} is left out: no environment {framework.python.parents[1]}; README.md says how to make it.")
        else:
            workers.append(Worker(name, folder))
    for worker in workers:
        worker.wait_until_ready()
    return workers
