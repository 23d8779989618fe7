"""``fedlightning compare``: several algorithms on one task, over several seeds."""

from typing import TYPE_CHECKING

from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.compare.arguments import main
    from fedlightning.compare.command import compare

__all__ = ["compare", "main"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "arguments": "main",
        "command": "compare",
    },
)
