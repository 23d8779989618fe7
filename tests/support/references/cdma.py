import numpy as np


def _mean(operators, cohort, z):
    return np.mean([operators[i](z) for i in cohort], axis=0)


def cdma(operators, z, cohorts, K, lr, beta=1.0, alpha=1.0, rho=0.0):
    """Xie et al. 2023, Algorithms 1 and 2; a round's cohorts are (collecting, updating), or one without correction."""
    u, before, points = np.zeros_like(z), z, []
    for t, cohort in enumerate(cohorts):
        step = lr / (t + 1) ** rho
        if beta:
            collecting, cohort = cohort
            weight = 1.0 if t == 0 else min(1.0, alpha / (t + 1) ** (2 * rho))
            u = (1 - weight) * u + _mean(operators, collecting, z) - (1 - weight) * _mean(operators, collecting, before)
        ends = []
        for i in cohort:
            w = z
            for _ in range(K):
                w = w - step * (operators[i](w) + beta * (u - operators[i](z)))
            ends.append(w)
        before, z = z, np.mean(ends, axis=0)
        points.append(z)
    return points


def catalyst_scaffold_s(operators, z, cohorts, K, lr, p, theta, stage_steps, seed):
    """Hou et al. 2021 with a fresh cohort for each phase; the numbers of steps are geometric."""
    from fedlightning.algorithms import CatalystScaffoldS

    tosses = CatalystScaffoldS(lr=lr, p=p, seed=seed)
    reference, done, points = z, 0, []
    for t, (collecting, cohort) in enumerate(cohorts):
        mean = _mean(operators, collecting, z)
        steps = tosses.steps_of(t)
        ends = []
        for i in cohort:
            w = z
            for _ in range(steps):
                w = w - lr * (operators[i](w) - operators[i](z) + mean + theta * (w - reference))
            ends.append(w)
        z = np.mean(ends, axis=0)
        done += steps
        if done >= stage_steps:
            reference, done = z, 0
        points.append(z)
    return points
