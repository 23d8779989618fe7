"""The samples of the jobs, written to a folder of arrays that every framework reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedlightning.data.pictures import read_cifar10, read_mnist
from jobs import ARRAYS, JOBS

CACHE = Path(__file__).parent / ".cache"  # of decoded pictures


def noise(clients, root):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((60_000, 1, 28, 28), dtype=np.float32)
    y = draw.integers(0, 10, 60_000)
    return x, y, x[:100], y[:100], equal(60_000, clients)


def mnist(clients, root):
    x, y, x_test, y_test = arrays(read_mnist(root / "mnist"), axes=None)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], y[order], x_test, y_test, equal(len(y), clients)


def cifar10(clients, root):
    stored = root / "cifar10_jpeg" / "cifar10_jpeg.npz"
    x, y, x_test, y_test = arrays(read_cifar10(stored if stored.is_file() else root / "cifar10", CACHE), axes=(0, 2, 3))
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], y[order], x_test, y_test, equal(len(y), clients)


def mnist_by_two_digits(clients, root):
    """Client c holds digits c and c + 1 modulo 10, five samples of each and more by a log-normal law (FedProx, C.1)."""
    x, y, x_test, y_test = arrays(read_mnist(root / "mnist"), axes=0)
    draw, held = np.random.default_rng(0), [[] for _ in range(clients)]
    for digit in range(10):
        holders = [client for client in range(clients) if digit in (client % 10, (client + 1) % 10)]
        rows = draw.permutation(np.flatnonzero(y == digit))
        share = draw.lognormal(0, 2, len(holders))
        sizes = 5 + np.floor((len(rows) - 5 * len(holders)) * share / share.sum()).astype(int)
        for client, part in zip(holders, np.split(rows, np.cumsum(sizes))[:-1], strict=True):
            held[client].append(part)
    order = [draw.permutation(np.concatenate(parts)) for parts in held]
    offsets = np.cumsum([0, *map(len, order)])
    order = np.concatenate(order)
    return x[order], y[order], x_test, y_test, offsets


def arrays(parts, axes):
    """Pixels of mean 0 and deviation 1 over ``axes`` of the training part, and labels."""
    x, y, x_test, y_test = (part.numpy() for part in parts)
    x, x_test = np.float32(x) / 255, np.float32(x_test) / 255
    mean, deviation = x.mean(axes, keepdims=True), x.std(axes, keepdims=True) + 1e-3
    return (x - mean) / deviation, y.astype(np.int64), (x_test - mean) / deviation, y_test.astype(np.int64)


def equal(samples, clients):
    return np.linspace(0, samples, clients + 1).astype(np.int64)


def write(name, folder, root):
    """Write the samples of a job below ``folder`` and return where they lie."""
    path = Path(folder) / name
    path.mkdir()
    samples = globals()[JOBS[name].data](JOBS[name].clients, root)
    for array, values in zip(ARRAYS, samples, strict=True):
        np.save(path / f"{array}.npy", values)
    return path
