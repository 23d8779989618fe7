"""A LightningModule that knows nothing of federations is trained by clients as a Trainer would train it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import Federated, FederatedDataModule, federate
from fedlightning.algorithms import SCAFFOLD, Ditto, FedAlt, FedAvg, FedProx, PerFedAvg, StatefulFedAvg
from fedlightning.cli import main
from fedlightning.local import Adam
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from tests.support.lit import Classifier, Lit, distance, made, one_client, trained_alone
from tests.support.small import clients, regression_data, trainer

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")

ROUNDS = 6
ORACLES = {"one by one": Sequential(), "vectorised": Vectorized()}


def groups(parameters, kind=torch.optim.AdamW):
    first, *rest = list(parameters)
    return kind([{"params": [first], "lr": 0.02, "weight_decay": 0.3}, {"params": rest}], lr=0.005, weight_decay=0.0)


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=True),
    "Adam": partial(torch.optim.Adam, lr=0.02, weight_decay=0.1),
    "AdamW": partial(torch.optim.AdamW, lr=0.02, betas=(0.8, 0.9)),
    "groups of AdamW": groups,
    "groups of SGD": partial(groups, kind=torch.optim.SGD),
}


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_one_client_trains_as_a_trainer_does(optimizer, oracle):
    ours, theirs = (made(optimizer=optimizer).double() for _ in range(2))
    fit = trainer(max_steps=ROUNDS, precision="64-true")
    fit.fit(federate(ours, StatefulFedAvg, oracle=oracle), one_client())
    trained_alone(theirs, ROUNDS, precision="64-true")
    assert distance(made().double(), theirs) > 0.05
    assert distance(ours, theirs) < 1e-12


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
@pytest.mark.parametrize("by", ["norm", "value"])
def test_clipped_gradients_are_those_of_a_trainer(by, oracle):
    options = {"gradient_clip_val": 0.3, "gradient_clip_algorithm": by, "precision": "64-true"}
    ours, given, theirs, free = (made(optimizer=OPTIMIZERS["momentum"]).double() for _ in range(4))
    fit = trainer(max_steps=ROUNDS, **options)
    fit.fit(federate(ours, StatefulFedAvg, oracle=oracle), one_client())
    assert (fit.gradient_clip_val, fit.gradient_clip_algorithm) == (0.3, by)
    clip = {"gradient_clip_val": 0.3, "gradient_clip_algorithm": by}
    trainer(max_steps=ROUNDS, precision="64-true").fit(
        federate(given, StatefulFedAvg, oracle=oracle, **clip), one_client()
    )
    trained_alone(theirs, ROUNDS, **options)
    trained_alone(free, ROUNDS, precision="64-true")
    assert distance(free, theirs) > 0.05
    assert distance(ours, theirs) < 1e-12
    assert distance(given, theirs) < 1e-12


def test_batch_statistics_of_one_client_are_those_of_a_trainer():
    from fedlightning.data import Synthetic

    data = Synthetic(num_clients=1, batch_size=8, local_steps=3, rounds_per_epoch=4)
    ours, theirs = (made(Classifier).double() for _ in range(2))
    trainer(max_steps=4, precision="64-true", limit_val_batches=0).fit(
        federate(ours, StatefulFedAvg, oracle=Sequential()), data
    )
    same = Synthetic(num_clients=1, batch_size=8, local_steps=3, rounds_per_epoch=4)
    trained_alone(theirs, 4, data=same, precision="64-true")
    assert distance(ours, theirs) < 1e-9
    assert distance(ours.net[1], made(Classifier).double().net[1]) > 0.01


def test_fresh_moments_in_every_round_are_another_method():
    ours, theirs = (made(optimizer=OPTIMIZERS["Adam"]) for _ in range(2))
    trainer(max_steps=ROUNDS).fit(federate(ours, FedAvg, oracle=Sequential()), one_client())
    trained_alone(theirs, ROUNDS)
    assert distance(ours, theirs) > 0.01


def test_the_step_size_is_the_modules_unless_the_algorithm_names_one():
    for algorithm, expected in [(FedAvg, 0.05), (partial(FedProx, mu=0.5), 0.05), (FedAvg(0.01), 0.01)]:
        task = federate(made(), algorithm)
        trainer(max_steps=1).fit(task, regression_data())
        assert task.algorithm.lr == expected
        assert task.round_metrics["client_lr"] == expected


def test_what_is_logged_is_averaged_over_clients_under_its_own_name():
    module = made()
    losses = []
    for data in clients():
        x, y = data.tensors
        losses.append(F.mse_loss(module(x), y).sqrt().item())
    fit = trainer(max_steps=1, limit_val_batches=0)
    fit.fit(federate(module, FedAvg), regression_data(batch_size=None, local_steps=1))
    assert float(fit.callback_metrics["rmse"]) == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert not [name for name in fit.callback_metrics if "logged" in name]


def test_validation_and_test_are_those_of_the_global_model():
    task = federate(made(), FedAvg)
    fit = trainer(max_steps=5)
    fit.fit(task, regression_data())
    x, y = clients(seed=7)[0].tensors
    expected = F.mse_loss(task.module(x), y).item()
    assert fit.validate(task, regression_data(), verbose=False)[0]["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert set(fit.test(task, regression_data(), verbose=False)[0]) == {"test_loss"}
    assert torch.equal(torch.cat(fit.predict(task, torch.utils.data.DataLoader([(x[0], y[0])]))), task(x[:1]))


def per_client_data():
    return FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7), batch_size=4, local_steps=3, rounds_per_epoch=5
    )


def test_every_clients_own_model_is_validated_on_its_own_data():
    task = federate(made(optimizer=OPTIMIZERS["Adam"]), FedAvg, personal_parameters=["head"])
    fit = trainer(max_steps=5)
    fit.fit(task, per_client_data())
    expected = []
    for client, data in enumerate(clients(seed=7)):
        own = task.personalize(client).module
        expected.append(F.mse_loss(own(data.tensors[0]), data.tensors[1]).item())
    torch.testing.assert_close(task.client_metrics["val_loss"], torch.tensor(expected))
    assert float(fit.callback_metrics["val_loss"]) == pytest.approx(sum(expected) / 4, rel=1e-5)
    assert distance(task.personalize(0).module.head, task.personalize(1).module.head) > 1e-3
    assert distance(task.personalize(0).module.body, task.personalize(1).module.body) == 0


def test_the_global_model_is_validated_client_by_client_if_asked():
    task = federate(made(), FedAvg, per_client_evaluation=True)
    trainer(max_steps=5).fit(task, per_client_data())
    expected = [F.mse_loss(task.module(d.tensors[0]), d.tensors[1]).item() for d in clients(seed=7)]
    torch.testing.assert_close(task.client_metrics["val_loss"], torch.tensor(expected))


@pytest.mark.parametrize("algorithm", [FedAvg, FedAlt], ids=lambda each: each.__name__)
def test_personal_parameters_step_as_the_optimizer_does(algorithm):
    """One client alone: what is personal makes no difference to FedAvg with Adam."""
    ours, theirs = (made(optimizer=OPTIMIZERS["Adam"]).double() for _ in range(2))
    task = federate(ours, algorithm, personal_parameters=["head"], oracle=Sequential())
    trainer(max_steps=1, precision="64-true").fit(task, one_client())
    trained_alone(theirs, 1, precision="64-true")
    own = task.personalize(0).module
    if algorithm is FedAvg:
        assert distance(own, theirs) < 1e-12
    step = (own.head.weight - made().double().head.weight).detach().abs().max()
    assert 0.01 < step.item() < 3 * 0.02 * 1.5  # the steps of Adam are about as long as lr


class Robust(Lit):
    """Regression against an adversary that shifts all inputs."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shift = nn.Parameter(torch.zeros(6))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self(x + self.shift), y) - self.shift.square().sum()


