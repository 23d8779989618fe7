import numpy as np


def scaffold(operators, z, cohorts, K, lr, lr_server=1.0):
    """Karimireddy et al. 2020, Algorithm 1, option II."""
    n = len(operators)
    c = np.zeros_like(z)
    own = [np.zeros_like(z) for _ in range(n)]
    points = []
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            w = z.copy()
            for _ in range(K):
                w = w - lr * (operators[i](w) - own[i] + c)
            new = own[i] - c + (z - w) / (K * lr)
            moves.append(w - z)
            changes.append(new - own[i])
            own[i] = new
        z = z + lr_server * np.mean(moves, axis=0)
        c = c + len(cohort) / n * np.mean(changes, axis=0)
        np.testing.assert_allclose(c, np.mean(own, axis=0), atol=1e-12)
        points.append(z)
    return points
