"""FedCP: its objective sample by sample, and both of its models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning import algorithms as fl
from fedlightning.data import IID, PersonalDigits
from fedlightning.models import TwoLayerCNN, head_context
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import FedCP
from tests.support.small import trainer


def cp(lam=1.0, **federation):
    torch.manual_seed(0)
    return FedCP(fl.FedCP(0.1), lam=lam, **{"oracle": Vectorized(), **federation})


def cp_data(**options):
    return PersonalDigits(IID(4), **{"batch_size": 20, "local_steps": 10, **options})


def test_fed_cp_objective_sample_by_sample():
    task = cp(lam=0.7)
    with torch.no_grad():
        task.own_head.weight.mul_(1.5)
        task.received_body[1].weight.mul_(0.8)
    x, y = batch = cp_data().federation.train[torch.arange(6)]
    context = task.own_head.weight.sum(0)
    context = context / context.norm()
    features, received = task.network.body(x), task.received_body(x)
    fit = 0.0
    for f, label in zip(features, y, strict=True):
        scores = task.policy.layers(f * context)
        r = scores[:32].exp() / (scores[:32].exp() + scores[32:].exp())
        logits = task.own_head(r * f) + task.network.head((1 - r) * f)
        fit = fit - logits.log_softmax(0)[label]
    kernels = [
        torch.stack([(-(p - q).square().sum() / (2 * s)).exp() for p in a for q in b]).mean()
        for s in (10, 15, 20, 50)
        for a, b in ((features, features), (received, received), (features, received))
    ]
    discrepancy = sum(kernels[i] + kernels[i + 1] - 2 * kernels[i + 2] for i in range(0, 12, 3))
    values = task.objective(batch)
    torch.testing.assert_close(values["discrepancy"], discrepancy)
    torch.testing.assert_close(values["loss"], fit / 6 + 0.7 * discrepancy)
    assert discrepancy > 1e-4
    torch.testing.assert_close(task(x).log_softmax(1)[torch.arange(6), y].sum(), -fit)


def test_fed_cp_trains_all_but_the_global_head_and_the_received_body():
    task = cp()
    task.objective(cp_data().federation.train[torch.arange(6)])["loss"].backward()
    still = {name for name, p in task.named_parameters() if p.grad is None or not p.grad.abs().max()}
    assert still == {"network.head.weight", "network.head.bias", "received_body.1.weight", "received_body.1.bias"}


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_fed_cp_learns_and_looks_at_both_models():
    task, data = cp(), cp_data(local_steps=30)
    fit = trainer(max_steps=12, val_check_interval=12, check_val_every_n_epoch=None)
    start = task.network.body[1].weight.clone()
    fit.fit(task, data)
    assert fit.callback_metrics["val_accuracy"] > 0.7
    assert fit.callback_metrics["val_global_accuracy"] < 0.4
    received = task.received_body[1].weight
    assert not torch.equal(received, start)
    assert not torch.equal(received, task.network.body[1].weight)  # the last round began there, and moved on
    shared = sum(p.numel() for p in (*task.network.parameters(), *task.policy.parameters()))
    assert task.traffic == (12 * 4 * shared, 12 * 4 * shared)


def test_fed_cp_sends_the_mean_of_both_heads():
    task = cp()
    before = task.network.head.weight.clone()
    trainer(max_steps=1).fit(task, cp_data())
    own = torch.stack([task.personalize(i).own_head.weight for i in range(4)])
    torch.testing.assert_close(task.network.head.weight, (before + own.mean(0)) / 2)
    assert (own - before).abs().max() > 1e-3


@pytest.mark.slow
def test_fed_cp_resumes_bit_for_bit_and_vectorizes(tmp_path):
    ends = []
    for oracle, stops in ((Vectorized(), (4,)), (Vectorized(), (2, 4)), (Sequential(), (4,))):
        path = None
        for stop in stops:
            task = cp(oracle=oracle)
            fit = trainer(max_steps=stop, precision="64-true")
            fit.fit(task, cp_data(), ckpt_path=path, weights_only=False)
            path = tmp_path / "last.ckpt"
            fit.save_checkpoint(path)
        ends.append(torch.cat([p.flatten() for i in range(4) for p in task.personalize(i).parameters()]))
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-10, atol=1e-11)


def test_fed_cp_takes_heads_of_several_layers():
    torch.manual_seed(0)
    task = FedCP(fl.FedCP(0.1), TwoLayerCNN(1, 8, 10, hidden=6))
    context = head_context(task.own_head)
    torch.testing.assert_close(context, (task.own_head[2].weight @ task.own_head[0].weight).sum(0))
    assert not context.requires_grad
    features = torch.randn(3, len(context))
    own, common = task.policy(features, context)
    torch.testing.assert_close(own + common, features)
    assert ((own / features > 0) & (own / features < 1)).all()
    with pytest.raises(ValueError, match=r"Flatten has no nn\.Linear"):
        head_context(nn.Flatten())
    with pytest.raises(ValueError, match=r"FedCP\(lam=-1"):
        cp(lam=-1)
