"""Run every objective of the lists in every way and say where the ways differ: ``python -m tests.support.fuzz``.

Each objective is trained by a ``Trainer``, as a user would: four rounds of six clients with 10 local steps, once with
``Sequential`` and then batched, replayed, in two parts, client by client and by default. Parameters, buffers and logged
values must agree with ``Sequential`` to rounding. Objectives run in processes of their own, so that one that crashes or
hangs is one line of the table. The exit code is 1 if anything is different in silence, or fails by default although it
runs one by one.
"""

from __future__ import annotations  # noqa: I001  # fedlightning comes before lightning, which imports torchvision

import fedlightning  # noqa: F401

import argparse
import ctypes
import json
import logging
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Auto, ObjectiveError, ClientBatching, Sequential, Vectorized
from tests.support.objectives import (
    CLIENTS,
    AbsentError,
    Case,
    Setting,
    UnsuitableError,
    module_cases,
    operation_cases,
    reseed,
)
from tests.support.written import written_cases

STEPS, ROUNDS = 10, 4
"""A recording is written in the first round, compared in the second, and from the third on a glance may do for that."""

TOLERANCE = 1e-9
EPS = torch.finfo(torch.float64).eps
"""Relative, in float64: some thousand roundings beside what 40 steps move."""

SCOPE = f"""\
What this covers: float64 and complex128 (coarser numbers only where an operation converts to them), on a CPU;
FedAvg in one process, with {CLIENTS} clients that all take part and are computed in one chunk, in one way divided among
two threads; buffers that are averaged; the first and the last of torch's samples of a module or operation, in complex
numbers the first alone.

What it does not cover: training in float32 or 16 bits, autocast, GPUs, `compile=True`, several chunks or processes,
personal and maximised blocks, other algorithms. For these there are the self-check in the first round of every fit
and the tests of the package.

The ways are compared with each other. Evaluation one by one is compared with a loop of plain PyTorch in
`tests/oracle/test_plain_loop.py`, for objectives of the list that draw no random numbers.
"""

SPEEDS = ("replayed", "batched", "one by one")

WAYS: dict[str, tuple[Callable[[], ClientBatching], str]] = {
    "batched": (lambda: Vectorized(replay=False), "batched"),
    "replayed": (lambda: Vectorized(replay=True), "replayed"),
    "in parts": (lambda: Vectorized(replay=True, parts=2), "replayed"),
    "each replayed": (lambda: Vectorized(backward="each", threads=2), "replayed"),
    "default": (Auto, "replayed"),
}
"""Name of a way to its oracle and to how it runs if nothing stands against it."""

SOURCES = {"written": written_cases, "module": module_cases, "op": operation_cases}

ALONE = "one by one"
"""The way that all are compared with; it has a result only if it fails where plain PyTorch does not."""

GOOD = ("equal", "fell back", "refused")


@dataclass
class Way:
    """How one way did.

    Attributes:
        result: ``equal``, ``fell back`` (equal, but slower than asked), ``refused`` (an :class:`ObjectiveError`),
            ``crashed`` (any other error, or one by default) or ``DIFFERENT``.
        ran: How the last round ran, one of :data:`SPEEDS`.
        line: What was reported, or the error.
        difference: Largest relative difference from ``Sequential``.
    """

    result: str
    ran: str = ""
    line: str = ""
    difference: float = 0.0


@dataclass
class Outcome:
    """How one objective did.

    Attributes:
        name: Of the case.
        status: ``ran``, ``skipped`` (no objective), ``absent`` (no such sample), ``fails`` (in plain PyTorch as well),
            ``refused`` (one by one, in words of ours; every way must) or ``died`` (the process).
        reason: Why it was not run.
        random: Whether it draws random numbers.
        ways: Results by name of the way.
        seconds: Time of everything.
    """

    name: str
    status: str = "ran"
    reason: str = ""
    random: bool = False
    ways: dict[str, Way] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether the ways differ, or the default way fails where ``Sequential`` runs."""
        return self.status == "died" or any(way.result not in GOOD for way in self.ways.values())


class Task(FederatedLightningModule):
    """Any network with any loss."""

    def __init__(self, setting: Setting, oracle: ClientBatching) -> None:
        super().__init__(FedAvg(setting.lr), oracle=oracle)
        self.network = setting.network()
        self.calls = ctypes.c_long()  # in plain Python it would be state, and have clients computed one by one
        self._loss = setting.loss

    def objective(self, batch: Any) -> Any:
        """The loss, and how often Python came here."""
        self.calls.value += 1
        return self._loss(self.network, batch)

    def log_dict(self, *_: Any, **__: Any) -> None:
        """Nothing is logged: Lightning would take longer than a round."""


class Watch(Callback):
    """Notes what every round reported and how often it called the objective."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.calls: list[int] = []

    def on_train_batch_start(self, trainer: Any, task: Any, *_: Any) -> None:
        """Start counting."""
        self.calls.append(-task.calls.value)

    def on_train_batch_end(self, trainer: Any, task: Any, *_: Any) -> None:
        """Take the round's values."""
        self.calls[-1] += task.calls.value
        values = task.round_metrics.items()
        self.metrics.append({name: float(value) for name, value in values if name.startswith("train_")})


