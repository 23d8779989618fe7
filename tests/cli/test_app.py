"""The command line: every config runs, values are checked, states resume."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlightning.cli import FederatedCLI, main
from fedlightning.core.errors import MissingPackageError
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO
from tests.support.commands import ALGORITHM, SMALL, of
from tests.support.language import needs_hf
from tests.support.paths import CONFIGS

TASKS = sorted(path.parent for path in CONFIGS.glob("*/base.yaml"))
NEEDS = {"language": needs_hf}
PAIRS = [(task, algorithm) for task in TASKS for algorithm in sorted(task.glob("*.yaml")) if algorithm.stem != "base"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "algorithm"),
    [pytest.param(*pair, marks=NEEDS.get(pair[0].stem, ())) for pair in PAIRS],
    ids=lambda p: p.stem,
)
def test_every_config_runs(task, algorithm):
    fit = ["fit", f"--config={task / 'base.yaml'}", f"--config={algorithm}", *SMALL]
    main([*fit, "--trainer.fast_dev_run=1"])


def test_there_are_configs_for_every_task():
    assert {task.name for task in TASKS} >= {"domain_adaptation", "classification", "quadratic_saddle", "personalized"}
    assert len(PAIRS) >= 15


def test_fit_validate_test_predict_and_resume():
    arguments = of("domain_adaptation", "fed_mm")
    main(["fit", *arguments, *SMALL, "--trainer.val_check_interval=1"])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    state = torch.load(checkpoint, weights_only=True)
    assert state["global_step"] == 2
    assert state["federation"]["algorithm"] == "fedlightning.algorithms.fed_mm.FedMM"
    few = [f"--trainer.limit_{kind}_batches=2" for kind in ("val", "test", "predict")]
    for command in ("validate", "test", "predict"):
        main([command, *arguments, *SMALL[2:5], *few, f"--ckpt_path={checkpoint}"])
    main(["fit", *arguments, *SMALL[1:], "--trainer.max_steps=3", f"--ckpt_path={checkpoint}"])
    newest = max(Path("runs").rglob("last.ckpt"), key=lambda p: p.stat().st_mtime_ns)
    assert torch.load(newest, weights_only=True)["federation"]["server"]["t"] == 3


def test_commands_say_that_nothing_has_been_trained_and_nothing_kept(caplog):
    with caplog.at_level(logging.INFO):
        main(["predict", *of("classification", "fed_avg"), *SMALL[2:5]])
    assert "Without --ckpt_path the task is as it starts: nothing has trained it." in caplog.messages
    assert any(line.startswith("No callback keeps the predictions") for line in caplog.messages)


def test_personal_models_are_validated_and_predict_from_a_checkpoint():
    arguments = of("personalized", "fed_apm")
    main(["fit", *arguments, *SMALL[:1], *SMALL[2:], "--trainer.val_check_interval=2"])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    for command in ("validate", "test", "predict"):
        main([command, *arguments, *SMALL[2:5], f"--ckpt_path={checkpoint}"])
    cli = FederatedCLI([*arguments, *SMALL[2:], "--model.init_args.predict_client=3"], run=False)
    (predicted,) = cli.trainer.predict(cli.model, cli.datamodule, ckpt_path=str(checkpoint))
    index = cli.datamodule.federation.test_partition[3]
    own = cli.model.personalize(3)(cli.datamodule.federation.test[index][0]).argmax(1)
    assert torch.equal(predicted, own)


def test_tensorboard_and_config_are_written():
    main(["fit", *of("quadratic_saddle", "fed_mm"), *SMALL])
    (config,) = Path("runs").rglob("config.yaml")
    saved = yaml.safe_load(config.read_text())
    assert saved["model"]["init_args"]["algorithm"]["class_path"] == "fedlightning.algorithms.FedMM"
    board = EventAccumulator(str(config.parent))
    board.Reload()
    assert [event.step for event in board.Scalars("train_loss")] == [1, 2]


def test_command_line_wins_over_the_checkpoint(monkeypatch):
    arguments = [*of("quadratic_saddle", "fed_mm"), *SMALL]
    main(["fit", *arguments])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    seen = []
    monkeypatch.setattr(
        "fedlightning.tasks.base.FederatedLightningModule.on_train_start", lambda self: seen.append(self.algorithm.mu)
    )
    changed = "--model.init_args.algorithm.init_args.mu=7"
    main(["fit", *arguments, changed, "--trainer.max_steps=3", f"--ckpt_path={checkpoint}"])
    assert seen == [7.0]


def test_print_config(capsys):
    with pytest.raises(SystemExit):
        main(["fit", *of("domain_adaptation", "fed_mm"), "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["class_path"] == "fedlightning.data.DigitsM"
    assert printed["model"]["init_args"]["algorithm"]["init_args"]["lr"] == 0.1


def test_one_seed_for_all():
    cli = FederatedCLI([*of("domain_adaptation", "fed_mm"), "--seed_everything=5"], run=False)
    assert cli.datamodule.seed == 5
    same = FederatedCLI([*of("domain_adaptation", "fed_mm"), "--seed_everything=5"], run=False)
    other = FederatedCLI([*of("domain_adaptation", "fed_mm"), "--seed_everything=6"], run=False)
    weights = [c.model.features[0].weight for c in (cli, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_checkpoints_are_atomic_by_default():
    cli = FederatedCLI(of("quadratic_saddle", "fed_mm"), run=False)
    assert isinstance(cli.trainer.strategy.checkpoint_io, AtomicCheckpointIO)


def test_a_wrong_value_is_named(capsys):
    with pytest.raises((SystemExit, ValueError)) as caught:
        main(["fit", *of("quadratic_saddle", "fed_mm"), "--model.init_args.algorithm.init_args.eta3=2", *SMALL])
    text = str(caught.value) + capsys.readouterr().err
    assert "FedMM(eta3=2.0): expected > 0 and <= 1" in text


@pytest.mark.parametrize("name", ["fsdp", "fsdp_cpu_offload", "deepspeed", "deepspeed_stage_3_offload"])
def test_sharding_is_refused_before_lightning_asks_for_packages_and_devices(name, capsys):
    with pytest.raises(SystemExit):
        main(["fit", *of("quadratic_saddle", "fed_mm"), *SMALL, f"--trainer.strategy={name}"])
    message = capsys.readouterr().err
    assert f"Trainer(strategy='{name}') cuts the model" in message
    assert "strategy='ddp'" in message


def test_step_sizes_by_block_and_by_prefix_from_yaml(tmp_path):
    for value in ("[0.1, 0.2]", "{default: 0.1, features: 0.05, adversary: 0.2}"):
        path = tmp_path / "algorithm.yaml"
        path.write_text(
            "model:\n  init_args:\n    algorithm:\n      class_path: fedlightning.algorithms.FedMM\n"
            f"      init_args: {{lr: {value}}}\n"
        )
        main(["fit", f"--config={CONFIGS}/domain_adaptation/base.yaml", f"--config={path}", *SMALL])


def test_optimizers_from_the_command_line():
    main(
        ["fit", *of("quadratic_saddle", "fed_avg"), *SMALL, "--model.init_args.server_optimizer=Adam",
         "--model.init_args.server_optimizer.lr=0.01",
         "--model.init_args.algorithm.init_args.local_optimizer=torch.optim.Adam"]
    )  # fmt: skip
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    assert "exp_avg" in torch.load(checkpoint, weights_only=True)["optimizer_states"][0]["state"][0]


def test_help_names_compare(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "fedlightning compare" in capsys.readouterr().out


def test_load_from_a_checkpoint_of_the_command_line():
    from fedlightning.tasks import DomainAdaptation

    main(["fit", *of("domain_adaptation", "fed_mm"), *SMALL])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    task = DomainAdaptation.load_from_checkpoint(checkpoint, weights_only=True)
    assert task.features.out_features == 128
    assert task.algorithm.lr == 0.1
    assert task.client_states.lam.shape[0] == 2
    shutil.rmtree("runs")


FALLING = "{class_path: Exponential, init_args: {start: 0.1, gamma: 0.5}}"


def test_schedules_are_logged_saved_and_go_on():
    arguments = [*of("classification", "fed_avg"), *SMALL, f"{ALGORITHM}.init_args.lr={FALLING}"]
    main(["fit", *arguments, "--trainer.log_every_n_steps=1"])
    (config,) = Path("runs").rglob("config.yaml")
    saved = yaml.safe_load(config.read_text())["model"]["init_args"]["algorithm"]["init_args"]["lr"]
    assert saved["class_path"] == "fedlightning.schedules.Exponential"
    board = EventAccumulator(str(config.parent))
    board.Reload()
    assert [event.value for event in board.Scalars("schedule/lr")] == pytest.approx([0.1, 0.05])
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    cli = FederatedCLI([*arguments, "--trainer.max_steps=4"], run=False)
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=str(checkpoint))
    assert cli.model.round_metrics["schedule/lr"] == 0.1 * 0.5**3
    assert type(cli.model).load_from_checkpoint(checkpoint).algorithm.lr == cli.model.algorithm.lr


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("abc", "lr=abc: expected float or list or Mapping."),
        ("[a, b]", "lr=['a', 'b']: expected float or Mapping."),
        ("{head: x}", "lr: expected float or list."),
        ("{0: 0.1, 9: 0.01}", "Values by round are a schedule, fedlightning.schedules.Milestones."),
        ("{class_path: Milestone, init_args: {values: {0: 0.1}}}", "Did you mean 'fedlightning.schedules.Milestones'?"),
        ("{class_path: Exponential, init_args: {start: 0.1}}", "Exponential needs gamma. Give --"),
        ("{class_path: Milestones, init_args: {values: {0: 0.1, 9: -1}}}", "is -1.0 after 9 rounds: expected >= 0."),
        (
            "{class_path: fedlightning.proximal.L1, init_args: {weight: 1.0}}",
            "lr: expected a schedule over rounds such as fedlightning.schedules.Exponential",
        ),
    ],
)
def test_wrong_step_sizes_and_schedules_are_named_in_a_line(value, said, capsys):
    with pytest.raises(SystemExit):
        main(["fit", *of("classification", "fed_avg"), *SMALL, f"{ALGORITHM}.init_args.lr={value}"])
    assert said in capsys.readouterr().err


class Unmade(torch.nn.Module):
    def __init__(self, width: int = 1):
        super().__init__()
        raise MissingPackageError("This needs the package 'none'.")


def test_a_class_that_lacks_a_package_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["fit", *of("classification", "fed_avg"), *SMALL, f"--model.init_args.network={__name__}.Unmade"])
    assert "fedlightning: Unmade: This needs the package 'none'.\n" in capsys.readouterr().err


def test_whole_tracebacks_of_constructors_are_kept_when_asked_for(monkeypatch):
    monkeypatch.setenv("FEDLIGHTNING_DEBUG", "1")
    with pytest.raises(ValueError, match=r"FedAvg\(lr=-1.0\): expected > 0\."):
        main(["fit", *of("classification", "fed_avg"), *SMALL, f"{ALGORITHM}.init_args.lr=-1"])
