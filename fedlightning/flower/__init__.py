"""Federations over Flower's network: the only package here that imports ``flwr``.

Flower carries messages between the server and nodes that only dial out, knows who they are, and keeps messages until
they are fetched. Rounds, client states and checks are this package's own (:mod:`fedlightning.federation`).
"""

from __future__ import annotations

import sys

from fedlightning.core.errors import MissingPackageError
from fedlightning.core.requirements import how_to_install, imported

if sys.version_info < (3, 11):
    raise MissingPackageError(
        "fedlightning.flower needs Python 3.11 or newer, because Flower does; this is Python "
        f"{sys.version_info.major}.{sys.version_info.minor}.",
        name="flwr",
    )
try:
    imported("flwr.serverapp")
except MissingPackageError as error:
    raise MissingPackageError(
        f"fedlightning.flower needs Flower, and Python 3.11 or newer. {how_to_install('flwr')}", name="flwr"
    ) from error