@dataclass
class Fit:
    """What a fit left."""

    start: Tensor
    parameters: Tensor
    buffers: Tensor
    metrics: Tensor
    ran: str
    line: str


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_ABOUT = re.compile(r"oracle|Sequential|Vectorized|vmap|replay|one by one", re.IGNORECASE)


def fit(setting: Setting, oracle: ClientBatching, rounds: int = ROUNDS, nudge: float = 0.0) -> Fit:
    """Train, as a user does, perhaps from a start that is relatively ``nudge`` beside."""
    reseed()
    task = Task(setting, oracle).double()
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.mul_(1 + nudge)
    start, watch, log = _flat(task.parameters()), Watch(), _Lines()
    data = FederatedDataModule.from_datasets(
        [TensorDataset(*(t.clone() for t in tensors)) for tensors in setting.data],
        batch_size=setting.batch_size,
        local_steps=STEPS,
        rounds_per_epoch=rounds,
        seed=1,
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
        max_steps=rounds,
        log_every_n_steps=1,
    )
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "fedlightning")]
    for logger in loggers:
        logger.addHandler(log)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(task, data)
    finally:
        for logger in loggers:
            logger.removeHandler(log)
    said = log.lines + [str(w.message) for w in caught if "fedlightning" in w.filename or "lightning" in w.filename]
    about = [line.splitlines()[0] for line in said if _ABOUT.search(line)]
    names = sorted(watch.metrics[0])
    return Fit(
        start,
        _flat(task.parameters()),
        _flat(task.buffers()),
        torch.tensor([[values[name] for name in names] for values in watch.metrics], dtype=torch.float64),
        _speed(watch.calls[-1]),
        " / ".join(dict.fromkeys(about)),
    )


def _speed(calls: int) -> str:
    """How a round of 10 steps was computed, by how often it called Python; a few calls may be trials."""
    return SPEEDS[0] if calls < STEPS else SPEEDS[1] if calls < 2 * STEPS else SPEEDS[2]


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0).double(), *(t.detach().double().flatten() for t in tensors)])


def difference(expected: Fit, other: Fit) -> float:
    """Largest difference: of parameters beside what they moved, of buffers and logged values beside themselves."""
    moved = float((expected.parameters - expected.start).abs().max())
    values = [(expected.parameters, other.parameters, max(moved, 1e-6))]
    for one, two in ((expected.buffers, other.buffers), (expected.metrics, other.metrics)):
        if one.shape != two.shape:
            return float("inf")
        if one.numel():
            values.append((one, two, max(float(one.nan_to_num().abs().max()), 1e-6)))
    differences = [(one - two).abs().nan_to_num(torch.inf) / scale for one, two, scale in values]
    both = [one.isnan() & two.isnan() for one, two, _ in values]  # a client without any label has no loss
    return max(float(apart.masked_fill(alike, 0.0).max()) for apart, alike in zip(differences, both, strict=True))


