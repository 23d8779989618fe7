"""Robust means as loops over clients and coordinates, in NumPy."""

from __future__ import annotations

import numpy as np


def median(rows):
    middle = []
    for column in rows.T:
        ordered = sorted(column)
        below, above = (len(ordered) - 1) // 2, len(ordered) // 2
        middle.append((ordered[below] + ordered[above]) / 2)
    return np.array(middle)


def trimmed_mean(rows, trimmed):
    return np.array([np.mean(sorted(column)[trimmed : len(column) - trimmed]) for column in rows.T])


def krum_scores(rows, adversaries):
    scores = []
    for own, row in enumerate(rows):
        others = sorted(np.sum((row - other) ** 2) for client, other in enumerate(rows) if client != own)
        scores.append(sum(others[: len(rows) - adversaries - 2]))
    return np.array(scores)


def multi_krum(rows, adversaries, selected):
    best = sorted(range(len(rows)), key=lambda client: krum_scores(rows, adversaries)[client])[:selected]
    return np.mean([rows[client] for client in best], axis=0)


def centered_clipping(rows, radius, iterations, start):
    v = np.array(start, dtype=float)
    for _ in range(iterations):
        clipped = [(row - v) * min(1.0, radius / max(np.linalg.norm(row - v), 1e-300)) for row in rows]
        v = v + np.mean(clipped, axis=0)
    return v


def mixed(rows, adversaries):
    means = []
    for row in rows:
        order = sorted(range(len(rows)), key=lambda client: np.linalg.norm(rows[client] - row))
        means.append(np.mean(rows[order[: len(rows) - adversaries]], axis=0))
    return np.array(means)
