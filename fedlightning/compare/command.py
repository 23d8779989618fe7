"""Runs of several algorithms over several seeds, one after the other or side by side."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedlightning.cli import plain_refusals
from fedlightning.cli.outputs import writing_to
from fedlightning.compare.arguments import Mode, Report
from fedlightning.compare.best_round import require_choice
from fedlightning.compare.goal import Goal, mode_of
from fedlightning.compare.grid import (
    Values,
    best_points,
    final_value,
    grid_points,
    grid_table,
    label,
    parse_grid,
    untuned,
)
from fedlightning.compare.loggers import open_groups, where
from fedlightning.compare.plan import Plan, algorithm_arguments, file_name, parse_algorithms, require_seeds
from fedlightning.compare.results import VIRTUAL, Curve, caption, collect, markdown_table, require_axes, write_csv
from fedlightning.compare.run import Prepared, Run, execute, hyper_parameters, prepare
from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.core.interrupts import deferred_interrupts, interrupts_held
from fedlightning.core.misspelt import did_you_mean
from fedlightning.core.requirements import imported
from fedlightning.oracle.threads import set_threads
from fedlightning.plotting.comparison import comparison_figure

_SHOWN_WARNINGS = 3
"""Warnings of a run that are printed; its ``warnings.json`` has them all."""


def compare(
    base: Sequence[str],
    algorithms: Sequence[str],
    metric: str,
    seeds: Sequence[int] = (0,),
    output: str = "runs/compare",
    mode: Mode | None = None,
    target: float | None = None,
    test: bool = False,
    jobs: int = 1,
    also: Sequence[str] = (),
    log_scale: bool = False,
    budget_upload: float | None = None,
    grid: Sequence[str] = (),
    set: Sequence[str] = (),  # the option's name
    axes: Sequence[str] = ("round", "upload"),
    report: Report = "last",
    baseline: str | None = None,
) -> Path:
    """Run every algorithm with every seed, then write ``results.csv``, ``table.md`` and ``figure.png``.

    Finished runs are not run again; an interrupted one goes on from its last checkpoint.

    Args:
        base: Config files of task, data and trainer.
        algorithms: Config files of algorithms, each a path or ``Name=path``. ``Name=path name=value ...`` changes
            values of the file, so that one file serves several algorithms of a comparison: names without dots are
            hyper-parameters of the algorithm or of its local solver, those with dots keys of ``fedlightning fit``.
        metric: A metric logged in validation.
        seeds: One run of every algorithm each.
        output: Folder of the results.
        mode: Whether more (``max``) or less (``min``) of the metric is better. Null: less of a loss, an error, a
            distance, a gap or a norm is better, more of everything else; the table says which.
        target: Report what it costs to reach this value, in rounds and upload or as ``axes`` say.
        test: Test every model of the reported round; all test metrics go to ``<run>/done.json``, those compared to the
            table.
        jobs: Runs at a time, in processes of their own that share the cores.
        also: Further metrics: a row of panels and a column of final values each. Not every algorithm need log them.
        log_scale: Whether the metric's vertical axes in the figure are logarithmic.
        budget_upload: Stop every run after the round in which so many floats have been uploaded, compressed or not.
        grid: Values to search on the first seed before the runs, ``name=value,value,...`` with the names of an
            algorithm's hyper-parameters or keys of ``fedlightning fit``; all runs go to ``grid.md``.
        set: Values for all runs, ``key=value`` with the keys of ``fedlightning fit``.
        axes: Costs that the metric is drawn against, a column of panels each, and in which the target is counted:
            ``round``, ``seconds`` of training, ``upload`` and ``download`` in numbers, ``upload_bytes`` and
            ``download_bytes`` as compression leaves them, ``virtual_seconds`` where the participation has a clock.
        report: The round of every run that tables report and ``test`` tests: the ``last``; the ``best`` by the metric
            on validation data; or ``best_on_test`` of data whose validation data are their test data, which is for
            comparisons with tables made so. Tables and figures say which.
        baseline: Name of the algorithm to which differences are given, paired by seed; null for the first one.

    Returns:
        The output folder.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
        ValueError: If an argument or a configuration is not valid, the metric is not logged, or all runs of a grid
            diverge.
    """
    if jobs < 1:
        raise InvalidValueError(f"--jobs {jobs}: expected at least 1.")
    if budget_upload is not None and not budget_upload > 0:
        raise InvalidValueError(f"--budget_upload {budget_upload:g}: expected > 0.")
    require_seeds(seeds, set)
    require_axes(axes)
    imported("matplotlib")  # said before the runs, which may take hours
    folder = Path(output)
    is_first = getattr(rank_zero_only, "rank", 0) == 0  # of several processes that share the clients of each run
    console = Console(quiet=not is_first)
    with writing_to({"--output": folder}):
        goal = Goal(metric, mode_of(metric) if mode is None else mode, target, report)
        overrides = tuple(f"--{value}" for value in set)
        named = parse_algorithms(algorithms)
        if baseline is not None and baseline not in named:
            raise InvalidValueError(f"--baseline {baseline}: expected one of the algorithms, {', '.join(named)}.")
        arguments = algorithm_arguments(base, named, overrides)
        plan = Plan(arguments, overrides, test, budget_upload, metric, folder, report, goal.mode)
        chosen: dict[str, Values] = dict.fromkeys(plan.algorithms, ())
        if grid:
            chosen = _search(plan, parse_grid(grid), seeds[0], goal, folder, console, jobs, axes)
        runs = [
            replace(plan.run(name, seed, values, folder / file_name(name)), twin=_searched(folder, name, values, seed))
            for name, values in chosen.items()
            for seed in seeds
        ]
        loggers = _carry_out(runs, console, jobs, axes)
        if not is_first:
            return folder
        curves = collect(runs, plan.algorithms, goal)
        write_csv(runs, folder / "results.csv")
        validates_on_test = any(run.summary.get("validates_on_test", False) for run in runs)
        require_choice(report, validates_on_test)  # of runs that were finished before, for another report perhaps
        searched = untuned(parse_grid(grid), chosen)
        unsaid = caption(curves, goal, validates_on_test, seeds[0] if grid else None) + (searched and f" {searched}")
        table = f"{markdown_table(curves, goal, also, axes, baseline)}\n\n{unsaid}"
        (folder / "table.md").write_text(table + "\n", encoding="utf-8")
        histories = {curve.name: curve.histories for curve in curves if curve.histories}
        figure = comparison_figure(histories, (metric, *also), axes, target, log_scale, caption=unsaid)
        figure.savefig(folder / "figure.png", dpi=150)
        console.print(table, markup=False, soft_wrap=True)
        for line in (*_never_logged(also, curves, goal), *_below_budget(curves, budget_upload)):
            console.print(line, markup=False, soft_wrap=True)
        for run in runs:
            console.print(*_warnings_of(run), sep="", end="", markup=False, highlight=False, soft_wrap=True)
        lines = [f"\nFigure: {folder / 'figure.png'}", *where(loggers, folder)]
        console.print("\n".join(lines), markup=False, soft_wrap=True)
    return folder


def _never_logged(also: Sequence[str], curves: Sequence[Curve], goal: Goal) -> Iterator[str]:
    """Yield a line for every further metric that no run has logged."""
    logged = sorted({column for curve in curves for history in curve.histories for row in history for column in row})
    for name in also:
        if logged and not any(curve.reported(name, goal) for curve in curves):
            yield f"No run logged {name}. Logged: {', '.join(logged)}."


def _below_budget(curves: Sequence[Curve], budget: float | None) -> Iterator[str]:
    """Yield a line for every algorithm that ended before it had spent its budget of upload."""
    for curve in curves:
        uploads = [history[-1]["upload"] for history in curve.histories]
        if budget is not None and uploads and min(uploads) < budget:
            yield (
                f"{curve.name} ended at an upload of {min(uploads):.3g}, below the budget of {budget:.3g}: raise "
                "trainer.max_steps."
            )


def _search(
    plan: Plan,
    grid: Mapping[str, Sequence[str]],
    seed: int,
    goal: Goal,
    folder: Path,
    console: Console,
    jobs: int,
    axes: Sequence[str],
) -> dict[str, Values]:
    """Run every grid point of every algorithm with one seed, and choose the best points."""
    known = {name: hyper_parameters(plan.run(name, seed, (), folder)) for name in plan.algorithms}
    every = sorted(frozenset[str]().union(*known.values()))
    for name in grid:
        if "." not in name and name not in every:
            listed = "; ".join(f"{algorithm}: {', '.join(sorted(own))}" for algorithm, own in known.items())
            raise InvalidValueError(
                f"--grid {name}=...: no algorithm here has a hyper-parameter '{name}'."
                f"{did_you_mean(name, every)} {listed}."
            )
    searched: dict[str, dict[Values, Run]] = {}
    for name in plan.algorithms:
        searched[name] = {
            values: plan.run(name, seed, values, _searched(folder, name, values), searching=True)
            for values in grid_points(grid, known[name])
        }
    runs = [run for points in searched.values() for run in points.values()]
    _carry_out(runs, console, jobs, axes)
    chosen = best_points(searched, goal)
    (folder / "grid.md").write_text(grid_table(searched, chosen, goal) + "\n", encoding="utf-8")
    if not chosen:
        raise InvalidValueError(f"--grid: every run diverged, see {folder / 'grid.md'}. Add smaller step sizes.")
    for name in searched:
        console.print(f"{name}: {label(chosen[name]) if name in chosen else 'every run diverged'}", markup=False)
    if warned := [run for run in runs if run.warnings]:
        told = f"{len(warned)} of {len(runs)} runs of the grid warned: {folder / 'grid.md'} says which, and"
        console.print(f"{told} {warned[0].warnings_file} what.", markup=False, soft_wrap=True)
    return chosen


def _searched(folder: Path, name: str, values: Values, seed: int | None = None) -> Path:
    """Return the search folder of a grid point, or of the point's run with one seed."""
    point = folder / "grid" / file_name(name, *values)
    return point if seed is None else point / f"seed-{seed}"


