"""``fedlightning privacy``: how much noise a budget takes, and what noise leaves to be known."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlightning.channel.privacy import RDP, Accountant, Sampling, noise_multiplier, sampling_of
from fedlightning.cli.groups import Command, chosen, refuse
from fedlightning.core.errors import FedlightningError
from fedlightning.participation import Full, Participation, Poisson, Uniform

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def main(args: Sequence[str]) -> None:
    """Parse a command of the group and carry it out.

    Args:
        args: The arguments after ``fedlightning privacy``.
    """
    command, parser, rest = chosen("privacy", args, COMMANDS, _HELP)
    values = parser.instantiate_classes(parser.parse_args(list(rest)))
    try:
        command.carry_out(values, _sampling(values))
    except FedlightningError as error:
        refuse(str(error))


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument("--delta", type=float, required=True, help="well below one over the number of clients")
    parser.add_argument("--rounds", type=int, required=True, help="rounds of the run")
    parser.add_argument("--clients", type=int, required=True, help="number of all clients, N")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="probability of each client to take part: Poisson(rate)"
    )
    parser.add_argument("--size", type=int | None, default=None, help="size of a cohort in its place: Uniform(size)")
    parser.add_argument("--phases", type=int, default=1, help="phases of a round: 2 for CDMA and CatalystScaffoldS")
    parser.add_argument("--accountant", type=Accountant, default=RDP(), help="RDP, or PLD, which is tight and slow")


def _add_noise(parser: ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=float, required=True, help="the budget")
    _add_run(parser)


def _add_spent(parser: ArgumentParser) -> None:
    parser.add_argument("--multiplier", type=float, required=True, help="of GaussianNoise")
    _add_run(parser)


def _noise(values: Namespace, sampling: Sampling) -> None:
    if values.epsilon <= 0:
        refuse(f"--epsilon={values.epsilon}: expected a number above 0.")
    releases = values.rounds * values.phases
    print(
        _report(noise_multiplier(values.accountant, sampling, releases, values.epsilon, values.delta), values, sampling)
    )


def _spent(values: Namespace, sampling: Sampling) -> None:
    if values.multiplier <= 0:
        refuse(f"--multiplier={values.multiplier}: expected a number above 0.")
    print(_report(values.multiplier, values, sampling))


def _sampling(values: Namespace) -> Sampling:
    for name in ("rounds", "clients", "phases"):
        if getattr(values, name) < 1:
            refuse(f"--{name}={getattr(values, name)}: expected a whole number from 1 on.")
    if not 0 < values.delta < 1:
        refuse(f"--delta={values.delta}: expected a number between 0 and 1.")
    if values.size is not None and values.rate != 1.0:
        refuse("--size and --rate: cohorts are of a fixed size or drawn with a rate. Give one of them.")
    participation: Participation = Full() if values.rate == 1.0 else Poisson(values.rate)
    if values.size is not None:
        participation = Uniform(size=values.size)
    participation.check(values.clients)
    return sampling_of(participation, values.clients)


def _report(multiplier: float, values: Namespace, sampling: Sampling) -> str:
    """Return what noise of a multiplier means, in lines of a name and a value."""
    releases = {multiplier: values.rounds * values.phases}
    rows = {
        "multiplier": f"{multiplier:g}",
        "epsilon": f"{values.accountant.epsilon(sampling, releases, values.delta):.4g}",
        "delta": f"{values.delta:g}",
        "releases": f"{values.rounds * values.phases}",
        "hidden": sampling.protects,
        "noise": f"{multiplier / sampling.expected:.3g} clip norms, in every coordinate of the mean",
    }
    return "\n".join(f"{name:11}{value}" for name, value in rows.items())


COMMANDS = {
    "noise": Command("Compute the noise multiplier that keeps a run within a budget.", _add_noise, _noise),
    "spent": Command("Compute the epsilon of a run with a noise multiplier.", _add_spent, _spent),
}
"""The commands of the group by name."""

_HELP = f"""usage: fedlightning privacy {{{",".join(COMMANDS)}}} ...

How much noise hides a single client, and what noise leaves to be known.

commands:
{chr(10).join(f"  {name:6} {command.about}" for name, command in COMMANDS.items())}

  fedlightning privacy noise --epsilon 2 --delta 1e-5 --rounds 100 --clients 1000 --rate 0.1
  fedlightning privacy spent --multiplier 1.5 --delta 1e-5 --rounds 100 --clients 1000 --rate 0.1

The multiplier is that of GaussianNoise; fedlightning privacy COMMAND --help lists the arguments.
"""
