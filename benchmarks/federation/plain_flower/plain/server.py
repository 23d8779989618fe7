"""The server: Flower's strategy FedAvg as it is shipped, training alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say after every round that it is done."""
    size, rounds = int(context.run_config["size"]), int(context.run_config["rounds"])
    progress = Path(str(context.run_config["progress"]))

    def note(index: int, arrays: ArrayRecord) -> MetricRecord:
        partial = progress.with_suffix(".part")
        partial.write_text(json.dumps({"round": index, "time": time.time()}))
        os.replace(partial, progress)
        return MetricRecord()

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    start = ArrayRecord({"point": Array(numpy.random.default_rng(0).standard_normal(size, numpy.float32))})
    strategy.start(grid, start, num_rounds=rounds, evaluate_fn=note)
