"""The LightningModule under Lightning: rounds are steps, parameters are the global point, states are exposed."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAvg, FedMM, FedSGDA
from fedlightning.participation import Uniform
from fedlightning.proximal import L1
from fedlightning.schedules import Exponential
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from tests.support.small import Line, clients, fitted, regression_data


class Rounds(Callback):
    """Notes the round of every validation and the batches seen."""

    def __init__(self):
        self.validated, self.dealt = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.dealt.append(batch.index)

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)


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


class Rates(Callback):
    def __init__(self):
        self.found = []

    def on_train_batch_end(self, trainer, *args):
        self.found.append(float(trainer.callback_metrics["client_lr"]))


def test_overfit_batches_repeats_the_same_rounds():
    notes = Rounds()
    fitted(Line(), callbacks=[notes], overfit_batches=2, max_epochs=3, max_steps=-1)
    assert notes.dealt == [0, 1, 0, 1, 0, 1]


def test_schedules_go_on_where_rounds_are_repeated():
    notes = Rates()
    task = Line(FedAvg(Exponential(0.08, gamma=0.5)))
    fitted(task, callbacks=[notes], overfit_batches=2, max_epochs=2, max_steps=-1)
    assert notes.found == pytest.approx([0.08, 0.04, 0.02, 0.01])


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


def test_empty_client():
    empty = TensorDataset(torch.zeros(0, 6), torch.zeros(0))
    with pytest.raises(ValueError, match="Client 1 has no samples"):
        fitted(Line(), FederatedDataModule.from_datasets([clients()[0], empty]))


def test_cohort_larger_than_the_federation():
    with pytest.raises(ValueError, match=r"Uniform\(size=9\).*federation of 4 clients"):
        fitted(Line(), regression_data(participation=Uniform(9)))


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
