"""Entries of ``--algorithms``: names, paths, values of their own."""

from __future__ import annotations

import pytest

from fedlightning.compare.plan import Algorithm, Plan, algorithm_arguments, parse_algorithms
from fedlightning.compare.run import prepare
from tests.support.paths import CONFIGS

SADDLE = CONFIGS / "quadratic_saddle"
BASE = [str(SADDLE / "base.yaml")]
FED_AVG = str(SADDLE / "fed_avg.yaml")
SPLITTING = str(CONFIGS / "synthetic" / "fed_pd.yaml")
INIT_ARGS = "model.init_args.algorithm.init_args"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("a/fed_avg.yaml", Algorithm("fed_avg", "a/fed_avg.yaml")),
        ("FedAvg=a/fed_avg.yaml", Algorithm("FedAvg", "a/fed_avg.yaml")),
        ("a folder/b.yaml", Algorithm("b", "a folder/b.yaml")),
        ("A=a folder/b.conf", Algorithm("A", "a folder/b.conf")),
        ("M = 20=b.yml lr=0.1", Algorithm("M = 20", "b.yml", ("lr=0.1",))),
        ("p 0.5=b.yaml  lr=[0.1, 0.2]  x.y=1", Algorithm("p 0.5", "b.yaml", ("lr=[0.1, 0.2]", "x.y=1"))),
        ("b.yaml s={a: 1, b: {c: 2}}", Algorithm("b", "b.yaml", ("s={a: 1, b: {c: 2}}",))),
        ("A=b.yaml path=c.yaml d=e=f", Algorithm("A", "b.yaml", ("path=c.yaml", "d=e=f"))),
    ],
)
def test_an_entry_is_a_name_a_path_and_values(entry, expected):
    assert Algorithm.parse(entry) == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("A=b.yaml lr", r"--algorithms A=b\.yaml lr: expected name=value after the path, got 'lr'\."),
        ("A=b.yaml lr=", r"expected name=value after the path, got 'lr='\."),
        ("A=b.yaml lr=[0.1, 0.2", r"--algorithms A=b\.yaml lr=\[0\.1, 0\.2: a bracket is not closed\."),
        ("A=b.yaml lr=1 mu=2 lr=3", r"--algorithms .*: 'lr' is given twice\."),
    ],
)
def test_what_follows_a_path_is_checked(entry, message):
    with pytest.raises(ValueError, match=message):
        Algorithm.parse(entry)


def test_two_algorithms_of_one_file_need_names():
    with pytest.raises(ValueError, match=r"Two algorithms are called 'b'\. Name them: --algorithms A=path B=path\."):
        parse_algorithms(["b.yaml lr=0.1", "b.yaml lr=0.2"])


def test_names_stand_for_hyper_parameters_of_the_algorithm_or_its_solver():
    entries = [f"A={FED_AVG} lr=[0.1,0.2] data.init_args.local_steps=3", f"B={SPLITTING} lr=0.5 eta=2", f"C={FED_AVG}"]
    configs = {
        name: (f"--config={BASE[0]}", f"--config={file}")
        for name, file in zip("ABC", (FED_AVG, SPLITTING, FED_AVG), strict=True)
    }
    assert algorithm_arguments(BASE, parse_algorithms(entries)) == {
        "A": (*configs["A"], f"--{INIT_ARGS}.lr=[0.1,0.2]", "--data.init_args.local_steps=3"),
        "B": (*configs["B"], f"--{INIT_ARGS}.solver.init_args.lr=0.5", f"--{INIT_ARGS}.eta=2"),
        "C": configs["C"],
    }


def test_an_unknown_name_is_told_with_those_there_are():
    expected = r"FedAvg=.*fed_avg\.yaml lrr=1: it has no hyper-parameter 'lrr'\. Did you mean 'lr'\? Known: .*, lr\.$"
    with pytest.raises(ValueError, match=expected):
        algorithm_arguments(BASE, parse_algorithms([f"FedAvg={FED_AVG} lrr=1"]))


def test_a_missing_config_is_named():
    with pytest.raises(ValueError, match=r"No such config: missing\.yaml\."):
        algorithm_arguments(BASE, parse_algorithms(["A=missing.yaml lr=1"]))


def test_a_value_of_all_runs_wins_over_an_algorithms_own(tmp_path):
    overrides = ("--trainer.max_steps=7", f"--{INIT_ARGS}.lr=0.3")
    entry = f"A={FED_AVG} lr=0.1 trainer.max_steps=5"
    own = Plan(algorithm_arguments(BASE, parse_algorithms([entry])))
    both = Plan(algorithm_arguments(BASE, parse_algorithms([entry]), overrides), overrides)
    assert own.run("A", 0, (), tmp_path).arguments[-1] == "--trainer.max_steps=5"
    for plan, rounds in ((own, 5), (both, 7)):
        prepared = prepare(plan.run("A", 0, (), tmp_path))
        assert (prepared.rounds, prepared.is_finished) == (rounds, False)
    searched = both.run("A", 0, (f"{INIT_ARGS}.lr=0.2",), tmp_path)
    assert searched.arguments[-3:] == (*overrides, f"--{INIT_ARGS}.lr=0.2")
