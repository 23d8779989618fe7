"""A simulation in every precision."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from fedlightning.algorithms import SCAFFOLD, FedMM
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, fitted, regression_data, trainer


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
