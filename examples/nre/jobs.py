"""What a figure over several jobs is told of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Job(Protocol):
    """One trained model and its analysis: all settings, those that differ from the baseline and those of the cohort,
    the metrics by name, and the columns of the training history."""

    settings: Mapping[str, object]
    changed: Mapping[str, object]
    member: Mapping[str, object]
    metrics: Mapping[str, object]
    history: Mapping[str, npt.NDArray[np.float64]]
