"""A stand-in for a CUDA graph: what is captured runs again on the same memory, as on a GPU, but on a CPU."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class _Capture(TorchDispatchMode):
    """Notes every operation with the memory that it reads and writes, as it was shaped then."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _aliases((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, given, _aliases(result)))
        return result

    @torch.no_grad()
    def replay(self):
        for func, given, places in self.operations:
            args, kwargs = _aliases(given)
            results = func(*args, **kwargs)
            if not (func._schema.is_mutable or func.is_view):
                for place, value in zip(tree_leaves(places), tree_leaves(results), strict=True):
                    if isinstance(place, torch.Tensor):
                        place.copy_(value)


def _aliases(values):
    return tree_map_only(torch.Tensor, torch.Tensor.detach, values)


def captured(function, device):
    """Return where the function's results will lie, filled with NaN until the first replay, and what fills them."""
    function()
    mode = _Capture()
    with torch.no_grad(), mode:
        results = function()
    for result in results:
        if result.is_floating_point():
            result.fill_(torch.nan)
    return results, mode.replay


def not_captured(function, device):
    """Rehearse, and give up."""
    function()
