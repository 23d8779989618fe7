"""A LightningModule around a classifier of transformers, as users of both write them; no package ships one."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, get_linear_schedule_with_warmup


class SequenceClassifier(LightningModule):
    """Fine-tunes a network for labels of texts."""

    def __init__(self, model_type: str = "bert", lr: float = 1e-3, weight_decay: float = 0.01, **config: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(model_type, **config))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        output = self.model(**batch)
        right = output.logits.argmax(-1) == batch["labels"]
        self.log_dict({"val_loss": output.loss, "val_accuracy": right.float().mean()})

    def configure_optimizers(self) -> Any:
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.hparams.weight_decay}, {"params": others}]
        optimizer = torch.optim.AdamW(groups, lr=self.hparams.lr, weight_decay=0.0)
        schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
