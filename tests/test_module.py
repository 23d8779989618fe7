"""The LightningModule under Lightning: rounds, states, optimizers, precision, errors."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import SCAFFOLD, Ditto, FedAvg, FedMM, FedSGDA
from fedlightning.callbacks import LastCheckpoint
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.proximal import L1, GroupLasso
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.small import Line, Normed, Personal, clients, regression_data, trainer


class Rounds(Callback):
    """Notes the round of every validation and the batches seen."""

    def __init__(self):
        self.validated, self.dealt = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.dealt.append(batch.index)

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)


def fitted(task, data=None, tmp_path=None, **options):
    fit = trainer(tmp_path, **options)
    fit.fit(task, regression_data() if data is None else data)
    return fit


# ---- rounds are steps ------------------------------------------------------------------------------------------------


def test_max_steps_counts_rounds():
    notes = Rounds()
    fit = fitted(Line(), callbacks=[notes], max_steps=13)
    assert fit.global_step == 13
    assert notes.dealt == list(range(13))


def test_max_epochs_times_rounds_per_epoch():
    fit = fitted(Line(), regression_data(rounds_per_epoch=3), max_epochs=4, max_steps=-1)
    assert fit.global_step == 12


def test_validation_every_n_rounds_across_epochs():
    notes = Rounds()
    fitted(Line(), callbacks=[notes], max_steps=21, val_check_interval=7, check_val_every_n_epoch=None)
    assert notes.validated == [7, 14, 21]


def test_fast_dev_run_and_limit_train_batches():
    assert fitted(Line(), fast_dev_run=2, max_steps=-1).global_step == 2
    assert fitted(Line(), limit_train_batches=2, max_epochs=3, max_steps=-1).global_step == 6


def test_overfit_batches_repeats_the_same_rounds():
    notes = Rounds()
    fitted(Line(), callbacks=[notes], overfit_batches=2, max_epochs=3, max_steps=-1)
    assert notes.dealt == [0, 1, 0, 1, 0, 1]


def test_metrics_of_a_round_are_logged(tmp_path):
    fit = fitted(Line(SCAFFOLD(0.05)), tmp_path=tmp_path, logger=CSVLogger(tmp_path), log_every_n_steps=1, max_steps=3)
    logged = fit.callback_metrics
    for name in ("train_loss", "train_rmse", "drift", "dual_norm", "clients", "left_out", "round_time"):
        assert torch.isfinite(logged[name]), name
    d = sum(p.numel() for p in fit.lightning_module.parameters())
    assert logged["upload"] == logged["download"] == 3 * 4 * 2 * d
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    steps = [line.split(",")[rows[0].split(",").index("step")] for line in rows[1:]]
    assert [int(float(step)) for step in steps if step] == [1, 2, 3]


def test_model_checkpoint_on_a_metric_and_early_stopping(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss", save_top_k=1, filename="best-{step}")
    stop = EarlyStopping(monitor="val_loss", min_delta=10.0, patience=2)
    fit = fitted(Line(), tmp_path=tmp_path, callbacks=[best, stop], enable_checkpointing=True, max_steps=100)
    assert fit.global_step == 15  # three epochs without an improvement by 10
    assert best.best_model_path.endswith(f"best-step={int(best.best_model_path.split('=')[-1][:-5])}.ckpt")
    assert torch.isfinite(best.best_model_score)


def test_validate_test_predict():
    task, data = Line(), regression_data()
    fit = fitted(task, data)
    (validated,) = fit.validate(task, data, verbose=False)
    (tested,) = fit.test(task, data, verbose=False)
    predicted = torch.cat(fit.predict(task, data))
    assert set(validated) == {"val_loss"}
    assert set(tested) == {"test_loss"}
    target = clients(seed=8)[0].tensors[1]
    torch.testing.assert_close((predicted - target).square().mean().item(), tested["test_loss"])


# ---- states ----------------------------------------------------------------------------------------------------------


def test_parameters_hold_the_global_point_and_states_are_exposed():
    task = QuadraticSaddle(FedMM(0.05, mu=1.0))
    fitted(task, ClientNumbers(participation=Uniform(3)), max_steps=4)
    assert torch.equal(torch.cat([task.x, task.y]).detach(), task.server_state.z)
    assert task.server_state.t == 4
    assert task.client_states.lam.shape == (8, 8)
    d = len(task.server_state.z)
    assert task.traffic == (4 * 3 * d, 4 * 3 * d)


def test_stateless_algorithm_has_no_client_states():
    task = Line()
    fitted(task)
    assert task.client_states is None


def test_a_second_fit_begins_anew_at_the_present_parameters():
    task = QuadraticSaddle(FedMM(0.05, mu=1.0))
    fitted(task, ClientNumbers(), max_steps=3)
    point = task.server_state.z.clone()
    fitted(task, ClientNumbers(), max_steps=1)
    fresh = QuadraticSaddle(FedMM(0.05, mu=1.0))
    with torch.no_grad():
        fresh.x.copy_(point[:5])
        fresh.y.copy_(point[5:])
    fitted(fresh, ClientNumbers(), max_steps=1)
    assert torch.equal(task.server_state.z, fresh.server_state.z)
    assert torch.equal(task.client_states.lam, fresh.client_states.lam)


def test_states_before_any_round_name_the_reason():
    with pytest.raises(RuntimeError, match="from the first round on"):
        _ = Line(SCAFFOLD(0.05)).client_states


# ---- server optimizer ------------------------------------------------------------------------------------------------


def final_point(**federation):
    torch.manual_seed(0)
    task = Line(FedAvg(0.05), dropout=0.0, **federation)
    fitted(task)
    return task.server_state.z


def test_server_sgd_of_lr_one_is_the_algorithm_itself():
    torch.testing.assert_close(final_point(server_optimizer=partial(torch.optim.SGD, lr=1.0)), final_point())


def test_server_adam_equals_adam_on_the_pseudo_gradient():
    torch.manual_seed(0)
    task = QuadraticSaddle(FedAvg(0.05), server_optimizer=partial(torch.optim.Adam, lr=0.1))
    z = torch.cat([task.x, task.y]).detach().clone().requires_grad_()
    matrix, offset = task.matrix.clone(), task.offset.clone()
    fitted(task, ClientNumbers(local_steps=3), max_steps=4)
    adam = torch.optim.Adam([z], lr=0.1)
    for _ in range(4):
        w = z.detach().expand(8, -1)
        for _ in range(3):
            w = w - 0.05 * ((matrix @ w.unsqueeze(2)).squeeze(2) + offset)
        z.grad = z.detach() - w.mean(0)
        adam.step()
    torch.testing.assert_close(task.server_state.z, z.detach())


def test_server_scheduler_is_stepped_once_a_round(tmp_path):
    task = Line(
        server_optimizer=partial(torch.optim.SGD, lr=1.0),
        server_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5),
    )
    monitor = LearningRateMonitor(logging_interval="step")
    fit = fitted(task, tmp_path=tmp_path, max_steps=6, logger=CSVLogger(tmp_path), callbacks=[monitor])
    assert fit.optimizers[0].param_groups[0]["lr"] == 0.125


def test_server_clip_bounds_the_move():
    task = QuadraticSaddle(FedAvg(0.05), server_clip=0.01)
    before = torch.cat([task.x, task.y]).detach().clone()
    fitted(task, ClientNumbers(), max_steps=1)
    moved = (torch.cat([task.x, task.y]) - before).norm()
    torch.testing.assert_close(moved.item(), 0.01, rtol=1e-3, atol=0)


def test_local_optimizer_is_one_optimizer_a_client():
    algorithm = FedAvg(0.05, local_optimizer=partial(torch.optim.SGD, momentum=0.9))
    task = QuadraticSaddle(algorithm)
    z, matrix, offset = torch.cat([task.x, task.y]).detach(), task.matrix, task.offset
    fitted(task, ClientNumbers(local_steps=4), max_steps=1)
    ends = []
    for i in range(8):
        w = z.clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.05, momentum=0.9)
        for _ in range(4):
            w.grad = matrix[i] @ w.detach() + offset[i]
            optimizer.step()
        ends.append(w.detach())
    torch.testing.assert_close(task.server_state.z, torch.stack(ends).mean(0))


# ---- weights, unequal data, buffers, personal blocks -----------------------------------------------------------------


def test_clients_of_unequal_size_take_their_own_numbers_of_steps():
    data = regression_data(local_steps=None, local_epochs=2, batch_size=5)
    vectorized, sequential = (Line(dropout=0.0, oracle=oracle) for oracle in (Vectorized(), Sequential()))
    sequential.load_state_dict(vectorized.state_dict())
    fitted(vectorized.double(), data, precision="64-true")
    fitted(sequential.double(), regression_data(local_steps=None, local_epochs=2, batch_size=5), precision="64-true")
    torch.testing.assert_close(vectorized.server_state.z, sequential.server_state.z, rtol=1e-12, atol=1e-12)
    steps = [len(member.index) for member in data.train_dataloader().members(0, 0)]
    assert sorted(steps) == [4, 4, 5, 6]


def test_weighting_by_samples_is_the_gradient_of_the_pooled_data():
    torch.manual_seed(0)
    task = Line(FedAvg(0.1), dropout=0.0, weighting="samples").double()
    before = torch.cat([p.detach().flatten() for p in task.parameters()])
    x = torch.cat([c.tensors[0] for c in clients()]).double()
    y = torch.cat([c.tensors[1] for c in clients()]).double()
    grads = torch.autograd.grad(task.objective((x, y))["loss"], list(task.parameters()))
    fitted(task, regression_data(batch_size=None, local_steps=1), max_steps=1, precision="64-true")
    expected = before - 0.1 * torch.cat([g.flatten() for g in grads])
    torch.testing.assert_close(task.server_state.z, expected, rtol=1e-12, atol=1e-12)


def test_batch_norm_statistics_are_averaged():
    task = Normed().double()
    data = regression_data(batch_size=None, local_steps=1)
    expected = []
    with torch.no_grad():
        for client in clients():
            x = task.net[0](client.tensors[0].double())
            expected.append(0.9 * 0.0 + 0.1 * x.mean(0))
    fitted(task, data, max_steps=1, precision="64-true")
    torch.testing.assert_close(task.net[1].running_mean, torch.stack(expected).mean(0))
    assert task.net[1].num_batches_tracked == 1
    d = sum(p.numel() for p in task.parameters())
    assert task.traffic == (4 * (d + 17), 4 * (d + 17))  # 8 means, 8 variances, one count


def test_local_batch_norm_statistics_stay_on_the_client():
    task = Normed(buffers="local").double()
    fitted(task, regression_data(), max_steps=3, precision="64-true")
    assert torch.equal(task.net[1].running_mean, torch.zeros(8))
    first, second = (task.personalize(i).net[1].running_mean for i in (0, 1))
    assert first.norm() > 0
    assert not torch.equal(first, second)
    d = sum(p.numel() for p in task.parameters())
    assert task.traffic == (3 * 4 * d, 3 * 4 * d)


class NormedTwice(Normed):
    """The first BatchNorm is the client's own, the second is shared."""

    personal_parameters = ("net.1",)

    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm, **federation)
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
        )


