"""Who stands out of a round, and why: one judge for every method.

Methods weigh parties in their own ways, and most of them accuse nobody. What distances tell of
noise, of parties that move together and of length is the same whatever the method: `Pairwise` reads
it. So every method gives the same reasons, and only weights differ. A coordinate-wise rule sees no
distances: there a party's noise about the value is compared with the median party's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.beliefs import Beliefs, Given
from consilience.estimators.pairwise import Pairwise
from consilience.estimators.reasons import explain
from consilience.evidence import Evidence, Vector

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class ByEvidence:
    """The judgement of evidence, made when it is first asked for: it may take as long as a method.

    An estimator that gives reasons itself is believed.
    """

    evidence: Evidence  # with what was remembered
    given: Given
    beliefs: Beliefs  # of the method in use

    @cached_property
    def _read(self) -> Beliefs:
        return Pairwise().infer(self.evidence, self.given)

    @property
    def groups(self) -> Groups:
        """The sets of parties that move together."""
        return (self._read if self.beliefs.reasons is None else self.beliefs).groups

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each party stands out that does."""
        if self.beliefs.reasons is not None:
            return self.beliefs.reasons
        found = self._read.reasons or {}
        # Only pairwise clips; of another method's weights this would be false.
        return {party: reason.removesuffix(": clipped") for party, reason in found.items()}

    @property
    def compared(self) -> int:
        """How many parties were compared with somebody."""
        met = (block.parties for block in self.evidence.blocks if len(block.parties) > 1)
        return len({party for parties in met for party in parties})


@dataclass(frozen=True, eq=False)
class ByNoise:
    """The judgement of each party's noise about the value."""

    parties: tuple[str, ...]
    noise: Vector

    groups: Groups = ()

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """Why each party stands out that does."""
        typical = float(np.median(self.noise))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.nan_to_num(self.noise / typical, posinf=np.inf)
        return explain(self.parties, (), relative, np.ones_like(relative))

    @property
    def compared(self) -> int:
        """How many parties were compared with somebody."""
        return len(self.parties)


Judgement = ByEvidence | ByNoise
