"""The paper's equations, transcribed one coordinate, round and party at a time.

Slow and plain on purpose: the tests hold the package's J×J algebra against these loops. Data are a
list of rounds, each a dict from party to vector; rounds need not have the same parties. ``centres``
holds the prior mean of the truth, one vector per round (zeros in the paper).
"""

from dataclasses import dataclass, replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
from scipy.stats import f, halfnorm, multivariate_normal, norm

from consilience.updates.votes import at_most_a_third


def everybody(rounds):
    return sorted({party for updates in rounds for party in updates})


def size_of(updates):
    return len(next(iter(updates.values())))


def fedavg(updates, counts):
    """Eq. (fedavg)."""
    total = sum(counts[party] for party in updates)
    truth = np.zeros(size_of(updates))
    for k in range(truth.size):
        truth[k] = sum(counts[party] * updates[party][k] for party in updates) / total
    return truth


def ind_mle(vectors, covariances):
    """Eq. (ind_mle), from the covariances Σ_j."""
    precisions = [np.linalg.inv(covariance) for covariance in covariances]
    pulled = sum(p @ x for p, x in zip(precisions, vectors, strict=True))
    return np.linalg.inv(sum(precisions)) @ pulled


def overlap(samples, variance):
    """Eq. (overlap), from the sets of samples themselves."""
    phi = np.zeros((len(samples), len(samples)))
    for j, mine in enumerate(samples):
        for m, theirs in enumerate(samples):
            phi[j, m] = len(mine & theirs) / (len(mine) * len(theirs)) * variance
    return phi


def covariance_among(phi, names, updates):
    here = [names.index(party) for party in updates]
    return phi[np.ix_(here, here)]


def icov_truth(updates, phi):
    """Eq. (icov:1); phi is in the order of the round's parties."""
    inverse, one = np.linalg.inv(phi), np.ones(len(updates))
    truth = np.zeros(size_of(updates))
    for k in range(truth.size):
        x = np.array([update[k] for update in updates.values()])
        truth[k] = x @ inverse @ one / (one @ inverse @ one)
    return truth


def pair_covariance(rounds, truths, names):
    """The remark after Proposition 1: products of residuals over the rounds a pair met in."""
    phi = np.zeros((len(names), len(names)))
    for j, one in enumerate(names):
        for m, other in enumerate(names):
            products = [
                (updates[one][k] - truth[k]) * (updates[other][k] - truth[k])
                for updates, truth in zip(rounds, truths, strict=True)
                if one in updates and other in updates
                for k in range(truth.size)
            ]
            phi[j, m] = np.mean(products) if products else 0.0
    return phi


def plain_means(rounds):
    return [np.mean(list(updates.values()), axis=0) for updates in rounds]


def full_covariance(rounds, names, iterations, shrinkage):
    """Proposition 1 with the remark, its Φ̂ mixed with the parties' variances about a point amid
    most parties, and no eigenvalue, in units of those, below their share."""
    prior = np.diag(np.diag(pair_covariance(rounds, central_points(rounds), names)))
    unit = np.sqrt(prior)
    phi = prior
    for _ in range(iterations):
        truths = [icov_truth(updates, covariance_among(phi, names, updates)) for updates in rounds]
        sample = pair_covariance(rounds, truths, names)
        mixed = (1 - shrinkage) * sample + shrinkage * prior
        values, vectors = np.linalg.eigh(np.linalg.inv(unit) @ mixed @ np.linalg.inv(unit))
        phi = unit @ vectors @ np.diag(np.maximum(values, shrinkage)) @ vectors.T @ unit
    return truths, phi


def central_points(rounds):
    """A point amid most parties of each round. Rounds of the same parties have the same weights:
    their distances are averaged."""
    together = {}
    for updates in rounds:
        whole = together.setdefault(frozenset(updates), {party: [] for party in updates})
        for party, update in updates.items():
            whole[party].extend(update)
    weights = {
        group: central_weights({party: np.array(x) for party, x in whole.items()})
        for group, whole in together.items()
    }
    return [
        sum(weights[frozenset(updates)][party] * x for party, x in updates.items())
        for updates in rounds
    ]


def party_errors(rounds, truths, extra=None):
    """Each party's mean squared error over its rounds and coordinates, plus ``extra`` per round."""
    errors = {}
    for party in everybody(rounds):
        errors[party] = np.mean(
            [
                (updates[party][k] - truth[k]) ** 2 + (0.0 if extra is None else extra[i])
                for i, (updates, truth) in enumerate(zip(rounds, truths, strict=True))
                if party in updates
                for k in range(truth.size)
            ]
        )
    return errors


def least_noise(rounds):
    """Half the least positive mean squared distance between two parties of a round, where rounds
    of the same parties count as one long round."""
    together = {}
    for updates in rounds:
        whole = together.setdefault(frozenset(updates), {party: [] for party in updates})
        for party, update in updates.items():
            whole[party].extend(update)
    distances = [
        np.mean((np.array(whole[a]) - np.array(whole[b])) ** 2)
        for whole in together.values()
        for a in whole
        for b in whole
        if a != b
    ]
    return min(d for d in distances if d > 0) / 2


def ivar_mle(rounds, iterations, epsilon=0.0):
    """Algorithm 1, from equal variances. Also returns the log-likelihood after each iteration."""
    variance = dict.fromkeys(everybody(rounds), 1.0)
    likelihoods = []
    for _ in range(iterations):
        truths = []
        for updates in rounds:
            total = sum(1 / variance[party] for party in updates)
            truth = np.zeros(size_of(updates))
            for k in range(truth.size):
                truth[k] = sum(x[k] / variance[party] for party, x in updates.items()) / total
            truths.append(truth)
        errors = party_errors(rounds, truths)
        variance = {party: max(epsilon, error) for party, error in errors.items()}
        likelihoods.append(
            sum(
                norm.logpdf(x[k], truth[k], np.sqrt(variance[party]))
                for updates, truth in zip(rounds, truths, strict=True)
                for party, x in updates.items()
                for k in range(truth.size)
            )
        )
    return truths, variance, likelihoods


