"""Two processes share the clients of a cohort and end where one process ends."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import warnings

import pytest
import torch

from fedlightning.federation.files.checkpoint_io import read_checkpoint
from fedlightning.federation.processes import OneProcess
from tests.support.paths import ROOT
from tests.support.shared_fits import TASKS, fit_all
from tests.support.shared_runs import COUNT, RUNS
from tests.support.situations import SITUATIONS, batches_of
from tests.support.small import regression_data
from tests.support.values_files import numbers, rows


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """The folder in which two processes left what came of all fits and runs: started once, as they take seconds."""
    folder = tmp_path_factory.mktemp("of_two")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.shared_fits", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same of this process, without the runs."""
    folder = tmp_path_factory.mktemp("alone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_all(1, folder)
    return folder


@pytest.mark.slow
def test_two_processes_are_one(alone, of_two):
    for name in TASKS:
        assert_same(*(read_checkpoint(path / f"{name}.ckpt")["federation"] for path in (alone, of_two)))
    one, *shared = [torch.load(path) for path in (alone / "left-0.pt", of_two / "left-0.pt", of_two / "left-1.pt")]
    for each in shared:  # every process knows what the clients of the other came to
        for name in ("val_loss", "val_accuracy", "val_error", "val_area"):
            found, expected = each["evaluated"][name], one["evaluated"][name]
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
            assert len(expected.unique()) > 1, "clients that are all alike would tell nothing"
        torch.testing.assert_close(each["pooled"], one["pooled"], rtol=1e-6, atol=1e-6)
        assert each["agreed"] == one["agreed"]
        assert each["alone"].startswith(
            "This is one of 2 processes, which an earlier fit has started. Trainer(devices=1)"
        )
    assert len(one["pooled"]) == 5
    assert one["pooled"]["val_count"] == 23
    assert one["agreed"]["init_args"]["chunk_size"] == 3
    assert one["oracles"] == ["Vectorized"] * 7
    first, second = (each["oracles"] for each in shared)
    assert second == ["Vectorized"] * 2 + ["Sequential"] * 5
    assert first == ["Vectorized"] * 3 + ["Sequential"] * 4  # it follows before the next round


@pytest.mark.slow
def test_processes_end_without_a_group(of_two):
    """Gloo may abort a process that ends otherwise."""
    assert [torch.load(of_two / f"connected-{rank}.pt") for rank in range(COUNT)] == [False] * COUNT


@pytest.mark.slow
def test_runs_shared_by_two_processes_are_those_of_one(of_two):
    shared = [torch.load(of_two / f"runs-{rank}.pt", weights_only=False) for rank in range(COUNT)]
    different = {}
    for name, run in RUNS.items():
        try:
            assert_shared(run(OneProcess()), [results[name] for results in shared])
        except AssertionError as error:
            different[name] = str(error).strip().splitlines()[0]
    assert not different
    assert_as_called(shared[1])


@pytest.mark.slow
def test_the_first_of_two_processes_writes_the_values_of_all(alone, of_two):
    one, shared = (rows(folder / "clients.csv") for folder in (alone, of_two))
    assert set(one) == {(n, "train") for n in range(1, 5)} | {(2, "val"), (4, "val")}
    assert set(shared) == set(one)
    for key, part in one.items():
        assert len(part) == 4
        for mine, theirs in zip(part, shared[key], strict=True):
            assert numbers(theirs) == pytest.approx(numbers(mine), rel=1e-6)
    logged = [logged_percentiles(folder / "metrics.csv") for folder in (alone, of_two)]
    assert len(logged[0]) == 4
    assert logged[1] == pytest.approx(logged[0], rel=1e-6)  # of the duals of all clients


def logged_percentiles(path):
    with path.open(newline="") as file:
        return [float(row["dual_norm_p90"]) for row in csv.DictReader(file) if row["dual_norm_p90"]]


def test_one_of_two_processes_begins_without_clients():
    for parity, situation in ((1, "odd"), (0, "even")):
        make, data_options, _ = SITUATIONS[f"architectures, averaged buffers, {situation} clients first"]
        first = batches_of(regression_data(**data_options), make(), rounds=1)[0]
        assert {member.id % COUNT for member in first.cohorts[0].members} == {parity}


def assert_shared(alone, parts):
    """Every process has the server, and logs what the whole cohort came to; client states lie in one of them."""
    for part in parts:
        close(part["points"], alone["points"])
        assert (part["rejected"], part["undone"]) == (alone["rejected"], alone["undone"])
        assert [logged.keys() for logged in part["metrics"]] == [logged.keys() for logged in alone["metrics"]]
        for logged, expected in zip(part["metrics"], alone["metrics"], strict=True):
            for metric, value in expected.items():
                close(logged[metric], value)
        close(part["state"]["buffers"]["values"], alone["state"]["buffers"]["values"])
    others = [part["state"]["clients"] for part in parts[1:]]
    assert_same(alone["state"], {**parts[0]["state"], "other_clients": others})


def assert_as_called(results):
    """Rounds were rejected where they should have been, and nowhere else."""
    failing = {name.removeprefix("failing: "): run for name, run in results.items() if name.startswith("failing: ")}
    assert [number for number, _ in failing["everyone"]["rejected"]] == [0, 1]
    assert failing["an overflow in the second process"]["undone"] == [True, True]
    for name, run in failing.items():
        start, *rest = run["points"]
        kept = name in ("everyone", "an overflow in the second process")
        assert all(torch.equal(point, start) == kept for point in rest)


def close(one, two):
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def assert_same(one, two):
    for field, value in one["server"].items():
        if isinstance(value, torch.Tensor):
            close(two["server"][field], value)
    everyone, shares = tables_of(one), tables_of(two)
    assert everyone.keys() == shares.keys()
    for architecture, [table] in everyone.items():
        assert_same_rows(table, joined(shares[architecture]))
    assert (one["upload"], one["download"]) == (two["upload"], two["download"])


def tables_of(state):
    """The states of each architecture's clients, a table a process."""
    tables = {}
    for part in (state["clients"], *state.get("other_clients", ())):
        for architecture, table in part.get("architectures", {"": part}).items():
            tables.setdefault(architecture, []).append(table)
    return tables


def joined(tables):
    """The tables of several processes as one; a client is in one of them only, and a process may have seen none."""
    ids = torch.cat([table["ids"] for table in tables])
    assert len(ids.unique()) == len(ids)
    filled = [table["rows"] for table in tables if len(table["ids"])]
    fields = {name for rows in filled for name in rows}
    return {"ids": ids, "rows": {name: torch.cat([rows[name] for rows in filled]) for name in fields}}


def assert_same_rows(one, two):
    order = [torch.argsort(state["ids"]) for state in (one, two)]
    assert torch.equal(one["ids"][order[0]], two["ids"][order[1]])
    for field in one["rows"]:
        rows = [state["rows"][field][o] for state, o in zip((one, two), order, strict=True)]
        close(*rows)
