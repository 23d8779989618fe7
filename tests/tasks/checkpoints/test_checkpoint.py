"""Saving, killing, resuming, loading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint

from fedlightning import FederatedDataModule, FederatedLightningModule, federate
from fedlightning.algorithms import FIAELT, SCAFFOLD, FedAPM, FedAvg, FedDR, FedExP, FedMM
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO, CheckpointError
from fedlightning.local import SVRG, LocalSteps
from fedlightning.oracle import Auto, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.proximal import L1
from tests.support.cases import CASES
from tests.support.evaluated import held_out_data, two_rounds
from tests.support.lit import Lit
from tests.support.paths import ROOT
from tests.support.small import Line, Normed, Personal, clients, fitted, regression_data, trainer


def tensors_of(state, prefix=""):
    """All tensors of nested dicts and lists."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {k: v for key, value in items for k, v in tensors_of(value, f"{prefix}/{key}").items()}


def assert_same_bits(first, second):
    a, b = (tensors_of({k: s[k] for k in ("state_dict", "federation", "optimizer_states")}) for s in (first, second))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def saved(folder, at, make, data, rounds, ckpt_path=None, **options):
    """Train to ``rounds`` with a checkpoint every ``at`` rounds; returns the final checkpoint."""
    torch.manual_seed(0)
    task = make()
    callback = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=at, save_top_k=-1)
    fit = trainer(folder, enable_checkpointing=True, callbacks=[callback], max_steps=rounds, **options)
    fit.fit(task, data, ckpt_path=ckpt_path)
    path = Path(folder) / f"end-{rounds}.ckpt"
    fit.save_checkpoint(path)
    return torch.load(path, weights_only=True)


@pytest.mark.filterwarnings("ignore:.* is a method for personal parameters")
@pytest.mark.parametrize("name", CASES)
def test_resume_in_the_middle_of_an_epoch_is_bitwise(name, tmp_path):
    algorithm = CASES[name].algorithm()
    make = partial(Line, algorithm, oracle=Vectorized())
    data = partial(regression_data, participation=Uniform(3), rounds_per_epoch=3)
    whole = saved(tmp_path / "a", 4, make, data(), 7)
    resumed = saved(tmp_path / "b", 4, make, data(), 7, ckpt_path=tmp_path / "a" / "step=4.ckpt")
    assert_same_bits(whole, resumed)


@pytest.mark.parametrize(
    "make",
    [
        partial(Line, FedMM(0.05, mu=1.0), server_optimizer=partial(torch.optim.Adam, lr=0.01)),
        partial(Normed, SCAFFOLD(0.05), buffers="local"),
        partial(Normed, FedAvg(0.05), oracle=Sequential()),
        partial(Personal, FedMM(0.05, mu=1.0)),
        partial(Line, FedAvg(0.05), oracle=Auto()),
        partial(Line, FIAELT(solver=SVRG(inner_steps=5, epochs=2)), oracle=Vectorized()),
        partial(Line, FIAELT(beta=5.0, solver=SVRG(lr=0.02, inner_steps=5, epochs=2)), oracle=Vectorized()),
        partial(Line, FedDR(eta=0.2), oracle=Vectorized()),
    ],
    ids=[
        "server-adam",
        "local-batch-norm",
        "batch-norm-sequential",
        "personal",
        "auto",
        "own-penalties",
        "svrg",
        "own-step-sizes",
    ],
)
def test_resume_with_every_kind_of_state_is_bitwise(make, tmp_path):
    data = partial(regression_data, participation=Uniform(2))
    whole = saved(tmp_path / "a", 3, make, data(), 8)
    resumed = saved(tmp_path / "b", 3, make, data(), 8, ckpt_path=tmp_path / "a" / "step=3.ckpt")
    chosen = [(state["federation"].get("oracle") or {}).get("class_path") for state in (whole, resumed)]
    assert chosen[0] == chosen[1]
    assert_same_bits(whole, resumed)


