"""Ways to reach clients."""

from fedlightning.federation.transport.in_process import Evaluator, InProcess

__all__ = ["Evaluator", "InProcess"]
