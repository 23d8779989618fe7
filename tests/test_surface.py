"""What of Lightning a federated task refuses, warns of, and reports."""

from __future__ import annotations

import logging
import warnings
from typing import ClassVar

import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback, LearningRateMonitor, WeightAveraging
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedlightning import BatchedEvaluationTask, FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import CDMA, CODAPlus, Ditto, FedALA, FedAlt, FedAPM, FedAvg, FedDR, FedMM
from fedlightning.data import IID, Digits
from fedlightning.local import LocalSteps
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import Classification
from fedlightning.tasks.lightning_surface import TRANSFER_HOOKS
from tests.support.small import Line, Normed, Personal, clients, regression_data, trainer


class Own(Personal):
    """A user's task with a personal part."""

    def forward(self, x):
        return self.line(x).squeeze(1) + self.offset

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))
        self.log("val_r", -self.objective(batch), batch_size=len(batch[1]))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def own_data(**options):
    defaults = {"batch_size": 4, "local_steps": 3, "rounds_per_epoch": 2, "seed": 1}
    held_out = {"val": clients(seed=7), "test": clients(seed=8)}
    return FederatedDataModule.from_datasets(clients(), **held_out, **{**defaults, **options})


def fitted(task, data=None, **options):
    fit = trainer(**{"max_steps": 2, **options})
    fit.fit(task, regression_data(rounds_per_epoch=2) if data is None else data)
    return fit


def plain_loader():
    return DataLoader(clients(seed=9)[0], batch_size=4)


