"""Memory: what is kept between rounds, by party id.

Evidence of earlier rounds, discounted by ``decay`` each round; the parties' trails, for methods
that follow them; and the noise levels and hidden directions last inferred, from which the next
inference starts. Rounds with the same parties share a block of evidence, so with full participation
the evidence stays one J×J matrix however long a memory lives.

A memory is saved as one .npz file: plain arrays and a JSON header, no pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from consilience.beliefs import Beliefs, Known, Latent
from consilience.errors import ConsilienceError, MemoryFileError
from consilience.evidence import Block, Evidence, Positions
from consilience.tensors import Array
from consilience.trails import FORGOTTEN, Trails
from consilience.whole import whole

_FORMAT = "consilience-memory"
_VERSION = 1


class Memory:
    """What earlier rounds taught about the parties.

    ``decay`` is what a round's evidence still counts one round later: 1 forgets nothing, 0
    everything. Pass a memory to every `aggregate` of a federation; it changes only when a
    round succeeds.
    """

    def __init__(self, decay: float = 0.9) -> None:
        if not 0 <= decay <= 1:
            raise ConsilienceError(f"decay lies between 0 and 1, found {decay}")
        self.decay = float(decay)
        self.rounds = 0
        self.evidence: Evidence | None = None
        self.known: Known | None = None
        self.trails: Trails | None = None

    @property
    def noise(self) -> dict[str, float]:
        """The noise level last inferred of each party."""
        if self.known is None:
            return {}
        return dict(zip(self.known.parties, map(float, self.known.noise), strict=True))

    def recall(self, now: Evidence) -> Evidence:
        """Return the evidence of a round together with what is remembered."""
        if self.evidence is None:
            return now
        fresh = max(block.count for block in now.blocks)
        past = self.evidence.discounted(self.decay)
        kept = tuple(block for block in past.blocks if block.count > FORGOTTEN * fresh)
        return Evidence(kept) + now if kept else now

    def followed(self, now: Block, size: int, look: Callable[[Positions], Array]) -> Trails:
        """Return the trails after a round; ``look`` tells what was sent at some coordinates."""
        trails = self.trails
        if trails is None or trails.size != size:  # none yet, or of another model
            trails = Trails.begun(now, size)
        return trails.followed(now.parties, look(trails.places), self.decay)

    def keep(self, evidence: Evidence, beliefs: Beliefs, trails: Trails | None = None) -> None:
        """Replace what is remembered by what `recall` and `followed` gave and what came of it."""
        self.rounds += 1
        self.evidence = evidence
        self.trails = self.trails if trails is None else trails  # None: the method follows nobody
        self.known = self._with_absent(beliefs.known)

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
        header, arrays = self._pack()
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with whole(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Memory:
        """Read a memory from a file. A file that is not one is left alone and named."""
        if not Path(path).exists():
            raise MemoryFileError(f"{path}: no such file; start with Memory() and save it first")
        try:
            # Opened here, since numpy leaves a file that is not whole open.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                header = json.loads(arrays["header"].tobytes())
                if header["format"] != _FORMAT:
                    raise MemoryFileError(f"{path}: not a memory but {header['format']!r}")
                if header["version"] != _VERSION:
                    raise MemoryFileError(
                        f"{path}: memory version {header['version']}, this release reads {_VERSION}"
                    )
                return cls._unpack(header, arrays)
        except MemoryFileError:
            raise
        except Exception as error:  # damage shows in too many ways to list
            raise _foreign(path, error) from error

    def _pack(self) -> tuple[dict[str, Any], dict[str, Any]]:
        header: dict[str, Any] = {
            "format": _FORMAT,
            "version": _VERSION,
            "decay": self.decay,
            "rounds": self.rounds,
            "blocks": [],
            "known": None,
            "trails": None,
        }
        arrays: dict[str, Any] = {}
        for b, block in enumerate(self.evidence.blocks if self.evidence else ()):
            header["blocks"].append({"parties": block.parties, "count": block.count})
            arrays[f"distances{b}"] = block.distances
        if self.known is not None:
            header["known"] = {"parties": self.known.parties, "latent": None}
            arrays["noise"] = self.known.noise
            latent = self.known.latent
            if latent is not None:
                header["known"]["latent"] = {"shared": latent.shared}
                arrays["factors"], arrays["own"] = latent.factors, latent.own
                arrays["prior"] = np.array(latent.prior_variance)
        if self.trails is not None:
            header["trails"] = {"size": self.trails.size, "parties": self.trails.parties}
            arrays["places"] = self.trails.places.astype(np.int64)
            arrays["rounds"], arrays["means"] = self.trails.rounds, self.trails.means
        return header, arrays

    @classmethod
    def _unpack(cls, header: dict[str, Any], arrays: Any) -> Memory:
        memory = cls(header["decay"])
        memory.rounds = int(header["rounds"])
        blocks = []
        for b, block in enumerate(header["blocks"]):
            distances = _checked(arrays[f"distances{b}"], (len(block["parties"]) + 1,) * 2)
            if not np.isfinite(distances).all():
                raise ValueError("a distance is not finite")
            blocks.append(Block(tuple(block["parties"]), distances, float(block["count"])))
        memory.evidence = Evidence(tuple(blocks)) if blocks else None
        if header["known"] is not None:
            parties = tuple(header["known"]["parties"])
            latent = None
            if header["known"]["latent"] is not None:
                factors = arrays["factors"]
                latent = Latent(
                    _checked(factors, (len(parties), factors.shape[1])),
                    _checked(arrays["own"], (len(parties),)),
                    bool(header["known"]["latent"]["shared"]),
                    float(arrays["prior"]),
                )
            memory.known = Known(parties, _checked(arrays["noise"], (len(parties),)), latent)
        if header.get("trails") is not None:  # a memory of an earlier release has none
            memory.trails = _trails(header["trails"], arrays)
        return memory


def _trails(header: dict[str, Any], arrays: Any) -> Trails:
    size, parties = int(header["size"]), tuple(header["parties"])
    places = _checked(arrays["places"], (arrays["places"].size,), np.int64).astype(np.intp)
    rounds = _checked(arrays["rounds"], (len(parties),))
    means = _checked(arrays["means"], (len(parties), len(places)))
    if (np.diff(places, prepend=-1, append=size) <= 0).any():
        raise ValueError(f"the places of the trails do not ascend from 0 to {size}")
    if not (np.isfinite(means).all() and np.isfinite(rounds).all() and (rounds > 0).all()):
        raise ValueError("a trail is not finite")
    return Trails(size, places, parties, rounds, means)


def _checked(array: Any, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    if array.dtype != dtype or array.shape != shape:
        expected = f"{np.dtype(dtype)} of shape {shape}"
        raise ValueError(f"expected {expected}, found {array.dtype} {array.shape}")
    return array


def _foreign(path: str | os.PathLike[str], error: Exception) -> MemoryFileError:
    return MemoryFileError(
        f"{path}: not a readable memory ({error}); it was left as it is. "
        "Move it away, or start a new Memory()"
    )
