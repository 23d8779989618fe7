"""Personalised classification: learning, names of parts, and the quadratic problem's own validation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import FederatedDataModule
from fedlightning import algorithms as fl
from fedlightning.algorithms import FedAPM, FedAvg, FedSim
from fedlightning.core.tree import map_tensors
from fedlightning.data import IID, Dirichlet, PersonalDigits, TensorData
from fedlightning.models import PersonalMLP, PolicyHeads, SummedHeads, TwoLayerCNN, head_context
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from fedlightning.tasks import ClientNumbers, FedCP, FedRoD, PersonalizedClassification, PersonalQuadratic
from tests.models.test_personalized import SMALL
from tests.models.test_personalized import features as inputs
from tests.support.small import trainer


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
    task = PersonalQuadratic(FedAPM(0.15, rho=2.0), num_clients=4)
    fit = trainer(max_steps=150, val_check_interval=150, check_val_every_n_epoch=None, precision="64-true")
    fit.fit(task, ClientNumbers(4, local_steps=5, rounds_per_epoch=150))
    assert fit.callback_metrics["distance"] < 1e-6
    assert fit.callback_metrics["personal_distance_worst"] < 1e-6


def test_samples_of_other_parts_are_refused():
    task = PersonalizedClassification(FedSim(0.1), personal=("head",), oracle=Vectorized())
    with pytest.raises(
        ObjectiveError, match=r"2 parts \(input, label\), the data have 3\. Set class_counts .* to false"
    ):
        trainer().fit(task, counted(batch_size=20, local_steps=2))
    with pytest.raises(
        ObjectiveError, match=r"FedRoD takes samples of 3 parts \(input, label, class counts\), .* to true"
    ):
        trainer().fit(FedRoD(FedSim(0.1), oracle=Vectorized()), PersonalDigits(batch_size=20, local_steps=2))
    with pytest.raises(ValueError, match=r"FedCP takes samples of 2 parts .* have 1\."):
        FedCP(fl.FedCP(0.1)).objective(torch.zeros(2, 64))


@pytest.mark.parametrize("make", [PersonalizedClassification, FedRoD])
def test_outputs_beside_other_numbers_of_classes_are_refused(make):
    wrong = rf"{make.__name__}\(classes=6\): the training data have labels 0 to 9, but the model has 6 outputs"
    with pytest.raises(ValueError, match=wrong):
        trainer().fit(make(FedSim(0.1), PersonalMLP(64, 8), classes=6), counted())
    with pytest.raises(ValueError, match=r"val data have label \d, the network has 2 outputs.*Give .* or more"):
        trainer().fit(make(FedSim(0.1), PersonalMLP(64, 8, 2)), counted())


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


# ---- FedCP -----------------------------------------------------------------------------------------------------------


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


# ---- both ------------------------------------------------------------------------------------------------------------

CLIENTS = 3


def fed_rod(network, oracle, **options):
    return FedRoD(FedSim(0.1), network, oracle=oracle, **options)


def fed_cp(network, oracle, **options):
    return FedCP(fl.FedCP(0.1), network, oracle=oracle, **options)


def sets_for(name, make):
    """Three clients' samples of 3 classes; with class counts for FedRoD."""
    draw = torch.Generator().manual_seed(0)
    sets = []
    for _ in range(CLIENTS):
        y = torch.randint(3, (8,), generator=draw)
        parts = [inputs(name, SMALL[name][1], draw), y]
        if make is fed_rod:
            parts.append(torch.bincount(y, minlength=3).float().expand(8, 3))
        sets.append(TensorData(tuple(parts)))
    return sets


def trained(name, make, oracle):
    torch.manual_seed(0)
    task, sets = make(SMALL[name][0](), oracle, classes=3), sets_for(name, make)
    data = FederatedDataModule.from_datasets(sets, val=sets, batch_size=4, local_steps=2)
    trainer(max_steps=2, precision="64-true").fit(task, data)
    return task


def samples(name, client):
    return map_tensors(torch.Tensor.double, sets_for(name, fed_cp)[client][torch.arange(8)][0])


WITH_FEATURES = ["HARNet", "ImageTextNet", "AudioVideoNet"]


@pytest.mark.parametrize("make", [fed_rod, fed_cp])
@pytest.mark.parametrize("name", ["TwoLayerCNN", *WITH_FEATURES])
def test_two_heads_vectorized_are_two_heads_one_by_one(name, make):
    task, other = trained(name, make, Vectorized()), trained(name, make, Sequential())
    ends = [
        torch.cat([p.flatten() for i in range(CLIENTS) for p in t.personalize(i).parameters()]) for t in (task, other)
    ]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_are_what_the_head_sees(name):
    task, x = trained(name, fed_cp, Vectorized()), samples(name, 0)
    seen = []
    task.network.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    task.network(x)
    assert torch.equal(task.features(x), seen[0])
    assert torch.equal(task.below_head()(x), seen[0])
    assert not torch.equal(task.received_body(x), seen[0])  # the last round began there, and moved on


@pytest.mark.parametrize("make", [fed_rod, fed_cp])
@pytest.mark.parametrize("name", ["TwoLayerCNN", "HARNet"])
def test_the_personal_network_is_the_personal_model(name, make, tmp_path):
    own, x = trained(name, make, Vectorized()).personalize(1), samples(name, 1)
    network = own.personal_network()
    assert isinstance(network.head, SummedHeads if make is fed_rod else PolicyHeads)
    assert torch.equal(network(x), own(x))
    assert (network(x) - own.network(x)).abs().max() > 1e-3
    torch.save(network.state_dict(), tmp_path / "client.pt")
    fresh = make(SMALL[name][0](), Vectorized()).personal_network().double()
    fresh.load_state_dict(torch.load(tmp_path / "client.pt", weights_only=True))
    assert torch.equal(fresh(x), own(x))


def test_two_linear_heads_of_fed_rod_become_one():
    torch.manual_seed(0)
    task = FedRoD(FedSim(0.1))
    nn.init.normal_(task.own_head.weight)
    plain, x = PersonalMLP(64, 32, 10), torch.randn(5, 64)
    plain.load_state_dict(task.personal_network().state_dict())
    torch.testing.assert_close(plain(x), task(x))
    assert not torch.equal(task.network(x), task(x))


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
def test_two_heads_need_a_head_and_what_it_sees(cls):
    for network in (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.ModuleDict({"head": nn.Linear(64, 10)})):
        with pytest.raises(ValueError, match=rf"{cls.__name__}\(network=.*a part 'head' and a part 'body' or a method"):
            cls(FedSim(0.1), network)


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
@pytest.mark.parametrize("prefix", ["head", "head.weight"])
def test_a_global_head_that_stays_on_the_clients_is_refused(cls, prefix):
    with pytest.raises(ValueError, match=rf"{cls.__name__}\(personal=.*network.{prefix}.*Leave it out.*personal: \[\]"):
        cls(FedSim(0.1), personal=[prefix])


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
@pytest.mark.parametrize("algorithm", [fl.Ditto(0.1), fl.pFedMe(0.1), fl.FedALA(0.1), fl.LpProj(0.1, dim=9)])
def test_personal_heads_beside_personal_models_are_refused(cls, algorithm):
    with pytest.raises(ValueError, match=rf"algorithm={type(algorithm).__name__}\): .*Take an algorithm without"):
        cls(algorithm)
