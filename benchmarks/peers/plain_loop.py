"""FedAvg as anyone would write it in PyTorch: one model, one optimizer, client after client."""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F

from jobs import Work
from torch_networks import NETWORKS, accuracy
from turns import Turns


def main():
    work = Work(sys.argv[1])
    job, x, y = work.job, torch.from_numpy(work.x), torch.from_numpy(work.y)
    model = NETWORKS[job.network]()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=job.lr)  # has no state that a client could hand to the next
    turns = Turns(lambda: accuracy(model, work), "torch")
    while True:
        turns.wait()
        server = [p.detach().clone() for p in params]
        total, weight = [torch.zeros_like(value) for value in server], 0
        for client in torch.randperm(job.clients)[: job.cohort].tolist():
            set_to(params, server)
            rows = work.rows(client)
            samples = rows.stop - rows.start
            for index in (rows.start + torch.randperm(samples)).split(job.batch):
                loss = F.cross_entropy(model(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for sum_, p in zip(total, params, strict=True):
                sum_.add_(p.detach(), alpha=samples)
            weight += samples
        set_to(params, [sum_ / weight for sum_ in total])


@torch.no_grad()
def set_to(params, values):
    for p, value in zip(params, values, strict=True):
        p.copy_(value)


if __name__ == "__main__":
    main()
