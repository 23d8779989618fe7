"""A module that saved its hyper-parameters can be made again from them."""

from lightning.pytorch import LightningModule

from fedlightning.tasks.federated.stored import describe
from tests.support.lit import Lit


class Silent(LightningModule):
    pass


class WithFunction(LightningModule):
    def __init__(self, function):
        super().__init__()
        self.save_hyperparameters()


def test_class_and_arguments_are_described():
    assert describe(Lit(hidden=3)) == {"module": {"class_path": "tests.support.lit.Lit", "init_args": {"hidden": 3}}}


def test_what_cannot_be_made_again_is_left_out():
    assert describe(Silent()) == {}
    assert describe(WithFunction(lambda x: x)) == {}
