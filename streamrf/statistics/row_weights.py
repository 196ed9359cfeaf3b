"""What each row of a block counts for."""

from __future__ import annotations

import numpy as np

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding


def row_weights(block: Block, coding: TargetCoding, class_weights: np.ndarray | None) -> np.ndarray | None:
    """What each row counts for: its own weight times that of its class; None where all count the same."""
    if class_weights is None:
        return block.weights
    by_class = class_weights[coding.codes(block.targets)]
    return by_class if block.weights is None else by_class * block.weights
