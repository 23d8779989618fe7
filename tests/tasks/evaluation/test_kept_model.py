"""A client's model that its node puts together is the one that a simulation would give."""

from __future__ import annotations

import pytest
import torch

from fedlightning.federation.remote.sent_model import last_sent_model
from fedlightning.federation.remote.store import StoreError
from fedlightning.participation import Uniform
from fedlightning.tasks.evaluation.kept_model import personalized_at_node
from tests.support.evaluated import held_out_data
from tests.support.lightning_nodes import HOLDINGS, lightning_nodes, seeded, server
from tests.support.measured import TASKS, quietly
from tests.support.small import trainer

OF_ITS_OWN = ("personal block", "personal models beside the global one", "local buffers")


@pytest.mark.parametrize("name", TASKS)
def test_the_model_after_a_validation_is_that_of_the_simulation(name, tmp_path):
    make, options = TASKS[name]
    here, fit = seeded(make), trainer(max_steps=4, limit_val_batches=0)
    quietly(fit.fit, here, held_out_data(participation=Uniform(2), **options))
    carrier = lightning_nodes(make, lambda: held_out_data(**options), tmp_path)
    there, data = server(make, carrier, Uniform(2))
    quietly(trainer(max_steps=4).fit, there, data)
    found = {}
    for number, clients in enumerate(HOLDINGS):
        for client in clients:
            copied, sent = personalized_at_node(seeded(make), tmp_path / f"node-{number}", client)
            assert sent.rounds == 4
            mine, wanted = copied.state_dict(), here.personalize(client).state_dict()
            assert mine.keys() == wanted.keys()
            for key, value in wanted.items():
                if "architectures" in name:  # a simulation adds up one architecture after another
                    torch.testing.assert_close(mine[key], value)
                else:
                    assert torch.equal(mine[key], value), key
            found[client] = torch.cat([value.flatten().double() for value in mine.values()])
    if name in OF_ITS_OWN:
        assert len({tuple(values.tolist()) for values in found.values()}) > 1


def test_the_model_within_a_run_goes_with_the_last_request(tmp_path):
    """Without validation, nodes know the model before the last round, and what was accepted until then."""
    make, _ = TASKS["personal block"]
    here, fit = seeded(make), trainer(max_steps=3, limit_val_batches=0)
    quietly(fit.fit, here, held_out_data())
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    quietly(trainer(max_steps=4, limit_val_batches=0).fit, there, data)
    copied, sent = personalized_at_node(seeded(make), tmp_path / "node-0", 3)
    assert sent.rounds == 3
    for key, value in here.personalize(3).state_dict().items():
        assert torch.equal(copied.state_dict()[key], value), key


def test_what_is_missing_is_named(tmp_path):
    make, _ = TASKS["personal block"]
    with pytest.raises(StoreError, match="no server has sent one to this node yet"):
        personalized_at_node(seeded(make), tmp_path, 0)
    there, data = server(make, lightning_nodes(make, held_out_data, tmp_path))
    quietly(trainer(max_steps=2).fit, there, data)
    folder = tmp_path / "node-0"
    with pytest.raises(StoreError, match="No server has asked client 0 here yet; there is a model of 1, 3"):
        personalized_at_node(seeded(make), folder, 0)
    with pytest.raises(StoreError, match=r"has 6 parameters, that of MeasuredLine 41: it is of another run"):
        personalized_at_node(seeded(TASKS["one model for all"][0]), folder, 1)
    with pytest.raises(StoreError, match="is of a run before the present one"):
        personalized_at_node(seeded(make), folder, 1, run="another")
    for path in folder.glob("*/client-1/*.pt"):
        path.unlink()
    with pytest.raises(StoreError, match="goes on from the state of client 1 after round 2"):
        personalized_at_node(seeded(make), folder, 1)
    assert last_sent_model(folder).bases[3] is not None
