"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from consilience.beliefs import Estimator
from consilience.errors import ConsilienceError
from consilience.estimators.average import Mean
from consilience.estimators.clipping import CentredClipping
from consilience.estimators.coordinatewise import CoordinateMedian, TrimmedMean
from consilience.estimators.icov import ICOV
from consilience.estimators.icov_full import FullCovariance
from consilience.estimators.ivar import IVAR
from consilience.estimators.medians import GeometricMedian
from consilience.estimators.mixing import ARC, NNM
from consilience.estimators.pairwise import Pairwise
from consilience.estimators.selection import MDA, Krum
from consilience.estimators.spectral import CAF, DnC
from consilience.text import shown

Method = Estimator | TrimmedMean

DEFAULT = "pairwise"

# By name: its factory, and what it assumes.
_METHODS: dict[str, tuple[Callable[[], Method], str]] = {
    "mean": (Mean, "everybody is right; weighs by sample counts if given"),
    "geometric-median": (GeometricMedian, "most parties are near the truth"),
    "coordinate-median": (CoordinateMedian, "the same, in each coordinate by itself"),
    "trimmed-mean": (TrimmedMean, "the same; the least and the greatest are left out"),
    "krum": (Krum, "the party that is nearest to most others is right"),
    "multi-krum": (lambda: Krum(selected=None), "the mean of those nearest to most others"),
    "mda": (MDA, "the mean of the J - f parties that are nearest to each other"),
    "dnc": (DnC, "the mean without those farthest out along the most variance"),
    "caf": (CAF, "the same, by weights that shrink until the variance is small"),
    "centred-clipping": (CentredClipping, "nobody pulls harder than most"),
    # With the geometric median; with other methods by class.
    "nnm": (NNM, "each becomes the mean of its nearest; the median of these"),
    "arc": (ARC, "the longest are clipped, then nnm"),
    "ivar-mle": (lambda: IVAR("mle"), "each party has its own noise (the paper's Algorithm 1)"),
    "ivar-vb": (lambda: IVAR("vb"), "the same, with the truth integrated out"),
    # As in the paper: one noise level for all, few latent factors.
    "icov-mle": (
        lambda: ICOV("mle", rank=2, noise="shared"),
        "parties also err together, along hidden directions",
    ),
    "icov-vb": (ICOV, "the same, by variational Bayes (the paper's Algorithm 2)"),
    "icov-full": (FullCovariance, "any covariance of parties (the paper's Proposition 1)"),
    "pairwise": (Pairwise, "most pairs are independent, copies one voice (the default)"),
}

# What others call them.
_ELSEWHERE = {"fedavg": "mean", "average": "mean", "median": "coordinate-median"}


def methods() -> tuple[str, ...]:
    """Return the names that ``method=`` accepts.

    >>> "pairwise" in methods()
    True
    """
    return tuple(_METHODS)


def described() -> dict[str, str]:
    """Return what each method assumes, in a line, by name."""
    return {name: words for name, (_, words) in _METHODS.items()}


def resolve(method: str | Method) -> Method:
    """Return the method with this name, or the method itself."""
    if not isinstance(method, str):
        if isinstance(method, type):
            name = shown(method.__name__)
            raise ConsilienceError(
                f"method is a name or an instance: found the class {name}, write {name}()"
            )
        if isinstance(method, TrimmedMean) or hasattr(method, "infer"):
            return method
        raise ConsilienceError(
            f"method is a name or an estimator such as IVAR(), found {type(method).__name__}"
        )
    if method not in _METHODS:
        plain = method.lower().replace("_", "-")
        near = [_ELSEWHERE[plain]] if plain in _ELSEWHERE else get_close_matches(plain, _METHODS, 1)
        meant = f": did you mean '{near[0]}'? Or" if near else ";"
        raise ConsilienceError(
            f"unknown method '{shown(method)}'{meant} choose from {', '.join(_METHODS)}"
        )
    return _METHODS[method][0]()