def _carry_out(runs: Sequence[Run], console: Console, jobs: int, axes: Sequence[str]) -> list[Namespace]:
    """Execute the runs that are not finished, and return the loggers of the first one."""
    prepared = [prepare(run) for run in runs]
    _require_a_process_a_run(prepared, jobs)
    if VIRTUAL in axes:
        _require_clocks(prepared)
    todo = [(each.run, each.rounds) for each in prepared if not each.is_finished]
    if len(todo) < len(runs):
        console.print(f"{len(runs) - len(todo)} of {len(runs)} runs are already finished.")
    if todo:
        for each in prepared:
            if not each.is_finished:
                open_groups(each.loggers)
        with _progress(console) as progress, deferred_interrupts(raising=jobs == 1) as presses:
            if jobs == 1:
                _one_after_the_other(todo, progress, presses)
            else:
                _side_by_side(todo, progress, presses, jobs)
            if presses():  # in the last round of the last run
                raise KeyboardInterrupt
    return prepared[0].loggers


def _require_a_process_a_run(prepared: Sequence[Prepared], jobs: int) -> None:
    """Refuse runs at a time that have several processes each, because these would find those of other runs."""
    several = next((each for each in prepared if each.processes > 1), None)
    if several is not None and jobs > 1:
        raise InvalidValueError(
            f"--jobs {jobs}: {several.run.name} has {several.processes} processes (trainer.devices), which the "
            "processes of other runs would be taken for. Give --jobs 1, or --set trainer.devices=1."
        )


