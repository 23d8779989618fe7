"""What TensorBoard would show."""

from __future__ import annotations

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def events(folder):
    board = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    board.Reload()
    return board