def test_statistics_of_personal_layers_stay_on_the_client_and_those_of_shared_ones_travel(tmp_path):
    task = NormedTwice().double()
    run = fitted(task, regression_data(), max_steps=3, precision="64-true")
    assert torch.equal(task.net[1].running_mean, torch.zeros(8))
    first, second = (task.personalize(i) for i in (0, 1))
    assert not torch.equal(first.net[1].running_mean, second.net[1].running_mean)
    assert first.net[1].running_mean.norm() > 0
    assert torch.equal(first.net[4].running_mean, second.net[4].running_mean)
    assert torch.equal(first.net[4].running_mean, task.net[4].running_mean)
    shared = sum(p.numel() for name, p in task.named_parameters() if not name.startswith("net.1."))
    assert task.traffic == (3 * 4 * (shared + 7), 3 * 4 * (shared + 7))  # 3 means, 3 variances, one count
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = NormedTwice.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    torch.testing.assert_close(loaded.personalize(1).double().net[1].running_mean, second.net[1].running_mean)


def test_a_personal_model_keeps_its_own_statistics_where_they_stay_on_the_client():
    task = Normed(Ditto(0.05, lam=0.0, lr_own=0.1), buffers="local").double()
    fitted(task, regression_data(batch_size=None, local_steps=1), max_steps=60, precision="64-true")
    for i, data in enumerate(clients()):
        own = task.personalize(i).eval()
        hidden = own.net[0](data.tensors[0].double())
        torch.testing.assert_close(own.net[1].running_mean, hidden.mean(0), rtol=0.1, atol=0.1)


