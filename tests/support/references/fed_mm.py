import numpy as np


def fed_mm(operators, z, cohorts, K, lr, mu=1.0, eta3=1.0, mean_over="cohort"):
    """Shen et al. 2022, Algorithm 3, in operator form; the mean over the cohort, or over what all clients sent last."""
    duals = [np.zeros_like(z) for _ in operators]
    sent = [z.copy() for _ in operators]
    points = []
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            w = z.copy()
            for _ in range(K):
                w = w - lr * (operators[i](w) + mu * (w - z) + duals[i])
            duals[i] = duals[i] + mu * (w - z)
            sent[i] = w + eta3**t / mu * duals[i]
        z = np.mean(sent if mean_over == "all" else [sent[i] for i in cohort], axis=0)
        points.append(z)
    return points
