"""Who reaches the papers' fixed points? Drives every framework on the clients of problem.py and prints a table.

``python benchmarks/conformance/run.py`` runs all of it; README.md beside this file says how the environments are made
and how every framework is driven.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from problem import ALPHA, CLIENTS, COHORT, LAM, LR, MU, ROUNDS, STEPS, drawn, jobs

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".env", HERE.parent / "peers" / ".env"
REACHED = 1e-6
"""Distance, relative to the start's, at which a point is reached; 32-bit numbers end at about 5e-8."""


@dataclass(frozen=True)
class Framework:
    """How a framework is started.

    Attributes:
        script: Driver beside this file.
        environment: Folder of its virtual environment in ``.env``; empty for the runner's own interpreter.
        variables: Environment variables of the driver, for a framework with a choice.
        checkout: Environment variable that names a folder of sources, for what is in no package.
    """

    script: str
    environment: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    checkout: str = ""

    @property
    def python(self) -> Path | None:
        """Interpreter, or None if its environment is missing."""
        if not self.environment:
            return Path(sys.executable)
        found = [each / self.environment / "bin" / "python" for each in ENVIRONMENTS]
        return next((each for each in found if each.exists()), None)

    @property
    def missing(self) -> str:
        """What there must be before it starts; empty if all is there."""
        if self.python is None:
            return f"no environment {self.environment} in .env"
        folder = os.environ.get(self.checkout, "") if self.checkout else "."
        if not folder or not Path(folder).is_dir():
            return f"{self.checkout} names no folder with its sources"
        return ""


FRAMEWORKS = {
    "NumPy loop": Framework("loop.py"),
    "fedlightning": Framework("ours.py"),
    "FedJAX": Framework("fedjax_driver.py", "fedjax"),
    "FedLab": Framework("fedlab_driver.py", "fedlab"),
    "Flower": Framework("flower_driver.py", "flower"),
    "Flower's baselines": Framework("flower_baselines_driver.py", "flower_baselines", checkout="FLOWER_BASELINES"),
    "fluke": Framework("fluke_driver.py", "fluke"),
    "NVFlare": Framework("nvflare_driver.py", "nvflare"),
    "pfl-research, option II": Framework("pfl_driver.py", "pfl"),
    "pfl-research, option I": Framework("pfl_driver.py", "pfl", (("PFL_SCAFFOLD_OPTION", "I"),)),
}


def answers(framework, names, log):
    """The lines of a driver: versions first, then an answer for every job."""
    variables = {**os.environ, **dict(framework.variables)}
    variables["PYTHONPATH"] = os.pathsep.join([str(HERE), variables.get("PYTHONPATH", "")])
    command = [str(framework.python), str(HERE / framework.script), *names]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=log, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines:
        return {}, {name: {"outcome": "fails", "why": "the driver does not start; see the log"} for name in names}
    return lines[0]["versions"], {line["job"]: line for line in lines[1:]}


def verdict(answer):
    """A cell of the table."""
    if answer is None:
        return "no answer"
    if answer["outcome"] != "ran":
        return "-" if answer["outcome"] == "not offered" else f"**{answer['outcome']}**"
    distance = answer["distance"]
    if math.isfinite(distance) and distance <= REACHED:
        return f"{distance:.0e}".replace("e-0", "e-")
    return "**diverges**" if not distance <= 10 else f"**{distance:.2g} off**"


def write(table, names, file):
    """A line for every framework and job: what is in the table's cell."""
    with file.open("w", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(["framework", "job", "cell"])
        lines.writerows(
            [framework, job, verdict(cells.get(job))] for framework, cells in table.items() for job in names
        )


def print_header(problem):
    print(f"{CLIENTS} clients, {COHORT} a round where it says 30 %, all elsewhere; {ROUNDS} rounds from zero;")
    print(f"{STEPS} local steps, 1 to {CLIENTS} for FedNova; lr {LR}, mu {MU:g}, alpha {ALPHA:g}, lambda {LAM:g}.")
    off = {name: job.target for name, job in jobs(problem).items() if name in ("FedAvg", "FedProx", "FedNova")}
    size = float((problem.solution**2).sum() ** 0.5)
    shown = (f"{name} {float(((z - problem.solution) ** 2).sum() ** 0.5) / size:.2f}" for name, z in off.items())
    print(f"The papers' own points lie off the solution, relative to its norm: {', '.join(shown)}.")
    print(f"{date.today().isoformat()}, Python {platform.python_version()}, {platform.machine()}.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="file for what the frameworks print")
    parser.add_argument("--output", type=Path, help="file for the cells as CSV, from which figure.py draws")
    args = parser.parse_args()
    problem = drawn()
    names = list(jobs(problem))
    table, versions, reasons = {}, {}, []
    with args.log.open("w") as log:
        for name in args.frameworks:
            if missing := FRAMEWORKS[name].missing:
                print(f"{name} is left out: {missing}.")
                continue
            versions[name], table[name] = answers(FRAMEWORKS[name], names, log)
            reasons += [f"{name}, {job}: {line['why']}" for job, line in table[name].items() if "why" in line]
    if args.output:
        write(table, names, args.output)
    print_header(problem)
    print("| framework |", " | ".join(names), "|")
    print("| --- |", " | ".join(["---"] * len(names)), "|")
    for name, lines in table.items():
        print(f"| {name} |", " | ".join(verdict(lines.get(job)) for job in names), "|")
    print(
        "\nVersions:", "; ".join(f"{name}: {', '.join(map(' '.join, each.items()))}" for name, each in versions.items())
    )
    for reason in reasons:
        print("*", reason)


if __name__ == "__main__":
    main()
