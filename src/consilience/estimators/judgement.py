"""Who stands out of a round, and why: one judge for every method.

Methods weigh parties in their own ways, and most of them accuse nobody. What distances tell of
noise, of parties that move together and of length is the same whatever the method: `Pairwise` reads
it. So every method gives the same reasons, and only weights differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from consilience.beliefs import NOTHING, Beliefs, Given
from consilience.estimators.layers import where
from consilience.estimators.pairwise import Pairwise
from consilience.evidence import Evidence, Layers


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the evidence says of each party, read when first asked for: it may take as long as the
    method did. An estimator that gives reasons itself is believed."""

    evidence: Evidence  # with what was remembered
    given: Given = NOTHING
    told: Beliefs | None = None  # by the method in use
    layers: Layers | None = None  # the round's distances, tensor by tensor

    @cached_property
    def _read(self) -> Beliefs:
        if self.told is not None and self.told.reasons is not None:
            return self.told
        found = Pairwise().infer(self.evidence, self.given)
        # Only pairwise clips; of another method's weights this would be false.
        said = {p: why.removesuffix(": clipped") for p, why in (found.reasons or {}).items()}
        return replace(found, reasons=said)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The sets of parties that move together."""
        return self._read.groups

    @property
    def camps(self) -> tuple[tuple[str, ...], ...]:
        """The sets of parties each of which may be right, where distances cannot tell."""
        return self._read.camps

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each party stands out that does, and in which tensors if that is not everywhere."""
        return self._reasons

    @cached_property
    def _reasons(self) -> dict[str, str]:
        found = self._read.reasons or {}
        return {
            p: "; ".join(filter(None, (why, where(self.layers, p)))) for p, why in found.items()
        }

    @property
    def compared(self) -> int:
        """How many parties were compared with somebody."""
        met = (block.parties for block in self.evidence.blocks if len(block.parties) > 1)
        return len({party for parties in met for party in parties})
