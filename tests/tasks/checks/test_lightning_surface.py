"""What of Lightning a federated task refuses, warns of, and reports."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback, SpikeDetection, WeightAveraging

from fedlightning.algorithms import SCAFFOLD, Ditto, FedAlt, FedAPM, FedAvg, FedDR
from fedlightning.data import IID, Digits
from fedlightning.tasks import Classification
from fedlightning.tasks.checks.lightning_surface import TRANSFER_HOOKS
from tests.support.evaluated import Own, held_out_data, messages, two_rounds
from tests.support.small import Line, regression_data, trainer

HOOKS = {
    "training_step": r"Write objective\(batch\)",
    "configure_optimizers": "local_optimizer .* server_optimizer",
    "optimizer_step": "server_optimizer",
    "optimizer_zero_grad": "server_optimizer",
    "lr_scheduler_step": "server_scheduler",
    "configure_gradient_clipping": "local_clip .* server_clip",
    "clip_gradients": "local_clip .* server_clip",
    "toggle_optimizer": "max_parameters",
    "untoggle_optimizer": "max_parameters",
    "backward": r"objective\(batch\)",
    "manual_backward": r"objective\(batch\)",
    "on_before_backward": "on_train_batch_end",
    "on_after_backward": "on_train_batch_end",
    "on_before_zero_grad": "on_train_batch_end",
}


@pytest.mark.parametrize("hook", TRANSFER_HOOKS)
def test_hooks_that_would_get_a_round_for_a_batch_are_refused(hook):
    mine = type("Mine", (Line,), {hook: lambda self, batch, *_: batch})
    with pytest.raises(TypeError, match=rf"Mine overrides {hook}, .*Augment in objective\(batch\)"):
        two_rounds(mine())


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
        two_rounds(Mixed())
    task = Line()
    task.training_step = lambda batch, batch_idx: None
    with pytest.raises(TypeError, match="Line overrides training_step"):
        two_rounds(task)


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

    fit = two_rounds(Free())
    assert len(called) == 5
    assert fit.callback_metrics["mine"] == 1.0


def test_hooks_of_callbacks_that_no_round_calls_are_named():
    class Norms(Callback):
        def on_after_backward(self, trainer, pl_module):
            raise AssertionError

    for callback in (Norms(), LambdaCallback(on_before_zero_grad=print)):
        with pytest.warns(UserWarning, match=r"never called in a federated fit.*on_train_batch_end"):
            two_rounds(Line(), callbacks=[callback])


def test_a_compiled_task_is_refused_and_can_be_taken_back():
    from lightning.pytorch.utilities.compile import to_uncompiled

    compiled = torch.compile(Line(), backend="eager")
    with pytest.raises(TypeError, match=r"torch\.compile\(Line\).*Vectorized\(compile=True\)"):
        two_rounds(compiled)
    assert two_rounds(to_uncompiled(compiled)).global_step == 2


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
    two_rounds(task, callbacks=[seen, make()], num_sanity_val_steps=0)
    first, second = seen.points
    expected = (first + second) / 2  # that of EMA with decay 1/2 is the same
    torch.testing.assert_close(seen.validated[-1], expected)
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in task.parameters()]), expected)


@pytest.mark.parametrize("algorithm", [FedAlt(0.05), Ditto(0.05)], ids=["FedAlt", "Ditto"])
def test_weight_averaging_beside_clients_own_models_is_refused(algorithm):
    with pytest.raises(ValueError, match="EMAWeightAveraging does not suit Own: clients have models of their own"):
        two_rounds(Own(algorithm), held_out_data(), callbacks=[EMAWeightAveraging()])


@pytest.mark.parametrize(
    ("algorithm", "runs_as"), [(FedAlt(0.05), "FedAvg"), (FedAPM(0.05), "a federated ADMM of the shared parameters")]
)
def test_a_method_for_personal_parts_without_any_is_named(algorithm, runs_as):
    with pytest.warns(UserWarning, match=f"{type(algorithm).__name__} is a method for personal .* runs as {runs_as}"):
        two_rounds(Line(algorithm))
    assert messages(lambda: two_rounds(Own(algorithm), held_out_data())) == []


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused(register):
    """It would mask a gradient in one process with one optimizer; rounds take gradients at clients' own values."""
    task = Line()
    getattr(task.head.weight, register)(torch.zeros_like)
    with pytest.raises(TypeError, match=r"parameter 'head\.weight' has a gradient hook, which no round would call"):
        trainer(max_steps=1).fit(task, regression_data())


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_that_comes_late_is_refused_in_the_next_round(register):
    rounds = []

    class Late(Line):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                getattr(self.head.weight, register)(torch.zeros_like)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            rounds.append(batch_idx)

    with pytest.raises(
        TypeError, match=r"Late: parameter 'head\.weight' has a gradient hook, which no round would call"
    ):
        trainer(max_steps=6).fit(Late(), regression_data(rounds_per_epoch=2))
    assert len(rounds) == 2


