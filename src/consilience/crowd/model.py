"""The model of a crowd, by variational Bayes: truths, noise, bias and gain, given the groups.

A rating of task i by party j, who belongs to group g (most parties are alone in theirs):

    x_ij = μ + b_j + a_g y_i + f_ig + e_ij,   e_ij ~ N(0, σ_j²),   f_ig ~ N(0, φ_g)

y_i ~ N(0, τ²) is the truth about the overall mean μ; b_j ~ N(0, ω²) a bias; a_g ~ N(1, α²) a gain:
zero for parties that answer without looking, below one for those that keep to the middle of the
scale; f_ig is what a group has in common, zero for a party alone. Noise has a prior,
1/σ_j² ~ Gamma, so that a party seen once is assumed typical. The parameters of priors are learnt.

The ratings of a task by a group make one *voice*: with p_j = 1/σ_j² and P = Σ p_j, their mean m
weighted by p_j is μ + a_g y_i plus noise of variance φ_g + 1/P, at least φ_g however many copies
there are. Everything is a sum over rows or voices, so an iteration costs O(ratings).

The model is invariant to a common shift of truths and biases, and to a common scale of truths and
gains. As in `pairwise`, most parties are assumed right: the median bias is zero and the median gain
one, with one vote per group, and less for parties noisier than typical. If most parties keep to the
middle of the scale, so do the truths and their intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from consilience.arrays import Positions, Vector
from consilience.crowd.ratings import Ratings, total
from consilience.updates.votes import middle

_LEAST = 1e-12  # smallest variance, relative to the ratings' typical squared deviation
_CERTAIN = 100.0  # the largest weight of the noise prior, in ratings/2
_VAGUE = 1.0  # and the least: below it, a party that hits the truth once would own it
_RUNAWAY = 1e6  # truths with a variance this many times the ratings' are an artefact
_SHARED = 0.75  # of a group's noise, at the start
_MEDIAN = np.pi / 2  # variance of a median over that of a mean, for normal numbers


@dataclass(frozen=True, eq=False)
class Fit:
    """What the model says about the tasks and the parties."""

    truth: Vector  # (I,)
    deviation: Vector  # (I,): the truth's standard deviation
    bias: Vector  # (J,)
    gain: Vector  # (J,)
    noise: Vector  # (J,): standard deviation of the error about the truth, without bias
    levels: Vector  # (J,): σ_j² + φ, the error variance that the gain does not explain
    iterations: int
    converged: bool

    def scaled(self, centre: float, unit: float) -> Fit:
        """Return the same in the original unit of the ratings."""
        return replace(
            self,
            truth=centre + unit * self.truth,
            deviation=unit * self.deviation,
            bias=unit * self.bias,
            noise=unit * self.noise,
        )


def fit(
    ratings: Ratings,
    group: Positions,
    levels: Vector,
    bias: Vector | None,
    max_iterations: int = 300,
    tolerance: float = 1e-3,
) -> Fit:
    """Return the fit of standardised ratings from a start: groups, error variances and biases.

    If the bias is None, there are no biases and all gains are one. The same is done if truths
    diverge, as they may if nearly all ratings are equal.
    """
    state = _State(ratings, group, levels, bias)
    most = _RUNAWAY * (float(np.mean(ratings.value**2)) + 1)
    change, iterations = np.inf, 0
    while iterations < max_iterations and change > tolerance:
        iterations += 1
        state.hear()
        change = state.judge()
        if state.affine and not state.spread < most:
            plain = fit(ratings, group, levels, None, max_iterations, tolerance)
            return replace(plain, converged=False)
    state.hear()
    gain, levels = state.gain[group], 1 / state.precision + state.shared[group]
    return Fit(
        state.centre + state.truth,
        np.sqrt(state.variance()),
        state.bias,
        gain,
        np.sqrt(levels + (1 - gain) ** 2 * state.spread),
        levels,
        iterations,
        change <= tolerance,
    )


class _State:
    """The parameters of the posterior during the iteration."""

    def __init__(
        self, ratings: Ratings, group: Positions, levels: Vector, bias: Vector | None
    ) -> None:
        self.ratings, self.group = ratings, group
        self.tasks, self.parties = ratings.size
        # A group is identified by its first member; a voice is a task and a group.
        self.members = np.bincount(group, minlength=self.parties)
        places, self.voice = np.unique(
            ratings.task * self.parties + group[ratings.party], return_inverse=True
        )
        self.task_of, self.group_of = places // self.parties, places % self.parties
        self.alone = self.members[group] == 1
        self.heard = np.maximum(self._by_group(np.ones(places.size)), 1)

        levels = np.maximum(levels, _LEAST)
        together = self.members > 1
        typical = total(group, levels, self.parties) / np.maximum(self.members, 1)
        self.shared = np.where(together, _SHARED * typical, 0.0)
        self.precision = 1 / np.where(self.alone, levels, (1 - _SHARED) * levels)
        self.typical = 1 / float(np.median(levels))
        self.shape, self.rate = _VAGUE, _VAGUE / self.typical
        self.affine = bias is not None
        self.bias = np.zeros(self.parties) if bias is None else bias
        self.bias_variance = np.zeros(self.parties)
        self.bias_spread = float(np.var(self.bias)) + _LEAST
        self.votes = np.ones(self.parties)  # for the median bias, which is set to zero
        self.gain, self.gain_variance = np.ones(self.parties), np.zeros(self.parties)
        self.gain_votes = np.where(self.members > 0, 1.0, 0.0)  # for the median gain, set to one
        self.gain_spread = 0.1
        self.centre, self.spread = 0.0, 1.0  # of standardised ratings

    def hear(self) -> None:
        """Infer the truths, and what groups have in common, given the parties' parameters."""
        rows = self.ratings
        p = self.precision[rows.party]
        self.offset = rows.value - self.centre - self.bias[rows.party]
        voices = self.task_of.size
        self.loudness = total(self.voice, p, voices)  # P
        self.message = total(self.voice, p * self.offset, voices) / self.loudness  # m
        a, shared = self.gain[self.group_of], self.shared[self.group_of]
        self.weight = self.loudness / (1 + shared * self.loudness)  # 1/(φ + 1/P)
        self.information = total(self.task_of, a * a * self.weight, self.tasks)
        self.uncertainty = 1 / (1 / self.spread + self.information)
        self.truth = self.uncertainty * total(
            self.task_of, a * self.weight * self.message, self.tasks
        )
        # f given y is N(k(m − ay), φ/(1 + φP)), k = φP/(1 + φP).
        self.k = shared * self.weight
        self.common_variance = self.k / self.loudness
        self.common = self.k * (self.message - a * self.truth[self.task_of])

    def judge(self) -> float:
        """Infer the parties' parameters given the truths; return the largest change of log σ_j²."""
        party, count = self.ratings.party, self.ratings.per_party
        truth, uncertainty = self.truth[self.task_of], self.uncertainty[self.task_of]
        a = self.gain[self.group_of]
        squared = self.common**2 + self.common_variance + (self.k * a) ** 2 * uncertainty
        self.shared = np.where(self.members > 1, self._by_group(squared) / self.heard, 0.0)

        residual = self.offset - (a * truth + self.common)[self.voice]
        doubt = (((1 - self.k) * a) ** 2 * uncertainty + self.common_variance)[self.voice]
        if self.affine:
            residual += self._judge_bias(residual, count)[party]
            self._judge_gain(truth, uncertainty)
        squares = total(party, residual**2 + doubt, self.parties) + count * self.bias_variance
        change = self._judge_noise(squares, count)

        shift = float(np.mean(self.truth))
        self.centre += shift
        squared = np.sum((self.truth - shift) ** 2 + self.uncertainty)
        self.spread = float(squared) / max(self.tasks - 1, 1) + _LEAST
        return change

    def _judge_bias(self, residual: Vector, count: npt.NDArray[np.intp]) -> Vector:
        """Update the biases; return the decrease of each."""
        before = self.bias
        off = total(self.ratings.party, residual, self.parties) + count * before
        information = count * self.precision + 1 / self.bias_spread
        bias = self.precision * off / information
        self.bias_variance = 1 / information
        self.bias_spread = float(np.mean(bias**2 + self.bias_variance)) + _LEAST
        fall: Vector = before - bias
        self.votes = _trust(self.precision) / self.members[self.group]
        self.bias = bias - middle(bias, self.votes)
        return fall

    def _judge_gain(self, truth: Vector, uncertainty: Vector) -> None:
        information = self._by_group(self.weight * (truth**2 + uncertainty))
        with_prior = information + 1 / self.gain_spread
        gain = (
            self._by_group(self.weight * self.message * truth) + 1 / self.gain_spread
        ) / with_prior
        self.gain_variance = 1 / with_prior
        present = self.members > 0
        off = ((gain - 1) ** 2 + self.gain_variance)[present]
        self.gain_spread = float(np.mean(off)) + _LEAST
        self.gain_votes = np.where(present, _trust(information / self.heard), 0.0)
        scale = middle(gain, self.gain_votes)
        # If gains are around zero, nobody looks at the tasks, and there is no scale to choose.
        self.gain = gain / scale if scale > _LEAST else gain

    def _judge_noise(self, squares: Vector, count: npt.NDArray[np.intp]) -> float:
        from scipy.special import digamma  # here, as it imports much

        shape, rate = self.shape + count / 2, self.rate + squares / 2
        before, self.precision = self.precision, np.minimum(shape / rate, 1 / _LEAST)
        # Only parties alone: what copies add to one another's answers is not typical noise.
        whose = self.alone if self.alone.any() else np.ones_like(self.alone)
        # And one at the level of the start, as with few parties alone noise could go to zero.
        known = np.append(self.precision[whose], self.typical)
        logs = np.append((digamma(shape) - np.log(rate))[whose], np.log(self.typical))
        self.shape = _gamma_shape(known, logs)
        self.rate = self.shape / float(np.mean(known))
        return float(np.abs(np.log(self.precision / before)).max())

    def variance(self) -> Vector:
        """Return the variance of the truths, including the uncertainty of bias, gain and μ."""
        rows = self.ratings
        a = self.gain[self.group_of]
        voice = self.uncertainty[self.task_of] * a * self.weight  # coefficients of the truth
        part = (voice / self.loudness)[self.voice] * self.precision[rows.party]
        of_bias = total(rows.task, part**2 * self.bias_variance[rows.party], self.tasks)
        of_gain = total(self.task_of, voice**2 * self.gain_variance[self.group_of], self.tasks)
        # The medians of bias and gain, set to zero and one, depend on who the parties are.
        of_shift = _of_median(self.bias, self.votes)
        of_scale = _of_median(self.gain - 1, self.gain_votes)
        alone = 1 / np.maximum(self.information, 1e-300)  # variance of a truth without its prior
        of_centre = 1 / np.sum(1 / (self.spread + alone))
        variance: Vector = self.uncertainty + of_bias + of_shift
        variance += (of_gain + of_scale) * self.truth**2
        variance += (self.uncertainty / self.spread) ** 2 * of_centre
        return variance

    def _by_group(self, values: Vector) -> Vector:
        return total(self.group_of, values, self.parties)


def _trust(precision: Vector) -> Vector:
    """Return precision relative to the typical one, at most one: low noise earns no extra vote."""
    typical = float(np.median(precision[precision > 0])) if precision.any() else 1.0
    return np.minimum(precision / typical, 1.0)


def _of_median(off: Vector, votes: Vector) -> float:
    """Return the variance of a weighted median, given the deviations from it."""
    size = 1.4826 * middle(np.abs(off), votes)
    return float(_MEDIAN * size**2 * np.sum(votes**2) / np.sum(votes) ** 2)


def _gamma_shape(values: Vector, logs: Vector) -> float:
    """Return the maximum-likelihood shape of gamma variables, from means and mean logarithms.

    The root of log k − ψ(k) = s, by Minka's approximation, good to 1.5 %.
    """
    s = max(float(np.log(np.mean(values)) - np.mean(logs)), 1e-6)
    shape = (3 - s + np.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return float(np.clip(shape, _VAGUE, _CERTAIN))
