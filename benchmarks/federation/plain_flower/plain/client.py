"""A client: one step of gradient descent with PyTorch."""

from __future__ import annotations

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the point after one step."""
    point = torch.from_numpy(message.content["arrays"]["point"].numpy().copy()).requires_grad_()
    (0.5 * ((point - torch.rand(1)) ** 2).sum()).backward()  # another number at each client
    with torch.no_grad():
        point -= 0.5 * point.grad
    content = {
        "arrays": ArrayRecord({"point": Array(point.detach().numpy())}),
        "metrics": MetricRecord({"num-examples": 4}),
    }
    return Message(RecordDict(content), reply_to=message)
