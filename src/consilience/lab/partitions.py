"""Who holds which samples: one array of indices per party.

All but `overlapping` are partitions: every sample belongs to exactly one party. Randomness comes
from the generator alone, so a seed repeats a partition.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Labels = NDArray[np.integer[Any]]


def iid(samples: int, parties: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffled and dealt out: sizes differ by one at most."""
    _at_least_one(parties)
    return np.array_split(rng.permutation(samples), parties)


def dirichlet(
    labels: Labels, parties: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Every class is divided in proportions from a symmetric Dirichlet(alpha) distribution.

    A large alpha is close to IID; with a small one each class goes to few parties, and some parties
    may get nothing.
    """
    _at_least_one(parties)
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha is {alpha}, expected a positive number")
    shares: list[list[Indices]] = [[] for _ in range(parties)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.full(parties, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.intp)
        for share, piece in zip(shares, np.split(members, cuts), strict=True):
            share.append(piece)
    return [_joined(share) for share in shares]


def one_class_per_party(labels: Labels, parties: int) -> list[Indices]:
    """Class c goes to party c mod `parties`: one class each if there are as many of both."""
    _at_least_one(parties)
    classes = len(np.unique(labels))
    if parties > classes:
        raise ValueError(f"{parties} parties but {classes} classes: some would hold nothing")
    return [np.flatnonzero(labels % parties == party) for party in range(parties)]


def gamma_similarity(
    labels: Labels, parties: int, gamma: float, rng: np.random.Generator
) -> list[Indices]:
    """ByzFL's heterogeneity: a share gamma is dealt out as in `iid`, the rest sorted by label.

    gamma = 1 is IID; gamma = 0 gives every party one or two classes.
    """
    _at_least_one(parties)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}, expected a share between 0 and 1")
    shuffled = rng.permutation(len(labels))
    alike, rest = np.split(shuffled, [int(gamma * len(labels))])
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    dealt = zip(np.array_split(alike, parties), np.array_split(by_label, parties), strict=True)
    return [np.concatenate(pair) for pair in dealt]


class Overlapping(NamedTuple):
    """Samples shared by parties: D_j as indices, and |D_j ∩ D_l| as a (J, J) matrix."""

    indices: list[Indices]
    counts: NDArray[np.intp]


def overlapping(
    samples: int, blocks: Mapping[Sequence[int], int], rng: np.random.Generator
) -> Overlapping:
    """Samples each of which is held by a known set of parties.

    `blocks` says how many samples a set of parties shares: {(0, 1): 200, (0,): 100, (1,): 100,
    (2,): 300} gives three parties 300 samples each, of which 0 and 1 have 200 in common. With the
    counts c, the noise covariance of the parties' means is c_jl / (c_jj c_ll), up to σ².
    """
    if not blocks or not all(group and min(group) >= 0 for group in blocks):
        raise ValueError(f"blocks are {dict(blocks)}, expected party numbers from 0 in every set")
    if min(blocks.values()) < 0:
        raise ValueError(f"blocks are {dict(blocks)}, expected counts of at least 0")
    wanted = sum(blocks.values())
    if wanted > samples:
        raise ValueError(f"the blocks ask for {wanted} samples, but there are {samples}")
    parties = 1 + max(party for group in blocks for party in group)
    shares: list[list[Indices]] = [[] for _ in range(parties)]
    counts = np.zeros((parties, parties), np.intp)
    ends = np.cumsum(list(blocks.values()))
    for group, block in zip(
        blocks, np.split(rng.permutation(samples)[:wanted], ends), strict=False
    ):
        members = sorted(set(group))
        counts[np.ix_(members, members)] += len(block)
        for party in members:
            shares[party].append(block)
    return Overlapping([_joined(share) for share in shares], counts)


def _joined(pieces: Sequence[Indices]) -> Indices:
    return np.concatenate([np.empty(0, np.intp), *pieces])


def _at_least_one(parties: int) -> None:
    if parties < 1:
        raise ValueError(f"{parties} parties, expected at least one")
