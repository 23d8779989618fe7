"""The app of the server, which Flower's process runs for every run: rounds by Lightning, messages by Flower."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.carrier import FlowerCarrier
from fedlightning.flower.deployment.app_folder import CHANGES, CHECKPOINT, FOLDER
from fedlightning.flower.deployment.server_folder import ServerFolder

app = ServerApp()
"""What ``serverapp`` of an app's components names."""


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Carry out a run of the federation whose folder the run's config names.

    Args:
        grid: Reaches the nodes.
        context: Holds the config that ``flwr run`` was given.
    """
    from fedlightning.cli.server import run_server  # it reads runs as the command line does

    values = {name: context.run_config.get(name, "") for name in (FOLDER, CHECKPOINT, CHANGES)}
    if not values[FOLDER]:
        raise InvalidValueError(
            f"{FOLDER}='': which federation? Start runs by fedlightning federation run, or give flwr run --run-config "
            f"'{FOLDER}=\"...\"' with the server's folder."
        )
    server = ServerFolder.find(str(values[FOLDER]))
    run_server(
        FlowerCarrier(grid),
        server.run_file,
        server.federation.num_clients,
        server.runs,
        str(Path(str(values[CHECKPOINT])).expanduser()) if values[CHECKPOINT] else "",
        _changes(str(values[CHANGES]) or "[]"),
    )


def _changes(text: str) -> list[str]:
    """Return the changes of a run's config from how ``flwr run`` was given them."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidValueError(
            f'{CHANGES}={text[:80]!r}: expected a JSON list of options, such as ["--trainer.max_steps=20"]. '
            "fedlightning federation run FOLDER --trainer.max_steps=20 writes it."
        )
    return found
