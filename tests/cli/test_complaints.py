"""What is said of misspelt names: the likeliest that was meant, or all there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedlightning import algorithms
from fedlightning.cli.complaints import no_argument, no_class, no_name, no_option, own_classes


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("trainer.max_stpes", "trainer.max_steps"),
        ("trianer.max_steps", "trainer.max_steps"),
        ("trainr.max_stpes", "trainer.max_steps"),
        ("trainr.zygote", "trainer"),
        ("modl.algorithm.lr", "model.algorithm.lr"),
        ("sede_everything", "seed_everything"),
    ],
)
def test_of_an_option_the_part_that_is_wrong_is_put_right(name, meant):
    said = no_option(f"--{name}=3", name, ["trainer.max_steps", "trainer.devices", "model", "seed_everything"])
    assert said == f"--{name}=3: no such argument. Did you mean '{meant}'?"


@pytest.mark.parametrize("name", ["job", "zygote.lr"])
def test_where_no_option_is_like_it_all_beginnings_are_listed(name):
    said = no_option(f"--{name}=2", name, ["trainer.max_steps", "trainer.devices", "model", "help"])
    assert said == f"--{name}=2: no such argument. Arguments begin with model, trainer."


def test_of_a_class_its_arguments_are_listed():
    assert no_argument("model.eta=1", "FedMM", "eta.x", ["lr", "eta3"]) == (
        "model.eta=1: FedMM has no argument 'eta.x'. Did you mean 'eta3'? It takes lr, eta3."
    )
    assert no_argument("a.x=1", "Plain", "x", []) == "a.x=1: Plain has no argument 'x'."


def test_a_class_that_is_missing_is_sought_in_its_module_then_in_the_package():
    assert no_name("model", "fedlightning.models", "LeNet", ["LeNet5", "MLP"]) == (
        "model=fedlightning.models.LeNet: fedlightning.models has no 'LeNet'. Did you mean 'LeNet5'?"
    )
    assert no_class("a", "FedAvgg").endswith("no such class. Did you mean 'fedlightning.algorithms.FedAvg'?")
    assert no_class("a", "Scafold").endswith("Did you mean 'fedlightning.algorithms.SCAFFOLD'?")
    assert no_class("a", "Zygote").endswith(f"installed or in the current folder, {Path.cwd()}.")


def test_a_module_that_is_missing_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_own_lines.py").write_text("class Line: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    here = f"is installed or in the current folder, {tmp_path}."
    for given, missing in (("nowhere.Zygote", "nowhere"), ("nowhere.at.all.Zygote", "nowhere")):
        assert no_class("model", given) == (
            f"model={given}: no module '{missing}' {here} Start the command in the folder that holds it, or install it."
        )
    for given, missing, meant in (
        ("my_own_line.Line", "my_own_line", "my_own_lines.Line"),
        ("fedlightning.algoritms.FedAvg", "fedlightning.algoritms", "fedlightning.algorithms.FedAvg"),
    ):
        assert no_class("a", given) == f"a={given}: no module '{missing}' {here} Did you mean '{meant}'?"


def test_the_package_s_own_classes_are_found_by_name():
    paths = own_classes()
    exported = {name for name, value in vars(algorithms).items() if isinstance(value, type) and name == value.__name__}
    assert exported <= set(paths)
    assert paths["FedAvg"] == "fedlightning.algorithms.FedAvg"
    assert (paths["Clip"], paths["PLD"]) == ("fedlightning.channel.Clip", "fedlightning.channel.privacy.PLD")
