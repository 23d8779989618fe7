"""FedAvg with ``torch.func.vmap`` over the clients, who hold equally many samples."""

from __future__ import annotations

import sys

import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from jobs import Work
from torch_networks import NETWORKS, accuracy
from turns import Turns


def main():
    work = Work(sys.argv[1])
    job, samples, x, y = work.job, work.samples, torch.from_numpy(work.x), torch.from_numpy(work.y)
    model = NETWORKS[job.network]()
    server = {name: p.detach() for name, p in model.named_parameters()}

    def objective(params, a, b):
        return F.cross_entropy(functional_call(model, params, (a,)), b)

    gradients = vmap(grad(objective), randomness="different")
    turns = Turns(lambda: accuracy(model, work), "torch")
    while True:
        turns.wait()
        clients = torch.randperm(job.clients)[: job.cohort]
        order = torch.stack([client * samples + torch.randperm(samples) for client in clients])
        local = {name: value.expand(job.cohort, *value.shape).clone() for name, value in server.items()}
        for index in order.split(job.batch, dim=1):
            for name, gradient in gradients(local, x[index], y[index]).items():
                local[name].sub_(gradient, alpha=job.lr)
        for name, value in server.items():
            value.copy_(local[name].mean(0))


if __name__ == "__main__":
    main()