def messages(run):
    """Warnings of a run that a user can act on."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    theirs = ("many workers", "across ranks is zero", "logging_interval", "LeafSpec")
    return [str(w.message) for w in found if not any(part in str(w.message) for part in theirs)]


# ---- the worst client ------------------------------------------------------------------------------------------------


def test_worst_is_never_the_best_client():
    class Judged(Own):
        higher_is_better: ClassVar = {"r": True, "val_loss": False}

    plain, judged = Own(FedAlt(0.05)), Judged(FedAlt(0.05))
    judged.load_state_dict(plain.state_dict())
    logged = fitted(plain, own_data()).callback_metrics
    known = fitted(judged, own_data()).callback_metrics
    r, loss = plain.client_metrics["val_r"], plain.client_metrics["val_loss"]
    assert r.std() > 0
    assert {name for name in logged if name.startswith("val_r")} == {"val_r", "val_r_std", "val_r_min", "val_r_max"}
    assert (logged["val_r_min"], logged["val_r_max"]) == (r.min(), r.max())
    assert {name for name in known if name.startswith("val_r")} == {"val_r", "val_r_std", "val_r_worst"}
    assert known["val_r_worst"] == r.min()
    assert known["val_loss_worst"] == loss.max()


def test_metrics_that_know_no_direction_get_both_ends():
    class Undecided(Own):
        def __init__(self, algorithm):
            super().__init__(algorithm)
            self.mean = torchmetrics.MeanMetric()

        def validation_step(self, batch, batch_idx):
            self.mean(batch[1])
            self.log("val_mean", self.mean)

    logged = fitted(Undecided(FedAlt(0.05)), own_data()).callback_metrics
    assert {name for name in logged if name.startswith("val_mean_")} == {
        "val_mean_std",
        "val_mean_min",
        "val_mean_max",
    }


# ---- no answer of an untrained head in silence -----------------------------------------------------------------------


def test_loaders_of_nobodys_data_warn_of_the_untrained_personal_parts():
    task = Own(FedAlt(0.05))
    fit = fitted(task, own_data())
    for run in (fit.validate, fit.test):
        with pytest.warns(UserWarning, match=r"Own: the data are nobody's, .* no client has trained.*personalize\(i\)"):
            run(task, plain_loader(), verbose=False)
    with pytest.warns(UserWarning, match="predict_client=i to predict"):
        fit.predict(task, plain_loader())
    task.predict_client = 1
    (first, *_) = fit.predict(task, plain_loader())
    x = next(iter(plain_loader()))[0]
    torch.testing.assert_close(first, task.personalize(1)(x).detach())
    assert messages(lambda: trainer().validate(task.personalize(1), plain_loader(), verbose=False)) == []
    assert messages(lambda: fitted(Line()).validate(Line(), plain_loader(), verbose=False)) == []  # nothing is personal


def test_calling_a_trained_task_says_whose_answer_it_is_once():
    task, x = Own(FedAlt(0.05)), torch.ones(2, 6)
    assert messages(lambda: task(x)) == []  # untrained as a whole
    fitted(task, own_data())
    with pytest.warns(UserWarning, match=r"Own answers with .* of the start, .* Use task\.personalize\(i\)"):
        task.predict_step((x, None), 0)
    assert messages(lambda: task(x)) == []
    assert messages(lambda: task.personalize(1)(x)) == []
    again = Own(FedAlt(0.05))
    again.load_state_dict(task.state_dict())
    with pytest.warns(UserWarning, match="Own answers with"):
        again(x)


def test_a_client_without_states_is_refused():
    fresh = Own(FedAlt(0.05))
    with pytest.raises(
        RuntimeError, match=r"personalize\(99\) asks .* no client states\. Fit the task, or load a chec"
    ):
        fresh.personalize(99)
    trained = Own(FedAlt(0.05))
    fitted(trained, own_data())
    chosen = Own(FedAlt(0.05), predict_client=3)
    chosen.load_state_dict(trained.state_dict())
    message = r"Own: predict_client=3 asks .* load_state_dict brought the global model alone\. .*load_from_checkpoint"
    with pytest.raises(RuntimeError, match=message):
        trainer().predict(chosen, plain_loader())
    with pytest.raises(IndexError, match="client=99: the federation has clients 0 to 3"):
        trained.personalize(99)


def test_weights_alone_are_evaluated_client_by_client_with_a_warning(tmp_path):
    trained = Own(FedAlt(0.05))
    fit = fitted(trained, own_data())
    fit.save_checkpoint(tmp_path / "run.ckpt")
    weights = Own(FedAlt(0.05))
    weights.load_state_dict(trained.state_dict())
    with pytest.warns(
        UserWarning, match="load_state_dict brought the global model alone, so all clients are evaluated"
    ):
        trainer().validate(weights, own_data(), verbose=False)
    whole = Own.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert messages(lambda: trainer().validate(whole, own_data(), verbose=False)) == []
    torch.testing.assert_close(whole.client_metrics["val_loss"], trained.client_metrics["val_loss"])


def test_a_task_that_leaves_the_evaluation_of_clients_out_is_refused():
    class Bare(Own):
        def configure_callbacks(self):
            return []

    with pytest.raises(TypeError, match=r"Bare\.configure_callbacks leaves out EvaluateClients"):
        fitted(Bare(FedAlt(0.05)), own_data())


# ---- hooks -----------------------------------------------------------------------------------------------------------


HOOKS = {
    "training_step": r"Write objective\(batch\)",
    "configure_optimizers": "local_optimizer .* server_optimizer",
    "optimizer_step": "server_optimizer",
    "optimizer_zero_grad": "server_optimizer",
    "lr_scheduler_step": "server_scheduler",
    "configure_gradient_clipping": "local_clip .* server_clip",
    "backward": r"objective\(batch\)",
    "on_before_backward": "on_train_batch_end",
    "on_after_backward": "on_train_batch_end",
    "on_before_zero_grad": "on_train_batch_end",
}


@pytest.mark.parametrize("hook", TRANSFER_HOOKS)
def test_hooks_that_would_get_a_round_for_a_batch_are_refused(hook):
    mine = type("Mine", (Line,), {hook: lambda self, batch, *_: batch})
    with pytest.raises(TypeError, match=rf"Mine overrides {hook}, .*Augment in objective\(batch\)"):
        fitted(mine())


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("base", [Line, Classification], ids=lambda base: base.__name__)
def test_hooks_that_no_round_calls_are_refused(hook, base):
    mine = type("Mine", (base,), {hook: lambda self, *args: getattr(super(mine, self), hook)(*args)})
    data = regression_data() if base is Line else Digits(IID(2))
    with pytest.raises(TypeError, match=f"Mine overrides {hook}, which a federated fit never calls: .*{HOOKS[hook]}"):
        trainer().fit(mine(FedAvg(0.1)), data)


def test_a_hook_of_a_mixin_or_of_one_object_is_found():
    class Mixin:
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    class Mixed(Mixin, Line):
        pass

    with pytest.raises(TypeError, match="Mixed overrides configure_optimizers"):
        fitted(Mixed())
    task = Line()
    task.training_step = lambda batch, batch_idx: None
    with pytest.raises(TypeError, match="Line overrides training_step"):
        fitted(task)


def test_hooks_that_rounds_do_call_are_allowed():
    called = []

    class Free(Line):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            called.append(self.round_metrics["train_loss"])
            self.log("mine", 1.0)

        def on_before_optimizer_step(self, optimizer):
            called.append("step")

        def setup(self, stage):
            called.append(stage)

        def configure_callbacks(self):
            return [*super().configure_callbacks(), LambdaCallback()]

    fit = fitted(Free())
    assert len(called) == 5
    assert fit.callback_metrics["mine"] == 1.0


def test_a_missing_objective_says_so():
    class Nothing(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.1))
            self.line = nn.Linear(6, 1)

    with pytest.raises(TypeError, match=r"Nothing has no objective\. Write objective\(self, batch\): the loss of one"):
        fitted(Nothing())


def test_automatic_optimization_is_refused():
    task = Line()
    task.automatic_optimization = True
    with pytest.raises(TypeError, match=r"Line\.automatic_optimization is True"):
        fitted(task)


def test_hooks_of_callbacks_that_no_round_calls_are_named():
    class Norms(Callback):
        def on_after_backward(self, trainer, pl_module):
            raise AssertionError

    for callback in (Norms(), LambdaCallback(on_before_zero_grad=print)):
        with pytest.warns(UserWarning, match=r"never called in a federated fit.*on_train_batch_end"):
            fitted(Line(), callbacks=[callback])


def test_a_compiled_task_is_refused_and_can_be_taken_back():
    from lightning.pytorch.utilities.compile import to_uncompiled

    compiled = torch.compile(Line(), backend="eager")
    with pytest.raises(TypeError, match=r"torch\.compile\(Line\).*Vectorized\(compile=True\)"):
        fitted(compiled)
    assert fitted(to_uncompiled(compiled)).global_step == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_takes_personal_copies():
    task, x = Own(FedAlt(0.05)), torch.ones(2, 6)
    fitted(task, own_data())
    own = task.personalize(1).eval()
    with pytest.raises(
        RuntimeError, match=r"torch\.jit reads every attribute.* use task\.personalize\(i\)\.to_torchscript"
    ):
        torch.jit.trace(own, x)
    torch.testing.assert_close(own.to_torchscript(method="trace", example_inputs=x)(x), own(x))
    torch.testing.assert_close(own.to_torchscript()(x), own(x))


# ---- weight averaging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [WeightAveraging, lambda: EMAWeightAveraging(decay=0.5)], ids=["mean", "EMA"])
def test_weight_averaging_is_what_is_validated(make):
    class Seen(Callback):
        def __init__(self):
            self.points, self.validated = [], []

        def on_train_batch_end(self, trainer, task, *_):
            self.points.append(torch.cat([p.detach().flatten() for p in task.parameters()]).clone())

        def on_validation_batch_start(self, trainer, task, *_):
            self.validated.append(torch.cat([p.detach().flatten() for p in task.parameters()]).clone())

    seen, task = Seen(), Line(dropout=0.0)
    fitted(task, callbacks=[seen, make()], num_sanity_val_steps=0)
    first, second = seen.points
    expected = (first + second) / 2  # that of EMA with decay 1/2 is the same
    torch.testing.assert_close(seen.validated[-1], expected)
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in task.parameters()]), expected)


@pytest.mark.parametrize("algorithm", [FedAlt(0.05), Ditto(0.05)], ids=["FedAlt", "Ditto"])
def test_weight_averaging_beside_clients_own_models_is_refused(algorithm):
    with pytest.raises(ValueError, match="EMAWeightAveraging does not suit Own: clients have models of their own"):
        fitted(Own(algorithm), own_data(), callbacks=[EMAWeightAveraging()])


# ---- what is logged --------------------------------------------------------------------------------------------------


class Watching(Callback):
    def __init__(self, name):
        self.name, self.seen, self.true = name, [], []

    def on_train_batch_end(self, trainer, task, *_):
        self.seen.append(float(trainer.callback_metrics[self.name]))
        self.true.append(float(task.round_metrics[self.name]))


@pytest.mark.parametrize("name", ["train_loss", "train_rmse", "drift", "round_upload", "client_lr"])
@pytest.mark.parametrize("logger", [False, True], ids=["no logger", "CSV"])
def test_callback_metrics_are_those_of_the_round(name, logger, tmp_path):
    watching = Watching(name)
    fitted(Line(), max_steps=5, callbacks=[watching], logger=CSVLogger(tmp_path) if logger else False)
    assert len(watching.seen) == 5
    assert watching.seen == pytest.approx(watching.true)
    assert name in ("round_upload", "client_lr") or len(set(watching.seen)) == 5


class Notebook(Logger):
    """Keeps what it is given."""

    name, version = "notebook", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *_, **__):
        pass


def test_loggers_get_a_row_a_logged_round_and_the_users_own_beside_it():
    class Talking(Line):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("mine", float(batch_idx))

    notebook = Notebook()
    fitted(Talking(), max_steps=4, logger=notebook, log_every_n_steps=2)
    rounds = [(step, row) for step, row in notebook.rows if "train_loss" in row]
    assert [step for step, _ in rounds] == [2, 4]
    assert {"train_rmse", "drift", "clients", "client_lr", "round_time", "upload", "epoch"} <= set(rounds[0][1])
    assert [step for step, row in notebook.rows if "mine" in row] == [2, 4]
    assert [step for step, row in notebook.rows if "val_loss" in row] == [2, 4]
    assert all(row for _, row in notebook.rows)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (FedAvg(0.05), {"client_lr": 0.05}),
        (FedAvg([0.05, 0.02]), {"client_lr/min": 0.05, "client_lr/max": 0.02}),
        (FedAvg({"body": 0.05, "default": 0.01}), {"client_lr/body": 0.05, "client_lr/default": 0.01}),
        (FedDR(0.5, 1.0, solver=LocalSteps(lr=0.03)), {"client_lr": 0.03}),
        (FedDR(0.5, 1.0, solver=LocalSteps()), {}),
        (CODAPlus(0.06, stage_steps=3), {"client_lr": 0.02}),
        (CDMA(0.08, beta=0.0, rho=1.0), {"client_lr": 0.04}),
    ],
    ids=["number", "pair", "prefixes", "solver", "estimated", "stages", "shrinking"],
)
def test_the_clients_step_size_is_logged(algorithm, expected):
    fit = fitted(Line(algorithm))
    logged = {k: float(v) for k, v in fit.callback_metrics.items() if k.startswith("client_lr")}
    assert logged == pytest.approx(expected)


def test_the_learning_rate_monitor_shows_the_servers(tmp_path):
    notebook = Notebook()
    fitted(Line(FedAvg(0.05)), logger=notebook, log_every_n_steps=1, callbacks=[LearningRateMonitor()])
    assert [row["lr-SGD"] for _, row in notebook.rows if "lr-SGD" in row][-1] == 1.0
    assert [row["client_lr"] for _, row in notebook.rows if "client_lr" in row] == [0.05, 0.05]


def test_a_loss_that_grows_a_million_fold_is_reported_once():
    class Steep(Line):
        def objective(self, batch):
            x, y = batch
            return {"loss": F.mse_loss(self.head(torch.relu(x[:, :5])).squeeze(1), y)}

    found = messages(lambda: fitted(Steep(FedAvg(50.0), oracle=Sequential()), max_steps=4))
    (message,) = [text for text in found if "million" in text]
    assert "train_loss has grown more than a million-fold" in message
    assert not [text for text in messages(lambda: fitted(Line(), max_steps=4)) if "million" in text]


# ---- data ------------------------------------------------------------------------------------------------------------


def test_a_fit_that_ends_before_its_first_validation_says_so(caplog):
    def said(caplog, **options):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            fitted(Line(), regression_data(rounds_per_epoch=10), **options)
        return [r.getMessage() for r in caplog.records if "before its first validation" in r.getMessage()]

    (message,) = said(caplog, max_steps=4)
    assert (
        "This fit of 4 rounds ends before its first validation, which is due at round 10. Set rounds_per_ep" in message
    )
    assert said(caplog, max_steps=10) == []
    assert said(caplog, max_steps=4, val_check_interval=4) == []
    assert said(caplog, max_steps=4, val_check_interval=3, check_val_every_n_epoch=None) == []
    assert said(caplog, max_steps=4, limit_val_batches=0) == []
    assert said(caplog, fast_dev_run=2, max_steps=-1) == []
    (message,) = said(caplog, max_steps=4, val_check_interval=7, check_val_every_n_epoch=None)
    assert "due at round 7. Set val_check_interval=4 with check_val_every_n_epoch=None of the Trainer." in message
    (message,) = said(caplog, max_steps=-1, max_epochs=1, check_val_every_n_epoch=2)
    assert "due at round 20" in message


def test_batch_statistics_of_one_repeated_sample_are_warned_of():
    one = TensorDataset(torch.randn(1, 6), torch.randn(1))
    data = FederatedDataModule.from_datasets([*clients()[:3], one], batch_size=4, local_steps=1)
    with pytest.warns(UserWarning, match="Client 3 holds one sample, of which a minibatch repeats copies: BatchNorm"):
        fitted(Normed(FedAvg(0.05)), data, max_steps=1)
    assert messages(lambda: fitted(Line(), data, max_steps=1)) == []


@pytest.mark.parametrize(
    ("algorithm", "runs_as"), [(FedAlt(0.05), "FedAvg"), (FedAPM(0.05), "a federated ADMM of the shared parameters")]
)
def test_a_method_for_personal_parts_without_any_is_named(algorithm, runs_as):
    with pytest.warns(UserWarning, match=f"{type(algorithm).__name__} is a method for personal .* runs as {runs_as}"):
        fitted(Line(algorithm))
    assert messages(lambda: fitted(Own(algorithm), own_data())) == []


def test_samples_take_the_dtype_of_what_is_trained():
    seen = []

    class Frozen(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.1), oracle=Sequential())
            self.backbone = nn.Linear(6, 6).to(torch.bfloat16).requires_grad_(False)
            self.head = nn.Linear(6, 1)

        def objective(self, batch):
            x, y = batch
            seen.extend([x.dtype, y.dtype])
            return F.mse_loss(self.head(self.backbone(x.bfloat16()).float()).squeeze(1), y)

    fitted(Frozen())
    assert set(seen) == {torch.float32}


def test_synchronised_batch_statistics_are_refused():
    class Synchronised(Normed):
        def __init__(self):
            super().__init__()
            self.net[1] = nn.SyncBatchNorm(8)

    with pytest.raises(ValueError, match=r"Synchronised\.net\.1 is a SyncBatchNorm, which would mix the samples"):
        fitted(Synchronised())


def test_ready_made_tasks_say_which_way_their_losses_go():
    class Scored(BatchedEvaluationTask):
        higher_is_better: ClassVar = {"mse": False}
        personal_parameters = ("offset",)

        def __init__(self, algorithm):
            super().__init__(algorithm, oracle=Vectorized())
            self.line, self.offset = nn.Linear(6, 1), nn.Parameter(torch.zeros(1))

        def predictions(self, batch):
            return self.line(batch[0]).squeeze(1) + self.offset

        def objective(self, batch):
            return (self.predictions(batch) - batch[1]).square().mean()

        def evaluate(self, stage, batch, scores):
            self.log(f"{stage}_mse", (scores - batch[1]).square().mean(), batch_size=len(scores))

    for algorithm in (FedAlt(0.05), FedALA(0.05), FedMM(0.05, mu=1.0)):
        task = Scored(algorithm)
        logged = fitted(task, own_data()).callback_metrics
        assert logged["val_mse_worst"] == task.client_metrics["val_mse"].max()


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused(register):
    """It would mask a gradient in one process with one optimizer; rounds take gradients at clients' own values."""
    task = Line()
    getattr(task.head.weight, register)(torch.zeros_like)
    with pytest.raises(TypeError, match=r"parameter 'head\.weight' has a gradient hook, which no round would call"):
        trainer(max_steps=1).fit(task, regression_data())
