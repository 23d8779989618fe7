"""``fedlightning data``: draws who holds what in a federation, and saves the partition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlightning.cli.early import MistakeError, asks_for_help, check
from fedlightning.cli.groups import refuse
from fedlightning.cli.one_seed import require_one_seed
from fedlightning.core import strict_yaml

if TYPE_CHECKING:
    from jsonargparse import Namespace

_HELP = """usage: fedlightning data -c CONFIG [-c CONFIG ...] [--save FILE] [--figure FILE] [--data....=...] ...

Draw who holds what in the federation that configs describe, and save the partition.

  -c, --config FILE    configs as for fedlightning fit; what they say of task and trainer is left alone
  --data....=VALUE     values of the data, as for fedlightning fit
  --seed_everything N  seed of the partition, 0 by default
  --save FILE          write who holds which samples, as JSON for fedlightning.data.FromFile
  --figure FILE        draw numbers of samples by client and label; partition.png by default

  fedlightning data -c configs/classification/base.yaml --save split.json
  fedlightning fit -c configs/classification/base.yaml -c configs/classification/fed_avg.yaml \\
      --data.init_args.partitioner=fedlightning.data.FromFile --data.init_args.partitioner.init_args.path=split.json
"""
_OWN = ("save", "figure")
_SECTIONS = ("data", "seed_everything")


def main(args: Sequence[str]) -> None:
    """Parse the arguments, draw the figure and save the partition.

    Args:
        args: The arguments after ``fedlightning data``.
    """
    given = list(args)
    if not given or any(asks_for_help(each) for each in given):
        print(_HELP, end="")
        raise SystemExit(0 if given else 2)
    try:
        check("fit", [each for each in given if each.lstrip("-").partition("=")[0] not in _OWN])
        require_one_seed(given)
        values = _parsed([_data_of(each) for each in _joined(given)])
    except MistakeError as mistake:
        refuse(str(mistake))
    _carry_out(values)


def _joined(given: Sequence[str]) -> list[str]:
    """Return options with their values, ``--config=file`` for ``-c file``."""
    options: list[str] = []
    for each in given:
        if options and "=" not in options[-1]:
            options[-1] += f"={each}"
        else:
            options.append(f"--config{each[2:]}" if each.startswith("-c") else each)
    return options


def _data_of(option: str) -> str:
    """Return the option of a config file with what the file says of the data; other options as they are."""
    name, _, file = option.partition("=")
    if name != "--config":
        return option
    content = strict_yaml.parsed(Path(file).expanduser().read_text(encoding="utf-8"))
    sections = content if isinstance(content, Mapping) else {}
    return f"--config={json.dumps({name: sections[name] for name in _SECTIONS if name in sections})}"


def _parsed(options: Sequence[str]) -> Namespace:
    from fedlightning.cli.app import TaskParser, plain_constructors, seed_of
    from fedlightning.data.module import FederatedDataModule

    parser = TaskParser(prog="fedlightning data")
    parser.add_argument("--config", action="config")
    parser.add_argument("--seed_everything", type=bool | int, default=0)
    parser.add_argument("--save", type=str | None, default=None)
    parser.add_argument("--figure", type=str, default="partition.png")
    parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
    parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=seed_of)
    config = parser.parse_args(list(options))
    with plain_constructors():
        instantiated: Namespace = parser.instantiate_classes(config)
    return instantiated


def _carry_out(values: Any) -> None:
    from fedlightning.cli.outputs import writing_to
    from fedlightning.data.holdings import Holdings, save_partition
    from fedlightning.plotting.holdings import holdings_figure

    with writing_to({"--save": values.save, "--figure": values.figure}):
        federation = values.data.federation if values.save is None else save_partition(values.data, values.save)
        holdings = Holdings.of(federation)
        print(holdings)
        Path(values.figure).parent.mkdir(parents=True, exist_ok=True)
        holdings_figure(holdings.sizes, holdings.labels, holdings.counts).savefig(values.figure, dpi=150)
        print(f"Figure: {values.figure}")
        if values.save is not None:
            print(f"Partition: {values.save}")
