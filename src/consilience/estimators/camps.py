"""Two camps: explanations that fit the distances about equally well.

If there are two groups of about equal size, each near its own members and far from the other group,
there are two explanations: either group may be right, and the other collude. To take the one that
fits better would be to toss a coin. So for each large group the levels are fitted once more, with
that group as the quiet one. An explanation that fits about as well is heard, too.

Fits are compared by how many pairs are in league (collude), not by how closely these agree: anybody
can be tight, and nobody honest can choose to be loose. In a single round noise hides how much a
camp agrees. So fits to the averages over rounds, where noise has faded, are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from consilience.arrays import Positions
from consilience.estimators.choices import Choices
from consilience.estimators.reading import Reading
from consilience.estimators.reasons import linked


class Explanation(NamedTuple):
    """What distances tell if a camp is right, and the share in which that is heard."""

    share: float
    seen: Reading
    camp: Positions | None  # None: of no camp in particular


class Source(NamedTuple):
    """Distances between some of the parties, and what they tell if a camp is the quiet one."""

    parties: Positions
    first: Reading  # with no camp
    given: Callable[[Positions], Reading]  # the camp: positions among these parties
    league: float  # κ^m that the parties of a camp share, on average
    fewest: int = 2  # parties of a camp

    def camps(self, seen: Reading, size: float) -> list[Positions]:
        """Return the groups that are large enough to be right, and in which everybody shares enough
        of a voice with the others on average: a chain of parties is no camp."""
        least, found = max(size * len(seen.levels), self.fewest), []
        for group in linked(seen.shared, self.league):
            shared = seen.shared[np.ix_(group, group)]
            each = (shared.sum(axis=1) - shared.diagonal()) / (len(group) - 1)
            if len(group) >= least and each.min() >= self.league:
                found.append(group)
        return found

    def how_much_worse(self, how: Choices, camp: Positions) -> float:
        """Return how many more pairs are in league if this camp is right: 1 for as many as one
        party has in the camp. Infinite if the others are not in league, but merely noisy."""
        camp = np.flatnonzero(np.isin(self.parties, camp))
        if len(camp) < 2:
            return np.inf
        other = self.given(camp)
        if not any(
            np.isin(group, camp, invert=True).all() for group in self.camps(other, how.camp)
        ):
            return np.inf
        one = 2 * float(other.met[np.ix_(camp, camp)].sum()) / len(camp)
        more = pairs_in_league(other, self.league) - pairs_in_league(self.first, self.league)
        return more / one


def explanations(how: Choices, sources: list[Source]) -> list[Explanation]:
    """Return the explanations that fit about equally well, the best first. An explanation with more
    pairs in league is heard less; one with as many more as one party has, not at all.

    The first source has all parties. Another one may tell that two camps are equal, too; but not if
    any tells that the camp is against a much larger one. Or a few who agreed in earlier rounds, and
    now go far off together, would be heard beside all others.
    """
    now = sources[0]
    camps = {
        tuple(source.parties[group].tolist())
        for source in sources
        for group in source.camps(source.first, how.camp)
    }
    found = [Explanation(1.0, now.first, None)]
    for camp in map(np.array, sorted(camps)):
        each = [source.how_much_worse(how, camp) for source in sources]
        worse, refuted = min(each), any(_as_large(camp) < more < np.inf for more in each)
        if worse < 1 and not refuted:
            found.append(Explanation(1 - worse, now.given(camp), camp))
    found.sort(key=lambda each: -each.share)
    more = found[0].share - 1  # if the fit was not the best one after all
    heard = [each._replace(share=each.share - more) for each in found if each.share > more]
    total = sum(each.share for each in heard)
    return [each._replace(share=each.share / total) for each in heard]


def _as_large(camp: Positions) -> float:
    """Return how many more pairs are in league, at most, if this camp is right and another one,
    with one party more, colludes."""
    one = len(camp) - 1  # pairs of one party, as `how_much_worse` counts
    return (len(camp) + 1) * len(camp) / (2 * one)


def pairs_in_league(seen: Reading, league: float) -> float:
    """Return how many pairs levels do not explain: those that share a voice, and those that are
    farther apart than expected. A pair counts as one from ``league`` on."""
    apart = seen.distances / (seen.levels[:, None] + seen.levels) - 1
    np.fill_diagonal(apart, 0.0)
    misfits = np.maximum(seen.shared, apart)
    return float((seen.met * np.minimum(1.0, misfits / league)).sum())