def test_a_personal_model_leaves_the_global_statistics_alone():
    tasks = [Normed(algorithm).double() for algorithm in (FedAvg(0.05), Ditto(0.05, lam=0.0))]
    tasks[1].load_state_dict(tasks[0].state_dict())
    for task in tasks:
        fitted(task, regression_data(), max_steps=2, precision="64-true")
    for name, value in tasks[0].state_dict().items():
        torch.testing.assert_close(value, tasks[1].state_dict()[name])


def test_drift_of_some_of_the_parameters():
    drifts = []
    for names in ((), ("body",), ("body", "head")):
        torch.manual_seed(0)
        drifts.append(fitted(Line(drift_parameters=names, dropout=0.0), max_steps=2).callback_metrics["drift"])
    torch.testing.assert_close(drifts[0], drifts[2])  # the same sum, taken in another order
    assert drifts[2] > drifts[1] > 0
    with pytest.raises(ValueError, match=r"drift_parameters: 'boddy' matches no .*Did you mean 'body'"):
        fitted(Line(drift_parameters=["boddy"]), max_steps=1)


def test_vectorized_and_sequential_agree_on_batch_norm():
    tasks = [Normed(oracle=oracle).double() for oracle in (Vectorized(), Sequential())]
    tasks[1].load_state_dict(tasks[0].state_dict())
    for task in tasks:
        fitted(task, regression_data(), max_steps=3, precision="64-true")
    for one, other in zip(tasks[0].state_dict().values(), tasks[1].state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_personal_block_takes_local_steps_and_never_travels():
    task = Personal(FedAvg(0.05)).double()
    weight = task.line.weight.detach()[0].clone()
    fitted(task, regression_data(batch_size=None, local_steps=3), max_steps=1, precision="64-true")
    ends = []
    for i, client in enumerate(clients()):
        x, y = (t.double() for t in client.tensors)
        w, v = weight.clone(), 0.0
        for _ in range(3):
            residual = 2 * (x @ w + v - y) / len(y)
            w, v = w - 0.05 * (x.T @ residual), v - 0.05 * residual.sum()
        ends.append(w)
        torch.testing.assert_close(task.personalize(i).offset.item(), float(v))
    torch.testing.assert_close(task.line.weight.detach()[0], torch.stack(ends).mean(0))
    assert task.offset.item() == 0.0
    assert task.traffic == (4 * 6, 4 * 6)
    with pytest.raises(IndexError, match="clients 0 to 3"):
        task.personalize(4)
    with pytest.raises(TypeError, match="float"):
        task.personalize(1.5)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", [Vectorized(), Sequential()], ids=["vectorized", "sequential"])
def test_bf16_mixed_computes_in_bf16_and_keeps_states_in_float32(oracle):
    seen = []

    class Spy(Line):
        def objective(self, batch):
            seen.append(self.body[0](batch[0]).dtype)
            return super().objective(batch)

    task = Spy(FedMM(0.05, mu=1.0), oracle=oracle)
    fitted(task, precision="bf16-mixed")
    assert set(seen) == {torch.bfloat16}
    assert task.client_states.lam.dtype == task.server_state.z.dtype == torch.float32
    exact = Line(FedMM(0.05, mu=1.0), oracle=oracle, dropout=0.0)
    rough = Line(FedMM(0.05, mu=1.0), oracle=oracle, dropout=0.0)
    rough.load_state_dict(exact.state_dict())
    fitted(exact)
    fitted(rough, precision="bf16-mixed")
    torch.testing.assert_close(rough.server_state.z, exact.server_state.z, rtol=0.1, atol=0.05)
    assert not torch.equal(rough.server_state.z, exact.server_state.z)


def test_bf16_true_keeps_points_and_duals_in_float32():
    task = Line(FedMM(0.05, mu=1.0), dropout=0.0)
    fitted(task, precision="bf16-true")
    assert task.head.weight.dtype == torch.bfloat16
    assert task.client_states.lam.dtype == task.server_state.z.dtype == torch.float32


def test_64_true_is_float64_throughout():
    task = Line(SCAFFOLD(0.05))
    fitted(task, precision="64-true")
    assert task.head.weight.dtype == task.client_states.c.dtype == torch.float64


def scaled_trainer(**options):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    return trainer(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], **options), scaler


