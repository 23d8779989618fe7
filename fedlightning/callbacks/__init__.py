"""Callbacks for federated training."""

from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.callbacks.history import History
from fedlightning.callbacks.last_checkpoint import LastCheckpoint
from fedlightning.callbacks.pictures import LogPictures
from fedlightning.callbacks.progress import RoundProgressBar

__all__ = ["EvaluateClients", "History", "LastCheckpoint", "LogPictures", "RoundProgressBar"]
