"""Several local steps in one compiled function end where single steps end."""

from __future__ import annotations

import logging

import pytest
import torch

from fedlightning.algorithms import SCAFFOLD, Ditto, FedAvg, FedMM, FedProx
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.compiled import STEPS_TOGETHER
from fedlightning.schedules import Exponential
from tests.support.federations import train
from tests.support.small import Line, Normed, fitted, regression_data

ALGORITHMS = {
    "FedAvg": FedAvg(0.05),
    "FedProx": FedProx(0.05, mu=0.7),
    "SCAFFOLD": SCAFFOLD(0.05),
    "FedMM": FedMM(0.05, mu=1.0),
    "blocks": FedAvg([0.05, 0.02]),
}


@pytest.fixture
def uncompiled(monkeypatch):
    """Functions run as they are in place of seconds of compiling; their names are listed at every call."""
    calls = []

    def compile_nothing(function, **_):
        def listed(*arguments):
            calls.append(function.__name__)
            return function(*arguments)

        return listed

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return calls


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("steps", [STEPS_TOGETHER - 1, 2 * STEPS_TOGETHER, 2 * STEPS_TOGETHER + 2])
def test_steps_together_are_single_steps(name, steps, uncompiled):
    *_, ours = train(ALGORITHMS[name], 4, oracle=Vectorized(compile=True), local_steps=steps)
    *_, plain = train(ALGORITHMS[name], 4, oracle=Sequential(), local_steps=steps)
    torch.testing.assert_close(ours, plain, rtol=1e-11, atol=1e-11)
    together, single = (uncompiled.count(function) // 4 for function in ("_steps", "_gradient_batched"))
    assert together * STEPS_TOGETHER + single == steps
    assert bool(together) == (steps >= STEPS_TOGETHER)


@pytest.mark.parametrize("steps", [{"local_steps": STEPS_TOGETHER + 2}, {"local_epochs": 3}])
def test_buffers_and_losses_of_every_step_count(steps, uncompiled):
    """In the second case clients have unequally many steps; those that all have are taken together."""
    found = []
    for oracle in (Vectorized(compile=True), Sequential()):
        data = regression_data(**{"local_steps": None, **steps})
        torch.manual_seed(0)
        task = Normed(FedAvg(0.05), oracle=oracle)
        trainer = fitted(task, data, precision="64-true", max_steps=3)
        found.append((task.state_dict(), trainer.callback_metrics["train_loss"]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    assert "_steps" in uncompiled
    assert "_gradient_batched" in uncompiled


def test_first_steps_that_end_elsewhere_are_given_up_for_plain_ones(monkeypatch, caplog):
    def wrongly(function, **_):
        def moved(*arguments):
            results = function(*arguments)
            results[-1].g.sub_(1e-3)
            return results

        return moved if function.__name__ == "_steps" else function

    monkeypatch.setattr(torch, "compile", wrongly)
    found = []
    for oracle in (Vectorized(compile=True), Sequential()):
        torch.manual_seed(0)
        task = Line(FedAvg(0.05), dropout=0.0, oracle=oracle)
        with caplog.at_level(logging.INFO):
            fitted(task, regression_data(local_steps=STEPS_TOGETHER), precision="64-true")
        found.append(task.state_dict())
    assert "end elsewhere than the same steps uncompiled" in caplog.text
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_steps_of_every_kind_are_compared_with_uncompiled_ones(monkeypatch, caplog):
    """The steps of the clients' own models come second, in a direction of their own."""

    def wrongly(function, **_):
        def moved(*arguments):
            results = function(*arguments)
            if function.__name__ == "_steps" and any(cell.cell_contents for cell in arguments[6].__closure__[:1]):
                results[-1].g.sub_(1e-3)
            return results

        return moved

    monkeypatch.setattr(torch, "compile", wrongly)
    task = Line(Ditto(0.05, lam=0.5), dropout=0.0, oracle=Vectorized(compile=True))
    with caplog.at_level(logging.INFO):
        fitted(task, regression_data(local_steps=STEPS_TOGETHER), precision="64-true")
    assert "end elsewhere than the same steps uncompiled" in caplog.text


def test_steps_are_not_compiled_anew_where_other_numbers_than_step_sizes_vary(uncompiled):
    steps = {"oracle": Vectorized(compile=True), "local_steps": STEPS_TOGETHER}
    train(FedProx(Exponential(0.05, 0.9), mu=0.7), 2, **steps)
    assert "_steps" in uncompiled
    uncompiled.clear()
    *_, ours = train(FedProx(0.05, mu=Exponential(0.7, 0.9)), 2, **steps)
    assert "_steps" not in uncompiled
    *_, plain = train(FedProx(0.05, mu=Exponential(0.7, 0.9)), 2, oracle=Sequential(), local_steps=STEPS_TOGETHER)
    torch.testing.assert_close(ours, plain, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("compiler")
def test_compiled_for_all_rounds_at_once(monkeypatch):
    """One compilation serves all rounds and steps, chunks of one size, step sizes and control variates."""
    made = []
    whole = torch.compile

    def counted(function, **options):
        made.append(function.__name__)
        return whole(function, **options)

    monkeypatch.setattr(torch, "compile", counted)
    torch._dynamo.utils.counters.clear()
    _, loop, ours = train(SCAFFOLD(0.05), 4, oracle=Vectorized(compile=True), local_steps=2 * STEPS_TOGETHER)
    assert loop.oracle.compile
    assert made == ["_steps"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    *_, plain = train(SCAFFOLD(0.05), 4, oracle=Sequential(), local_steps=2 * STEPS_TOGETHER)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)
