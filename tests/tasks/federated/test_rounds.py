"""Metrics of a round have the names that the module gave them."""

from fedlightning.tasks.federated.rounds import named_as_logged


def test_logged_values_have_their_own_names():
    metrics = {"train_loss": 1.0, "drift": 2.0, "train_logged/accuracy": 3.0, "train_logged/train_loss": 4.0}
    assert named_as_logged(metrics) == {"train_loss": 4.0, "drift": 2.0, "accuracy": 3.0}
