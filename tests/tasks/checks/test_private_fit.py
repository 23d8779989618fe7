"""Fits whose noise would not hide clients are refused before the first round, each with its reason."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from fedlightning import algorithms as fl
from fedlightning.channel import AdaptiveClip, Channel, Clip, DistributedGaussianNoise, GaussianNoise
from fedlightning.data.remote import RemoteClients
from fedlightning.participation import Full, Poisson
from fedlightning.tasks import ClientNumbers, QuadraticSaddle
from fedlightning.tasks.checks.private_fit import check_private_fit
from tests.support.small import trainer
from tests.support.transforms import Shift

NOISE = Channel(client=[Clip(1.0)], server=[GaussianNoise(1.0)])
SECURE = Channel(client=[Clip(1.0)], server=[GaussianNoise(1.0, secure=True)])
COUNTED = Channel(client=[AdaptiveClip(0.5, 2.0)], server=[GaussianNoise(1.0, secure=True)])
SHARES = Channel(client=[Clip(1.0), DistributedGaussianNoise(1.0, secure=True)])


def attached(channel, algorithm=None, precision="32-true", world_size=1, **federation):
    task = QuadraticSaddle(fl.FedAvg(0.05) if algorithm is None else algorithm, 4, channel=channel, **federation)
    run = SimpleNamespace(precision=precision, world_size=world_size)
    return SimpleNamespace(federation_options=task.federation_options, algorithm=task.algorithm, trainer=run)


def test_a_fit_with_noise_says_what_has_none(tmp_path, capfd, caplog):
    caplog.set_level("INFO")
    trainer(tmp_path).fit(QuadraticSaddle(fl.FedAvg(0.05), 4, channel=NOISE), ClientNumbers(4, local_steps=2))
    assert (
        "Losses and other values that clients report are logged without noise" in caplog.text + capfd.readouterr().err
    )


@pytest.mark.parametrize("channel", [None, Channel(client=[Clip(1.0)]), Channel(server=[Shift()])])
def test_without_noise_everything_goes(channel):
    check_private_fit(attached(channel, precision="16-mixed"), None)


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        (attached(NOISE, precision="16-mixed"), None, "16-mixed.*'bf16-mixed'"),
        (attached(NOISE, fl.FIAELT()), None, r"FIAELT\(beta=None\)"),
        (attached(NOISE), RemoteClients(4), r"GaussianNoise\(secure=False\): the seed of a round is sent"),
        (attached(COUNTED), RemoteClients(4), r"AdaptiveClip\(secure=False\): the seed of a round is sent"),
        (attached(SECURE, world_size=2), None, r"GaussianNoise\(secure=True\): 2 processes would draw"),
    ],
)
def test_what_would_not_hide_clients(task, data, message):
    with pytest.raises(ValueError, match=message):
        check_private_fit(task, data)


@pytest.mark.parametrize(
    ("channel", "data", "world_size"), [(SECURE, RemoteClients(4), 1), (SHARES, RemoteClients(4), 1), (SHARES, None, 2)]
)
def test_what_hides_them(channel, data, world_size):
    check_private_fit(attached(channel, world_size=world_size), data)


@pytest.mark.parametrize("channel", [NOISE, SHARES])
def test_clients_count_alike(channel):
    with pytest.raises(ValueError, match=r"weighting='samples'"):
        attached(channel, weighting="samples")


def test_a_resume_with_other_hyper_parameters_would_need_the_mean_of_all_clients(tmp_path):
    """The server's state is made anew from the clients' own, which nothing has noised."""

    def task(sigma, channel):
        return QuadraticSaddle(fl.FedADMM(sigma=sigma), 4, channel=channel)

    def data():
        return ClientNumbers(4, local_steps=2)

    for channel in (None, NOISE):
        path = tmp_path / f"{channel is None}.ckpt"
        run = trainer(tmp_path, max_steps=2)
        run.fit(task(2.0, channel), data())
        run.save_checkpoint(path)
        if channel is None:
            trainer(tmp_path, max_steps=3).fit(task(3.0, channel), data(), ckpt_path=path)
            continue
        with pytest.raises(ValueError, match="sigma"):
            trainer(tmp_path, max_steps=3).fit(task(3.0, channel), data(), ckpt_path=path)


@pytest.mark.parametrize(
    ("secure", "participation", "refused"),
    [(False, Full(), True), (False, Poisson(0.5), True), (True, Poisson(0.5), True), (True, Full(), False)],
)
def test_another_fit_draws_no_noise_and_no_cohorts_again(secure, participation, refused, tmp_path):
    channel = Channel(client=[Clip(1.0)], server=[GaussianNoise(4.0, secure=secure)])
    task = QuadraticSaddle(fl.FedAvg(0.05), num_clients=8, channel=channel)

    def fit_anew(seed=0, **options):
        run, data = (
            trainer(tmp_path, max_steps=4),
            ClientNumbers(8, local_steps=2, participation=participation, seed=seed),
        )
        run.fit(task, data, **options)
        return run

    fit_anew().save_checkpoint(tmp_path / "last.ckpt")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"seed=0 .* 4 rounds of another fit") if refused else nullcontext():
            fit_anew()
    fit_anew(seed=1)
    with pytest.raises(ValueError, match=r"seed=1 .* 4 rounds of another fit") if refused else nullcontext():
        fit_anew(seed=1)
    with pytest.raises(ValueError, match=r"seed=0 .* 4 rounds of another fit") if refused else nullcontext():
        fit_anew()
    fit_anew(ckpt_path=tmp_path / "last.ckpt")
