"""What a round must have to count, for a federation that would rather stop than be misled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consilience.errors import ConsilienceError, RequirementError
from consilience.estimators.reasons import listed

_ROUNDING = 1e-9  # so that three equal weights are three parties


@dataclass(frozen=True)
class Require:
    """What a round must have to count.

    - ``parties``: the effective number of parties, (Σ|w|)²/Σw², is at least this.
    - ``suspects``: at most this share of the round's parties is rejected or moves together with
      others. A party that is copied is in the group of its copies.

    >>> Require(parties=3, suspects=0.4)
    Require(parties=3, suspects=0.4)
    """

    parties: float = 0.0
    suspects: float = 1.0

    def __post_init__(self) -> None:
        if not self.parties >= 0:
            raise ConsilienceError(f"parties is a number from 0 on, found {self.parties!r}")
        if not 0 <= self.suspects <= 1:
            raise ConsilienceError(f"suspects is a share from 0 to 1, found {self.suspects!r}")

    def check(
        self,
        given: Sequence[str],
        effective: float,
        rejected: Mapping[str, str],
        groups: Iterable[Iterable[str]],
    ) -> None:
        """Raise `RequirementError` if a round of the given parties does not count."""
        if effective < self.parties * (1 - _ROUNDING):
            raise RequirementError(
                f"{effective:.3g} effective parties, expected {self.parties:g} at least", rejected
            )
        together = {party for group in groups for party in group}
        suspects = [party for party in given if party in rejected or party in together]
        if len(suspects) > self.suspects * len(given) * (1 + _ROUNDING):
            raise RequirementError(
                f"{len(suspects)} of {len(given)} parties are rejected or move together "
                f"({listed(suspects)}), expected {100 * self.suspects:.3g} % at most",
                rejected,
            )
