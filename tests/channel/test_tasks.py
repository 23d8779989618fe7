"""Tasks whose updates pass through a channel, fitted by Lightning's Trainer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml

from fedlightning import federate
from fedlightning.algorithms import CDMA_ONE, SCAFFOLD, FedAvg, FedDyn, FedExP, FedMM, FedPD, Scaffnew
from fedlightning.channel import ByField, Channel, Clip, ErrorFeedback, Median, PerPhase, SignFlip, TopK
from fedlightning.cli import main
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import QuadraticSaddle
from tests.support.federations import CLIENTS, K, close, loop_for, numpy_operators, quadratic, rounds_of, run
from tests.support.lit import Lit
from tests.support.small import Line, Normed, fitted, regression_data, trainer
from tests.support.transforms import Halved, Jitter, Shift

CHANNEL = Channel(client=[Clip(0.5), Halved(), Jitter()], server=[Shift()])


def made(channel, algorithm=None):
    torch.manual_seed(0)
    return Line(SCAFFOLD(0.05) if algorithm is None else algorithm, oracle=Vectorized(), channel=channel)


def data():
    return regression_data(participation=Uniform(3), rounds_per_epoch=3)


def test_a_fit_that_resumes_ends_bit_for_bit_where_it_would_have(tmp_path):
    whole, first = made(CHANNEL), made(CHANNEL)
    fitted(whole, data(), tmp_path, max_steps=5)
    fit = fitted(first, data(), tmp_path, max_steps=2)
    path = tmp_path / "two.ckpt"
    fit.save_checkpoint(path)
    second = made(CHANNEL)
    trainer(tmp_path, max_steps=5).fit(second, data(), ckpt_path=path)
    for mine, theirs in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert second.run.traffic_bytes == whole.run.traffic_bytes
    assert whole.traffic == second.traffic
    assert whole.run.traffic_bytes[0] != 4 * whole.traffic[0]
    one, other = (each.client_states.c for each in (second, whole))
    assert torch.equal(one, other)

    loaded = Line.load_from_checkpoint(path, trusted=[Halved, Jitter, Shift])
    assert loaded.federation_options.channel == CHANNEL
    with pytest.raises(ValueError, match=r"channel=Channel\(.*this run has channel=None.*Resume with the same channel"):
        trainer(tmp_path, max_steps=5).fit(made(None), data(), ckpt_path=path)


def test_a_channel_is_a_hyper_parameter_of_a_task(tmp_path):
    channel = PerPhase([None, Channel(client=[ByField({"z": Clip(0.1)})])])
    task = made(channel, CDMA_ONE(0.05))
    fit = fitted(task, tmp_path=tmp_path, max_steps=1)
    fit.save_checkpoint(tmp_path / "one.ckpt")
    assert Line.load_from_checkpoint(tmp_path / "one.ckpt").federation_options.channel == channel


@pytest.mark.parametrize(
    "channel",
    [
        Channel(client=[ErrorFeedback(TopK(0.4))]),
        Channel(client=[Clip(0.5)]),
        Channel(aggregate=Median()),
        PerPhase([Channel(client=[Clip(0.5)])]),
    ],
)
def test_control_variates_that_need_exact_sums_are_refused_a_channel(channel):
    with pytest.raises(ValueError, match="Scaffnew's clients move their control variates by the points that they send"):
        Line(Scaffnew(0.05), channel=channel)
    Line(Scaffnew(0.05), channel=Channel())


def test_rounds_without_a_broadcast_are_refused_a_download():
    channel = Channel(download=[TopK(0.5)])
    with pytest.raises(ValueError, match=r"FedPD\(p=0.5\) sends no point after a round without communication"):
        Line(FedPD(eta=0.5, p=0.5), channel=channel)
    Line(FedPD(eta=0.5), channel=channel)


def test_squared_norms_are_those_of_what_adversaries_send():
    """FedExP's factor is max(1, mean of |dz|^2 / 2 |mean of dz|^2), with the attacker's dz."""
    algorithm = FedExP(0.05, eps=1e-12)
    task = quadratic(algorithm, dim_y=0)
    loop = loop_for(task, channels=Channel(adversary=SignFlip(clients=[3], scale=5.0)))
    start = loop.point.numpy()
    ends = [start.copy() for _ in range(CLIENTS)]
    for operator, w in zip(numpy_operators(task), ends, strict=True):
        for _ in range(K):
            w -= 0.05 * operator(w)
    sent = np.stack(ends) - start
    sent[3] *= -5
    mean = sent.mean(0)
    factor = np.square(sent).sum(1).mean() / (2 * np.square(mean).sum())
    assert factor > 1.1
    run(loop, rounds_of(algorithm, 1))
    close(loop.point, torch.from_numpy(start + factor * mean), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("make", [SCAFFOLD, FedDyn, FedMM])
def test_methods_with_control_variates_or_duals_end_at_the_solution_through_error_feedback(make):
    algorithm = make(lr=0.05)
    task = quadratic(algorithm, dim_y=0)
    loop = loop_for(task, channels=Channel(client=[ErrorFeedback(TopK(0.4))]))
    points = run(loop, rounds_of(algorithm, 600))
    close(points[-1], task.solution, 1e-5)


def test_averaged_buffers_are_clipped_with_the_rest(tmp_path):
    moves = []
    for channel in (None, Channel(client=[Clip(1e-3)])):
        torch.manual_seed(0)
        task = Normed(FedAvg(0.1), channel=channel)
        start = torch.cat([each.detach().flatten().clone() for each in (*task.parameters(), task.net[1].running_mean)])
        fitted(task, tmp_path=tmp_path, max_steps=1)
        after = torch.cat([each.detach().flatten() for each in (*task.parameters(), task.net[1].running_mean)])
        moves.append((after - start).norm())
    assert moves[0] > 0.01
    assert moves[1] <= 1e-3 + 1e-6


def test_unchanged_modules_have_channels():
    torch.manual_seed(0)
    task = federate(Lit(), FedAvg(0.1), channel=Channel(client=[Clip(1e-4)]))
    start = torch.cat([each.detach().flatten().clone() for each in task.parameters()])
    fitted(task, max_steps=2)
    after = torch.cat([each.detach().flatten() for each in task.parameters()])
    assert 0 < (after - start).norm() <= 2e-4 + 1e-7


def test_the_command_line_makes_channels(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedlightning"])
    parts = {"channel": {"class_path": "fedlightning.channel.Channel"}}
    clip = {"class_path": "fedlightning.channel.Clip", "init_args": {"norm": 0.5}}
    by_field = {"class_path": "fedlightning.channel.ByField", "init_args": {"transforms": {"z": clip}}}
    parts["channel"]["init_args"] = {"client": [clip, by_field]}
    config = {
        "trainer": {"max_steps": 2, "accelerator": "cpu", "logger": False, "default_root_dir": str(tmp_path)},
        "model": {
            "class_path": "fedlightning.tasks.QuadraticSaddle",
            "init_args": {
                "algorithm": {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"lr": 0.1}},
                "num_clients": 3,
                **parts,
            },
        },
        "data": {"class_path": "fedlightning.tasks.ClientNumbers", "init_args": {"num_clients": 3}},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    main(["fit", "--config", str(path)])
    (saved,) = tmp_path.rglob("*.ckpt")
    channel = QuadraticSaddle.load_from_checkpoint(saved).federation_options.channel
    assert channel == Channel(client=[Clip(0.5), ByField({"z": Clip(0.5)})])


def test_another_object_than_a_channel_is_refused():
    with pytest.raises(TypeError, match=r"Line\(channel=Clip\(norm=1\.0, each=False\)\): expected a Channels object"):
        Line(channel=Clip(1.0))
