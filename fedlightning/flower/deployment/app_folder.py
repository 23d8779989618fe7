"""What Flower is given as its app: a name and two modules that are installed wherever it runs, and no code."""

from __future__ import annotations

import fedlightning

FOLDER, CHECKPOINT, CHANGES = "folder", "ckpt_path", "changes"
"""Names in the config of Flower's run: the server's folder, what to resume from, and changed options as JSON."""

_TEXT = """\
# Given to Flower as its app. It holds no code: server and nodes run the fedlightning that they have installed.
[project]
name = "{name}"
version = "{version}"
description = "A federation of fedlightning"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedlightning"
flwr-version-target = "{flower}"

[tool.flwr.app.components]
serverapp = "fedlightning.flower.server_app:app"
clientapp = "fedlightning.flower.node_app:app"

[tool.flwr.app.config]  # set by fedlightning federation run
{folder} = ""
{checkpoint} = ""
{changes} = "[]"
"""


def app_toml(name: str, flower: str) -> str:
    """Return the only file of the app, ``pyproject.toml``.

    Args:
        name: Name of the federation.
        flower: Version of Flower.
    """
    version = ".".join(fedlightning.__version__.split(".")[:3])
    return _TEXT.format(
        name=name.lower(), version=version, flower=flower, folder=FOLDER, checkpoint=CHECKPOINT, changes=CHANGES
    )