@pytest.mark.parametrize("oracle", [Vectorized(), Sequential()], ids=["vectorized", "sequential"])
def test_16_mixed_scales_losses_and_unscales_moves(oracle):
    exact = Line(FedMM(0.05, mu=1.0), dropout=0.0, oracle=oracle)
    half = Line(FedMM(0.05, mu=1.0), dropout=0.0, oracle=oracle)
    half.load_state_dict(exact.state_dict())
    fitted(exact)
    fit, scaler = scaled_trainer()
    fit.fit(half, regression_data())
    assert scaler.get_scale() == 2.0**10
    torch.testing.assert_close(half.server_state.z, exact.server_state.z, rtol=0.02, atol=0.01)
    assert fit.global_step == 7


def test_16_mixed_overflow_skips_the_round_and_halves_the_scale():
    task = Line(FedMM(0.05, mu=1.0), dropout=0.0)
    before = torch.cat([p.detach().flatten() for p in task.parameters()])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    fit = trainer(plugins=[MixedPrecision("16-mixed", "cpu", scaler)], max_steps=1)
    fit.fit(task, regression_data())
    assert scaler.get_scale() == 2.0**39
    assert fit.global_step == 1
    assert torch.equal(task.server_state.z, before)
    assert task.server_state.t == 0
    assert not task.client_states.lam.any()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_on_a_gpu(precision):
    task = Line(FedMM(0.05, mu=1.0))
    fitted(task, accelerator="gpu", precision=precision)
    assert torch.isfinite(task.server_state.z).all()