def test_resume_after_validation_inside_an_epoch_is_bitwise(tmp_path):
    make = partial(Line, FedMM(0.05, mu=1.0), oracle=Vectorized())
    options = {"val_check_interval": 3, "check_val_every_n_epoch": None}
    whole = saved(tmp_path / "a", 4, make, regression_data(), 12, **options)
    resumed = saved(tmp_path / "b", 4, make, regression_data(), 12, ckpt_path=tmp_path / "a" / "step=4.ckpt", **options)
    assert_same_bits(whole, resumed)


class Slow(Callback):
    def __init__(self, seconds):
        self.seconds = seconds

    def on_train_batch_start(self, *args):
        time.sleep(self.seconds)


def long_run(folder, ckpt_path=None, seconds=0.0):
    """A run that saves a checkpoint every round, and rests before it; returns the final one."""
    torch.manual_seed(0)
    callback = ModelCheckpoint(folder, save_last=True, every_n_train_steps=1, save_top_k=0)
    options = {"callbacks": [callback, Slow(seconds)], "max_steps": 40, "plugins": AtomicCheckpointIO()}
    fit = trainer(folder, enable_checkpointing=True, **options)
    task = Line(FedMM(0.05, mu=1.0), oracle=Vectorized())
    fit.fit(task, regression_data(participation=Uniform(3)), ckpt_path=ckpt_path)
    fit.save_checkpoint(folder / "end.ckpt")
    return torch.load(folder / "end.ckpt", weights_only=True)


def in_a_process():
    folder, ckpt = sys.argv[1:]
    long_run(Path(folder), ckpt or None, seconds=0.1)


def start(folder, ckpt=""):
    """The same in a process of its own."""
    code = f"import fedlightning; from {__name__} import in_a_process; in_a_process()"
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder), str(ckpt)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)


@pytest.mark.slow
def test_killed_runs_resumed_end_bitwise_like_an_uninterrupted_one(tmp_path):
    """Only those that are killed need processes of their own."""
    folder, ckpt, kills = tmp_path / "killed", "", 0
    last = folder / "last.ckpt"
    for _ in range(2):
        process = start(folder, ckpt)
        began = last.stat().st_mtime if last.exists() else 0.0
        deadline = time.monotonic() + 60
        while not (last.exists() and last.stat().st_mtime > began) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
        ckpt = last
    assert kills == 2
    assert not (folder / "end.ckpt").exists()
    killed, whole = long_run(folder, ckpt), long_run(tmp_path / "whole")
    assert killed["global_step"] == whole["global_step"] == 40
    assert killed["federation"]["clients"]["rows"]["state.lam"].abs().sum() > 0
    assert_same_bits(whole, killed)


def test_load_from_checkpoint_restores_everything(tmp_path):
    end = saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05, lr_server=0.9)), regression_data(), 4)
    task = Line.load_from_checkpoint(tmp_path / "end-4.ckpt", weights_only=True)
    assert isinstance(task.algorithm, SCAFFOLD)
    assert task.algorithm.lr_server == 0.9
    assert task.hparams.dropout == 0.2
    assert torch.equal(task.server_state.c, end["federation"]["server"]["c"])
    assert task.client_states.c.shape == (4, len(task.server_state.z))
    assert torch.equal(task.head.weight.flatten(), task.server_state.z[-6:-1])
    assert task.traffic == (end["federation"]["upload"], end["federation"]["download"])


