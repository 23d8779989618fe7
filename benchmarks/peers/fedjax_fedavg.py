"""FedAvg of FedJAX, as it comes: its sampler, its batches, its algorithm."""

from __future__ import annotations

import sys

import fedjax
import jax

from jax_networks import Network, channels_last
from jobs import Work
from turns import Turns


def main():
    work = Work(sys.argv[1])
    job, x, network = work.job, channels_last(work.x), Network(work.job.network)
    rows = {str(client): work.rows(client) for client in range(job.clients)}
    data = fedjax.InMemoryFederatedData({name: {"x": x[own], "y": work.y[own]} for name, own in rows.items()})
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, num_clients=job.cohort, seed=0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda params, batch, key: jax.grad(network.loss)(params, batch["x"], batch["y"], key),
        client_optimizer=fedjax.optimizers.sgd(job.lr),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1, drop_remainder=False),
    )
    state = algorithm.init(network.init())
    turns = Turns(lambda: network.accuracy(state.params, work), "fedjax", "jax")
    while True:
        turns.wait()
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)


if __name__ == "__main__":
    main()
