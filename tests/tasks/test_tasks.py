"""Ready-made tasks: objectives against hand-written formulas, and whole fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, FedMM, FedSGDA
from fedlightning.data import Digits, DigitsM
from fedlightning.models import CNN, DigitFeatures, LeNet5, LogisticRegression, MobileNetV2Features
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.proximal import L1
from fedlightning.tasks import (
    CDAN,
    DANN,
    MDD,
    Classification,
    ClientNumbers,
    DomainAdaptation,
    PersonalizedClassification,
    QuadraticSaddle,
)
from tests.support.small import trainer

ADVERSARIES = {"DANN": DANN(nu=0.7), "CDAN": CDAN(nu=0.7), "MDD": MDD(nu=0.7, gamma=2.0)}


def make(adversary, **options):
    torch.manual_seed(0)
    return DomainAdaptation(
        FedMM(0.05, mu=1.0),
        features=DigitFeatures(size=16, widths=(4, 6), kernel=3),
        adversary=adversary,
        hidden=8,
        **options,
    )


def batch(domain):
    draw = torch.Generator().manual_seed(1)
    domain = torch.tensor(domain)
    label = torch.where(domain == 0, torch.randint(0, 10, (len(domain),), generator=draw), -1)
    return {"image": torch.randn(len(domain), 3, 16, 16, generator=draw), "label": label, "domain": domain}


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


@pytest.mark.parametrize("name", ADVERSARIES)
def test_domain_adaptation_runs_and_is_watched(name, tmp_path):
    task = make(ADVERSARIES[name], oracle=Vectorized())
    data = DigitsM(local_steps=3, batch_size=8, rounds_per_epoch=2)
    fit = trainer(tmp_path, max_steps=2)
    fit.fit(task, data)
    for metric in ("val_source_accuracy", "val_target_accuracy", "val_domain_confusion"):
        assert 0 <= fit.callback_metrics[metric] <= 1
    for metric in ("train_class_loss", "train_adversary_risk", "drift", "dual_norm"):
        assert fit.callback_metrics[metric] > 0
    (tested,) = fit.test(task, data, verbose=False)
    assert set(tested) == {"test_source_accuracy", "test_target_accuracy", "test_domain_confusion"}
    assert torch.cat(fit.predict(task, data)).shape == (600,)
    pictures = task.pictures()
    assert set(pictures) == {"predictions", "features"}
    pictures["predictions"].savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ADVERSARIES)
def test_vectorized_and_sequential_agree(name):
    ends = []
    for oracle in (Vectorized(), Sequential()):
        task = make(ADVERSARIES[name], oracle=oracle).double()
        data = DigitsM(local_steps=3, batch_size=8, rounds_per_epoch=2)
        trainer(max_steps=2, precision="64-true", limit_val_batches=0).fit(task, data)
        ends.append(task.server_state.z)
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def test_features_of_unknown_length_are_asked_for():
    with pytest.raises(ValueError, match="Flatten has no out_features: give feature_dim"):
        DomainAdaptation(FedAvg(0.1), features=nn.Flatten())
    assert DomainAdaptation(FedAvg(0.1), features=nn.Flatten(), feature_dim=12, hidden=0).classifier.in_features == 12


def test_a_wrong_trade_off_is_named():
    with pytest.raises(ValueError, match=r"DANN\(nu=0\): expected > 0"):
        DANN(nu=0)


def test_classification_learns_the_digits():
    torch.manual_seed(0)
    task = Classification(FedAvg(0.05), oracle=Vectorized())
    data = Digits(local_epochs=1, batch_size=10, rounds_per_epoch=10)
    fit = trainer(max_steps=20)
    fit.fit(task, data)
    assert fit.callback_metrics["val_accuracy"] > 0.85
    (tested,) = fit.test(task, data, verbose=False)
    assert set(tested) == {"test_accuracy", "test_f1", "test_loss"}


def test_the_penalty_belongs_to_what_is_minimised():
    task = Classification(FedSGDA(0.05), regularizer={"network": L1(0.1)})
    fit = trainer(max_steps=2)
    fit.fit(task, Digits(batch_size=10, local_steps=1, validate_train=True, rounds_per_epoch=2))
    (tested,) = fit.test(task, fit.datamodule, verbose=False)
    penalty = 0.1 * sum(float(p.detach().abs().sum()) for p in task.network.parameters())
    assert tested["test_objective"] - tested["test_loss"] == pytest.approx(penalty, rel=1e-4)
    assert task.regularization() == pytest.approx(penalty, rel=1e-5)
    assert Classification(FedSGDA(0.05)).regularization() is None


def test_quadratic_solution_and_drift_point_are_what_they_say():
    task = QuadraticSaddle(FedAvg(0.05), num_clients=4).double()
    z = task.solution.clone().requires_grad_()
    with torch.no_grad():
        task.x.copy_(z[:5])
        task.y.copy_(z[5:])
    mean = sum(task.objective(torch.tensor([i])) for i in range(4)) / 4
    for g in torch.autograd.grad(mean, [task.x, task.y]):
        assert g.norm() < 1e-10
    drift = task.drift_fixed_point(0.05, 6)
    ends = []
    for matrix, offset in zip(task.matrix, task.offset, strict=True):
        w = drift
        for _ in range(6):
            w = w - 0.05 * (matrix @ w + offset)
        ends.append(w)
    torch.testing.assert_close(torch.stack(ends).mean(0), drift, rtol=1e-10, atol=1e-10)
    assert (drift - task.solution).norm() > 0.1


def test_fed_avg_gda_ends_at_its_drift_point_and_fed_mm_at_the_saddle():
    def end(algorithm, rounds, local_steps):
        task = QuadraticSaddle(algorithm, oracle=Vectorized())
        trainer(max_steps=rounds, precision="64-true", limit_val_batches=0).fit(
            task, ClientNumbers(local_steps=local_steps, rounds_per_epoch=rounds)
        )
        return task

    drifted = end(FedAvg(0.05), 30, 10)
    torch.testing.assert_close(drifted.server_state.z, drifted.drift_fixed_point(0.05, 10), rtol=0, atol=1e-9)
    assert (drifted.server_state.z - drifted.solution).norm() > 0.1
    exact = end(FedMM(0.05, mu=3.0, eta3=1.0), 65, 5)
    assert (exact.server_state.z - exact.solution).norm() < 1e-9


def test_the_quadratic_task_logs_its_distance():
    task = QuadraticSaddle(FedMM(0.05))
    fit = trainer(max_steps=3)
    fit.fit(task, ClientNumbers(rounds_per_epoch=3))
    z = torch.cat([task.x, task.y]).detach()
    torch.testing.assert_close(fit.callback_metrics["distance"], (z - task.solution.float()).norm())


@pytest.mark.parametrize(
    ("network", "shape", "parameters"),
    [
        (LogisticRegression(784), (1, 28, 28), 7_850),
        (LeNet5(), (1, 28, 28), 61_706),
        (CNN(), (1, 28, 28), 1_663_370),
    ],
)
def test_sizes_of_the_classifiers(network, shape, parameters):
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(("layers", "expected"), [(2, 768), (3, 256)])
def test_digit_features(layers, expected):
    network = DigitFeatures(layers=layers)
    assert network.out_features == expected
    assert network(torch.zeros(2, 3, 28, 28)).shape == (2, expected)
    assert network[0].weight.detach().std().item() == pytest.approx(0.088, abs=0.005)  # N(0, 0.1) cut at 0.2
    assert network[0].weight.abs().max() <= 0.2
    with pytest.raises(ValueError, match="layers=4"):
        DigitFeatures(layers=4)
    with pytest.raises(ValueError, match="too small"):
        DigitFeatures(size=8)


def test_mobile_net_features(tmp_path):
    from torchvision.models import mobilenet_v2

    with pytest.raises(FileNotFoundError, match="no such file"):
        MobileNetV2Features(weights=str(tmp_path / "absent.pt"))
    reference = mobilenet_v2()
    torch.save(reference.state_dict(), tmp_path / "weights.pt")
    network = MobileNetV2Features(weights=str(tmp_path / "weights.pt")).eval()
    image = torch.randn(2, 3, 32, 32)
    expected = F.adaptive_avg_pool2d(reference.eval().features(image), 1).flatten(1)
    torch.testing.assert_close(network(image), expected)


@pytest.mark.parametrize("task", [Classification, PersonalizedClassification])
def test_labels_without_an_output_are_refused_before_training(task):
    labels = torch.arange(12) % 11
    data = FederatedDataModule.from_datasets([TensorDataset(torch.zeros(12, 1, 8, 8), labels)], local_steps=1)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"labels 0 to 10, but the model has 10 outputs, .* classes=11"):
        trainer(max_steps=1).fit(task(FedAvg(0.1), network=network), data)
