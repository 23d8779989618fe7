from functools import partial

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.config import NotPlainError, from_config, to_config
from fedlightning.oracle import Vectorized
from fedlightning.tasks import MDD


@pytest.mark.parametrize(
    "value", [FedMM(lr=[0.1, 0.2], mu=2.0), Vectorized(chunk_size=3), MDD(gamma=2.0), 3, "x", None]
)
def test_round_trip(value):
    plain = to_config(value)
    again = from_config(plain)
    assert to_config(again) == plain
    assert type(again) is type(value)


def test_partials_and_classes_become_class_paths():
    config = to_config(FedAvg(0.1, local_optimizer=partial(torch.optim.SGD, momentum=0.9)))
    assert config["init_args"]["local_optimizer"] == {
        "class_path": "torch.optim.sgd.SGD",
        "init_args": {"momentum": 0.9},
    }
    assert to_config(torch.optim.Adam) == {"class_path": "torch.optim.adam.Adam"}


@pytest.mark.parametrize("value", [lambda: 0, torch.zeros(2), torch.nn.Linear(1, 1), partial(lambda: 0)])
def test_what_has_no_plain_form(value):
    with pytest.raises(NotPlainError):
        to_config(value)
