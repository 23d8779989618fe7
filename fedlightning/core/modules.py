"""Walks through the modules of a network that tell modules apart by identity.

``nn.Module.named_modules`` tells them apart by their hash, which metrics of torchmetrics compute from their state: a
walk through a task with three metrics takes as long as a local step of a small model.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.jit import ScriptModule

from fedlightning.core.errors import InvalidTypeError


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its first name, parents before children, in the order of ``root.named_modules()``.

    Raises:
        TypeError: At a module of TorchScript, which keeps its tensors where no client's can be put in their place.
    """
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    seen: set[int] = set()
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, ScriptModule):
            raise InvalidTypeError(
                f"'{name}' is a TorchScript module, which keeps its parameters and buffers outside Python, where those "
                "of a client cannot take their place. Give the nn.Module that it was made from; one that is only "
                "evaluated and never changes may lie in a list, as in self.teacher = [network]."
            )
        yield name, module
        children = vars(module)["_modules"]
        for child in reversed(children) if children else ():
            if children[child] is not None:
                waiting.append((f"{name}.{child}" if name else child, children[child]))


def in_evaluation_mode(root: nn.Module) -> frozenset[str]:
    """Return the names of the modules that are in evaluation mode."""
    return frozenset(name for name, module in named_modules(root) if not module.training)


def named_parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter with its first name, in the order of ``root.named_parameters()``."""
    return _named(root, "_parameters")


def named_buffers(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every buffer with its first name, in the order of ``root.named_buffers()``."""
    return _named(root, "_buffers")


def first_trained(root: nn.Module) -> nn.Parameter:
    """Return the first parameter that is trained, of whose dtype all trained ones are; frozen ones may differ."""
    return next((each for each in root.parameters() if each.requires_grad), next(root.parameters()))


def own_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module itself, without those of modules inside."""
    held = vars(module)
    return [tensor for tensor in (*held["_parameters"].values(), *held["_buffers"].values()) if tensor is not None]


def _named(root: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, module in named_modules(root):
        for own, tensor in vars(module)[kind].items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{name}.{own}" if name else own, tensor
