"""The consensus of a round: the combined update, and the beliefs it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from consilience.arrays import Matrix
from consilience.beliefs import Beliefs
from consilience.errors import ConsilienceError
from consilience.estimators.judgement import Judgement
from consilience.estimators.reasons import listed
from consilience.estimators.uncertainty import noise_intervals
from consilience.summary import Shown, Summary
from consilience.text import shown

_ALONE = 0.25  # share of a party's squared difference from which on it is mentioned
_FELL = 1 / 3  # of its weight is left to a party that stands alone: it is mentioned
_MOSTLY = 0.5  # share of the weight from which on the value is mostly the centre's
_TELLING = 1e6  # an interval whose ends differ by a larger factor tells nothing


@dataclass(frozen=True, eq=False, repr=False)
class Consensus(Shown):
    """The combined update, and the beliefs it came from. Printing it shows who stands out, and why.

    >>> import consilience as cs
    >>> consensus = cs.aggregate({"ann": [1.0, 2], "bob": [1.1, 2], "eve": [70.0, 80]})
    >>> sorted(consensus.reasons)
    ['eve']
    >>> consensus.weights["eve"] < 0.01
    True
    """

    value: Any  #: structure, dtypes and device of the updates
    parties: tuple[str, ...]  #: whose updates were usable, in the order given
    weights: dict[str, float]  #: of everybody; zero for the rejected
    noise: dict[str, float]  #: standard deviation per coordinate; NaN where unknown
    covariance: Matrix | None  #: (J, J), in the order of parties
    rejected: dict[str, str]  #: party -> reason
    variance: float | None  #: of the value about the truth, per coordinate (VB only)
    beliefs: Beliefs | None  #: None for coordinate-wise rules
    diagnostics: dict[str, Any]  #: iterations, convergence, effective number of parties, seconds
    center_weight: float = 0.0  #: one minus the parties' weights, if there is a prior
    judgement: Judgement | None = None
    #: The share of a party's squared difference from the others that no other party supported, and
    #: that was clipped; empty where no support was needed.
    uncorroborated: dict[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> Summary:
        """Return who weighs how much, and why; those who stand out come first."""
        reasons, bad = self.reasons, len(self.rejected)
        parties = sorted(self.weights, key=lambda party: party not in reasons)
        rows = [
            [shown(p), f"{self.weights[p]:.3g}", f"{self.noise[p]:.3g}", reasons.get(p, "")]
            for p in parties
        ]
        heard = "1 party" if len(self.parties) == 1 else f"{len(self.parties)} parties"
        title = f"Consensus of {heard}" + (f", {bad} rejected" if bad else "")
        return Summary(title, ("party", "weight", "noise", "why"), rows, self.caveats)

    @property
    def reasons(self) -> dict[str, str]:
        """Why parties stand out or were rejected, by party; worded alike for all methods."""
        found = {} if self.judgement is None else self.judgement.reasons
        here = {
            party: "; ".join(said)
            for party in self.parties
            if (said := [*([found[party]] if party in found else []), *self._alone(party)])
        }
        return {**here, **self.rejected}

    def _alone(self, party: str) -> list[str]:
        share = self.uncorroborated.get(party, 0.0)
        less = share > 0 and self.weights[party] <= _FELL * self._believed[party]
        if share < _ALONE and not less:
            return []
        return [
            f"{100 * share:.0f} % of its difference is its word alone: "
            + ("heard less" if less else "not heard")
        ]

    @cached_property
    def _believed(self) -> dict[str, float]:
        """The weights before corroboration."""
        if self.beliefs is None:
            return self.weights
        return dict(zip(self.parties, self.beliefs.weights_of(self.parties), strict=True))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The sets of the round's parties that move together."""
        return () if self.judgement is None else self.judgement.groups

    @property
    def camps(self) -> tuple[tuple[str, ...], ...]:
        """Sets of parties of which either may be right, as the distances cannot tell; `pairwise`
        then hears all of them. Mostly empty."""
        return () if self.judgement is None else self.judgement.camps

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why this is not an all-clear, even if no party stands out."""
        compared = len(self.parties) if self.judgement is None else self.judgement.compared
        said = []
        if len(self.parties) == 1 and compared < 3:
            said.append("only 1 usable party: nobody to judge it by")
        elif compared < 3:
            said.append("only 2 usable parties: neither can be judged by the other")
        if self.camps:
            sides = " | ".join(listed(camp) for camp in self.camps)
            said.append(f"torn, distances cannot tell which camp is right: {sides}")
        if abs(self.center_weight) >= _MOSTLY:
            percent = f"{100 * self.center_weight:.0f} % of the weight"
            said.append(f"the centre holds {percent}: the value is mostly the centre's")
        return tuple(said)

    def noise_intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return an interval for each party's noise (pairwise, ivar-vb and icov-vb).

        For ICOV they have the stated coverage with ``posterior="joint"``; the paper's factorised
        posterior understates noise that parties share, and so do its intervals.
        """
        if self.beliefs is None:
            raise ConsilienceError("coordinate-wise rules have no model of noise")
        ends = noise_intervals(self.beliefs, level)
        by_party = dict(zip(self.beliefs.parties, ends, strict=True))
        return {p: (float(by_party[p][0]), float(by_party[p][1])) for p in self.parties}

    @cached_property
    def known_intervals(self) -> dict[str, tuple[float, float]]:
        """The informative 95 % intervals for the noise, for display; empty if the method has none
        or they cannot be computed. Never an error."""
        try:
            found = self.noise_intervals()
        except (ConsilienceError, np.linalg.LinAlgError):
            return {}
        return {
            p: (low, high) for p, (low, high) in found.items() if 0 < low <= high < _TELLING * low
        }
