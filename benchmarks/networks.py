"""Eleven networks, each trained by FedAvg through the whole Trainer beside a plain PyTorch loop, in one run.

Every client holds random samples and takes 20 local steps of batch 10 (3 to 10 steps of the larger networks). A round
of ours and a round of the loop run in turn, so whatever else the machine does meets both. Printed are the median
seconds of a round, the way that was taken, how many times faster that is than the loop, and peak memory of ours in a
process of its own. With ``--unequal``, clients hold shares of the same samples that are drawn from Dir(0.5), and pass
over them once. With ``--accelerator gpu``, both sides run there, memory is the GPU's, and its utilisation is printed,
too. With ``--before FOLDER`` every row is measured with the package of another checkout as well, in turn.
``python benchmarks/networks.py --help`` lists the choices.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch

import fedlightning  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer
from torch import nn
from torch.nn import functional as F

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.callbacks import RoundProgressBar
from fedlightning.data import IID, FederatedDataModule, Federation, TensorData
from fedlightning.models import CNN, MLP, LeNet5, LogisticRegression, ResNet18
from fedlightning.oracle import Auto, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import GAN
from standard_job import Alternate, at_least, peak_resident

HERE = Path(__file__).resolve().parent.parent
CLASSES, LR, VOCABULARY = 10, 0.01, 80


class CharacterLSTM(nn.Module):
    """Predicts the next character from 40, as LEAF's Shakespeare does with two layers of 64."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Transformer(nn.Module):
    """Two encoder layers of width 64 with four heads, over 32 tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)).mean(1))


class ResNet8(nn.Module):
    """Three residual stages of 16, 32 and 64 channels with group normalisation, for images of 32 x 32 pixels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU())
        self.stages = nn.ModuleList(_Residual(a, b, s) for a, b, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2)))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class _Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, out) for _ in range(2))
        same = channels == out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return (y + self.skip(x)).relu()


def mobilenet():
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(num_classes=CLASSES, norm_layer=partial(nn.GroupNorm, 4), dropout=0.0)


def vit():
    from torchvision.models import VisionTransformer

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 4, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    return VisionTransformer(**sizes, num_classes=CLASSES)


class Classifier(FederatedLightningModule):
    """Cross entropy of any network."""

    def __init__(self, network, **federation):
        super().__init__(FedAvg(LR), **federation)
        self.network = network()

    def objective(self, batch):
        x, y = batch
        return F.cross_entropy(self.network(x), y)


def images(size, channels):
    return lambda n, draw: torch.randn(n, channels, size, size, generator=draw)


