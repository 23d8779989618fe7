"""What a node is told of itself: the file ``node.yaml``, which stays at the node."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedlightning.core.errors import FedlightningError, InvalidTypeError, InvalidValueError, MissingFileError
from fedlightning.core.strict_yaml import read_mapping
from fedlightning.core.validation import require

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")
"""What a node may compute on, by Lightning's names."""
PRECISIONS = ("32-true", "bf16-mixed")
"""Precisions that a node may choose itself; those that scale the loss or change parameters are the run's to choose."""


@dataclass(frozen=True)
class NodeConfig:
    """Says who a node is, which clients it holds, where their data are, and what a run may have it do.

    Attributes:
        name: Name of the node in the federation, used in messages and file names.
        superlink: ``host:port`` of the link as this node dials it.
        clients: Numbers of its clients in the federation, in the order of the clients of ``data``; or a mapping from
            these numbers to the numbers of clients in ``data``.
        data: The node's data module as ``class_path`` and ``init_args``; it is never sent.
        root_certificates: File of the certificate that signed the link's, in PEM form.
        private_key: File of the node's private key, which only its owner may read.
        classes: Classes, and packages with all of their classes, that a run may name; all others are refused.
        states: Folder of the states of the clients, and of the config of the last run.
        accelerator: What to compute on, one of :data:`ACCELERATORS`.
        precision: Precision of the objective, one of :data:`PRECISIONS`; None for what the server asks for.
        port: Port of Flower's node process on this machine, from 1 to 65535, open on 127.0.0.1 alone.
        longest_answer: Seconds above 0 after which a worker that has not answered a message is ended and started again;
            None for three times as long as the server waits for the answer, and at least ten minutes.
        folder: Folder that relative paths count from, which is that of the file; it is not written.

    Raises:
        ValueError: If a value is not allowed.
        TypeError: If a value is of another type.
    """

    name: str
    superlink: str
    clients: Sequence[int] | Mapping[int, int]
    data: Mapping[str, Any]
    root_certificates: str = "ca.crt"
    private_key: str = "node.key"
    classes: Sequence[str] = ("fedlightning",)
    states: str = "states"
    accelerator: str = "auto"
    precision: str | None = None
    port: int = 9500
    longest_answer: float | None = None
    folder: Path = field(default_factory=Path, compare=False)

    def __post_init__(self) -> None:
        for name in ("name", "superlink", "root_certificates", "private_key", "states", "accelerator"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InvalidTypeError(f"{name}={getattr(self, name)!r}: expected a text.")
        if not _NAME.fullmatch(self.name):
            raise InvalidValueError(
                f"name={self.name!r}: expected up to 63 letters, digits, dots, hyphens and underscores, the first a "
                "letter or digit."
            )
        _require_address(self.superlink)
        _require_clients(self.clients)
        _require_data(self.data)
        _require_classes(self.classes)
        if self.accelerator not in ACCELERATORS:
            raise InvalidValueError(f"accelerator={self.accelerator!r}: expected one of {', '.join(ACCELERATORS)}.")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise InvalidValueError(
                f"precision={self.precision!r}: expected {' or '.join(PRECISIONS)}, or null for what the server asks. "
                "Other precisions hold for a whole run: give them to its trainer."
            )
        if type(self.port) is not int or not 1 <= self.port <= 65535:
            raise InvalidValueError(f"port={self.port!r}: expected a whole number from 1 to 65535.")
        require(self, "longest_answer", above=0.0, optional=True)

    @property
    def places(self) -> dict[int, int]:
        """The number in the node's data of each client, by its number in the federation."""
        if isinstance(self.clients, Mapping):
            return dict(self.clients)
        return {client: place for place, client in enumerate(self.clients)}

    @property
    def states_folder(self) -> Path:
        """The folder of the states."""
        return self.folder / self.states

    @property
    def certificates_file(self) -> Path:
        """The file of the certificate that signed the link's."""
        return self.folder / self.root_certificates

    @property
    def key_file(self) -> Path:
        """The file of the node's private key."""
        return self.folder / self.private_key

    def require_credentials(self) -> None:
        """Make sure that certificate and key are there, and that nobody else may read the key.

        Raises:
            MissingFileError: If one is not there.
            InvalidValueError: If others may read the key.
        """
        for name, path in (("root_certificates", self.certificates_file), ("private_key", self.key_file)):
            if not path.is_file():
                raise MissingFileError(
                    f"{name}={getattr(self, name)}: there is no file {path}. Copy the node's folder as the server made "
                    "it, key and certificate included."
                )
        if stat.S_IMODE(self.key_file.stat().st_mode) & 0o077:
            raise InvalidValueError(
                f"private_key={self.private_key}: others on this machine may read the key. Run chmod 600 "
                f"{self.key_file}, and make a new key if somebody may have read it."
            )


def read_node_config(path: str | Path) -> NodeConfig:
    """Return a node's config.

    Args:
        path: File ``node.yaml``, in whose folder relative paths begin.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is no YAML, a key is unknown or missing, or a value is not allowed; the message names
            the file.
    """
    file = Path(path).expanduser().absolute()
    content = read_mapping(file, "a node's config, with name, superlink, clients and data")
    known = [each.name for each in fields(NodeConfig) if each.name != "folder"]
    if unknown := [key for key in content if key not in known]:
        raise InvalidValueError(f"{file}: there is no key '{unknown[0]}'. There are {', '.join(known)}.")
    if missing := [key for key in ("name", "superlink", "clients", "data") if key not in content]:
        raise InvalidValueError(f"{file}: '{missing[0]}' is missing.")
    try:
        return replace(NodeConfig(**content), folder=file.parent)
    except FedlightningError as error:
        raise InvalidValueError(f"{file}: {error}") from None


def write_node_config(config: NodeConfig, path: str | Path) -> None:
    """Write a node's config, with every key, so that it can be changed by hand."""
    values = asdict(config)
    del values["folder"]
    values["clients"] = dict(config.clients) if isinstance(config.clients, Mapping) else list(config.clients)
    values["classes"] = list(config.classes)
    Path(path).write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _require_address(address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise InvalidValueError(
            f"superlink={address!r}: expected host:port, such as federation.example.org:8443, without https:// before "
            "it."
        )


def _require_clients(clients: Any) -> None:
    numbers: Any = [*clients, *clients.values()] if isinstance(clients, Mapping) else clients
    whole = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not whole or any(type(each) is not int or each < 0 for each in numbers):
        raise InvalidTypeError(
            f"clients={clients!r}: expected the numbers that the node's clients have in the federation, such as "
            "[0, 1], or a mapping from them to the numbers in the node's data, such as {7: 0}."
        )
    listed = list(clients.values()) if isinstance(clients, Mapping) else list(numbers)
    if not listed:
        raise InvalidValueError("clients=[]: a node has at least one client.")
    if twice := [each for each in listed if listed.count(each) > 1]:
        raise InvalidValueError(f"clients={clients!r}: {twice[0]} is there twice. Each client has data of its own.")


def _require_data(data: Any) -> None:
    known = {"class_path", "init_args"}
    if not isinstance(data, Mapping) or not isinstance(data.get("class_path"), str) or set(data) - known:
        raise InvalidTypeError(
            f"data={data!r}: expected class_path and init_args of the node's data module, such as "
            "{class_path: my_hospital.Scans, init_args: {folder: scans}}."
        )
    if not isinstance(data.get("init_args", {}), Mapping):
        raise InvalidTypeError(f"data.init_args={data['init_args']!r}: expected arguments by name.")


def _require_classes(classes: Any) -> None:
    listed = isinstance(classes, Sequence) and not isinstance(classes, str)
    if not listed or not all(isinstance(each, str) and _DOTTED.fullmatch(each) for each in classes):
        raise InvalidTypeError(
            f"classes={classes!r}: expected a list of class paths and packages, such as [fedlightning, my.Tumour]."
        )
