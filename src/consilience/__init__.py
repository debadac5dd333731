"""Consilience: infer the truth from sources nobody can vouch for.

import consilience as cs

consensus = cs.aggregate({"ann": update, "bob": update, "eve": update})
consensus.value, consensus.weights, consensus.noise, consensus.rejected
"""

from consilience.beliefs import Beliefs
from consilience.consensus import Consensus
from consilience.crowd.inference import Inference, infer
from consilience.engines.aggregate import aggregate
from consilience.engines.files.aggregate import aggregate_files
from consilience.errors import (
    ConsilienceError,
    MemoryFileError,
    RecordFileError,
    RequirementError,
    TableError,
    UpdateError,
)
from consilience.estimators.average import (
    GivenCovariance,
    Mean,
    overlap_covariance,
    precision_weighted_mean,
)
from consilience.estimators.catalogue import methods
from consilience.estimators.clipping import CentredClipping
from consilience.estimators.coordinatewise import CoordinateMedian, TrimmedMean
from consilience.estimators.icov import ICOV
from consilience.estimators.icov_full import FullCovariance
from consilience.estimators.icov_mle import Kernel
from consilience.estimators.ivar import IVAR
from consilience.estimators.medians import GeometricMedian
from consilience.estimators.mixing import ARC, NNM
from consilience.estimators.pairwise import Pairwise
from consilience.estimators.selection import MDA, Krum
from consilience.estimators.spectral import CAF, DnC
from consilience.evidence import Evidence
from consilience.memory import Memory
from consilience.record import Record
from consilience.require import Require
from consilience.updates.adapters import LoRA

__version__ = "0.2.0"

__all__ = [
    "ARC",
    "CAF",
    "ICOV",
    "IVAR",
    "MDA",
    "NNM",
    "Beliefs",
    "CentredClipping",
    "Consensus",
    "ConsilienceError",
    "CoordinateMedian",
    "DnC",
    "Evidence",
    "FullCovariance",
    "GeometricMedian",
    "GivenCovariance",
    "Inference",
    "Kernel",
    "Krum",
    "LoRA",
    "Mean",
    "Memory",
    "MemoryFileError",
    "Pairwise",
    "Record",
    "RecordFileError",
    "Require",
    "RequirementError",
    "TableError",
    "TrimmedMean",
    "UpdateError",
    "aggregate",
    "aggregate_files",
    "infer",
    "methods",
    "overlap_covariance",
    "precision_weighted_mean",
]