def test_a_parameter_that_is_changed_between_rounds_is_refused_in_the_next():
    """Clamped after every round, say; before the first it is only where training begins."""

    class Clamped(Line):
        def on_train_start(self):
            self.head.bias.data.fill_(2.0)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.head.bias.data.clamp_(-0.1, 0.1)

    with pytest.raises(RuntimeError, match=r"Clamped: parameter 'head\.bias' was changed after round 1, by a hook"):
        trainer(max_steps=3).fit(Clamped(), regression_data())


class Counts(Line):
    """Counts steps in a buffer, and counts epochs in another one, in a hook."""

    resets = None

    def __init__(self):
        super().__init__(dropout=0.0)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("epochs", torch.zeros(()))

    def objective(self, batch):
        self.steps += self.training
        return super().objective(batch)

    def on_train_epoch_start(self):
        self.epochs += 1
        if self.resets is not None:
            type(self).resets(self.steps)


@pytest.mark.parametrize("resets", [lambda steps: steps.zero_(), lambda steps: steps.add_(5)])
def test_a_buffer_of_the_objective_that_a_hook_changes_is_refused(resets):
    with pytest.raises(RuntimeError, match=r"Counts: buffer 'steps' was changed after round 1.*in the objective"):
        trainer(max_steps=3).fit(type("Counts", (Counts,), {"resets": resets})(), regression_data(rounds_per_epoch=1))


def test_a_buffer_that_a_hook_alone_changes_is_taken():
    task = Counts()
    trainer(max_steps=3).fit(task, regression_data(rounds_per_epoch=1))
    assert (task.epochs.item(), task.steps.item()) == (3.0, 9)


def test_a_parameter_that_is_changed_after_a_checkpoint_was_loaded_is_refused(tmp_path):
    fit = trainer(tmp_path, max_steps=2)
    fit.fit(Line(), regression_data())
    fit.save_checkpoint(tmp_path / "2.ckpt")
    task = Line.load_from_checkpoint(tmp_path / "2.ckpt")
    torch.nn.init.zeros_(task.head.weight)
    with pytest.raises(RuntimeError, match=r"Line: parameter 'head\.weight' was changed after round 2, by a hook"):
        trainer(max_steps=1).fit(task, regression_data())
    anew = Line()
    anew.load_state_dict(task.state_dict())
    trainer(max_steps=1).fit(anew, regression_data())


@pytest.mark.parametrize(("before", "done"), [(True, "frozen"), (False, "thawed")])
def test_a_parameter_that_is_frozen_or_thawed_during_a_fit_is_refused(before, done):
    class Switched(Line):
        def on_train_epoch_start(self):
            self.head.bias.requires_grad_(before if self.current_epoch == 0 else not before)

    task = Switched()
    task.head.bias.requires_grad_(before)
    with pytest.raises(RuntimeError, match=rf"Switched: parameter 'head\.bias' was {done} during the fit"):
        trainer(max_steps=3).fit(task, regression_data(rounds_per_epoch=2))


def test_a_hook_on_a_parameter_that_is_gone_is_forgiven():
    class Once(Line):
        def on_fit_start(self):
            self.head.weight.register_hook(torch.zeros_like).remove()

    assert two_rounds(Once()).global_step == 2


def test_clipping_by_the_trainer_is_refused_with_options_that_the_algorithm_has():
    with pytest.raises(
        ValueError, match=r"SCAFFOLD has no option that clips .* set server_clip \(--model.server_clip="
    ):
        two_rounds(Line(SCAFFOLD(0.1)), gradient_clip_val=1.0)
    with pytest.raises(ValueError, match=r"FedAPM has no .* FedAPM moves the global model by itself.* Leave it out\.$"):
        two_rounds(Own(FedAPM(0.1)), held_out_data(), gradient_clip_val=1.0)
    with pytest.raises(
        ValueError, match=r"clip of the algorithm's solver .*set clip \(--model\.algorithm\.solver\.clip="
    ):
        two_rounds(Line(FedDR(0.2)), gradient_clip_val=1.0)
    with pytest.raises(ValueError, match=r"has no option that clips .*server_clip"):
        two_rounds(Line(SCAFFOLD(0.1)), callbacks=[SpikeDetection()])
