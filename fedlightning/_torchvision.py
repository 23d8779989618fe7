"""Make ``import torchvision`` work where its compiled part does not match the installed torch.

The torchvision wheels of the package index are built against CUDA torch. Beside a CPU-only torch their compiled
library cannot load, and the import stops with ``operator torchvision::nms does not exist``, because torchvision
registers shape rules for operators that were never declared. Data sets, transforms and models do not use these
operators, so declaring their schemas is enough. torchmetrics, and with it Lightning, imports torchvision, so the
declaration has to come first; it waits for that import, because it needs torch, which takes seconds to load.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []  # a library's declarations live as long as the object


def declare_missing_operators() -> bool:
    """Declare the operators torchvision expects if its compiled library cannot be loaded.

    Returns:
        Whether anything had to be declared.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _compiled_part_loads(Path(spec.origin).parent):
        return False
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return True


def _compiled_part_loads(package: Path) -> bool:
    import torch

    if hasattr(torch.ops.torchvision, "nms"):
        return True
    for candidate in (*package.glob("_C*.so"), *package.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(candidate))
        except OSError:
            continue
        return True
    return False


class _BeforeTorchvision(MetaPathFinder):
    """Finds no module, but declares the operators when somebody looks for torchvision."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)  # once, and before this module looks for torchvision itself
            declare_missing_operators()
        return None


def declare_before_torchvision() -> None:
    """See to it that the operators are declared when torchvision is first imported."""
    if "torchvision" not in sys.modules:
        sys.meta_path.insert(0, _BeforeTorchvision())
