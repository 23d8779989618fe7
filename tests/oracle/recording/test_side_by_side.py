"""Threads divide what is replayed among themselves, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.recording import side_by_side
from fedlightning.oracle.recording.program import LARGE_BYTES
from fedlightning.oracle.recording.recording import Recording
from fedlightning.oracle.recording.side_by_side import CourseInParts, replayed_in_parts, run
from fedlightning.oracle.threads import limited
from tests.support.cohorts import NETS, assert_equal_evaluations, conv, setting, turns_of

LARGE = LARGE_BYTES // 4


@pytest.fixture
def runs(monkeypatch):
    """Numbers of parts and threads of what was run."""
    return turns_of(side_by_side, monkeypatch)


def repeated(tensors, times):
    return [torch.cat([tensor] * times) for tensor in tensors]


@pytest.mark.parametrize("backward", [None, "vmap"])
@pytest.mark.parametrize("name", NETS)
def test_parts_of_a_chunk_equal_plain_evaluation(name, backward, runs):
    make, shape = NETS[name]
    objective, w, v, b, data = setting(make(), shape)
    w, v, b, *data = repeated((w, v, b, *data), 3)
    w = w + 0.1 * torch.randn_like(w)
    objective.draws = False
    plain = Sequential().evaluator(objective, 1)
    together = Vectorized(backward=backward, parts=2).evaluator(objective, 100)
    for _ in range(3):
        assert_equal_evaluations(together(w, v, b, tuple(data)), plain(w, v, b, tuple(data)))
        w = w + 0.1 * torch.randn_like(w)
    assert runs == [(2, 1), (2, 2), (2, 2)]  # the first records


def test_what_draws_or_is_given_no_threads_stays_together(runs):
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    w, v, b, *data = repeated((w, v, b, *data), 3)
    for draws, threads in ((True, 2), (None, 2), (False, 1)):
        objective.draws = draws
        evaluate = Vectorized(parts=threads).evaluator(objective, 100)
        for _ in range(2):
            evaluate(w, v, b, tuple(data))
    assert runs == []


@pytest.mark.parametrize(
    ("clients", "threads", "expected"), [(3, 2, []), (4, 2, [2, 2]), (5, 2, [2, 3]), (9, 4, [2, 2, 2, 3])]
)
def test_every_part_has_two_clients_at_least(clients, threads, expected):
    sizes = []

    def function(x):
        sizes.append(len(x))
        return [x * 2, x.sum(1)], "constant"

    recording, x = Recording(function), torch.randn(clients, 3)
    for _ in range(3):
        (double, sums), constant = replayed_in_parts(recording, [x], threads)
        assert torch.equal(double, 2 * x)
        assert torch.equal(sums, x.sum(1))
        assert constant == "constant"
    assert sizes == (list(dict.fromkeys(expected)) or [clients])


def test_what_cannot_be_replayed_is_called_for_all_clients(runs):
    sizes = []

    def function(x):
        sizes.append(len(x))
        return [x * (2 if x.sum().item() > -1e9 else 3)], None

    recording, x = Recording(function), torch.randn(4, 3)
    for _ in range(3):
        assert torch.equal(replayed_in_parts(recording, [x], 2)[0][0], 2 * x)
    assert sizes == [2, 2, 4, 4]
    assert runs == [(2, 1)]


def test_large_results_of_the_parts_lie_in_one_tensor(runs):
    def function(x):
        return [torch.cat([x[:, 1:] + 1, x[:, :1]], 1)], None

    recording, x = Recording(function), torch.randn(4, LARGE)
    for _ in range(3):
        (found,), _ = replayed_in_parts(recording, [x], 2)
        assert torch.equal(found, torch.cat([x[:, 1:] + 1, x[:, :1]], 1))
        assert found.is_contiguous()
    assert runs == [(2, 1), (2, 2), (2, 2)]


@pytest.mark.parametrize("options", [{"compile": True}, {"replay": False}, {"backward": "each"}])
def test_parts_that_nothing_would_divide_are_refused(options):
    with pytest.raises(ValueError, match=r"Vectorized\(parts=2\) divides replays"):
        Vectorized(parts=2, **options)


def test_parts_beside_another_number_of_threads_are_refused():
    with pytest.raises(ValueError, match=r"Vectorized\(parts=2, threads=1\): every part is a thread"):
        Vectorized(parts=2, threads=1)


def test_all_slower_ways_of_a_divided_one_can_be_made():
    ways = list(Vectorized(parts=2, chunk_size=4).fallbacks(on_cpu=True))
    assert [(way.backward, way.replay, way.parts) for way in ways] == [
        ("autograd", None, 2),
        ("autograd", False, 1),
        ("vmap", None, 2),
        ("vmap", False, 1),
    ]


@pytest.fixture
def one_thread():
    """The oracles' own threads leave one of PyTorch's three to every operation."""
    present = torch.get_num_threads()
    torch.set_num_threads(3)
    with limited(1):
        yield
    torch.set_num_threads(present)


def test_more_threads_than_pytorch_takes_are_not_asked_for():
    present, seen = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        run(lambda _: seen.append(torch.get_num_threads()), 1, 2)
    finally:
        torch.set_num_threads(present)
    assert seen == [1]


@pytest.mark.parametrize(("clients", "threads", "inside"), [(1, 2, 2), (3, 2, 2), (4, 2, 1), (3, 1, 1), (5, 3, 1)])
def test_clients_that_are_too_few_to_be_divided_have_all_threads(clients, threads, inside, one_thread):
    seen = []

    class Watched(Recording):
        def __call__(self, *inputs, **options):
            seen.append(torch.get_num_threads())
            return super().__call__(*inputs, **options)

        def steps(self, *inputs, **options):
            seen.append(torch.get_num_threads())
            return super().steps(*inputs, **options)

    recording, x = Watched(lambda x: ([torch.cat([x[:, 1:] + 1, x[:, :1] * 2], 1)], None)), torch.randn(clients, 3)
    for _ in range(3):
        replayed_in_parts(recording, [x], threads)
    with CourseInParts(x, threads, 0.1, {}) as course:
        assert course.step(recording, (), (), may_wait=True) is not None
    assert set(seen) == {inside}
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("count", "threads", "inside"), [(1, 2, 2), (2, 2, 1), (1, 1, 1), (3, 1, 1)])
def test_a_single_call_has_all_threads(count, threads, inside, one_thread):
    seen = []
    run(lambda i: seen.append((i, torch.get_num_threads())), count, threads)
    assert sorted(seen) == [(i, inside) for i in range(count)]


def test_the_calling_thread_is_one_of_the_threads(one_thread):
    together, names = threading.Barrier(3, timeout=60), []

    def compute(i):
        names.append(threading.current_thread().name)
        together.wait()

    run(compute, 6, 3)
    assert len(names) == 6
    assert len(set(names)) == 3
    assert threading.current_thread().name in names


@pytest.mark.parametrize("of_this_thread", [True, False])
def test_an_error_of_any_thread_is_raised_when_all_have_ended(of_this_thread, one_thread):
    together, ended = threading.Barrier(2, timeout=60), []

    def compute(i):
        here = threading.current_thread() is caller
        together.wait()
        if here == of_this_thread:
            raise RuntimeError("no such client")
        ended.append(i)

    caller = threading.current_thread()
    with pytest.raises(RuntimeError, match="no such client"):
        run(compute, 2, 2)
    assert len(ended) == 1
    assert torch.get_num_threads() == 1


def test_after_an_error_nothing_more_is_begun():
    done = []

    def compute(i):
        if i == 0:
            raise ValueError("the first one")
        time.sleep(0.01)
        done.append(i)

    with pytest.raises(ValueError, match="the first one"):
        run(compute, 100, 2)
    assert len(done) < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_computes_side_by_side(two_threads):
    run(lambda i: None, 4, 2)
    child = os.fork()
    if child == 0:
        done = []
        try:
            run(done.append, 4, 2)
        finally:  # whatever happens, the child must not go on with the tests
            os._exit(0 if sorted(done) == [0, 1, 2, 3] else 1)
    until, ended = time.monotonic() + 30, (0, 0)
    while ended == (0, 0) and time.monotonic() < until:
        time.sleep(0.05)
        ended = os.waitpid(child, os.WNOHANG)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("It waited for threads that it has not.")
    assert ended[1] == 0
