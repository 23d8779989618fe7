"""``fedlightning compare``: several algorithms on one task, over several seeds."""

from fedlightning.compare.command import compare, main

__all__ = ["compare", "main"]