def expected_log_normal(squared_error, variance):
    """E[log N(x | m, variance)] where E[(x − m)²] is the squared error."""
    return -0.5 * (np.log(2 * np.pi * variance) + squared_error / variance)


def entropy(covariance):
    covariance = np.atleast_2d(covariance)
    return 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]


def starting_noise(rounds):
    """The mean over parties of their squared distances from the plain mean."""
    return float(np.mean(list(party_errors(rounds, plain_means(rounds)).values())))


def starting_prior(rounds, centres):
    """The mean squared distance of the plain mean from the centre."""
    pairs = zip(plain_means(rounds), centres, strict=True)
    return float(np.mean(np.concatenate([(mean - centre) ** 2 for mean, centre in pairs])))


@dataclass
class IvarVb:
    truths: list  # ȳ_i
    variances: list  # λ_i
    noise: dict  # σ_j²
    prior: float  # τ²
    free_energies: list


def ivar_vb(rounds, centres, iterations, fixed_prior=None):
    """Eqs. (ind-vb-truth-var) to (ind-vb-error-param), repeated."""
    variance = dict.fromkeys(everybody(rounds), starting_noise(rounds))
    prior = fixed_prior or starting_prior(rounds, centres)
    free_energies = []
    for _ in range(iterations):
        lambdas, truths = [], []
        for updates, centre in zip(rounds, centres, strict=True):
            lam = 1 / (1 / prior + sum(1 / variance[party] for party in updates))
            truth = np.zeros(size_of(updates))
            for k in range(truth.size):
                pulled = sum(x[k] / variance[party] for party, x in updates.items())
                truth[k] = lam * (centre[k] / prior + pulled)
            lambdas.append(lam)
            truths.append(truth)
        triples = list(zip(lambdas, truths, centres, strict=True))
        if fixed_prior is None:
            prior = np.mean(
                [lam + (y - c) ** 2 for lam, ys, cs in triples for y, c in zip(ys, cs, strict=True)]
            )
        variance = party_errors(rounds, truths, extra=lambdas)
        free = 0.0
        for updates, (lam, truth, centre) in zip(rounds, triples, strict=True):
            for k in range(truth.size):
                free += expected_log_normal(lam + (truth[k] - centre[k]) ** 2, prior) + entropy(lam)
                for party, x in updates.items():
                    free += expected_log_normal(lam + (x[k] - truth[k]) ** 2, variance[party])
        free_energies.append(free)
    return IvarVb(truths, lambdas, variance, prior, free_energies)


@dataclass
class Hidden:
    """q(v_j) and the hyperparameters of the latent model, by position in ``names``."""

    names: list
    v: np.ndarray  # v̄_j, (J, D)
    psi: np.ndarray  # Ψ_j, (J, D, D)
    own: np.ndarray  # σ_j²
    prior: float  # σ_y²
    scale_u: float  # σ_u²
    scale_v: float  # σ_v²


@dataclass
class Task:
    """q(y, u) for one coordinate of one round. ``cross`` is their covariance."""

    x: dict  # position of a party -> its value
    centre: float
    y: float
    lam: float
    u: np.ndarray
    phi: np.ndarray
    cross: np.ndarray


def truth_variance(state, x):
    """Eq. (latent-vb-truth-var)."""
    return 1 / (1 / state.prior + sum(1 / state.own[j] for j in x))


def truth_mean(state, x, centre, u):
    """Eq. (latent-vb-truth-mean)."""
    pulled = sum((x[j] - u @ state.v[j]) / state.own[j] for j in x)
    return truth_variance(state, x) * (centre / state.prior + pulled)


def feature_variance(state, x):
    """Eq. (latent-vb-party-var)."""
    precision = np.eye(state.v.shape[1]) / state.scale_u
    for j in x:
        precision = precision + (state.psi[j] + np.outer(state.v[j], state.v[j])) / state.own[j]
    return np.linalg.inv(precision)


def feature_mean(state, x, y):
    """Eq. (latent-vb-party-mean)."""
    return feature_variance(state, x) @ sum((x[j] - y) / state.own[j] * state.v[j] for j in x)


def infer_task(state, x, centre, joint):
    """q(y, u). The two means' equations are solved together; they are the same for both posteriors,
    since the mean of a Gaussian does not depend on the factorisation."""
    rank = state.v.shape[1]
    coupling = sum(state.v[j] / state.own[j] for j in x)
    precision = np.zeros((rank + 1, rank + 1))
    precision[0, 0] = 1 / truth_variance(state, x)
    precision[0, 1:] = precision[1:, 0] = coupling
    precision[1:, 1:] = np.linalg.inv(feature_variance(state, x))
    pulled = np.zeros(rank + 1)
    pulled[0] = centre / state.prior + sum(x[j] / state.own[j] for j in x)
    pulled[1:] = sum(x[j] / state.own[j] * state.v[j] for j in x)
    mean = np.linalg.solve(precision, pulled)
    if joint:
        spread = np.linalg.inv(precision)
        return Task(x, centre, mean[0], spread[0, 0], mean[1:], spread[1:, 1:], spread[0, 1:])
    lam, phi = truth_variance(state, x), feature_variance(state, x)
    return Task(x, centre, mean[0], lam, mean[1:], phi, np.zeros(rank))


def infer_tasks(rounds, centres, state, joint):
    """q(y, u) for every coordinate of every round, in order."""
    tasks = []
    for updates, centre in zip(rounds, centres, strict=True):
        for k in range(size_of(updates)):
            x = {state.names.index(party): update[k] for party, update in updates.items()}
            tasks.append(infer_task(state, x, centre[k], joint))
    return tasks


def infer_parties(tasks, state):
    """Eqs. (latent-vb-task-var) and (latent-vb-task-mean), with the covariance of y and u."""
    v, psi = np.zeros_like(state.v), np.zeros_like(state.psi)
    for j in range(len(state.names)):
        precision = np.eye(v.shape[1]) / state.scale_v
        pulled = np.zeros(v.shape[1])
        for task in tasks:
            if j in task.x:
                precision += (task.phi + np.outer(task.u, task.u)) / state.own[j]
                pulled += ((task.x[j] - task.y) * task.u - task.cross) / state.own[j]
        psi[j] = np.linalg.inv(precision)
        v[j] = psi[j] @ pulled
    return replace(state, v=v, psi=psi)