def tokens(length):
    return lambda n, draw: torch.randint(0, VOCABULARY, (n, length), generator=draw)


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        task: Makes the task from an oracle.
        inputs: Draws n inputs.
        labels: Number of classes.
        batch: Samples of a minibatch.
        steps: Local steps of a round.
    """

    task: Callable[..., FederatedLightningModule]
    inputs: Callable[[int, torch.Generator], torch.Tensor]
    labels: int = CLASSES
    batch: int = 10
    steps: int = 20


def classifier(network, inputs, **options):
    return Job(partial(Classifier, network), inputs, **options)


JOBS = {
    "logistic regression": classifier(LogisticRegression, images(28, 1)),
    "MLP 784-200-10": classifier(lambda: nn.Sequential(nn.Flatten(), MLP((784, 200, CLASSES))), images(28, 1)),
    "LeNet5": classifier(LeNet5, images(28, 1)),
    "CNN, 1.66 M": classifier(CNN, images(28, 1), steps=10),
    "ResNet-8": classifier(ResNet8, images(32, 3), steps=10),
    "ResNet-18": classifier(partial(ResNet18, CLASSES, groups=4), images(32, 3), batch=4, steps=3),
    "MobileNetV2": classifier(mobilenet, images(32, 3), batch=4, steps=5),
    "LSTM": classifier(CharacterLSTM, tokens(40), labels=VOCABULARY),
    "transformer": classifier(Transformer, tokens(32), labels=VOCABULARY),
    "ViT": classifier(vit, images(32, 3)),
    "DCGAN": Job(partial(GAN, FedAvg(LR)), images(28, 1), steps=10),
}
ORACLES = {
    "auto": Auto,
    "vectorized": Vectorized,
    "replayed": partial(Vectorized, replay=True),  # on a GPU: as CUDA graphs
    "sequential": Sequential,
}
DEVICES = {"cpu": "cpu", "gpu": "cuda"}
HALF = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def unequal_sizes(clients):
    from fedlightning.data import DirichletSizes  # which packages that --before names may lack

    return DirichletSizes(clients, alpha=0.5, min_size=1)


class Samples(FederatedDataModule):
    """Random samples, as many as a round takes."""

    def __init__(self, job, clients, unequal):
        super().__init__(batch_size=job.batch, local_epochs=1, participation=Uniform(clients), rounds_per_epoch=1000)
        self.job, self.clients = job, clients
        self.split = unequal_sizes(clients) if unequal else IID(clients)

    def build(self):
        draw, n = torch.Generator().manual_seed(0), self.clients * self.job.batch * self.job.steps
        labels = torch.randint(0, self.job.labels, (n,), generator=draw)
        return Federation(TensorData((self.job.inputs(n, draw), labels)), self.split.split(labels, seed=0))


class PlainLoop:
    """FedAvg as anyone would write it: one model, one optimizer, client after client; buffers are averaged, too."""

    def __init__(self, task, data, accelerator, precision):
        self.device, half = DEVICES[accelerator], HALF.get(precision)
        self.task, self.job = task.to(self.device), data.job
        self.autocast = nullcontext() if half is None else torch.autocast(self.device, half)
        self.scaler = torch.amp.GradScaler(self.device, enabled=half == torch.float16)
        self.x, self.y = (tensor.to(self.device) for tensor in data.federation.train.tensors)
        self.partition = data.federation.partition
        self.maximised = [name.startswith(tuple(task.max_parameters)) for name, _ in task.named_parameters()]
        self.params = list(task.parameters())
        self.moving = [*self.params, *(b for b in task.buffers() if b.is_floating_point())]
        self.server = [value.detach().clone() for value in self.moving]

    @torch.no_grad()
    def __call__(self):
        total = [torch.zeros_like(value) for value in self.server]
        for indices in self.partition:
            torch._foreach_copy_(self.moving, self.server)
            optimizer = torch.optim.SGD(self.params, lr=LR)
            for index in indices[torch.randperm(len(indices))].to(self.device).split(self.job.batch):
                with torch.enable_grad():
                    with self.autocast:
                        loss = self.task.objective((self.x[index], self.y[index]))
                    loss = loss["loss"] if isinstance(loss, dict) else loss
                    optimizer.zero_grad()
                    self.scaler.scale(loss).backward()
                for parameter, maximised in zip(self.params, self.maximised, strict=True):
                    if maximised:
                        parameter.grad.neg_()
                self.scaler.step(optimizer)
                self.scaler.update()
            for sum_, value in zip(total, self.moving, strict=True):
                sum_.add_(value, alpha=1 / len(self.partition))
        self.server = total


class Utilisation(Callback):
    """How busy the GPU was in our rounds, in percent, as its driver says; nothing where that is not known."""

    def __init__(self):
        self.percent = []

    def on_train_batch_end(self, *args):
        with suppress(Exception):  # whatever NVML raises: it may be missing, or not allow it
            self.percent.append(torch.cuda.utilization())


def run(name, clients, args, rounds, warmup, with_loop=True, callbacks=(), devices=1):
    """Seconds of our rounds and of the loop's without the warm-up, and the way that was taken."""
    job = JOBS[name]
    torch.manual_seed(0)
    data, task = Samples(job, clients, args.unequal), job.task(oracle=ORACLES[args.oracle]())
    loop = PlainLoop(job.task(), data, args.accelerator, args.precision) if with_loop else None
    turns = Alternate(loop)
    Trainer(
        accelerator=args.accelerator,
        devices=devices,
        precision=args.precision,
        max_steps=warmup + rounds,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[turns, RoundProgressBar(), *callbacks],
    ).fit(task, data)
    return turns.ours[warmup:], turns.theirs[warmup:], way_taken(task)


def way_taken(task):
    """The oracle of the last round; nothing if a package that --before names keeps it elsewhere."""
    try:
        return task.run.simulation.runner.oracle_selection.oracle
    except AttributeError:
        return ""