# ---- bad input -------------------------------------------------------------------------------------------------------


def poisoned(bad):
    sets = clients()
    for i in bad:
        sets[i].tensors[1].fill_(float("nan"))
    return FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2, rounds_per_epoch=5)


@pytest.mark.parametrize("oracle", [Vectorized(), Sequential(), Vectorized(chunk_size=2)])
def test_a_client_with_nan_is_left_out_and_counted(oracle):
    task = Line(SCAFFOLD(0.05), oracle=oracle)
    with pytest.warns(RuntimeWarning, match="NaN or infinite numbers came from client 2"):
        fit = fitted(task, poisoned([2]), max_steps=1)
    assert fit.callback_metrics["clients"] == 3
    assert fit.callback_metrics["left_out"] == 1
    assert torch.isfinite(task.server_state.z).all()
    moved = task.client_states.c.norm(dim=1) > 0
    assert moved.tolist() == [True, True, False, True]


def test_a_client_left_out_changes_nothing_for_the_others():
    data = FederatedDataModule.from_datasets(
        [c for i, c in enumerate(clients()) if i != 2], batch_size=None, local_steps=2, rounds_per_epoch=5
    )
    sets = clients()
    sets[2].tensors[1].fill_(float("nan"))
    sick = FederatedDataModule.from_datasets(sets, batch_size=None, local_steps=2, rounds_per_epoch=5)
    tasks = [Line(FedAvg(0.05), dropout=0.0).double() for _ in range(2)]
    tasks[1].load_state_dict(tasks[0].state_dict())
    fitted(tasks[0], data, precision="64-true")
    with pytest.warns(RuntimeWarning, match="NaN or infinite numbers came from client 2"):
        fitted(tasks[1], sick, precision="64-true")
    torch.testing.assert_close(tasks[1].server_state.z, tasks[0].server_state.z, rtol=1e-12, atol=1e-12)