def expected_error(task, state, j):
    """E[(x − y − uᵀv)²]: the square of the mean, plus the variance of y + uᵀv."""
    v, psi = state.v[j], state.psi[j]
    mean = task.x[j] - task.y - task.u @ v
    product = np.trace(task.phi @ psi) + v @ task.phi @ v + task.u @ psi @ task.u
    return mean**2 + task.lam + 2 * task.cross @ v + product


def own_noise(tasks, state, shared):
    """Eq. (latent-vb-error-param2), its covariances in place; per party, or one for all."""
    errors = [
        [expected_error(task, state, j) for task in tasks if j in task.x]
        for j in range(len(state.names))
    ]
    if shared:
        return np.full(len(errors), np.mean(np.concatenate(errors)))
    return np.array([np.mean(mine) for mine in errors])


def truth_scale(tasks):
    """Eq. (latent-vb-gt-param)."""
    return np.mean([task.lam + (task.y - task.centre) ** 2 for task in tasks])


def feature_scale(tasks):
    """Eq. (latent-vb-party-param)."""
    traces = [np.trace(task.phi + np.outer(task.u, task.u)) for task in tasks]
    return np.sum(traces) / (len(tasks) * tasks[0].u.size)


def party_scale(state):
    """Eq. (latent-vb-task-param)."""
    traces = [np.trace(p + np.outer(v, v)) for p, v in zip(state.psi, state.v, strict=True)]
    return np.sum(traces) / state.v.size


def latent_free_energy(tasks, state):
    """F(q) = E[log p(X, y, U, V)] plus the entropy of q, term by term."""
    rank = state.v.shape[1]
    free = 0.0
    for task in tasks:
        free += sum(
            expected_log_normal(expected_error(task, state, j), state.own[j]) for j in task.x
        )
        free += expected_log_normal(task.lam + (task.y - task.centre) ** 2, state.prior)
        for d in range(rank):
            free += expected_log_normal(task.phi[d, d] + task.u[d] ** 2, state.scale_u)
        free += entropy(np.block([[task.lam, task.cross[None]], [task.cross[:, None], task.phi]]))
    for v, psi in zip(state.v, state.psi, strict=True):
        for d in range(rank):
            free += expected_log_normal(psi[d, d] + v[d] ** 2, state.scale_v)
        free += entropy(psi)
    return free


def icov_vb(rounds, centres, state, iterations, *, joint, shared, fixed_prior=None):
    """Eqs. (latent-vb-truth-var) to (latent-vb-error-param2), repeated, and the truth after."""
    free_energies = []
    for _ in range(iterations):
        tasks = infer_tasks(rounds, centres, state, joint)
        state = infer_parties(tasks, state)
        state = replace(
            state,
            own=own_noise(tasks, state, shared),
            prior=fixed_prior or truth_scale(tasks),
            scale_u=feature_scale(tasks),
            scale_v=party_scale(state),
        )
        free_energies.append(latent_free_energy(tasks, state))
    return infer_tasks(rounds, centres, state, joint), state, free_energies


def kernel_matrix(V, kernel):
    k = np.zeros((len(V), len(V)))
    for j, v in enumerate(V):
        for m, w in enumerate(V):
            k[j, m] = v @ w if kernel == "linear" else np.exp(-((v - w) @ (v - w)) / 2)
    return k


def latent_covariance(V, scale_u, own, kernel="linear"):
    return scale_u * kernel_matrix(V, kernel) + np.diag(own)


def log_likelihood(rounds, names, phi):
    """log p(X | ŷ, Φ), where ŷ maximises it: eq. (icov:1)."""
    total = 0.0
    for updates in rounds:
        part = covariance_among(phi, names, updates)
        truth = icov_truth(updates, part)
        for k in range(truth.size):
            delta = [update[k] - truth[k] for update in updates.values()]
            total += multivariate_normal.logpdf(delta, cov=part)
    return total


def sgd_gradients(updates, V, scale_u, own):
    """Eqs. (sgd:feature), (sgd:param2) and (sgd:param1) for one round, the mean over its
    coordinates, with σ_j² of each party's own: Tr(G) is then its diagonal. Linear kernel."""
    phi = latent_covariance(V, scale_u, own)
    truth, inverse = icov_truth(updates, phi), np.linalg.inv(phi)
    to_V, to_scale, to_own = np.zeros_like(V), 0.0, np.zeros_like(own)
    for k in range(truth.size):
        delta = np.array([update[k] - truth[k] for update in updates.values()])
        G = inverse @ np.outer(delta, delta) @ inverse - inverse
        to_V += 2 * scale_u * G @ V / truth.size
        to_scale += np.trace(G @ V @ V.T) / truth.size
        to_own += np.diag(G) / truth.size
    return to_V, to_scale, to_own


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def typical_distances(updates):
    """Each party's median mean-squared distance from the others."""
    return {
        party: lower_median([np.mean((x - z) ** 2) for q, z in updates.items() if q != party])
        for party, x in updates.items()
    }


def central_weights(updates, shares=None):
    """Weights of a point amid most parties: one over the typical distance, times the shares."""
    pulls = {
        party: (1.0 if shares is None else shares[party]) / distance
        for party, distance in typical_distances(updates).items()
    }
    return {party: pull / sum(pulls.values()) for party, pull in pulls.items()}


def weiszfeld(updates, shares, iterations, smoothing):
    """The smoothed Weiszfeld algorithm, in root mean square distances per coordinate, from a point
    amid most parties. Also returns what it descends, before each step: the mean distance, a
    parabola within the smoothing."""

    def length(x):
        return np.sqrt(np.mean((x - truth) ** 2))

    start = central_weights(updates, shares)
    truth = sum(start[party] * x for party, x in updates.items())
    least = smoothing * np.sqrt(lower_median(typical_distances(updates).values()))
    objective = []
    for _ in range(iterations):
        lengths = {party: length(x) for party, x in updates.items()}
        objective.append(
            sum(
                shares[party] * (d if d > least else (d**2 / least + least) / 2)
                for party, d in lengths.items()
            )
        )
        pulls = {party: shares[party] / max(least, length(x)) for party, x in updates.items()}
        truth = sum(pulls[party] * x for party, x in updates.items()) / sum(pulls.values())
    return truth, objective


