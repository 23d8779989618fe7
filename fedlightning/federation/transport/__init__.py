"""Ways to reach clients."""

from fedlightning.federation.transport.in_process import InProcess

__all__ = ["InProcess"]
