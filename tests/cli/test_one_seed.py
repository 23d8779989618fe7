"""A seed of the data beside that of the run, which the parser would leave out in silence."""

from __future__ import annotations

import pytest

from fedlightning.cli import main
from fedlightning.cli.early import MistakeError
from fedlightning.cli.one_seed import require_one_seed
from fedlightning.compare.command import compare
from fedlightning.core.errors import InvalidValueError

SAYS = "one seed makes a run, also of the data. Give seed_everything instead"


@pytest.mark.parametrize(
    "text",
    [
        "data: {init_args: {seed: 7}}",
        "data: {class_path: fedlightning.data.Digits, init_args: {batch_size: 4, seed: 7}}",
        "data: {seed: 7}",
    ],
)
def test_a_config_with_a_seed_of_the_data_is_refused_by_name(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "of_fit.yaml").write_text(f"fit: {{{text}}}")
    (tmp_path / "whole.yaml").write_text("data: part/data.yaml")  # paths count from the config's folder
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "data.yaml").write_text(text.removeprefix("data: "))
    with pytest.raises(MistakeError, match=SAYS):
        require_one_seed(["-c", text])
    for name in ("mine.yaml", "of_fit.yaml", "whole.yaml"):
        for given in (["-c", str(tmp_path / name)], [f"--config={tmp_path / name}"]):
            with pytest.raises(MistakeError, match=rf"{name}: data\.seed: {SAYS}"):
                require_one_seed(["fit", *given])


@pytest.mark.parametrize(
    "option", ["--data.init_args.seed=3", "--data.seed=3", "--data.init_args={seed: 3}", "--data={seed: 3}"]
)
def test_an_option_with_a_seed_of_the_data_is_refused_by_name(option):
    with pytest.raises(MistakeError, match=SAYS):
        require_one_seed([option])


def test_seeds_of_other_things_are_left_alone(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "seed_everything: 3\ndata: {init_args: {partitioner: {init_args: {seed: 3}}}}\nmodel: {init_args: {seed: 3}}"
    )
    (tmp_path / "broken.yaml").write_text("data: [")
    (tmp_path / "none.yaml").write_text("data: {init_args: {seed: null}}")
    files = [f"--config={tmp_path / name}" for name in ("mine.yaml", "broken.yaml", "missing.yaml", "none.yaml")]
    require_one_seed(
        ["fit", *files, "--seed_everything=3", "--data", "fedlightning.data.Digits", "--data.init_args={}"]
    )


@pytest.mark.parametrize("command", ["fit", "data"])
def test_commands_refuse_it(command, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("data: {class_path: fedlightning.data.Digits, init_args: {seed: 7}}")
    with pytest.raises(SystemExit, match="2"):
        main([command, "-c", str(tmp_path / "mine.yaml")])
    assert SAYS in capsys.readouterr().err


def test_a_comparison_says_so_of_its_runs(tmp_path):
    (tmp_path / "mine.yaml").write_text("data: {class_path: fedlightning.data.Digits, init_args: {seed: 7}}")
    with pytest.raises(InvalidValueError, match=rf"configuration of A, seed 0 is not valid: .*mine\.yaml: .*{SAYS}"):
        compare(base=[str(tmp_path / "mine.yaml")], algorithms=[f"A={tmp_path / 'mine.yaml'}"], metric="val_loss")


@pytest.mark.parametrize("seed", ["-3", str(2**32)])
def test_a_seed_that_no_generator_takes_is_refused_in_one_line(seed, capsys):
    with pytest.raises(MistakeError, match=rf"seed_everything={seed}: expected a seed from 0 to 4294967295\."):
        require_one_seed([f"--seed_everything={seed}"])
    for command in ("fit", "data"):
        with pytest.raises(SystemExit) as stopped:
            main([command, "--data=fedlightning.data.Digits", f"--seed_everything={seed}"])
        assert stopped.value.code == 2
    require_one_seed(["--seed_everything=true"])
    require_one_seed([f"--seed_everything={2**32 - 1}"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": [-1]}, "--seeds -1: expected seeds from 0 to 4294967295"),
        ({"seeds": [0, 2**32]}, "--seeds 4294967296: expected seeds from 0"),
        ({"set": ["seed_everything=9"]}, "--set seed_everything=9: every run has a seed of --seeds"),
    ],
)
def test_seeds_of_a_comparison_are_given_once_and_in_range(options, said):
    with pytest.raises(InvalidValueError, match=said):
        compare(["base.yaml"], ["a.yaml"], "val_loss", **options)
