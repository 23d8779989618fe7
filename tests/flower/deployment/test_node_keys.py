"""Keys of nodes are what Flower reads."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedlightning.flower.deployment.node_keys import make_node_key


def test_flower_reads_the_public_key(tmp_path):
    from flwr.cli.supernode.register import try_load_public_key

    (tmp_path / "node.pub").write_bytes(make_node_key("a").public)
    assert try_load_public_key(tmp_path / "node.pub").startswith(b"-----BEGIN PUBLIC KEY-----")


def test_what_the_private_key_signs_the_public_key_confirms():
    key, other = make_node_key("a"), make_node_key("a")
    assert key.private != other.private
    assert key.public.endswith(b" a\n")
    private, public = load_ssh_private_key(key.private, None), load_ssh_public_key(key.public)
    assert isinstance(private.curve, ec.SECP384R1)
    public.verify(private.sign(b"now", ec.ECDSA(hashes.SHA256())), b"now", ec.ECDSA(hashes.SHA256()))
