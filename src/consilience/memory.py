"""Memory: what is kept between rounds, by party id.

Evidence of earlier rounds, discounted by ``decay`` each round; the parties' trails, for methods
that follow them; and the noise levels and hidden directions last inferred, from which the next
inference starts. Rounds with the same parties share a block of evidence, so with full participation
the evidence stays one J×J matrix however long a memory lives.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import numpy as np

from consilience.beliefs import Beliefs, Known, Latent
from consilience.errors import ConsilienceError
from consilience.evidence import Evidence
from consilience.storage.memory_file import Contents, read, write
from consilience.trails import FORGOTTEN, Look, Relay, Trails


class Memory:
    """What earlier rounds taught about the parties.

    ``decay`` is what a round's evidence still counts one round later: 1 forgets nothing, 0
    everything. ``seed`` makes the places of the trails the same ones each time; without it they are
    drawn from the system's randomness, and known to nobody. Pass a memory to every `aggregate` of a
    federation; it changes only when a round succeeds.
    """

    def __init__(self, decay: float = 0.9, *, seed: int | None = None) -> None:
        if not 0 <= decay <= 1:
            raise ConsilienceError(f"decay lies between 0 and 1, found {decay}")
        self.decay = float(decay)
        self.rounds = 0
        self.evidence: Evidence | None = None
        self.known: Known | None = None
        self.relay: Relay | None = None
        self._random = np.random.default_rng(seed)

    def copy(self) -> Memory:
        """Return a memory of its own that knows the same, and will draw the same."""
        other = copy.copy(self)  # what is kept is replaced, never changed
        other._random = copy.deepcopy(self._random)
        return other

    @property
    def noise(self) -> dict[str, float]:
        """The noise level last inferred of each party; NaN for one that was alone so far."""
        found = dict.fromkeys(self.evidence.parties if self.evidence else (), float("nan"))
        if self.known is not None:
            found |= zip(self.known.parties, map(float, self.known.noise), strict=True)
        return found

    def recall(self, now: Evidence) -> Evidence:
        """Return the evidence of a round together with what is remembered."""
        if self.evidence is None:
            return now
        fresh = max(block.count for block in now.blocks)
        past = self.evidence.discounted(self.decay)
        kept = tuple(block for block in past.blocks if block.count > FORGOTTEN * fresh)
        return Evidence(kept) + now if kept else now

    @property
    def trails(self) -> Trails | None:
        """The parties' trails, if any were followed."""
        return None if self.relay is None else self.relay.used

    def followed(self, parties: tuple[str, ...], size: int, look: Look) -> Relay:
        """Return the trails after a round; ``look`` tells what was sent at some coordinates."""
        relay = self.relay
        if relay is None or relay.used.size != size:  # none yet, or of another model
            relay = Relay.begun(size, self._random)
        return relay.followed(parties, look, self.decay, self._random)

    def keep(self, evidence: Evidence, beliefs: Beliefs, relay: Relay | None = None) -> None:
        """Replace what is remembered by what `recall` and `followed` gave and what came of it."""
        self.rounds += 1
        self.evidence = evidence
        self.relay = self.relay if relay is None else relay  # None: the method follows nobody
        told = _told(beliefs.known)
        self.known = self.known if told is None else self._with_absent(told)

    def _with_absent(self, new: Known) -> Known:
        """Return what is known now, and still of parties whose evidence has been forgotten."""
        old = self.known
        if old is None or (new.latent is None) != (old.latent is None):
            return new
        absent = [j for j, party in enumerate(old.parties) if party not in set(new.parties)]
        if not absent:
            return new
        latent = None
        if old.latent is not None and new.latent is not None:
            if old.latent.factors.shape[1] != new.latent.factors.shape[1]:
                return new
            latent = Latent(
                np.vstack([new.latent.factors, old.latent.factors[absent]]),
                np.concatenate([new.latent.own, old.latent.own[absent]]),
                new.latent.shared,
                new.latent.prior_variance,
            )
        parties = (*new.parties, *(old.parties[j] for j in absent))
        return Known(parties, np.concatenate([new.noise, old.noise[absent]]), latent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a file: whole or not at all."""
        write(path, Contents(self.decay, self.rounds, self.evidence, self.known, self.relay))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """Read a memory from a file. A file that is not one is left alone and named."""
        found = read(path)
        memory = cls(found.decay)
        memory.rounds = found.rounds
        memory.evidence, memory.known, memory.relay = found.evidence, found.known, found.relay
        return memory


def _told(known: Known) -> Known | None:
    """Return what is known of the parties of whom anything is: of one that was alone, nothing."""
    at = np.flatnonzero(np.isfinite(known.noise))
    if len(at) == len(known.parties):
        return known
    latent = known.latent
    if latent is not None:
        latent = replace(latent, factors=latent.factors[at], own=latent.own[at])
    parties = tuple(known.parties[j] for j in at)
    return Known(parties, known.noise[at], latent) if parties else None
