"""References of docstrings, as the API pages show them."""

from __future__ import annotations

import re
from typing import Any

import griffe

from website.docstrings import ROLE


def unmarked(text: str) -> str:
    """Return a docstring whose references are plain names in code type, and whose examples are indented blocks."""
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return ROLE.sub(lambda match: f"`{match[1].rsplit('.', 1)[-1]}`", text)


class Roles(griffe.Extension):
    """Turns the notation of Sphinx, which docstrings use, into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = unmarked(obj.docstring.value)