def krum_scores(updates, adversaries):
    scores = {}
    for party, x in updates.items():
        squares = sorted(np.sum((x - z) ** 2) for other, z in updates.items() if other != party)
        scores[party] = sum(squares[: len(updates) - adversaries - 2])
    return scores


def multi_krum(updates, adversaries, selected):
    scores = krum_scores(updates, adversaries)
    best = sorted(updates, key=lambda party: scores[party])[:selected]
    return np.mean([updates[party] for party in best], axis=0)


def smallest(updates, adversaries):
    """Minimum-diameter averaging; the first of equal choices, by name."""
    square = {(a, b): np.sum((updates[a] - updates[b]) ** 2) for a in updates for b in updates}

    def diameter(chosen):
        return max((square[pair] for pair in combinations(chosen, 2)), default=0)

    chosen = min(combinations(sorted(updates), len(updates) - adversaries), key=diameter)
    return np.mean([updates[party] for party in chosen], axis=0)


def divide_and_conquer(updates, adversaries):
    """DnC, in all coordinates at once."""
    mean = np.mean(list(updates.values()), axis=0)
    centred = np.array([x - mean for x in updates.values()])
    direction = np.linalg.svd(centred)[2][0]
    kept = sorted(updates, key=lambda party: (direction @ (updates[party] - mean)) ** 2)
    return np.mean([updates[party] for party in kept[: len(kept) - adversaries]], axis=0)


def covariance_filter(updates, adversaries):
    """CAF, with the covariance of the coordinates, and the largest square among those heard."""
    left = dict.fromkeys(updates, 1.0)
    found = []
    while sum(left.values()) > len(updates) - 2 * adversaries:
        total = sum(left.values())
        mean = sum(left[party] * x for party, x in updates.items()) / total
        spread = sum(left[p] * np.outer(x - mean, x - mean) for p, x in updates.items()) / total
        variances, directions = np.linalg.eigh(spread)
        found.append((variances[-1], mean))
        along = {p: (directions[:, -1] @ (x - mean)) ** 2 for p, x in updates.items()}
        largest = max(along[party] for party in updates if left[party] > 0)
        if largest < 1e-20:
            break
        for party in updates:
            left[party] *= max(0.0, 1 - along[party] / largest)
            left[party] = left[party] if left[party] > 1e-9 else 0.0
    return min(found, key=lambda one: one[0])[1] if found else np.mean([*updates.values()], axis=0)


def clipped(x, centre, radius):
    length = np.sqrt(np.mean((x - centre) ** 2))
    return centre + (x - centre) * (radius / length if length > radius else 1.0)


