"""Freed memory is given back in all ends of a fit."""

from __future__ import annotations

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import _TunerExitException as EndsATuning

from fedlightning import federate
from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.oracle import Auto, Sequential, Vectorized
from fedlightning.oracle.checks.comparison import Comparison
from fedlightning.tasks.fit.kept_memory import KeptMemory
from tests.support.lit import Lit, made
from tests.support.small import Line, regression_data, trainer


@pytest.fixture
def memory(monkeypatch):
    """What was asked of the allocator, in order."""
    asked = []
    monkeypatch.setattr("fedlightning.tasks.fit.kept_memory.keep_freed_memory", lambda: asked.append("keep"))
    monkeypatch.setattr("fedlightning.tasks.fit.kept_memory.give_back_freed_memory", lambda: asked.append("give back"))
    return asked


@pytest.fixture
def trims(memory, monkeypatch):
    """What was asked of the allocator, with what checks and trials of oracles ask."""
    for module in ("federation.clients.oracle_selection", "oracle.tuning"):
        monkeypatch.setattr(f"fedlightning.{module}.give_back_what_is_free", lambda: memory.append("trim"))
    return memory


@pytest.mark.parametrize(("oracle", "times"), [(Sequential(), 0), (Vectorized(), 1)], ids=["sequential", "vectorized"])
def test_what_a_check_took_is_given_back_once(trims, oracle, times):
    trainer(max_steps=3).fit(Line(oracle=oracle), regression_data())
    assert trims == ["keep", *["trim"] * times, "give back"]


def test_every_comparison_of_a_check_begins_without_what_the_others_took(monkeypatch):
    seen = []

    def begins(self, *args, plain=Comparison.__init__):
        seen.append("comparison")
        plain(self, *args)

    def compares(self, *args, plain=Comparison.difference):
        seen.append("comparison")
        return plain(self, *args)

    monkeypatch.setattr("fedlightning.oracle.checks.comparison.give_back_what_is_free", lambda: seen.append("trim"))
    monkeypatch.setattr(Comparison, "__init__", begins)
    monkeypatch.setattr(Comparison, "difference", compares)
    trainer(max_steps=1).fit(Line(oracle=Vectorized()), regression_data())
    places = [place for place, each in enumerate(seen) if each == "comparison"]
    assert len(places) >= 4  # in single and in double precision, plain and batched
    assert all(seen[place + 1] == "trim" for place in places)


def test_every_trial_begins_without_what_the_others_took(trims, monkeypatch):
    def seconds(self, oracle, *rest):
        assert trims[-1] == "trim"
        trims.append("trial")
        return measured(self, oracle, *rest)

    measured = Auto.seconds
    monkeypatch.setattr(Auto, "seconds", seconds)
    trainer(max_steps=3).fit(Line(oracle=Auto()), regression_data())
    trials = trims.count("trial")
    assert trials > 1
    assert trims == ["keep", *["trim", "trial"] * trials, "trim", "give back"]


class OwnEnd(Line):
    def on_fit_end(self):
        pass

    def configure_callbacks(self):
        return []

    def teardown(self, stage):
        pass


@pytest.mark.parametrize("task", [Line, OwnEnd])
def test_it_is_given_back_after_every_fit_and_by_no_other_run(memory, task):
    fit = trainer(max_steps=2)
    model = task()
    for _ in range(2):
        fit.fit(model, regression_data())
        fit.validate(model, regression_data(), verbose=False)
    assert memory == ["keep", "give back"] * 2
    assert len([each for each in fit.callbacks if isinstance(each, KeptMemory)]) == 1


class Ends(Callback):
    def __init__(self, error):
        self.error = error

    def on_train_batch_end(self, *args):
        raise self.error


@pytest.mark.parametrize(
    ("error", "seen"),
    [(RuntimeError("stop"), RuntimeError), (KeyboardInterrupt(), SystemExit), (EndsATuning(), None)],
    ids=["failure", "interrupt", "tuning"],
)
def test_it_is_given_back_however_a_fit_ends(memory, error, seen):
    fit = trainer(max_steps=2, callbacks=[Ends(error)])
    if seen is None:
        fit.fit(Line(), regression_data())
    else:
        with pytest.raises(seen):
            fit.fit(Line(), regression_data())
    assert memory == ["keep", "give back"]


def test_it_is_given_back_when_a_fit_is_refused_after_all(memory, monkeypatch):
    monkeypatch.setattr(Line, "on_train_start", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer(max_steps=1).fit(Line(FedMM(0.05)), regression_data())
    assert memory == ["keep", "give back"]


def test_a_module_may_have_hooks_at_the_end(memory):
    hooks = {name: lambda self, **_: memory.append("hook") for name in ("on_fit_end", "teardown")}
    module = made(type("Hooked", (Lit,), hooks))
    trainer(max_steps=1).fit(federate(module, FedAvg), regression_data())
    assert sorted(memory) == ["give back", "hook", "hook", "keep"]
