"""FedAvg in plain JAX, one compiled function a round: ``vmap`` over the clients, or ``map``, one after the other."""

from __future__ import annotations

import sys

import jax
import numpy as np

from jax_networks import Network, channels_last
from jobs import Work
from turns import Turns


def compiled_round(network, lr, over_clients):
    def client(params, x, y, key):
        def step(carry, batch):
            params, key = carry
            key, own = jax.random.split(key)
            gradient = jax.grad(network.loss)(params, *batch, own)
            return (jax.tree.map(lambda p, g: p - lr * g, params, gradient), key), None

        (params, _), _ = jax.lax.scan(step, (params, key), (x, y))
        return params

    @jax.jit
    def fedavg(params, x, y, keys):
        if over_clients == "vmap":
            local = jax.vmap(client, (None, 0, 0, 0))(params, x, y, keys)
        else:
            local = jax.lax.map(lambda own: client(params, *own), (x, y, keys))
        return jax.tree.map(lambda p: p.mean(0), local)

    return fedavg


def main():
    over_clients, folder = sys.argv[1:]
    work = Work(folder)
    job, samples, x, y = work.job, work.samples, channels_last(work.x), work.y
    network, draw, key = Network(job.network), np.random.default_rng(0), jax.random.key(0)
    fedavg, params = compiled_round(network, job.lr, over_clients), network.init()
    turns = Turns(lambda: network.accuracy(params, work), "jax")
    while True:
        turns.wait()
        clients = draw.permutation(job.clients)[: job.cohort]
        order = np.stack([client * samples + draw.permutation(samples) for client in clients])
        order = order.reshape(job.cohort, samples // job.batch, job.batch)
        key, own = jax.random.split(key)
        params = fedavg(params, x[order], y[order], jax.random.split(own, job.cohort))
        jax.block_until_ready(params)


if __name__ == "__main__":
    main()
