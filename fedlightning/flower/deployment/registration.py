"""Nodes that the link lets in: their keys, and the numbers that Flower knows them by."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.flower.deployment.files import PRIVATE, replace
from fedlightning.flower.deployment.flower_commands import FlowerCommands, FlowerError

_KNOWN = "already in use"


class Registration:
    """Registers the public keys of nodes at the link, and unregisters them.

    Flower's list of nodes has numbers and no names: which number belongs to which node is kept in the server's folder.
    """

    def __init__(self, flower: FlowerCommands) -> None:
        """Take Flower's commands for a federation."""
        self._flower = flower
        self._file = flower.server.link / "nodes.json"

    @property
    def ids(self) -> dict[str, str]:
        """Flower's numbers of the registered nodes, by the node's name."""
        if not self._file.exists():
            return {}
        return {str(name): str(number) for name, number in json.loads(self._file.read_text()).items()}

    def add(self, nodes: Sequence[str] = ()) -> dict[str, bool]:
        """Register nodes, and return whether each is new to the link.

        Args:
            nodes: Names; none for all nodes of the federation.

        Raises:
            ValueError: If the federation has no such node.
            FileNotFoundError: If a public key is not there.
            FlowerError: If Flower refuses a key.
        """
        chosen = self._chosen(nodes)
        for node in chosen:
            if not self._flower.server.public_key(node).is_file():
                raise MissingFileError(
                    f"{self._flower.server.public_key(node)}: no such file. It is node.pub of the node's folder."
                )
        return {node: self._register(node) for node in chosen}

    def remove(self, nodes: Sequence[str]) -> None:
        """Have the link refuse nodes, also those that are connected.

        Args:
            nodes: Names, at least one.

        Raises:
            ValueError: If one is not registered.
        """
        for node in self._chosen(nodes):
            ids = self.ids
            if node not in ids:
                raise InvalidValueError(
                    f"--nodes {node}: it is not registered. Registered are {', '.join(ids) or 'none'}."
                )
            self._flower.ask("supernode", "unregister", ids.pop(node))
            self._keep(ids)

    def _register(self, node: str) -> bool:
        key = self._flower.server.public_key(node)
        try:
            answer = self._flower.ask("supernode", "register", str(key), "--name", node)
        except FlowerError as error:
            if _KNOWN in str(error) and node in self.ids:
                return False
            raise
        self._keep({**self.ids, node: str(answer["node-id"])})
        return True

    def _keep(self, ids: dict[str, str]) -> None:
        replace(self._file, json.dumps(ids, indent=1), PRIVATE)

    def _chosen(self, nodes: Sequence[str]) -> list[str]:
        known = self._flower.server.federation.nodes
        if odd := next((node for node in nodes if node not in known), None):
            raise InvalidValueError(f"--nodes {odd}: no such node in this federation. There are {', '.join(known)}.")
        return list(dict.fromkeys(nodes)) or list(known)
