"""The file federation.yaml: who belongs to a federation, and where its link is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.strict_yaml import read_mapping
from fedlightning.flower.deployment.address import Address

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Federation:
    """Describes a federation.

    Attributes:
        name: Letters, digits and dashes.
        address: Of the link, as nodes dial it.
        listen: Where the link listens, on this machine alone: behind the same port it also takes orders, from anybody.
        nodes: Numbers of the clients by the node's name; all together they are 0 to N-1.
    """

    name: str
    address: Address
    listen: Address
    nodes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        require_name("name", self.name)
        for node in self.nodes:
            require_name("nodes", node)
        _require_each_client_once(self.nodes)
        if not self.listen.is_of_this_machine:
            raise InvalidValueError(
                f"listen={self.listen}: other machines could reach the link's Control API, which has no login and "
                "submits code to every node. Give 127.0.0.1:port, and put the proxy of this folder before it."
            )
        if not self.address.is_of_this_machine and self.address.port == self.listen.port:
            raise InvalidValueError(
                f"listen={self.listen}: the proxy listens on port {self.address.port} already, the one of "
                f"{self.address}. Give the link another port."
            )

    @property
    def num_clients(self) -> int:
        """Return the number N of clients."""
        return sum(len(clients) for clients in self.nodes.values())

    def to_yaml(self) -> str:
        """Return the text of the file."""
        content = {
            "name": self.name,
            "address": str(self.address),
            "listen": str(self.listen),
            "nodes": {name: list(clients) for name, clients in self.nodes.items()},
            "num_clients": self.num_clients,
        }
        return str(yaml.safe_dump(content, sort_keys=False, default_flow_style=None))

    @classmethod
    def read(cls, path: Path) -> Federation:
        """Read the file.

        Raises:
            ValueError: If it does not describe a federation.
        """
        content = read_mapping(path, "a federation, with name, address and nodes")
        expected = ("name", "address", "listen", "nodes", "num_clients")
        if set(content) != set(expected) or not isinstance(content["nodes"], Mapping):
            odd = sorted(set(content) ^ set(expected)) or ["nodes"]
            raise InvalidValueError(f"{path}: '{odd[0]}' is missing or unknown. Expected {', '.join(expected)}.")
        nodes = {str(name): _whole_numbers(path, str(name), clients) for name, clients in content["nodes"].items()}
        try:
            address, listen = (Address.parse(str(content[key]), key) for key in ("address", "listen"))
            federation = cls(str(content["name"]), address, listen, nodes)
        except InvalidValueError as error:
            raise InvalidValueError(f"{path}: {error}") from None
        if content["num_clients"] != federation.num_clients:
            raise InvalidValueError(
                f"{path}: num_clients={content['num_clients']}, but the nodes have {federation.num_clients}."
            )
        return federation


def parse_nodes(entries: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read nodes with their clients, each as ``name=0-3`` or ``name=0,2,5-7``.

    Raises:
        ValueError: If one is written otherwise, or a node is named twice.
    """
    nodes: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        name, equals, ranges = entry.partition("=")
        if not equals or not ranges:
            raise InvalidValueError(f"--nodes {entry}: a node without clients. Expected name=0-3 or name=0,2,5-7.")
        require_name("--nodes", name)
        if name in nodes:
            raise InvalidValueError(f"--nodes {entry}: node '{name}' is given twice. Put its clients into one entry.")
        nodes[name] = tuple(client for part in ranges.split(",") for client in _range(entry, part))
    return nodes


def require_name(what: str, name: str) -> None:
    """Refuse a name that could not stand in file names, services and commands.

    Raises:
        ValueError: If it is such a name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidValueError(f"{what}={name}: expected up to 63 letters, digits and dashes, such as hospital-a.")


def _range(entry: str, part: str) -> range:
    found = _RANGE.fullmatch(part.strip())
    if found is None:
        raise InvalidValueError(
            f"--nodes {entry}: '{part}' is no client. Expected numbers and ranges, such as 0,2,5-7."
        )
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise InvalidValueError(f"--nodes {entry}: the range {part} is empty. Expected {last}-{first}.")
    return range(first, last + 1)


def _require_each_client_once(nodes: Mapping[str, tuple[int, ...]]) -> None:
    holder: dict[int, str] = {}
    for node, clients in nodes.items():
        if not clients:
            raise InvalidValueError(f"nodes: node '{node}' has no clients. Give it at least one.")
        for client in clients:
            if client in holder:
                where = f"nodes '{holder[client]}' and '{node}'" if holder[client] != node else f"node '{node}' twice"
                raise InvalidValueError(f"nodes: client {client} is at {where}. A client is at one node, once.")
            holder[client] = node
    if not holder:
        raise InvalidValueError("nodes: there are none. Give at least one, such as a=0-3.")
    missing = next((number for number in range(len(holder)) if number not in holder), None)
    if missing is not None:
        raise InvalidValueError(
            f"nodes: client {missing} is at no node, though client {max(holder)} is. Number the clients 0 to N-1."
        )


def _whole_numbers(path: Path, node: str, clients: Any) -> tuple[int, ...]:
    if not isinstance(clients, list) or any(type(client) is not int or client < 0 for client in clients):
        raise InvalidValueError(f"{path}: nodes: {node}: {clients}: expected a list of clients, such as [0, 1].")
    return tuple(clients)
