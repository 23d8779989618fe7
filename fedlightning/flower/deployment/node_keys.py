"""Keys by which the link knows its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class NodeKey:
    """Holds the key pair of a node on the curve P-384, as OpenSSH writes it, which is what Flower reads.

    Attributes:
        private: Stays at the node; not encrypted, as nodes start without a person.
        public: One line, to be registered at the link.
    """

    private: bytes
    public: bytes


def make_node_key(name: str) -> NodeKey:
    """Make the key pair of a node.

    Args:
        name: Name of the node, which becomes the comment of the public key.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NodeKey(private, public + f" {name}\n".encode())
