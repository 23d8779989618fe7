"""Transports, the ways in which a server reaches clients."""

from fedlightning.federation.transport.in_process import InProcess

__all__ = ["InProcess"]
