"""The commands that relate noise and budgets, as a user calls them."""

from __future__ import annotations

import pytest

from fedlightning.channel.privacy import PLD, RDP, FixedSizeSampling, PoissonSampling
from fedlightning.cli import main
from tests.support.accounts import needs_dp_accounting

pytestmark = needs_dp_accounting

RUN = ["--delta=1e-5", "--rounds=100", "--clients=1000"]


def answer(capsys, *args):
    main(["privacy", *args])
    return {line[:10].strip(): line[11:] for line in capsys.readouterr().out.splitlines()}


def refusal(capsys, *args):
    with pytest.raises(SystemExit) as ended:
        main(["privacy", *args])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_noise_for_a_budget(capsys):
    found = answer(capsys, "noise", "--epsilon=2", *RUN, "--rate=0.1")
    assert found["multiplier"] == "2.43"
    epsilon = RDP().epsilon(PoissonSampling(1000, 0.1), {2.43: 100}, 1e-5)
    assert float(found["epsilon"]) == pytest.approx(epsilon, rel=1e-3)
    assert epsilon <= 2.0
    assert found["noise"].startswith("0.0243 clip norms")
    assert "nothing in their place" in found["hidden"]


def test_phases_are_releases(capsys):
    found = answer(capsys, "spent", "--multiplier=3", *RUN, "--rate=0.1", "--phases=2", "--accountant=PLD")
    assert found["releases"] == "200"
    expected = PLD().epsilon(PoissonSampling(1000, 0.1), {3.0: 200}, 1e-5)
    assert float(found["epsilon"]) == pytest.approx(expected, rel=1e-3)


def test_cohorts_of_a_fixed_size(capsys):
    found = answer(capsys, "spent", "--multiplier=3", *RUN, "--size=50")
    expected = RDP().epsilon(FixedSizeSampling(1000, 50), {3.0: 100}, 1e-5)
    assert float(found["epsilon"]) == pytest.approx(expected, rel=1e-3)
    assert "any others in their place" in found["hidden"]


def test_everybody_in_every_round(capsys):
    assert "zeros in their place" in answer(capsys, "spent", "--multiplier=30", *RUN)["hidden"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["spent", "--multiplier=3", *RUN, "--size=50", "--rate=0.1"], "Give one of them"),
        (["spent", "--multiplier=0", *RUN], "--multiplier=0.0: expected a number above 0"),
        (["noise", "--epsilon=0", *RUN], "--epsilon=0.0: expected a number above 0"),
        (["noise", "--epsilon=1", "--delta=2", "--rounds=1", "--clients=2"], "--delta=2.0: expected a number between"),
        (["noise", "--epsilon=1", "--delta=0.1", "--rounds=0", "--clients=2"], "--rounds=0: expected a whole number"),
        (["spent", "--multiplier=3", *RUN, "--size=2000"], "larger than the federation of 1000 clients"),
        (["spent", "--multiplier=3", *RUN, "--size=50", "--accountant=PLD"], "no bounds are known"),
        (["spent", "--multiplier=3", *RUN, "--rate=2"], r"Poisson(rate=2.0)"),
        (["nois"], "Did you mean 'noise'?"),
        (["noise", "--epsilom=1"], "Did you mean 'epsilon'?"),
    ],
)
def test_mistakes_take_a_line(capsys, args, message):
    said = refusal(capsys, *args)
    assert message in said
    assert said.startswith("fedlightning: ")


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["privacy", "--help"])
    assert ended.value.code == 0
    assert "noise" in capsys.readouterr().out
