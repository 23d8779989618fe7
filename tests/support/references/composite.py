"""psi for the NumPy loops: nothing, or weight * ||z||_1 within ||z||_inf <= radius; and the loops that use it."""

import numpy as np


class Nothing:
    def prox(self, z, t):
        return z

    def subgradient(self, z):
        return 0.0 * z

    def project(self, z):
        return z


class L1Box:
    def __init__(self, weight, radius):
        self.weight, self.radius = weight, radius

    def prox(self, z, t):
        shrunk = np.where(np.abs(z) <= self.weight * t, 0.0, z - self.weight * t * np.sign(z))
        return np.clip(shrunk, -self.radius, self.radius)

    def subgradient(self, z):
        return self.weight * np.sign(z)

    def project(self, z):
        return np.clip(z, -self.radius, self.radius)


def _local(operators, cohort, K, start, step):
    ends = []
    for i in cohort:
        w = start
        for k in range(K):
            w = step(operators[i], w, k)
        ends.append(w)
    return ends


def fed_dual_avg(operators, z, cohorts, K, lr, lr_server=1.0, psi=None):
    """Yuan et al. 2021, Algorithm 2, with s the sum of operators."""
    psi = psi or Nothing()
    start, s, points = psi.project(z), np.zeros_like(z), []
    for r, cohort in enumerate(cohorts):

        def step(g, own, k, r=r):
            return own + lr * g(psi.prox(start - own, lr * (lr_server * r * K + k)))

        s = s + lr_server * (np.mean(_local(operators, cohort, K, s, step), axis=0) - s)
        points.append(psi.prox(start - s, lr * lr_server * (r + 1) * K))
    return points


def fe_dual_ex(operators, z, cohorts, K, lr, lr_server=1.0, output="last", psi=None):
    """Bai and Bullins 2024, Algorithm 1, client by client."""
    psi = psi or Nothing()
    start, s, points, seen = psi.project(z), np.zeros_like(z), [], []
    for r, cohort in enumerate(cohorts):
        done = lr_server * r * K
        halves = [[] for _ in range(K)]
        ends = []
        for i in cohort:
            own = s
            for k in range(K):
                g = operators[i](psi.prox(start - own, lr * (done + k)))
                half = own + lr * g
                halves[k].append(half)
                own = own + lr * operators[i](psi.prox(start - half, lr * (done + k + 1)))
            ends.append(own)
        seen += [psi.prox(start - np.mean(half, axis=0), lr * (done + k + 1)) for k, half in enumerate(halves)]
        s = s + lr_server * (np.mean(ends, axis=0) - s)
        last = psi.prox(start - s, lr * lr_server * (r + 1) * K)
        points.append(np.mean(seen, axis=0) if output == "ergodic" else last)
    return points


def fed_mid(operators, z, cohorts, K, lr, lr_server=1.0, psi=None, extra=False):
    """Yuan et al. 2021, Algorithm 1; with the extra step FedMiP, Bai and Bullins 2024, Algorithm 2."""
    psi = psi or Nothing()
    z, points = psi.project(z), []

    def step(g, w, k):
        at = psi.prox(w - lr * g(w), lr) if extra else w
        return psi.prox(w - lr * g(at), lr)

    for cohort in cohorts:
        move = np.mean(_local(operators, cohort, K, z, step), axis=0) - z
        z = psi.prox(z + lr_server * move, lr_server * lr * K)
        points.append(z)
    return points


def fed_mip(*args, **hyper):
    return fed_mid(*args, extra=True, **hyper)


def projected_gda(operators, z, cohorts, K, lr, psi=None, extra=False):
    """Projected subgradient steps on the clients, mean on the server; with an extra step Extra Step Local SGD."""
    psi = psi or Nothing()
    z, points = psi.project(z), []

    def step(g, w, k):
        at = psi.project(w - lr * (g(w) + psi.subgradient(w))) if extra else w
        return psi.project(w - lr * (g(at) + psi.subgradient(at)))

    for cohort in cohorts:
        z = np.mean(_local(operators, cohort, K, z, step), axis=0)
        points.append(z)
    return points


def extra_step_local_sgd(*args, **hyper):
    return projected_gda(*args, extra=True, **hyper)


def fed_sgda(operators, z, cohorts, K, lr, psi=None):
    """One proximal step a round along the mean operator; K plays no part."""
    psi = psi or Nothing()
    z, points = psi.project(z), []
    for cohort in cohorts:
        z = psi.prox(z - lr * np.mean([operators[i](z) for i in cohort], axis=0), lr)
        points.append(z)
    return points
