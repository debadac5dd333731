"""Positive definite matrices, in units of their diagonal, so that one party's scale does not cost
the precision of others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from consilience.arrays import Vector

Cube = npt.NDArray[np.float64]


def inverse(matrices: Cube) -> tuple[Cube, Vector]:
    """Return the inverse of each matrix of a stack, and the log-determinant of the inverse.

    By Cholesky factors, so that the result is positive definite. Raise LinAlgError if rounding
    leaves a matrix that is not.
    """
    scale = 1.0 / np.sqrt(np.diagonal(matrices, axis1=-2, axis2=-1))
    lower = np.linalg.cholesky(matrices * scale[..., :, None] * scale[..., None, :])
    root = np.linalg.inv(lower) * scale[..., None, :]
    found: Cube = root.swapaxes(-1, -2) @ root
    diagonal = np.diagonal(lower, axis1=-2, axis2=-1)
    return found, 2 * np.log(scale / diagonal).sum(axis=-1)
