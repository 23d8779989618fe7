"""Callbacks for federated training."""

from typing import TYPE_CHECKING

from fedlightning.core.lazy import lazily

if TYPE_CHECKING:
    from fedlightning.callbacks.client_values_file import ClientValuesFile
    from fedlightning.callbacks.clients import EvaluateClients
    from fedlightning.callbacks.history import History
    from fedlightning.callbacks.last_checkpoint import LastCheckpoint
    from fedlightning.callbacks.pictures import LogPictures
    from fedlightning.callbacks.privacy_budget import PrivacyBudget
    from fedlightning.callbacks.progress import RoundProgressBar
    from fedlightning.callbacks.round_report import RoundReport

__all__ = [
    "ClientValuesFile",
    "EvaluateClients",
    "History",
    "LastCheckpoint",
    "LogPictures",
    "PrivacyBudget",
    "RoundProgressBar",
    "RoundReport",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "client_values_file": "ClientValuesFile",
        "clients": "EvaluateClients",
        "history": "History",
        "last_checkpoint": "LastCheckpoint",
        "pictures": "LogPictures",
        "privacy_budget": "PrivacyBudget",
        "progress": "RoundProgressBar",
        "round_report": "RoundReport",
    },
)