class Tracked(Line):
    """Keeps a running loss and a number of evaluations in buffers that PyTorch leaves out of the weights."""

    def __init__(self, algorithm=None, dropout=0.0, **federation):
        super().__init__(algorithm, dropout, **federation)
        self.register_buffer("running", torch.zeros(1), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("kept", torch.zeros(2))

    def objective(self, batch):
        values = super().objective(batch)
        self.running = 0.9 * self.running + 0.1 * values["loss"].detach()
        self.seen = self.seen + 1
        self.kept = self.kept + 1.0
        return values

    def validation_step(self, batch, batch_idx):
        self.log("val_running", self.running)


def test_averaged_buffers_that_are_not_persistent_are_restored(tmp_path):
    straight, resumed = (tmp_path / name for name in ("straight", "resumed"))
    first = saved(straight, 2, Tracked, regression_data(), 6)
    again = saved(resumed, 2, Tracked, regression_data(), 6, ckpt_path=straight / "step=4.ckpt")
    assert "running" not in first["state_dict"]
    assert_same_bits(first, again)
    loaded = Tracked.load_from_checkpoint(straight / "end-6.ckpt")
    assert loaded.seen == 18  # three steps a round
    assert loaded.running > 0.05
    assert torch.equal(loaded.kept, torch.full((2,), 18.0))
    other = Tracked(SCAFFOLD(0.05))
    found = trainer().validate(other, regression_data(), ckpt_path=straight / "end-6.ckpt", verbose=False)
    assert found == [{"val_running": loaded.running.item()}]


def test_load_from_checkpoint_with_another_value(tmp_path):
    saved(tmp_path, 99, partial(Line, FedAvg(0.05)), regression_data(), 2)
    task = Line.load_from_checkpoint(tmp_path / "end-2.ckpt", algorithm=FedAvg(0.01), dropout=0.5)
    assert task.algorithm.lr == 0.01
    assert task.body[2].p == 0.5


def test_personalize_from_a_checkpoint(tmp_path):
    saved(tmp_path, 99, Personal, regression_data(), 3)
    task = Personal.load_from_checkpoint(tmp_path / "end-3.ckpt")
    offsets = [task.personalize(i).offset.item() for i in range(4)]
    assert len(set(offsets)) == 4


class Moves(Callback):
    """Changes the model before the first round of a fit."""

    def on_train_start(self, trainer, pl_module):
        torch.nn.init.ones_(pl_module.head.bias)


OTHER_POINTS = {
    "FedAPM": (FedAPM(0.05, rho=1.5), FedAPM(0.05, rho=3.0), {}),
    "FedExP": (FedExP(0.05), FedExP(0.05, output="mean_of_two"), {}),
    "FedDR": (
        FedDR(eta=0.2, solver=LocalSteps(0.05)),
        FedDR(eta=0.4, solver=LocalSteps(0.05)),
        {"regularizer": L1(0.1)},
    ),
}


@pytest.mark.filterwarnings("ignore:FedAPM is a method for personal parameters")
@pytest.mark.parametrize("name", OTHER_POINTS)
def test_a_model_follows_other_hyper_parameters_by_which_it_comes_from_the_state(name, tmp_path, caplog):
    then, now, options = OTHER_POINTS[name]
    end = saved(tmp_path, 99, partial(Line, then, **options), regression_data(), 4)
    path = tmp_path / "end-4.ckpt"
    looked_at = Line.load_from_checkpoint(path, algorithm=now)
    moved = looked_at.run.simulation.server.point
    kept = looked_at.body[0].weight.flatten()
    assert torch.equal(kept, end["state_dict"]["body.0.weight"].flatten())  # looking changes nothing
    assert not torch.allclose(moved[: len(kept)], kept, rtol=1e-3)
    task = Line(now, **options)
    trainer(tmp_path, max_steps=5).fit(task, regression_data(), ckpt_path=path)
    assert task.run.changed is None
    assert "The fit goes on from the model that follows now" in caplog.text
    with pytest.raises(RuntimeError, match=r"'head.bias' was changed|was changed after round 4"):
        trainer(tmp_path, max_steps=5, callbacks=[Moves()]).fit(Line(now, **options), regression_data(), ckpt_path=path)


@pytest.mark.parametrize("lr", [0.05, 0.01])
def test_weights_that_a_hook_changes_are_not_given_up_for_the_states(lr, tmp_path):
    class Edits(Line):
        def on_load_checkpoint(self, checkpoint):
            checkpoint["state_dict"]["head.bias"] += 1.0
            super().on_load_checkpoint(checkpoint)

    saved(tmp_path, 99, Edits, regression_data(), 4)
    with pytest.raises(RuntimeError, match=r"'head.bias' was changed after round 4"):
        trainer(tmp_path, max_steps=5).fit(Edits(FedAvg(lr)), regression_data(), ckpt_path=tmp_path / "end-4.ckpt")


def test_checkpoint_of_another_algorithm(tmp_path):
    saved(tmp_path, 99, partial(Line, FedAvg(0.05)), regression_data(), 2)
    with pytest.raises(ValueError, match=r"written by .*FedAvg, this run uses .*FedMM"):
        saved(tmp_path, 99, partial(Line, FedMM(0.05)), regression_data(), 4, tmp_path / "end-2.ckpt")


def test_checkpoint_of_another_algorithm_can_still_be_evaluated(tmp_path):
    saved(tmp_path, 99, partial(Line, FedAvg(0.05)), regression_data(), 2)
    task = Line(FedMM(0.05))
    (tested,) = trainer().test(task, regression_data(), ckpt_path=tmp_path / "end-2.ckpt", verbose=False)
    assert tested["test_loss"] > 0


def test_checkpoint_of_another_federation(tmp_path):
    saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05)), regression_data(), 2)
    from fedlightning import FederatedDataModule
    from tests.support.small import clients

    other = FederatedDataModule.from_datasets(clients(3), batch_size=4, local_steps=3)
    with pytest.raises(ValueError, match=r"federation of 4 clients .*the data are a federation of 3 clients"):
        saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05)), other, 4, tmp_path / "end-2.ckpt")


