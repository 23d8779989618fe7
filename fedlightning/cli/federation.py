"""``fedlightning federation``: makes and steers federations on several machines; see ``docs/federation.md``.

Help, version and mistakes are answered before Flower is imported, and Lightning never is: the run has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedlightning.cli.early import MistakeError, check
from fedlightning.cli.federation_commands import COMMANDS, Given
from fedlightning.cli.groups import chosen, refuse
from fedlightning.cli.parser import underscored
from fedlightning.cli.run_changes import is_change, require_changes

_HELP = f"""usage: fedlightning federation {{{",".join(COMMANDS)}}} FOLDER ...

Train over machines that keep their data: certificates, keys and configs, the link between server and nodes, and runs.

commands:
{chr(10).join(f"  {name:9} {command.about}" for name, command in COMMANDS.items())}

On the server, from the configs of a simulation to a run of the federation:

  fedlightning federation new digits --address fed.example.org:8443 --nodes a=0 b=1 \\
      --config configs/domain_adaptation/base.yaml --config configs/domain_adaptation/fed_mm.yaml
  fedlightning federation link digits          # goes on until it is stopped
  fedlightning federation register digits
  fedlightning federation run digits

digits/nodes/a is copied to the machine of node a: fedlightning node start --config node.yaml
"""


def main(args: Sequence[str]) -> None:
    """Parse a command of the group and carry it out.

    Args:
        args: The arguments after ``fedlightning federation``.
    """
    command, parser, rest = chosen("federation", args, COMMANDS, _HELP)
    changes = [each for each in rest if is_change(each)] if command.takes_changes else []
    if bare := next((each for each in changes if "=" not in each), None):
        refuse(f"{bare}: there is no value. Expected {bare}=...")
    values = vars(parser.parse_args([underscored(each) for each in rest if each not in changes]))
    try:
        _check_configs(values)
        given = Given(values, tuple(changes))
        if changes:
            require_changes(given.folder, changes)
    except MistakeError as mistake:
        refuse(str(mistake))
    command.carry_out(given)


def _check_configs(values: Mapping[str, object]) -> None:
    files = values.get("config")
    if isinstance(files, list):
        check("fit", [f"--config={file}" for file in files])
