import fedlightning  # noqa: F401, I001  # before lightning, which imports torchvision

import gc
import os
import shutil
import signal
from functools import cache

import matplotlib
import pytest
import torch
from lightning.fabric.utilities import registry

from fedlightning.oracle import Auto, Sequential
from fedlightning.oracle.randomness import Randomness

matplotlib.use("Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # every core has a worker already
    os.environ["OMP_NUM_THREADS"] = "1"  # for programs that tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so does a shell for what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until the tests are collected: modules and tests are no garbage, and to look through them takes seconds
registry.entry_points = cache(registry.entry_points)  # every Trainer reads files of all installed packages otherwise


def _takes_tests(folder):
    """Whether tests may write to a folder: there is room, and programs that they make there can be started."""
    return (
        os.access(folder, os.W_OK)
        and shutil.disk_usage(folder).free > 2**30
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    )


if _takes_tests("/dev/shm"):  # a disk takes a tenth of the suite's time
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
os.environ["JSONARGPARSE_DEPRECATION_WARNINGS"] = "off"  # Lightning calls what jsonargparse has deprecated


@pytest.fixture(autouse=True)
def _seeded():
    """Seed what there is: ``torch.manual_seed`` keeps a traceback for each kind of device that there is not."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _same_choice(request, monkeypatch):
    """Let ``Auto`` take chunks: what it measures is the machine, and fits by two ways differ in their last bits."""
    if request.node.get_closest_marker("measures") is None:
        monkeypatch.setattr(Auto, "seconds", _chunks_first)


def _chunks_first(auto, oracle, objective, calls, arguments):
    """Compute one gradient, which may fail as in a measurement; rate all batched ways alike, plain evaluation worse."""
    w, v, buffers, data, _ = arguments
    oracle.evaluator(objective, calls)(w, v, buffers, data, "both", Randomness(range(len(w)), 0))
    return len(w) * (2.0 if isinstance(oracle, Sequential) else 1.0)


@pytest.fixture(autouse=True)
def _alone():
    """Forget what strategies of several processes leave in the environment: the next one would wait for the others."""
    names = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    before = {name: os.environ.get(name) for name in names}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)


def _on(threads):
    """Let operations use so many threads, whatever the machine and the other tests take."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread():
    yield from _on(1)


@pytest.fixture
def two_threads():
    yield from _on(2)


@pytest.fixture(scope="session")
def compiler():
    """Skip a test where torch.compile cannot even compile a sine, as without a C++ compiler."""
    try:
        torch.compile(torch.sin)(torch.ones(2))
    except RuntimeError as error:  # pragma: no cover
        pytest.skip(f"torch.compile does not work on this machine: {str(error)[:80]}")


@pytest.fixture(scope="session")
def shared_data():
    """Folder with MNIST and photographs for tests of the real data; see CONTRIBUTING."""
    folder = os.environ.get("FEDLIGHTNING_DATA")
    if not folder:
        pytest.skip("set FEDLIGHTNING_DATA to a folder with mnist/ and bsds500/ to run this test")
    return folder


def pytest_collection_finish():
    """Look for garbage among what tests make alone, not again and again among what was there before the first."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
