"""The package's own errors have one base, and keep the built-in class that users catch."""

from __future__ import annotations

import ast
import builtins
import pickle
from importlib import import_module
from pathlib import Path

import pytest

import fedlightning
from fedlightning import FedlightningError
from fedlightning.algorithms import FedAvg
from fedlightning.core.errors import InvalidTypeError, InvalidValueError, chain

PACKAGE = Path(fedlightning.__file__).parent


def error_classes():
    """Dotted module and name of every class of the package that is called an error."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
                yield module, node.name


CLASSES = list(error_classes())


def of_flower(module):
    return module.startswith("fedlightning.flower")


@pytest.mark.flower
@pytest.mark.parametrize(("module", "name"), [each for each in CLASSES if of_flower(each[0])])
def test_every_error_class_of_flower_derives_from_the_common_base(module, name):
    pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
    assert issubclass(getattr(import_module(module), name), FedlightningError)


@pytest.mark.parametrize(("module", "name"), [each for each in CLASSES if not of_flower(each[0])])
def test_every_error_class_derives_from_the_common_base(module, name):
    assert issubclass(getattr(import_module(module), name), FedlightningError)


def test_the_classes_are_found():
    assert {"RoundRejectedError", "ObjectiveError", "SampleError", "CheckpointError", "MistakeError"} <= {
        name for _, name in CLASSES
    }


PLAIN = {
    "core/lazy.py: AttributeError",  # what Python expects of a module without a name
    "data/evaluation.py: IndexError",  # and of a sequence that has ended
    "oracle/auto.py: NotImplementedError",
    "oracle/differentiation.py: RuntimeError",  # raised while an objective runs, and wrapped with the client's number
    "oracle/compiled.py: RuntimeError",
    "oracle/checks/double.py: MemoryError",
}
"""Built-in errors that are raised on purpose, by file."""


def plainly_raised():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                kind = getattr(builtins, node.exc.func.id, None)
                if isinstance(kind, type) and issubclass(kind, Exception):
                    yield f"{path.relative_to(PACKAGE)}: {node.exc.func.id}"


def test_what_the_package_raises_on_purpose_is_its_own():
    """The command shows a traceback for anything else."""
    assert set(plainly_raised()) == PLAIN, "raise one of fedlightning.core.errors instead"


@pytest.mark.parametrize(
    ("lr", "ours", "built_in", "message"),
    [
        (-1.0, InvalidValueError, ValueError, "FedAvg(lr=-1.0): expected > 0."),
        ("fast", InvalidTypeError, TypeError, "FedAvg(lr='fast'): expected a number, not 'fast'."),
    ],
)
def test_a_refused_argument_is_caught_by_base_and_by_built_in_class(lr, ours, built_in, message):
    for caught in (FedlightningError, built_in):
        with pytest.raises(caught) as error:
            FedAvg(lr)
        assert type(error.value) is ours
        assert str(error.value) == message


@pytest.mark.parametrize("kind", [InvalidValueError, InvalidTypeError])
def test_errors_travel_between_processes(kind):
    copy = pickle.loads(pickle.dumps(kind("lr=-1: expected > 0.")))
    assert type(copy) is kind
    assert str(copy) == "lr=-1: expected > 0."


def test_a_chain_of_errors_ends_where_it_comes_back_to_itself():
    first, second, third = ValueError("1"), OSError("2"), KeyError("3")
    third.__cause__, second.__context__ = second, first
    assert list(chain(third)) == [third, second, first]
    first.__context__ = third
    assert list(chain(third)) == [third, second, first]