@pytest.mark.parametrize(("then", "now"), [("local", "average"), ("average", "local")])
def test_checkpoint_of_buffers_that_lay_elsewhere(then, now, tmp_path):
    file = tmp_path / "end-2.ckpt"
    saved(tmp_path, 99, partial(Normed, SCAFFOLD(0.05), buffers=then), regression_data(), 2)
    said = (
        rf"end-2\.ckpt was trained with buffers='{then}', this run has buffers='{now}': 'net\.1\.running_mean' .*"
        rf"Take buffers='{then}' \(--model\.buffers={then}\), or start anew without ckpt_path"
    )
    with pytest.raises(CheckpointError, match=said):
        saved(tmp_path, 99, partial(Normed, SCAFFOLD(0.05), buffers=now), regression_data(), 4, file)
    with pytest.raises(CheckpointError, match=said):
        Normed.load_from_checkpoint(file, buffers=now)
    assert Normed.load_from_checkpoint(file).federation_options.buffers == then


def test_buffers_that_no_objective_changes_may_lie_anywhere(tmp_path):
    saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05), buffers="local"), regression_data(), 2)
    saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05)), regression_data(), 4, tmp_path / "end-2.ckpt")
    saved(tmp_path, 99, partial(PersonallyNormed, FedAvg(0.05), buffers="local"), regression_data(), 2)
    saved(tmp_path, 99, partial(PersonallyNormed, FedAvg(0.05)), regression_data(), 4, tmp_path / "end-2.ckpt")


class PersonallyNormed(Normed):
    """BatchNorm stays on the clients either way."""

    personal_parameters = ("net.1",)


def test_checkpoint_of_another_model(tmp_path):
    end = saved(tmp_path, 99, partial(Line, SCAFFOLD(0.05)), regression_data(), 2)
    task = Personal(SCAFFOLD(0.05))
    task.run.load(end["federation"], {})
    with pytest.raises(ValueError, match=r"'body\.0\.weight' among .* not among them\. Resume with the same model"):
        _ = task.server_state


