"""Yogi against its formula in NumPy, as a server's optimizer and on clients."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.local import Yogi
from fedlightning.local.torch_optimizers import require_elementwise
from tests.support.small import Line, regression_data, trainer


def by_hand(start, gradients, lr, betas, tau):
    w, m, v = start.copy(), np.zeros_like(start), np.full_like(start, tau**2)
    for g in gradients:
        m = betas[0] * m + (1 - betas[0]) * g
        v = v - (1 - betas[1]) * g**2 * np.sign(v - g**2)
        w = w - lr * m / (np.sqrt(v) + tau)
    return w


def parameters_of(task):
    return torch.cat([p.detach().flatten() for p in task.parameters()]).numpy()


def test_steps_follow_the_formula():
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=4), draw.normal(size=(9, 4)) * 10.0 ** draw.integers(-3, 2, (9, 4))
    w = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = Yogi([w], lr=0.1, betas=(0.8, 0.7), tau=0.05)
    for g in gradients:
        w.grad = torch.from_numpy(g)
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), by_hand(start, gradients, 0.1, (0.8, 0.7), 0.05), rtol=1e-12)
    require_elementwise(Yogi, torch.zeros(1, dtype=torch.float64), "local_optimizer")


def test_it_makes_fed_avg_fed_yogi():
    hyper = {"lr": 0.1, "betas": (0.9, 0.99), "tau": 1e-2}
    points = []
    for server in (None, partial(Yogi, **hyper)):
        torch.manual_seed(0)
        task = Line(FedAvg(0.05), dropout=0.0, server_optimizer=server).double()
        start = parameters_of(task)
        trainer(max_steps=1, precision="64-true").fit(task, regression_data())
        points.append(parameters_of(task))
    proposal, ours = points
    np.testing.assert_allclose(ours, by_hand(start, [start - proposal], **hyper), rtol=1e-10)


def test_its_state_is_saved_and_restored(tmp_path):
    ends = []
    for stops in ((4,), (2, 4)):
        path = None
        for stop in stops:
            torch.manual_seed(0)
            task, fit = Line(FedAvg(0.05), server_optimizer=Yogi), trainer(max_steps=stop)
            fit.fit(task, regression_data(), ckpt_path=path, weights_only=False)
            path = tmp_path / "last.ckpt"
            fit.save_checkpoint(path)
        ends.append(torch.cat([p.detach().flatten() for p in task.parameters()]))
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(("name", "value"), [("lr", -1.0), ("betas", (0.9, 1.0)), ("tau", 0.0)])
def test_values_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=rf"Yogi\({name}="):
        Yogi([torch.zeros(1)], **{name: value})