def test_a_round_of_nan_only_stops_and_saves_the_state_before_it(tmp_path):
    class Turning(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss * float("nan") if self.trainer.global_step >= 3 else loss}

    task = Turning(FedMM(0.05, mu=1.0), oracle=Sequential())
    fit = trainer(tmp_path, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, every_n_epochs=100)])
    with pytest.raises(RoundRejectedError, match=r"Round 3: All 4 clients .*before-rejected-round-3\.ckpt"):
        fit.fit(task, regression_data())
    state = torch.load(tmp_path / "before-rejected-round-3.ckpt", weights_only=True)
    assert state["federation"]["server"]["t"] == 3
    assert torch.isfinite(state["federation"]["server"]["z"]).all()


@pytest.mark.parametrize("attribute", ["max_parameters", "personal_parameters"])
def test_misspelt_prefix(attribute):
    task = Line()
    setattr(task, attribute, ("haed",))
    with pytest.raises(ValueError, match=rf"{attribute}: 'haed' matches no .* Did you mean 'head'\?"):
        fitted(task)


def test_overlapping_blocks():
    task = Line()
    task.max_parameters, task.personal_parameters = ("head",), ("head.bias",)
    with pytest.raises(ValueError, match=r"'head\.bias' is named by max_parameters and by personal_parameters"):
        fitted(task)


def test_empty_client():
    empty = TensorDataset(torch.zeros(0, 6), torch.zeros(0))
    with pytest.raises(ValueError, match="Client 1 has no samples"):
        fitted(Line(), FederatedDataModule.from_datasets([clients()[0], empty]))


def test_cohort_larger_than_the_federation():
    with pytest.raises(ValueError, match=r"Uniform\(size=9\).*federation of 4 clients"):
        fitted(Line(), regression_data(participation=Uniform(9)))


def test_log_inside_the_objective():
    class Logs(Line):
        def objective(self, batch):
            self.log("inside", 1.0)
            return super().objective(batch)

    with pytest.raises(RuntimeError, match=r"objective called self.log\('inside'.*return a dict"):
        fitted(Logs())


def test_objective_that_is_no_scalar():
    class Rows(Line):
        def objective(self, batch):
            return {"loss": (self.head(self.body(batch[0])) - 1).square()}

        def validation_step(self, batch, batch_idx):
            pass

    with pytest.raises(ObjectiveError, match="must return a scalar"):
        fitted(Rows())


def test_objective_that_vmap_cannot_run_is_computed_one_client_after_the_other(caplog):
    class Branches(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss if loss > 0.1 else 2 * loss}

    weights = []
    with caplog.at_level(logging.INFO):
        for oracle in (Vectorized(), Sequential()):
            torch.manual_seed(0)
            task = Branches(oracle=oracle)
            fitted(task)
            weights.append(task.head.weight)
    assert torch.equal(*weights)
    (line,) = [message for message in caplog.messages if "oracle" in message]
    assert line.startswith(
        "oracle: took Sequential: with Vectorized(backward='autograd', replay=True) Branches.objective"
    )
    assert "torch.func.vmap" in line


