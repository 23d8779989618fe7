"""Classes and their arguments, read from source files without importing them.

Importing Lightning takes several seconds, reading the few files that a command line names some milliseconds. Nothing is
guessed: where a source leaves a doubt the answer is :data:`None`, and whoever asks leaves the question to the parser.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fedlightning.core.errors import FedlightningError

_DEPTH = 12  # of re-exports and base classes


class NoSuchNameError(FedlightningError, LookupError):
    """Signals that a module does not exist, or has no object of the requested name.

    Attributes:
        module: The innermost module that exists; None if there is none at all.
        name: What it does not have.
    """

    def __init__(self, module: str | None, name: str) -> None:
        super().__init__(module, name)
        self.module = module
        self.name = name


@dataclass(frozen=True)
class Definition:
    """Represents a class or function in a source file.

    Attributes:
        module: Dotted name of the file.
        node: Its syntax tree.
    """

    module: str
    node: ast.ClassDef | ast.FunctionDef


def find(path: str) -> Definition | None:
    """Return the definition to which a dotted path leads, through re-exports and aliases.

    Returns:
        None if sources do not tell.

    Raises:
        NoSuchNameError: If there is certainly nothing of that name.
    """
    module, _, name = path.rpartition(".")
    return _find(module, name, _DEPTH) if module else None


def arguments(definition: Definition) -> list[str] | None:
    """Return a constructor's argument names, base-class arguments included; None if sources do not tell."""
    return _arguments(definition, _DEPTH)


def names(module: str) -> list[str]:
    """Return a module's ``__all__``, or its own public classes and functions; empty if sources do not tell."""
    tree = _tree(module)
    if tree is None:
        return []
    own = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return _listed(tree) or [name for name in own if not name.startswith("_")]


def missing_module(path: str) -> str | None:
    """Return the first missing module on the path to a class; None if sources show none missing."""
    parts = path.split(".")[:-1]
    for end in range(1, len(parts) + 1):
        try:
            _source(".".join(parts[:end]))
        except NoSuchNameError:
            return ".".join(parts[:end])
    return None


def method_arguments(definition: Definition, method: str) -> list[str] | None:
    """Return the names of a method's arguments except ``self``; None if the class does not define the method."""
    found = _own_method(definition.node, method)
    return None if found is None else _names(found)


def _find(module: str, name: str, depth: int) -> Definition | None:
    tree = _tree(module)
    if tree is None or depth == 0:
        return None
    bound = list(_bindings(tree, name))
    if not bound:
        if _submodule(module, name) is not None or _is_open(tree):
            return None
        raise NoSuchNameError(module, name)
    for node in reversed(bound):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            return Definition(module, node)
        if isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            given = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return None if origin is None else _find_quietly(origin, given, depth - 1)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id != name:
            return _find_quietly(module, node.value.id, depth - 1)
    return None


def _find_quietly(module: str, name: str, depth: int) -> Definition | None:
    """Return the definition as :func:`find` does, or None for a name that is not found."""
    try:
        return _find(module, name, depth)
    except NoSuchNameError:
        return None


def _arguments(definition: Definition, depth: int) -> list[str] | None:
    node = definition.node
    if depth == 0 or not isinstance(node, ast.ClassDef) or _own_method(node, "__new__") is not None:
        return None
    decorators = {_last_name(decorator) for decorator in node.decorator_list}
    if not decorators <= {"dataclass", "final", "runtime_checkable", "notes_reads_of"}:
        return None
    init = _own_method(node, "__init__")
    if init is None and "dataclass" in decorators:
        inherited = _of_bases(definition, depth)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and _is_field(each)]
        own = [each.target.id for each in fields if isinstance(each.target, ast.Name)]
        return None if inherited is None else list(dict.fromkeys([*inherited, *own]))
    if init is None:
        return _of_bases(definition, depth)
    if init.args.vararg is not None:
        return None
    if init.args.kwarg is None:
        return _names(init)
    inherited = _of_bases(definition, depth) if _is_handed_on(init, init.args.kwarg.arg) else None
    return None if inherited is None else list(dict.fromkeys([*_names(init), *inherited]))


