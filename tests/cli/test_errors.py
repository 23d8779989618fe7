"""Which errors end with a sentence, and which keep their traceback."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
import torch

from fedlightning.cli import main, plain_refusals
from fedlightning.cli.errors import comes_from
from fedlightning.core.parameter_space import Layout
from fedlightning.oracle import ObjectiveError
from tests.support.commands import ALGORITHM, SMALL, of
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

class Seen(Classification):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("seen_at", float(self.trainer.global_step))
"""


@pytest.fixture(autouse=True)
def _faulty_tasks(_elsewhere, monkeypatch):
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
         "Classification.objective failed for client 16: RuntimeError: mat1 and mat2 shapes cannot be multiplied "
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


@pytest.mark.parametrize("accelerator", ["gpu", "mps", "tpu"])
def test_an_accelerator_that_is_missing_is_answered_with_one_that_is_there(accelerator, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, f"--trainer.accelerator={accelerator}"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(" Give --trainer.accelerator=auto or cpu.")


def test_the_command_shows_what_a_short_fit_came_to(caplog):
    with caplog.at_level(logging.INFO):
        main([*FIT, "--trainer.log_every_n_steps=50", "--trainer.val_check_interval=1"])
    (line,) = [line for line in caplog.messages if line.startswith("After round 1: ")]
    assert "train_loss=" in line
    assert "val_accuracy=" in line
    assert "upload" not in line


def test_the_command_tells_the_round_of_an_earlier_validation(caplog):
    with caplog.at_level(logging.INFO):
        main([*FIT, "--trainer.max_steps=3", "--trainer.val_check_interval=2"])
    (line,) = [line for line in caplog.messages if line.startswith("After round 3: ")]
    now, then = line.split("; of round 2: ")
    assert "train_loss=" in now
    assert "val_" not in now
    assert "val_accuracy=" in then


def test_names_of_a_validations_values_are_the_tasks_own(caplog):
    with caplog.at_level(logging.INFO):
        main([*FIT, "--model=faulty_tasks.Seen", "--trainer.max_steps=3", "--trainer.val_check_interval=2"])
    (line,) = [line for line in caplog.messages if line.startswith("After round 3: ")]
    now, then = line.split("; of round 2: ")
    assert "seen_at" not in now
    assert "seen_at=2" in then


@pytest.mark.parametrize("path", ["best", "last"])
def test_a_checkpoint_that_only_another_process_knew_is_refused(path, capsys):
    with pytest.raises(SystemExit):
        main([*FIT, f"--ckpt_path={path}"])
    assert f"--ckpt_path={path}: a new process knows of no {path} checkpoint. Name the file." in capsys.readouterr().err


def test_the_command_says_if_a_checkpoint_leaves_nothing_to_train(caplog):
    main([*FIT, "--trainer.log_every_n_steps=50"])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    with caplog.at_level(logging.INFO):
        main([*FIT, f"--ckpt_path={checkpoint}"])
    (line,) = [line for line in caplog.messages if line.startswith("Nothing was trained: ")]
    assert line.startswith(
        "Nothing was trained: the checkpoint is of round 1, and the fit ends before. Set --trainer.max"
    )


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
        ("Key", "Key.objective failed for client 16: KeyError: 'mine'\nIn objective ("),
        ("Product", "Product.objective failed for client 16: RuntimeError: inconsistent tensor size"),
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
        ("int('x')", True),
        ("import json; json.loads('x')", False),
    ],
)
def test_whose_error_it_is_needs_no_source(code, ours):
    with pytest.raises(Exception) as error:  # noqa: PT011
        exec(compile(code, "<no such file>", "exec"), {"__name__": "fedlightning.somewhere"})
    assert comes_from(error.value, "fedlightning") is ours


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


REGULARIZER = "--model.init_args.regularizer"
LASSO = "{class_path: fedlightning.proximal.GroupLasso, init_args: {weight: 0.01}}"


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("universal_perturbation", [f"{REGULARIZER}={{network.0.weight: {LASSO}}}"], "Did you mean 'network.1.weight'"),
        ("universal_perturbation", [f"{REGULARIZER}={{netwrk.1.weight: {LASSO}}}"], "Did you mean 'network.1.weight'"),
        ("universal_perturbation",
         [f"{REGULARIZER}=fedlightning.proximal.Nuclear", f"{REGULARIZER}.init_args.weight=1"],
         "Nuclear is a function of matrices, but parameter 'network.1.bias'"),
        ("classification", [f"{ALGORITHM}=fedlightning.algorithms.FeDualEx", f"{ALGORITHM}.init_args.lr=0.1",
          "--model.init_args.max_regularizer=fedlightning.proximal.L1",
          "--model.init_args.max_regularizer.init_args.weight=1"],
         "max_regularizer: the task has no parameters in this block"),
        ("quadratic_saddle", [f"{ALGORITHM}=fedlightning.algorithms.FedAvg", f"{ALGORITHM}.init_args.lr=1e200"],
         "clients of the cohort returned NaN or infinite"),
    ],
)  # fmt: skip
def test_what_shows_when_training_begins_ends_with_a_sentence(task, arguments, message):
    with pytest.raises(SystemExit, match=f"^fedlightning: .*{message}"):
        main(["fit", f"--config={CONFIGS / task / 'base.yaml'}", *_any_algorithm(task), *SMALL, *arguments])


