"""A graph computes what its operations compute one by one; a stand-in for CUDA's graphs runs anywhere."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from contextlib import closing

import pytest
import torch
from torch import nn

from fedlightning.algorithms import SCAFFOLD, FedAvg
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.oracle.recording.graphs import Graphed
from fedlightning.oracle.recording.recording import Recording
from tests.support.cohorts import NETS, S, assert_equal_evaluations, setting
from tests.support.graphs import captured, not_captured
from tests.support.small import Line, fitted


def line(w, b, x):
    """A gradient, something that is an input, and something small."""
    return [w * x.sum(1) + b, b, x.mean(1)]


def arguments():
    """Points in rows of a larger matrix, one row of numbers for all clients, and data laid out by columns."""
    return torch.randn(S, 9)[:, 2:6], torch.randn(4).expand(S, -1), torch.randn(S, 4, 5).mT


def equal(one, other):
    for mine, plain in zip(one, other, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


def test_every_call_has_results_of_its_own():
    graphed, inputs = Graphed(line, captured), [arguments() for _ in range(3)]
    found = [graphed(*each) for each in inputs]
    for results, each in zip(found, inputs, strict=True):
        equal(results, line(*each))


def test_inputs_keep_their_strides_and_stay_as_they_are():
    seen = []

    def noting(*inputs):
        seen.append([tensor.stride() for tensor in inputs])
        return line(*inputs)

    given = arguments()
    before = [tensor.clone() for tensor in given]
    Graphed(noting, captured)(*given)
    assert seen[0] == [tensor.stride() for tensor in given]
    equal(given, before)


def test_steps_move_the_point_and_nothing_else():
    graphed = Graphed(line, captured)
    for _ in range(2):  # the second time along operations that were captured before
        point, b, _ = arguments()
        expected, data = point.clone(), [arguments()[2] for _ in range(4)]
        with closing(graphed.steps(point, 0.1)) as steps:
            next(steps)
            for x in data:
                found = steps.send((b, x))
                first, *rest = line(expected, b, x)
                expected.sub_(first, alpha=0.1)
                equal(found, rest)
        equal([point], [expected])


def test_steps_of_two_points_may_be_taken_in_turn():
    graphed = Graphed(line, captured)
    (one, b, x), (other, _, y) = arguments(), arguments()
    expected = [point - 0.1 * line(point, b, z)[0] for point, z in ((one, x), (other, y))]
    with closing(graphed.steps(one, 0.1)) as first, closing(graphed.steps(other, 0.1)) as second:
        for steps, z in ((first, x), (second, y)):
            next(steps)
            steps.send((b, z))
    torch.testing.assert_close([one, other], expected)


def test_an_error_leaves_the_point_where_the_last_step_led():
    point, b, x = arguments()
    expected = point - 0.1 * line(point, b, x)[0]
    steps = Graphed(line, captured).steps(point, 0.1)
    next(steps)
    steps.send((b, x))
    with pytest.raises(RuntimeError, match="size"):
        steps.send((b, x[:, :, :1].expand(-1, -1, 7)))
    torch.testing.assert_close(point, expected)


def test_what_cannot_be_captured_is_started_one_by_one():
    given = arguments()
    graphed = Graphed(line, not_captured)
    for _ in range(2):
        equal(graphed(*given), line(*given))
    point = given[0].clone()
    with closing(graphed.steps(point, 0.1)) as steps:
        next(steps)
        steps.send(given[1:])
    torch.testing.assert_close(point, given[0] - 0.1 * line(*given)[0])


def test_steps_of_one_client_take_its_result_as_it_comes():
    point, b, x = (tensor[0] for tensor in arguments())
    expected = point - 0.1 * (point * x.sum(0) + b)
    with closing(Graphed(lambda w, b, x: [line(w, b, x[None])[0]], captured).steps(point, 0.1)) as steps:
        next(steps)
        steps.send((b, x))
    torch.testing.assert_close(point, expected)


def test_a_round_leaves_nothing_for_the_collector():
    graphed = Graphed(line, captured)
    given = arguments()
    graphed(*given)
    with closing(graphed.steps(given[0], 0.1)) as steps:
        next(steps)
        steps.send(given[1:])
    gone = weakref.ref(graphed)
    gc.disable()
    try:
        del graphed, steps
        assert gone() is None
    finally:
        gc.enable()


def test_steps_that_nobody_takes_keep_what_was_captured():
    count = []

    def counting(function, device):
        count.append(1)
        return captured(function, device)

    graphed, (point, *others) = Graphed(line, counting), arguments()
    for begun in (True, False, True):
        with closing(graphed.steps(point, 0.1)) as steps:
            next(steps)
            if begun:
                steps.send(others)
    assert len(count) == 1


def test_where_memory_is_short_fewer_clients_may_do():
    def full(function, device):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with pytest.raises(torch.OutOfMemoryError):
        Graphed(line, full)(*arguments())


@pytest.mark.parametrize("name", NETS)
def test_recorded_gradients_of_every_network_are_captured(name):
    make, shape = NETS[name]
    objective, w, v, b, (x, y) = setting(make(), shape)
    way = Vectorized(replay=False, backward="vmap" if name == "embedding-free-gru" else "autograd")
    evaluate = way.evaluator(objective, 1)
    recording = Recording(lambda w, v, b, x, y: evaluate(w, v, b, (x, y)).parts())
    recording(w, v, b, x, y)
    assert recording.replays
    graphed = Graphed(lambda *inputs: list(recording(*inputs)[0]), captured)
    for _ in range(3):
        found = graphed(w, v, b, x, y)
        plain = Sequential().evaluator(objective, 1)(w, v, b, (x, y))
        for mine, theirs in zip(found, plain.parts()[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        w, x = w - 0.1 * found[0], torch.randn_like(x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETS)
def test_on_a_gpu_every_network_equals_plain_evaluation(name):
    make, shape = NETS[name]
    objective, *given = setting(make(), shape)
    objective.task.cuda()
    objective.autocast = Autocast("cuda")
    w, v, b = (tensor.cuda() for tensor in given[:3])
    data = tuple(leaf.cuda() for leaf in given[3])
    alone = name == "embedding-free-gru"  # vmap has no rule for cuDNN's recurrent layers
    way = Vectorized(backward="each") if alone else Vectorized(replay=True)
    plain, graphed = (each.evaluator(objective, 100) for each in (Sequential(), way))
    for _ in range(4):
        found = graphed(w, v, b, data)
        assert_equal_evaluations(found, plain(w, v, b, data), 1e-9)
        w, data = w - 0.1 * found.g, (torch.randn_like(data[0]), data[1].flip(1))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("algorithm", [FedAvg(0.05), SCAFFOLD(0.05)], ids=["steps in place", "operators"])
def test_on_a_gpu_rounds_end_where_they_end_without_graphs(algorithm, precision):
    ends = []
    for way in (Vectorized(replay=False), Vectorized(replay=True)):
        torch.manual_seed(0)
        task = Line(algorithm, dropout=0.0, oracle=way, self_check="off")  # which would take another way
        fitted(task, accelerator="gpu", precision=precision)
        ends.append(nn.utils.parameters_to_vector(task.parameters()).cpu())
    torch.testing.assert_close(*ends)


@pytest.mark.gpu
def test_on_a_gpu_graphs_are_captured_anew_in_every_round():
    objective, *given = setting(NETS["conv"][0](), NETS["conv"][1])
    objective.task.cuda()
    objective.autocast = Autocast("cuda")
    w, v, b = (tensor.cuda() for tensor in given[:3])
    data = tuple(leaf.cuda() for leaf in given[3])
    expected = Sequential().evaluator(objective, 1)(w, v, b, data)
    for _ in range(3):
        evaluate = Vectorized(replay=True).evaluator(objective, 100)
        for _ in range(3):
            assert_equal_evaluations(evaluate(w, v, b, data), expected, 1e-9)
        del evaluate
        gc.collect()


REFUSED = """
import torch, warnings
from fedlightning.oracle.recording.graphs import Graphed

def line(x):
    torch.cuda.synchronize()
    return [2 * x]

x = torch.ones(3, device="cuda")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for graphed in (Graphed(line), Graphed(line)):
        for _ in range(2):
            assert graphed(x)[0].tolist() == [2.0] * 3
assert [str(each.message)[:30] for each in caught] == ["A CUDA graph cannot hold these"]
torch.randn(3, device="cuda").sum().item()
"""


@pytest.mark.gpu
def test_on_a_gpu_what_cannot_be_captured_is_said_once():
    subprocess.run([sys.executable, "-c", REFUSED], check=True)  # afterwards, the process captures nothing any more
