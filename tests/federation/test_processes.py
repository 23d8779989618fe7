"""Two processes share the clients of a cohort and end where one process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch

from fedlightning.federation.checkpoint_io import read_checkpoint
from fedlightning.federation.processes import OneProcess
from tests.support.paths import ROOT
from tests.support.shared_runs import COUNT, RUNS
from tests.support.situations import SITUATIONS, batches_of
from tests.support.small import regression_data

NAMES = ("fedmm", "personal", "architectures", "fiaelt", "fed_pd", "fed_skip", "schedule", "uneven")
_SCRIPT = """
import atexit, fedlightning, sys, torch
from fedlightning import FederatedDataModule
from tests.support.small import Line, Normed, Personal, clients, regression_data, trainer
from fedlightning.algorithms import FIAELT, FedMM, FedPD, FedSkip, SCAFFOLD
from fedlightning.local import SVRG, LocalSteps
from fedlightning.models import PerArchitecture
from fedlightning.core.serialisation import to_config
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.schedules import Exponential
from fedlightning.federation.processes import DistributedProcesses, OneProcess
class Varied(Line):
    personal_parameters = ("own",)

    def __init__(self, algorithm):
        super().__init__(algorithm, dropout=0.0)
        parts = {"wide": torch.nn.Linear(6, 1), "none": torch.nn.Identity(), "bias": torch.nn.Linear(6, 1, False)}
        self.own = PerArchitecture(parts, ["wide", "bias", "none", "wide"])

    def objective(self, batch):
        x, y = batch
        return {"loss": super().objective(batch)["loss"] + (self.own(x)[:, 0] - y).square().mean()}

class Uneven(Line):  # in the third round the second process cannot compute its clients side by side
    def __init__(self):
        super().__init__(SCAFFOLD(0.05), dropout=0.0, oracle=Vectorized(chunk_size=4))
        self.oracles = []

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        fails = self.trainer.global_rank == 1 and self.trainer.global_step == 2
        return {"loss": loss * (2 if fails and loss.item() == 0 else 1)}

    def on_train_batch_end(self, *_):
        self.oracles.append(type(self.run.simulation.runner.oracle_selection.oracle).__name__)

class Evaluated(Normed):  # every client with batch statistics of its own
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

devices, folder = int(sys.argv[1]), sys.argv[2]
def at_exit():
    torch.save(torch.distributed.is_initialized(), f"{folder}/group-{fit.global_rank}-{devices}.pt")
atexit.register(at_exit)
tasks = {
    "fedmm": lambda: Line(FedMM(0.05, mu=1.0), dropout=0.0),
    "personal": lambda: Personal(SCAFFOLD(0.05)),
    "architectures": lambda: Varied(SCAFFOLD(0.05)),
    "fiaelt": lambda: Line(FIAELT(beta=5.0, solver=SVRG(inner_steps=6, epochs=2)), dropout=0.0),
    "fed_pd": lambda: Line(FedPD(eta=0.5, p=0.5, solver=LocalSteps(lr=0.05)), dropout=0.0),
    "fed_skip": lambda: Line(FedSkip(lr=0.05, period=3), dropout=0.0),
    "schedule": lambda: Line(
        FIAELT(beta=Exponential(5.0, 1.1), solver=SVRG(lr=Exponential(0.02, 0.9), inner_steps=6, epochs=2)), dropout=0.0
    ),
    "uneven": Uneven,
}
if __name__ == "__main__":
    for name, make in tasks.items():
        torch.manual_seed(0)
        fit = trainer(None, devices=devices, strategy="ddp" if devices > 1 else "auto", precision="64-true")
        task = make()
        fit.fit(task, regression_data(participation=Uniform(3)))
        fit.save_checkpoint(f"{folder}/{name}-{devices}.ckpt")
    torch.manual_seed(0)
    options = {"batch_size": 4, "rounds_per_epoch": 2, "seed": 1}
    data = FederatedDataModule.from_datasets(clients(5), val=clients(5, seed=7), **options)
    evaluated = Evaluated(buffers="local")
    options = {"devices": devices, "strategy": "ddp" if devices > 1 else "auto", "precision": "64-true"}
    trainer(None, max_steps=4, **options).fit(evaluated, data)
    torch.save(evaluated.client_metrics, f"{folder}/evaluated-{fit.global_rank}-{devices}.pt")
    processes = DistributedProcesses() if devices > 1 else OneProcess()
    torch.save(task.oracles, f"{folder}/oracles-{fit.global_rank}-{devices}.pt")
    choice = Sequential() if fit.global_rank else Vectorized(chunk_size=3)
    torch.save(to_config(processes.agree(choice)), f"{folder}/agreed-{fit.global_rank}-{devices}.pt")
"""


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for devices in (1, 2):
        command = [sys.executable, "-W", "ignore", str(script), str(devices), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
    for name in NAMES:
        states = [read_checkpoint(tmp_path / f"{name}-{n}.ckpt")["federation"] for n in (1, 2)]
        assert_same(*states)
    alone, *shared = [torch.load(tmp_path / f"evaluated-{rank}-{n}.pt") for rank, n in ((0, 1), (0, 2), (1, 2))]
    for each in shared:  # every process knows what the clients of the other came to
        torch.testing.assert_close(each["val_loss"], alone["val_loss"], rtol=1e-6, atol=1e-6)
    assert not any(torch.load(tmp_path / f"group-{rank}-2.pt") for rank in (0, 1)), "gloo may abort a process that ends"
    agreed = [torch.load(tmp_path / f"agreed-{rank}-{n}.pt") for rank, n in ((0, 1), (0, 2), (1, 2))]
    assert agreed[0] == agreed[1] == agreed[2]
    assert agreed[0]["init_args"]["chunk_size"] == 3
    alone, first, second = (torch.load(tmp_path / f"oracles-{rank}-{n}.pt") for rank, n in ((0, 1), (0, 2), (1, 2)))
    assert alone == ["Vectorized"] * 7
    assert second == ["Vectorized"] * 2 + ["Sequential"] * 5
    assert first == ["Vectorized"] * 3 + ["Sequential"] * 4  # it follows before the next round


@pytest.mark.slow
def test_runs_shared_by_two_processes_are_those_of_one(tmp_path):
    """One start of two processes for all runs: a test each would start them once in every worker of the suite."""
    shared = carried_out_by_two(tmp_path)
    different = {}
    for name, run in RUNS.items():
        try:
            assert_shared(run(OneProcess()), [results[name] for results in shared])
        except AssertionError as error:
            different[name] = str(error).strip().splitlines()[0]
    assert not different
    assert_as_called(shared[1])


def test_one_of_two_processes_begins_without_clients():
    for parity, situation in ((1, "odd"), (0, "even")):
        make, data_options, _ = SITUATIONS[f"architectures, averaged buffers, {situation} clients first"]
        first = batches_of(regression_data(**data_options), make(), rounds=1)[0]
        assert {member.id % COUNT for member in first.cohorts[0].members} == {parity}


def carried_out_by_two(folder):
    """What each of two processes made of all runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.shared_runs"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True, env=environment)
            )
            for rank in range(COUNT)
        ]
        try:
            said = [process.communicate(timeout=300)[1] for process in started]
        finally:
            for process in started:
                process.kill()  # those that still wait for one that has failed
    assert not any(process.returncode for process in started), "\n".join(text[-2000:] for text in said)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(COUNT)]


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
