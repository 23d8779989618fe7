"""What happens to updates between clients and server; see :mod:`fedlightning.channel.base`."""

from fedlightning.channel.base import (
    Aggregated,
    Aggregation,
    Attack,
    Exchange,
    Fields,
    Release,
    Rows,
    Sent,
    Transform,
)
from fedlightning.channel.by_field import ByField
from fedlightning.channel.channel import Channel, Channels, PerPhase
from fedlightning.channel.clip import Clip

__all__ = [
    "Aggregated",
    "Aggregation",
    "Attack",
    "ByField",
    "Channel",
    "Channels",
    "Clip",
    "Exchange",
    "Fields",
    "PerPhase",
    "Release",
    "Rows",
    "Sent",
    "Transform",
]
