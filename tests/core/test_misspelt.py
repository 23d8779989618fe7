"""What is said of misspelt names."""

from __future__ import annotations

import pytest

from fedlightning.core.misspelt import did_you_mean, most_similar, require_arguments


def test_the_likeliest_name_is_proposed_and_an_unlikely_one_is_not():
    assert did_you_mean("lrr", ["lr", "mu"]) == " Did you mean 'lr'?"
    assert did_you_mean("tolerance", ["lr", "mu"]) == ""


def test_upper_case_is_no_difference_but_between_names_that_have_no_other():
    names = ["SCAFFOLD", "FedAvg", "Scaffnew", "fedavg"]
    assert [most_similar(name, names) for name in ("Scafold", "scaffold", "fed_avg", "FedAVG", "LeNet")] == [
        *("SCAFFOLD", "SCAFFOLD", "fedavg", "FedAvg", None)
    ]
    assert did_you_mean("Scafold", names) == " Did you mean 'SCAFFOLD'?"


def test_arguments_that_nobody_takes_are_named_as_the_user_wrote_them():
    def first(self, weight, *rest, **options):
        return self, weight, rest, options

    def second(size=1):
        return size

    require_arguments("make", ["weight", "size"], [first, second])
    with pytest.raises(
        TypeError, match=r"^make\(wieght=\.\.\.\): there is no such argument\. Did you mean 'weight'\?$"
    ):
        require_arguments("make", ["size", "wieght"], [first, second])
    with pytest.raises(
        TypeError, match=r"^make\(options=\.\.\.\): there is no such argument\. It takes weight, size\.$"
    ):
        require_arguments("make", ["options"], [first, second])
