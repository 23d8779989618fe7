"""PyTorch computes on other numbers of threads for a while."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedlightning.oracle.threads import exactly, limited, mkl_library, set_threads, up_to


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), (9, 3), (None, 3)])
def test_threads_are_limited_and_given_back(threads, expected):
    present = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with limited(threads):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(present)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_number_of_threads_is_set_and_the_former_given_back(threads):
    present = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with exactly(threads):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(present)


@pytest.mark.parametrize(("outside", "asked", "found"), [(2, 2, 2), (1, 2, 1), (3, 2, 2)])
def test_threads_are_given_back_up_to_those_outside(outside, asked, found):
    present = torch.get_num_threads()
    torch.set_num_threads(outside)
    try:
        with limited(1), up_to(asked):
            assert torch.get_num_threads() == found
        with up_to(asked):
            assert torch.get_num_threads() == found
        assert torch.get_num_threads() == outside
    finally:
        torch.set_num_threads(present)


@pytest.fixture
def mkl():
    """MKL as it is before anyone has set a number of threads; put back afterwards."""
    library = mkl_library()
    if library is None:
        pytest.skip("needs MKL inside PyTorch")
    chooses, own = library.mkl_serv_get_dynamic(), library.MKL_Set_Num_Threads_Local(0)
    library.MKL_Set_Dynamic(1)
    yield library
    library.MKL_Set_Dynamic(chooses)
    library.MKL_Set_Num_Threads_Local(own)


def test_mkl_goes_on_to_choose_its_own_threads(mkl):
    """Else attention, which multiplies on each of its threads, would take twice as long from then on."""
    with exactly(torch.get_num_threads() + 1):
        pass
    assert mkl.mkl_serv_get_dynamic() == 1
    assert mkl.MKL_Set_Num_Threads_Local(0) == 0


def test_a_thread_that_begins_to_compute_leaves_mkl_its_choice(mkl):
    with exactly(torch.get_num_threads() + 1), ThreadPoolExecutor(1, initializer=set_threads, initargs=(1,)) as pool:
        pool.submit(lambda: torch.ones(300, 300) @ torch.ones(300, 300) + torch.ones(300, 300)).result()
    assert mkl.mkl_serv_get_dynamic() == 1


def test_what_a_user_has_told_mkl_stays(mkl):
    present = torch.get_num_threads()
    torch.set_num_threads(present)
    with exactly(present + 1):
        pass
    assert mkl.mkl_serv_get_dynamic() == 0
    assert mkl.MKL_Set_Num_Threads_Local(0) == present
