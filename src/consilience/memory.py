"""Memory: what is kept between rounds, by party id.

That is: the evidence of earlier rounds, discounted by ``decay`` each round; the parties' trails,
for methods that use them; the latest noise levels and latent factors, from which the next inference
starts; and each party's noise relative to its rounds, which outlasts their evidence.

If few of very many parties take part at a time, a round costs only what its own parties cost: it is
inferred from the evidence about them alone. Rounds with the same parties share a block of evidence,
so with full participation the evidence stays one J×J matrix for ever. Blocks of other rounds fade,
or are dropped beyond a limit. So are parties beyond ``max_parties``, the least recently seen first.
"""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import replace

import numpy as np

from consilience.arrays import Positions
from consilience.beliefs import Beliefs, Known, Past
from consilience.errors import ConsilienceError
from consilience.evidence import Evidence
from consilience.moderation import as_sampled, moderated, on_scale_of
from consilience.storage.memory_file import MOST_PARTIES, Contents, read, write
from consilience.trails import Look, Relay, Trails

log = logging.getLogger("consilience")

_COMPANY = 50  # so many parties are always inferred together, at next to no cost
_FARTHEST = 138.0  # 10⁶⁰, as a logarithm: a level so far from the typical one says no more


class Memory:
    """What earlier rounds taught about the parties.

    Pass the same memory to every `aggregate` of a federation. It changes only when a round
    succeeds (but for random numbers, which a refused round draws, too).

    Args:
        decay: how much a round's evidence counts one round later: with 1 nothing is forgotten,
            with 0 everything.
        max_parties: if there are more, the least recently seen are forgotten; never those of the
            last round.
        seed: makes the coordinates of the trails repeatable. Without it they are drawn from the
            system's randomness, and nobody knows them.

    >>> import consilience as cs
    >>> memory = cs.Memory()
    >>> for _ in range(3):
    ...     consensus = cs.aggregate({"ann": [1.0, 2], "bob": [1.1, 2]}, memory=memory)
    >>> memory
    Memory of 3 rounds and 2 parties (decay=0.9, max_parties=10000)
    """

    def __init__(
        self, decay: float = 0.9, *, max_parties: int = 10_000, seed: int | None = None
    ) -> None:
        if not 0 <= decay <= 1:
            raise ConsilienceError(f"decay lies between 0 and 1, found {decay}")
        if not isinstance(max_parties, int) or not 1 <= max_parties <= MOST_PARTIES:
            raise ConsilienceError(
                f"max_parties is a whole number from 1 to {MOST_PARTIES}, found {max_parties!r}"
            )
        self.decay, self.max_parties = float(decay), max_parties
        self.rounds = 0
        self.forgotten = 0  # parties over max_parties, since this memory was made or loaded
        self.evidence: Evidence | None = None
        self.known: Known | None = None
        self.past: Past | None = None
        self.relay: Relay | None = None
        self._random = np.random.default_rng(seed)

    def __repr__(self) -> str:
        parties = 0 if self.evidence is None else len(self.evidence.parties)
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return (
            f"Memory of {rounds} and {parties} parties "
            f"(decay={self.decay:g}, max_parties={self.max_parties})"
        )

    def copy(self) -> Memory:
        """Return an independent copy, with the same state of the random generator."""
        other = copy.copy(self)  # shallow: what is kept is replaced, never changed
        other._random = copy.deepcopy(self._random)
        return other

    @property
    def noise(self) -> dict[str, float]:
        """The latest noise of each party; NaN for one that was never judged beside others."""
        found = dict.fromkeys(self.evidence.parties if self.evidence else (), float("nan"))
        if self.known is not None:
            found |= zip(self.known.parties, map(float, self.known.noise), strict=True)
        return found

    def recall(self, now: Evidence) -> Evidence:
        """Return the evidence of a round together with what is remembered of its parties; if the
        round is small, also of parties they met before, so that it is judged in company."""
        now = as_sampled(now)
        past = self._before(now)
        if len({*past.parties, *now.parties}) > _COMPANY:
            past = past.among(_company(past, set(now.parties)))
        return past.followed(now)

    def _before(self, now: Evidence) -> Evidence:
        """Return the evidence of earlier rounds, discounted, without what has faded, and none of it
        much louder than this round."""
        if self.evidence is None:
            return Evidence(())
        past = self.evidence.faded(self.decay, max(block.count for block in now.blocks))
        return on_scale_of(now, past)

    def beyond(self, evidence: Evidence, now: Evidence) -> Past | None:
        """Return what is remembered of the levels of a round's parties beyond what `recall` gave.
        It fades with each round that a party takes part in, not while it is away."""
        if self.past is None:
            return None
        levels, worth = self.past.of(now.parties)
        here = Past(evidence.parties, evidence.worth, evidence.worth).of(now.parties)[1]
        again = here - as_sampled(now).worth
        return Past(now.parties, levels, np.maximum(self.decay * worth - again, 0.0))

    @property
    def trails(self) -> Trails | None:
        """The parties' trails, if there are any."""
        return None if self.relay is None else self.relay.used

    def followed(self, parties: tuple[str, ...], size: int, look: Look) -> Relay | None:
        """Return the trails after a round; ``look`` returns what was sent at given coordinates.
        None if a party was alone: it is its own median, and its error would be zero."""
        if len(parties) < 2:
            return None
        relay = self.relay
        if relay is None or relay.used.size != size:  # none yet, or for another model
            relay = Relay.begun(size, self._random)
        return relay.followed(parties, look, self.decay, self._random)

    def keep(self, now: Evidence, beliefs: Beliefs, relay: Relay | None = None) -> None:
        """Add a round, its beliefs, and the trails that `followed` returned."""
        now = moderated(as_sampled(now))
        if len(now.parties) > 1:
            self._learn(now, beliefs, relay)
        elif self.known is not None:  # nobody to compare it with: all stays as if it were away
            self.known = _ordered(self.known, now.parties)
        self.rounds += 1
        self.evidence = self._before(now).followed(now).latest(self.max_parties)
        self._forget(max(self.max_parties, len(now.parties)))

    def _learn(self, now: Evidence, beliefs: Beliefs, relay: Relay | None) -> None:
        """Keep what a round told about its parties, before it is added to the evidence."""
        self.past = self._with_levels(now, beliefs)
        if relay is not None:  # None: the method uses none
            self.relay = relay.judged(beliefs.lasts)
        told = _told(beliefs.known)
        if told is not None:
            self.known = _with_absent(told, self.known, now.parties)

    def _with_levels(self, now: Evidence, beliefs: Beliefs) -> Past | None:
        """Return everybody's level, relative to the typical one and averaged over its rounds."""
        if not beliefs.typical:  # the method does not compare levels
            return self.past
        parties, evidence, old = now.parties, beliefs.evidence, self.past
        with np.errstate(divide="ignore"):
            relative = 2 * np.log(beliefs.noise) - np.log(beliefs.typical)
        levels, worth = Past(evidence.parties, relative, evidence.worth).of(parties)
        before = self.beyond(evidence, now)
        if before is not None:
            share = before.worth / np.maximum(worth + before.worth, 1e-300)
            levels, worth = levels + share * (np.log(before.levels) - levels), worth + before.worth
        told = np.flatnonzero(np.isfinite(levels) & (worth > 0))
        levels = np.clip(levels, -_FARTHEST, _FARTHEST)
        found = Past(tuple(parties[j] for j in told), np.exp(levels[told]), worth[told])
        absent = _absent(found.parties, old.parties) if old else []
        if old is None or not absent:
            return found
        return Past(
            (*found.parties, *(old.parties[j] for j in absent)),
            np.concatenate([found.levels, old.levels[absent]]),
            np.concatenate([found.worth, old.worth[absent]]),
        )

    def _forget(self, most: int) -> None:
        """Forget all but the ``most`` most recently seen parties; log it the first time."""
        if self.relay is not None:
            self.relay = self.relay.first(most)
        if self.past is not None:
            kept = self.past.parties[:most], self.past.levels[:most], self.past.worth[:most]
            self.past = Past(*kept)
        if self.known is not None and len(self.known.parties) > most:
            if not self.forgotten:
                log.warning(
                    "memory: more than max_parties=%d parties; the least recently seen are "
                    "forgotten from now on",
                    self.max_parties,
                )
            self.forgotten += len(self.known.parties) - most
            self.known = _chosen(self.known, slice(most))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a file, which is always the old one or the complete new one."""
        kept = self.evidence, self.known, self.relay, self.past
        write(path, Contents(self.decay, self.rounds, *kept, self.max_parties))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """Read a memory from a file; raise `MemoryFileError` if it is not one."""
        found = read(path)
        memory = cls(found.decay, max_parties=found.max_parties or 10_000)
        memory.rounds = found.rounds
        memory.evidence, memory.known, memory.relay = found.evidence, found.known, found.relay
        memory.past = found.past
        return memory


def _told(known: Known) -> Known | None:
    """Return only the parties about whom something is known: not those that were alone."""
    at = np.flatnonzero(np.isfinite(known.noise))
    return _chosen(known, at) if at.size else None


def _chosen(known: Known, at: Positions | slice) -> Known:
    """Return what is known of some of the parties."""
    latent = known.latent
    if latent is not None:
        latent = replace(latent, factors=latent.factors[at], own=latent.own[at])
    parties = tuple(np.array(known.parties, object)[at])
    return Known(parties, known.noise[at], latent)


def _with_absent(new: Known, old: Known | None, present: tuple[str, ...]) -> Known:
    """Return what is known now, and earlier knowledge of parties about whom nothing was inferred:
    those of the round first, the others in their old order."""
    if old is None:
        return _ordered(new, present)
    if len(new.parties) <= len(present):  # only these need to be ordered
        return _joined(_ordered(new, present), old)
    return _ordered(_joined(new, old), (*present, *old.parties))


def _ordered(known: Known, parties: tuple[str, ...]) -> Known:
    """Return the same, ordered by where the parties first occur in ``parties``."""
    place = {party: j for j, party in reversed([*enumerate(parties)])}
    order = sorted(range(len(known.parties)), key=lambda j: place.get(known.parties[j], len(place)))
    return _chosen(known, np.array(order, np.intp))


def _joined(new: Known, old: Known) -> Known:
    """Return what is known now, and for other parties what was known before."""
    absent = _absent(new.parties, old.parties)
    if not absent:
        return new
    latent = new.latent
    if latent is not None:
        shape = len(absent), latent.factors.shape[1]
        factors, own = np.full(shape, np.nan), np.full(shape[0], np.nan)
        if old.latent is not None and old.latent.factors.shape[1] == shape[1]:
            factors, own = old.latent.factors[absent], old.latent.own[absent]
        factors, own = np.vstack([latent.factors, factors]), np.concatenate([latent.own, own])
        latent = replace(latent, factors=factors, own=own)
    parties = (*new.parties, *(old.parties[j] for j in absent))
    return Known(parties, np.concatenate([new.noise, old.noise[absent]]), latent)


def _company(past: Evidence, present: set[str]) -> set[str]:
    """Return a round's parties and those they met, from the latest rounds, until there are enough.

    Only whole rounds: in a part of a round, adversaries might be the majority.
    """
    chosen = set(present)
    for block in reversed(past.blocks):
        if len(chosen) < _COMPANY and not present.isdisjoint(block.parties):
            chosen.update(block.parties)
    return chosen


def _absent(present: tuple[str, ...], before: tuple[str, ...]) -> list[int]:
    """Return the positions of those that were there before and are absent now."""
    here = set(present)
    return [j for j, party in enumerate(before) if party not in here]
