"""The synthetic federation against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlightning.data import Synthetic


def clients(data):
    federation = data.federation
    x, y = federation.train.tensors
    return [(x[part], y[part]) for part in federation.partition]


def test_shapes_and_sizes():
    data = Synthetic(alpha=0.5, beta=0.5)
    federation = data.federation
    assert data.num_clients == 30
    x, y = federation.train.tensors
    assert x.shape[1] == 60
    assert x.dtype == torch.float32
    assert set(y.tolist()) <= set(range(10))
    sizes = federation.partition.sizes
    assert (sizes >= 45).all()  # 90 % of at least 50
    drawn = np.floor(np.random.default_rng(0).lognormal(4, 2, 30)) + 50
    assert sizes.tolist() == np.floor(0.9 * drawn).tolist()
    assert len(federation.val) == drawn.sum() - sizes.sum()
    assert federation.val is federation.test


def test_inputs_have_the_stated_mean_and_variance():
    data = Synthetic(alpha=0.0, beta=4.0, num_clients=400)
    x = [x for x, _ in clients(data) if len(x) > 200]
    within = torch.stack([rows.var(0) for rows in x]).mean(0)
    torch.testing.assert_close(within, torch.arange(1, 61) ** -1.2, rtol=0.05, atol=0)
    means = torch.stack([rows.mean(0) for rows in x])
    assert float(means.mean(1).var()) == pytest.approx(4 + 1 / 60, rel=0.25)
    assert float((means - means.mean(1, keepdim=True)).var()) == pytest.approx(1, rel=0.1)


def test_labels_differ_between_clients_unless_iid():
    """The spread of the clients' label shares; alpha shifts all logits of a sample alike, so it plays no part."""

    def label_shares(**options):
        shares = [torch.bincount(y, minlength=10) / len(y) for _, y in clients(Synthetic(**options))]
        return torch.stack(shares).var(0).sum()

    assert label_shares(alpha=0.0, beta=0.0, iid=True) < 0.2 * label_shares(alpha=0.0, beta=0.0)
    for first, second in zip(clients(Synthetic(alpha=0.0)), clients(Synthetic(alpha=9.0)), strict=True):
        assert torch.equal(first[1], second[1])
    first, second = (Synthetic(beta=b).federation.train.tensors[1] for b in (0.0, 1.0))
    assert not torch.equal(first, second)


def test_seeds_and_bad_values():
    assert all(torch.equal(a[0], b[0]) for a, b in zip(clients(Synthetic()), clients(Synthetic(seed=5)), strict=True))
    assert not torch.equal(clients(Synthetic())[0][0], clients(Synthetic(problem_seed=1))[0][0])
    with pytest.raises(ValueError, match=r"Synthetic\(alpha=-1\): expected >= 0"):
        Synthetic(alpha=-1, beta=0)