def test_hyper_parameters_that_cannot_be_stored_are_named(tmp_path):
    class Odd(Line):
        def __init__(self, algorithm, thing=None):
            super().__init__(algorithm)
            self.save_hyperparameters()

    task = Odd(FedAvg(0.05), thing=torch.nn.Linear(1, 1).weight.data)
    fit = trainer(tmp_path, max_steps=1)
    fit.fit(task, regression_data())
    with pytest.warns(UserWarning, match="'thing' .*give it again to load_from_checkpoint"):
        fit.save_checkpoint(tmp_path / "odd.ckpt")


def test_a_task_that_saves_no_hyper_parameters_needs_them_again(tmp_path):
    class Forgetful(FederatedLightningModule):
        def __init__(self, algorithm, features):
            super().__init__(algorithm)
            self.line = torch.nn.Linear(features, 1)

        def objective(self, batch):
            return (self.line(batch[0]).squeeze(1) - batch[1]).square().mean()

    file = tmp_path / "one.ckpt"
    fitted(Forgetful(FedAvg(0.05), 6), max_steps=1).save_checkpoint(file)
    for given, names in (({}, "algorithm=..., features=..."), ({"algorithm": FedAvg(0.05)}, "features=...")):
        with pytest.raises(CheckpointError) as error:
            Forgetful.load_from_checkpoint(file, **given)
        assert str(error.value) == (
            f"Forgetful cannot be made from {file}: hyper_parameters: none are stored, because Forgetful.__init__ does "
            f"not call self.save_hyperparameters(). Give {'it' if given else 'them'} here, "
            f"Forgetful.load_from_checkpoint(path, {names}), and call save_hyperparameters() for checkpoints to come."
        )
    assert Forgetful.load_from_checkpoint(file, algorithm=FedAvg(0.05), features=6).line.in_features == 6


def test_an_error_of_the_task_ends_with_a_full_stop(tmp_path):
    fitted(Line(), max_steps=1).save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(CheckpointError, match=r"argument 'speed'\. Values that are missing"):
        Line.load_from_checkpoint(tmp_path / "one.ckpt", speed=3)


def test_numpy_hyper_parameters_are_stored_as_numbers(tmp_path):
    import numpy as np

    task = Line(FedAvg(np.float64(0.05)))
    fitted(task, max_steps=1).save_checkpoint(tmp_path / "one.ckpt")
    torch.load(tmp_path / "one.ckpt", weights_only=True)
    assert Line.load_from_checkpoint(tmp_path / "one.ckpt").algorithm.lr == 0.05


class OwnHead(Line):
    personal_parameters = ("head",)


class MaxHead(Line):
    max_parameters = ("head",)  # stands last in any case


@pytest.mark.parametrize(
    ("first", "then", "was", "now"),
    [
        (Line, OwnHead, "shared", "personal"),
        (OwnHead, Line, "personal", "shared"),
        (Line, MaxHead, "minimised", "maximised"),
        (MaxHead, Line, "maximised", "minimised"),
    ],
)
def test_a_resume_with_other_blocks_is_refused_by_name(first, then, was, now, tmp_path):
    run = trainer(max_steps=1)
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=2)
    run.fit(first(dropout=0.0), data)
    run.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(CheckpointError, match=rf"trained with 'head\.\w+' {was}, now it is {now}"):
        trainer(max_steps=2).fit(then(dropout=0.0), data, ckpt_path=tmp_path / "one.ckpt")


class TwoOwn(Line):
    personal_parameters = ("first", "second")

    def __init__(self, order=("first", "second")):
        super().__init__(FedAvg(0.05))
        for name in order:
            setattr(self, name, torch.nn.Parameter(torch.zeros(1)))

    def objective(self, batch):
        own = (self.first - 1).square().sum() + (self.second + 1).square().sum()
        values = super().objective(batch)
        return {**values, "loss": values["loss"] + own}


def test_personal_parameters_in_another_order_are_refused_also_where_nothing_is_trained(tmp_path):
    """Two of one shape would get each other's numbers."""
    fitted(TwoOwn(), held_out_data(), max_steps=1).save_checkpoint(tmp_path / "one.ckpt")
    for use in ("fit", "test"):
        with pytest.raises(CheckpointError, match="in another order, 'first' where 'second' is now"):
            getattr(trainer(max_steps=2), use)(
                TwoOwn(("second", "first")), datamodule=held_out_data(), ckpt_path=tmp_path / "one.ckpt"
            )