def examine(case: Case, ways: Iterable[str] = (), rounds: int = ROUNDS) -> Outcome:
    """Run a case in the ways named; in all if none is."""
    since, outcome = time.perf_counter(), Outcome(case.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            setting = case.make()
        except AbsentError:
            outcome.status = "absent"
            return outcome
        except UnsuitableError as problem:
            outcome.status, outcome.reason = "skipped", str(problem)
            return outcome
        except Exception as error:  # torch's own sample cannot be differentiated
            outcome.status, outcome.reason = "skipped", f"fails plainly: {said(error)}"
            return outcome
    outcome.random = setting.random
    try:
        expected = fit(setting, Sequential(), rounds)
    except Exception as error:
        plainly = plain_error(setting)
        if plainly is not None:
            outcome.status, outcome.reason = "fails", plainly
        elif isinstance(error, ObjectiveError):
            outcome.status, outcome.reason = "refused", said(error)
            outcome.ways = {name: _alike(setting, WAYS[name][0](), rounds) for name in ways or WAYS}
        elif isinstance(error, RoundRejectedError):
            outcome.status, outcome.reason = "skipped", "leaves its domain within 40 steps"
        else:
            outcome.ways[ALONE] = Way("crashed", line=said(error))
        return outcome
    if not torch.isfinite(expected.parameters).all():
        outcome.status, outcome.reason = "skipped", "leaves its domain within 40 steps"
        return outcome
    for name in ways or WAYS:
        oracle, asked = WAYS[name]
        outcome.ways[name] = _judged(name, asked, setting, expected, oracle(), rounds)
    apart = max((way.difference for way in outcome.ways.values() if way.result == "DIFFERENT"), default=0.0)
    if apart and difference(expected, fit(setting, Sequential(), rounds, nudge=EPS)) > 0.1 * apart:
        outcome.status, outcome.ways = "skipped", {}
        outcome.reason = "is ill-conditioned: another last digit of its start changes plain training as much"
    outcome.seconds = time.perf_counter() - since
    return outcome


def _judged(name: str, asked: str, setting: Setting, expected: Fit, oracle: ClientBatching, rounds: int) -> Way:
    try:
        got = fit(setting, oracle, rounds)
    except Exception as error:
        refused = isinstance(error, ObjectiveError) and name != "default"
        return Way("refused" if refused else "crashed", line=said(error))
    apart = difference(expected, got)
    slower = SPEEDS.index(got.ran) > SPEEDS.index(asked)
    if apart > TOLERANCE and not (setting.outside and got.ran == "one by one" and got.line):
        return Way("DIFFERENT", got.ran, got.line, apart)
    return Way("fell back" if slower else "equal", got.ran, got.line, apart)


def _alike(setting: Setting, oracle: ClientBatching, rounds: int) -> Way:
    """Whether a way fails where evaluation one by one does, as for a sample that has no value of the objective."""
    try:
        got = fit(setting, oracle, rounds)
    except Exception as error:
        return Way("refused" if isinstance(error, ObjectiveError) else "crashed", line=said(error))
    return Way("DIFFERENT", got.ran, "runs where evaluation one by one fails", float("inf"))


def plain_error(setting: Setting) -> str | None:
    """Why the objective cannot be evaluated and differentiated without this package; None if it can."""
    reseed()
    network = setting.network().double()
    batch = tuple(t[: setting.batch_size].clone() for t in setting.data[0])
    try:
        loss = setting.loss(network, batch)
        loss = loss["loss"] if isinstance(loss, dict) else loss
        torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad], allow_unused=True)
    except Exception as error:
        return said(error)
    return None