def centred_clipping(updates, centre, radius, steps):
    for _ in range(steps):
        lengths = sorted(np.sqrt(np.mean((x - centre) ** 2)) for x in updates.values())
        most = lengths[len(lengths) // 2] if radius is None else radius
        centre = np.mean([clipped(x, centre, most) for x in updates.values()], axis=0)
    return centre


def mixed(updates, adversaries):
    """NNM."""
    found = {}
    for party, x in updates.items():
        near = sorted(updates.values(), key=lambda other: np.linalg.norm(other - x))
        found[party] = np.mean(near[: len(updates) - adversaries], axis=0)
    return found


def robustly_clipped(updates, centre, adversaries):
    """ARC."""
    count = len(updates)
    lengths = sorted(np.sqrt(np.mean((x - centre) ** 2)) for x in updates.values())
    most = lengths[count - int(2 * adversaries / count * (count - adversaries)) - 1]
    return {party: clipped(x, centre, most) for party, x in updates.items()}


def noise_log_variances(blocks, V, own, prior, shared=False):
    """The asymptotic variance of each party's log noise variance log(Σ_d v_jd² + σ_j²), from the
    Fisher information of x ~ N(centre, σ_y² 11ᵀ + VVᵀ + diag(σ²)), slopes by finite differences.

    ``blocks`` lists (positions of the parties, number of coordinates).
    """
    size, rank = V.shape

    def parts(theta):
        tail = theta[size * rank :]
        own = np.exp(np.full(size, tail[0]) if shared else tail[:-1])
        return theta[: size * rank].reshape(size, rank), own, np.exp(tail[-1])

    def sigma(theta):
        V, own, prior = parts(theta)
        return prior + V @ V.T + np.diag(own)

    def log_noise(theta):
        V, own, _ = parts(theta)
        return np.log((V**2).sum(axis=1) + own)

    theta = np.concatenate([V.ravel(), np.log(own[:1] if shared else own), [np.log(prior)]])
    steps = 1e-5 * np.eye(theta.size)
    slopes = [(sigma(theta + h) - sigma(theta - h)) / 2e-5 for h in steps]
    information = np.zeros((theta.size, theta.size))
    for here, count in blocks:
        at = np.ix_(here, here)
        inverse = np.linalg.inv(sigma(theta)[at])
        for a, one in enumerate(slopes):
            for b, other in enumerate(slopes):
                information[a, b] += count / 2 * np.trace(inverse @ one[at] @ inverse @ other[at])
    covariance = np.linalg.pinv(information, rcond=1e-8, hermitian=True)
    jacobian = np.array([(log_noise(theta + h) - log_noise(theta - h)) / 2e-5 for h in steps]).T
    return np.diag(jacobian @ covariance @ jacobian.T)


# The table in docs/pairwise.md, as far as weights depend on it without claims or a long update.
PAIRWISE = {
    "slack": None,
    "most_slack": 3,
    "fitting": 0.75,
    "vote_power": 2,
    "quietest_pair": 1.5,
    "deviations": 2,
    "many": 50,
    "nearest": 0.2,
    "heed": 0.2,
    "most_heed": 4,
    "loudest": 2,
    "starts": ((0.5, 0.01), (0.25, 0.01), (0.5, 1.0)),
    "exact": 0.01,
    "hardening": 0.7,
    "fading": 2 / 3,
    "lasting": 0.25,
    "enough_rounds": 5,
    "outlasting": 1.5,
    "unshared": 0.01,
    "owner": 1 / 3,
    "few": 100,
    "quiet": 0.5,
    "doubt": 1.5,
    "anchored": 0.2,
    "together": 0.5,
    "camp": 0.25,
    "league": 1 / 3,
}


def pairwise(rounds, **choices):
    """Levels, slack and weights of the last round as docs/pairwise.md has them, pair by pair.

    Nothing is forgotten, and trails are of all coordinates. Where one party is alone, there is
    nothing to learn.
    """
    rounds = [updates for updates in rounds if len(updates) > 1]
    how = SimpleNamespace(**PAIRWISE | choices | {"lasted": 0.0})
    for count in range(int(how.enough_rounds), len(rounds)):  # before that nothing is known to last
        how.lasted = max(how.lasted, pairwise_round(rounds[:count], how)[3])
    return pairwise_round(rounds, how)[:3]


def pairwise_round(rounds, how):
    """The last round, and how much of a typical error lasts; before it, ``lasted`` did at most."""
    names = everybody(rounds)
    blocks = {}  # by who was there, the latest last: distances, and coordinates behind them
    for updates in rounds:
        apart, count = blocks.pop(frozenset(updates), ({}, 0))
        for a in updates:
            for b in updates:
                if a != b:
                    apart[a, b] = apart.get((a, b), 0.0) + sum((updates[a] - updates[b]) ** 2)
        blocks[frozenset(updates)] = apart, count + size_of(updates)
    blocks = [({pair: x / n for pair, x in apart.items()}, n) for apart, n in blocks.values()]
    total = {a: sum(size_of(updates) for updates in rounds if a in updates) for a in names}
    now = list(rounds[-1])
    most, past = persistence(rounds, now, how) if len(rounds) > 1 else (how.most_slack, None)
    lasts = how_far_known(past, how) if past is not None else 0.0
    told = {"most_slack": most, "at_most": how.most_slack, "lasts": lasts}
    how = SimpleNamespace(**vars(how) | told)
    first = read_rounds(names, blocks, total, how)
    sources = [(names, lambda camp: read_rounds(names, blocks, total, how, camp), how.league, 2)]
    if past is not None:

        def averages(camp):
            return read_trails(rounds, now, first.slack, how, camp)

        sources.append((now, averages, how.together, 3))
    views = [(0.0, first, ())]
    for camp in {
        tuple(c)
        for there, read, *limits in sources
        for c in camps(there, read(()), how.camp, *limits)
    }:
        each = [how_much_worse(*source, camp, how.camp) for source in sources]
        worse, as_large = min(each), (len(camp) + 1) * len(camp) / (2 * (len(camp) - 1))
        if worse < 1 and not any(as_large < more < np.inf for more in each):
            views.append((worse, read_rounds(names, blocks, total, how, camp), camp))
    views.sort(key=lambda view: view[0])
    heard = [1 - (worse - views[0][0]) for worse, *_ in views]
    heard = [max(share, 0.0) for share in heard]
    told = []  # the share of an explanation, its weights, and whom it trusts
    for share, (_, view, camp) in zip(heard, views, strict=True):
        if share > 0:
            torn = share < sum(heard)
            told.append((share, *weigh_pairs(rounds, view, past, first.slack, how, camp, torn)))
    shares = []  # of all that trust the same, the largest
    for share, _, trusts in told:
        same = [other for other, _, theirs in told if theirs == trusts]
        shares.append(share * max(same) / sum(same))
    weights = dict.fromkeys(now, 0.0)
    for share, (_, mine, _) in zip(shares, told, strict=True):
        for a in now:
            weights[a] += share / sum(shares) * mine[a]
    for a in now:  # nobody alone
        weights[a] = min(weights[a], sum(w for b, w in weights.items() if b != a))
    best, whole = views[0][1], sum(weights.values())
    lasts = typical_share(rounds, past, weights) if past is not None else 0.0
    return best.s, best.slack, {a: w / whole for a, w in weights.items()}, lasts


def pooled(blocks):
    """Mean distances over the rounds in which two met, and the coordinates behind them."""
    seen = {}
    for apart, count in blocks:
        for pair in apart:
            seen[pair] = seen.get(pair, 0) + count
    D = {pair: sum(n * apart.get(pair, 0.0) for apart, n in blocks) / seen[pair] for pair in seen}
    return D, seen


def read_rounds(names, blocks, total, how, camp=()):
    """What pairs tell; once more with no round louder than the last, if one is twice as loud, by
    what levels explain."""

    def read(these):
        D, seen = pooled(these)
        return read_pairs(names, D, seen, total, how.slack, how, camp, these)

    view = read(blocks)
    loud = []
    for apart, _ in blocks:
        there = {a for a, _ in apart}
        each = []
        for a in there:
            ratios = [apart[a, b] / (view.s[a] + view.s[b]) for b in there if b != a]
            each.append(sorted([0.0, *ratios])[len(there) // 2])
        loud.append(sorted(each)[(len(there) - 1) // 2])
    if max(loud) <= 2 * loud[-1]:
        return view
    return read(
        [
            ({pair: x * min(1, loud[-1] / mine) for pair, x in apart.items()}, count)
            for (apart, count), mine in zip(blocks, loud, strict=True)
        ]
    )


def expected_apart(a, b, s, blocks):
    """The sum of two levels, or less where they were much less noisy when they met."""
    total, count = 0.0, 0
    for apart, n in blocks:
        if (a, b) in apart:
            there = sorted({x for x, _ in apart})
            half = len(there) // 2
            typical = {
                x: sorted([0.0, *(apart[x, y] for y in there if y != x)])[half] for x in there
            }
            middle = sorted(typical.values())[(len(there) - 1) // 2]
            then = sum(max(typical[x] - middle / 2, 0.0) for x in (a, b))
            total += n * (then if len(there) >= 5 else s[a] + s[b])
            count += n
    much_less = len(blocks) > 1 and 0 < 2 * total / count < s[a] + s[b]
    return total / count if much_less else s[a] + s[b]


def how_much_worse(there, read, league, fewest, camp, size):
    """How many more pairs are in league if the camp is right, in pairs of one party of the camp."""
    camp = [a for a in camp if a in there]
    first, other = read(()), read(camp)
    if len(camp) < 2 or not any(
        not set(c) & set(camp) for c in camps(there, other, size, league, fewest)
    ):
        return np.inf

    def in_league(view):
        apart = {(a, b): d / (view.s[a] + view.s[b]) - 1 for (a, b), d in view.D.items()}
        return sum(
            often * min(1, max(view.shared[pair], apart[pair]) / league)
            for pair, often in view.met.items()
        )

    one = 2 * sum(other.met[a, b] for a in camp for b in camp if a != b) / len(camp)
    return (in_league(other) - in_league(first)) / one


def camps(names, view, size, league, fewest):
    """Groups of at least a quarter of the parties, linked by a third of a voice, if everybody
    shares that much with the others on average."""
    found, left = [], set(names)
    while left:
        group = {left.pop()}
        while new := {b for a in group for b in left if view.shared.get((a, b), 0) >= league}:
            group |= new
            left -= new
        shared = [
            np.mean([view.shared.get((a, b), 0) for b in group if b != a])
            for a in group
            if len(group) > 1
        ]
        if len(group) >= max(fewest, size * len(names)) and min(shared) >= league:
            found.append([a for a in names if a in group])
    return found


def weigh_pairs(rounds, view, past, slack_of_best, how, camp, torn):
    """Weights of the last round that follow from levels and shared voices, and who is trusted."""
    now, s, slack, t, shared = list(rounds[-1]), view.s, view.slack, view.t, dict(view.shared)
    ordered, half = sorted(np.log(list(s.values()))), len(s) // 2
    width = min(high - low for low, high in zip(ordered, ordered[half:], strict=False))
    more = np.exp(how.quiet * width / slack**2)
    slack_then = min((slack**2 + how.doubt**2 * (1 - view.own) ** 2) ** 0.5, how.at_most)
    full = min(how.loudest, slack_then)

    def vote(a, others):
        return (1 + sum(shared.get((a, b), 0) for b in others)) ** -how.vote_power

    def trusted(a):
        length = (s[a] / t) ** 0.5
        heard = min(1, full / length, full * slack_then / length**2) if length > 1 else 1
        return min(more, length**-2) if length < 1 else heard

    believed, kept = {a: vote(a, s) * trusted(a) for a in s}, {}
    if past is not None:
        if torn and not camp:
            camp = [a for a in now if believed[a] >= max(believed.values()) / 2]
        camp = [a for a in camp if a in now]
        camp = () if len(camp) == len(now) else camp
        again = read_trails(rounds, now, slack_of_best, how, camp).shared
        for pair, voice in again.items():
            shared[pair] = max(shared[pair], voice)
        votes = [vote(a, now) for a in now]
        lasts = max(
            between([past[a].share for a in now], votes), typical_pair(rounds, past, now, votes)
        )
        fresh = max(1 - lasts, 0.25)
        K, J = size_of(rounds[-1]), len(now)
        chance = f.ppf(1 - 0.01 / J, K, K * (J - 1))
        bar = max(how.outlasting / fresh, chance) * between([past[a].left for a in now], votes)
        kept = {a: min(1, bar / past[a].lasts) ** 2 if past[a].lasts else 1 for a in now}
        most = min(max(how.lasted, lasts), 0.99)
        if how.unshared:
            bar, heard = how.unshared / (1 - most) ** 4, dict(zip(now, votes, strict=True))
            for a, share in unshared(rounds, past, heard, bar).items():
                kept[a] *= share
        kept = {a: max(share, how.owner * most**2) for a, share in kept.items()}
    weights = {a: vote(a, now) * trusted(a) * kept.get(a, 1) for a in now}
    whole = sum(weights.values())
    of_all = {a: vote(a, s) * trusted(a) * kept.get(a, 1) for a in now}
    trusts = {a for a in now if of_all[a] >= max(of_all.values()) / 2}
    return {a: w / whole for a, w in weights.items()}, trusts


def unshared(rounds, past, votes, bar):
    """The share of trust that is kept by parties whose lasting errors others may explain."""
    most = 100 * between([past[a].left for a in votes], list(votes.values()))
    known = {a: vote for a, vote in votes.items() if past[a].long and past[a].left <= most}
    if len(known) < 5:
        return {}
    own = {a: past[a].own for a in known}

    def typical(values):
        return between([values[a] for a in known], list(known.values()))

    if typical({a: own[a] / past[a].left for a in known}) < 0.5:
        return {}
    trails = trails_of(rounds, known)
    chance = 1 - (len(known) - 2) / size_of(rounds[-1])
    far = [u / chance for u in unexplained(np.array([trails[a] for a in known]))]
    alone = {a: u - past[a].left + own[a] for a, u in zip(known, far, strict=True)}
    alone = {a: min(max(u, 0), own[a]) for a, u in alone.items()}
    if typical({a: alone[a] / own[a] if own[a] else 0 for a in known}) > 0.5:
        return {}
    K, J = max(size_of(rounds[-1]) - len(known) + 2, 1), len(known)
    bar = max(1, bar, f.ppf(1 - 0.01 / J, K, K * (J - 1))) * typical(own)
    return {a: min(1, bar / alone[a]) ** 4 if alone[a] else 1.0 for a in known}


def typical_share(rounds, past, weights):
    """The typical share of an error that lasts, by weight; zero where most are newcomers."""
    known = [a for a in weights if past[a].known]
    if 2 * sum(weights[a] for a in known) <= sum(weights.values()):
        return 0.0
    about_median = between([past[a].share for a in known], [weights[a] for a in known])
    return max(about_median, typical_pair(rounds, past, [*weights], [*weights.values()]))


def typical_pair(rounds, past, now, weights):
    """The same from distances between averages, beside those in single rounds."""
    known = {a: w for a, w in zip(now, weights, strict=True) if past[a].known and w > 0}
    if 2 * sum(known.values()) <= sum(weights):
        return 0.0
    trails, errors, shares, heard = trails_of(rounds, now), [*map(errors_of, rounds)], {}, {}
    for a in known:
        for b in known:
            met = [np.mean((each[a] - each[b]) ** 2) for each in errors if a in each and b in each]
            apart = np.mean(met)
            if apart > 0 and a != b:
                fresh = min(0.5 / past[a].rounds + 0.5 / past[b].rounds, 0.99)
                ratio = np.mean((trails[a] - trails[b]) ** 2) / apart
                shares[a, b] = min(max((ratio - fresh) / (1 - fresh), 0), 1)
                heard[a, b] = known[b]
    met = [a for a in known if any((a, b) in shares for b in known)]
    each = [of_peers(a, met, shares, heard, 0.5) for a in met]
    return between(each, [known[a] for a in met]) if met else 0.0


def how_far_known(past, how):
    """How far the errors of most parties are known to last, from 0 to 1."""
    known = [one.share for one in past.values() if one.known]
    if 2 * len(known) <= len(past):
        return 0.0
    return min(1, np.quantile(known, how.fading) / how.lasting)


def unexplained(points):
    """For each point, the squared distance per coordinate from the flat through all the others."""
    found = []
    for j, point in enumerate(points):
        others = np.delete(points, j, axis=0)
        directions = (others[1:] - others[0]).T
        away = point - others[0]
        along = np.linalg.lstsq(directions, away, rcond=None)[0]
        found.append(np.mean((away - directions @ along) ** 2))
    return found


def trails_of(rounds, now):
    """Average errors, in units of each round's typical one."""
    errors = [errors_of(updates) for updates in rounds]
    return {a: np.mean([each[a] for each in errors if a in each], axis=0) for a in now}


def errors_of(updates):
    """Errors about the median, with no coordinate too heavy, in units of the typical one."""
    middle = median_of(updates)
    errors = {a: x - middle for a, x in updates.items()}
    typical = [np.median([abs(e[k]) for e in errors.values()]) ** 2 for k in range(len(middle))]
    if sum(square > 0 for square in typical) > 50:
        before, most = np.inf, sum(typical) / 50
        while most < before * (1 - 1e-12):  # what is cut off changes the sum
            before, most = most, np.minimum(typical, most).sum() / 50
        cut = [(most / square) ** 0.5 if square > most else 1.0 for square in typical]
        errors = {a: e * cut for a, e in errors.items()}
    lengths = {a: np.mean(e**2) ** 0.5 for a, e in errors.items()}
    unit = np.median([*lengths.values()])
    return {a: e / max(unit, lengths[a] / 10) for a, e in errors.items()}


def read_trails(rounds, now, slack, how, camp):
    """What the distances between the parties' average errors tell."""
    trails, K = trails_of(rounds, now), size_of(rounds[-1])
    D = {(a, b): sum((trails[a] - trails[b]) ** 2) / K for a in now for b in now if a != b}
    count = {a: sum(a in updates for updates in rounds) for a in now}
    stay = {a: count[a] / np.median(list(count.values())) for a in now}
    live = np.median([np.count_nonzero(trails[a]) for a in now])
    total = dict.fromkeys(now, live)
    return read_pairs(now, D, dict.fromkeys(D, live), total, slack, how, camp, stay=stay)


def persistence(rounds, now, how):
    """The most slack, and for each party what is left of its errors in their average, and how much
    of that lasts. Nothing is forgotten."""
    found, all_errors = {}, [errors_of(updates) for updates in rounds]
    for a in now:
        errors = [each[a] for each in all_errors if a in each]
        N, q = len(errors), np.mean([np.mean(e**2) for e in errors])
        left, known = np.mean(np.mean(errors, axis=0) ** 2), how.enough_rounds <= N
        own = min(max((left - q / N) / (1 - 1 / N), 0), q) if N > 1 else 0
        found[a] = SimpleNamespace(
            left=left,
            own=own,
            rounds=N,
            known=known,
            long=2 * how.enough_rounds <= N,
            lasts=known * own,
            share=own / q if known else 1,
        )
    shares = [one.share for one in found.values()]
    more = min(1, np.quantile(shares, how.fading) / how.lasting)
    return 1 + (how.most_slack - 1) * more, found


def median_of(updates):
    return np.array([np.median([x[k] for x in updates.values()]) for k in range(size_of(updates))])


def read_pairs(names, D, seen, total, slack, how, camp=(), blocks=(), stay=None):
    """Levels, slack, the typical level, and how much of a voice each pair shares. A pair, and a
    party, counts as much as was seen of it. With a camp, the fit starts from it alone. Averages of
    parties who ``stay`` longer are quieter."""
    smallest = min(value for value in D.values() if value > 0)
    n = np.median([seen[pair] for pair in D])
    D, own = drawn_together(names, D, seen, n)
    how = SimpleNamespace(**vars(how))
    how.exact = max(how.exact, min(1, 0.67 * (2 / n) ** 0.5))
    how.pull = max(how.anchored / n, 1e-6)
    medians = [of_peers(a, names, D, seen, 0.5) for a in names]
    least = max(0.005 * smallest, 1e-8 * np.median(medians))
    starts = []
    for share, bar in how.starts:
        starts.append(({a: of_peers(a, names, D, seen, share) / 2 for a in names}, bar))
    if camp:
        far = {
            a: of_peers(a, camp if any((a, b) in D for b in camp) else names, D, seen, 0.5)
            for a in names
        }
        quiet = np.median([far[a] for a in camp]) / 2
        starts = [({a: far[a] / 2 if a in camp else far[a] - quiet for a in names}, how.exact)]
    ends = [fit_pairs(names, D, seen, *start, least, how) for start in starts]
    s = min(ends, key=lambda s: cost(D, seen, s, how.exact))
    pairs = [(a, b) for a, b in D if a < b]
    misfits = [abs(1 - D[a, b] / (s[a] + s[b])) * (seen[a, b] / 2) ** 0.5 for a, b in pairs]
    chance = halfnorm.ppf(how.fitting)
    worse = quantile(misfits, [seen[pair] for pair in pairs], how.fitting) / chance
    slack = slack or min(max(worse**0.5, 1), how.most_slack)
    known = min(1, max((slack / max(worse**0.5, 1)) ** 4, 50 / n))
    middling = between([s[a] for a in names], [total[a] for a in names])

    def heed(merit):
        return {a: min((s[a] / middling) ** -merit, how.most_heed) * total[a] for a in names}

    def typical(vote):
        """Quiet parties count more; where errors last, a minority moves it to half the median."""

        def median(merit):
            weights = [vote[a] * weight for a, weight in heed(merit).items()]
            return middle([s[a] for a in names], third(weights))

        if how.lasts == 0:
            return median(how.heed)
        less = how.heed / (1 + (how.at_most - 1) * how.lasts)
        return max(median(how.heed), min(median(0) / 2, median(less)))

    often = {(a, b): seen[a, b] / total[a] for a, b in D}
    present = 1 + max(sum(often.get((a, b), 0) for b in names) for a in names)
    t = typical(dict.fromkeys(names, 1))
    for _ in range(3):
        shared = {}
        for a, b in D:
            expected = expected_apart(a, b, s, blocks)
            quiet = sum(0.5 / max(stay[x] if stay else 1, 1) for x in (a, b))
            expected = max(expected, quiet * how.quietest_pair * (1 - slack**-2) * t)
            spread = 2 / 9 / (known * seen[a, b])
            rarely = max(how.few / (how.few + known * n), min(1, present / how.many) ** 3)
            rarely *= how.deviations
            nearest = max(1 - spread - rarely * spread**0.5, how.nearest) ** 3
            kappa = min(max(1 - D[a, b] / expected / nearest, 0), 1)
            shared[a, b] = kappa ** (slack * (slack + 1) / 2)
        peers = {a: [pair for pair in D if pair[0] == a] for a in names}
        vote = {
            a: (1 + sum(often[pair] * shared[pair] for pair in peers[a])) ** -how.vote_power
            for a in names
        }
        t = typical(vote)
    told = max(0, 1 - len(names) ** 2 / 2 ** min(n, 1000))
    shared = {pair: told * voice for pair, voice in shared.items()}
    met = {pair: seen[pair] / max(seen.values()) for pair in D}
    return SimpleNamespace(s=s, slack=slack, t=t, shared=shared, own=own, D=D, met=met)


def third(weights):
    """Nobody has more than a third of the say."""
    return at_most_a_third(np.array(weights))


def drawn_together(names, D, seen, n):
    """Distances of few coordinates, drawn towards the typical one; and how much is their own."""
    if n >= 4096:
        return D, 1.0
    medians = [np.median([np.log(D[a, b]) for b in names if (a, b) in D]) for a in names]
    typical = np.exp(np.median(medians)) / (1 - 0.29 / n) ** 3
    likely = {}
    for nu in 2.0 ** np.arange(-2, 7):
        for scale in typical * 2.0 ** np.arange(-4, 0.1, 0.5):
            ratios = np.array([D[a, b] / scale for a, b in D if a < b])
            densities = f.logpdf(ratios, n, nu) + np.log(ratios)  # of the logarithm
            likely[nu, scale] = 2 / len(names) * sum(densities)
    most = max(likely.values())
    likely = {key: np.exp(value - most) for key, value in likely.items()}
    own = sum(p * n / (n + nu) for (nu, _), p in likely.items()) / sum(likely.values())
    nu = n * (1 - own) / own
    D = {pair: (seen[pair] * D[pair] + nu * typical) / (seen[pair] + nu) for pair in D}
    return D, own


def fit_pairs(names, D, seen, start, bar, least, how):
    start = {a: max(level, least) for a, level in start.items()}
    s = dict(start)
    for _ in range(300):
        A, right = np.zeros((len(names), len(names))), np.zeros(len(names))
        for i, a in enumerate(names):
            for j, b in enumerate(names):
                if (a, b) in D:
                    expected = s[a] + s[b]
                    w = max(abs(1 - D[a, b] / expected), bar, how.exact) ** -1.5 / expected**2
                    w *= seen[a, b]
                    A[i, i] += w * (1 + how.pull)
                    A[i, j] += w
                    right[i] += w * (D[a, b] + how.pull * start[a])
        bar *= how.hardening
        solved = np.linalg.solve(A, right)
        before, s = s, {a: max(value, least) for a, value in zip(names, solved, strict=True)}
        if bar < how.exact and all(abs(s[a] - before[a]) <= 1e-14 * s[a] for a in names):
            break
    return s


def cost(D, seen, s, exact):
    return sum(seen[a, b] * max(abs(1 - D[a, b] / (s[a] + s[b])), exact) ** 0.5 for a, b in D)


def of_peers(a, names, D, seen, share):
    """The distance at which more than this share of the peers, less one, has passed; each as often
    as it was met."""
    peers = sorted((D[a, b], seen[a, b]) for b in names if (a, b) in D)
    passed = np.cumsum([n for _, n in peers])
    enough = share * passed[-1] * (1 - 1 / len(peers)) + 1e-6
    return next(distance for (distance, _), n in zip(peers, passed, strict=True) if n > enough)


def quantile(values, counts, share):
    """From the middle of the first to the middle of the last, each as long as its count."""
    pairs = sorted(zip(values, counts, strict=True))
    places, passed = [], 0.0
    for _, n in pairs:
        places.append(passed + n / 2)
        passed += n
    return np.interp(places[0] + share * (places[-1] - places[0]), places, [v for v, _ in pairs])


def between(values, weights):
    """The weighted median, interpolated. Equal numbers are a plateau."""
    places, numbers, passed = [], [], 0.0
    for value in sorted(set(values)):
        mine = [w for v, w in zip(values, weights, strict=True) if v == value]
        half = sum(w * w for w in mine) / sum(mine) / 2 if sum(mine) else 0.0
        places += [passed + half, passed + sum(mine) - half]
        numbers += [value, value]
        passed += sum(mine)
    return np.interp(passed / 2, places, numbers)


def middle(values, weights):
    """The weighted median of positive values, interpolated in their logarithms."""
    return np.exp(between(np.log(values), weights))
