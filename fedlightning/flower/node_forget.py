"""Removal of what a node keeps of federations that are over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.federation.files.whole_files import why_unwritten
from fedlightning.federation.remote.kept_federations import kept_federations, remove_federations
from fedlightning.flower.node_config import read_node_config


def forget(
    config_file: str, names: Sequence[str], agrees: Callable[[str], bool], say: Callable[[str], None] = print
) -> None:
    """Show what a node keeps of federations, and remove some of it after a question.

    Args:
        config_file: The node's config.
        names: Ids of the federations to forget, or how they begin; all but the one used last if there are none.
        agrees: Asks the user a question, and returns whether the answer is yes.
        say: Shows a line.

    Raises:
        InvalidValueError: If nothing is kept of a federation of this name, or of several.
        UsageError: If the node works for it now, or something cannot be removed.
    """
    folder = read_node_config(config_file).states_folder
    there = kept_federations(folder)
    if not there:
        say(f"{folder} keeps nothing of any federation.")
        return
    for place, each in enumerate(there, 1 - len(there)):
        say(f"{each}{'' if place else ' (used last)'}")
    chosen = [_full(name, [each.name for each in there]) for name in names] or [each.name for each in there[:-1]]
    if not chosen:
        say("There is no earlier one to forget.")
        return
    if not agrees(f"Forget {', '.join(chosen)}? Clients cannot go on with them, nor can their models be exported."):
        say("Nothing was removed.")
        return
    try:
        remove_federations(folder, chosen)
    except OSError as error:
        raise UsageError(f"Not all was removed: {why_unwritten(error, folder)}") from error
    say(f"Forgotten: {', '.join(chosen)}")


def _full(name: str, there: Sequence[str]) -> str:
    """Return the id that begins so."""
    found = [each for each in there if name and each.startswith(name)]
    if len(found) != 1:
        raise InvalidValueError(
            f"federation={name}: expected the beginning of one of {', '.join(there)}, which {len(found)} begin with."
        )
    return found[0]