class TwoShared(TwoOwn):
    personal_parameters = ()


class BodyMax(TwoShared):
    max_parameters = ("first",)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            lambda: TwoShared(("second", "first")),
            r"in another order, '.*' where this run has '.*max_parameters and layers",
        ),
        (BodyMax, "was trained with 'first' minimised, now it is maximised"),
    ],
    ids=["defined", "maximised"],
)
def test_a_resume_that_would_put_numbers_into_other_parameters_is_refused(other, said, tmp_path):
    """The vectors are as long as before, and begin with other parameters."""
    fitted(TwoShared(), held_out_data(), max_steps=1).save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(CheckpointError, match=said):
        trainer(max_steps=2).fit(other(), held_out_data(), ckpt_path=tmp_path / "one.ckpt")


class FailsBeforeTheStep(Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == 1:
            raise RuntimeError("a fault of the user's")


@pytest.mark.filterwarnings("ignore:.*ckpt_path")  # Lightning's, of OnExceptionCheckpoint
def test_what_was_written_within_a_round_is_refused(tmp_path):
    kept = OnExceptionCheckpoint(tmp_path, "half")
    run = trainer(max_steps=3, enable_checkpointing=True, callbacks=[FailsBeforeTheStep(), kept])
    with pytest.raises(RuntimeError, match="a fault of the user's"):
        run.fit(Line(), regression_data())
    with pytest.raises(CheckpointError, match=r"half\.ckpt was written within a round, by OnExceptionCheckpoint, say"):
        trainer(max_steps=3).fit(Line(), regression_data(), ckpt_path=tmp_path / "half.ckpt")


def test_an_algorithm_that_was_set_between_two_fits_is_stored(tmp_path):
    task = Line(FedAvg(0.05))
    two_rounds(task)
    task.algorithm = SCAFFOLD(0.01)
    two_rounds(task).save_checkpoint(tmp_path / "run.ckpt")
    loaded = Line.load_from_checkpoint(tmp_path / "run.ckpt")
    assert (type(loaded.algorithm), loaded.algorithm.lr) == (SCAFFOLD, 0.01)
    fit = trainer(max_steps=3)
    fit.fit(loaded, regression_data(rounds_per_epoch=2), ckpt_path=tmp_path / "run.ckpt")
    assert fit.callback_metrics["client_lr"].item() == pytest.approx(0.01)


class Halves(Line):
    def __init__(self, algorithm):
        super().__init__(FedAvg(algorithm.lr / 2))
        self.save_hyperparameters()


def test_an_algorithm_that_a_task_makes_of_another_is_made_once(tmp_path):
    two_rounds(Halves(FedAvg(0.1))).save_checkpoint(tmp_path / "run.ckpt")
    loaded = Halves.load_from_checkpoint(tmp_path / "run.ckpt")
    assert loaded.algorithm.lr == 0.05


def test_a_federated_module_stores_the_algorithm_without_what_its_trainer_added(tmp_path):
    task = federate(Lit(), FedAvg(0.1))
    two_rounds(task, gradient_clip_val=1.0).save_checkpoint(tmp_path / "run.ckpt")
    assert task.algorithm.local_clip is not None
    loaded = type(task).load_from_checkpoint(tmp_path / "run.ckpt", module=Lit())
    fit = trainer(max_steps=3, gradient_clip_val=1.0)
    fit.fit(loaded, regression_data(rounds_per_epoch=2), ckpt_path=tmp_path / "run.ckpt")
    anew = type(task).load_from_checkpoint(tmp_path / "run.ckpt", module=Lit())
    trainer(max_steps=1).fit(anew, regression_data())
    assert anew.algorithm.local_clip is None