def _require_clocks(prepared: Sequence[Prepared]) -> None:
    """Make sure that all runs take virtual time."""
    if without := sorted({each.run.name for each in prepared if not each.keeps_virtual_time}):
        raise InvalidValueError(
            f"--axes {VIRTUAL}: {', '.join(without)} has no virtual clock. Give every run one: "
            "data.participation=Timed for synchronous rounds, Asynchronous for FedBuff, with the same durations."
        )


def _warnings_of(run: Run) -> Iterator[str]:
    """Yield a line on what a finished run warned of; of many warnings, the first ones and their number."""
    found = run.warnings
    for message in found[:_SHOWN_WARNINGS]:
        yield f"{run}: {message}\n"
    if len(found) > _SHOWN_WARNINGS:
        yield f"{run}: {len(found) - _SHOWN_WARNINGS} more warnings, see {run.warnings_file}\n"


def _tell(run: Run, progress: Progress) -> None:
    """Print a line for a finished run, for terminals without a progress bar."""
    if not progress.console.is_terminal:
        last = final_value(run, Goal(run.metric))
        end = f"{run.metric}={last:.4g}" if math.isfinite(last) else "diverged"
        progress.console.print(f"{run}: {end}", markup=False, highlight=False, soft_wrap=True)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
    )


def _one_after_the_other(todo: Sequence[tuple[Run, int]], progress: Progress, presses: Callable[[], int]) -> None:
    bar = progress.add_task("", total=sum(rounds for _, rounds in todo))
    before = 0
    for number, (run, rounds) in enumerate(todo, start=1):
        progress.update(bar, description=f"{run.name}, seed {run.seed} ({number} of {len(todo)})")
        execute(
            run,
            lambda done, before=before: progress.update(bar, completed=before + done),  # type: ignore[misc]
            lambda: presses() > 0,
        )
        before += rounds
        _tell(run, progress)


