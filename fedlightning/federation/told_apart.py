"""Shortens the descriptions of two objects to the arguments in which they differ."""

from __future__ import annotations

import ast


def told_apart(one: str, other: str) -> tuple[str, str]:
    """Return two expressions without the arguments in which they agree.

    ``Channel(client=[Clip(norm=1.0), TopK(fraction=0.1)], server=[])`` beside the same with another fraction becomes
    ``Channel(client=[..., TopK(fraction=0.1)])``. Texts that are no expressions, or have nothing in common, stay whole.

    Args:
        one: A Python expression, with arguments by name.
        other: Another one.
    """
    try:
        first, second = (ast.parse(text, mode="eval").body for text in (one, other))
    except (SyntaxError, ValueError):
        return one, other
    return _reduced(first, second), _reduced(second, first)


def _reduced(node: ast.expr, other: ast.expr) -> str:
    """Return an expression without what it has in common with another one."""
    if isinstance(node, ast.Call) and isinstance(other, ast.Call) and _are_alike(node, other):
        known = {each.arg: each.value for each in other.keywords}
        shown = [
            f"{each.arg}={_reduced(each.value, known[each.arg]) if each.arg in known else ast.unparse(each.value)}"
            for each in node.keywords
            if each.arg not in known or not _same(each.value, known[each.arg])
        ]
        return f"{ast.unparse(node.func)}({', '.join(shown)})"
    if isinstance(node, ast.List) and isinstance(other, ast.List) and len(node.elts) == len(other.elts):
        pairs = zip(node.elts, other.elts, strict=True)
        return f"[{', '.join('...' if _same(own, its) else _reduced(own, its) for own, its in pairs)}]"
    return ast.unparse(node)


def _are_alike(one: ast.Call, other: ast.Call) -> bool:
    """Return whether two calls make objects of the same class, with arguments by name alone."""
    return _same(one.func, other.func) and not one.args and not other.args


def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)
