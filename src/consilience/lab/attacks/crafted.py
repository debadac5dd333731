"""Adversaries who know every honest update, and make theirs from the mean μ and spread sd.

μ and sd are taken over the H honest parties, coordinate by coordinate; sd is the root mean square
deviation, divided by H and not H − 1, so that a single honest party has a spread of zero.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import ndtri

from consilience.arrays import Array
from consilience.lab.attacks.registry import Attack, Knowledge, register, send

Direction = Literal["sd", "unit", "sign"]

_CACHED = 2048  # coordinates at once: in float64 all of them do not fit the cache


def moments(honest: Array) -> tuple[Array, Array]:
    """μ and sd of the honest updates, (K,) each, in float64."""
    mu, sd = np.empty((2, honest.shape[1]))
    for start in range(0, len(mu), _CACHED):
        here = slice(start, start + _CACHED)
        rows = honest[:, here].astype(np.float64)
        rows -= rows.mean(0, out=mu[here])
        np.einsum("jk,jk->k", rows, rows, out=sd[here])
    return mu, np.sqrt(sd / len(honest), out=sd)


@register
def sign_flip(knowledge: Knowledge) -> Attack:
    """−μ."""
    return ipm(knowledge, tau=1.0)


@register
def ipm(knowledge: Knowledge, tau: float = 0.5) -> Attack:
    """Inner product manipulation, −τμ (Xie, Koyejo and Gupta 2019)."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return send(-tau * honest.mean(0, dtype=np.float64), honest, count)

    return attack


@register
def alie(
    knowledge: Knowledge,
    z: float | None = None,
    sign: Literal[1, -1] = 1,
    noise: float = 0.0,
    steady: bool = False,
) -> Attack:
    """A little is enough, μ − sign·z·sd (Baruch, Baruch and Goldberg 2019).

    z       None: the largest for which enough honest parties still look worse, see `supported_z`
    noise   each adversary adds noise of its own, of this many sd
    steady  the noise is drawn once, so that averaging over rounds does not remove it
    """
    if sign not in (1, -1):
        raise ValueError(f"sign is 1 or -1, not {sign!r}")

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        mu, sd = moments(honest)
        by = supported_z(len(honest), count) if z is None else z
        rng = np.random.default_rng(0) if steady else rng
        return send(_with_noise(mu - sign * by * sd, noise * sd, count, rng), honest, count)

    return attack


def supported_z(honest: int, count: int) -> float:
    """Φ⁻¹((n − s)/n): with s honest supporters the adversaries are a majority of the n parties.

    s = ⌊n/2⌋ + 1 − f. Adversaries who are a majority alone would need no supporter, and z would be
    infinite: they act as if they needed one. z is never negative, as s ≤ n/2.
    """
    n = honest + count
    needed = max(n // 2 + 1 - count, 1)
    return float(ndtri((n - needed) / n))


@register
def mimic(knowledge: Knowledge, target: int = 0) -> Attack:
    """Copies of one honest party's update (Karimireddy, He and Jaggi 2022)."""

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        return send(honest[target], honest, count)

    return attack


@register
def sybil(knowledge: Knowledge, noise: float = 0.0, length: float = 1.0) -> Attack:
    """One bad vector, f times: μ plus a step in a random direction, drawn anew at each call.

    length  of the step, in root mean square distances of an honest party from μ
    noise   each adversary adds noise of its own, of this many sd
    """

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        mu, sd = moments(honest)
        step = rng.standard_normal(mu.size)
        # If honest parties do not differ (there may be one only), the step is as long as μ.
        distance = np.linalg.norm(sd) or np.linalg.norm(mu)
        bad = mu + length * distance * step / np.linalg.norm(step)
        return send(_with_noise(bad, noise * sd, count, rng), honest, count)

    return attack


@register
def min_max(knowledge: Knowledge, direction: Direction = "sd") -> Attack:
    """μ − γ·direction, no further from any honest party than the largest distance between two.

    γ is the largest possible (Shejwalkar and Houmansadr 2021).
    """
    _check(direction)

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        mu, sd = moments(honest)
        d = _direction(mu, sd, direction)
        deviations = honest - mu  # (H, K)
        G = deviations @ deviations.T  # (H, H)
        a, b, c = G.diagonal(), deviations @ d, d @ d
        widest = (a[:, None] + a - 2 * G).max()
        # ‖μ − γd − x_j‖² = a_j + 2γb_j + γ²c ≤ widest. It holds for γ = 0 (μ is the mean of the
        # x_j), and so up to the larger root, for each j.
        roots = np.sqrt(b**2 + c * np.maximum(widest - a, 0)) - b  # times c
        return send(mu - (roots.min() / c if c else 0.0) * d, honest, count)

    return attack


@register
def min_sum(knowledge: Knowledge, direction: Direction = "sd") -> Attack:
    """μ − γ·direction; its sum of squared distances to the honest is at most their largest.

    γ is the largest possible (Shejwalkar and Houmansadr 2021).
    """
    _check(direction)

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        mu, sd = moments(honest)
        d = _direction(mu, sd, direction)
        # From a point y the sum is Σ‖x_j − μ‖² + H‖y − μ‖²: so be as far from μ as the furthest.
        furthest = max(np.linalg.norm(update - mu) for update in honest)
        size = np.linalg.norm(d)
        return send(mu - (furthest / size if size else 0.0) * d, honest, count)

    return attack


def _check(direction: str) -> None:
    if direction not in ("sd", "unit", "sign"):
        raise ValueError(f"direction is 'sd', 'unit' or 'sign', not {direction!r}")


def _direction(mu: Array, sd: Array, direction: Direction) -> Array:
    if direction == "sd":
        return sd
    if direction == "sign":
        return np.sign(mu)
    return mu / (np.linalg.norm(mu) or 1.0)


def _with_noise(row: Array, sd: Array, count: int, rng: np.random.Generator) -> Array:
    if not sd.any():
        return row
    return row + sd * rng.standard_normal((count, row.size))
