"""FedAvg of Flower's simulation on Ray, with one processor a client, so that as many clients run as there are.

Its strategy waits before it invites the clients of a round; Ray's processes stay alive meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

from jobs import mapped
from torch_networks import NETWORKS, accuracy
from turns import Turns

FOLDER = sys.argv[1]
ROUNDS = 10**6
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    mine = mapped(FOLDER)
    rows, job = mine.rows(context.node_config["partition-id"]), mine.job
    x, y = torch.from_numpy(mine.x[rows]), torch.from_numpy(mine.y[rows])
    model = NETWORKS[job.network]()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    for index in torch.randperm(len(y)).split(job.batch):
        loss = F.cross_entropy(model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(answer), reply_to=message)


class InTurn(FedAvg):
    """Waits before every round, and gives the global model to the one who measures accuracy."""

    def __init__(self, model, job, turns):
        super().__init__(fraction_train=job.cohort / job.clients, fraction_evaluate=0.0)
        self.model, self.turns = model, turns

    def configure_train(self, server_round, arrays, config, grid):
        self.model.load_state_dict(arrays.to_torch_state_dict())
        self.turns.wait()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        """Flower goes on without the clients that failed; here nothing may fail."""
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(failed[0])
        return super().aggregate_train(server_round, replies)


@server_app.main()
def main(grid, context):
    mine = mapped(FOLDER)
    model = NETWORKS[mine.job.network]()
    turns = Turns(lambda: accuracy(model, mine), "flwr", "ray", "torch")
    strategy = InTurn(model, mine.job, turns)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=mapped(FOLDER).job.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": len(os.sched_getaffinity(0)),
                "log_to_driver": False,
                "logging_level": "error",
                "_node_ip_address": "127.0.0.1",
            },
        },
    )
