"""ByzFL's own search for the worst IPM and ALIE, by its own code.

What ByzFL published was measured with these. They try the aggregator in use, at most twenty times
in a round, and start with steps of 10: so they look for far updates first. `optimised` has ours.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.registry import Attack, Knowledge, register, send


@register
def byzfl_ipm(knowledge: Knowledge) -> Attack:
    """−τμ, with the worst τ that ByzFL finds."""
    return _searched(knowledge, "Optimal_InnerProductManipulation")


@register
def byzfl_alie(knowledge: Knowledge) -> Attack:
    """μ + τ·sd, with the worst τ that ByzFL finds."""
    return _searched(knowledge, "Optimal_ALittleIsEnough")


def _searched(knowledge: Knowledge, name: str) -> Attack:
    from consilience.lab.peers import byzfl  # it needs torch, which other attacks do not

    if knowledge.aggregate is None:
        raise ValueError("an optimised attack tries the aggregator: give Knowledge an `aggregate`")
    search, aggregate = getattr(byzfl("attacks.attacks"), name), knowledge.aggregate

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        known = honest if len(honest) > 1 else np.tile(honest, (2, 1))  # their sd divides by n − 1
        known = known.astype(np.promote_types(known.dtype, np.float32), copy=False)
        found = search(agg=aggregate, pre_agg_list=[], f=count)(known)
        return send(np.asarray(found), honest, count)

    return attack
