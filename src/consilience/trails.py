"""Trails: each party's error, averaged over rounds.

What parties share for long, a purpose or data, is easily hidden in the noise of one round: four
parties with flipped labels and small batches look like four strangers. Noise fades in an average;
what is shared does not. Distances between averages cannot be computed from averaged distances, so a
memory keeps the averages themselves, at a few thousand coordinates. These places are drawn from
secret randomness and replaced after some rounds: whoever finds them out does not profit for long.

An error is taken about the coordinate-wise median of the round's updates, since the truth moves
between rounds.

Errors are measured in units of their round's typical error. So a round in which everybody is loud
counts as much as any other, and hides nothing of what the others told. A few places may hold most
of the error, as the statistics of a layer do beside its weights. In so few numbers everything is
alike by chance, so no place counts for more than about a fiftieth of a typical error. Places where
nobody errs are no evidence.

The size of the errors before averaging is kept as well: what share remains tells noise from data.
So are the mean distances between parties in single rounds, which no displaced median disturbs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from consilience.arrays import Array, Matrix, Positions, Vector
from consilience.beliefs import Lasting
from consilience.evidence import FORGOTTEN, Block, Evidence, pooled_distances
from consilience.passes import loops

Look = Callable[[Positions], Array]

PLACES = 8192
_FEWEST = 256  # places that are kept however many parties there are
_MOST_NUMBERS = 2**24  # in one set of trails, 64 MB; with too many parties, places are dropped
_LARGEST = 1e38  # largest error that float32 can keep; a sender of larger ones has no weight anyway
# Of a typical squared error: no place holds much more, if enough hold some. So a trail is worth the
# fewest coordinates that `estimators.reading` assumes.
_HEAVIEST = 1 / 50
LONGEST = 10.0  # typical errors: no round counts for more, or it would hide all others
_RENEWED = 50  # rounds after which other places take over, which are followed from the start
_DUST = 1e-12  # of the largest squared error: rounding, not to be weighed against few live places
# Distances of single rounds that are kept, 8 MB; those of the latest round always are.
_MOST_DISTANCES = 2**20


@dataclass(frozen=True, eq=False)
class Trails:
    """The mean error of each party at some coordinates; recent rounds count most."""

    size: int  # K
    places: Positions  # (n,), ascending
    parties: tuple[str, ...]
    rounds: Vector  # (J,): number of rounds in each mean, discounted by age
    means: Sequence[Array]  # J of (n,), float32; separate arrays, as most pass on unchanged
    age: int = 0  # rounds followed so far
    # (J,) each: the mean squared error of single rounds, and how many equally weighted rounds give
    # as noisy a mean. By default, for files of an earlier release, as if means were single rounds.
    squares: Vector = field(default_factory=lambda: np.empty(0))
    effective: Vector = field(default_factory=lambda: np.empty(0))
    # Distances in single rounds, at the same places; a round counts for one.
    apart: Evidence = field(default_factory=lambda: Evidence(()))

    def __post_init__(self) -> None:
        if len(self.squares) < len(self.parties):
            object.__setattr__(self, "squares", _mean_squares(self.means))
            object.__setattr__(self, "effective", np.ones(len(self.parties)))

    @classmethod
    def begun(cls, size: int, random: np.random.Generator) -> Trails:
        """Draw the places, one in each of equal stretches."""
        edges = np.linspace(0, size, min(size, PLACES) + 1).astype(np.int64)
        places = random.integers(edges[:-1], edges[1:]).astype(np.intp)
        return cls(size, places, (), np.empty(0), ())

    def followed(self, parties: tuple[str, ...], sent: Array, decay: float) -> Trails:
        """Return the trails after a round in which the parties sent (J, n) at the places."""
        if not np.isfinite(sent).all():  # whoever sent anything else is about to be rejected
            sent = np.nan_to_num(sent)
        errors, squares = _in_units(_about_median(np.ascontiguousarray(sent)))
        now = Evidence((Block(parties, _distances([*errors]), 1.0),))
        apart = self.apart.faded(decay, 1.0).followed(now)
        rounds, effective = np.ones(len(parties)), np.ones(len(parties))
        absent = {party: j for j, party in enumerate(self.parties)}
        for j, party in enumerate(parties):
            if party in absent:
                old = absent.pop(party)
                before = decay * self.rounds[old]
                rounds[j] += before
                effective[j] = rounds[j] ** 2 / (1 + before**2 / self.effective[old])
                squares[j] = self.squares[old] + (squares[j] - self.squares[old]) / rounds[j]
                errors[j] -= self.means[old]
                errors[j] /= float(rounds[j])
                errors[j] += self.means[old]
        means = [error.astype(np.float32) for error in errors]
        there = [j for j in absent.values() if decay * self.rounds[j] > FORGOTTEN]
        if there:
            parties = (*parties, *(self.parties[j] for j in there))
            rounds = np.concatenate([rounds, decay * self.rounds[there]])
            means += (self.means[j] for j in there)
            squares = np.concatenate([squares, self.squares[there]])
            effective = np.concatenate([effective, self.effective[there]])
        age = self.age + 1
        known = rounds, means, age, squares, effective, apart
        return Trails(self.size, self.places, parties, *known).thinned()

    def thinned(self) -> Trails:
        """Return fewer places, every other one or less, if there are too many parties for all."""
        step = 1
        while (
            len(self.places) // step >= 2 * _FEWEST
            and len(self.means) * len(self.places) // step > _MOST_NUMBERS
        ):
            step *= 2
        if step == 1:
            return self
        fewer = [mean[::step].copy() for mean in self.means]
        return replace(self, places=self.places[::step].copy(), means=fewer)

    def in_units(self) -> Trails:
        """Return trails of an earlier release, which were in the units of the updates."""
        if not self.parties:
            return self
        units = _units(np.sqrt(self.squares))
        means = [(m / unit).astype(np.float32) for m, unit in zip(self.means, units, strict=True)]
        return replace(self, means=kept(np.stack(means)), squares=self.squares / units**2)

    def first(self, count: int) -> Trails:
        """Return the trails of the ``count`` parties that were seen most recently."""
        apart = self.apart.latest(count, _MOST_DISTANCES)
        if len(self.parties) <= count:
            return replace(self, apart=apart)
        return replace(
            self,
            apart=apart,
            parties=self.parties[:count],
            rounds=self.rounds[:count],
            means=self.means[:count],
            squares=self.squares[:count],
            effective=self.effective[:count],
        )

    def evidence(self, count: int) -> Lasting | None:
        """Return the evidence in the averages of the first ``count`` parties, those of this round;
        the centre is a zero error. None if all of them are of a single round, or if distances are
        not finite."""
        if not (self.rounds[:count] > 1).any():
            return None
        distances = _distances(self.means[:count])
        if not np.isfinite(distances).all():
            return None
        # A median, as a few can err everywhere, if only by dust.
        live = float(np.median([np.count_nonzero(mean) for mean in self.means[:count]]))
        block = Block(self.parties[:count], distances, live or 1.0)
        apart = self._apart(block.parties)
        return Lasting(block, self.squares[:count], self.effective[:count], apart=apart)

    def _apart(self, parties: tuple[str, ...]) -> Matrix:
        """Return the mean squared distance of each two of these parties in single rounds."""
        past = self.apart.among(parties)
        if len(past.parties) < len(parties):  # one alone, or a file of an earlier release
            return np.zeros((len(parties), len(parties)))
        at = {party: j for j, party in enumerate(past.parties)}
        order = [at[party] for party in parties]
        return pooled_distances(past)[0][np.ix_(order, order)]


def _about_median(sent: Array) -> Array:
    """Return the errors about the coordinate-wise median, (J, n), clipped to what can be kept."""
    middle = _median(sent)
    with np.errstate(over="ignore"):
        errors = sent - middle
    return np.clip(errors, -_LARGEST, _LARGEST, out=errors)


def _median(rows: Array) -> Array:
    """Return the median of each column, (J, n) -> (n,)."""
    count, size = rows.shape
    middle, unread = np.empty(size, rows.dtype), np.zeros((2, count))
    code, wide, cut = _code(rows), rows.dtype == float, (count - 1) // 2
    loops.current.trim([*rows], count * code, cut, middle, code, size, *unread, wide)
    return middle


def _in_units(errors: Array) -> tuple[Array, Vector]:
    """Return the errors in units of the typical one, with no place too heavy, and their mean
    squares."""
    errors *= _lightened(errors)
    units = _units(np.sqrt(_mean_squares(errors)))
    errors /= np.maximum(units, np.finfo(errors.dtype).tiny).astype(errors.dtype)[:, None]
    return errors, _mean_squares(errors)


def _units(lengths: Vector) -> Vector:
    """Return what to divide errors of these lengths by: the typical length, or more for those that
    would be longer than `LONGEST`."""
    typical = float(np.median(lengths)) or float(np.mean(lengths)) or 1.0
    return np.maximum(lengths / LONGEST, typical)


def _lightened(errors: Array) -> Array:
    """Return what to multiply each place by: one, or less where it holds too much of the typical
    squared error (a median over the parties, which a few of them cannot set)."""
    typical = np.square(_median(np.abs(errors)), dtype=float)
    most = _limit(typical)
    heavy = typical > most
    found = np.ones(len(typical), errors.dtype)
    found[heavy] = np.sqrt(most / typical[heavy])
    return found


def _limit(squares: Vector) -> float:
    """Return the largest c with c = Σ min(square, c)/50; infinite if too few are positive."""
    most = round(1 / _HEAVIEST)
    squares = np.where(squares > _DUST * squares.max(initial=0.0), squares, 0.0)
    if np.count_nonzero(squares) <= most:  # some must hold more
        return np.inf
    parted = np.partition(squares, len(squares) - most)
    largest = np.sort(parted[-most:])
    # c if the k-th and all larger ones are cut off to it, and so the sum of all others over k.
    limits = (parted[:-most].sum() + np.cumsum(largest)) / np.arange(1, most + 1)
    return float(limits[np.flatnonzero(largest <= limits)[-1]])


def _distances(rows: Sequence[Array]) -> Matrix:
    """Return the mean squared distances between the rows, and from zero, which comes last."""
    count = len(rows)
    gram = np.zeros((count + 1, count + 1))
    with np.errstate(over="ignore", invalid="ignore"):
        loops.current.gram([*rows, None], b"".join(map(_code, rows)) + b"f", -1, gram, True)
        gram += np.tril(gram, -1).T
        squares = np.diag(gram)
        distances = np.maximum(squares[:, None] + squares - 2 * gram, 0.0)
    np.fill_diagonal(distances, 0.0)
    found: Matrix = distances / len(rows[0])
    return found


def _code(numbers: Array) -> bytes:
    """Return the letter by which the loops know a dtype."""
    return numbers.dtype.char.encode()


def _mean_squares(rows: Sequence[Array] | Array) -> Vector:
    with np.errstate(over="ignore"):
        wide = (np.asarray(row, float) for row in rows)
        return np.array([row @ row / len(row) for row in wide])


def kept(means: Array) -> list[Array]:
    """Return the rows of (J, n) as separate arrays."""
    return [np.clip(mean, -_LARGEST, _LARGEST).astype(np.float32, copy=False) for mean in means]


@dataclass(frozen=True, eq=False)
class Relay:
    """The trails in use and their successors; no successors if all places are looked at."""

    used: Trails
    young: Trails | None = None
    lasted: float = 0.0  # the largest share of a typical error that lasted, in any round

    @classmethod
    def begun(cls, size: int, random: np.random.Generator) -> Relay:
        """Draw the places for both."""
        young = Trails.begun(size, random) if size > PLACES else None
        return cls(Trails.begun(size, random), young)

    def in_units(self) -> Relay:
        """Return trails of an earlier release: see `Trails`."""
        return replace(self, used=self.used.in_units(), young=self.young and self.young.in_units())

    def first(self, count: int) -> Relay:
        """Return the trails of the ``count`` parties that were seen most recently."""
        young = self.young and self.young.first(count)
        return Relay(self.used.first(count), young, self.lasted)

    def evidence(self, count: int) -> Lasting | None:
        """Return the evidence in the averages of the first ``count`` parties: see `Trails`."""
        found = self.used.evidence(count)
        return found and replace(found, lasted=self.lasted)

    def judged(self, lasts: float) -> Relay:
        """Return the same after a round in which this share of a typical error lasted."""
        return replace(self, lasted=max(self.lasted, lasts))

    def followed(
        self, parties: tuple[str, ...], look: Look, decay: float, random: np.random.Generator
    ) -> Relay:
        """Return the trails after a round; ``look`` returns what was sent at given places."""
        if self.young is None:
            used = self.used.followed(parties, look(self.used.places), decay)
            return replace(self, used=used)
        both = np.concatenate([self.used.places, self.young.places])
        order = np.argsort(both, kind="stable")  # merges two sorted runs at little cost
        sent, place, cut = look(both[order]), np.empty_like(order), len(self.used.places)
        place[order] = np.arange(len(order))
        old, new = (np.take(sent, at, axis=1) for at in (place[:cut], place[cut:]))
        used = self.used.followed(parties, old, decay)
        young = self.young.followed(parties, new, decay)
        if young.age >= _RENEWED:
            used, young = young, Trails.begun(young.size, random)
        return Relay(used, young, self.lasted)
