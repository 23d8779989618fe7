"""What is logged of the values of all clients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedlightning.callbacks.client_report import log_over_clients
from fedlightning.callbacks.percentiles import PERCENTILES
from fedlightning.federation.protocol import ClientValues

TRAINER = SimpleNamespace(sanity_checking=False, loggers=[])


def logged(*values, which=PERCENTILES, **more):
    found = {}
    task = SimpleNamespace(log=lambda name, value, **_: found.update({name: float(value)}))
    values = torch.tensor(values)
    of_clients = ClientValues(list(range(len(values))), values, torch.ones_like(values), **more)
    log_over_clients(TRAINER, task, "f1", of_clients, which)
    return found


@pytest.mark.parametrize(("better", "worst"), [(True, 1.0), (False, 5.0)])
def test_the_worst_client_is_where_less_is_better_the_largest(better, worst):
    assert logged(1.0, 3.0, 5.0, higher_is_better=better) == {
        "f1": 3.0,
        "f1_std": pytest.approx((8 / 3) ** 0.5),
        "f1_worst": worst,
        "f1_p10": pytest.approx(1.4),
        "f1_p50": 3.0,
        "f1_p90": pytest.approx(4.6),
    }


def test_both_ends_stand_for_the_worst_if_nobody_knows_which():
    found = logged(2.0, 2.0, which=[25.0])
    assert found == {"f1": 2.0, "f1_std": 0.0, "f1_min": 2.0, "f1_max": 2.0, "f1_p25": 2.0}


def test_clients_without_the_metric_are_left_out_and_counted():
    found = logged(1.0, torch.nan, 3.0, which=(50,), higher_is_better=True, nan_is_undefined=True)
    assert found == {"f1_defined": 2.0, "f1": 2.0, "f1_std": 1.0, "f1_worst": 1.0, "f1_p50": 2.0}
    nobody = logged(torch.nan, higher_is_better=True, nan_is_undefined=True)
    assert nobody == {"f1_defined": 0.0, "f1": pytest.approx(torch.nan, nan_ok=True)}


def test_a_result_that_is_not_finite_spoils_the_mean():
    found = logged(1.0, torch.nan, higher_is_better=True)
    assert found["f1"] != found["f1"]
    assert "f1_defined" not in found