def test_max_parameters_ascend():
    module = made(Robust)
    x, y = clients()[0].tensors
    loss = F.mse_loss(module(x + module.shift), y)
    ascent = torch.autograd.grad(loss, module.shift)[0]
    data = FederatedDataModule.from_datasets(clients(1), batch_size=None, local_steps=1)
    trainer(max_steps=1).fit(federate(module, FedAvg, max_parameters=["shift"]), data)
    torch.testing.assert_close(module.shift.detach(), 0.05 * ascent)


def test_algorithms_with_personal_models_and_corrections_run():
    for algorithm in (partial(Ditto, lam=0.5), SCAFFOLD):
        task = federate(made(), algorithm)
        before = distance(made(), task.module)
        trainer(max_steps=3).fit(task, per_client_data())
        assert before == 0 < distance(made(), task.module)


@pytest.mark.parametrize("algorithm", [FedAvg, StatefulFedAvg], ids=lambda each: each.__name__)
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path, algorithm):
    def task():
        return federate(made(optimizer=OPTIMIZERS["Adam"]), algorithm, oracle=Sequential())

    whole, first, resumed = task(), task(), task()
    trainer(tmp_path, max_steps=6).fit(whole, regression_data())
    half = trainer(tmp_path, max_steps=3, val_check_interval=3, check_val_every_n_epoch=None)
    half.fit(first, regression_data())
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, max_steps=6).fit(resumed, regression_data(), ckpt_path=tmp_path / "half.ckpt")
    assert distance(whole, first) > 0
    assert distance(whole, resumed) == 0
    if algorithm is StatefulFedAvg:
        assert torch.equal(whole.client_states.second, resumed.client_states.second)


