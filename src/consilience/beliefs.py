"""Beliefs: what was inferred from the evidence, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from consilience.arrays import Matrix, Vector
from consilience.evidence import Block, Evidence
from consilience.passes.corroborate import Corroboration


@dataclass(frozen=True, eq=False)
class Latent:
    """The noise model Φ = VVᵀ + diag(σ²) of ICOV; with no column in V, that of IVAR.

    V includes the paper's σ_u, as only the product is identified.
    """

    factors: Matrix  # V, (J, D)
    own: Vector  # σ_j², (J,)
    shared: bool = False  # one σ² for all parties
    prior_variance: float = np.inf  # τ² or σ_y²: of the truth about the centre

    @property
    def covariance(self) -> Matrix:
        """Return Φ."""
        product: Matrix = self.factors @ self.factors.T
        product[np.diag_indices_from(product)] += self.own
        return product

    def extended(self, positions: list[int], size: int) -> Latent:
        """Return the model for more parties; only those at the positions are known."""
        factors, own = np.full((size, self.factors.shape[1]), np.nan), np.full(size, np.nan)
        factors[positions], own[positions] = self.factors, self.own
        return replace(self, factors=factors, own=own)


@dataclass(frozen=True, eq=False)
class Known:
    """What one round's inference passes to the next: the paper's ⟨v_j, σ_j⟩, by party."""

    parties: tuple[str, ...]
    noise: Vector  # (J,)
    latent: Latent | None = None  # rows of NaN for parties it does not cover


@dataclass(frozen=True, eq=False)
class Past:
    """What earlier rounds told about the parties' noise levels; those first that were compared with
    others most recently."""

    parties: tuple[str, ...]
    levels: Vector  # (J,): relative to the typical level of their rounds
    worth: Vector  # (J,): effective coordinates behind them, see `Evidence.worth`

    def of(self, parties: tuple[str, ...]) -> tuple[Vector, Vector]:
        """Return the levels of these parties and what they are worth; 1 and 0 for strangers."""
        at = np.array([self._position.get(party, -1) for party in parties], np.intp)
        levels, worth = np.append(self.levels, 1.0), np.append(self.worth, 0.0)
        return levels[at], worth[at]  # the last entry is for strangers

    @cached_property
    def _position(self) -> dict[str, int]:
        return {party: j for j, party in enumerate(self.parties)}


@dataclass(frozen=True, eq=False)
class Beliefs:
    """How far each party can be trusted, in the order of ``evidence.parties``.

    ``weights`` has one vector for each block of the evidence, over the block's parties. What it
    lacks to one is the weight of the centre, which is zero but for posterior means and clipping.
    The noise of a party is the standard deviation, per coordinate, of its update about the truth
    (for methods without a model: about the consensus).

    >>> import consilience as cs
    >>> beliefs = cs.Mean().infer(cs.Evidence.of({"ann": [1.0, 2], "bob": [1.0, 4]}))
    >>> beliefs.parties, beliefs.weights[0].tolist()
    (('ann', 'bob'), [0.5, 0.5])
    """

    evidence: Evidence
    weights: tuple[Vector, ...]
    noise: Vector  #: (J,)
    covariance: Matrix | None = None  #: Φ, (J, J), where the method has one
    latent: Latent | None = None  #: the parameters behind Φ
    variance: Vector | None = None  #: of each block's consensus about the truth, VB only
    typical: float | None = None  #: the level (a variance) of a typical party, where it is compared
    iterations: int = 0
    converged: bool = True
    objective: tuple[float, ...] = field(default=(), repr=False)
    groups: tuple[tuple[str, ...], ...] = ()  #: parties that move together, where the method tells
    reasons: Mapping[str, str] | None = None  #: of parties that stand out, where the method tells
    slack: float | None = None  #: how far levels were believed, `pairwise` only
    corroboration: Corroboration | None = None  #: what others must stand beside, if anything
    camps: tuple[tuple[str, ...], ...] = ()  #: either may be right, where the method is torn
    lasts: float = 0.0  #: the share of a typical error that lasts over rounds, as far as known

    @property
    def parties(self) -> tuple[str, ...]:
        """Everybody the beliefs are about."""
        return self.evidence.parties

    def weights_of(self, parties: tuple[str, ...]) -> Vector:
        """Return the weights of a round's parties, in their order there."""
        block = self.evidence.find(parties)
        found = dict(zip(self.evidence.blocks[block].parties, self.weights[block], strict=True))
        return np.array([found[party] for party in parties])

    @property
    def known(self) -> Known:
        """What the next round may start from."""
        return Known(self.parties, self.noise, self.latent)


@dataclass(frozen=True, eq=False)
class Lasting:
    """What remains of the parties' errors in their averages over rounds, in units of a round's
    typical error: see `trails`."""

    block: Block  # the averages; the centre is a zero error
    squares: Vector  # (J,): of single rounds' errors, mean per coordinate
    rounds: Vector  # (J,): number of equal rounds that would leave as much of fresh noise
    lasted: float = 0.0  # the largest share of a typical error that lasted, in earlier rounds
    apart: Matrix | None = None  # (J, J): mean squared distances in single rounds

    @property
    def left(self) -> Vector:
        """The mean square of each average."""
        return self.block.distances[:-1, -1]


@dataclass(frozen=True, eq=False)
class Given:
    """What a method may use beside the evidence: parties' claims, and earlier knowledge."""

    sample_counts: Mapping[str, float] | None = None
    known: Known | None = None
    now: Block | None = None  #: this round's evidence alone, where the rest is remembered
    lasting: Lasting | None = None  #: what is left of errors over rounds
    past: Past | None = None  #: of the round's parties, as far as it is no longer evidence
    trusted_counts: bool = False  #: sample counts are known, no mere claims


NOTHING = Given()


class Estimator(Protocol):
    """A method that needs only the evidence: a pure function of it, with its parameters."""

    @property
    def remembers(self) -> bool:
        """Whether earlier rounds are evidence for this one."""
        ...

    @property
    def follows(self) -> bool:
        """Whether the parties' averages over rounds are, too."""
        ...

    def infer(self, evidence: Evidence, given: Given = NOTHING) -> Beliefs:
        """Return the beliefs the evidence supports, starting from what is known already."""
        ...


def uniform(count: int) -> Vector:
    """Return equal weights that sum to one."""
    return np.full(count, 1.0 / count)


def with_centre(weights: Vector) -> Vector:
    """Append the weight of the centre, so that the weights of all points sum to one."""
    return np.append(weights, 1.0 - weights.sum())
