"""Which errors end with a sentence, and which keep their traceback."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch

from fedlightning.cli import main, plain_refusals
from fedlightning.cli.errors import raised_in
from fedlightning.oracle import ObjectiveError
from tests.support.paths import CONFIGS

CLASSIFICATION = CONFIGS / "classification"
FIT = [
    "fit",
    f"--config={CLASSIFICATION}/base.yaml",
    f"--config={CLASSIFICATION}/fed_avg.yaml",
    "--trainer.max_steps=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]
NETWORK = "--model.init_args.network"
NO_SANITY_CHECK = "--trainer.num_sanity_val_steps=0"

TASKS = """
import torch
from fedlightning.tasks import Classification

class Item(Classification):
    def objective(self, batch):
        return batch[0].sum().item() * super().objective(batch)

class Key(Classification):
    def objective(self, batch):
        raise KeyError("mine")

class Product(Classification):
    def objective(self, batch):
        return torch.ones(3) @ torch.ones(4)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedlightning"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "faulty_tasks", raising=False)
    Path("faulty_tasks.py").write_text(TASKS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([f"{NETWORK}.init_args.in_features=10"],
         "Classification.validation_step: mat1 and mat2 shapes cannot be multiplied (256x64 and 10x10) in network.1 = "
         "Linear(in_features=10, out_features=10, bias=True). The batch has shapes [256, 1, 8, 8], [256]. Choose a "
         "network that fits the data"),
        ([f"{NETWORK}.init_args.in_features=10", NO_SANITY_CHECK],
         "Classification.objective failed for client 0: RuntimeError: mat1 and mat2 shapes cannot be multiplied "
         "(10x64 and 10x10) in network.1 = Linear(in_features=10"),
        ([f"{NETWORK}.init_args.in_features=10", NO_SANITY_CHECK, "--model.init_args.oracle=null"],
         "The batch has shapes [10, 1, 8, 8], [10]."),
        ([f"{NETWORK}=fedlightning.models.LeNet5"], "Kernel size can't be greater than actual input size in network."),
        ([f"{NETWORK}=fedlightning.models.LogisticRegression", f"{NETWORK}.init_args.in_features=64",
          f"{NETWORK}.init_args.classes=3"], "The batch has shapes [256, 1, 8, 8], [256]. Choose a network that fits"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_the_data_takes_a_line(arguments, said):
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, *arguments])
    text = str(exit_.value)
    assert text.startswith("fedlightning: ")
    assert said in text
    assert len(text.splitlines()) == 1
    assert "FEDLIGHTNING_DEBUG=1" in text


def test_no_devices_take_a_line(capsys):
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, "--trainer.devices=-1"])
    assert exit_.value.code == 2
    assert "fedlightning: `devices` selected with `CPUAccelerator` should be an int > 0." in (
        said := capsys.readouterr().err
    )
    assert said.splitlines()[-1].endswith("Give --trainer.devices=auto or 1.")


def test_the_command_shows_what_a_short_fit_came_to(caplog):
    with caplog.at_level(logging.INFO):
        main([*FIT, "--trainer.log_every_n_steps=50", "--trainer.val_check_interval=1"])
    (line,) = [line for line in caplog.messages if line.startswith("After round 1: ")]
    assert "train_loss=" in line
    assert "val_accuracy=" in line
    assert "upload" not in line


def test_values_of_a_run_are_given_to_a_comparison_by_set(capsys):
    for argument in ("--trainer.max_steps=3", "--model.init_args.classes=3"):
        with pytest.raises(SystemExit):
            main(["compare", "--base=a", "--algorithms=b", "--metric=c", argument])
        said = capsys.readouterr().err
        assert f"{argument}: no such argument. Values of all runs are given as --set {argument[2:]}." in said


def test_what_is_not_found_names_the_folder_looked_in(tmp_path, capsys):
    data = ["--data=fedlightning.data.MNIST", "--data.init_args.root=nowhere", "--data.init_args.partitioner=null"]
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, *data])
    assert f"Looked in {tmp_path / 'nowhere'}." in str(exit_.value)
    with pytest.raises(SystemExit):
        main([*FIT, "--model=my_missing_package.MyTask"])
    assert f"installed or in the current folder, {tmp_path}." in capsys.readouterr().err


def test_an_objective_that_cannot_be_batched_trains_with_a_line(caplog):
    with caplog.at_level(logging.INFO):
        main([*FIT, NO_SANITY_CHECK, "--model=faulty_tasks.Item"])
    (line,) = [line for line in caplog.messages if "cannot run for all clients at once" in line]
    assert line.startswith("oracle: took Sequential: with Vectorized")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("Key", "Key.objective failed for client 0: KeyError: 'mine'\nIn objective ("),
        ("Product", "Product.objective failed for client 0: RuntimeError: inconsistent tensor size"),
    ],
)
def test_faults_of_the_user_s_own_objective_name_client_and_line(task, said):
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, NO_SANITY_CHECK, f"--model=faulty_tasks.{task}"])
    text = str(exit_.value)
    assert text.startswith(f"fedlightning: {said}")
    assert "faulty_tasks.py, line 1" in text
    assert "FEDLIGHTNING_DEBUG=1 shows the whole traceback." in text


def test_the_environment_brings_tracebacks_back(monkeypatch):
    monkeypatch.setenv("FEDLIGHTNING_DEBUG", "1")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        main([*FIT, f"{NETWORK}.init_args.in_features=10"])


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("raise ValueError(\n    'ours'\n)", True),
        ("assert False", True),
        ("int('x')", False),
        ("[][1]", False),
        ("import json; json.loads('x')", False),
    ],
)
def test_whose_raise_it_is_needs_no_source(code, ours):
    with pytest.raises(Exception) as error:  # noqa: PT011
        exec(compile(code, "<no such file>", "exec"), {"__name__": "fedlightning.somewhere"})
    assert raised_in(error.value, "fedlightning") is ours


def product():
    return torch.ones(3) @ torch.ones(4)


REFUSES = """
try:
    product()
except RuntimeError as error:
    raise ObjectiveError("T.objective failed for client 3.") from error
"""


def test_the_cause_of_an_objective_error_names_its_line():
    package = {"__name__": "fedlightning.somewhere", "ObjectiveError": ObjectiveError, "product": product}
    with pytest.raises(SystemExit) as exit_, plain_refusals():
        exec(REFUSES, package)
    assert str(exit_.value).startswith("fedlightning: T.objective failed for client 3.\nIn product (")
    assert "): return torch.ones(3) @ torch.ones(4)\n" in str(exit_.value)
