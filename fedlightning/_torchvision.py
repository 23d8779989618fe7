"""Make ``import torchvision`` work where its compiled part does not match the installed torch.

The torchvision wheels of the package index are built against CUDA torch. Beside a CPU-only torch their compiled
library cannot load, and the import stops with ``operator torchvision::nms does not exist``, because torchvision
registers shape rules for operators that were never declared. Data sets, transforms and models do not use these
operators, so declaring their schemas is enough. torchmetrics, and with it Lightning, imports torchvision: this module
therefore runs before anything else of the package.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []  # a library's declarations live as long as the object


def declare_missing_operators() -> bool:
    """Declare the operators torchvision expects if its compiled library cannot be loaded.

    Returns:
        Whether anything had to be declared.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _compiled_part_loads(Path(spec.origin).parent):
        return False
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return True


def _compiled_part_loads(package: Path) -> bool:
    if hasattr(torch.ops.torchvision, "nms"):
        return True
    for candidate in (*package.glob("_C*.so"), *package.glob("_C*.pyd")):
        try:
            torch.ops.load_library(str(candidate))
        except OSError:
            continue
        return True
    return False


declare_missing_operators()
