"""Transports, by which a server reaches clients."""

from fedlightning.federation.transport.in_process import Evaluator, InProcess

__all__ = ["Evaluator", "InProcess"]