def test_a_checkpoint_makes_the_task_and_its_module_again(tmp_path):
    task = federate(made(hidden=3), FedAvg)
    fit = trainer(tmp_path, max_steps=5)
    fit.fit(task, regression_data())
    fit.save_checkpoint(tmp_path / "end.ckpt")
    given = Federated.load_from_checkpoint(tmp_path / "end.ckpt", module=Lit(hidden=3))
    rebuilt = Federated.load_from_checkpoint(tmp_path / "end.ckpt", trusted=[Lit])
    for loaded in (given, rebuilt):
        assert distance(loaded.module, task.module) == 0
        assert loaded.algorithm.lr == 0.05
    alone = Lit(hidden=3)
    alone.load_state_dict(task.module.state_dict())
    assert distance(alone, task.module) == 0
    assert task.hparams.module["init_args"] == {"hidden": 3}


def test_the_algorithm_that_is_given_to_a_checkpoint_counts(tmp_path):
    fit = trainer(max_steps=2, limit_val_batches=0)
    fit.fit(federate(made(), PerFedAvg), regression_data())
    fit.save_checkpoint(tmp_path / "end.ckpt")
    given = partial(PerFedAvg, lr_own=0.5)
    loaded = Federated.load_from_checkpoint(tmp_path / "end.ckpt", module=made(), algorithm=given)
    assert (loaded.algorithm.lr, loaded.algorithm.lr_own) == (0.05, 0.5)  # the module's step size, the user's own
    other = federate(made(), PerFedAvg(lr=0.01, lr_own=0.5))
    trainer().validate(other, regression_data(), ckpt_path=tmp_path / "end.ckpt", verbose=False)
    assert (other.algorithm.lr, other.algorithm.lr_own) == (0.01, 0.5)