def _side_by_side(todo: Sequence[tuple[Run, int]], progress: Progress, presses: Callable[[], int], jobs: int) -> None:
    """Execute runs in parallel; the first interrupt or error stops all before the next round, a second one at once."""
    context = multiprocessing.get_context("spawn")
    bar = progress.add_task(f"{len(todo)} runs, {jobs} at a time", total=sum(rounds for _, rounds in todo))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    done: Any = context.RawArray("q", len(todo))  # rounds of each run
    stop = context.Event()
    waiting = [(number, run) for number, (run, _) in enumerate(todo)]
    running: dict[Future[None], Run] = {}
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, context, initializer=_share, initargs=(done, stop, threads)) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:  # the pool would start what it has, even after an interrupt
                    number, run = waiting.pop(0)
                    with interrupts_held():
                        running[pool.submit(_execute_in_process, run, number)] = run
                finished, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                if presses():
                    raise KeyboardInterrupt
                for future in finished:
                    run = running.pop(future)
                    future.result()
                    _tell(run, progress)
                progress.update(bar, completed=sum(done))
        except BrokenProcessPool as error:
            raise UsageError(
                "A run's process was killed, perhaps for want of memory. The same command goes on; try fewer --jobs."
            ) from error
        except BaseException:
            stop.set()
            while presses() < 2 and wait(running, timeout=0.2).not_done:
                pass
            if presses() > 1:
                for process in multiprocessing.active_children():
                    if process not in others:
                        process.kill()  # checkpoints are whole at every moment
            raise


_shared: tuple[Any, Any]
"""In a process of :func:`_side_by_side`: the rounds of all runs, and whether to stop."""


def _share(done: Any, stop: Any, threads: int) -> None:
    global _shared
    _shared = done, stop
    set_threads(threads)
    Thread(target=_end_with_the_command, daemon=True).start()


def _end_with_the_command() -> None:
    """End this worker process as soon as the command itself has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _execute_in_process(run: Run, number: int) -> None:
    done, stop = _shared
    with plain_refusals(), writing_to({"--output": run.folder}):
        execute(run, partial(done.__setitem__, number), stop.is_set)
