"""Adversaries against hand-written formulas."""

from __future__ import annotations

import pytest
import torch

from fedlightning.tasks import DANN
from tests.support.domains import ADVERSARIES, batch, make


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("domain", [[0, 1, 0, 1, 1], [0, 0, 0], [1, 1]], ids=["both", "source", "target"])
def test_objective_sample_by_sample(name, domain):
    task, data = make(ADVERSARIES[name]), batch(domain)
    total = 0.0
    for i in range(len(domain)):
        features = task.features(data["image"][i : i + 1])
        logits = task.classifier(features)
        if domain[i] == 0:
            total = total - logits.log_softmax(1)[0, data["label"][i]]
        if name == "MDD":
            p = task.adversary(features).softmax(1)[0, logits.argmax()]
            risk = -2.0 * p.log() if domain[i] == 0 else -(1 - p).log()
        else:
            seen = features
            if name == "CDAN":
                seen = torch.outer(logits.softmax(1)[0], features[0]).flatten()[None]
            risk = -task.adversary(seen).log_softmax(1)[0, domain[i]]
        total = total - 0.7 * risk
    torch.testing.assert_close(task.objective(data)["loss"], total / len(domain))


@pytest.mark.parametrize("name", ADVERSARIES)
def test_a_client_without_source_has_finite_gradients_for_all_but_the_classifier(name):
    task = make(ADVERSARIES[name])
    loss = task.objective(batch([1, 1, 1]))["loss"]
    grads = torch.autograd.grad(loss, list(task.parameters()), allow_unused=True, materialize_grads=True)
    assert all(torch.isfinite(g).all() for g in grads)
    by_name = dict(zip((n for n, _ in task.named_parameters()), grads, strict=True))
    assert by_name["features.0.weight"].any()
    if name != "CDAN":  # CDAN's adversary sees the predictions
        assert not any(g.any() for n, g in by_name.items() if n.startswith("classifier"))


def test_cdan_does_not_detach_and_mdd_does():
    for name, expected in (("CDAN", True), ("MDD", False)):
        task = make(ADVERSARIES[name])
        data = batch([1, 1, 1])
        features = task.features(data["image"])
        risk = task.game.risk(task.adversary, features, task.classifier(features), data["domain"]).sum()
        grads = torch.autograd.grad(risk, list(task.classifier.parameters()), allow_unused=True)
        assert any(g is not None and g.any() for g in grads) is expected


def test_a_wrong_trade_off_is_named():
    with pytest.raises(ValueError, match=r"DANN\(nu=0\): expected > 0"):
        DANN(nu=0)