def test_auto_falls_back_to_sequential_with_a_message(caplog):
    class Branches(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss if loss > 0.1 else 2 * loss}

    task = Branches()
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fitted(task)
    assert "took Sequential" in caplog.text
    assert task.run.simulation.runner.ways.oracle == Sequential()


def test_nothing_to_federate():
    class Frozen(Line):
        def __init__(self):
            super().__init__()
            self.requires_grad_(False)

    with pytest.raises(ValueError, match="no shared trainable parameters"):
        fitted(Frozen())


def test_frozen_parameters_are_constants():
    task = Line()
    task.body.requires_grad_(False)
    before = task.body[0].weight.clone()
    fitted(task)
    assert torch.equal(task.body[0].weight, before)
    assert len(task.server_state.z) == 6


def test_tied_weights_are_one_parameter():
    class Tied(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.001))
            self.a = nn.Linear(6, 6, bias=False)
            self.b = nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight

        def objective(self, batch):
            return (self.b(self.a(batch[0])).sum(1) - batch[1]).square().mean()

    task = Tied()
    fitted(task)
    assert len(task.server_state.z) == 36
    assert torch.equal(task.a.weight, task.b.weight)


def test_regularisers_apply_by_prefix_and_are_logged():
    task = Line(FedSGDA(0.05), regularizer={"body.0.weight": GroupLasso(1.0), "head": L1(0.1)}, dropout=0.0)
    run = fitted(task, max_steps=60)
    weight, head = task.body[0].weight.detach(), task.head
    assert (weight.norm(dim=1) == 0).any()
    expected = GroupLasso(1.0).value(weight) + L1(0.1).value(head.weight.detach()) + L1(0.1).value(head.bias.detach())
    assert float(run.callback_metrics["regularization"]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": FedAvg(0.1), "regularizer": L1(0.1)}, "FedAvg takes no regularizer or max_regularizer"),
        (
            {"algorithm": FedSGDA(0.1), "regularizer": L1(0.1), "server_optimizer": torch.optim.Adam},
            "would move the model after the proximal step",
        ),
    ],
)
def test_regularisers_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Line(**options)


def test_a_regulariser_of_the_wrong_place_is_refused_before_training():
    task = Line(FedSGDA(0.1), regularizer={"hed": L1(0.1)})
    with pytest.raises(ValueError, match="regularizer: 'hed' matches no trainable parameter"):
        fitted(task)


def test_looking_at_a_loaded_task_changes_nothing(tmp_path):
    first = Line(SCAFFOLD(0.05), dropout=0.0)
    fit = fitted(first, max_steps=4)
    fit.save_checkpoint(tmp_path / "four.ckpt")
    ends = []
    for look in (lambda task: None, lambda task: (task.client_states, task.server_state, task.traffic)):
        task = Line.load_from_checkpoint(tmp_path / "four.ckpt", algorithm=SCAFFOLD(0.05))
        look(task)
        fitted(task, max_steps=3)
        ends.append((task.traffic, task.server_state.c))
    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


def test_a_watched_metric_is_fresh_every_round(tmp_path):
    options = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{train_loss:.6f}"}
    keep = ModelCheckpoint(tmp_path, monitor="train_loss", **options)
    fitted(Line(dropout=0.0), max_steps=4, enable_checkpointing=True, callbacks=[keep], log_every_n_steps=50)
    assert len({path.stem for path in tmp_path.glob("train_loss=*.ckpt") if "-v" not in path.stem}) == 4


