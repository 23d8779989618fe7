"""What happens to updates between clients and server; see :mod:`fedlightning.channel.base`."""

from fedlightning.channel.base import Aggregated, Aggregation, Exchange, Fields, Release, Rows, Sent, Transform

__all__ = ["Aggregated", "Aggregation", "Exchange", "Fields", "Release", "Rows", "Sent", "Transform"]
