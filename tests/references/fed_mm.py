import numpy as np


def fed_mm(operators, z, cohorts, K, lr, mu=1.0, eta3=1.0):
    """Shen et al. 2022, Algorithm 3, in operator form."""
    duals = [np.zeros_like(z) for _ in operators]
    points = []
    for t, cohort in enumerate(cohorts):
        uploads = []
        for i in cohort:
            w = z.copy()
            for _ in range(K):
                w = w - lr * (operators[i](w) + mu * (w - z) + duals[i])
            duals[i] = duals[i] + mu * (w - z)
            uploads.append(w + eta3**t / mu * duals[i])
        z = np.mean(uploads, axis=0)
        points.append(z)
    return points
