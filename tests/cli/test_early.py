"""Mistakes found from source files: no false alarms, and what is certain is found."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedlightning.cli.app import FederatedCLI
from fedlightning.cli.early import MistakeError, Options, check, require_keeper
from tests.support.paths import CONFIGS, ROOT

FIT = [f"--config={CONFIGS}/classification/{name}.yaml" for name in ("base", "fed_avg")]
ALGORITHM = "--model.init_args.algorithm"
NETWORK = "--model.init_args.network"


def is_comparison(path):
    return "\nalgorithms:" in f"\n{path.read_text()}"


def test_no_false_alarms_about_the_package_s_own_configs():
    files = [*sorted(CONFIGS.rglob("*.yaml")), *sorted((ROOT / "experiments").rglob("*.yaml"))]
    files = [path for path in files if not is_comparison(path)]
    assert len(files) > 100
    for path in files:
        check("fit", [f"--config={base}" for base in path.parent.glob("base.yaml")] + [f"--config={path}"])


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_the_options_are_those_of_the_parser(subcommand, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedlightning"])

    class Parsed(Exception):
        pass

    class Stopped(FederatedCLI):
        def parse_arguments(self, parser, args):
            raise Parsed(self._subcommand_parsers[subcommand])

    with pytest.raises(Parsed) as parsed:
        Stopped([subcommand])
    options = {name.lstrip("-") for name in parsed.value.args[0]._option_string_actions if name.startswith("--")}
    known = set(Options(subcommand).names)
    assert known <= options
    levels = {"trainer": 2}  # what follows them belongs to classes
    assert {
        ".".join(name.removesuffix("+").split(".")[: levels.get(name.split(".")[0], 1)]) for name in options
    } == known


@pytest.mark.parametrize(
    "arguments",
    [
        [f"{ALGORITHM}.lr=0.2"],
        [f"{ALGORITHM}.init_args.lr={{default: 0.1, network: 0.2}}"],
        [f"{ALGORITHM}=FedProx"],
        [f"{ALGORITHM}=fedlightning.algorithms.FedMM", f"{ALGORITHM}.init_args.mu=1"],
        ["--model=Classification"],
        [f"{NETWORK}=torch.nn.Identity"],
        [f"{NETWORK}=net.yaml"],
        [f"{NETWORK}=fedlightning.models.LeNet5", f"{NETWORK}.init_args.classes=10"],
        ["--model.init_args.server_optimizer=Adam", "--model.init_args.server_optimizer.lr=0.01"],
        ["--model.init_args.server_optimizer=torch.optim.Adam", "--model.init_args.server_optimizer.init_args.lr=0.01"],
        ["--model.init_args.drift_parameters+=network.0"],
        ["--trainer.logger=false"],
        ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=x"],
        ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val_loss"],
        ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", "--trainer.callbacks.monitor=val_loss"],
        ["--trainer.callbacks+=EarlyStopping"],
        ["--trainer.callbacks+=RoundProgressBar"],
        ["--trainer.callbacks+=Unheard"],  # perhaps known once something is imported
        ["--print_config", *FIT],
        ["--data.init_args.participation=fedlightning.participation.Uniform",
         "--data.init_args.participation.init_args.fraction=0.5"],
        ["--seed_everything", "true", "--ckpt_path=best"],
        ["--trainer.no_such=3", "--help"],  # somebody who asks gets the answer
    ],
)  # fmt: skip
def test_what_the_parser_accepts_passes(arguments):
    check("fit", [*FIT, *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.max_stpes", "3"], "--trainer.max_stpes: no such argument. Did you mean 'trainer.max_steps'?"),
        (["--trainer.max_step", "3"], "--trainer.max_step: no such argument. Did you mean 'trainer.max_steps'?"),
        (["--trainer.callbacks+=EarlyStoping"], "EarlyStoping: no such class. Did you mean 'EarlyStopping'?"),
        (["--trainer.callbacks+=RoundProgresBar"], "RoundProgresBar: no such class. Did you mean 'RoundProgressBar'?"),
        (["--ckpt_paht=x"], "--ckpt_paht=x: no such argument. Did you mean 'ckpt_path'?"),
        ([f"{ALGORITHM}.lrr=0.1"], "algorithm.lrr=0.1: FedAvg has no argument 'lrr'. Did you mean 'lr'?"),
        ([f"{ALGORITHM}=FedAvgg"], "FedAvgg: no such class. Did you mean 'fedlightning.algorithms.FedAvg'?"),
        ([f"{ALGORITHM}=fedlightning.algorithms.FeDualX"], "algorithms has no 'FeDualX'. Did you mean 'FeDualEx'?"),
        ([f"{ALGORITHM}=fedlightning.algoritms.FedAvg"], "no module 'fedlightning.algoritms' is installed or in "),
        (["--model=my_missing_package.MyTask"], "no module 'my_missing_package' is installed or in the"),
        (["--model=fedlightning.tasks.Clasification"], "has no 'Clasification'. Did you mean 'Classification'?"),
        (["--data.init_args.batch_sise=3"], "Digits has no argument 'batch_sise'. Did you mean 'batch_size'?"),
        (["--data.init_args.partitioner=fedlightning.data.IID", "--data.init_args.partitioner.init_args.client=3"],
         "IID has no argument 'client'. Did you mean 'num_clients'? It takes num_clients."),
        (["--model.init_args.oracle.chunksize=3"], "Vectorized has no argument 'chunksize'. Did you mean"),
        (["--model.init_args.server_optimizer=torch.optim.Adam", "--model.init_args.server_optimizer.init_args.lrr=1"],
         "Adam has no argument 'lrr'. Did you mean 'lr'?"),
        (["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStoping"], "Did you mean 'EarlyStopping'?"),
        (["--model.init_args.regularizer={network: {class_path: fedlightning.proximal.L1, init_args: {wieght: 1}}}"],
         "L1 has no argument 'wieght'. Did you mean 'weight'?"),
        (["--config", "missing.yaml"], "--config=missing.yaml: File does not exist."),
        (["--ckpt_path=missing.ckpt"], "--ckpt_path=missing.ckpt: no such file."),
    ],
)  # fmt: skip
def test_what_is_certainly_wrong_is_named(arguments, message):
    with pytest.raises(MistakeError) as mistake:
        check("fit", [*FIT, *arguments])
    assert message in str(mistake.value)


def test_in_place_of_a_missing_checkpoint_the_newest_is_named(tmp_path):
    for age, run in enumerate(("b", "c", "a")):
        (tmp_path / run).mkdir()
        (tmp_path / run / "last.ckpt").touch()
        os.utime(tmp_path / run / "last.ckpt", (1e9 - age, 1e9 - age))
    with pytest.raises(MistakeError, match=rf"no such file\. There is {tmp_path / 'b' / 'last.ckpt'}\.$"):
        check("fit", [*FIT, f"--ckpt_path={tmp_path / 'd' / 'last.ckpt'}"])


def test_checkpoints_of_others_are_not_named(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "last.ckpt").touch()
    with pytest.raises(MistakeError, match=r"no such file\.$"):
        check("fit", [*FIT, f"--ckpt_path={tmp_path / 'mine.ckpt'}"])
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(MistakeError, match=rf"There is {tmp_path / 'last.ckpt'}\.$"):
        check("fit", [*FIT, f"--ckpt_path={tmp_path / 'mine.ckpt'}"])


def test_nobody_waits_for_a_search_far_from_a_missing_checkpoint(tmp_path):
    (tmp_path / "last.ckpt").touch()
    far = tmp_path / "a" / "b" / "c" / "last.ckpt"
    for path in (far, "/nowhere/last.ckpt"):  # from its nearest folder on, all of the disk would be searched
        with pytest.raises(MistakeError, match=r"no such file\.$"):
            check("fit", [*FIT, f"--ckpt_path={path}"])


@pytest.mark.parametrize(
    ("path", "keeps_last", "known"),
    [("best", True, False), ("last", False, False), ("last", True, True), ("hpc", False, True), (None, False, True)],
)
def test_a_name_for_a_checkpoint_needs_somebody_who_knows_it(path, keeps_last, known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "version_0").mkdir(parents=True)
    (tmp_path / "runs" / "version_0" / "last.ckpt").touch()
    said = rf"--ckpt_path={path}: a new process knows of no {path} checkpoint\. .* The newest is runs/.*/last.ckpt\."
    with nullcontext() if known else pytest.raises(MistakeError, match=said):
        require_keeper(path, keeps_last)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trainer:\n  max_stpes: 3\n",
            "own.yaml: trainer.max_stpes: no such argument. Did you mean 'trainer.max_steps'?",
        ),
        (
            "trainer:\n  callbacks:\n  - class_path: ModelCheckpiont\n",
            "own.yaml: trainer.callbacks=ModelCheckpiont: no such class. Did you mean 'ModelCheckpoint'?",
        ),
        ("modle: 3\n", "own.yaml: modle: no such argument. Did you mean 'model'?"),
        ("base: x\nalgorithms: []\n", "trainer, weights_only. This is a config of fedlightning compare."),
        (
            "model: {init_args: {algorithm: {init_args: {lrr: 1}}}}\n",
            "own.yaml: model.init_args.algorithm.init_args.lrr=1",
        ),
    ],
)
def test_a_mistake_in_a_config_names_the_file(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(text)
    with pytest.raises(MistakeError) as mistake:
        check("fit", [*FIT, "--config=own.yaml"])
    assert message in str(mistake.value)