def _any_algorithm(task):
    return [f"--config={CONFIGS / task / 'fe_dual_ex.yaml'}"] if task == "universal_perturbation" else []


def test_a_checkpoint_of_something_else_ends_with_a_sentence():
    main(["fit", *of("universal_perturbation", "fe_dual_ex"), *SMALL])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    again = [*SMALL, "--trainer.max_steps=3", f"--ckpt_path={checkpoint}"]
    with pytest.raises(SystemExit, match=r"^fedlightning: \S+last.ckpt was written by .*FeDualEx, this run uses"):
        main(["fit", *of("universal_perturbation", "fed_mip"), *again])
    with pytest.raises(SystemExit, match=r"^fedlightning: \S+last.ckpt: The checkpoint's server state has"):
        main(["fit", *of("universal_perturbation", "fe_dual_ex"), *again, f"{ALGORITHM}.init_args.output=ergodic"])


ADVISED = re.compile(r"--[\w.]+=[^\s)]+")


def test_advised_options_are_those_of_the_command_line(caplog):
    """A fit that is never validated, and labels beyond the outputs: the advice is taken as it is written."""
    with caplog.at_level(logging.INFO):
        main([*FIT, NO_SANITY_CHECK])
        (advice,) = [line for line in caplog.messages if "before its first validation" in line]
        assert ADVISED.findall(advice) == ["--trainer.val_check_interval=1", "--trainer.check_val_every_n_epoch=null"]
        caplog.clear()
        main([*FIT, NO_SANITY_CHECK, *ADVISED.findall(advice)])
        assert not [line for line in caplog.messages if "before its first validation" in line]
    few = ["--model.classes=3", "--model.network.classes=3"]
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, NO_SANITY_CHECK, *few])
    assert ADVISED.findall(str(exit_.value)) == ["--model.classes=10"]
    main([*FIT, NO_SANITY_CHECK, *few, "--model.classes=10", "--model.network.classes=10"])


def test_a_rejected_round_names_options():
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, NO_SANITY_CHECK, f"{ALGORITHM}.lr=1e200"])
    assert ADVISED.findall(str(exit_.value)) == ["--model.algorithm.lr=...", "--model.algorithm.local_clip=..."]
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, NO_SANITY_CHECK, "--trainer.gradient_clip_val=1"])
    assert ADVISED.findall(str(exit_.value)) == ["--model.algorithm.local_clip=...", "--model.server_clip=..."]


def test_advice_about_clipping_can_be_followed_with_every_algorithm():
    """FedDR's solver clips, SCAFFOLD does not; FedDR's server can neither."""
    for algorithm in ("fed_dr", "scaffold"):
        fit = ["fit", *of("synthetic", algorithm), *SMALL]
        with pytest.raises(SystemExit) as exit_:
            main([*fit, "--trainer.gradient_clip_val=1"])
        (advised,) = ADVISED.findall(str(exit_.value))
        main([*fit, advised.replace("...", "0.5")])
        assert advised == f"--model.{'algorithm.solver.clip' if algorithm == 'fed_dr' else 'server_clip'}=..."


MISSING = ["--data=fedlightning.data.MNIST", "--data.init_args.root=nowhere"]


def test_what_the_library_objects_to_ends_with_a_sentence():
    with pytest.raises(SystemExit, match=r"^fedlightning: Neither nowhere/MNIST/raw.*Point root at a folder"):
        main(["fit", *of("classification", "fed_avg"), *MISSING, *SMALL])


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_comparisons_end_with_a_sentence_too(jobs):
    base, algorithm = (str(CONFIGS / "classification" / f"{name}.yaml") for name in ("base", "fed_avg"))
    values = [argument.removeprefix("--") for argument in (*MISSING, *SMALL) if "=" in argument]
    with pytest.raises(SystemExit, match=r"^fedlightning: Neither nowhere/MNIST/raw"):
        main(
            ["compare", "--base", base, "--algorithms", algorithm, "--metric=val_accuracy",
             f"--jobs={jobs}", "--output=out", "--set", *values]
        )  # fmt: skip


def test_errors_of_other_code_keep_their_traceback():
    with pytest.raises(TypeError, match="not iterable"), plain_refusals():
        Layout(("a",), (None,), 0)  # a fault within the package is no refusal
    with pytest.raises(ValueError, match="invalid literal"), plain_refusals():
        int("one")
