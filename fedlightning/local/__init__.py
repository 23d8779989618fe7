"""Local solvers that algorithms share."""

from fedlightning.local.alternating import descend_personal, descend_until
from fedlightning.local.descent import Direction, descend

__all__ = ["Direction", "descend", "descend_personal", "descend_until"]
