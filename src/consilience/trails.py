"""Trails: what remains of each party's error when it is averaged over the rounds.

What parties share for long, a purpose or data, is easily hidden in one round's noise: four parties
with flipped labels and small batches look like four strangers. Noise fades in an average, what is
shared does not. Distances of averages cannot be had from averaged distances, so a memory keeps the
averages themselves, in a few thousand coordinates. These places are drawn from secret randomness,
and others take over after some rounds: whoever finds them out does not profit for long.

An error is taken about the coordinate-wise median of the round's updates, since the truth moves on
between the rounds that two parties took part in. Between parties of the same rounds it cancels out.

How long an error was before it was averaged is kept as well: what is left tells noise from data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.beliefs import Lasting
from consilience.evidence import Block

Look = Callable[[Positions], Array]

_PLACES = 8192
_RENEWED = 50  # rounds after which other places take over; they are followed from the start
FORGOTTEN = 1e-3  # what has fallen to this share of a fresh round's say is dropped


@dataclass(frozen=True, eq=False)
class Trails:
    """The mean error of each party at some coordinates, recent rounds counting most."""

    size: int  # K
    places: Positions  # (n,), ascending
    parties: tuple[str, ...]
    rounds: Vector  # (J,): how many each mean is of, discounted by age
    means: Matrix  # (J, n)
    age: int = 0  # rounds that were followed
    # (J,) each; where a file does not tell, a mean is taken for a single round's error
    squares: Vector = field(default_factory=lambda: np.empty(0))  # of single rounds' errors, mean
    effective: Vector = field(default_factory=lambda: np.empty(0))  # equal rounds as noisy a mean

    def __post_init__(self) -> None:
        if len(self.squares) < len(self.parties):
            object.__setattr__(self, "squares", _mean_squares(self.means))
            object.__setattr__(self, "effective", np.ones(len(self.parties)))

    @classmethod
    def begun(cls, size: int, random: np.random.Generator) -> Trails:
        """Draw the places, one in each of as many equal stretches."""
        edges = np.linspace(0, size, min(size, _PLACES) + 1).astype(np.int64)
        places = random.integers(edges[:-1], edges[1:]).astype(np.intp)
        return cls(size, places, (), np.empty(0), np.empty((0, len(places))))

    def followed(self, parties: tuple[str, ...], sent: Array, decay: float) -> Trails:
        """Return the trails after a round in which the parties sent (J, n) at the places."""
        sent = np.nan_to_num(sent)  # who sent something else is about to be rejected
        rounds, means = np.ones(len(parties)), sent - np.median(sent, axis=0)
        squares, effective = _mean_squares(means), np.ones(len(parties))
        absent = {party: j for j, party in enumerate(self.parties)}
        for j, party in enumerate(parties):
            if party in absent:
                old = absent.pop(party)
                before = decay * self.rounds[old]
                rounds[j] += before
                effective[j] = rounds[j] ** 2 / (1 + before**2 / self.effective[old])
                squares[j] = self.squares[old] + (squares[j] - self.squares[old]) / rounds[j]
                means[j] = self.means[old] + (means[j] - self.means[old]) / rounds[j]
        kept = [j for j in absent.values() if decay * self.rounds[j] > FORGOTTEN]
        if kept:
            parties = (*parties, *(self.parties[j] for j in kept))
            rounds = np.concatenate([rounds, decay * self.rounds[kept]])
            means = np.vstack([means, self.means[kept]])
            squares = np.concatenate([squares, self.squares[kept]])
            effective = np.concatenate([effective, self.effective[kept]])
        age = self.age + 1
        return Trails(self.size, self.places, parties, rounds, means, age, squares, effective)

    def evidence(self, count: int) -> Lasting | None:
        """Return what the first so many parties' averages tell, None if those are of one round or
        not numbers. The centre is no error at all."""
        if not (self.rounds[:count] > 1).any():
            return None
        points = np.vstack([self.means[:count], np.zeros(len(self.places))])
        with np.errstate(over="ignore", invalid="ignore"):
            gram = points @ points.T
            squares = np.diag(gram)
            distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0) / len(self.places)
        np.fill_diagonal(distances, 0.0)
        if not np.isfinite(distances).all():
            return None
        block = Block(self.parties[:count], distances, float(len(self.places)))
        return Lasting(block, self.squares[:count], self.effective[:count])


def _mean_squares(rows: Matrix) -> Vector:
    with np.errstate(over="ignore"):
        means: Vector = np.square(rows, dtype=np.float64).mean(axis=1)
    return means


@dataclass(frozen=True, eq=False)
class Relay:
    """The trails in use, and those that will take over; none where all places are looked at."""

    used: Trails
    young: Trails | None = None

    @classmethod
    def begun(cls, size: int, random: np.random.Generator) -> Relay:
        """Draw the places for both."""
        young = Trails.begun(size, random) if size > _PLACES else None
        return cls(Trails.begun(size, random), young)

    def followed(
        self, parties: tuple[str, ...], look: Look, decay: float, random: np.random.Generator
    ) -> Relay:
        """Return the trails after a round; ``look`` tells what was sent at some places."""
        if self.young is None:
            sent = look(self.used.places)
            return Relay(self.used.followed(parties, sent, decay))
        both = np.union1d(self.used.places, self.young.places)
        sent = look(both)
        used, young = (
            trails.followed(parties, sent[:, np.searchsorted(both, trails.places)], decay)
            for trails in (self.used, self.young)
        )
        if young.age >= _RENEWED:
            used, young = young, Trails.begun(young.size, random)
        return Relay(used, young)
