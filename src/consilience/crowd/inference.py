"""infer(): from a table of ratings to truths, and to the properties of the parties.

`pairwise` alternates two steps: it finds who moves together, from distances (together.py), and fits
truths, noise, bias and gain given these groups (model.py). It ends when the groups repeat, or after
ten rounds. `affine` is the same without groups. `ivar`, the paper's IVAR-VB, has no bias and no
gain either.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from os import PathLike
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np

from consilience.arrays import Mask, Positions, Vector
from consilience.crowd.model import Fit, fit
from consilience.crowd.ratings import Ratings, medians, total
from consilience.crowd.tables import check_names, read, write
from consilience.crowd.together import Pairs, groups, starting_levels
from consilience.errors import ConsilienceError
from consilience.estimators.reasons import explain
from consilience.summary import Shown, Summary
from consilience.text import shown

METHODS = ("pairwise", "affine", "ivar", "median", "mean")
TRUTH_COLUMNS = ("truth", "low", "high", "ratings")  # of an output file, beside the ids
PARTY_COLUMNS = ("noise", "bias", "gain", "ratings", "group", "reason")
_FEW = 4.0  # a first bias from this many ratings is shrunk to a half
_MOST_ROUNDS = 10  # of the two steps: each round costs a pass over pairs and ratings
_FOLLOWS = 0.5  # a party with a lower gain follows something else more than the truth


@dataclass(frozen=True, eq=False, repr=False)
class Inference(Shown):
    """What a table of ratings says about its tasks and its parties; `infer` returns it.

    >>> import consilience as cs
    >>> table = {"task": [*"aabb"], "who": [*"xyxy"], "score": [1, 1.2, 5, 5.2]}
    >>> found = cs.infer(table, task="task", party="who", value="score", method="mean")
    >>> found.truth["b"]
    5.1
    """

    truth: dict[Hashable, float]  #: by task
    intervals: dict[Hashable, tuple[float, float]]  #: by task; NaN where the method has none
    noise: dict[Hashable, float]  #: of each party's error, bias apart; NaN where unknown
    bias: dict[Hashable, float]  #: how much too high each party rates
    gain: dict[Hashable, float]  #: how much each party moves when the truth moves by one
    groups: tuple[tuple[Hashable, ...], ...]  #: parties that move together
    reasons: dict[Hashable, str]  #: of the parties that stand out
    diagnostics: dict[str, Any]
    ratings: Ratings

    @property
    def summary(self) -> Summary:
        """Return what is known about the parties; those who stand out come first."""
        rows = [
            [
                shown(p),
                *(f"{value[p]:.3g}" for value in (self.noise, self.bias, self.gain)),
                self.reasons.get(p, ""),
            ]
            for p in sorted(self.noise, key=lambda p: p not in self.reasons)
        ]
        title = f"Inference of {len(self.truth)} tasks from {len(self.noise)} parties"
        return Summary(title, ("party", "noise", "bias", "gain", "why"), rows)

    def save(self, path: str | PathLike[str], task: str = "task") -> None:
        """Write the truths to a .csv, .tsv or .parquet file, whole or not at all.

        ``task`` is the name of the column of task ids, none of TRUTH_COLUMNS. Ids are written as
        they came: a spreadsheet may take one that begins with = + - or @ for a formula.
        """
        check_names(task, TRUTH_COLUMNS)
        low, high = zip(*self.intervals.values(), strict=True)
        columns = (list(self.truth.values()), low, high, self.ratings.per_task.tolist())
        write(path, {task: list(self.truth), **dict(zip(TRUTH_COLUMNS, columns, strict=True))})

    def save_parties(self, path: str | PathLike[str], party: str = "party") -> None:
        """Write the results for the parties, likewise; ``party`` must not be in PARTY_COLUMNS."""
        check_names(party, PARTY_COLUMNS)
        group = {p: g for g, members in enumerate(self.groups, 1) for p in members}
        columns = (
            list(self.noise.values()),
            list(self.bias.values()),
            list(self.gain.values()),
            self.ratings.per_party.tolist(),
            [group.get(p) for p in self.noise],
            [self.reasons.get(p, "") for p in self.noise],
        )
        write(path, {party: list(self.noise), **dict(zip(PARTY_COLUMNS, columns, strict=True))})


def infer(
    table: Any,
    *,
    task: str,
    party: str,
    value: str,
    method: str = "pairwise",
    level: float = 0.95,
) -> Inference:
    """Infer the truth of each task, and what each party is like, from a long table of ratings.

    Ratings say nothing about their common shift and scale. The truth is on the scale of the median
    party, which has a bias of zero and a gain of one.

    Args:
        table: a path to a .csv, .tsv or .parquet file, a pandas or polars DataFrame, a pyarrow
            Table, or ``{column: values}``.
        task: the column that says what was rated.
        party: the column that says by whom. Parties need not rate all tasks.
        value: the column with the ratings, which are numbers. Empty, NaN and null are not rated.
        method: ``pairwise``; ``affine``, which takes all parties to be independent; ``ivar``, for
            which parties differ by their noise alone; ``median`` or ``mean``.
        level: how often an interval should hold the truth, on the median party's scale.

    >>> import consilience as cs
    >>> table = {"task": [*"aabb"], "who": [*"xyxy"], "score": [1, 1.2, 5, 5.2]}
    >>> found = cs.infer(table, task="task", party="who", value="score")
    >>> round(found.truth["a"], 1), round(found.truth["b"], 1)
    (1.1, 5.1)
    """
    if method not in METHODS:
        raise ConsilienceError(
            f"no method is called '{shown(method)}'; choose from {', '.join(METHODS)}"
        )
    if not 0 < level < 1:
        raise ConsilienceError(f"a level lies between 0 and 1, found {level}")
    started = perf_counter()
    columns = read(table, task, party, value)
    ratings = Ratings.of(columns.tasks, columns.parties, columns.values)
    prepared = perf_counter()
    standard, centre, unit = ratings.standardised()
    group, found, diagnostics = _fitted(standard, method)
    found = found.scaled(centre, unit)
    diagnostics |= {
        "method": method,
        "ratings": ratings.value.size,
        "not_rated": columns.missing,
        "repeated": ratings.repeated,
        "seconds": {"table": prepared - started, "inference": perf_counter() - prepared},
    }
    return _told(ratings, found, group, level, diagnostics)


def _fitted(ratings: Ratings, method: str) -> tuple[Positions, Fit, dict[str, Any]]:
    alone = np.arange(len(ratings.parties))
    if method == "mean":
        return alone, _plain(ratings, ratings.means(ratings.value)), {}
    if method == "median":
        return alone, _plain(ratings, ratings.medians()), {}
    bias = _rough_bias(ratings)
    pairs = Pairs.of(ratings, ratings.value - bias[ratings.party])
    if not pairs.count.size:  # no task was rated twice: nothing can be compared
        return alone, _plain(ratings, ratings.means(ratings.value)), {}
    levels = starting_levels(pairs)
    compared = np.isfinite(levels)
    levels = np.where(compared, levels, np.median(levels[compared]))
    group = groups(pairs, levels) if method == "pairwise" else alone
    seen: list[Positions] = []  # groups may alternate for ever
    settled = False
    while not settled and len(seen) < _MOST_ROUNDS:
        seen.append(group)
        found = fit(ratings, group, levels, None if method == "ivar" else bias)
        if method == "pairwise":
            levels, bias = found.levels, found.bias
            group = groups(Pairs.of(ratings, ratings.value - bias[ratings.party]), levels)
        settled = any(np.array_equal(group, before) for before in seen)
    found.noise[~_met(ratings)] = np.nan
    converged = settled and found.converged
    told = {"rounds": len(seen), "iterations": found.iterations, "converged": converged}
    return seen[-1], found, told


def _rough_bias(ratings: Ratings, sweeps: int = 5) -> Vector:
    """Return first biases, by medians: a rating is roughly a truth plus a bias."""
    bias = np.zeros(len(ratings.parties))
    order = np.argsort(ratings.party, kind="stable")
    for _ in range(sweeps):
        truth = medians(ratings.task, ratings.value - bias[ratings.party], ratings.per_task)
        off = ratings.value - truth[ratings.task]
        bias = medians(ratings.party[order], off[order], ratings.per_party)
        bias *= ratings.per_party / (ratings.per_party + _FEW)
        bias -= np.median(bias)
    return bias


def _met(ratings: Ratings) -> Mask:
    """Tell for each party whether somebody else rated one of its tasks."""
    met = np.zeros(len(ratings.parties), np.bool_)
    met[ratings.party[ratings.per_task[ratings.task] > 1]] = True
    return met


def _plain(ratings: Ratings, truth: Vector) -> Fit:
    """Return the fit of a method without a model: the noise is the distance from the truth."""
    size, unknown = len(ratings.parties), np.full(len(truth), np.nan)
    squares = total(ratings.party, (ratings.value - truth[ratings.task]) ** 2, size)
    levels = np.where(_met(ratings), squares / ratings.per_party, np.nan)
    return Fit(truth, unknown, np.zeros(size), np.ones(size), np.sqrt(levels), levels, 0, True)


def _told(
    ratings: Ratings, found: Fit, group: Positions, level: float, diagnostics: dict[str, Any]
) -> Inference:
    """Return the result by task and by party."""
    half = NormalDist().inv_cdf(0.5 + level / 2) * found.deviation
    low, high = (found.truth - half).tolist(), (found.truth + half).tolist()
    names, noise = ratings.parties, found.noise
    together: dict[int, list[Hashable]] = {}
    for j, first in enumerate(group.tolist()):
        together.setdefault(first, []).append(names[j])
    sets = [tuple(members) for members in together.values() if len(members) > 1]
    sets.sort(key=lambda members: (-len(members), str(members[0])))
    reasons = _reasons(ratings, found, sets, group == np.arange(group.size))
    return Inference(
        dict(zip(ratings.tasks, found.truth.tolist(), strict=True)),
        dict(zip(ratings.tasks, zip(low, high, strict=True), strict=True)),
        dict(zip(names, noise.tolist(), strict=True)),
        dict(zip(names, found.bias.tolist(), strict=True)),
        dict(zip(names, found.gain.tolist(), strict=True)),
        tuple(sets),
        reasons,
        diagnostics,
        ratings,
    )


def _reasons(
    ratings: Ratings, found: Fit, sets: list[tuple[Hashable, ...]], voices: Mask
) -> dict[Hashable, str]:
    """Return why parties stand out, in the words of `Consensus.reasons` and some more."""
    noise = found.noise
    typical = float(np.nanmedian(noise[voices])) if np.isfinite(noise[voices]).any() else 0.0
    relative = np.nan_to_num(noise / typical) if typical > 0 else np.zeros_like(noise)
    texts = [(members, [tuple(map(shown, members))]) for members in sets]
    peers = {party: text for members, text in texts for party in members}
    reasons: dict[Hashable, str] = {}
    for j, party in enumerate(ratings.parties):
        # One at a time: two ids that print alike are still two parties.
        level = relative[j : j + 1]
        said = [*explain([shown(party)], peers.get(party, ()), level, np.zeros(1)).values()]
        if found.gain[j] < _FOLLOWS:
            said.append(f"hardly follows the tasks (gain {found.gain[j]:.2f})")
        if abs(found.bias[j]) > typical > 0:
            way = "high" if found.bias[j] > 0 else "low"
            said.append(f"rates {abs(found.bias[j]):.3g} too {way}: corrected")
        if np.isnan(noise[j]):
            said.append("no task in common with anybody: noise unknown")
        if said:
            reasons[party] = "; ".join(said)
    return reasons
