"""Matrices of a cohort's points in memory of their own, while steps are taken along them.

A client's matrix lies in its row of the points, ``[S, n]``, so that the matrices of all clients do not follow each
other in memory. On several threads, a batched product is then added to them client by client, all threads together; to
matrices that follow each other, every thread adds the products of its own clients, in half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LARGE_FOR_THREADS = 2**18
"""Numbers in one client's matrix from which on all threads compute a product together, without waiting for long."""


def in_own_memory(
    point: Tensor, matrices: Sequence[Tensor], views: Sequence[Tensor]
) -> tuple[list[Tensor], Callable[[], None]]:
    """Copy matrices to memory of their own, if steps are faster there, and find views of the points in the copies.

    Args:
        point: The clients' points, ``[S, n]``.
        matrices: Views of the points, ``[S, a, b]`` each, that follow each other row by row in a client's point.
        views: Further views of the points, and any of the matrices, which are all that is read or written until the
            matrices are copied back.

    Returns:
        The views, in the copies if they lie in copied matrices; and what copies the matrices back.
    """
    stays = list(views), _nothing
    if torch.get_num_threads() == 1 or point.device.type != "cpu" or len(point) < 2:
        return stays
    copies = [
        _Copy(matrix, point)
        for matrix in matrices
        if not matrix.is_contiguous() and matrix[0].numel() < LARGE_FOR_THREADS
    ]
    found = [_found(view, copies, point) for view in views]
    moved = [view for view in found if view is not None]
    if not copies or len(moved) < len(found):
        return stays

    @torch.no_grad()
    def copy_back() -> None:
        for copy in copies:
            copy.matrix.copy_(copy.own)

    return moved, copy_back


class _Copy:
    """Holds a matrix of every client in memory of its own.

    Attributes:
        matrix: The matrix in the points, ``[S, a, b]``.
        own: Its copy.
    """

    def __init__(self, matrix: Tensor, point: Tensor) -> None:
        self.matrix, self.own = matrix, matrix.clone(memory_format=torch.contiguous_format)
        self.size = matrix[0].numel()
        self.first = _column(matrix, point)

    def view(self, view: Tensor, column: int, point: Tensor) -> Tensor:
        """Return the view of the copy that corresponds to a view of the matrix, which begins in a column of it."""
        row, n = (view.storage_offset() - point.storage_offset()) // point.stride(0), point.stride(0)
        strides = [stride // n * self.size if stride >= n else stride for stride in view.stride()]
        return self.own.as_strided(view.shape, strides, row * self.size + column)


def _found(view: Tensor, copies: Sequence[_Copy], point: Tensor) -> Tensor | None:
    """Return where a view is to be read and written; None if that is partly in the copies, or not known."""
    n = point.stride(0)
    is_plain = view.dtype == point.dtype and not view.is_conj() and not view.is_neg()
    if not is_plain or any(stride >= n and stride % n for stride in view.stride()):
        return None
    if not view.numel():
        return view
    first = _column(view, point)
    last = first + sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True) if stride < n
    )
    for copy in copies:
        if copy.first <= first and last < copy.first + copy.size:
            return copy.view(view, first - copy.first, point)
        if first < copy.first + copy.size and last >= copy.first:
            return None
    return view


def _column(view: Tensor, point: Tensor) -> int:
    """Return the column of the points in which a view begins."""
    return int(view.storage_offset() - point.storage_offset()) % point.stride(0)


def _nothing() -> None:
    pass
