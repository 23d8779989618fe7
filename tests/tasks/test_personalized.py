"""Personalised classification: learning, names of parts, and the quadratic problem's own validation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.algorithms import FedAPM, FedAvg, FedSim
from fedlightning.data import IID, Dirichlet, PersonalDigits
from fedlightning.oracle import Vectorized
from fedlightning.tasks import ClientNumbers, FedRoD, PersonalizedClassification, PersonalQuadratic
from tests.small import trainer


def accuracy(algorithm, personal):
    torch.manual_seed(0)
    task = PersonalizedClassification(algorithm, personal=personal, oracle=Vectorized())
    data = PersonalDigits(IID(6), batch_size=20, local_steps=20, val_share=0.2)
    fit = trainer(max_steps=15, val_check_interval=15, check_val_every_n_epoch=None)
    fit.fit(task, data)
    return float(fit.callback_metrics["val_accuracy"])


def test_personal_heads_learn_what_one_model_for_all_cannot():
    assert accuracy(FedAPM(0.2), ("head",)) > 0.85
    assert accuracy(FedSim(0.2), ("head",)) > 0.85
    assert accuracy(FedAvg(0.2), ()) < 0.4


def test_unknown_parts_are_named():
    task = PersonalizedClassification(FedSim(0.1), personal=("haed",))
    with pytest.raises(ValueError, match=r"personal_parameters: 'network\.haed' matches no trainable parameter"):
        trainer().fit(task, PersonalDigits())


def test_nothing_shared_is_refused():
    task = PersonalizedClassification(FedSim(0.1), personal=("body", "head"))
    with pytest.raises(ValueError, match="nothing to federate"):
        trainer().fit(task, PersonalDigits())


def test_the_quadratic_problem_logs_distances_of_both_blocks():
    task = PersonalQuadratic(FedAPM(0.15, rho=2.0), clients=4)
    fit = trainer(max_steps=150, val_check_interval=150, check_val_every_n_epoch=None, precision="64-true")
    fit.fit(task, ClientNumbers(4, local_steps=5, rounds_per_epoch=150))
    assert fit.callback_metrics["distance"] < 1e-6
    assert fit.callback_metrics["personal_distance_worst"] < 1e-6


# ---- FedRoD ----------------------------------------------------------------------------------------------------------


def counted(**options):
    return PersonalDigits(Dirichlet(4, 0.5, min_size=40), permute_labels=False, class_counts=True, **options)


def test_samples_carry_their_clients_class_counts():
    federation = counted().federation
    for train, test in zip(federation.partition, federation.test_partition, strict=True):
        counts = torch.bincount(federation.train[train][1], minlength=10).float()
        assert (federation.test[test][2] == counts).all()


def test_fed_rod_objective_sample_by_sample():
    task = FedRoD(FedSim(0.1))
    x, y, counts = batch = counted().federation.train[torch.arange(5)]
    total = 0.0
    for i in range(5):
        f = task.network.body(x[i : i + 1])
        generic, own = task.network.head(f)[0], task.own_head(f)[0]
        weights = counts[i].clamp(min=1e-8) * generic.exp()
        total = total - (weights[y[i]] / weights.sum()).log() - (generic + own).log_softmax(0)[y[i]]
    torch.testing.assert_close(task.objective(batch)["loss"], total / 5)


def test_the_personal_loss_of_fed_rod_trains_the_personal_head_alone():
    task = FedRoD(FedSim(0.1))
    batch = counted().federation.train[torch.arange(5)]
    task.objective(batch)["personal_loss"].backward()
    assert task.own_head.weight.grad.abs().max() > 0
    assert all(p.grad is None for p in task.network.parameters())
    task.zero_grad()
    task.objective(batch)["generic_loss"].backward()
    assert task.own_head.weight.grad is None or task.own_head.weight.grad.abs().max() == 0
    assert task.network.head.weight.grad.abs().max() > 0


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_fed_rod_evaluates_both_models():
    task, data = FedRoD(FedSim(0.1), oracle=Vectorized()), counted(batch_size=20, local_steps=10)
    fit = trainer(max_steps=5, val_check_interval=5, check_val_every_n_epoch=None)
    fit.fit(task, data)
    federation = data.federation
    generic, losses = [], []
    for i, own in enumerate(federation.val_partition):
        x, y, _ = federation.val[own]
        with torch.no_grad():
            generic.append((task.network(x).argmax(1) == y).float().mean())
            losses.append(F.cross_entropy(task.personalize(i)(x), y))
    torch.testing.assert_close(fit.callback_metrics["val_global_accuracy"], torch.stack(generic).mean())
    torch.testing.assert_close(fit.callback_metrics["val_loss"], torch.stack(losses).mean())
    assert fit.callback_metrics["val_accuracy"] > 0.3
    assert not torch.equal(task.personalize(0).own_head.weight, task.personalize(1).own_head.weight)


def test_fed_rod_needs_a_body_and_a_head():
    with pytest.raises(ValueError, match="parts 'body' and 'head'"):
        FedRoD(FedSim(0.1), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
