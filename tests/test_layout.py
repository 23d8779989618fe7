"""The shape of the repository: tests are found by the module's name, and no class or file outgrows its reader."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec

from tests.support.paths import ROOT

PACKAGE, TESTS = ROOT / "fedlightning", ROOT / "tests"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__"))
MIRRORED = 0.95
LINES, METHODS, FILE, LOOSE, FOLDER = 250, 20, 400, 6, 36
INHERITED = 20
"""Methods a class may have together with its bases in this package.

A method that overrides one of a library's base, such as a hook of Lightning's, is not counted: it adds nothing to what
a reader of the class has to know beside Lightning. There are no other exemptions.
"""
TOO_LARGE: set[str] = set()
"""Files and classes that are above the limits; the list may only get shorter."""

ORDER = (
    *(
        "core",
        "schedules",
        "proximal",
        "oracle",
        "local",
        "algorithms",
        "participation",
        "channel",
        "models",
        "metrics",
        "plotting",
    ),
    *("federation", "data", "callbacks", "tasks", "flower", "cli", "compare"),
)
"""Folders in the order in which they build on each other: each imports from those before it alone."""

LATE_IMPORTS = {
    "core/serialisation.py": "a file may name objects of all folders; their bases are imported when one is read",
    "cli/__init__.py": "the command compare is imported when it is called",
    "flower/server_app.py": "a server reads its run as the command line does, when Flower calls it",
}
"""Modules with functions that import from later folders, and why."""

BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "object"}
"""Functions that reach an attribute by its name in a string: ``monkeypatch.setattr``, ``patch.object``, ..."""


@cache
def tree(path):
    return ast.parse(path.read_text(), str(path))


def lines_of(node):
    return node.end_lineno - node.lineno + 1


def too_large():
    """Names of the files and classes above the limits."""
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        if len(path.read_text().splitlines()) > FILE:
            yield name
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                if lines_of(node) > LINES or methods > METHODS:
                    yield f"{name}:{node.name}"


def is_written(value):
    """Whether a member of a class is a method that stands in the package; those of dataclasses are generated."""
    if isinstance(value, property | cached_property):
        value = value.fget if isinstance(value, property) else value.func
    value = getattr(value, "__func__", value)
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    return code is not None and code.co_filename.startswith(str(PACKAGE))


def methods_with_inherited(cls):
    """Names of the methods of a class and of its bases in this package, without those that a library's base has too."""
    is_own = {base: base.__module__.startswith("fedlightning") for base in cls.__mro__ if base is not object}
    own = {name for base, mine in is_own.items() if mine for name, value in vars(base).items() if is_written(value)}
    return {name for name in own if not any(name in vars(base) for base, mine in is_own.items() if not mine)}


def classes():
    for path in MODULES:
        if "flower" in path.parts and find_spec("flwr") is None:  # make flower looks at these
            continue
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        yield from (
            each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
        )


def imports_from_later(path):
    """``file:line: module`` for every import from a folder that comes after the module's own in the order."""
    relative = path.relative_to(PACKAGE)
    if len(relative.parts) == 1 and relative.stem not in ORDER:  # the package itself, and what starts it
        return
    place = ORDER.index(relative.parts[0].removesuffix(".py"))
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    allowed = {each for node in functions for each in ast.walk(node)} if str(relative) in LATE_IMPORTS else set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node not in allowed:
            package, _, module = (node.module or "").partition(".")
            if package == "fedlightning" and module and ORDER.index(module.split(".")[0]) > place:
                yield f"{relative}:{node.lineno}: {node.module}"


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


@cache
def private_names():
    """Private functions, classes, variables and attributes of the package."""
    names = set()
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return frozenset(filter(is_private, names))


def reaches(node):
    """The private name of the package that a node of a test's syntax tree reaches for, if it does."""
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return node.attr if node.attr in private_names() and not own else None
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlightning"):
        return next((alias.name for alias in node.names if is_private(alias.name)), None)
    if isinstance(node, ast.Call) and called(node) in BY_NAME:
        given = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        parts = [part for text in given for part in text.split(".")]
        return next((part for part in parts if part in private_names()), None)
    return None


def called(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def private_reaches(path):
    """``file:line: name`` for every private name of the package that a test touches."""
    for node in ast.walk(tree(path)):
        if name := reaches(node):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def test_tests_mirror_modules():
    def mirror(path):
        folder = TESTS / path.relative_to(PACKAGE).parent
        return folder / f"test_{path.stem.lstrip('_')}.py"

    missing = [str(path.relative_to(ROOT)) for path in MODULES if not mirror(path).exists()]
    share = 1 - len(missing) / len(MODULES)
    assert share >= MIRRORED, f"{share:.0%} of the modules have a test of their name; missing: {missing}"


def test_no_class_and_no_file_is_too_large():
    found = set(too_large())
    assert not found - TOO_LARGE, "split what has become too large"
    assert not TOO_LARGE - found, "take what is no longer too large out of TOO_LARGE"


def test_no_class_inherits_too_much():
    counts = {f"{each.__module__}.{each.__name__}": len(methods_with_inherited(each)) for each in classes()}
    assert len(counts) > 300
    assert {name: count for name, count in counts.items() if count > INHERITED} == {}, "have objects instead of bases"


def test_inherited_methods_are_counted():
    from fedlightning.tasks.base import FederatedLightningModule
    from fedlightning.tasks.batched_evaluation import BatchedEvaluationTask

    base, derived = methods_with_inherited(FederatedLightningModule), methods_with_inherited(BatchedEvaluationTask)
    assert derived - base == {"predictions", "evaluate", "_evaluate_batch"}
    assert {"objective", "personalize", "server_state"} <= base
    assert not {"training_step", "log", "trainer", "load_from_checkpoint"} & base


def test_folders_build_on_each_other_in_one_order():
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} <= set(ORDER)
    assert [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports_from_later(path)] == []


def test_few_modules_lie_loose_at_the_top():
    assert len([path for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__")]) <= LOOSE


def test_no_folder_holds_too_many_modules():
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in MODULES)
    assert {name for name, count in counts.items() if count > FOLDER} == {"algorithms"}, (
        "one file an algorithm, no others"
    )


def test_tests_touch_nothing_private():
    assert [reach for path in sorted(TESTS.rglob("*.py")) for reach in private_reaches(path)] == []


def test_a_private_reach_is_seen():
    code = (
        "space = task._space()\nmonkeypatch.setattr(task, '_space', None)\nself._space\nfrom fedlightning.x import _y"
    )
    found = [reaches(node) for node in ast.walk(ast.parse(code))]
    assert sorted(filter(None, found)) == ["_space", "_space", "_y"]


def test_no_test_imports_from_another():
    """What several files need lies in ``tests/support``."""
    imports = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1].startswith("test_")
    ]
    assert imports == []
