"""Federated training of LightningModules that were written for one machine."""

from fedlightning.tasks.federated.module import Federated, federate

__all__ = ["Federated", "federate"]
