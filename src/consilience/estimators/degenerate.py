"""The cases in which evidence says nothing about noise, alike for all estimators.

A party alone in its round cannot be compared: its update is the consensus, and its noise, if it
never met anybody, is unknown (NaN). If all parties were equal whenever they met: equal weights, no
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from consilience.arrays import Vector
from consilience.beliefs import Beliefs, uniform
from consilience.evidence import Evidence


def infer_from_meetings(evidence: Evidence, infer: Callable[[Evidence], Beliefs]) -> Beliefs:
    """Infer from the rounds in which parties met, and extend the beliefs to all rounds."""
    meetings = Evidence(tuple(block for block in evidence.blocks if len(block.parties) > 1))
    if meetings.least_noise > 0:
        beliefs = infer(meetings)
    else:
        size = len(meetings.parties)
        weights = tuple(uniform(len(block.parties)) for block in meetings.blocks)
        beliefs = Beliefs(meetings, weights, np.zeros(size), np.zeros((size, size)))
    return beliefs if len(meetings.blocks) == len(evidence.blocks) else _extend(beliefs, evidence)


def _extend(beliefs: Beliefs, evidence: Evidence) -> Beliefs:
    met = [evidence.parties.index(party) for party in beliefs.parties]
    inferred = iter(zip(beliefs.weights, _variances(beliefs), strict=True))
    alone = (np.ones(1), np.nan)
    found = [next(inferred) if len(block.parties) > 1 else alone for block in evidence.blocks]
    noise = np.full(len(evidence.parties), np.nan)
    noise[met] = beliefs.noise
    covariance = None
    if beliefs.covariance is not None:
        covariance = np.full((noise.size, noise.size), np.nan)
        covariance[np.ix_(met, met)] = beliefs.covariance
    return replace(
        beliefs,
        evidence=evidence,
        weights=tuple(weights for weights, _ in found),
        variance=None if beliefs.variance is None else np.array([v for _, v in found]),
        noise=noise,
        covariance=covariance,
        latent=None if beliefs.latent is None else beliefs.latent.extended(met, noise.size),
    )


def _variances(beliefs: Beliefs) -> Vector:
    return np.zeros(len(beliefs.weights)) if beliefs.variance is None else beliefs.variance
