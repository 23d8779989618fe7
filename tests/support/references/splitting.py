"""NumPy loops of the splitting methods, client by client, with gradient steps on the subproblems."""

import random

import numpy as np

from fedlightning.core.seeding import derive_seed


class Nothing:
    def prox(self, z, t):
        return z

    def project(self, z):
        return z


def descent(g, w, lr, steps, enough=lambda squared, first: False):
    """Steps against g from w, until the squared norm of g is small enough."""
    first = None
    for _ in range(steps):
        direction = g(w)
        squared = direction @ direction
        first = squared if first is None else first
        if enough(squared, first):
            break
        w = w - lr * direction
    return w


def fiaelt(operators, z, cohorts, K, beta, tau, r, solver, smoothness=None, psi=None):
    """Algorithm 1 with gradient descent of step 1 / (beta + L), L = beta / 5 unless given."""
    psi = psi or Nothing()
    count = len(operators)
    x, dual = [z] * count, [np.zeros_like(z)] * count
    steep = beta / 5 if smoothness is None else smoothness
    test = r * ((beta - steep) / (beta + steep)) ** 2
    y, points = psi.project(z), []
    for cohort in cohorts:
        for i in cohort:

            def subproblem(w, i=i, y=y):
                return operators[i](w) + dual[i] + beta * (w - y)

            x[i] = descent(subproblem, x[i], 1 / (beta + steep), solver.max_steps, lambda s, first: s <= test * first)
            dual[i] = dual[i] + tau * beta * (x[i] - y)
        y = psi.prox(np.mean(x, axis=0) + np.mean(dual, axis=0) / beta, 1 / beta)
        points.append(y)
    return points


def fed_dr(operators, z, cohorts, K, eta, alpha, solver, psi=None):
    """Tran-Dinh et al. 2021, Algorithm 1, with x_i = y_i at the start."""
    psi = psi or Nothing()
    start, count = psi.project(z), len(operators)
    x, y, xhat = [start] * count, [start] * count, [start] * count
    mean, points = start, []
    for cohort in cohorts:
        for i in cohort:
            y[i] = y[i] + alpha * (mean - x[i])
            x[i] = descent(lambda w, i=i: operators[i](w) + (w - y[i]) / eta, x[i], solver.lr, K)
            xhat[i] = 2 * x[i] - y[i]
        mean = psi.prox(np.mean(xhat, axis=0), eta)
        points.append(mean)
    return points


def fed_pd(operators, z, cohorts, K, eta, p, seed, solver):
    """Zhang et al. 2021, Algorithm 1, Oracle I; anchors of its own for every client."""
    count = len(operators)
    x, lam, anchor = [z] * count, [np.zeros_like(z)] * count, [z] * count
    points, fresh = [], True
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            if fresh:
                anchor[i] = z
            start = x[i]
            x[i] = descent(lambda w, i=i: operators[i](w) + lam[i] + (w - anchor[i]) / eta, start, solver.lr, K)
            lam[i] = lam[i] + (x[i] - anchor[i]) / eta
            anchor[i] = x[i] + eta * lam[i]
        fresh = random.Random(derive_seed(seed, t)).random() >= p
        if fresh:
            z = np.mean([anchor[i] for i in cohort], axis=0)
        points.append(z)
    return points


def fed_admm(operators, z, cohorts, K, sigma, eps, nu, solver, psi=None):
    """Zhou and Li 2022, with a tolerance of its own for every client."""
    psi = psi or Nothing()
    count = len(operators)
    x, pi, tolerance = [z] * count, [np.zeros_like(z)] * count, [eps] * count
    z, points = psi.project(z), []
    for cohort in cohorts:
        for i in cohort:

            def subproblem(w, i=i, z=z):
                return operators[i](w) + pi[i] + sigma * (w - z)

            x[i] = descent(subproblem, x[i], solver.lr, solver.max_steps, lambda s, _, i=i: s <= tolerance[i])
            pi[i] = pi[i] + sigma * (x[i] - z)
            tolerance[i] *= nu
        z = psi.prox(np.mean([a + b / sigma for a, b in zip(x, pi, strict=True)], axis=0), 1 / sigma)
        points.append(z)
    return points


def fed_admm_gong(operators, z, cohorts, K, rho, lr_server, solver):
    """Gong et al. 2022, Algorithm 1."""
    count = len(operators)
    x, lam, points = [z] * count, [np.zeros_like(z)] * count, []
    for cohort in cohorts:
        increments = []
        for i in cohort:
            before = x[i] + lam[i] / rho
            x[i] = descent(lambda w, i=i, z=z: operators[i](w) + lam[i] + rho * (w - z), x[i], solver.lr, K)
            lam[i] = lam[i] + rho * (x[i] - z)
            increments.append(x[i] + lam[i] / rho - before)
        z = z + lr_server * np.mean(increments, axis=0)
        points.append(z)
    return points


def fed_split(operators, z, cohorts, K, s, solver):
    """Pathak and Wainwright 2020, Algorithm 1, subproblems started at the mean."""
    own, points = [z] * len(operators), []
    for cohort in cohorts:
        for i in cohort:
            anchor = 2 * z - own[i]
            x = descent(lambda w, i=i, a=anchor: operators[i](w) + (w - a) / s, z, solver.lr, K)
            own[i] = own[i] + 2 * (x - z)
        z = np.mean(own, axis=0)
        points.append(z)
    return points


def fed_skip(operators, z, cohorts, K, lr, period, seed):
    """Fan et al. 2022: permute within the cohort, average at the end of every period."""
    handed = {}
    points = []
    for t, cohort in enumerate(cohorts):
        trained = {i: descent(operators[i], handed.get(i, z), lr, K) for i in cohort}
        shuffled = random.Random(derive_seed(seed, t)).sample(sorted(cohort), len(cohort))
        for sender, recipient in zip(sorted(cohort), shuffled, strict=True):
            handed[recipient] = trained[sender]
        if (t + 1) % period == 0:
            z, handed = np.mean(list(trained.values()), axis=0), {}
        points.append(z)
    return points
