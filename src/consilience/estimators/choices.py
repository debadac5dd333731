"""The parameters of the method `pairwise`, each with a line on why it has its value."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from typing import Any

from consilience.errors import ConsilienceError
from consilience.estimators.levels import Starts
from consilience.estimators.reasons import REMARKABLE, TOGETHER

# The range of a field.
MUCH = 1e6
ALLOWED = {
    "most_slack": (1, 10),
    "fitting": (0.01, 0.99),
    "vote_power": (0, 10),
    "quietest_pair": (0, 2),
    "deviations": (0, 10),
    "many": (1, MUCH),
    "few": (0, MUCH),
    "nearest": (0.01, 1),
    "heed": (0, 1),
    "most_heed": (1, MUCH),
    "loudest": (1, MUCH),
    "longest": (1, MUCH),
    "quiet": (0, 1),
    "doubt": (0, 10),
    "most_claimed": (1, MUCH),
    "exact": (1e-4, 1),
    "anchored": (0, MUCH),
    "nearly_all": (1, MUCH),
    "hardening": (0, 0.99),
    "tolerance": (0, 1),
    "together": (0.01, 1),
    "remarkable": (1, MUCH),
    "max_iterations": (1, MUCH),
    "fading": (0, 1),
    "lasting": (0.01, 1),
    "owner": (0, 1),
    "enough_rounds": (1, MUCH),
    "outlasting": (1, MUCH),
    "mild": (0, 1),
    "settled": (0, 1),
    "camp": (0.01, 1),
    "league": (0.01, 1),
}


@dataclass(frozen=True, repr=False)
class Choices:
    """The parameters of `Pairwise`. docs/pairwise.md has the formulas beside the fields.

    How far levels are trusted:

    - ``slack``: ρ; None estimates it from the evidence.
    - ``most_slack``: the largest ρ. At 3, κ counts to the sixth power: with the third, honest
      parties with similar data lose their votes.
    - ``fitting``: the share of pairs that must fit for no slack. Not half: adversaries can make
      their own pairs fit. Not all: theirs need not fit either.

    What a memory adds (see `persistence`):

    - ``fading``: the share of parties whose errors must fade over rounds for no slack. Not half:
      adversaries can let theirs fade where honest data differ. Not three quarters: four of fourteen
      could let theirs last where data do not differ.
    - ``lasting``: if this share of an error lasts, slack is not reduced. On MNIST it is 0.05 where
      data are IID, and 0.4 with Dirichlet 1.
    - ``enough_rounds``: in fewer equal rounds, chance leaves too much.
    - ``outlasting``: how large the lasting part of a party's error may be at full trust, in squared
      typical trails; over 1 − λ̃, the share of the typical error that fades, but four times as much
      at most. On MNIST with IID data the bar is 1.5. Honest parties reach 1.1 in nine rounds of
      ten, disguises that last 5 to 9. With Dirichlet 1 the bar is 2.6, and one honest party of ten
      may be beyond it.
    - ``unshared``: how much of what lasts of a party's error the errors of the others may leave
      unexplained (see `unshared`), in typical squares of what lasts; over (1 − Λ)⁴, but one at
      least. Λ is the largest λ̃ of all rounds. On MNIST honest parties reach 0.9 with Dirichlet 1,
      where the bar is 1, and 6 with Dirichlet 0.1, where it is 6 or more. Disguises that last have
      1.5 to 3. None: no bar.
    - ``owner``: the share of its trust that a party keeps beyond these two bars, times Λ²: where
      errors last, it may be the only one to know something. With 0, one honest party of ten was cut
      off with Dirichlet 0.1 in one run of nine.

    Corroboration (see `passes.corroborate`):

    - ``corroborate``: whether a party counts in a coordinate only near others: True, False, or
      None, if there are enough parties and hardly any is the only one to know something.
    - ``mild``: parties differ mildly, or by noise, if no more than this share of most errors lasts:
      then a party that stands alone also gets less weight. On MNIST up to 0.6 of them lasts with
      Dirichlet 1.
    - ``settled``: errors hardly change if more than this share of the typical one lasts: then two
      witnesses that stand alone alike are heard. On MNIST up to 0.935 lasts by federated averaging,
      and 0.95 to 0.99 with worker momentum and Dirichlet 0.1.

    Votes:

    - ``vote_power``: a party with g − 1 copies has g to minus this of a vote. At 1 a clique would
      have a whole vote, which stops training where data differ; at 2 it has 1/g.
    - ``quietest_pair``: with much slack, no pair is expected nearer than this many typical levels.
      A typical pair has two; honest ones a little nearer are not yet correlated.
    - ``deviations``, ``many``, ``few``: what strangers share by chance, in standard deviations, if
      there are this many parties or this few coordinates. With few parties little adds up, and two
      deviations would hide quiet adversaries.
    - ``nearest``: the cube root of the nearest that chance brings two parties, however little was
      seen. Two at less than 0.2³ = 0.008 of the expected distance are not strangers.
    - ``most_claimed``: the most votes for any number of samples, as nobody can check the claim.

    Trust:

    - ``heed``: in the median that defines the typical level, a level s counts s to minus this. At
      1/5 ten quiet parties outvote twenty 32 times as noisy, and seven adversaries do not outvote
      ten honest parties unless six times as quiet.
    - ``most_heed``: no level counts more than this many times the median one; otherwise two copies
      near the mean would decide.
    - ``loudest``: typical lengths up to which a party has full trust, slack permitting. With 1.5
      accuracy is lost where data differ and nobody attacks.
    - ``quiet``: a party quieter than typical may count for more: up to this power of the ratio
      between the largest and the smallest level of the closest half. If half of the levels agree,
      that ratio is one: anybody can be quiet.
    - ``doubt``: the slack of trust is √(ρ² + doubt²) if distances are all prior, and ρ if they are
      all data. The less is known about levels, the more they may differ.
    - ``longest``: a residual counts for at most this many typical lengths in its round: nobody
      pulls more than three honest votes.

    Two camps:

    - ``camp``: a group with at least this share of the parties may be right. With a quarter, at
      most three fits are tried; smaller groups do not come near to an equal explanation.
    - ``league``: how much of a voice, κ^m, the parties of a camp share with one another. With half,
      a camp that is loose beside a tight one is not seen as one.

    The fit of the levels (see `levels`):

    - ``starts``: the quantile of a party's distances to start from, and the misfit that counts as
      zero at first. With one start, or without the gradual third, an adaptive attack wins.
    - ``exact``: the least misfit that does not count as zero: by chance half of the pairs misfit by
      less than 0.67 √(2/n). A hundredth is chance in 10,000 coordinates.
    - ``anchored``: how many coordinates a level's start is worth. With three parties, one of them
      far away, distances do not tell how the noise is divided between the other two.
    - ``nearly_all``: if the objective is below this many times its lowest value, no other start is
      tried. At 1.25 at most one pair in 36 does not fit at all.
    - ``hardening``: the factor on a gradual start's misfit in each iteration. Slow, or it would end
      in the nearest minimum; at 0.7 it takes 13.
    - ``tolerance``, ``max_iterations``: the relative change of levels that ends a fit, less than
      chance makes of them, and the most iterations.

    Reasons:

    - ``together``: parties that share at least this much of a voice are said to move together.
    - ``remarkable``: times typical; less noise is not worth a sentence. Three, as for lengths.
    """

    slack: float | None = None
    max_iterations: int = 100
    _: KW_ONLY
    most_slack: float = 3.0
    fitting: float = 0.75
    vote_power: float = 2.0
    quietest_pair: float = 1.5
    deviations: float = 2.0
    many: float = 50
    few: float = 100
    nearest: float = 0.2
    most_claimed: float = 2.0
    heed: float = 0.2
    most_heed: float = 4.0
    loudest: float = 2.0
    longest: float = 3.0
    quiet: float = 0.5
    doubt: float = 1.5
    starts: Starts = ((0.5, 0.0), (0.25, 0.0), (0.5, 1.0))
    exact: float = 1e-2
    anchored: float = 0.2
    nearly_all: float = 1.25
    hardening: float = 0.7
    tolerance: float = 1e-5
    together: float = TOGETHER
    remarkable: float = REMARKABLE
    fading: float = 2 / 3
    lasting: float = 0.25
    enough_rounds: float = 5.0
    outlasting: float = 1.5
    unshared: float | None = 0.01
    owner: float = 1 / 3
    corroborate: bool | None = None
    mild: float = 0.6
    settled: float = 0.94
    camp: float = 0.25
    league: float = 1 / 3

    def __post_init__(self) -> None:
        for name, (least, most) in ALLOWED.items():
            _check(name, getattr(self, name), least, most)
        if self.slack is not None:
            _check("slack", self.slack, 1, self.most_slack)
        if self.unshared is not None:
            _check("unshared", self.unshared, 1e-4, MUCH)
        _check_starts(self.starts)
        if self.corroborate not in (True, False, None):
            raise ConsilienceError(
                f"corroborate is True, False or None, found {self.corroborate!r}"
            )

    def __repr__(self) -> str:
        """Name only what was set: a record of every round holds this."""
        told = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        changed = (f"{name}={value!r}" for name, value, default in told if value != default)
        return f"{type(self).__name__}({', '.join(changed)})"


def _check(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or not least <= float(value) <= most:
        raise ConsilienceError(f"{name} lies between {least:g} and {most:g}, found {value!r}")


def _check_starts(starts: Any) -> None:
    pairs = isinstance(starts, tuple) and all(isinstance(s, tuple) and len(s) == 2 for s in starts)
    if not starts or not pairs:
        raise ConsilienceError(f"starts are pairs ((quantile, misfit), …), found {starts!r}")
    for quantile, misfit in starts:
        _check("a start's quantile", quantile, 0, 1)
        _check("a start's misfit", misfit, 0, 1)
