"""Service files for systemd, which starts link and nodes with the machine, and again whenever they end."""

from __future__ import annotations

from pathlib import Path

from fedlightning.core.errors import InvalidValueError

_TEXT = """\
# {about}
# As root: cp {file} /etc/systemd/system/, then systemctl enable --now {file}
[Unit]
Description={about}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
WorkingDirectory={folder}
ExecStart={command}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


def link_service(federation: str, folder: Path, user: str, program: Path) -> tuple[str, str]:
    """Return name and text of the service of the link.

    Args:
        federation: Name of the federation.
        folder: The server's folder.
        user: Who runs it, to whom the folder belongs.
        program: The command ``fedlightning``.

    Raises:
        ValueError: If systemd has no way to write a path.
    """
    command = f"{_quoted(program)} federation link {_quoted(folder)}"
    return _service(f"{federation}-link", f"Link of the federation {federation}", user, folder, command)


def node_service(federation: str, node: str, folder: Path, user: str, program: Path) -> tuple[str, str]:
    """Return name and text of the service of a node.

    A node whose machine was cut off is refused for up to a minute, since the link takes it to be online still: its
    process ends, and is started again every ten seconds until it is let in.

    Args:
        federation: Name of the federation.
        node: Name of the node.
        folder: The node's folder on its machine.
        user: Who runs it, to whom the folder belongs.
        program: The command ``fedlightning`` on that machine.

    Raises:
        ValueError: If systemd has no way to write a path.
    """
    command = f"{_quoted(program)} node start --config {_quoted(folder / 'node.yaml')}"
    about = f"Node {node} of the federation {federation}"
    return _service(f"{federation}-node-{node}", about, user, folder, command)


def _service(name: str, about: str, user: str, folder: Path, command: str) -> tuple[str, str]:
    file = f"fedlightning-{name}.service"
    # Of all settings with paths, WorkingDirectory alone takes the rest of the line, quotes and blanks included.
    where = _line(folder).replace("%", "%%")
    return file, _TEXT.format(about=about, file=file, user=user, folder=where, command=command)


def _quoted(path: Path) -> str:
    """Return a path as a word of a command line in a service file, where ``%`` and ``$`` mean something else."""
    text = _line(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(character.isspace() or character in "\"'\\;" for character in text) else text


def _line(path: Path) -> str:
    """Return a path that may stand in a line, which an end of line or a backslash before it would break."""
    text = str(path)
    if not text.isprintable() or text.endswith("\\"):
        raise InvalidValueError(
            f"{text!r}: systemd cannot read a path with such a sign in it. Choose another folder of letters and digits."
        )
    return text
