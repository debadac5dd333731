"""Who stands out in a round, and why: the same judge for all methods.

Methods weigh parties in different ways, and most of them accuse nobody. But what the distances tell
about noise, length and parties that move together does not depend on the method. `Pairwise` reads
it, so all methods give the same reasons, and only the weights differ.
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
    """What the evidence says about each party. It is computed when first needed, as it may take as
    long as the method. If an estimator gives reasons itself, these are used."""

    evidence: Evidence  # with what was remembered
    given: Given = NOTHING
    told: Beliefs | None = None  # the beliefs of the method in use
    layers: Layers | None = None  # the round's distances, tensor by tensor

    @cached_property
    def _read(self) -> Beliefs:
        if self.told is not None and self.told.reasons is not None:
            return self.told
        found = Pairwise().infer(self.evidence, self.given)
        # Only pairwise clips; it would not be true of another method's weights.
        said = {p: why.removesuffix(": clipped") for p, why in (found.reasons or {}).items()}
        return replace(found, reasons=said)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The sets of parties that move together."""
        return self._read.groups

    @property
    def camps(self) -> tuple[tuple[str, ...], ...]:
        """Sets of parties of which either may be right, as the distances cannot tell."""
        return self._read.camps

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """Why parties stand out, and in which tensors if not in all."""
        found = self._read.reasons or {}
        return {
            p: "; ".join(filter(None, (why, where(self.layers, p)))) for p, why in found.items()
        }

    @property
    def compared(self) -> int:
        """How many parties were compared with others."""
        met = (block.parties for block in self.evidence.blocks if len(block.parties) > 1)
        return len({party for parties in met for party in parties})
