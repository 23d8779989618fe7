"""A fixed part of the fuzz: nothing differs in silence, and nothing that runs one by one fails by default.

All of it: ``python -m tests.support.fuzz``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedlightning.oracle import ObjectiveError, Sequential, vectorized
from fedlightning.oracle.recording import side_by_side
from fedlightning.oracle.recording.glance import glance
from tests.support import fuzz
from tests.support.cohorts import turns_of
from tests.support.objectives import UnsuitableError
from tests.support.written import written_cases

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")

WRITTEN = (
    "fft filter",
    "autocorrelation by fft",
    "complex matmul, squared modulus",
    "view_as_complex of a parameter, odd offset",
    "torch.tensor, changed in place",
    "from_numpy, changed in place",
    "running scalar += number",
    "L2 penalty by reg += p^2",
    "class weights normalised in place",
    "embedding, padding_idx",
    "embedding, sparse",
    "LSTM of two layers with dropout",
    "packed sequence, lengths from the data",
    "transformer encoder with dropout",
    "full backward hook, reversal",
    "gradient reversal by a tensor hook behind requires_grad",
    "old Function",
    "counter in a buffer, n += 1",
    "Python counter",
    "counter in a helper function",
    "an iterator that changes later",
    "penalty behind requires_grad",
    "counter in an attribute, n = n + 1",
    "output kept for the next call",
    "average in a buffer, in place",
    "running maximum that first stays",
    "momentum encoder in place",
    "batch multiplied in place",
    "a column of the batch set",
    "evaluation mode and back inside",
    "dict with scalars",
    "dropout",
    "dropout, scaled by float(buffer)",
    "torch.randn",
    "mixup by randperm",
    "own generator, fixed noise",
    "fork_rng and manual_seed, fixed noise",
    "NumPy noise",
    "item()",
    "if on the output",
    "boolean mask",
    "unique",
    "func.grad, MAML",
    "func.jvp",
    "func.jacrev",
    "func.hessian",
    "func.vmap over samples",
    "autograd.grad, gradient penalty",
    "checkpoint",
    "F.linear(input=...)",
    "F.conv2d(input=...)",
    "cross_entropy(size_average=False)",
    "cross_entropy(ignore_index=0)",
    "BatchNorm",
    "new spectral_norm",
    "old weight_norm",
    "old spectral_norm",
    "tied weights",
    "frozen layer with a low-rank adapter",
    "convolutions and pooling",
    "convolution and pooling, viewed as rows",
    "convolution, normalised in groups by view and view_as",
    "convolution, written into through a view",
    "convolution of few pixels",
    "convolution of few pixels, gradient penalty",
)

LISTED = (
    "module:nn.Conv2d[0]",
    "module:nn.CTCLoss[0]",
    "module:nn.Embedding[-1]",
    "module:nn.GRU[0]",
    "module:nn.GaussianNLLLoss[0]",
    "module:nn.LinearCrossEntropyLoss[-1]",
    "module:nn.MultiheadAttention[0]",
    "module:nn.TransformerDecoderLayer[0]",
    "op:cdist[-1]",
    "op:cumprod[0]",
    "op:einsum[0] complex",
    "op:fft.ihfft2[0]",
    "op:fft.irfftn[0] complex",
    "op:gather[0]",
    "op:index_put[0]",
    "op:linalg.eigh[0]",
    "op:linalg.solve[0] complex",
    "op:linalg.svd[0]",
    "op:logcumsumexp[0] complex",
    "op:masked_select[0]",
    "op:mul[0] complex",
    "op:nn.functional.dropout[-1]",
    "op:nn.functional.embedding[0]",
    "op:nn.functional.grid_sample[0]",
    "op:scatter_reduce.amax[0]",
    "op:sgn[0] complex",
    "op:vdot[0] complex",
)


@pytest.fixture(autouse=True)
def _batched_preferred():
    with fuzz.batched_preferred():
        yield


@cache
def cases():
    return fuzz.catalogue()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"written:{name}" for name in WRITTEN), *LISTED])
def test_no_way_differs_in_silence(name):
    outcome = fuzz.examine(cases()[name], ways=("batched", "default"))
    assert outcome.status in ("ran", "refused"), outcome.reason
    assert not outcome.wrong, fuzz.short(outcome)


def test_the_fuzz_reaches_glances(monkeypatch):
    seen = []

    def noted(*arguments):
        seen.append(glance(*arguments))
        return seen[-1]

    monkeypatch.setattr(vectorized, "glance", noted)
    outcome = fuzz.examine(cases()["written:fft filter"], ways=("replayed",))
    assert outcome.ways["replayed"].ran == "replayed"
    assert len(seen) == 3, "in the second round a glance is noted, in the third and fourth it does for an evaluation"
    assert seen[0] is not None
    assert seen[0] == seen[1] == seen[2]


def test_the_fuzz_reaches_parts(monkeypatch):
    turns = turns_of(side_by_side, monkeypatch)
    outcome = fuzz.examine(cases()["written:fft filter"], ways=("in parts",))
    assert outcome.ways["in parts"].ran == "replayed"
    assert (2, 2) in turns, "two parts on two threads"


class Altered(Sequential):
    """Gives other numbers, or none."""

    def __init__(self, change):
        object.__setattr__(self, "change", change)

    def evaluator(self, objective, calls):
        evaluate = super().evaluator(objective, calls)
        return lambda *args: self.change(evaluate(*args))


def test_the_lists_of_torch_leave_its_flags_free():
    assert any(name.startswith("op:") for name in cases())
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before  # torch's own tests forbid this from the moment they are imported


def refuse(result):
    raise ObjectiveError("no")


def fail(result):
    raise ValueError("an error")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda result: result, "fell back"),
        (lambda result: replace(result, g=result.g * (1 + 1e-7)), "DIFFERENT"),
        (lambda result: replace(result, loss=result.loss + 1e-7), "DIFFERENT"),
        (lambda result: replace(result, buffers=result.buffers + 1e-7), "DIFFERENT"),
        (lambda result: replace(result, g=result.g * torch.nan), "crashed"),
        (refuse, "refused"),
        (fail, "crashed"),
    ],
)
def test_the_fuzz_sees_what_is_wrong(monkeypatch, change, expected):
    monkeypatch.setattr(fuzz, "WAYS", {"altered": (lambda: Altered(change), "batched")})
    case = next(case for case in written_cases() if case.name == "written:BatchNorm")
    outcome = fuzz.examine(case)
    assert outcome.ways["altered"].result == expected
    assert outcome.wrong == (expected in ("DIFFERENT", "crashed"))


def test_a_refusal_by_default_is_a_crash(monkeypatch):
    monkeypatch.setattr(fuzz, "WAYS", {"default": (lambda: Altered(refuse), "batched")})
    case = next(case for case in written_cases() if case.name == "written:two linear layers")
    assert fuzz.examine(case).wrong


def test_an_entry_without_an_objective_is_skipped_with_its_reason():
    def none():
        raise UnsuitableError("has no differentiable output")

    outcome = fuzz.examine(fuzz.Case("none", none))
    assert (outcome.status, outcome.reason, outcome.wrong) == ("skipped", "has no differentiable output", False)


def test_the_page_lists_what_is_wrong_by_its_message():
    way = fuzz.Way("crashed", line="ValueError: an error")
    page = fuzz.table([fuzz.Outcome("op:a[0]", ways={"default": way}), fuzz.Outcome("op:b[0]", "skipped", "is flat")])
    assert "- did not run: `ValueError: an error` (1)\n  - default: op:a[0]" in page
    assert "`skipped: is flat` (1): op:b[0]" in page
    assert "## Different in silence\n\nNone." in page
