"""What the command and the package import, and when: checked by ``sys.modules`` in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import fedlightning
from fedlightning.cli import DESCRIPTIONS, main
from fedlightning.cli.app import FederatedCLI
from tests.support.paths import ROOT

HEAVY = ("lightning", "torchvision", "torchmetrics", "matplotlib", "sklearn", "tensorboard", "scipy")


SCRIPT = """
import sys
sys.path[:] = [path for path in sys.path if path not in ("", {here!r})]  # as in a console script
from fedlightning.cli import main
try:
    main()
finally:
    print("imported:", *(name for name in {names!r} if name in sys.modules))
"""


def command(*arguments, folder):
    """Runs ``fedlightning`` as its console script does."""
    script = SCRIPT.format(here=str(folder), names=("torch", *HEAVY))
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


CLASSIFICATION = [f"--config={ROOT}/configs/classification/{name}.yaml" for name in ("base", "fed_avg")]
ALGORITHM = "--model.init_args.algorithm"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "compare "),
        ([], 2, "subcommands:"),
        (["--version"], 0, f"fedlightning {fedlightning.__version__}\n"),
        (["--verison"], 2, "fedlightning: --verison: no such argument. Did you mean 'version'?"),
        (["fti"], 2, "fti: no such subcommand. Did you mean 'fit'? There are fit, validate, test, predict, compare, d"),
        (["comapre", "--base"], 2, "comapre: no such subcommand. Did you mean 'compare'?"),
        (["fit", "--trainer.max_stpes=3"], 2, "--trainer.max_stpes=3: no such argument. Did you mean 'trainer.max_ste"),
        (["fit", *CLASSIFICATION, f"{ALGORITHM}.init_args.lrr=1"], 2, "FedAvg has no argument 'lrr'. Did you mean"),
        (["compare", "--help"], 0, "--algorithms"),
        (["data", "--help"], 0, "--save FILE"),
        (["federation", "--help"], 0, "--address fed.example.org:8443"),
        (["federation", "new", "f", "--adress=x"], 2, "--adress=x: no such argument. Did you mean 'address'?"),
        (["compare", "--metirc=x"], 2, "--metirc=x: no such argument. Did you mean 'metric'?"),
    ],
)  # fmt: skip
def test_help_and_typos_import_nothing_heavy(arguments, code, said, tmp_path):
    done = command(*arguments, folder=tmp_path)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"


IMPORTS = (
    "import fedlightning",
    "import fedlightning.data, fedlightning.tasks, fedlightning.models.classifiers",
    "import fedlightning.algorithms, fedlightning.proximal, fedlightning.local",
    "import fedlightning.oracle, fedlightning.participation, fedlightning.federation.loop",
    "from fedlightning.data import IID, Dirichlet, Partition; import fedlightning.models",
)
AFRESH = """
import sys
for statement in {statements!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedlightning"]:
        del sys.modules[name]
    exec(statement)
    print(*(name for name in {names!r} if name in sys.modules))
"""


def test_importing_the_package_imports_nothing_heavy():
    """Each statement is the first that imports anything of the package; the one without torch comes first."""
    code = AFRESH.format(statements=IMPORTS, names=("torch", *HEAVY))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", *["torch"] * (len(IMPORTS) - 1)]


MY_PACKAGE = """
from fedlightning.tasks import Classification

class MyTask(Classification):
    pass
"""


@pytest.mark.slow
def test_the_console_script_finds_classes_of_the_current_folder(tmp_path):
    (tmp_path / "my_pkg").mkdir()
    (tmp_path / "my_pkg" / "__init__.py").write_text(MY_PACKAGE)
    for name in ("random", "lightning", "torch"):  # the user's own, which are not to be taken for the real ones
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    small = ["--trainer.fast_dev_run=1", "--trainer.accelerator=cpu", "--trainer.enable_model_summary=false"]
    done = command("fit", *CLASSIFICATION, "--model=my_pkg.MyTask", *small, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_classes_of_the_current_folder_that_are_misspelt_are_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_pkg").mkdir()
    (tmp_path / "own_pkg" / "__init__.py").write_text(MY_PACKAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with pytest.raises(SystemExit):
        main(["fit", *CLASSIFICATION, "--model=own_pkg.MyTaks"])
    assert "own_pkg.MyTaks: own_pkg has no 'MyTaks'. Did you mean 'MyTask'?" in capsys.readouterr().err


def test_the_current_folder_comes_last_and_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["--version"])
    assert sys.path[-1] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert capsys.readouterr().out.startswith("fedlightning ")


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_help_of_subcommands_says_whole_sentences(subcommand, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedlightning"])
    with pytest.raises(SystemExit):
        FederatedCLI([subcommand, "--help"])
    said = capsys.readouterr().out
    assert DESCRIPTIONS[subcommand] in " ".join(said.split())
    assert f"\nArguments of {subcommand}:\n  --" in said
    assert "never run on your:" not in said


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "--model.oracle=fedlightning.oracle.ClientBatching",
            "model.init_args.oracle=fedlightning.oracle.ClientBatching: fedlightning.oracle.ClientBatching is a base "
            "class of which no object can be made. Give a class_path such as fedlightning.oracle.Vectorized or "
            "fedlightning.oracle.Sequential.",
        ),
        (
            "--model.client_storage=OnHots",
            "model.init_args.client_storage=OnHots: no such class. Did you mean "
            "'fedlightning.federation.client_states.OnHost'?",
        ),
        ("--model.self_check=never", "model.init_args.self_check=never: expected one of 'first', 'off', or int."),
    ],
)
def test_values_that_do_not_fit_are_answered_with_those_that_do(argument, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedlightning"])
    with pytest.raises(SystemExit):
        main(["fit", *CLASSIFICATION, argument])
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_help_lists_classes_that_nothing_has_imported_yet(tmp_path):
    shown = "".join(command("fit", "--help", folder=tmp_path).stdout.split())
    for name in ("fedlightning.tasks.AUCMaximization", "fedlightning.data.DigitsM", "fedlightning.callbacks.History"):
        assert name in shown
