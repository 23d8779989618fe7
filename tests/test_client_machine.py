"""A machine without the extras trains; what it cannot do is refused, or left out, with the extra's name."""

from __future__ import annotations

import csv

import pytest

from tests.support.paths import CONFIGS
from tests.support.without import COMMAND, EXTRAS, commands_without, without

pytestmark = pytest.mark.slow

TRAINING = """
import fedlightning
import lightning, torch
from torch.utils.data import TensorDataset
from fedlightning.algorithms import FedAvg
from fedlightning.models import LogisticRegression
from fedlightning.tasks import Classification

x = torch.randn(60, 4)
sets = [TensorDataset(part, (part.sum(1) > 0).long()) for part in x.split(20)]
data = fedlightning.FederatedDataModule.from_datasets(train=sets, batch_size=20)
trainer = lightning.Trainer(max_steps=3, accelerator="cpu", enable_progress_bar=False)
trainer.fit(Classification(FedAvg(lr=0.1), network=LogisticRegression(4, 2)), data)
print(trainer.global_step, type(trainer.logger).__name__)
print([name for name in {names!r} if name in sys.modules])
"""
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


def of(task, algorithm):
    return [f"--config={CONFIGS}/{task}/{name}.yaml" for name in ("base", algorithm)]


SADDLE = ["fit", *of("quadratic_saddle", "fed_mm"), *QUIET, "--trainer.max_steps=2"]


REFUSED = {
    "data": ["fit", *of("classification", "fed_avg"), *QUIET],
    "vision": [*SADDLE, "--data.class_path=fedlightning.data.CIFAR10", "--data.init_args.root=nowhere"],
    "tensorboard": [*SADDLE, "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger"],
    "plots": [
        "compare",
        f"--base={CONFIGS}/quadratic_saddle/base.yaml",
        f"--algorithms={CONFIGS}/quadratic_saddle/fed_mm.yaml",
        "--metric=distance",
    ],
}
"""Commands that need an extra."""
COMMANDS = {"train": SADDLE, "help": ["fit", "--help"], **REFUSED}

EXPRESSIONS = {
    "models.ResNet18()": "vision",
    "models.MobileNetV2Features()": "vision",
    "data.Digits(data.IID(2)).build()": "data",
    "plotting.image_grid(torch.zeros(4, 1, 2, 2))": "plots",
}
"""Python that needs an extra."""
PYTHON = """
from fedlightning import FedlightningError, data, models, plotting
for expression in {expressions!r}:
    try:
        eval(expression)
    except FedlightningError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The folder of a client's machine, and what Python and each command said there; one process, for its imports."""
    folder = tmp_path_factory.mktemp("machine")
    python = TRAINING.format(names=tuple(EXTRAS)) + PYTHON.format(expressions=[*EXPRESSIONS])
    said = commands_without(EXTRAS, [*COMMANDS.values()], first=python, folder=folder)
    return folder, dict(zip(["python", *COMMANDS], said, strict=True))


def test_python_trains_on_own_tensors_and_names_the_extra_in_errors(machine):
    _, said = machine
    done = said["python"]
    lines = done.stdout.splitlines()
    assert lines[-6:-4] == ["3 CSVLogger", "[]"], done.stderr
    assert "`logger=True` will use `CSVLogger`" in done.stderr  # Lightning's word of it
    for line, extra in zip(lines[-4:], EXPRESSIONS.values(), strict=True):
        assert line.endswith(f"Install it by pip install 'fedlightning[{extra}]'.")


def test_runs_of_the_command_are_logged_to_a_table(machine):
    folder, said = machine
    done = said["train"]
    assert done.returncode == 0, done.stderr
    assert "metrics go to runs/version_0/metrics.csv" in done.stderr.replace("\\", "/")
    assert "pip install 'fedlightning[tensorboard]'" in done.stderr
    with (folder / "runs/version_0/metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2"]


def test_help_lists_what_the_extras_would_give(machine):
    _, said = machine
    done = said["help"]
    assert done.returncode == 0, done.stderr
    assert "fedlightning.data.MNIST" in "".join(done.stdout.split())


@pytest.mark.parametrize("extra", REFUSED)
def test_errors_name_the_extra(extra, machine):
    _, said = machine
    done = said[extra]
    assert done.returncode in (1, 2)
    assert f"pip install 'fedlightning[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_comparisons_need_what_they_draw_with_alone(tmp_path):
    arguments = [
        "compare",
        f"--base={CONFIGS}/quadratic_saddle/base.yaml",
        f"--algorithms={CONFIGS}/quadratic_saddle/fed_mm.yaml",
        "--metric=distance",
        "--set=trainer.max_steps=10",
    ]
    done = without(set(EXTRAS) - {"matplotlib", "PIL"}, COMMAND, *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/compare/figure.png").is_file()
    assert "tensorboard --logdir" not in done.stdout
