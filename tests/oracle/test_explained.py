"""What is raised in place of an error says what the user can do."""

from __future__ import annotations

import pytest

from fedlightning.oracle.errors import BatchedError, ChunkTooLargeError, NotTheClientsError
from fedlightning.oracle.explained import explained

NO_ITEM = (
    "vmap: It looks like you're calling .item() on a Tensor. Please try to rewrite it. If error is occurring somewhere "
    "inside PyTorch internals, please file a bug report."
)


def test_nobody_is_sent_to_file_a_report():
    text = str(explained(RuntimeError(NO_ITEM), "Task.objective"))
    assert "calling .item() on a Tensor. Please try to rewrite it.\nTypical causes" in text
    assert "file a bug report" not in text


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            ChunkTooLargeError,
            "Lower chunk_size",
        ),
        (RuntimeError("called random operation while in randomness error mode"), BatchedError, "begun to draw random"),
        (ValueError("no"), BatchedError, "cannot run for all clients at once .*: ValueError: no"),
        (NotTheClientsError("theirs"), NotTheClientsError, "^theirs$"),
    ],
)
def test_errors_by_their_cause(error, kind, text):
    found = explained(error, "Task.objective")
    assert type(found) is kind
    with pytest.raises(kind, match=text):
        raise found