def test_an_algorithm_that_is_set_between_two_fits_counts():
    task = federate(made(), FedAvg)
    trainer(max_steps=2, limit_val_batches=0).fit(task, regression_data())
    task.algorithm = FedAvg({"head": 0.01, "default": 1e-9})
    before = task.module.body[0].weight.detach().clone()
    trainer(max_steps=2, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr == {"module.head": 0.01, "default": 1e-9}
    torch.testing.assert_close(task.module.body[0].weight, before, rtol=0, atol=1e-6)


def test_an_algorithm_made_from_that_of_a_fit_leaves_to_the_module_what_it_left_before():
    module = made(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    task = federate(module, partial(FedProx, mu=0.1))
    trainer(max_steps=2, gradient_clip_val=0.1).fit(task, regression_data())
    assert task.algorithm.local_clip is not None
    task.algorithm = replace(task.algorithm, mu=0.7)
    module.optimizer = partial(torch.optim.SGD, lr=0.01)
    trainer(max_steps=2).fit(task, regression_data())
    assert (task.algorithm.lr, task.algorithm.mu) == (0.01, 0.7)
    assert (task.algorithm.local_clip, task.algorithm.local_optimizer) == (None, None)
    task.algorithm = FedProx(lr=0.01, mu=0.7)  # as the module has it, and the user's from now on
    module.optimizer = partial(torch.optim.SGD, lr=0.5)
    trainer(max_steps=2).fit(task, regression_data())
    assert task.algorithm.lr == 0.01
    task.algorithm = replace(task.algorithm, lr=0.02)
    trainer(max_steps=2, gradient_clip_val=0.5).fit(task, regression_data())
    assert (task.algorithm.lr, task.algorithm.mu) == (0.02, 0.7)
    assert task.algorithm.local_clip == 0.5


def test_a_trained_module_goes_on_with_an_ordinary_trainer():
    module = made()
    trainer(max_steps=2).fit(federate(module, FedAvg), regression_data())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    alone = trainer(max_steps=-1, max_epochs=1)
    alone.fit(module, torch.utils.data.DataLoader([tuple(leaf[:4] for leaf in clients()[0].tensors)], batch_size=None))
    assert "rmse" in alone.callback_metrics
    assert any(not torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_an_elementwise_optimizer_of_torch_is_taken_and_others_are_refused():
    task = federate(made(optimizer=partial(torch.optim.RMSprop, lr=0.01)), FedAvg)
    trainer(max_steps=2).fit(task, regression_data())
    assert task.algorithm.local_optimizer.func is torch.optim.RMSprop
    with pytest.raises(ValueError, match="local_optimizer=LBFGS is not elementwise"):
        trainer(max_steps=1).fit(federate(made(optimizer=torch.optim.LBFGS), FedAvg), regression_data())


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RAdam])
def test_weight_decay_is_coupled_where_the_module_couples_it(kind, decoupled):
    """One client is plain training with the module's optimizer."""
    optimizer = partial(kind, lr=0.05, weight_decay=0.3, decoupled_weight_decay=decoupled)
    only = clients()[:1]
    task, alone = federate(made(optimizer=optimizer), FedAvg), made(optimizer=optimizer)
    alone.load_state_dict(task.module.state_dict())
    data = FederatedDataModule.from_datasets(only, batch_size=None, local_steps=4)
    trainer(max_steps=1, limit_val_batches=0).fit(task, data)
    whole = torch.utils.data.DataLoader(only[0], batch_size=len(only[0]))
    trainer(max_steps=4, limit_val_batches=0).fit(alone, whole)
    for name, value in task.module.named_parameters():
        torch.testing.assert_close(value, dict(alone.named_parameters())[name])


def test_the_optimizer_that_the_algorithm_names_stays():
    task = federate(made(optimizer=OPTIMIZERS["momentum"]), FedAvg(0.01, local_optimizer=Adam()))
    trainer(max_steps=1).fit(task, regression_data())
    assert isinstance(task.algorithm.local_optimizer, Adam)
    assert task.algorithm.lr == 0.01


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """The arguments of a small fit of an unchanged module, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    small = ("num_clients=3", "rounds_per_epoch=2", "batch_size=5", "local_steps=2")
    data = ["--data=fedlightning.data.Synthetic", *(f"--data.init_args.{each}" for each in small)]
    module = ["--model.module=tests.support.lit.Classifier", "--model.module.init_args.lr=0.05"]
    algorithm = "--model.algorithm=fedlightning.algorithms.FedAvg"
    quiet = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    return ["fit", "--model=fedlightning.Federated", *module, algorithm, *data, *quiet]


def test_misspelt_arguments_are_named_as_they_were_written():
    for make in (federate, Federated):
        with pytest.raises(TypeError, match=r"^federate\(weightning=\.\.\.\): .* Did you mean 'weighting'\?$"):
            make(made(), FedAvg, weightning="samples")


def test_attributes_of_the_module_are_found_there():
    task = federate(made(), FedAvg)
    assert not hasattr(task, "body")
    for name in ("body", "optimizer", "loss"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}': it is in \.module\.{name}$"):
            getattr(task, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nowhere'$"):
        _ = task.nowhere


class ManyLosses(Lit):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self(x) - y).square()


class FailsForOne(Lit):
    def training_step(self, batch, batch_idx):
        raise KeyError("mine")


class Counts(Lit):
    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("module", "text"),
    [(ManyLosses, "must return a scalar tensor"), (FailsForOne, "failed for client 0: KeyError: 'mine'")],
)
def test_errors_name_the_method_that_its_author_wrote(module, text):
    with pytest.raises(ObjectiveError, match=rf"^{module.__name__}\.training_step {text}"):
        trainer(max_steps=1).fit(federate(made(module), FedAvg), regression_data())


def test_reports_name_the_method_that_its_author_wrote(caplog):
    with caplog.at_level("INFO"):
        trainer(max_steps=1).fit(federate(made(Counts), FedAvg), regression_data())
    assert "Counts.training_step changes self.module.calls in Python" in caplog.text


@pytest.mark.parametrize("lr", ["-1", "0"])
def test_the_command_line_refuses_a_wrong_step_size_of_the_algorithm(lr, fit, capsys):
    """The module's own would take its place without a word."""
    with pytest.raises(SystemExit) as exit_:
        main([*fit, f"--model.algorithm.init_args.lr={lr}"])
    assert "expected > 0" in f"{exit_.value}{capsys.readouterr().err}"


def test_the_command_line_takes_the_options_of_every_task(fit, tmp_path):
    main([*fit, "--model.oracle=fedlightning.oracle.Sequential", "--model.weighting=samples"])
    (path,) = tmp_path.rglob("last.ckpt")
    stored = torch.load(path, weights_only=True)["hyper_parameters"]
    assert stored["weighting"] == "samples"
    assert "Sequential" in str(stored["oracle"])


def test_the_command_line_takes_any_module(fit, tmp_path):
    main(fit)
    (path,) = tmp_path.rglob("last.ckpt")
    task = Federated.load_from_checkpoint(path, trusted=[Classifier])
    assert isinstance(task.module, Classifier)
    assert task.module.hparams.lr == 0.05
    assert (task.algorithm.lr, task.algorithm.local_optimizer.momentum) == (0.05, 0.9)
    main([*fit, "--model.algorithm.init_args.lr=0.01"])
    stored = [torch.load(each, weights_only=True)["federated_algorithm"] for each in tmp_path.rglob("last.ckpt")]
    assert sorted(each["init_args"]["lr"] for each in stored) == [0.01, 0.05]
