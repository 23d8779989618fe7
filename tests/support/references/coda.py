"""The min block of the quadratic test problem has five elements, the rest is maximised."""

import numpy as np

MIN_DIM = 5


def local_sgda_plus(operators, z, cohorts, K, lr, refresh):
    """Deng and Mahdavi 2021, Algorithm 2."""
    snapshot, points = z[:MIN_DIM], []
    for t, cohort in enumerate(cohorts):
        ends = []
        for i in cohort:
            x, y = z[:MIN_DIM], z[MIN_DIM:]
            for _ in range(K):
                descent = operators[i](np.concatenate([x, y]))[:MIN_DIM]
                ascent = operators[i](np.concatenate([snapshot, y]))[MIN_DIM:]
                x, y = x - lr * descent, y - lr * ascent
            ends.append(np.concatenate([x, y]))
        z = np.mean(ends, axis=0)
        if (t + 1) % refresh == 0:
            snapshot = z[:MIN_DIM]
        points.append(z)
    return points


def coda(operators, z, cohorts, K, lr, theta, stage_steps, lr_server=1.0, variates=False):
    """Yuan et al. 2021: CODA+, and CODASCA with control variates."""
    n = len(operators)
    own, c = [np.zeros_like(z) for _ in range(n)], np.zeros_like(z)
    reference, done, stage, points = z, 0, 0, []
    for cohort in cohorts:
        step = lr / 3**stage
        ends, changes = [], []
        for i in cohort:
            w = z
            for _ in range(K):
                pull = theta * (w - reference)
                pull[MIN_DIM:] = 0
                w = w - step * (operators[i](w) + pull - own[i] + c)
            if variates:
                new = own[i] - c + (z - w) / (K * step)
                changes.append(new - own[i])
                own[i] = new
            ends.append(w)
        z = z + lr_server * (np.mean(ends, axis=0) - z)
        if variates:
            c = c + np.sum(changes, axis=0) / n
        done += K
        if done >= stage_steps:
            reference, done, stage = z, 0, stage + 1
        points.append(z)
    return points
