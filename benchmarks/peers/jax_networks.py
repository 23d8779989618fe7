"""The jobs' networks in JAX: a network is a list of layers, a layer is (parameters from shape, function).

Images are channels last, as convolutions on a CPU want them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def weights(*shape):
    """Draw weights and a bias as PyTorch does."""
    bound = np.prod(shape[:-1]) ** -0.5
    return lambda draw: tuple(np.float32(draw.uniform(-bound, bound, size)) for size in (shape, shape[-1:]))


def dense(inputs, outputs):
    return weights(inputs, outputs), lambda p, x, key: x @ p[0] + p[1]


def conv(inputs, outputs, size, padding="VALID"):
    def apply(p, x, key):
        return jax.lax.conv_general_dilated(x, p[0], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + p[1]

    return weights(size, size, inputs, outputs), apply


def pool():
    def apply(p, x, key):
        samples, height, width, channels = x.shape
        return x.reshape(samples, height // 2, 2, width // 2, 2, channels).max((2, 4))

    return None, apply


def dropout(rate):
    def apply(p, x, key):
        return x if key is None else x * jax.random.bernoulli(key, 1 - rate, x.shape) / (1 - rate)

    return None, apply


def plain(function):
    return None, lambda p, x, key: function(x)


def relu():
    return plain(jax.nn.relu)


def flatten():
    return plain(lambda x: x.reshape(len(x), -1))


NETWORKS = {
    "logreg": [flatten(), dense(784, 10)],
    "sigmoid": [flatten(), dense(784, 10), plain(jax.nn.sigmoid)],
    "lenet": [
        *(conv(1, 6, 5, "SAME"), relu(), pool(), conv(6, 16, 5), relu(), pool(), flatten()),
        *(dense(400, 120), relu(), dense(120, 84), relu(), dense(84, 10)),
    ],
    "cnn": [
        *(conv(1, 32, 5, "SAME"), relu(), pool(), conv(32, 64, 5, "SAME"), relu(), pool(), flatten()),
        *(dense(3136, 512), relu(), dense(512, 10)),
    ],
    "pfl": [
        *(conv(3, 32, 3), relu(), conv(32, 64, 3), relu(), pool(), dropout(0.25), flatten()),
        *(dense(12544, 128), relu(), dropout(0.5), dense(128, 10)),
    ],
}


class Network:
    """A network of the list as pure functions of its parameters."""

    def __init__(self, name):
        self.layers = NETWORKS[name]

    def init(self):
        draw = np.random.default_rng(0)
        return [() if weights is None else jax.tree.map(jnp.asarray, weights(draw)) for weights, _ in self.layers]

    def apply(self, params, x, key=None):
        keys = [None] * len(params) if key is None else jax.random.split(key, len(params))
        for p, (_, function), k in zip(params, self.layers, keys, strict=True):
            x = function(p, x, k)
        return x

    def loss(self, params, x, y, key):
        """Cross entropy of a minibatch; ``key`` is for dropout."""
        scores = jax.nn.log_softmax(self.apply(params, x, key))
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    def accuracy(self, params, work):
        right = [
            np.asarray(self.apply(params, channels_last(a)).argmax(1)) == b
            for a, b in zip(np.split(work.x_test, 20), np.split(work.y_test, 20), strict=True)
        ]
        return float(np.mean(right))


def channels_last(x):
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))