def alone(name, clients, args):
    """Peak memory of ours without the loop in MiB, and the GPU's utilisation in percent."""
    if args.accelerator == "cpu":
        run(name, clients, args, rounds=1, warmup=1, with_loop=False)
        return f"{peak_resident():.0f}"
    busy = Utilisation()
    run(name, clients, args, args.rounds, args.warmup, with_loop=False, callbacks=[busy])
    percent = f"{median(busy.percent[args.warmup :]):.0f} %" if busy.percent else "utilisation unknown"
    used, kept = (peak() / 2**20 for peak in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved))
    return f"{used:.0f} ({kept:.0f} reserved), {percent}"


def measured_alone(name, clients, args):
    """What :func:`alone` finds in a process of its own."""
    return last_line(["--alone", name], clients, args, Path(fedlightning.__file__).resolve().parent.parent)


def last_line(what, clients, args, package):
    """What a process prints last that imports fedlightning from a folder and has the options of this one."""
    command = [sys.executable, __file__, *what, "--clients", str(clients), "--oracle", args.oracle]
    command += ["--accelerator", args.accelerator, "--precision", args.precision, "--threads", str(args.threads)]
    command += ["--rounds", str(args.rounds), "--warmup", str(args.warmup)]
    command += [f"--{each.replace('_', '-')}" for each in ("unequal", "no_memory") if getattr(args, each)]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return done.stdout.splitlines()[-1]


def row(name, clients, args):
    """A line of the table."""
    memory = "" if args.no_memory else measured_alone(name, clients, args)
    ours, theirs, way = run(name, clients, args, args.rounds, args.warmup)
    torch.cuda.empty_cache()  # for the next network's process
    mine, plain = median(ours), median(theirs)
    return f"| {name} | {clients} | {way} | {mine:.4f} | {plain:.4f} | {plain / mine:.2f} | {memory} |"


def machine(accelerator):
    """The machine, and what it is doing."""
    cpu = f"{torch.get_num_threads()} threads, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}"
    gpu = f", {torch.cuda.get_device_name()}" if accelerator == "gpu" else ""
    return f"torch {torch.__version__}, {cpu}{gpu}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--clients", nargs="+", type=at_least(1), default=[10], help="clients a round, 10 unless given")
    parser.add_argument("--oracle", choices=list(ORACLES), default="auto")
    parser.add_argument("--accelerator", choices=list(DEVICES), default="cpu")
    parser.add_argument("--precision", choices=["32-true", *HALF], default="32-true")
    parser.add_argument("--threads", type=at_least(0), default=0, help="0 leaves torch's default")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="measured rounds, 5 unless given")
    parser.add_argument("--warmup", type=at_least(0), default=2, help="rounds before those, 2 unless given")
    parser.add_argument("--unequal", action="store_true", help="clients hold different numbers of samples")
    parser.add_argument("--no-memory", action="store_true", help="skip the memory measurement")
    parser.add_argument(
        "--before", type=Path, help="folder of a checkout, whose package is measured in turn with this one"
    )
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.accelerator == "gpu" and not torch.cuda.is_available():
        print("GPU: there is none here, so nothing was measured.")
        return
    if args.accelerator == "cpu" and args.precision == "16-mixed":
        parser.error("--precision 16-mixed: Lightning has it on a GPU only; take bf16-mixed")
    if args.before is not None and not (args.before / "fedlightning" / "__init__.py").is_file():
        parser.error(f"--before {args.before}: there is no fedlightning/ in it; name the folder of a checkout")
    if args.threads:
        torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    if args.alone:
        print(alone(args.alone, args.clients[0], args))
        return
    print(machine(args.accelerator))
    states = args.before is not None  # a column more
    print(f"{'| ' * states}| network | clients | way taken | ours s | loop s | times faster | peak MiB |")
    print(f"{'| --- ' * states}| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for name, clients in product(args.networks, args.clients):
        if args.before is None:
            print(row(name, clients, args), flush=True)
            continue
        for state, package in (("before", args.before.resolve()), ("now", HERE)):
            print(f"| {state} {last_line(['--networks', name], clients, args, package)}", flush=True)


if __name__ == "__main__":
    main()
