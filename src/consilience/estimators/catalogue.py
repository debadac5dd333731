"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable

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

_METHODS: dict[str, Callable[[], Method]] = {
    "mean": Mean,
    "geometric-median": GeometricMedian,
    "coordinate-median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": lambda: Krum(selected=None),
    "mda": MDA,
    "dnc": DnC,
    "caf": CAF,
    "centred-clipping": CentredClipping,
    # Before the geometric median; before others by class.
    "nnm": NNM,
    "arc": ARC,
    "ivar-mle": lambda: IVAR("mle"),
    "ivar-vb": lambda: IVAR("vb"),
    # As in the paper: one noise level for all, few hidden directions.
    "icov-mle": lambda: ICOV("mle", rank=2, noise="shared"),
    "icov-vb": ICOV,
    "icov-full": FullCovariance,
    "pairwise": Pairwise,
}


def methods() -> tuple[str, ...]:
    """Return the names that ``method=`` takes."""
    return tuple(_METHODS)


def resolve(method: str | Method) -> Method:
    """Return the method of a name, or the method itself."""
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
        raise ConsilienceError(
            f"unknown method '{shown(method)}'; choose from {', '.join(_METHODS)}"
        )
    return _METHODS[method]()
