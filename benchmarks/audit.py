"""Does noise hide clients? One run in which canaries take part by a coin, and guesses of the coins from the model.

Every canary's objective pulls one parameter of its own as far as clipping allows, which is the worst that a client can
do. The bound from below on epsilon has to stay below that of the account, and without noise it has to exceed it.
"""

from __future__ import annotations

import argparse
import random
import warnings

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning import seed_everything
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, GaussianNoise
from fedlightning.channel.privacy import RDP, EveryClient, correct_guesses, epsilon_at_least


class Canaries(FederatedLightningModule):
    """Each client pulls the parameter that its only sample names; number -1 pulls none."""

    def __init__(self, algorithm, count, **federation):
        super().__init__(algorithm, **federation)
        self.pulled = nn.Parameter(torch.zeros(count))

    def objective(self, batch):
        (number,) = batch
        wanted = torch.arange(len(self.pulled), device=number.device) == number
        return -(self.pulled * wanted).sum()


def audit(multiplier, args):
    """The lower bound on epsilon of one run, and the share of right guesses."""
    seed_everything(args.seed)
    coins = random.Random(args.seed)
    took_part = [coins.random() < 0.5 for _ in range(args.canaries)]
    clients = [TensorDataset(torch.tensor([[k if present else -1]])) for k, present in enumerate(took_part)]
    noise = [] if multiplier is None else [GaussianNoise(multiplier)]
    task = Canaries(FedAvg(1.0), args.canaries, channel=Channel(client=[Clip(1.0)], server=noise))
    data = FederatedDataModule.from_datasets(train=clients, batch_size=1, local_steps=1)
    Trainer(
        accelerator="cpu",
        max_steps=args.rounds,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(task, data)
    guesses = args.canaries // 4 * 2
    right = correct_guesses(task.pulled.detach().tolist(), took_part, guesses)
    return epsilon_at_least(right, guesses, args.canaries, args.delta), right / guesses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--multipliers", nargs="+", type=float, default=[3.0, 10.0, 30.0])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| noise multiplier | epsilon of the account | epsilon at least | right guesses |")
    print("| ---: | ---: | ---: | ---: |")
    for multiplier in (None, *args.multipliers):
        account = "infinite"
        if multiplier is not None:
            releases = {multiplier: args.rounds}
            account = f"{RDP().epsilon(EveryClient(args.canaries), releases, args.delta):.2f}"
        bound, right = audit(multiplier, args)
        print(
            f"| {'none' if multiplier is None else f'{multiplier:g}'} | {account} | {bound:.2f} | {100 * right:.0f} % |"
        )


if __name__ == "__main__":
    main()
