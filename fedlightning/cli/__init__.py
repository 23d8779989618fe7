"""The command ``fedlightning``: Lightning's command line for federated tasks, and ``fedlightning compare``.

Help, version and what is misspelt are answered before Lightning is imported, which takes seconds.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from fedlightning import __version__
from fedlightning.cli.errors import TRACEBACKS, plain_refusals
from fedlightning.cli.stops import interrupts_kept
from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.cli.app import FederatedCLI

__all__ = ["DESCRIPTIONS", "FederatedCLI", "main", "plain_refusals"]

DESCRIPTIONS = {
    "fit": "Train a task over its clients: one training step is one communication round.",
    "validate": "Evaluate a trained task (--ckpt_path) on the validation data.",
    "test": "Evaluate a trained task (--ckpt_path) on the test data.",
    "predict": "Predict with a trained task (--ckpt_path).",
    "compare": "Run several algorithms on one task over several seeds: table, curves, figure.",
    "data": "Draw who holds what in a federation, and save the partition.",
    "federation": "Train over machines that keep their data: make a federation, start its link, run it.",
    "node": "Take part in a federation with the data of this machine, which never leave it.",
    "privacy": "Compute how much noise hides a single client, and what noise leaves to be known.",
}
"""What each subcommand does."""

_HELP = f"""usage: fedlightning [-h] [--version] {{{",".join(DESCRIPTIONS)}}} ...

Federated optimisation inside PyTorch Lightning.

subcommands:
{chr(10).join(f"  {name:10} {text}" for name, text in DESCRIPTIONS.items())}

A run is a task's config and an algorithm's; every value can be changed on the command line:

  fedlightning fit -c configs/classification/base.yaml -c configs/classification/fed_avg.yaml --trainer.max_steps=20
  fedlightning compare --base configs/classification/base.yaml --metric val_accuracy \\
      --algorithms configs/classification/fed_avg.yaml configs/classification/scaffold.yaml

Classes of your own are given as module.Class (--model=my_tasks.MyTask), with the module in the current folder.
fedlightning SUBCOMMAND --help lists the arguments of a subcommand.
"""

__getattr__, __dir__ = lazily(__name__, {"app": "FederatedCLI"})


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments; None for those of the process.
    """
    try:
        with plain_refusals():
            _answer(args)
    except KeyboardInterrupt:
        if os.environ.get(TRACEBACKS):
            raise
        print("\nfedlightning: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None


def _answer(args: Sequence[str] | None) -> None:
    given = sys.argv[1:] if args is None else list(args)
    _find_modules_of_this_folder()
    if not given or given[0] in ("-h", "--help"):
        print(_HELP, end="")
        raise SystemExit(0 if given else 2)
    if given[0] == "--version":
        print(f"fedlightning {__version__}")
        raise SystemExit(0)
    if given[0] == "compare":
        from fedlightning.compare import main as compare

        compare(given[1:])
    elif given[0] == "data":
        from fedlightning.cli.data import main as data

        data(given[1:])
    elif given[0] == "federation":
        from fedlightning.cli.federation import main as federation

        federation(given[1:])
    elif given[0] == "node":
        from fedlightning.cli.node import main as node

        node(given[1:])
    elif given[0] == "privacy":
        from fedlightning.cli.privacy import main as privacy

        privacy(given[1:])
    else:
        _refuse_mistakes(given)
        with interrupts_kept():
            _import_command_line()
        from fedlightning.cli.app import FederatedCLI

        FederatedCLI(args)


def _import_command_line() -> None:
    """Import Lightning with the garbage collector paused, because imports leave next to no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        import_module("fedlightning.cli.app")
    finally:
        if collects:
            gc.enable()


def _refuse_mistakes(given: Sequence[str]) -> None:
    """End the process with a one-sentence message if an argument is misspelt or missing."""
    from fedlightning.cli.complaints import no_option
    from fedlightning.cli.early import MistakeError, check
    from fedlightning.core.misspelt import did_you_mean

    subcommand = given[0]
    try:
        if subcommand in DESCRIPTIONS:
            check(subcommand, given[1:])
        elif subcommand.startswith("-"):
            name = subcommand.lstrip("-").partition("=")[0]
            if name not in ("c", "config") and not name.startswith("print_"):
                raise MistakeError(no_option(subcommand, name, ("help", "version", "config")))
        else:
            raise MistakeError(
                f"{subcommand}: no such subcommand.{did_you_mean(subcommand, DESCRIPTIONS)} "
                f"There are {', '.join(DESCRIPTIONS)}."
            )
    except MistakeError as mistake:
        print(f"fedlightning: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None


def _find_modules_of_this_folder() -> None:
    """Let class paths name modules in the current folder, as with ``python -m``.

    The folder comes last: a ``random.py`` or ``lightning.py`` in it does not take the place of the real one.
    """
    here = os.getcwd()
    if not getattr(sys.flags, "safe_path", False) and not {"", here} & set(sys.path):
        sys.path.append(here)
