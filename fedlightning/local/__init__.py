"""Local solvers that algorithms share."""

from fedlightning.local.descent import Direction, descend

__all__ = ["Direction", "descend"]
