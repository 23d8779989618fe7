"""PyTorch computes on other numbers of threads for a while."""

from __future__ import annotations

import pytest
import torch

from fedlightning.oracle.threads import exactly, limited, mkl_library


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


def test_mkl_goes_on_to_choose_its_own_threads():
    """Else attention, which multiplies on each of its threads, would take twice as long from then on."""
    mkl = mkl_library()
    if mkl is None:
        pytest.skip("needs MKL inside PyTorch")
    chooses, own, present = mkl.mkl_serv_get_dynamic(), mkl.MKL_Set_Num_Threads_Local(0), torch.get_num_threads()
    try:
        mkl.MKL_Set_Dynamic(1)
        with exactly(present + 1):
            pass
        assert mkl.mkl_serv_get_dynamic() == 1
        assert mkl.MKL_Set_Num_Threads_Local(0) == 0
    finally:
        mkl.MKL_Set_Dynamic(chooses)
        mkl.MKL_Set_Num_Threads_Local(own)
