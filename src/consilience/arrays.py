"""The kinds of arrays that the modules hand to one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Spans = list[tuple[int, int]]  # coordinates from..to