def _of_bases(definition: Definition, depth: int) -> list[str] | None:
    assert isinstance(definition.node, ast.ClassDef)
    names: dict[str, None] = {}
    for base in definition.node.bases:
        if _last_name(base) in ("object", "ABC", "Generic", "Protocol"):
            continue
        found = _base(definition.module, base, depth)
        theirs = None if found is None else _arguments(found, depth - 1)
        if theirs is None:
            return None
        names |= dict.fromkeys(theirs)
    return list(names)


def _base(module: str, base: ast.expr, depth: int) -> Definition | None:
    if isinstance(base, ast.Subscript):  # Base[int]
        base = base.value
    return _find_quietly(module, base.id, depth - 1) if isinstance(base, ast.Name) else None


def _own_method(node: ast.ClassDef | ast.FunctionDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _names(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args)][1:] + [each.arg for each in given.kwonlyargs]


def _is_field(statement: ast.AnnAssign) -> bool:
    return isinstance(statement.target, ast.Name) and "ClassVar" not in ast.unparse(statement.annotation)


def _is_handed_on(init: ast.FunctionDef, kwargs: str) -> bool:
    """Return whether ``**kwargs`` is used once, in the call of the base class's constructor."""
    uses = [each for each in ast.walk(init) if isinstance(each, ast.Name) and each.id == kwargs]
    handed = [
        keyword
        for call in ast.walk(init)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
        for keyword in call.keywords
        if keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == kwargs
    ]
    return len(uses) == len(handed) == 1


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Call):
        return _last_name(expression.func)
    if isinstance(expression, ast.Subscript):
        return _last_name(expression.value)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _bindings(tree: ast.Module, name: str) -> Iterator[ast.stmt]:
    """Yield the statements of a module that bind a name, including statements under ``if`` and ``try``."""
    for node in _statements(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound = node.name == name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            bound = any((alias.asname or alias.name.partition(".")[0]) == name for alias in node.names)
        else:
            bound = any(
                isinstance(e, ast.Name) and e.id == name and isinstance(e.ctx, ast.Store) for e in ast.walk(node)
            )
        if bound:
            yield node


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _statements(node)
        elif isinstance(node, ast.stmt):
            yield node


def _is_open(tree: ast.Module) -> bool:
    """Return whether a module may have names that the source does not show."""
    lazy = any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last_name(node.value) == "lazily"
        for node in tree.body
    )  # this package's own, which repeat their imports
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return True
    changed = ("globals", "setattr", "__dict__", "modules", "exec")
    used = any(_last_name(node) in changed for node in ast.walk(tree) if isinstance(node, ast.expr))
    return used or (not lazy and any(True for _ in _bindings(tree, "__getattr__")))


def _listed(tree: ast.Module) -> list[str]:
    for node in _bindings(tree, "__all__"):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple):
            return [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return []


def _origin(module: str, node: ast.ImportFrom) -> str | None:
    """Return the module from which an import statement takes names."""
    if not node.level:
        return node.module
    source = _source(module)
    if source is None:
        return None
    parts = module.split(".")
    parts = parts if source.name == "__init__.py" else parts[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])]) or None


@cache
def _tree(module: str) -> ast.Module | None:
    source = _source(module)
    if source is None:
        return None
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


@cache
def _source(module: str) -> Path | None:
    """Return the source file of a module; None if there is no readable source file.

    Raises:
        NoSuchNameError: If there is no such module.
    """
    parent, _, name = module.rpartition(".")
    if parent:
        return _submodule_or_refuse(parent, name)
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        raise NoSuchNameError(None, name)
    return Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None


def _submodule_or_refuse(parent: str, name: str) -> Path | None:
    package = _source(parent)
    if package is None or package.name != "__init__.py":
        return None  # no package that lies in a folder; perhaps a class within a class
    found = _submodule(parent, name)
    tree = _tree(parent)
    if found is None and tree is not None and not _is_open(tree) and not any(True for _ in _bindings(tree, name)):
        raise NoSuchNameError(parent, name)
    return found if found is not None and found.suffix == ".py" else None


def _submodule(parent: str, name: str) -> Path | None:
    """Return where a submodule lies: a source file, or any other file or folder of that name."""
    package = _source(parent)
    if package is None or package.name != "__init__.py":
        return None
    for candidate in (package.parent / name / "__init__.py", package.with_name(f"{name}.py")):
        if candidate.is_file():
            return candidate
    return next(iter(sorted(package.parent.glob(f"{name}.*"))), None) or next(
        (folder for folder in (package.parent / name,) if folder.is_dir()), None
    )
