"""The folder of a federation's server: what lies where, and what may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.deployment.federation_file import Federation


@dataclass(frozen=True)
class ServerFolder:
    """Names the files and folders of a federation at its server.

    Attributes:
        path: The folder, absolute.
    """

    path: Path

    @classmethod
    def find(cls, folder: str | Path) -> ServerFolder:
        """Find the server's folder: the folder given, or ``server`` in it.

        Raises:
            FileNotFoundError: If neither has a federation.yaml.
        """
        given = Path(folder).expanduser().absolute()
        for path in (given, given / "server"):
            if (path / "federation.yaml").is_file():
                return cls(path)
        raise MissingFileError(
            f"{folder}: no federation is there, neither {given / 'federation.yaml'} nor "
            f"{given / 'server' / 'federation.yaml'}. Make one by fedlightning federation new {folder}."
        )

    @cached_property
    def federation(self) -> Federation:
        """Read who belongs to the federation, and where its link is."""
        return Federation.read(self.path / "federation.yaml")

    @property
    def federation_file(self) -> Path:
        """The file that describes the federation."""
        return self.path / "federation.yaml"

    @property
    def run_file(self) -> Path:
        """The file that describes the run."""
        return self.path / "run.yaml"

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.path / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The private key of the authority."""
        return self.path / "ca.key"

    @property
    def certificate(self) -> Path:
        """The certificate of the link."""
        return self.path / "server.crt"

    @property
    def key(self) -> Path:
        """The private key of the link."""
        return self.path / "server.key"

    @property
    def link(self) -> Path:
        """What Flower keeps: database, logs, configuration of its commands."""
        return self.path / "link"

    @property
    def app(self) -> Path:
        """The folder that Flower is given as its app; it holds no code."""
        return self.path / "app"

    @property
    def runs(self) -> Path:
        """Checkpoints and logs of runs."""
        return self.path / "runs"

    @property
    def services(self) -> Path:
        """Service files of this machine."""
        return self.path / "services"

    @property
    def proxy(self) -> Path:
        """The configuration of the proxy before the link."""
        return self.path / "proxy"

    def public_key(self, node: str) -> Path:
        """Return the file of a node's public key."""
        return self.path / "nodes" / f"{node}.pub"
