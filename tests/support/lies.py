"""What a broken or hostile node may send in place of its answers, and what is said of it."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from fedlightning.federation.remote.fields import Writer
from fedlightning.federation.remote.packet import RawArray
from fedlightning.federation.remote.training_codec import decode_answers, encode_answers
from fedlightning.oracle import Autocast


def without(batch, *clients):
    """The round as it is if some clients do not answer, but are asked."""
    cohorts = tuple(
        replace(
            cohort,
            members=tuple(member for member in cohort.members if member.id not in clients),
            answering=len(cohort.members) - len(clients),
            contacted=len(cohort.members),
        )
        for cohort in batch.cohorts
    )
    return type(batch)(batch.index, cohorts, batch.samples)


def run_quietly(loop, batch):
    """The warnings of a round."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.run(batch, Autocast("cpu"))
    return [str(each.message) for each in caught]


def changed(packet, change):
    """The packet of a node's answers, with one array of each of them changed."""
    parts = []
    for part in decode_answers(packet):
        name = next(name for name in part.arrays if name.startswith("update."))
        parts.append(change(part, name))
    return encode_answers(parts)


def with_array(part, name, tensor):
    writer = Writer()
    writer.tensor(name, tensor)
    return replace(part, arrays={**part.arrays, **writer.arrays})


def numbers(part, name):
    return torch.frombuffer(bytearray(part.arrays[name].data), dtype=torch.float64).reshape(part.arrays[name].shape)


LIES = {
    "no tensor's shape": (
        lambda part, name: replace(part, arrays={**part.arrays, name: RawArray("float64", (0, *3 * [2**30]), b"")}),
        "which no tensor has",
    ),
    "wrong shape": (
        lambda part, name: with_array(part, name, numbers(part, name)[:, :3]),
        r"is torch\.float64 \[1, 3\]",
    ),
    "ten times the size": (lambda part, name: with_array(part, name, numbers(part, name).repeat(1, 10)), r"\[1, 80\]"),
    "more arrays": (lambda part, name: with_array(part, "more", torch.zeros(1000)), "does not belong into it"),
    "another dtype": (lambda part, name: with_array(part, name, numbers(part, name).float()), r"is torch\.float32"),
    "no dimension of clients": (lambda part, name: with_array(part, name, numbers(part, name)[0]), "expected"),
    "too large": (lambda part, name: with_array(part, name, numbers(part, name) * 0 - 1e30), r"up to 1e\+30"),
    "an old round": (lambda part, name: replace(part, values={**part.values, "round": 0}), "of round 1"),
    "somebody else": (lambda part, name: replace(part, values={**part.values, "client_ids": [1]}), "not asked for"),
    "another class": (
        lambda part, name: replace(part, values={**part.values, "update.type": "os:system"}),
        "'os:system'",
    ),
    "no number": (lambda part, name: replace(part, values={**part.values, "round": "x"}), "expected a int"),
}


NAN = (lambda part, name: with_array(part, name, numbers(part, name) * torch.nan), "NaN or infinite numbers came")
"""This one is left out by the server, as in a simulation."""


def telling(change):
    """A function from what a node answers to what arrives."""
    return lambda packet: changed(packet, change) if packet.kind == "answers" else packet
