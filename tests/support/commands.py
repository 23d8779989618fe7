"""Arguments of short runs on the command line."""

from __future__ import annotations

from tests.support.paths import CONFIGS


def of(task, algorithm):
    return [f"--config={CONFIGS / task / 'base.yaml'}", f"--config={CONFIGS / task / algorithm}.yaml"]


SMALL = [
    "--trainer.max_steps=2",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--trainer.enable_model_summary=false",
    "--trainer.num_sanity_val_steps=0",
]


ALGORITHM = "--model.init_args.algorithm"
