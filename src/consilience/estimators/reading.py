"""What distances tell: levels, how far to trust these, and who shares a voice with whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from consilience.arrays import Matrix, Positions, Vector
from consilience.estimators.certainty import learnt
from consilience.estimators.changes import expected_distances, on_one_scale
from consilience.estimators.choices import MUCH, Choices
from consilience.estimators.levels import Descent, End, fit_camp, fit_levels, slack_of
from consilience.estimators.sharing import agreement, chance, common_level
from consilience.estimators.weighing import fewness
from consilience.evidence import Evidence, pooled_distances
from consilience.updates.votes import middle

_FEWEST = 50.0  # coordinates; trails on IID MNIST are worth about 80
_BY_CHANCE = 0.67  # standard deviations: half of a normal distribution is within


class Reading(NamedTuple):
    """What distances tell."""

    distances: Matrix  # D, (J, J)
    counts: Matrix  # (J, J): the coordinates behind each
    end: End  # of the fit
    met: Matrix  # (J, J): how often each two did, relative to the most frequent pair
    slack: float  # ρ
    typical: float  # t
    shared: Matrix  # (J, J): how much of a voice each two share
    own: float  # weight of the data, not the prior, in the distances
    few: Vector  # a party's samples explain a level of 1/few times the typical one

    @property
    def levels(self) -> Vector:
        """s, (J,)."""
        return self.end.levels


def read(
    how: Choices,
    evidence: Evidence,
    samples: Vector,
    slack: float | None,
    most_slack: float,
    lasts: float = 0.0,
    camp: Positions | None = None,
) -> Reading:
    """Return what distances tell about parties with this many times the typical samples; with a
    camp, on the assumption that it is the quiet one. ``lasts`` is how far errors are known to last,
    from 0 to 1. It is done twice if rounds differ in noise."""
    seen = _read_as_is(how, evidence, samples, slack, most_slack, lasts, camp)
    same = on_one_scale(evidence, seen.levels)
    if same is evidence:
        return seen
    return _read_as_is(how, same, samples, slack, most_slack, lasts, camp)


def _read_as_is(
    how: Choices,
    evidence: Evidence,
    samples: Vector,
    slack: float | None,
    most_slack: float,
    lasts: float,
    camp: Positions | None,
) -> Reading:
    distances, counts = pooled_distances(evidence)
    alone = len(evidence.blocks) == 1  # then all pairs met equally often
    met = counts / counts.max()
    often = met if alone else counts / evidence.counts[:, None]
    prior = learnt(distances, counts)
    count, distances = prior.count, prior.blended(distances, counts)
    exact = max(how.exact, min(1.0, _BY_CHANCE * float(np.sqrt(2 / count))))
    pull = how.anchored / count
    descent = Descent(exact, how.hardening, how.tolerance, how.max_iterations, pull)
    fit = distances, met, evidence.least_noise
    if camp is None or not camp.size:
        end = fit_levels(*fit, how.starts, how.nearly_all, descent)
    else:
        end = fit_camp(*fit, camp, descent)
    levels = end.levels
    misfit = slack_of(distances, levels, counts, how.fitting, MUCH)
    slack = slack or min(misfit, most_slack)
    known = _worth(count, slack, misfit)
    relative = levels / middle(levels, evidence.counts)
    present = 1 + float(often.sum(axis=1).max())  # parties in a round
    # What strangers share by chance: more with few coordinates, or many peers, where it adds up.
    rarely = max(how.few / (how.few + known * count), min(1.0, present / how.many) ** 3)
    seen = known * (counts[:1, 1:2] if alone else counts)  # one number for all pairs
    heeds = _heeds(how, relative, evidence.counts, lasts)
    typical, shared = common_level(
        distances,
        often,
        levels,
        expected_distances(evidence, levels),
        slack,
        heeds=heeds,
        nearest=1 - chance(seen, rarely * how.deviations, how.nearest),
        quietest_pair=_quietest(how, samples),
        vote_power=how.vote_power,
    )
    shared *= agreement(count, len(levels))
    few = fewness(levels / typical, samples, heeds[0])
    return Reading(distances, counts, end, met, slack, typical, shared, prior.own, few)


def _heeds(how: Choices, relative: Vector, counts: Vector, lasts: float) -> tuple[Vector, ...]:
    """Return how much each level counts in the typical one; and, if errors are known to last, how
    much if being quiet were no merit, and if it were a smaller one."""
    merits = [how.heed]
    if lasts > 0:
        merits += [0.0, how.heed / (1 + (how.most_slack - 1) * lasts)]
    return tuple(np.minimum(relative**-merit, how.most_heed) * counts for merit in merits)


def _worth(count: float, slack: float, misfit: float) -> float:
    """Return what share of the coordinates counts in telling strangers from a shared voice.

    Misfits beyond what slack explains are chance, in errors that live in few directions: as with
    fewer coordinates, by the fourth power. At least ``_FEWEST``: adversaries can cause misfits.
    """
    return min(1.0, max((slack / misfit) ** 4, _FEWEST / count))


def _quietest(how: Choices, samples: Vector) -> float | Matrix:
    """Return the least expected distance of two parties, in typical levels: less if both are known
    to have many samples."""
    if samples.max() <= 1:
        return how.quietest_pair
    quiet = 0.5 * how.quietest_pair / np.maximum(samples, 1.0)
    pairs: Matrix = quiet[:, None] + quiet
    return pairs