def said(error: BaseException) -> str:
    """Kind and first line of an error."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"


def batched_preferred() -> Any:
    """A context in which ``Auto`` finds one by one too slow, so that its choice does not depend on the machine."""
    measured = Auto.seconds

    def slow_alone(self: Auto, oracle: ClientBatching, *args: Any) -> float:
        return measured(self, oracle, *args) * (1e6 if isinstance(oracle, Sequential) else 1.0)

    return mock.patch.object(Auto, "seconds", slow_alone)


def catalogue(sources: Iterable[str] = tuple(SOURCES)) -> dict[str, Case]:
    """All cases by name."""
    return {case.name: case for source in sources for case in SOURCES[source]()}


def _work(connection: Connection, ways: tuple[str, ...], rounds: int) -> None:
    """Examine what the names on the connection stand for, for ever."""
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = False
    cases = catalogue()
    connection.send("ready")
    with batched_preferred():
        while True:
            connection.send(asdict(examine(cases[connection.recv()], ways, rounds)))


class _Worker:
    """A process with at most one objective at a time."""

    def __init__(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.fuzz"])  # the imports are made once
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.name: str | None = None
        self.since = time.perf_counter()
        self.ready = False

    def ask(self, name: str) -> None:
        self.name, self.since = name, time.perf_counter()
        self.connection.send(name)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def examine_all(
    names: list[str], jobs: int = 1, limit: float = 60.0, ways: tuple[str, ...] = (), rounds: int = ROUNDS
) -> Iterator[Outcome]:
    """Outcomes of the named cases, in the order they come in.

    Args:
        names: Cases of :func:`catalogue`.
        jobs: Processes.
        limit: Seconds an objective may take.
        ways: Names of ways; all if empty.
        rounds: Communication rounds of each fit.
    """
    waiting, missing = list(reversed(names)), len(names)
    workers = [_Worker(ways, rounds) for _ in range(min(jobs, len(names)))]
    try:
        while missing:
            came = wait([worker.connection for worker in workers], timeout=1.0)
            for place, worker in enumerate(workers):
                died = None
                if worker.connection in came:
                    try:
                        answer = worker.connection.recv()
                    except (EOFError, ConnectionResetError):
                        worker.process.join()
                        died = f"the process ended with code {worker.process.exitcode}"
                    else:
                        if answer != "ready":
                            yield _outcome(answer)
                            missing -= 1
                        worker.ready, worker.name = True, None
                        if waiting:
                            worker.ask(waiting.pop())
                elif worker.name is not None and time.perf_counter() - worker.since > limit:
                    died = f"took more than {limit:.0f} s"
                if died is not None:
                    if worker.name is None:
                        raise RuntimeError(f"A process of the fuzz did not start: {died}.")
                    yield Outcome(worker.name, "died", died)
                    missing -= 1
                    worker.end()
                    workers[place] = _Worker(ways, rounds)
    finally:
        for worker in workers:
            worker.end()


def table(outcomes: list[Outcome]) -> str:
    """The page of the results, in Markdown."""
    outcomes = [o for o in outcomes if o.status != "absent"]
    ran = [o for o in outcomes if o.status == "ran"]
    lines = [
        "# Objectives run in every way",
        "",
        "`python -m tests.support.fuzz` trains every module and every differentiable operation that torch tests itself",
        "with, and a list of objectives written by hand, one by one and in the ways named below, and compares",
        f"parameters, buffers and logged values after {ROUNDS} rounds of {STEPS} steps in float64",
        f"(tolerance {TOLERANCE:g}, relative). Torch {torch.__version__}, on a CPU, {date.today()}. In this table:",
        f"{', '.join(source for source in SOURCES if any(o.name.startswith(f'{source}:') for o in ran))}; ways: "
        f"{', '.join(name for name in WAYS if any(name in o.ways for o in ran))}.",
        "",
        *SCOPE.splitlines(),
        "",
        "| | " + " | ".join(SOURCES) + " | all |",
        "| --- |" + " ---: |" * (len(SOURCES) + 1),
    ]

    def row(label: str, chosen: Callable[[Outcome], bool]) -> None:
        counts = [sum(chosen(o) for o in outcomes if o.name.startswith(f"{source}:")) for source in SOURCES]
        lines.append(f"| {label} | " + " | ".join(map(str, [*counts, sum(counts)])) + " |")

    row("objectives", lambda o: o.status == "ran")
    for name in (name for name in WAYS if any(name in o.ways for o in ran)):
        for speed in SPEEDS:
            row(f"{name}: equal, ran {speed}", lambda o, n=name, s=speed: _is(o, n, ("equal", "fell back"), s))
        for result in ("refused", "crashed", "DIFFERENT"):
            counted = ("ran",) if result == "refused" else ("ran", "refused")
            row(f"{name}: {result}", lambda o, n=name, r=result, c=counted: o.status in c and _is(o, n, (r,)))
    row("one by one: crashed", lambda o: _is(o, ALONE, ("crashed",)))
    row("refused one by one, and in every way", lambda o: o.status == "refused" and not o.wrong)
    row("the process died", lambda o: o.status == "died")
    row("skipped: no objective", lambda o: o.status == "skipped")
    row("fails in plain PyTorch", lambda o: o.status == "fails")
    for title, results in (
        ("Different in silence", ("DIFFERENT",)),
        ("Crashed", ("crashed",)),
        ("Refused where one by one is not", ("refused",)),
        ("Fell back", ("fell back",)),
    ):
        lines += ["", f"## {title}", ""]
        among = ran if title in ("Refused where one by one is not", "Fell back") else outcomes
        found = [(o, name, way) for o in among for name, way in o.ways.items() if way.result in results]
        lines += _listed(found) if found else ["None."]
    lines += ["", "## Not run", ""]
    reasons: dict[str, list[str]] = {}
    for o in outcomes:
        if o.status != "ran":
            reasons.setdefault(f"{o.status}: {o.reason}", []).append(o.name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"- {_code(reason)} ({len(names)}): {', '.join(names)}")
    return "\n".join(lines) + "\n"


def _is(outcome: Outcome, name: str, results: tuple[str, ...], speed: str | None = None) -> bool:
    way = outcome.ways.get(name)
    return way is not None and way.result in results and speed in (None, way.ran)


def _listed(found: list[tuple[Outcome, str, Way]]) -> list[str]:
    """One line a message, with the objectives it was said of."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for outcome, name, way in found:
        line = re.sub(r"\d[\d.e+-]* ms", "_ ms", way.line) or "(no line)"
        extra = f" ({way.difference:.0e}{', random' if outcome.random else ''})" if way.result == "DIFFERENT" else ""
        key = ("" if way.result == "DIFFERENT" else line, way.ran)
        groups.setdefault(key, {}).setdefault(outcome.name, []).append(name + extra)
    lines = []
    for (line, ran), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        head = f"- {f'ran {ran}' if ran else 'did not run'}{f': {_code(line)}' if line else ''} ({len(names)})"
        by_ways: dict[str, list[str]] = {}
        for name, ways in names.items():
            by_ways.setdefault(", ".join(ways), []).append(name)
        lines.append(head)
        lines += [f"  - {ways}: {', '.join(own)}" for ways, own in by_ways.items()]
    return lines


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="regular expression of names")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what to compare with Sequential")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each fit; replay needs one")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds an objective may take")
    parser.add_argument("--out", type=Path, help="page to write, e.g. docs/FUZZ.md")
    parser.add_argument("--json", type=Path, help="file for all outcomes, one a line; those it holds are not run again")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from tqdm import tqdm

    names = [name for name in catalogue() if re.search(args.only, name)]
    outcomes, since = _known(args.json, names), time.perf_counter()
    done = {outcome.name for outcome in outcomes}
    names.sort(key=lambda name: "[-1]" in name)  # every operation once before any a second time
    missing = [name for name in names if name not in done]
    with tqdm(total=len(missing), disable=None) as bar:
        for outcome in examine_all(missing, args.jobs, args.limit, tuple(args.ways), args.rounds):
            outcomes.append(outcome)
            bar.update()
            if args.json is not None:
                with args.json.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if outcome.wrong or len(names) <= 20:
                bar.write(short(outcome))
    outcomes.sort(key=lambda outcome: names.index(outcome.name))
    if args.out is not None:
        args.out.write_text(table(outcomes))
    print(f"{len(outcomes)} objectives in {time.perf_counter() - since:.0f} s:", end=" ")
    print(", ".join(f"{count} {status}" for status, count in Counter(o.status for o in outcomes).items()))
    for name in WAYS:
        results = Counter(o.ways[name].result for o in outcomes if name in o.ways)
        print(f"  {name}: " + ", ".join(f"{count} {result}" for result, count in results.most_common()))
    sys.exit(any(outcome.wrong for outcome in outcomes))


def _known(path: Path | None, names: list[str]) -> list[Outcome]:
    """Outcomes of an interrupted run."""
    if path is None or not path.exists():
        return []
    known = [_outcome(json.loads(line)) for line in path.read_text().splitlines()]
    return [outcome for outcome in known if outcome.name in names]


def _outcome(values: dict[str, Any]) -> Outcome:
    ways = {name: Way(**way) for name, way in values.pop("ways").items()}
    return Outcome(**values, ways=ways)


def short(outcome: Outcome) -> str:
    ways = [
        f"{name} {way.result}"
        + (f" ({way.difference:.0e}, {way.ran})" if way.ran else "")
        + (f" [{way.line[:150]}]" if way.line and way.result != "equal" else "")
        for name, way in outcome.ways.items()
    ]
    return f"{outcome.name}{' (random)' if outcome.random else ''}: " + ("; ".join(ways) or outcome.reason)


if __name__ == "__main__":
    main()
