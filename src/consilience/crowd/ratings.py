"""Ratings: who said what about which task, as three arrays.

Rows are sorted by task and party, ids by their text, so that the table's order does not matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.arrays import Positions, Vector
from consilience.errors import TableError
from consilience.text import shown

Ids = tuple[Hashable, ...]

_WILD = 1e75  # typical deviations: beyond them, fourth powers would overflow


@dataclass(frozen=True, eq=False)
class Ratings:
    """One rating per row; no party rates a task twice."""

    tasks: Ids
    parties: Ids
    task: Positions  # (N,), sorted
    party: Positions  # (N,), sorted within a task
    value: Vector  # (N,)
    repeated: int = 0  # rows that rated a task again; the mean counts

    @classmethod
    def of(cls, tasks: Sequence[Any], parties: Sequence[Any], values: Vector) -> Ratings:
        """Return the ratings of a long table."""
        task_ids, task = _coded(tasks)
        party_ids, party = _coded(parties)
        # By value too, so that the last digit of a sum does not depend on the order of rows.
        order = np.lexsort((values, party, task))
        task, party, values = task[order], party[order], values[order]
        first = np.ones(values.size, np.bool_)
        first[1:] = (np.diff(task) != 0) | (np.diff(party) != 0)
        starts = np.flatnonzero(first)
        times = np.diff(np.append(starts, values.size))
        mean = np.add.reduceat(values / np.repeat(times, times), starts)  # a sum might overflow
        repeated = values.size - starts.size
        return cls(task_ids, party_ids, task[starts], party[starts], mean, repeated)

    @property
    def size(self) -> tuple[int, int]:
        """Return the number of tasks and of parties."""
        return len(self.tasks), len(self.parties)

    @cached_property
    def per_task(self) -> npt.NDArray[np.intp]:
        """Return the number of ratings of each task."""
        return np.bincount(self.task, minlength=len(self.tasks))

    @cached_property
    def per_party(self) -> npt.NDArray[np.intp]:
        """Return the number of ratings by each party."""
        return np.bincount(self.party, minlength=len(self.parties))

    def means(self, values: Vector) -> Vector:
        """Return the mean over each task of a value per row."""
        return total(self.task, values, len(self.tasks)) / self.per_task

    def medians(self) -> Vector:
        """Return each task's median rating."""
        return medians(self.task, self.value, self.per_task)

    def standardised(self) -> tuple[Ratings, float, float]:
        """Return the ratings, shifted and scaled; and the centre and the unit.

        Squares then neither overflow nor underflow, and thresholds are independent of the unit.
        """
        centre = float(np.median(self.value))
        off = np.abs(self.value - centre)
        unit = float(np.median(off)) or float(np.mean(off)) or 1.0
        worst = int(np.argmax(off))
        if off[worst] > _WILD * unit:
            raise TableError(
                f"party '{shown(self.parties[self.party[worst]])}' rates task "
                f"'{shown(self.tasks[self.task[worst]])}' {self.value[worst]:g}, "
                f"more than {_WILD:g} times as far from the median {centre:g} as is "
                "typical; leave that rating out"
            )
        return replace(self, value=(self.value - centre) / unit), centre, unit


def medians(place: Positions, values: Vector, count: npt.NDArray[np.intp]) -> Vector:
    """Return the median of the values in each place, given their number."""
    ordered = values[np.lexsort((values, place))]
    start = np.cumsum(count) - count
    found: Vector = 0.5 * (ordered[start + (count - 1) // 2] + ordered[start + count // 2])
    return found


def total(place: Positions, values: Vector, size: int) -> Vector:
    """Return the sum of the values in each of ``size`` places."""
    sums: Any = np.bincount(place, values, size)
    return np.asarray(sums, np.float64)


def _coded(ids: Sequence[Any]) -> tuple[Ids, Positions]:
    """Return the distinct ids, sorted by their text, and each row's position among them."""
    different = sorted(set(ids), key=lambda one: (str(one), type(one).__name__))
    place = {one: at for at, one in enumerate(different)}
    return tuple(different), np.fromiter((place[one] for one in ids), np.intp, len(ids))