def test_lr_by_prefix_covers_shared_and_personal_parameters():
    def moved(lr):
        torch.manual_seed(0)
        task = Personal(FedAvg(lr))
        before = task.line.weight.detach().clone()
        fitted(task, max_steps=1)
        return (task.line.weight.detach() - before).norm(), task.personalize(0).offset.detach().abs().sum()

    both = moved({"line": 0.05, "offset": 0.05})
    assert moved(0.05) == both == moved({"line": 0.05, "default": 0.05})
    assert moved({"line": 0.05, "offset": 1e-9})[1] < 1e-6
    with pytest.raises(ValueError, match=r"lr: 'ofset' matches no trainable parameter\. Did you mean 'offset'"):
        moved({"line": 0.05, "ofset": 0.05})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Line(weighting="sample"), ValueError, "weighting='sample': expected one of 'uniform', 'samples'"),
        (lambda: Line(buffers="avg"), ValueError, "buffers='avg': expected one of 'average', 'local'"),
        (lambda: Line(torch.optim.SGD), TypeError, "expected an object of a dataclass derived from"),
        (lambda: FedAvg("0.1"), TypeError, r"FedAvg\(lr='0.1'\): expected a number"),
        (lambda: FederatedDataModule.from_datasets(train=[]), ValueError, "give one data set a client"),
        (
            lambda: fitted(Line(FedAvg(0.1, local_optimizer=torch.optim.LBFGS))),
            ValueError,
            "local_optimizer=LBFGS is not elementwise",
        ),
        (
            lambda: fitted(Line(server_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)),
            ValueError,
            "server_scheduler=ReduceLROnPlateau",
        ),
        (
            lambda: trainer().fit(Personal(), torch.utils.data.DataLoader(clients()[0], batch_size=4)),
            TypeError,
            "instead of a round of cohorts",
        ),
    ],
)
def test_mistakes_are_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_operation_without_a_batching_rule_is_computed_one_client_after_the_other():
    with torch.library._scoped_library("fedlightning_test", "DEF") as library:  # several tensors: no fallback of vmap's
        library.define("total(Tensor[] parts) -> Tensor")
        library.impl("total", lambda parts: torch.stack(parts).sum(), "CompositeExplicitAutograd")

        class Odd(Line):
            def objective(self, batch):
                return {"loss": super().objective(batch)["loss"] + torch.ops.fedlightning_test.total([batch[1]])}

        for oracle in (None, Vectorized(), Vectorized(compile=True)):
            task = Odd(oracle=oracle)
            fitted(task, max_steps=1)
            assert isinstance(task.run.simulation.runner.ways.oracle, Sequential)


def test_numpy_hyper_parameters_are_stored_as_numbers(tmp_path):
    import numpy as np

    task = Line(FedAvg(np.float64(0.05)))
    fitted(task, max_steps=1).save_checkpoint(tmp_path / "one.ckpt")
    torch.load(tmp_path / "one.ckpt", weights_only=True)
    assert Line.load_from_checkpoint(tmp_path / "one.ckpt").algorithm.lr == 0.05


def test_server_clip_under_loss_scaling():
    def moved(**options):
        torch.manual_seed(0)
        task = Line(server_clip=0.01, dropout=0.0)
        before = torch.cat([p.detach().flatten() for p in task.parameters()])
        fitted(task, max_steps=1, **options)
        return (torch.cat([p.detach().flatten() for p in task.parameters()]) - before).norm()

    scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
    assert float(moved()) == pytest.approx(0.01, rel=1e-3)
    assert float(moved(plugins=[scaled])) == pytest.approx(0.01, rel=1e-2)


def test_an_interrupt_in_the_middle_of_a_round_saves_the_rounds_before(tmp_path):
    class Stop(Line):
        calls = 0

        def objective(self, batch):
            Stop.calls += 1
            if Stop.calls > 6:  # two of them before the first round
                raise KeyboardInterrupt
            return super().objective(batch)

    task = Stop(SCAFFOLD(0.05), oracle=Sequential())
    last = LastCheckpoint(str(tmp_path), every_n_seconds=1e9)
    data = regression_data(participation=Uniform(1), local_steps=2)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fitted(task, data, callbacks=[last], enable_checkpointing=True, num_sanity_val_steps=0)
    stored = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert stored["global_step"] == 2
    weight = stored["state_dict"]["body.0.weight"].flatten()
    assert torch.equal(stored["federation"]["server"]["z"][: len(weight)], weight)
