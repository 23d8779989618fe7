"""Whose model answers: the global one, or a client's."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import SCAFFOLD, FedAlt, FedAvg, PerFedAvg
from fedlightning.channel import Channel, Clip, PerPhase
from tests.support.evaluated import Own, held_out_data, messages, plain_loader, two_rounds
from tests.support.small import Line, trainer
from tests.support.transforms import Halved


def test_loaders_of_nobodys_data_warn_of_the_untrained_personal_parts():
    task = Own(FedAlt(0.05))
    fit = two_rounds(task, held_out_data())
    for run in (fit.validate, fit.test):
        with pytest.warns(UserWarning, match=r"Own: the data are nobody's, .* no client has trained.*personalize\(i\)"):
            run(task, plain_loader(), verbose=False)
    with pytest.warns(UserWarning, match="predict_client=i to predict"):
        fit.predict(task, plain_loader())
    task.predict_client = 1
    (first, *_) = fit.predict(task, plain_loader())
    x = next(iter(plain_loader()))[0]
    torch.testing.assert_close(first, task.personalize(1)(x).detach())
    assert messages(lambda: trainer().validate(task.personalize(1), plain_loader(), verbose=False)) == []
    assert (
        messages(lambda: two_rounds(Line()).validate(Line(), plain_loader(), verbose=False)) == []
    )  # nothing is personal


def test_calling_a_trained_task_says_whose_answer_it_is_once():
    task, x = Own(FedAlt(0.05)), torch.ones(2, 6)
    assert messages(lambda: task(x)) == []  # untrained as a whole
    two_rounds(task, held_out_data())
    with pytest.warns(UserWarning, match=r"Own answers with .* of the start, .* Use task\.personalize\(i\)"):
        task.predict_step((x, None), 0)
    assert messages(lambda: task(x)) == []
    assert messages(lambda: task.personalize(1)(x)) == []
    again = Own(FedAlt(0.05))
    again.load_state_dict(task.state_dict())
    with pytest.warns(UserWarning, match="Own answers with"):
        again(x)


def test_a_client_without_states_is_refused():
    fresh = Own(FedAlt(0.05))
    with pytest.raises(
        RuntimeError, match=r"personalize\(99\) asks .* no client states\. Fit the task, or load a chec"
    ):
        fresh.personalize(99)
    trained = Own(FedAlt(0.05))
    two_rounds(trained, held_out_data())
    chosen = Own(FedAlt(0.05), predict_client=3)
    chosen.load_state_dict(trained.state_dict())
    message = r"Own: predict_client=3 asks .* load_state_dict brought the global model alone\. .*load_from_checkpoint"
    with pytest.raises(RuntimeError, match=message):
        trainer().predict(chosen, plain_loader())
    with pytest.raises(IndexError, match="client=99: the federation has clients 0 to 3"):
        trained.personalize(99)


def test_weights_alone_are_evaluated_client_by_client_with_a_warning(tmp_path):
    trained = Own(FedAlt(0.05))
    fit = two_rounds(trained, held_out_data())
    fit.save_checkpoint(tmp_path / "run.ckpt")
    weights = Own(FedAlt(0.05))
    weights.load_state_dict(trained.state_dict())
    with pytest.warns(
        UserWarning, match="load_state_dict brought the global model alone, so all clients are evaluated"
    ):
        trainer().validate(weights, held_out_data(), verbose=False)
    whole = Own.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert messages(lambda: trainer().validate(whole, held_out_data(), verbose=False)) == []
    torch.testing.assert_close(whole.client_metrics["val_loss"], trained.client_metrics["val_loss"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_takes_personal_copies():
    task, x = Own(FedAlt(0.05)), torch.ones(2, 6)
    two_rounds(task, held_out_data())
    own = task.personalize(1).eval()
    with pytest.raises(
        RuntimeError, match=r"torch\.jit reads every attribute.* use task\.personalize\(i\)\.to_torchscript"
    ):
        torch.jit.trace(own, x)
    torch.testing.assert_close(own.to_torchscript(method="trace", example_inputs=x)(x), own(x))
    torch.testing.assert_close(own.to_torchscript()(x), own(x))


def test_clients_keep_what_an_algorithm_or_a_channel_remembers():
    """On several processes such clients stay where their states are."""
    halved = Channel(client=[Halved()])
    kept = {
        "nothing": Line(FedAvg(0.1)),
        "a clip": Line(FedAvg(0.1), channel=Channel(client=[Clip(1.0)])),
        "a memory": Line(FedAvg(0.1), channel=halved),
        "that of a phase": Line(FedAvg(0.1), channel=PerPhase([halved])),
        "duals": Line(SCAFFOLD(0.1)),
    }
    assert [name for name, task in kept.items() if task.client_models.keep_states] == [
        "a memory",
        "that of a phase",
        "duals",
    ]
    assert not any(task.client_models.exist for task in kept.values())


def test_clients_models_after_a_change_of_the_task_are_told():
    task = Own(FedAlt(0.05))
    two_rounds(task, held_out_data())
    assert messages(lambda: task.personalize(0)) == []
    torch.nn.init.zeros_(task.line.weight)
    with pytest.warns(UserWarning, match=r"Own: parameter 'line\.weight' was changed since the last round\. Clients'"):
        task.personalize(0)
    task.predict_client = 0
    with pytest.warns(UserWarning, match="was changed since the last round"):
        trainer().predict(task, plain_loader())


def test_adaptation_without_a_server_is_told():
    def told(run):
        words = "before the first round clients use the model as it is, without the personal steps of PerFedAvg."
        return any(words in each for each in messages(run))

    trained, weights = Own(PerFedAvg(0.05)), Own(PerFedAvg(0.05))
    two_rounds(trained, held_out_data())
    weights.load_state_dict(trained.state_dict())
    for task in (Own(PerFedAvg(0.05)), weights):
        assert told(lambda task=task: trainer().validate(task, held_out_data(), verbose=False))
    assert not told(lambda: trainer().validate(trained, held_out_data(), verbose=False))
    assert not told(lambda: two_rounds(weights, held_out_data()))
