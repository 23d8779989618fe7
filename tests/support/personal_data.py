"""Recordings and digits of which every client holds some for training and some for evaluation."""

from __future__ import annotations

import numpy as np

from fedlightning.data import Dirichlet, PersonalDigits


def counted(**options):
    return PersonalDigits(Dirichlet(4, 0.5, min_size=40), permute_labels=False, class_counts=True, **options)


STRETCHES = [  # recording, person, activity, first and last reading
    (1, 7, 1, 11, 906),
    (1, 7, 8, 907, 976),
    (1, 7, 1, 1001, 1400),
    (2, 9, 6, 1, 256),
    (2, 9, 7, 257, 500),
    (2, 9, 6, 501, 1300),
]


def recordings(path):
    """Two persons; every reading is its own number."""
    n = 2800
    steps = np.arange(n, dtype=np.int16)
    np.savez(
        path,
        acc=np.stack([steps, steps, steps], 1),
        gyro=np.stack([-steps, -steps, -steps], 1),
        offsets=np.array([0, 1400, n]),
        exp_user=np.array([[1, 7], [2, 9]]),
        labels=np.array(STRETCHES),
        acc_step_g=0.5,
        gyro_step_rad_s=0.25,
    )
    return str(path)
