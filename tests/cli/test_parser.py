"""What the parser objects to takes a line or two that name the mistake."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from fedlightning.channel import CenteredClipping, Channel, Median
from fedlightning.cli import FederatedCLI, main
from fedlightning.cli.parser import plain
from tests.support.commands import ALGORITHM, SMALL, of


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--model.init_args.algorithm.init_args.mo=1", "mo"),
        ("--model.init_args.algorithm=FedNN", "FedNN"),
        ("--data.init_args.cleints=3", "cleints"),
        ("--trainer.max_stpes=3", "max_stpes"),
    ],
)
def test_misspelt_keys_are_named_before_any_work(wrong, message, capsys):
    with pytest.raises(SystemExit):
        main(["fit", *of("domain_adaptation", "fed_mm"), wrong])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (f"{ALGORITHM}.init_args.lr=-0.1", "FedAvg(lr=-0.1): expected > 0."),
        (
            f"{ALGORITHM}.init_args.lrr=0.1",
            "model.init_args.algorithm.init_args.lrr=0.1: FedAvg has no argument 'lrr'. Did you mean 'lr'? "
            "It takes lr, local_optimizer, local_clip.",
        ),
        (f"{ALGORITHM}=fedlightning.algorithms.FeDualX", "algorithms has no 'FeDualX'. Did you mean 'FeDualEx'?"),
        (f"{ALGORITHM}=FedAvgg", "FedAvgg: no such class. Did you mean 'fedlightning.algorithms.FedAvg'?"),
        (f"{ALGORITHM}=fedlightning.algoritms.FedAvg", "Did you mean 'fedlightning.algorithms.FedAvg'?"),
        ("--model.init_args.wieght=1", "wieght=1: Classification has no argument 'wieght'. Did you mean 'weighting'?"),
        ("--model.init_args.weighting=unifrm", "expected one of 'uniform', 'samples'. Did you mean 'uniform'?"),
        ("--model.init_args.server_clip=abc", "model.init_args.server_clip=abc: expected float, or null."),
        ("--data.init_args.size=null", "data.init_args.size=null: expected int."),
        ("--data.init_args.eval_batch_size=null", "data.init_args.eval_batch_size=null: expected int."),
        ("--data.init_args.batch_sise=3", "Digits has no argument 'batch_sise'. Did you mean 'batch_size'?"),
        ("--trainer.max_stpes=3", "--trainer.max_stpes=3: no such argument. Did you mean 'trainer.max_steps'?"),
        ("--trainer.max_steps=abc", "trainer.max_steps=abc: expected int."),
        ("--model.init_args.drift_parameters=head", "drift_parameters=head: expected list such as [head]."),
        ("--trainer.logger.init_args.save_dri=3", "save_dri=3: TensorBoardLogger has no argument 'save_dri'."),
        ("--model.init_args.network=torch.nn.Linear", "Linear needs out_features. Give --model.init_args.network."),
        ("--config=missing.yaml", "File does not exist"),
        ("--ckpt_path=runs/missing.ckpt", "--ckpt_path=runs/missing.ckpt: no such file."),
    ],
)  # fmt: skip
def test_mistakes_take_a_line_or_two(wrong, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["fit", *of("classification", "fed_avg"), *SMALL, wrong])
    assert exit_.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Seed set")]
    assert 1 <= len(said) <= 3
    assert message in "\n".join(said)
    assert not any(word in line for word in ("Namespace(", "NestedArg(", "usage:", "Traceback") for line in said)


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_options_that_are_missing_are_named_as_the_command_line_has_them(subcommand, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([subcommand])
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "fedlightning: Give --data=... --model=..., or a config (-c) that has it.\n"


def test_a_command_without_configs_proposes_none(capsys):
    with pytest.raises(SystemExit):
        main(["privacy", "noise", "--epsilon=1", "--delta=1e-5", "--rounds=3"])
    assert capsys.readouterr().err == "fedlightning: Give --clients=....\n"


@dataclass
class Head:
    width: int = 16


@dataclass
class Body:
    head: Head = field(default_factory=Head)


class Net:
    def __init__(
        self,
        body: Body | None = None,
        head: Head = Head(),  # noqa: B008
        count: int = 1,
        rate: float | None = None,
    ):
        self.settings = body, head, count, rate


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("head.widht=3", "model.init_args.head.widht=3: Head has no argument 'widht'. Did you mean 'width'? It takes"),
        ("head.width=many", "model.init_args.head.width=many: expected int."),
        ("count=many", "model.init_args.count=many: expected int."),
        ("rate=many", "model.init_args.rate=many: expected float, or null."),
        ("none.at.all=1", "--none.at.all=1"),
        ("head={widht: 3}", "model.init_args.head.widht: Head has no argument 'widht'. Did you mean 'width'?"),
        ("head.width=null", "model.init_args.head.width=None: expected int."),
        ("body.head.widht=3", "Head has no argument 'widht'. Did you mean 'width'?"),
    ],
)
def test_mistakes_in_a_dataclass_are_named(wrong, message):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Net, "model")
    with pytest.raises(ArgumentError) as error:
        parser.parse_args([f"--model={__name__}.Net", f"--model.init_args.{wrong}"])
    assert message in plain(str(error.value))


def test_a_message_that_is_not_understood_is_left_alone():
    assert plain("Something new") == "Something new"


CHANNEL = "--model.init_args.channel.init_args"


@pytest.mark.parametrize(
    ("given", "channel"),
    [
        ([f"{CHANNEL}.aggregate=null"], Channel()),
        (
            [f"{CHANNEL}.adversary=null", f"{CHANNEL}.aggregate=fedlightning.channel.Median"],
            Channel(aggregate=Median()),
        ),
        (
            [
                f"{CHANNEL}.aggregate=null",
                f"{CHANNEL}.adversary=fedlightning.channel.SignFlip",
                f"{CHANNEL}.adversary.init_args.share=0.5",
                f"{CHANNEL}.adversary=null",
            ],
            Channel(),
        ),
        (
            [
                f"{CHANNEL}.aggregate=fedlightning.channel.CenteredClipping",
                f"{CHANNEL}.aggregate.init_args.radius=2.0",
                f"{CHANNEL}.aggregate.init_args.radius=null",
            ],
            Channel(aggregate=CenteredClipping(radius=None)),
        ),
        (["--model.init_args.channel=null"], None),
    ],
)
def test_null_takes_away_what_a_config_gave(given, channel, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    cli = FederatedCLI([*of("classification", "fed_avg_robust"), *SMALL, *given], run=False)
    assert cli.model.federation_options.channel == channel
