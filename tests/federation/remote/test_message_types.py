"""Classes of messages are found near the algorithm, and nothing is imported for the sake of a name."""

from __future__ import annotations

import sys

import pytest

from fedlightning import algorithms as fl
from fedlightning.algorithms import fed_skip, scaffold
from fedlightning.algorithms.base import Point
from fedlightning.federation.remote.message_types import MessageTypes, type_name
from fedlightning.federation.remote.packet import PacketError


def test_messages_of_the_algorithm_and_of_its_base_are_known():
    types = MessageTypes(fl.FedSkip(0.1))
    for cls in (fed_skip.Message, fed_skip.Upload, Point):
        assert types.named(type_name(cls)) is cls


@pytest.mark.parametrize(
    "name", [type_name(scaffold.Upload), type_name(fl.FedSkip), "os:system", "antigravity:x", "builtins:dict", "", ":"]
)
def test_everything_else_is_refused_unseen(name):
    with pytest.raises(PacketError, match="FedSkip does not use here; nothing was imported"):
        MessageTypes(fl.FedSkip(0.1)).named(name)
    assert "antigravity" not in sys.modules
